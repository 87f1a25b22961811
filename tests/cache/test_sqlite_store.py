"""The store as a file: who may open it, what survives, and what is left alone."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from stored import (
    GROUP_TIMES,
    GROUPS,
    KNOB,
    NATIVE,
    POLICY,
    SPLIT,
    failed,
    measurement,
    program,
    program_final,
    query,
    settled,
    winner,
)

from tuner.answer import ProgramChoice
from tuner.cache.folder import make_folder
from tuner.cache.lock import take_lock
from tuner.cache.schema import migrate
from tuner.cache.sqlite import SqliteStore
from tuner.errors import StoreBusy, StoreError
from tuner.lookup.connection import SCHEMA, schema_of
from tuner.lookup.quarantine import IN_FORCE, OF_WORKLOAD
from tuner.measurement import Policy

FIXTURES = Path(__file__).parent / "fixtures"
# how the fixtures' numbers were measured: the first version's policy had five fields
WARMED_UP = Policy("thread", 1, warm_up="stable", sample_ms=2.0)
POLICIES = {1: Policy("thread", 1), 2: WARMED_UP, 3: WARMED_UP, 4: WARMED_UP}
TESTS = str(Path(__file__).parents[1])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def edit(path: Path, sql: str) -> None:
    """Change a store behind our back."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(sql)
    connection.close()


def child(code: str, path: Path, **options: object) -> subprocess.Popen[str]:
    """A process that runs `code` with `path` and the test values at hand."""
    text = f"import sys; sys.path.insert(0, {TESTS!r}); path = {str(path)!r}\n"
    text += "from stored import *\nfrom tuner.cache.sqlite import *\n"
    return subprocess.Popen([sys.executable, "-c", text + code], stdout=subprocess.PIPE, text=True, **options)


HOLD = """
store = SqliteStore(path)
number = 0
while True:
    print(store.add_measurement(measurement(provenance={"n": number})), flush=True)
    number += 1
    if number == 20:
        sys.stdin.readline()
"""


def test_what_was_written_is_there_when_the_store_is_opened_again(path):
    with SqliteStore(path) as store:
        store.record_winner(winner())
        store.add_measurement(measurement())
    with SqliteStore(path) as store:
        assert store.winner(query().exact_key) == (winner(), 1)
        assert store.measurements(query().exact_key) == [measurement()]
        assert store.record_winner(settled()) == 2


def test_missing_folders_are_made_for_this_user_alone(tmp_path):
    path = tmp_path / "a" / "b" / "store.db"
    with SqliteStore(path):
        pass
    assert [folder.stat().st_mode & 0o777 for folder in (path.parent, path.parent.parent)] == [0o700, 0o700]


@pytest.mark.parametrize(("mode", "alone"), [(0o700, True), (0o755, True), (0o770, False), (0o707, False)])
def test_whether_others_can_write_to_a_folder_is_told(tmp_path, mode, alone):
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(mode)
    assert make_folder(tmp_path / "a") == alone
    assert make_folder(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a").stat().st_mode & 0o777 == mode


def test_every_table_is_strict(path):
    with SqliteStore(path) as store:
        store.record_winner(winner())
    for column in ("speedup", "generation"):
        with pytest.raises(sqlite3.IntegrityError):
            edit(path, f"UPDATE winners SET {column} = 'fast'")


def test_the_schema_number_is_in_the_file(path):
    with SqliteStore(path):
        pass
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA,)
    connection.close()


def test_an_empty_file_becomes_a_store(path):
    path.touch()
    with SqliteStore(path) as store:
        assert store.record_winner(winner()) == 1


