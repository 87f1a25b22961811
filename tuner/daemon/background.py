"""The daemon's background tuner: one job at a time, in a process of its own, only where nobody is in the way.

Runs in the daemon's event loop, which it never blocks; torch is loaded in the tuning process only. What that process had measured
when it ended, however it ended, is in the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

from tuner.cache.lock import LockTaken, take_lock
from tuner.daemon.jobs import Job, Jobs, busy, crashed, put_back
from tuner.errors import StoreError, one_line
from tuner.workers.device_lock import try_hold_device

log = logging.getLogger("tuner.daemon")
WhenBusy = Literal["wait", "measure"]
# Seconds between two looks at what is in the way, and between the two readings of how busy the machine is.
LOOK_AGAIN_S = 5.0
QUIET_S = 2.0
IDLE_S = 60.0
# Seconds after which a store that could not be written is tried again.
STORE_DELAY_S = 60.0
# A tuning process that says nothing for so long is taken for hung: a compile with all its retries says something sooner.
SILENCE_S = 1800.0
# Seconds that a tuning process may take to end when told to.
END_S = 10.0
# How long a sweep is waited for whose process cannot be watched.
CLAIM_S = 60.0
# What reports are about yet.
DEVICE = "cpu"
COMMAND = (sys.executable, "-P", "-m", "tuner.daemon.tuning")
LINE_LIMIT_BYTES = 1024 * 1024
LOG_TAIL_BYTES = 2000


@dataclass(frozen=True)
class TuningSettings:
    """store: path of the store that winners go to. effort: of each sweep. when_busy: "wait" for a quiet machine, or "measure"."""

    store: Path
    effort: str = "quick"
    when_busy: WhenBusy = "wait"


class Background:
    """Tunes the programs of `jobs`, one after the other, while `run` runs. Everything happens in one event loop.

    waiting: why no job is started though there is one, "" otherwise.
    """

    def __init__(self, settings: TuningSettings, jobs: Jobs):
        self.settings, self.jobs = settings, jobs
        self.waiting = ""
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._process: asyncio.subprocess.Process | None = None
        self._stopped: str | None = None
        self._claims: dict[int, int] = {}
        self._claimed_until = 0.0

    async def run(self) -> None:
        """Until cancelled; the tuning process is ended then, and its job goes on when the next daemon starts."""
        while True:
            self._wake.clear()
            job = self.jobs.next(time.time())
            if job is None:
                self.waiting = ""
                await self._pause(IDLE_S if not any(one.state == "queued" for one in self.jobs.all()) else LOOK_AGAIN_S)
                continue
            self.waiting = await self._obstacle(job) or ""
            if self.waiting:
                await self._pause(LOOK_AGAIN_S)
                continue
            try:
                await self._tune(job)
            except (StoreError, OSError) as error:
                log.warning("cannot tune %s: %s", job.program_key[:12], error)
                self.jobs.show(replace(job, reason=str(error), not_before=time.time() + STORE_DELAY_S))

    def ended(self, task: asyncio.Task[None]) -> None:
        """What to do when the task of `run` has ended: a fault of ours costs the tuning, look-ups go on, and both are told."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the background tuner has ended", exc_info=error)
            self.waiting = f"a fault has ended it: {one_line(error)}"
            for job in self.jobs.all():
                if job.state == "running":
                    self.jobs.show(put_back(job, self.waiting))

    def wake(self) -> None:
        """There is a new job."""
        self._wake.set()

    async def yield_to(self, pid: int) -> bool:
        """Start nothing until the process `pid` is gone; stop what runs, and put it back. Gives whether something ran."""
        self._claim(pid)
        running = not self._idle.is_set()
        if running:
            self._stopped = f"the sweep of process {pid} goes first"
            if self._process is not None:
                await _end(self._process)
            await self._idle.wait()
        return running

    def status(self) -> dict[str, Any]:
        """state: "idle", "waiting" (`reason` says for what) or "tuning" (`job`)."""
        running = next((job for job in self.jobs.all() if job.state == "running"), None)
        state = "tuning" if running else "waiting" if self.waiting else "idle"
        return {
            "state": state,
            "reason": "" if running else self.waiting,
            "effort": self.settings.effort,
            "when_busy": self.settings.when_busy,
            "job": None if running is None else running.to_json(),
        }

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)

    # who goes first

    def _claim(self, pid: int) -> None:
        if pid in self._claims:
            return
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            # it has ended already, or lives where we cannot see it
            self._claimed_until = time.monotonic() + CLAIM_S
            return
        self._claims[pid] = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._release, pid)

    def _release(self, pid: int) -> None:
        descriptor = self._claims.pop(pid)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        self._wake.set()

    def _claimed(self) -> str | None:
        if self._claims:
            return f"the sweep of process {next(iter(self._claims))} goes first"
        return "a sweep goes first" if time.monotonic() < self._claimed_until else None

    # what is in the way

    async def _obstacle(self, job: Job) -> str | None:
        """Why `job` is not to be started now; None where nothing is in the way."""
        found = self._claimed() or self._taken()
        if found is None and self.settings.when_busy == "wait":
            found = await _noise(job.threads) or self._claimed() or self._taken()
        return found

    def _taken(self) -> str | None:
        """Who else writes the store or measures; looked up by taking the locks for a moment."""
        store = self.settings.store
        if not os.access(store if store.exists() else store.parent, os.W_OK):
            return f"store {store} cannot be written"
        try:
            take_lock(store.with_name(store.name + ".lock")).release()
        except LockTaken as taken:
            return f"store {store} is being written by {taken.holder}"
        except OSError as error:
            return f"store {store} cannot be locked: {error.strerror}"
        held = try_hold_device(DEVICE)
        if held is None:
            return f"device {DEVICE} is in use by another process"
        held.release()
        return None

    # one job

    async def _tune(self, job: Job) -> None:
        self._idle.clear()
        self._stopped = None
        try:
            job = self.jobs.put(replace(job, state="running", attempts=job.attempts + 1, reason="", phase="starting"))
            with tempfile.TemporaryFile() as errors:
                self._process = process = await self._start(job, errors)
                try:
                    end = None if self._stopped else await self._follow(job, process)
                finally:
                    await _end(process)
                    self._process = None
                job = self.jobs.get(job.exact_key) or job
                self.jobs.put(self._ended(job, end, process.returncode or 0, errors))
        finally:
            self._idle.set()

    async def _start(self, job: Job, errors: IO[bytes]) -> asyncio.subprocess.Process:
        settings = self.settings
        options = ["--store", str(settings.store), "--report", str(self.jobs.report(job))]
        options += ["--effort", settings.effort, "--when-busy", settings.when_busy, "--parent", str(os.getpid())]
        # started by the thread that lives as long as the daemon: the guard of the tuning process watches that one
        return await asyncio.create_subprocess_exec(
            *COMMAND,
            *options,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            limit=LINE_LIMIT_BYTES,
        )

    async def _follow(self, job: Job, process: asyncio.subprocess.Process) -> dict[str, Any] | None:
        """What the process says in the end, None where it ends without a word; shows what it says on the way."""
        assert process.stdout is not None
        end = None
        try:
            while line := await asyncio.wait_for(process.stdout.readline(), SILENCE_S):
                told = json.loads(line)
                if "ended" in told:
                    end = {"ended": str(told["ended"]), "reason": str(told["reason"])}
                    break
                self.jobs.show(replace(job, phase=str(told["phase"]), best=float(told["best"])))
        except TimeoutError:
            return {"ended": "crash", "reason": f"the tuning process said nothing for {SILENCE_S:.0f} s and was killed"}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return {"ended": "crash", "reason": f"the tuning process talked nonsense and was killed: {type(error).__name__}"}
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), END_S)
        return end

    def _ended(self, job: Job, end: dict[str, Any] | None, code: int, errors: IO[bytes]) -> Job:
        """`job` with what became of it."""
        if end is None and self._stopped is not None:
            return put_back(job, self._stopped)
        if end is None:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return crashed(job, f"the tuning process ended ({how}{_last_line(errors)})")
        reason = end["reason"]
        match end["ended"]:
            case "done" | "refused" | "failed":
                return replace(job, state=end["ended"], reason=reason, phase="")
            case "busy":
                return busy(job, reason, time.time())
            case "store":
                return replace(put_back(job, reason), not_before=time.time() + STORE_DELAY_S)
            case _:
                return crashed(job, reason)


async def _noise(threads: int) -> str | None:
    """What keeps `threads` cores from being had, seen over some seconds; None where the machine is quiet."""
    from tuner.measure.quietness import disturbance, host_conditions

    before = host_conditions()
    await asyncio.sleep(QUIET_S)
    found = disturbance(before, host_conditions(), threads)
    return None if found is None else f"the machine is busy: {found}"


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends a tuning process: its guard, told to, sees to it that nothing of it is left."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), END_S)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _last_line(errors: IO[bytes]) -> str:
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return f": {lines[-1][:200]}" if lines else ""
