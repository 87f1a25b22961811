"""`tuner sweep`, through the command line: a real sweep of a small graph, what it leaves, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tuner.cache.sqlite import SqliteStore
from tuner.search.effort import EFFORTS
from tuner.search.progress import SCREENING

pytestmark = pytest.mark.slow
TUNER = [sys.executable, "-m", "tuner.cli.main"]
FIELDS = {
    "spec",
    "program_key",
    "workload_key",
    "target",
    "phase",
    "candidates_measured",
    "candidates_duplicate",
    "candidates_refused",
    "candidates_failed",
    "candidates_profiled",
    "notes",
    "default_ms",
    "winner_ms",
    "speedup",
    "speedup_low",
    "speedup_high",
    "winner",
    "plan",
    "whole",
}
# CI machines are loud.
QUICK = ("--effort", "quick", "--threads", "1", "--when-busy", "measure", "--json")
SPECS = """
import torch

def softmax():
    def function(x, y):
        a = torch.sin(x) * y
        return torch.softmax(a, -1), a + 1
    return function, (torch.randn(64, 128), torch.randn(64, 128))

def broken_graph():
    def function(x):
        y = torch.tanh(x) * 2
        print("a graph break")
        return torch.sigmoid(y) + 1
    return function, (torch.randn(32, 64),)

def fails():
    return lambda x: x @ torch.ones(3, 3), (torch.ones(2, 2),)

def raises():
    raise ValueError("no data here")

def wrong_return():
    return 42

def no_tensor():
    return (lambda x: x), (3,)

def data_dependent():
    return lambda x: torch.nonzero(x) * 2, (torch.ones(4),)

def random():
    return lambda x: torch.nn.functional.dropout(x, 0.5), (torch.ones(64, 64),)

def leaves():
    raise SystemExit(0)

def elsewhere():
    return torch.tanh, (torch.ones(4, device="meta"),)

def offsets():
    bags = torch.nn.EmbeddingBag(10, 8).eval().requires_grad_(False)
    return lambda x, o: torch.tanh(bags(x, o)), (torch.arange(48) % 10, torch.arange(0, 48, 6))

def views_only():
    return lambda x: x.t(), (torch.ones(4, 5),)

def prints_late():
    import atexit
    atexit.register(print, "late")
    return torch.tanh, (torch.ones(4),)

