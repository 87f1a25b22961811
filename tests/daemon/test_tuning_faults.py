"""Daemons and tuning processes killed from outside: nothing is left behind, and no job is lost. Real processes and signals.

What the tuning process itself does is played by `fake_tuning.py`, under the same guard as the real one.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from missed import report

from tuner.daemon.jobs import jobs_folder
from tuner.lookup.client import Client
from tuner.lookup.unix_http import request
from tuner.lookup.yielding import ask_to_yield
from tuner.settings import Settings

DEADLINE_S = 60.0
PREPARE = """
import pathlib, sys, tuner.daemon.background as background, tuner.workers.device_lock as device_lock
background.COMMAND, background.LOOK_AGAIN_S = (sys.executable, {fake!r}), 0.05
device_lock.FOLDER = pathlib.Path({folder!r})
"""


def until(met: Callable[[], Any]) -> Any:
    end = time.monotonic() + DEADLINE_S
    while not (found := met()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return found


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


class Tuning:
    """A daemon whose tuning process does as it is told."""

    def __init__(self, daemons: Any):
        self.daemons, self.pids_file = daemons, Path(f"{daemons.store}.pids")
        fake, folder = Path(__file__).with_name("fake_tuning.py"), daemons.store.parent / "devices"
        self.prepare = PREPARE.format(fake=str(fake), folder=str(folder))

    def started(self) -> Any:
        store, socket = str(self.daemons.store), str(self.daemons.socket)
        options = ("--store", store, "--socket", socket, "--when-busy", "measure", "--effort", "normal")
        process = self.daemons.start(*options, prepare=self.prepare)
        self.daemons.hello(process)
        return process

    def does(self, what: str) -> None:
        Path(f"{self.daemons.store}.script").write_text(what)

    def client(self) -> Client:
        settings = Settings(disabled=False, store=self.daemons.store, socket=self.daemons.socket, deadline_ms=60_000.0)
        return Client(settings)

    def job(self) -> dict[str, Any]:
        (job,) = request(self.daemons.socket, "GET", "/v2/jobs")["jobs"]
        return job

    def hanging(self) -> list[int]:
        """Process ids of the tuning process and of its child, once both run."""
        until(self.pids_file.exists)
        pids = [int(pid) for pid in self.pids_file.read_text().split()]
        self.pids_file.unlink()
        return pids


@pytest.fixture
def tuning(daemons: Any) -> Tuning:
    return Tuning(daemons)


def test_a_daemon_killed_while_it_tunes_leaves_no_process_and_loses_no_job(tuning):
    tuning.does("hang")
    daemon = tuning.started()
    assert tuning.client().program(report().program).wanted
    assert tuning.client().report(report()) == ""
    pids = tuning.hanging()
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()
    until(lambda: all(map(gone, pids)))
    tuning.does("done")
    tuning.started()
    until(lambda: tuning.job()["state"] == "done")
    assert tuning.job()["attempts"] == 2
    assert not list(jobs_folder(tuning.daemons.store).glob("*.report"))


def test_a_tuning_process_that_is_killed_twice_is_given_up_and_look_ups_go_on(tuning):
    tuning.does("hang")
    tuning.started()
    client = tuning.client()
    assert client.report(report()) == ""
    for _ in range(2):
        tuner, child = tuning.hanging()
        assert not client.program(report().program).wanted
        os.kill(tuner, signal.SIGKILL)
        until(lambda child=child: gone(child))
    until(lambda: tuning.job()["state"] == "failed")
    assert tuning.job()["reason"] == "the tuning process ended (SIGKILL), 2 times"
    assert client.source == "daemon"


def test_a_daemon_that_is_told_to_stop_stops_its_tuning_too(tuning):
    tuning.does("hang")
    daemon = tuning.started()
    tuning.client().report(report())
    pids = tuning.hanging()
    daemon.send_signal(signal.SIGTERM)
    assert tuning.daemons.ended(daemon)[0] == 0
    assert all(map(gone, pids))


def test_a_sweep_asks_the_daemon_to_let_it_go_first(tuning):
    tuning.does("hang")
    tuning.started()
    assert not ask_to_yield(tuning.daemons.socket)
    other = tuning.client().report(report())
    assert other == ""
    # this process has asked, and goes first for as long as it lives
    until(lambda: request(tuning.daemons.socket, "GET", "/v2/status")["tuning"]["state"] == "waiting")
    status = request(tuning.daemons.socket, "GET", "/v2/status")["tuning"]
    assert status["reason"] == f"the sweep of process {os.getpid()} goes first"
    assert not tuning.pids_file.exists()


def test_a_sweep_beside_a_daemon_that_does_not_tune_or_is_not_there_just_goes_on(daemons):
    assert not ask_to_yield(daemons.socket)
    process = daemons.start("--store", str(daemons.store), "--socket", str(daemons.socket), "--no-tune")
    daemons.hello(process)
    assert not ask_to_yield(daemons.socket)


def test_a_daemon_that_does_not_tune_loads_no_torch(daemons):
    process = daemons.start("--store", str(daemons.store), "--socket", str(daemons.socket), "--no-tune")
    daemons.hello(process)
    assert request(daemons.socket, "GET", "/v2/status")["tuning"] is None
    assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()


def test_a_daemon_that_tunes_loads_no_torch_itself(tuning):
    tuning.does("hang")
    process = tuning.started()
    tuning.client().report(report())
    tuning.hanging()
    assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()
