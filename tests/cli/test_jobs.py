"""`tuner jobs`: what is queued, waits, runs and has ended, with and without a daemon."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from missed import graph, report
from stored import program

from tuner.cli.main import main
from tuner.daemon.jobs import Job, Jobs, jobs_folder


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    monkeypatch.setenv("TUNER_STORE", str(tmp_path / "store.db"))
    monkeypatch.setenv("TUNER_SOCKET", str(tmp_path / "no.sock"))
    return Jobs(jobs_folder(tmp_path / "store.db"))


@pytest.fixture
def daemon(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a daemon would answer, its tuning in this state; one without a state does not tune."""
    tuning = {"state": "idle", "reason": "", "effort": "quick", "when_busy": "wait", "job": None}

    def ask(socket: Path, what: str) -> dict[str, Any]:
        assert what == "jobs"
        return {"jobs": [job.to_json() for job in jobs.all()], "ignored": 0, "tuning": tuning or None}

    monkeypatch.setattr("tuner.cli.jobs.ask_if_there", ask)
    return tuning


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["jobs", *arguments])
    assert result.exit_code == 0, result.output
    return result


def added(jobs: Jobs, name: str, **fields: Any) -> Job:
    return jobs.put(replace(jobs.add(report(name)), **fields))


def rows() -> list[list[str]]:
    """The table's rows, by the columns program, state and reason."""
    header, *lines = run().output.splitlines()
    places = [header.index(name) for name in ("program", "state", "age", "reason")]
    return [[line[places[0] : places[0] + 12], line[places[1] : places[2]].strip(), line[places[3] :]] for line in lines]


def test_without_jobs_it_says_so(jobs):
    assert run().output == "no jobs\n"
    assert json.loads(run("--json").output) == {"jobs": [], "ignored": 0}


def test_each_state_is_told_with_its_reason(jobs, daemon):
    added(jobs, "a", state="done", reason="1 of 1 graphs have a plan that beats the default")
    added(jobs, "b", state="refused", reason="random")
    added(jobs, "c", state="failed", reason="it died, 2 times")
    added(jobs, "d", state="running", phase="race", best=1.92)
    added(jobs, "e", reason="busy: loud", not_before=time.time() + 1000)
    added(jobs, "f")
    names = [program(name).workload_key[:12] for name in "abcdef"]
    told = rows()
    assert [row[0] for row in told] == names
    assert [row[1] for row in told] == ["done", "refused", "failed", "running", "waiting", "queued"]
    assert told[0][2] == "1 of 1 graphs have a plan that beats the default"
    assert told[3][2] == "race, best 1.92x"
    assert told[4][2].startswith("busy: loud; again in ")
    assert told[5][2] == ""


def test_what_is_in_the_way_is_told(jobs, daemon):
    added(jobs, "a")
    daemon["reason"] = "device cpu is in use by another process"
    assert rows() == [[program("a").workload_key[:12], "waiting", "device cpu is in use by another process"]]


def test_without_a_daemon_they_wait_for_one(jobs):
    added(jobs, "a", state="running", phase="race")
    ((_, state, reason),) = rows()
    assert (state, reason) == ("waiting", "no daemon serves this store: `tuner serve` starts one")


def test_beside_a_daemon_that_does_not_tune_they_wait_for_one_that_does(jobs, daemon):
    added(jobs, "a")
    daemon.clear()
    ((_, state, reason),) = rows()
    assert (state, reason) == ("waiting", "the daemon that serves this store was told not to tune (--no-tune)")


def test_as_json_they_have_the_words_of_the_interface(jobs, daemon):
    job = added(jobs, "a", state="running", phase="race", best=1.5, attempts=1)
    (told,) = json.loads(run("--json").output)["jobs"]
    assert told.pop("age_s") >= 0
    assert told == {
        "program_key": program("a").workload_key,
        "workload_keys": [graph().key],
        "target": job.target,
        "state": "running",
        "reason": "",
        "phase": "race",
        "best": 1.5,
        "attempts": 1,
    }


def test_files_that_are_no_jobs_are_told_of(jobs):
    added(jobs, "a")
    (jobs.folder / f"{'0' * 64}.json").write_text("{")
    assert run().stderr == "1 files beside the store are no jobs and are ignored\n"