not_a_function = 3
"""


def tuner(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {**os.environ, "TUNER_STORE": str(folder / "store.db"), **environment}
    return subprocess.run([*TUNER, *arguments], capture_output=True, text=True, cwd=folder, env=inherited, timeout=900)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sweep")
    (made / "specs.py").write_text(SPECS)
    return made


@pytest.fixture(scope="module")
def swept(folder: Path) -> dict[str, Any]:
    """One sweep of two SPECs, three graphs."""
    done = tuner("sweep", "specs.py:softmax", "specs.py:broken_graph", "--trials", "6", *QUICK, folder=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_there_is_one_result_per_graph_with_the_documented_fields(swept: dict[str, Any]) -> None:
    assert set(swept) == {"results", "seconds", *(f"seconds_{name}" for name in ("compiling", "measuring", "idle", "finals"))}
    assert 0 <= swept["seconds_finals"] < swept["seconds_measuring"]
    spent = [swept[f"seconds_{name}"] for name in ("compiling", "measuring", "idle")]
    assert min(spent) > 0
    assert sum(spent) == pytest.approx(swept["seconds"], abs=0.5)
    assert [result["spec"] for result in swept["results"]] == [
        "specs.py:softmax",
        "specs.py:broken_graph",
        "specs.py:broken_graph",
    ]
    for result in swept["results"]:
        assert set(result) == FIELDS
        assert result["target"].startswith("cpu/")
        tried = result["candidates_measured"] + sum(result["candidates_failed"].values())
        assert tried + result["candidates_profiled"] <= 6
        assert result["speedup_low"] <= result["speedup"] <= result["speedup_high"]
        if result["winner"] == "default":
            assert result["plan"] is None
            assert result["winner_ms"] == result["default_ms"]
            assert result["speedup"] == 1
        else:
            assert result["plan"]["schema"] == 1
            assert result["speedup_low"] > 1.01


def test_every_trial_is_in_the_store_and_no_code_was_measured_twice(swept: dict[str, Any], folder: Path) -> None:
    with SqliteStore(folder / "store.db", read_only=True) as store:
        for result in swept["results"]:
            (exact_key,) = store.exact_keys(result["workload_key"])
            rows = store.measurements(exact_key, "screen")
            assert len(rows) == result["candidates_measured"] + sum(result["candidates_failed"].values())
            codes = [row.code_key for row in rows if row.status == "ok"]
            assert len(codes) == len(set(codes))
            finals = store.measurements(exact_key, "final")
            if result["winner"] == "plan":
                assert len({row.process for row in finals}) in EFFORTS["quick"].looks
            won = store.winner(exact_key)
            assert won is not None
            assert won[0].kind == result["winner"]


def test_what_an_effort_has_settled_is_not_searched_again(folder: Path) -> None:
    # No kernels, so nothing to choose: settled at once.
    arguments = ("sweep", "specs.py:views_only", *QUICK)
    done = tuner(*arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    (first,) = json.loads(done.stdout)["results"]
    (again,) = json.loads(tuner(*arguments, folder=folder).stdout)["results"]
    assert again == first
    text = tuner(*arguments[:-1], folder=folder).stdout
    assert "(settled in generation" in text
    assert not any(phase in text for phase in SCREENING)


def test_a_stored_key_can_be_swept_and_known_verdicts_are_not_measured_again(swept: dict[str, Any], folder: Path) -> None:
    key = swept["results"][0]["workload_key"]
    screened = measurements(folder, "screen")
    done = tuner("sweep", key[:16], "--trials", "6", "--again", *QUICK, folder=folder)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert (result["workload_key"], result["program_key"]) == (key, None)
    assert result["candidates_measured"] >= swept["results"][0]["candidates_measured"]
    new = measurements(folder, "screen") - screened
    assert new <= 6, "the verdicts of the first sweep were to be used"


def measurements(folder: Path, stage: str | None = None) -> int:
    connection = sqlite3.connect(f"file:{folder / 'store.db'}?mode=ro", uri=True)
    try:
        where = "" if stage is None else f" WHERE stage = '{stage}'"
        return int(connection.execute(f"SELECT count(*) FROM measurements{where}").fetchone()[0])
    except sqlite3.OperationalError:
        return 0
    finally:
        connection.close()


def start_and_wait_for_a_measurement(folder: Path) -> subprocess.Popen[str]:
    """A sweep in a process group of its own that has stored at least one measurement."""
    environment = {**os.environ, "TUNER_STORE": str(folder / "store.db"), "TUNER_TEST_SWEEP": str(os.getpid())}
    process = subprocess.Popen(
        [*TUNER, "sweep", "specs.py:softmax", *QUICK, "--effort", "full"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A test runner in the background may hand down an ignored SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 240
    while not ((folder / "store.db").exists() and measurements(folder)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


def wait_until_no_worker_of(parent: int) -> None:
    deadline = time.monotonic() + 30
    while _children(parent):
        assert time.monotonic() < deadline, "the measuring process outlived the sweep"
        time.sleep(0.05)


def _children(parent: int) -> list[int]:
    """Processes that name `parent`'s worker module and had it as their parent or were left behind by it."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes()
            parents = (entry / "environ").read_bytes()
        except OSError:
            continue
        if b"tuner.workers.child" in command and f"TUNER_TEST_SWEEP={parent}".encode() in parents:
            found.append(int(entry.name))
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_sweep_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    (tmp_path / "specs.py").write_text(SPECS)
    monkeypatch.setenv("TUNER_TEST_SWEEP", str(os.getpid()))
    process = start_and_wait_for_a_measurement(tmp_path)
    assert _children(os.getpid()), "the sweep was to have a measuring process"
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert measurements(tmp_path) >= 1
    wait_until_no_worker_of(os.getpid())
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "Interrupted" in errors
        (result,) = json.loads(output)["results"]
        assert result["winner"] is None
    # the store is whole and free again
    with SqliteStore(tmp_path / "store.db") as store:
        assert store.counts()["measurements"] >= 1
        assert store.counts()["winners"] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("nothing.py:f",), 3, "not a file"),
        (("specs.py:nobody",), 3, "no function"),
        (("specs.py:not_a_function",), 3, "no function"),
        (("specs.py",), 3, "neither"),
        (("abcdef0123",), 3, "no stored workload"),
        (("specs.py:raises",), 3, "no data here"),
        (("specs.py:wrong_return",), 3, "wanted are two: a callable"),
        (("specs.py:no_tensor",), 3, "no tensor"),
        (("specs.py:fails",), 3, "eager"),
        (("specs.py:data_dependent",), 3, "depend on data"),
        (("specs.py:softmax", "--trials", "0"), 2, "--trials"),
        (("specs.py:softmax", "--seconds", "-1"), 2, "--seconds"),
        (("specs.py:softmax", "--threads", "0"), 2, "--threads"),
        (("specs.py:softmax", "--threads", "100000"), 2, "cores"),
        (("specs.py:leaves",), 3, "SystemExit"),
        (("specs.py:elsewhere",), 3, "meta"),
        (("specs.py:softmax", "--effort", "huge"), 2, "effort"),
        ((), 2, "SPEC"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, arguments: tuple[str, ...], code: int, text: str) -> None:
    (tmp_path / "specs.py").write_text(SPECS)
    done = tuner("sweep", *arguments, folder=tmp_path)
    assert done.returncode == code, done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("Error")]
    assert len(errors) == 1


def test_odd_specs_are_swept_and_their_answer_is_json_alone(tmp_path: Path) -> None:
    (tmp_path / "specs.py").write_text(SPECS)
    specs = [f"specs.py:{name}" for name in ("offsets", "views_only", "prints_late", "random")]
    done = tuner("sweep", *specs, "--trials", "1", *QUICK, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert [result["spec"] for result in results] == specs
    assert all(result["winner"] for result in results)
    assert "late" in done.stderr
    assert results[-1]["candidates_refused"]["not checkable"] > 0, "of random numbers nobody can say which are right"


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    (tmp_path / "specs.py").write_text(SPECS)
    done = tuner("--debug", "sweep", "specs.py:fails", folder=tmp_path)
    assert done.returncode == 3
    assert "Traceback" in done.stderr


def test_a_folder_as_store_and_a_newer_schema_are_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "specs.py").write_text(SPECS)
    (tmp_path / "store.db").mkdir()
    done = tuner("sweep", "specs.py:softmax", folder=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (4, False)
    newer = tmp_path / "newer.db"
    with SqliteStore(newer):
        pass
    connection = sqlite3.connect(newer)
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    before = newer.read_bytes()
    done = tuner("sweep", "specs.py:softmax", "--store", str(newer), folder=tmp_path)
    assert done.returncode == 4
    assert "newer" in done.stderr
    assert newer.read_bytes() == before


def test_a_second_sweep_on_the_same_store_is_told_who_has_it(tmp_path: Path) -> None:
    (tmp_path / "specs.py").write_text(SPECS)
    with SqliteStore(tmp_path / "store.db"):
        done = tuner("sweep", "specs.py:softmax", folder=tmp_path)
    assert done.returncode == 4
    assert str(os.getpid()) in done.stderr