def test_a_second_writer_is_told_which_process_writes(path):
    holder = child(HOLD, path, stdin=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == "1\n"
        with pytest.raises(StoreBusy, match=f"{path} is being written by process {holder.pid}"):
            SqliteStore(path)
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
        holder.stdin.close()


def test_a_killed_writer_leaves_all_it_was_told_is_written_and_no_lock(path):
    holder = child(HOLD, path, stdin=subprocess.PIPE)
    acknowledged = [holder.stdout.readline() for _ in range(20)]
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    holder.stdin.close()
    assert acknowledged == [f"{n}\n" for n in range(1, 21)]
    with SqliteStore(path) as store:
        assert [one.provenance["n"] for one in store.measurements(query().exact_key)] == list(range(20))
        assert store.record_winner(winner()) == 1


def test_the_lock_ends_with_the_store(path):
    with SqliteStore(path), pytest.raises(StoreBusy, match=f"process {os.getpid()}"):
        SqliteStore(path)
    SqliteStore(path).close()


@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_a_lock_file_is_for_whom_it_is_said_to_be_whatever_the_umask(tmp_path, mode):
    before = os.umask(0o077)
    try:
        for _ in range(2):
            take_lock(tmp_path / "lock", mode).release()
    finally:
        os.umask(before)
    assert (tmp_path / "lock").stat().st_mode & 0o777 == mode


def test_a_store_that_fails_to_open_gives_its_lock_back(path):
    path.write_text("this is no database, and longer than a header " * 10)
    for _ in range(2):
        with pytest.raises(StoreError) as caught:
            SqliteStore(path)
        assert not isinstance(caught.value, StoreBusy)


def test_readers_work_beside_the_writer_and_see_what_it_writes(path):
    with SqliteStore(path) as store, SqliteStore(path, read_only=True) as reader:
        assert reader.generation() == 0
        store.record_winner(winner())
        assert reader.winner(query().exact_key) == (winner(), 1)


def test_a_store_opened_for_reading_refuses_to_write(path):
    SqliteStore(path).close()
    with SqliteStore(path, read_only=True) as store:
        with pytest.raises(StoreError, match="readonly"):
            store.record_winner(winner())
        assert store.generation() == 0


def test_opening_for_reading_makes_nothing(tmp_path):
    with pytest.raises(StoreError, match="no store at"):
        SqliteStore(tmp_path / "store.db", read_only=True)
    assert list(tmp_path.iterdir()) == []


def folder_as_store(path: Path) -> None:
    path.mkdir()


def pipe_as_store(path: Path) -> None:
    os.mkfifo(path)


def text_as_store(path: Path) -> None:
    path.write_text("this is no database, and longer than a header " * 10)


def foreign_database(path: Path) -> None:
    edit(path, "CREATE TABLE theirs (x)")


def newer_store(path: Path) -> None:
    SqliteStore(path).close()
    edit(path, f"PRAGMA user_version = {SCHEMA + 1}")


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (folder_as_store, "is a folder"),
        (pipe_as_store, "not a regular file"),
        (text_as_store, "not a database"),
        (foreign_database, "not a store of tuner"),
        (newer_store, f"schema {SCHEMA + 1} is newer than this version's {SCHEMA}: upgrade tuner"),
    ],
)
def test_what_is_no_store_of_this_version_is_refused_in_one_line_and_left_as_it_is(path, make, message, read_only):
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StoreError, match=message) as caught:
        SqliteStore(path, read_only=read_only)
    assert "\n" not in str(caught.value)
    assert (path.read_bytes() if path.is_file() else None) == before


@pytest.mark.parametrize("place", ["/proc/tuner/store.db", "{tmp}/file/store.db"])
def test_a_folder_that_cannot_be_made_is_named(tmp_path, place):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="folder"):
        SqliteStore(place.format(tmp=tmp_path))


def test_a_full_disk_is_a_store_error_and_keeps_what_was_there(path):
    code = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = SqliteStore(path)
