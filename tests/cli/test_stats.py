"""`tuner stats`: the numbers of the daemon and of the store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from stored import KNOB, NATIVE, measurement, program, query, settled, winner

from tuner.cache.sqlite import SqliteStore
from tuner.cli.main import main
from tuner.lookup.reader import StoreReader


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "store.db"
    monkeypatch.setenv("TUNER_STORE", str(path))
    monkeypatch.setenv("TUNER_SOCKET", str(tmp_path / "no.sock"))
    return path


def fill(path: Path) -> None:
    spent = {"seconds": {"compiling": 12.0, "measuring": 34.0}}
    with SqliteStore(path) as store:
        store.add_graph(query("a").workload_key, {})
        store.add_program(program(), [query("a")], "m:f")
        store.add_measurement(measurement())
        store.add_measurement(replace(measurement(plan=KNOB), status="crash", samples_ms=(), default_samples_ms=()))
        store.record_winner(replace(winner(query("a"), NATIVE), evidence=spent))
        store.record_winner(settled(query("b")))


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["stats", *arguments])
    assert result.exit_code == 0, result.output
    return result


def lines() -> list[str]:
    return [" ".join(line.split()) for line in run().output.splitlines()]


def test_an_empty_store_is_all_zeros(path):
    told = json.loads(run("--json").output)
    assert (told["counts"], told["jobs"]) == (None, {})
    assert (told["stored"]["generation"], told["stored"]["measurements"], told["stored"]["winners"]) == (0, {}, {})
    assert not path.exists()


def test_without_a_daemon_the_store_is_told_of(path):
    fill(path)
    assert lines()[:2] == ["jobs", "by state none"]
    assert lines()[2] == f"store {path}"
    told = dict(line.split(" ", 1) for line in lines()[3:])
    assert told.pop("size").endswith(" MB")
    assert told == {
        "generation": "2",
        "graphs": "1",
        "programs": "1",
        "winners": "1 default, 1 plan",
        "measurements": "1 crash, 1 ok",
        "quarantined": "1",
        "behind": "winners 12 s compiling, 34 s measuring",
    }


def test_with_a_daemon_look_ups_and_jobs_are_told_of_too(path, monkeypatch):
    fill(path)
    counts = {"hit": 3, "miss": {"threads": 1}, "program_hit": 2, "program_miss": 1, "errors": {"bad_request": 1}}

    def ask(socket: Path, what: str) -> dict[str, Any]:
        assert what == "stats"
        told = {"store": "/elsewhere/store.db", "counts": counts, "jobs": {"queued": 2, "done": 1}}
        return {**told, "stored": StoreReader(path).stats()}

    monkeypatch.setattr("tuner.cli.stats.ask_if_there", ask)
    assert lines()[:9] == [
        "look-ups",
        "hits 3 (75%)",
        "misses 1",
        "by reason 1 threads",
        "programs 2 known, 1 unknown",
        "errors 1 bad request",
        "jobs",
        "by state 1 done, 2 queued",
        "store /elsewhere/store.db",
    ]
    assert json.loads(run("--json").output)["counts"] == counts


def test_a_store_that_cannot_be_read_is_exit_code_4(path):
    path.write_bytes(b"garbage " * 1000)
    assert CliRunner().invoke(main, ["stats"]).exit_code == 4
