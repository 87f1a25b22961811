"""Answers read from a store file."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from stored import (
    GROUPS,
    KNOB,
    NATIVE,
    SPLIT,
    TOOLCHAIN,
    failed,
    measurement,
    program,
    program_final,
    query,
    settled,
    winner,
)

from tuner.answer import ProgramAnswer
from tuner.cache.sqlite import SqliteStore
from tuner.errors import StoreError
from tuner.lookup.connection import SCHEMA
from tuner.lookup.reader import StoreReader
from tuner.plan import Plan

FIXTURES = Path(__file__).parents[1] / "cache" / "fixtures"


def edit(path: Path, sql: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(sql)
    connection.close()


def record(path: Path, *winners: object) -> None:
    with SqliteStore(path) as store:
        for one in winners:
            store.record_winner(one)


def test_without_a_store_everything_is_a_miss_and_nothing_is_made(reader, tmp_path):
    answer = reader.answer(query())
    assert (answer.tier, answer.plan, answer.generation, answer.reason) == ("default", Plan(), 0, "no store yet")
    assert reader.program(program()).known is False
    assert reader.generation() == 0
    assert reader.counts() == {"graphs": 0, "measurements": 0, "winners": 0, "generation": 0}
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_no_store_yet(reader, path):
    path.touch()
    assert reader.answer(query()).reason == "no store yet"


def test_a_stored_winner_is_the_answer(reader, path):
    record(path, winner(query("b")), winner(query("a")))
    answer = reader.answer(query("a"))
    assert (answer.plan, answer.groups, answer.tier, answer.winner, answer.generation) == (NATIVE, GROUPS, "exact", "plan", 2)
    assert (answer.speedup, answer.speedup_low, answer.speedup_high) == (2.0, 1.9, 2.1)
    assert answer.reason == "winner of generation 2: 2.00x (1.90 to 2.10), effort quick"
    assert reader.outcomes == {"hit": 1}


def test_a_settled_default_is_an_exact_answer(reader, path):
    record(path, settled())
    answer = reader.answer(query())
    assert (answer.plan, answer.tier, answer.winner, answer.speedup) == (Plan(), "exact", "default", 1.0)
    assert "settled" in answer.reason


def test_the_latest_winner_counts(reader, path):
    record(path, winner(plan=NATIVE), winner(plan=SPLIT))
    assert reader.answer(query()).plan == SPLIT
    record(path, settled())
    assert reader.answer(query()).plan == Plan()


@pytest.mark.parametrize(
    ("asked", "reason", "outcome"),
    [
        (
            query(ambient={"threads": 2}),
            "no winner for this thread count; one differs only in ambient.threads (stored 1, asked 2)",
            "threads",
        ),
        (
            query(toolchain={**TOOLCHAIN, "torch": "2.11.0"}),
            "no winner; the nearest differs in toolchain.torch (stored '2.13.0', asked '2.11.0')",
            "other_toolchain",
        ),
        (
            query(target={"backend": "cpu", "arch": "x86_64-avx512", "sku": "made up", "cores": 2}, ambient={"threads": 2}),
            "no winner; the nearest differs in ambient.threads (stored 1, asked 2), "
            "target.arch (stored 'x86_64-avx2', asked 'x86_64-avx512')",
            "other_target",
        ),
        (
            query(ambient={"threads": 1, "deterministic": True}),
            "no winner; the nearest differs in ambient.deterministic (stored None, asked True)",
            "other_ambient",
        ),
        (query("other"), "no winner for this graph under any target, toolchain or settings", "unknown_graph"),
    ],
)
def test_a_miss_says_what_differs_from_the_nearest_winner(reader, path, asked, reason, outcome):
    far = query(ambient={"threads": 64, "freezing": True}, toolchain={"torch": "1", "cxx": "0"}, target={"backend": "cuda"})
    record(path, winner(query()), winner(far))
    answer = reader.answer(asked)
    assert (answer.tier, answer.plan, answer.generation, answer.reason) == ("default", Plan(), 2, reason)
    assert reader.outcomes == {outcome: 1}


@pytest.mark.parametrize(
    ("poison", "error"),
    [
        ("""plan = '{"schema":1,"config":{"cpp.cxx":"/tmp/evil"}}'""", "cpp.cxx is not a declared knob"),
        ("""plan = '{"schema":99}'""", "plan schema 99 is not 1"),
        ("plan = '{'", "does not validate"),
        ("plan = '" + "[" * 100_000 + "'", "does not validate"),
        ("realised = '[[\"../x\"]]'", "not a leaf id"),
        ("speedup = 9e999", "no positive numbers"),
        ("speedup_low = -1.0", "no positive numbers"),
        ("kind = 'default'", "carries a plan"),
    ],
)
def test_a_stored_plan_that_does_not_validate_gives_the_default_and_says_why(reader, path, poison, error):
    record(path, winner(plan=KNOB), winner(plan=NATIVE))
    edit(path, f"UPDATE winners SET {poison} WHERE generation = 2")
    answer = reader.answer(query())
    assert (answer.plan, answer.tier, answer.groups) == (Plan(), "default", None)
    assert error in answer.reason
    assert reader.outcomes == {"invalid_plan": 1}


def test_a_lost_field_does_not_keep_a_miss_from_being_explained(reader, path):
    record(path, winner())
    edit(path, "UPDATE fields SET json = '[[' WHERE kind = 'ambient'")
    assert reader.answer(query(ambient={"threads": 2})).tier == "default"


def test_a_program_gives_an_answer_for_each_of_its_graphs_in_order(reader, path):
    graphs = [query("c"), query("a"), query("b")]
    with SqliteStore(path) as store:
        store.add_program(program(), graphs, "m:f")
        store.record_winner(winner(graphs[0], KNOB))
        store.record_winner(settled(graphs[1]))
    found = reader.program(program())
    assert (found.known, found.generation) == (True, 2)
    assert list(found.answers) == [graph.exact_key for graph in graphs]
    assert [answer.plan for answer in found.answers.values()] == [KNOB, Plan(), Plan()]
    assert [answer.tier for answer in found.answers.values()] == ["exact", "exact", "default"]
    assert {answer.generation for answer in found.answers.values()} == {2}


def test_a_program_for_another_thread_count_is_unknown(reader, path):
    with SqliteStore(path) as store:
        store.add_program(program(), [query()], "m:f")
        store.record_winner(winner())
    found = reader.program(program(ambient={"threads": 2}))
    assert (found.known, found.generation, found.answers) == (False, 1, {})
    assert reader.outcomes == {"program_miss": 1}


def test_a_winner_that_turned_out_wrong_is_not_served_until_it_passes_again(reader, path):
    with SqliteStore(path) as store:
        store.record_winner(winner())
        store.add_measurement(failed("wrong", KNOB))
        assert reader.answer(query()).plan == NATIVE
        store.add_measurement(failed("wrong", asked=query(ambient={"threads": 2}), stage="final", error=3.0))
        answer = reader.answer(query())
        assert (answer.plan, answer.tier, answer.groups, answer.generation) == (Plan(), "default", None, 2)
        assert answer.reason == "quarantined: wrong (3 times the tolerance)"
        store.add_measurement(measurement())
        assert reader.answer(query()).plan == NATIVE
    assert reader.outcomes == {"hit": 2, "quarantined": 1}


def test_a_reason_is_one_line_however_long_a_crash_was_told(reader, path):
    with SqliteStore(path) as store:
        store.record_winner(winner())
        store.add_measurement(failed("crash", message="worker died\n" + "at x\n" * 1000))
    assert reader.answer(query()).reason == "quarantined: crash (worker died)"
    assert reader.program(program()).known is False


def test_an_unknown_program_has_nothing_in_the_compile_caches_key_whatever_is_stored_of_others(reader, path):
    with SqliteStore(path) as store:
        store.record_winner(winner())
        store.add_program(program("other"), [query()], "m:f")
        store.add_measurement(failed("wrong"))
    assert reader.program(program()) == ProgramAnswer(False, 2)
    assert reader.program(program()).plans_digest == ""


def test_the_answers_of_a_vetoed_program_are_the_default_and_so_is_its_tag(reader, path):
    graphs, won = [query("a"), query("b"), query("c")], [winner(query("a"), KNOB), winner(query("b"), NATIVE)]
    with SqliteStore(path) as store:
        store.add_program(program(), graphs, "m:f")
        store.add_program(program("other"), graphs, "m:g")
        for one in won:
            store.record_winner(one)
        store.record_program_final(program_final(*won, verdict="confirmed"))
        served = reader.program(program())
        assert served.plans_digest == program_final(*won).plans != ""
        store.record_program_final(program_final(*won))
    vetoed = StoreReader(path)
    found = vetoed.program(program())
    assert (found.known, found.plans_digest, found.native, found.generation) == (True, "", (), 3)
    first, second, third = found.answers.values()
    assert first == second
    assert (first.plan, first.tier, first.groups, first.generation) == (Plan(), "exact", None, 3)
    assert first.reason == "vetoed for this program: the whole callable measured 0.93x (0.91 to 0.95)"
    assert third.reason == "the program is known, but no sweep has settled this graph of it"
    assert vetoed.outcomes == {"program_hit": 1, "vetoed": 2, "unsettled": 1}
    # a veto is about one program: the graphs, and other programs that have them, are served
    assert vetoed.answer(query("a")).plan == KNOB
    assert vetoed.program(program("other")).plans_digest == program_final(*won).plans


def test_a_veto_is_about_the_plans_it_was_measured_with(reader, path):
    with SqliteStore(path) as store:
        store.add_program(program(), [query("a")], "m:f")
        store.record_winner(winner(plan=KNOB))
        store.record_program_final(program_final(winner(plan=KNOB)))
        assert reader.program(program()).plans_digest == ""
        store.record_winner(winner(plan=NATIVE))
        store.record_program_final(program_final(winner(plan=NATIVE), verdict="confirmed"))
        assert reader.program(program()).native == ("aten.gelu.default",)
        store.record_winner(winner(plan=KNOB))
        assert reader.program(program()).plans_digest == ""
        store.record_program_final(program_final(winner(plan=KNOB), verdict="confirmed"))
        assert [answer.plan for answer in reader.program(program()).answers.values()] == [KNOB]


def test_a_veto_of_plans_one_of_which_went_into_quarantine_since_does_not_apply(reader, path):
    won = [winner(query("a"), KNOB), winner(query("b"), NATIVE)]
    with SqliteStore(path) as store:
        store.add_program(program(), [query("a"), query("b")], "m:f")
        for one in won:
            store.record_winner(one)
        store.record_program_final(program_final(*won))
        store.add_measurement(failed("crash", asked=query("b")))
    assert [answer.plan for answer in reader.program(program()).answers.values()] == [KNOB, Plan()]


@pytest.mark.parametrize("file", sorted(FIXTURES.glob("schema-*.db")), ids=lambda file: file.stem)
def test_a_store_of_every_released_schema_is_served_as_it_is(reader, path, file):
    shutil.copy(file, path)
    path.chmod(0o444)
    before = path.read_bytes()
    assert reader.answer(query("a")).plan == SPLIT
    assert "settled" in reader.answer(query("b")).reason
    assert reader.program(program()).known
    assert reader.program(program()).native_table == (() if file.stem in ("schema-1", "schema-2") else NATIVE.native)
    assert not reader.program(program("unknown")).known
    assert reader.stats()["measurements"]["timeout"] == 1
    assert path.read_bytes() == before


def test_the_winner_of_an_old_store_that_hung_since_is_not_served(reader, path):
    shutil.copy(FIXTURES / "schema-1.db", path)
    edit(path, f"UPDATE measurements SET candidate_key = '{SPLIT.key}' WHERE status = 'timeout'")
    assert reader.answer(query("a")).reason == "quarantined: timeout"


def test_the_numbers_of_a_store(reader, path):
    nothing = dict.fromkeys(("graphs", "programs", "quarantined", "generation", "programs_vetoed", "bytes"), 0)
    nothing |= {"measurements": {}, "winners": {}, "winner_seconds": {"compiling": 0.0, "measuring": 0.0}}
    assert reader.stats() == nothing
    spent = {"seconds": {"compiling": 1.5, "measuring": 2.0}}
    with SqliteStore(path) as store:
        store.add_graph("ab", {})
        store.add_program(program(), [query("a"), query("b")], "m:f")
        for trial in (measurement(), measurement(), failed("crash"), failed("wrong", KNOB), failed("crash", KNOB)):
            store.add_measurement(trial)
        store.add_measurement(measurement(plan=SPLIT, status="busy"))
        for won in (winner(evidence=spent), settled(), winner(query("b"), SPLIT, evidence=spent), winner(query("c"), KNOB)):
            store.record_winner(won)
        store.record_program_final(program_final(settled(), winner(query("b"), SPLIT)))
        open_bytes = reader.stats()["bytes"]
    numbers = reader.stats()
    assert open_bytes > numbers["bytes"] == path.stat().st_size
    assert numbers == {
        "graphs": 1,
        "programs": 1,
        "quarantined": 2,
        "generation": 5,
        "programs_vetoed": 1,
        "measurements": {"busy": 1, "crash": 2, "ok": 2, "wrong": 1},
        "winners": {"default": 1, "plan": 2},
        "winner_seconds": {"compiling": 3.0, "measuring": 4.0},
        "bytes": numbers["bytes"],
    }


def test_a_program_counts_as_vetoed_while_the_plans_in_force_are(reader, path):
    plans = [winner(query("a"), KNOB), winner(query("b"), NATIVE)]
    with SqliteStore(path) as store:
        store.add_program(program(), [query("a"), query("b")], "m:f")
        store.add_program(program("other"), [query("a")], "m:g")
        for one in plans:
            store.record_winner(one)
        store.record_program_final(program_final(*plans))
        store.record_program_final(program_final(plans[0], query=program("other"), verdict="confirmed"))
        assert reader.stats()["programs_vetoed"] == 1
        # what is said of other plans later changes nothing
        store.record_program_final(program_final(winner(query("a"), SPLIT), verdict="confirmed"))
        assert reader.stats()["programs_vetoed"] == 1
        store.record_winner(winner(query("a"), SPLIT))
        assert reader.stats()["programs_vetoed"] == 0
        store.record_winner(plans[0])
        assert reader.stats()["programs_vetoed"] == 1
        store.record_program_final(program_final(*plans, verdict="confirmed"))
        assert reader.stats()["programs_vetoed"] == 0


def test_which_plans_are_in_force_is_told_vetoed_or_not(reader, path):
    assert reader.plans_in_force(program().exact_key) == ""
    with SqliteStore(path) as store:
        store.add_program(program(), [query("a"), query("b")], "m:f")
        assert reader.plans_in_force(program().exact_key) == ""
        store.record_winner(winner(query("a"), KNOB))
        in_force = reader.plans_in_force(program().exact_key)
        assert in_force == reader.program(program()).plans_digest == program_final(winner(query("a"), KNOB)).plans
        store.record_program_final(program_final(winner(query("a"), KNOB)))
        assert reader.program(program()).plans_digest == ""
        assert reader.plans_in_force(program().exact_key) == in_force


def test_plans_with_which_the_outputs_are_others_are_vetoed_for_that(reader, path):
    wrong = {"speedup": 0.0, "speedup_low": 0.0, "speedup_high": 0.0, "evidence": {"error": "its outputs differ\nat x"}}
    with SqliteStore(path) as store:
        store.add_program(program(), [query("a")], "m:f")
        store.record_winner(winner())
        store.record_program_final(program_final(winner(), **wrong))
    (answer,) = reader.program(program()).answers.values()
    assert answer.plan == Plan()
    assert answer.reason == "vetoed for this program: with its plans its outputs differ"
    edit(path, "UPDATE program_finals SET evidence = '[['")
    (answer,) = reader.program(program()).answers.values()
    assert answer.reason == "vetoed for this program: the whole callable measured 0.00x (0.00 to 0.00)"


def test_a_new_winner_is_seen_while_the_writer_is_at_work(reader, path):
    with SqliteStore(path) as store:
        assert reader.answer(query()).tier == "default"
        store.record_winner(winner())
        assert reader.answer(query()).plan == NATIVE
        store.record_winner(winner(plan=SPLIT))
        assert reader.answer(query()).plan == SPLIT


def test_a_store_that_is_replaced_is_read_anew(reader, path, tmp_path):
    record(path, winner(plan=NATIVE))
    assert reader.answer(query()).plan == NATIVE
    record(tmp_path / "other.db", winner(plan=SPLIT))
    for leftover in tmp_path.glob("store.db*"):
        leftover.unlink()
    (tmp_path / "other.db").rename(path)
    assert reader.answer(query()).plan == SPLIT


def garbage(path: Path) -> None:
    path.write_bytes(os.urandom(50_000))


def truncated(path: Path) -> None:
    record(path, *(winner(query(name)) for name in "abc"))
    with path.open("r+b") as file:
        file.truncate(8192)


def newer(path: Path) -> None:
    record(path, winner())
    edit(path, f"PRAGMA user_version = {SCHEMA + 1}")


@pytest.mark.parametrize("make", [garbage, truncated, newer, Path.mkdir, os.mkfifo])
def test_a_file_that_cannot_be_read_is_a_store_error_in_one_line(reader, path, make):
    make(path)
    for look in (
        lambda: reader.answer(query()),
        lambda: reader.program(program()),
        reader.generation,
        reader.counts,
        reader.stats,
    ):
        with pytest.raises(StoreError) as caught:
            look()
        assert "\n" not in str(caught.value)


def test_a_store_on_a_read_only_disk_is_read(tmp_path):
    record(tmp_path / "store.db", winner())
    # a folder that anybody may look into and nobody may write to, seen by a user who is not root
    folder = Path(tempfile.mkdtemp(prefix="tuner-read-only-"))
    try:
        shutil.copy(tmp_path / "store.db", folder / "store.db")
        (folder / "store.db").chmod(0o444)
        folder.chmod(0o555)
        code = (
            "import os, sys; from stored import *; from pathlib import Path; from tuner.lookup.reader import StoreReader\n"
            "if os.geteuid() == 0: os.setgid(65534), os.setuid(65534)\n"
            "print(StoreReader(Path(sys.argv[1])).answer(query()).plan == NATIVE)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder / "store.db")],
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.stdout, done.stderr) == ("True\n", "")
        assert [file.name for file in folder.iterdir()] == ["store.db"]
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


@pytest.mark.parametrize("module", ["tuner", "tuner.lookup.client", "tuner.lookup.reader"])
def test_looking_up_loads_no_heavy_package(module):
    code = f"import sys, {module}; print([name for name in ('torch', 'optuna', 'sqlite_utils', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")