store.record_winner(winner())
store.close()
store = SqliteStore(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
try:
    for n in range(1000):
        store.add_measurement(measurement(message="x" * 1000))
except StoreError as error:
    print(n)
"""
    limited = child(code, path)
    out, _ = limited.communicate(timeout=60)
    assert int(out) > 0
    with SqliteStore(path) as store:
        assert store.winner(query().exact_key) == (winner(), 1)
        assert len(store.measurements(query().exact_key)) == int(out)
        assert store.record_winner(winner()) == 2


@pytest.mark.parametrize(
    "poison",
    [
        """UPDATE {table} SET plan = '{{"schema":1,"config":{{"cpp.cxx":"/tmp/evil"}}}}'""",
        "UPDATE {table} SET plan = 'no json'",
        "UPDATE {table} SET plan = '[]'",
        "UPDATE {table} SET realised = '[[\"x\"]]'",
        "UPDATE {table} SET provenance = '{{'",
        "UPDATE fields SET json = '[]' WHERE kind = 'target'",
        "UPDATE fields SET json = '{{\"shell\":1}}' WHERE kind = 'policy'",
        "DELETE FROM fields WHERE kind = 'ambient'",
    ],
)
@pytest.mark.parametrize("table", ["winners", "measurements"])
def test_a_row_that_does_not_validate_is_as_good_as_absent(path, poison, table, caplog):
    with SqliteStore(path) as store:
        store.record_winner(winner())
        store.add_measurement(measurement())
    edit(path, poison.format(table=table))
    with SqliteStore(path, read_only=True) as store:
        if table == "winners":
            assert store.winner(query().exact_key) is None
            assert store.winners() == []
            assert store.invalid_rows == 2
        else:
            assert store.measurements(query().exact_key) == []
            assert store.invalid_rows == 1
    assert "does not validate" in caplog.text


def test_a_program_whose_graphs_are_under_other_settings_is_as_good_as_absent(path):
    with SqliteStore(path) as store:
        store.add_program(program(), [query("a"), query("b")], "m:f")
        store.record_winner(winner(query("c", ambient={"threads": 1, "inductor": {"cpp.cxx": "/tmp/evil"}})))
    evil = "SELECT key FROM fields WHERE kind = 'ambient' AND json LIKE '%evil%'"
    edit(path, f"UPDATE programs SET ambient_key = ({evil}) WHERE position = 1")
    with SqliteStore(path, read_only=True) as store:
        assert store.find_programs(program().workload_key) == []
        assert store.invalid_rows == 1


def test_a_poisoned_row_does_not_hide_the_others(path):
    with SqliteStore(path) as store:
        store.record_winner(winner(query("a")))
        store.record_winner(winner(query("b"), KNOB))
        store.add_measurement(measurement(plan=NATIVE))
        store.add_measurement(measurement(plan=KNOB))
    edit(path, "UPDATE winners SET plan = '' WHERE generation = 1")
    edit(path, "UPDATE measurements SET plan = '' WHERE id = 1")
    with SqliteStore(path) as store:
        assert store.winners() == [(winner(query("b"), KNOB), 2)]
        assert store.measurements(query().exact_key) == [measurement(plan=KNOB)]


@pytest.mark.parametrize("poison", ["ms = -1", "ms = 9e999", "group_key = ''"])
def test_a_poisoned_time_of_a_group_is_ignored_and_counted(path, poison):
    with SqliteStore(path) as store:
        store.add_group_times(query(), POLICY, GROUP_TIMES)
    edit(path, f"UPDATE group_times SET {poison} WHERE id = 1")
    with SqliteStore(path) as store:
        assert store.group_times(query(), POLICY, ["", *(time.key for time in GROUP_TIMES)]) == [GROUP_TIMES[1]]
        assert store.invalid_rows == 1


def test_finding_the_times_of_a_group_reads_those_of_no_other(path):
    with SqliteStore(path) as store:
        store.add_group_times(query(), POLICY, GROUP_TIMES)
        seen: list[str] = []
        store._connection.set_trace_callback(seen.append)
        store.group_times(query(), POLICY, [GROUP_TIMES[0].key])
        store.add_group_times(query(), POLICY, GROUP_TIMES[:1])
        store._connection.set_trace_callback(None)
    connection = sqlite3.connect(path)
    asked = [sql for sql in seen if "FROM group_times" in sql]
    steps = [[row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}")] for sql in asked]
    connection.close()
    assert len(steps) == 2
    searches = [
        "group_times USING INDEX group_times_by_group (group_key=?",
        "group_times USING COVERING INDEX group_times_by_group",
    ]
    for found, search in zip(steps, searches, strict=True):
        assert any(search in step for step in found)
        assert not any(step.startswith("SCAN group_times") for step in found)


@pytest.mark.parametrize("file", sorted(FIXTURES.glob("schema-*.db")), ids=lambda file: file.stem)
def test_a_store_of_every_released_schema_opens_and_reads(path, file):
    shutil.copy(file, path)
    schema = int(file.stem.removeprefix("schema-"))
    policy = POLICIES[schema]
    for read_only in (True, False):
        with SqliteStore(path, read_only=read_only) as store:
            assert store.counts() == {"graphs": 1, "programs": 1, "measurements": 2, "winners": 2, "generation": 2 + (schema > 2)}
            assert store.graph(query("a").workload_key) == {"nodes": []}
            split = replace(measurement(query("a"), SPLIT, realised=GROUPS, provenance={"host": "h"}), policy=policy)
            timeout = replace(failed("timeout", KNOB), policy=policy)
            won = replace(winner(query("a"), SPLIT, evidence={"processes": 3}), policy=policy)
            assert store.measurements(query("a").exact_key) == [split, timeout]
            assert store.winner(query("a").exact_key) == (won, 1)
            assert store.winner(query("b").exact_key) == (replace(settled(query("b")), policy=policy), 2)
            assert store.quarantined(query("a")) == {KNOB.key: timeout}
            assert store.quarantine() == [timeout]
            final = program_final(winner(query("a"), SPLIT), verdict="confirmed", evidence={"processes": 3})
            assert store.program_final(program().exact_key) == (None if schema == 1 else (replace(final, policy=policy), 2))
            chosen = ProgramChoice(native_table=NATIVE.native)
            assert store.program_choice(program().exact_key) == (None if schema < 3 else (chosen, 3))
            times = [] if schema < 4 else list(GROUP_TIMES)
            assert store.group_times(query("b"), policy, [time.key for time in GROUP_TIMES]) == times
            (place,) = store.programs_of(query("b").workload_key)
            assert (place.spec, place.position, place.exact_key) == ("made:up", 1, program().exact_key)


@pytest.mark.parametrize("schema", range(1, SCHEMA))
def test_an_old_store_is_brought_to_this_schema_once_it_is_opened_for_writing(path, schema):
    shutil.copy(FIXTURES / f"schema-{schema}.db", path)
    with SqliteStore(path, read_only=True) as before:
        generation = before.generation()
        with SqliteStore(path) as store:
            assert store.record_program_final(program_final(winner(query("a"), SPLIT))) == generation + 1
            assert store.record_program_choice(program(), NATIVE.native) == generation + 2
            store.add_group_times(query("a"), POLICY, GROUP_TIMES)
        # one that was open all the while sees it
        assert before.program_final(program().exact_key) == (program_final(winner(query("a"), SPLIT)), generation + 1)
        assert before.program_choice(program().exact_key) == (ProgramChoice(NATIVE.native), generation + 2)
        assert before.group_times(query("a"), POLICY, [GROUP_TIMES[0].key]) == [GROUP_TIMES[0]]
    connection = sqlite3.connect(path)
    new = sqlite3.connect(":memory:")
    assert schema_of(connection) == SCHEMA
    migrate(new, ":memory:")
    listing = "SELECT type, name, sql FROM sqlite_master ORDER BY type, name"
    assert connection.execute(listing).fetchall() == new.execute(listing).fetchall()
    connection.close()
    new.close()


def test_finding_verdicts_on_a_candidate_reads_no_other_measurement(path):
    SqliteStore(path).close()
    connection = sqlite3.connect(path)
    sql = f"EXPLAIN QUERY PLAN SELECT 1 {IN_FORCE} {OF_WORKLOAD} AND verdict.candidate_key = ?"
    steps = [row[3] for row in connection.execute(sql, ("g", "t", "c", "k"))]
    connection.close()
    searches = [step for step in steps if step.startswith("SEARCH")]
    assert len(searches) == 2
    assert all("measurements_by_candidate (graph_key=? AND candidate_key=? AND status=?" in step for step in searches)


def test_there_is_a_fixture_of_the_current_schema():
    assert (FIXTURES / f"schema-{SCHEMA}.db").exists()
