"""`tuner lookup` and `tuner status`: the same answers as a compile gets, with and without a daemon."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from stored import NATIVE, POLICY, program, program_final, query, winner

from tuner.answer import Bucket
from tuner.cache.sqlite import SqliteStore
from tuner.cli.main import main
from tuner.errors import DaemonError, SpecError
from tuner.search.workloads import Resolved
from tuner.workload.graph import Graph, is_stored_key


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store that knows one winner, and a short, private folder for the sockets."""
    path = Path(tempfile.mkdtemp(prefix="tuner-"))
    with SqliteStore(path / "store.db") as store:
        store.record_winner(winner(query("a")))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    monkeypatch.setenv("TUNER_STORE", str(path / "store.db"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What SPECs stand for, without torch: a made-up SPEC, or the stored key of one, of two graphs. Gives what was asked."""
    asked: dict[str, Any] = {}

    def resolve(spec: str, *, threads: int | None, forms: Any, find: Any, **_: Any) -> list[Any]:
        if spec != "m.py:f" and not is_stored_key(spec):
            raise SpecError(f"{spec}: no such file")
        asked.update(threads=threads, found=find(spec) if is_stored_key(spec) else None)
        graphs = [query(name, ambient={"threads": threads or 1}) for name in ("a", "b")]
        return [Resolved(spec, Graph("inference", (), [], (), ()), graph, program()) for graph in graphs]

    monkeypatch.setitem(sys.modules, "tuner.search.workloads", SimpleNamespace(resolve=resolve))
    return asked


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@contextmanager
def daemon(*options: str) -> Iterator[dict[str, Any]]:
    """`tuner serve` in a process of its own, once it answers; gives its status."""
    from tuner.cli.output import settings_for
    from tuner.cli.status import ask_status

    socket = Path(options[-1]) if options else settings_for(None).socket
    code = "from tuner.cli.main import main; main(prog_name='tuner')"
    process = subprocess.Popen([sys.executable, "-c", code, "serve", *options], stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while True:
            try:
                yield ask_status(socket)
                return
            except DaemonError:
                assert time.monotonic() < end, "no daemon"
                time.sleep(0.02)
    finally:
        process.terminate()
        process.wait()


def test_the_answer_for_each_graph_is_shown(folder, resolved):
    result = run("lookup", "m.py:f")
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        f"m.py:f  graph 1 of 2  {query('a').workload_key[:12]}",
        "  target      cpu/x86_64-avx2/2",
        "  winner      plan: native aten.gelu",
        "  speed-up    2.000x (1.900 to 2.100)",
        "  tier        exact",
        "  generation  1",
        "  reason      winner of generation 1: 2.00x (1.90 to 2.10), effort quick",
        "  source      store",
        f"m.py:f  graph 2 of 2  {query('b').workload_key[:12]}",
        "  target      cpu/x86_64-avx2/2",
        "  winner      default",
        "  tier        default",
        "  generation  1",
        "  reason      no winner for this graph under any target, toolchain or settings",
        "  source      store",
    ]


def test_an_answer_says_at_which_sizes_it_was_measured(folder, resolved):
    symbolic = replace(winner(query("a")), policy=replace(POLICY, sizes=((1, 8), (64, 8))))
    with SqliteStore(folder / "store.db") as store:
        store.record_winner(symbolic)
    assert "  sizes       measured at s0=1, s1=8; s0=64, s1=8" in run("lookup", "m.py:f").output.splitlines()
    assert json.loads(run("lookup", "m.py:f", "--json").output)[0]["sizes"] == [[1, 8], [64, 8]]


def test_an_answer_says_what_is_served_at_which_size(folder, resolved):
    with SqliteStore(folder / "store.db") as store:
        store.add_program(program(), [query("a"), query("b")], "m.py:f")
        plans = ((query("a").exact_key, NATIVE, None),)
        store.record_program_choice(program(), dispatch=(Bucket("s0", 22, plans), Bucket("s0", None, ())))
    lines = run("lookup", "m.py:f").output.splitlines()
    assert "  dispatch    s0 up to 22: native aten.gelu; any other size: default" in lines
    assert "  dispatch    s0 up to 22: default; any other size: default" in lines
    first = json.loads(run("lookup", "m.py:f", "--json").output)[0]
    assert [bucket["up_to"] for bucket in first["dispatch"]] == [22, None]


def test_the_answers_as_json_use_the_words_of_the_interface(folder, resolved):
    first, second = json.loads(run("lookup", "m.py:f", "--json").output)
    assert first == {
        "spec": "m.py:f",
        "program_key": program().workload_key,
        "workload_key": query("a").workload_key,
        "target": "cpu/x86_64-avx2/2",
        "phase": "inference",
        "winner": "plan",
        "plan": NATIVE.to_json(),
        "groups": [["1:4:Pointwise:0", "2:4:Pointwise:0"], ["3:4x8:Reduction:0"]],
        "tier": "exact",
        "generation": 1,
        "reason": "winner of generation 1: 2.00x (1.90 to 2.10), effort quick",
        "speedup": 2.0,
        "speedup_low": 1.9,
        "speedup_high": 2.1,
        "source": "store",
    }
    assert (second["winner"], second["plan"], second["tier"], second["speedup"]) == ("default", None, "default", 1.0)


def test_a_program_that_is_known_is_answered_as_a_compile_of_it_is(folder, resolved):
    with SqliteStore(folder / "store.db") as store:
        store.add_program(program(), [query("a"), query("c")], "m.py:f")
    first, second = json.loads(run("lookup", "m.py:f", "--json").output)
    assert (first["winner"], second["reason"]) == ("plan", "the program's record does not name this graph")
    with SqliteStore(folder / "store.db") as store:
        store.record_program_final(program_final(winner(query("a"))))
    first, _ = json.loads(run("lookup", "m.py:f", "--json").output)
    assert (first["winner"], first["plan"], first["tier"]) == ("default", None, "exact")
    assert first["reason"] == "vetoed for this program: the whole callable measured 0.93x (0.91 to 0.95)"


def test_what_a_program_keeps_undecomposed_is_told(folder, resolved):
    with SqliteStore(folder / "store.db") as store:
        store.add_program(program(), [query("a"), query("b")], "m.py:f")
        store.record_program_choice(program(), ("aten.gelu.default",))
    assert [row["native_table"] for row in json.loads(run("lookup", "m.py:f", "--json").output)] == [["aten.gelu.default"]] * 2
    assert "the program keeps aten.gelu.default undecomposed" in run("lookup", "m.py:f").output


def test_a_miss_by_thread_count_says_so_and_is_no_error(folder, resolved):
    result = run("lookup", "m.py:f", "--threads", "2")
    assert result.exit_code == 0
    assert resolved["threads"] == 2
    assert "no winner for this thread count; one differs only in ambient.threads (stored 1, asked 2)" in result.output


def test_a_stored_key_is_looked_for_in_the_store_that_is_asked(folder, resolved, tmp_path):
    with SqliteStore(folder / "store.db") as store:
        store.add_graph(query("a").workload_key, {})
    run("lookup", query("a").workload_key)
    assert resolved["found"] == [query("a").workload_key]


def test_a_stored_key_in_a_store_that_cannot_be_read_is_the_stores_error(folder, resolved, tmp_path):
    (tmp_path / "torn.db").write_bytes(b"SQLite format 3\x00 and no more")
    for name, told in (("none.db", "no store at"), ("torn.db", "cannot read store")):
        result = run("lookup", query("a").workload_key, "--store", str(tmp_path / name))
        assert (result.exit_code, result.stdout) == (4, "")
        assert result.stderr.startswith(f"Error: {told} {tmp_path / name}")


def test_a_spec_that_is_no_stored_key_needs_no_store(folder, resolved, tmp_path):
    result = run("lookup", "m.py:f", "--store", str(tmp_path / "none.db"))
    assert result.exit_code == 0
    assert result.output.count("no store yet") == 2


def test_a_spec_that_cannot_be_loaded_is_exit_code_3(folder, resolved):
    result = run("lookup", "nonsense")
    assert (result.exit_code, result.stderr) == (3, "Error: nonsense: no such file\n")


def test_with_a_daemon_the_answers_come_from_it_and_it_counts_them(folder, resolved):
    with daemon() as before:
        assert before["counts"]["hit"] == 0
        assert [one["source"] for one in json.loads(run("lookup", "m.py:f", "--json").output)] == ["daemon", "daemon"]
        result = run("status")
        assert result.exit_code == 0
        lines = [" ".join(line.split()) for line in result.output.splitlines()]
        assert lines[0] == f"daemon {before['pid']} on {before['socket']}"
        assert lines[2:] == [
            f"store {folder / 'store.db'}",
            "generation 1",
            "stored 1 winners, 0 measurements, 0 graphs",
            "look-ups 1 hits, 1 misses",
            "misses 1 unknown graph",
            "programs 0 known, 1 unknown",
            "tuning nothing to do (effort quick)",
        ]
        status = json.loads(run("status", "--json").output)
        assert status["counts"] == {
            "hit": 1,
            "miss": {"unknown_graph": 1},
            "program_hit": 0,
            "program_miss": 1,
            "errors": {},
        }


def test_a_store_that_is_named_is_asked_whatever_daemon_the_environment_names(folder, resolved, monkeypatch):
    socket, other = folder / "other.sock", folder / "other.db"
    monkeypatch.setenv("TUNER_SOCKET", str(socket))
    with daemon("--store", str(other), "--socket", str(socket)):
        assert json.loads(run("lookup", "m.py:f", "--json").output)[0]["winner"] == "default"
        assert json.loads(run("stats", "--json").output)["store"] == str(other)
        named = ("--json", "--store", str(folder / "store.db"))
        told = json.loads(run("lookup", "m.py:f", *named).output)
        assert (told[0]["winner"], told[0]["source"]) == ("plan", "store")
        told = json.loads(run("stats", *named).output)
        assert (told["store"], told["counts"]) == (str(folder / "store.db"), None)
        assert run("status", *named).exit_code == 5
        with_socket = run("stats", *named, "--socket", str(socket))
        assert json.loads(with_socket.output)["store"] == str(other)


def test_without_a_daemon_the_status_says_so_with_exit_code_5(folder):
    for arguments in (["status"], ["status", "--json"]):
        result = run(*arguments)
        assert result.exit_code == 5
        assert result.stdout == ""
        assert result.stderr.startswith("Error: no daemon on ")
        assert "`tuner serve` starts one" in result.stderr


def test_what_is_no_socket_is_named(folder):
    (folder / "file").touch()
    result = run("status", "--socket", str(folder / "file"))
    assert (result.exit_code, result.stderr) == (5, f"Error: {folder / 'file'} is not a socket\n")
