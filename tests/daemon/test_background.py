"""The background tuner: what it starts, what it waits for, and what becomes of a job, with a stand-in for the tuning process."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from missed import report

import tuner.daemon.background as background_module
import tuner.daemon.jobs as jobs_module
from tuner.cache.lock import take_lock
from tuner.cache.sqlite import SqliteStore
from tuner.daemon.background import Background, TuningSettings
from tuner.daemon.jobs import BUSY_LIMIT, Job, Jobs, busy, jobs_folder
from tuner.errors import StoreError
from tuner.measure.quietness import Conditions, host_conditions
from tuner.workers import device_lock

DEADLINE_S = 60.0
FAKE = Path(__file__).with_name("fake_tuning.py")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(background_module, "COMMAND", (sys.executable, str(FAKE)))
    monkeypatch.setattr(background_module, "LOOK_AGAIN_S", 0.02)
    monkeypatch.setattr(background_module, "QUIET_S", 0.02)
    monkeypatch.setattr(device_lock, "FOLDER", tmp_path / "devices")
    path = tmp_path / "store.db"
    script(path, "done")
    return path


def script(store: Path, what: str) -> None:
    Path(f"{store}.script").write_text(what)


def started(store: Path) -> int:
    """How many tuning processes there were."""
    path = Path(f"{store}.started")
    return len(path.read_text().splitlines()) if path.exists() else 0


async def until(met: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not met():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.01)


def tuned(store: Path, then: Callable[[Background], Awaitable[None]], when_busy: str = "measure") -> Jobs:
    """Runs the background tuner on the jobs beside `store` until `then` is through."""

    async def run() -> Jobs:
        background = Background(TuningSettings(store, "quick", when_busy), Jobs(jobs_folder(store)))
        task = asyncio.create_task(background.run())
        try:
            await then(background)
        finally:
            task.cancel()
            await asyncio.wait([task])
        assert task.cancelled()
        return background.jobs

    return asyncio.run(run())


def only(jobs: Jobs) -> Job:
    (job,) = jobs.all()
    return job


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def add(store: Path, *names: str) -> None:
    jobs = Jobs(jobs_folder(store))
    for name in names or ("p",):
        jobs.add(report(name))


def test_jobs_are_tuned_one_by_one_in_the_order_of_their_reports(store):
    add(store, "b", "a")

    async def then(background: Background) -> None:
        await until(lambda: background.jobs.count() == {"done": 2})

    first, second = tuned(store, then).all()
    assert (first.program_key, second.program_key) == (report("b").program.workload_key, report("a").program.workload_key)
    assert first.updated <= second.updated
    assert (first.attempts, first.reason, first.best) == (1, "it was done", 1.25)
    assert Path(f"{store}.started").read_text() == "done quick measure\n" * 2
    assert not list(jobs_folder(store).glob("*.report"))


def test_a_report_that_comes_later_wakes_the_tuner(store):
    async def then(background: Background) -> None:
        await until(lambda: background.status()["state"] == "idle")
        background.jobs.add(report())
        background.wake()
        await until(lambda: background.jobs.count() == {"done": 1})

    tuned(store, then)


@pytest.mark.parametrize("ended", ["refused", "failed"])
def test_what_cannot_be_tuned_is_told_and_not_tried_again(store, ended):
    add(store)
    script(store, ended)

    async def then(background: Background) -> None:
        await until(lambda: background.jobs.count() == {ended: 1})

    jobs = tuned(store, then)
    assert (only(jobs).reason, started(store)) == (f"it was {ended}", 1)
    assert not jobs.wants(only(jobs).exact_key, known=False)


@pytest.mark.parametrize(("state", "again"), [("refused", True), ("failed", True), ("done", False), ("queued", False)])
def test_what_was_given_up_is_wanted_again_after_a_day(store, monkeypatch, state, again):
    add(store)
    jobs = Jobs(jobs_folder(store))
    job = jobs.put(replace(only(jobs), state=state))
    assert not jobs.wants(job.exact_key, known=True)
    monkeypatch.setattr(jobs_module.time, "time", lambda: job.updated + 24 * 3600)
    assert jobs.wants(job.exact_key, known=True) == again
    if again:
        jobs.add(report())
        assert (only(jobs).state, only(jobs).attempts) == ("queued", 0)


def test_the_next_daemon_forgets_what_the_last_one_gave_up(store):
    add(store, "refused", "failed", "done", "queued")
    jobs = Jobs(jobs_folder(store))
    for job, state in zip(jobs.all(), ("refused", "failed", "done", "queued"), strict=True):
        jobs.put(replace(job, state=state))
    jobs.forget_given_up()
    assert jobs.count() == Jobs(jobs_folder(store)).count() == {"queued": 1, "done": 1}
    assert jobs.wants(report("refused").program.exact_key, known=False)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("crash", "it was crash, 2 times"),
        ("die", "the tuning process ended (SIGKILL), 2 times"),
        ("exit", "the tuning process ended (exit code 3: Out of luck), 2 times"),
        ("nonsense", "the tuning process talked nonsense and was killed: JSONDecodeError, 2 times"),
    ],
)
def test_a_job_that_takes_its_process_down_is_tried_once_more_and_then_given_up(store, how, reason):
    add(store)
    script(store, how)

    async def then(background: Background) -> None:
        await until(lambda: background.jobs.count() == {"failed": 1})

    job = only(tuned(store, then))
    assert (job.reason, job.attempts, job.crashes, started(store)) == (reason, 2, 2, 2)


def test_a_job_that_succeeds_when_tried_once_more_is_done(store):
    add(store)
    script(store, "die")

    async def then(background: Background) -> None:
        await until(lambda: only(background.jobs).crashes == 1)
        script(store, "done")
        await until(lambda: background.jobs.count() == {"done": 1})

    assert only(tuned(store, then)).crashes <= 1


def test_a_process_that_falls_silent_is_ended(store, monkeypatch):
    monkeypatch.setattr(background_module, "SILENCE_S", 0.5)
    add(store)
    script(store, "hang")

    async def then(background: Background) -> None:
        await until(lambda: background.jobs.count() == {"failed": 1})

    assert "said nothing" in only(tuned(store, then)).reason


def test_a_machine_that_is_too_loud_puts_a_job_off_for_longer_each_time(store):
    add(store)
    script(store, "busy")

    async def then(background: Background) -> None:
        await until(lambda: only(background.jobs).busy == 1)
        await until(lambda: background.status()["state"] == "idle")

    job = only(tuned(store, then))
    assert (job.state, job.reason, started(store)) == ("queued", "busy: it was busy", 1)
    waits = []
    while job.state == "queued":
        waits.append(job.not_before - job.updated)
        job = busy(job, "loud", job.updated)
    assert waits[1:] == sorted(waits[1:])
    assert waits[-1] > waits[0]
    assert (len(waits), job.state) == (BUSY_LIMIT - 1, "failed")


def test_a_store_that_cannot_be_written_puts_a_job_off_and_costs_it_nothing(store):
    add(store)
    script(store, "store")

    async def then(background: Background) -> None:
        await until(lambda: only(background.jobs).reason == "it was store" and only(background.jobs).state == "queued")

    job = only(tuned(store, then))
    assert job.not_before > time.time()
    assert (job.crashes, job.busy) == (0, 0)


def test_nothing_is_started_while_the_store_is_written(store):
    add(store)

    async def then(background: Background) -> None:
        with SqliteStore(store):
            await until(lambda: "is being written by" in background.waiting)
            assert background.status()["state"] == "waiting"
            assert started(store) == 0
        await until(lambda: background.jobs.count() == {"done": 1})

    tuned(store, then)


def test_nothing_is_started_while_another_measures(store):
    add(store)

    async def then(background: Background) -> None:
        with device_lock.hold_device("cpu"):
            await until(lambda: background.waiting == "device cpu is in use by another process")
            assert started(store) == 0
        await until(lambda: background.jobs.count() == {"done": 1})

    tuned(store, then)


def test_nothing_is_started_while_the_machine_is_loud(store, monkeypatch):
    add(store)
    quiet, loud, seconds = host_conditions(), [True], itertools.count()

    def reading() -> Conditions:
        """A second later each time, in which others used all cores or none."""
        second = next(seconds)
        return replace(quiet, at_s=quiet.at_s + second, busy_s=second * quiet.cores if loud[0] else 0.0)

    monkeypatch.setattr("tuner.measure.quietness.host_conditions", reading)

    async def then(background: Background) -> None:
        await until(lambda: background.waiting.startswith("the machine is busy: other processes kept"))
        assert started(store) == 0
        loud[0] = False
        await until(lambda: background.jobs.count() == {"done": 1})

    tuned(store, then, when_busy="wait")


def test_a_running_job_is_shown_and_stopped_for_a_sweep_which_goes_first(store):
    add(store)
    script(store, "hang")
    sweep = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    pids: list[int] = []

    async def then(background: Background) -> None:
        await until(lambda: Path(f"{store}.pids").exists())
        await until(lambda: background.status()["state"] == "tuning" and background.status()["job"]["best"] == 1.25)
        pids.extend(map(int, Path(f"{store}.pids").read_text().split()))
        assert await background.yield_to(sweep.pid)
        assert all(map(gone, pids))
        # what the sweep needs is free at once
        take_lock(store.with_name(store.name + ".lock")).release()
        await until(lambda: background.waiting == f"the sweep of process {sweep.pid} goes first")
        assert not await background.yield_to(sweep.pid)
        script(store, "done")
        assert only(background.jobs).state == "queued"
        assert started(store) == 1
        sweep.communicate(b"\n")
        await until(lambda: background.jobs.count() == {"done": 1})

    try:
        job = only(tuned(store, then))
    finally:
        sweep.kill()
        sweep.communicate()
    assert (job.crashes, job.busy, job.attempts, started(store)) == (0, 0, 2, 2)


def test_a_sweep_that_asks_before_a_job_starts_is_waited_for_too(store):
    sweep = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    async def then(background: Background) -> None:
        assert not await background.yield_to(sweep.pid)
        background.jobs.add(report())
        background.wake()
        await until(lambda: background.waiting)
        assert started(store) == 0
        sweep.communicate(b"\n")
        await until(lambda: background.jobs.count() == {"done": 1})

    try:
        tuned(store, then)
    finally:
        sweep.kill()
        sweep.communicate()


def test_when_the_daemon_ends_the_tuning_ends_and_the_job_is_kept(store):
    add(store)
    script(store, "hang")

    async def then(background: Background) -> None:
        await until(lambda: Path(f"{store}.pids").exists())

    tuned(store, then)
    assert all(gone(int(pid)) for pid in Path(f"{store}.pids").read_text().split())
    script(store, "done")

    async def again(background: Background) -> None:
        await until(lambda: background.jobs.count() == {"done": 1})

    job = only(tuned(store, again))
    assert (job.crashes, job.attempts) == (0, 2)


def test_files_that_are_no_jobs_are_left_alone_and_counted(store):
    add(store, "good", "lost")
    folder = jobs_folder(store)
    assert folder.stat().st_mode & 0o777 == 0o700
    good, lost = (Jobs(folder).get(report(name).program.exact_key) for name in ("good", "lost"))
    assert good is not None
    assert lost is not None
    Jobs(folder).report(lost).unlink()
    (folder / "notes.json").write_text("{}")
    (folder / f"{'0' * 64}.json").write_text("[" * 100_000)
    (folder / f"{'1' * 64}.json").write_text(json.dumps(good.to_json()))
    (folder / f"{'2' * 64}.json").symlink_to("/etc/passwd")
    (folder / f"{'3' * 64}.json").write_text(json.dumps({**good.to_json(), "exact_key": "3" * 64, "state": "made up"}))
    jobs = Jobs(folder)
    assert ([job.exact_key for job in jobs.all()], jobs.ignored) == ([good.exact_key], 6)
    assert len(list(folder.iterdir())) == 8


def test_a_job_whose_state_cannot_be_written_waits_and_is_tuned_later(store, monkeypatch):
    monkeypatch.setattr(background_module, "STORE_DELAY_S", 0.1)
    add(store)
    put, troubles = Jobs.put, [StoreError("disk full")]

    def failing(self: Jobs, job: Job) -> Job:
        if troubles:
            raise troubles.pop()
        return put(self, job)

    async def then(background: Background) -> None:
        monkeypatch.setattr(Jobs, "put", failing)
        await until(lambda: only(background.jobs).reason == "disk full")
        assert only(background.jobs).state == "queued"
        await until(lambda: background.jobs.count() == {"done": 1})

    assert started(store) == 0
    tuned(store, then)
    assert started(store) == 1


def test_a_fault_of_the_tuner_itself_is_told(store, monkeypatch, caplog):
    add(store)
    monkeypatch.setattr(Background, "_taken", lambda self: 1 / 0)

    async def run() -> Background:
        background = Background(TuningSettings(store), Jobs(jobs_folder(store)))
        task = asyncio.create_task(background.run())
        task.add_done_callback(background.ended)
        await until(task.done)
        await until(lambda: background.waiting)
        return background

    assert asyncio.run(run()).status()["reason"] == "a fault has ended it: ZeroDivisionError: division by zero"
    assert "the background tuner has ended" in caplog.text


def test_a_fault_in_the_midst_of_a_job_is_told_and_puts_the_job_back(store, monkeypatch):
    add(store)
    monkeypatch.setattr(Background, "_follow", lambda self, job, process: 1 / 0)

    async def run() -> Background:
        background = Background(TuningSettings(store, "quick", "measure"), Jobs(jobs_folder(store)))
        task = asyncio.create_task(background.run())
        task.add_done_callback(background.ended)
        await until(lambda: background.waiting)
        return background

    background = asyncio.run(run())
    told, job = background.status(), only(background.jobs)
    assert (told["state"], job.state) == ("waiting", "queued")
    assert told["reason"] == job.reason == "a fault has ended it: ZeroDivisionError: division by zero"
