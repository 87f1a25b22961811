"""The queue of programs to tune, kept as small files beside the store, so that it survives the daemon.

`<store>.jobs/<exact key>.json` is a job's state, `<exact key>.report` the program's graphs, there until the job has ended. One
program under one target, toolchain and ambient has one job: whoever reports it meanwhile is told so.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from tuner.cache.folder import make_folder
from tuner.cache.lock import LockTaken, take_lock
from tuner.errors import DaemonError, StoreError
from tuner.workload.miss_report import MissReport

log = logging.getLogger("tuner.daemon")
State = Literal["queued", "running", "done", "refused", "failed"]
STATES: tuple[State, ...] = ("queued", "running", "done", "refused", "failed")
GIVEN_UP: tuple[State, ...] = ("refused", "failed")
ENDED: tuple[State, ...] = ("done", *GIVEN_UP)
JOB_NAME = re.compile(r"([0-9a-f]{64})\.json")
# Jobs that may wait at once, and jobs that have ended and are remembered: the oldest are forgotten first.
QUEUE_LIMIT = 128
ENDED_LIMIT = 256
STATE_LIMIT_BYTES = 64 * 1024
# A job that takes its tuning process down is tried once more; one that finds the machine busy some more times, each time later.
CRASHES_LIMIT = 2
BUSY_LIMIT = 8
BUSY_DELAY_S, BUSY_DELAY_LIMIT_S = 60.0, 3600.0
# Seconds after which a program that was given up is wanted again: what stood in the way may be gone by then.
GIVEN_UP_S = 24 * 3600.0


@dataclass(frozen=True)
class Job:
    """One program to tune. exact_key: of its query; workload_keys: of its graphs, in order; threads: that it is tuned for.

    attempts: how often it was started; crashes, busy: how often it ended by the end of a process, or by noise. created,
    updated, not_before: seconds since the epoch. reason: why it waits, or how it ended. phase, best: of the graph that is being
    tuned, see `tuner.search.progress`.
    """

    exact_key: str
    program_key: str
    target: str
    workload_keys: tuple[str, ...]
    threads: int
    created: float
    updated: float
    state: State = "queued"
    reason: str = ""
    attempts: int = 0
    crashes: int = 0
    busy: int = 0
    not_before: float = 0.0
    phase: str = ""
    best: float = 1.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "workload_keys": list(self.workload_keys)}

    @staticmethod
    def from_json(data: Any) -> Job:
        """The job that `to_json` wrote; fields that this version does not know are left out. Raises ValueError, TypeError."""
        known = {field.name for field in fields(Job)}
        given = {name: value for name, value in data.items() if name in known}
        job = Job(**{**given, "workload_keys": tuple(map(str, data["workload_keys"]))})
        texts = (job.exact_key, job.program_key, job.target, job.reason, job.phase)
        numbers = (job.threads, job.created, job.updated, job.not_before, job.best, job.attempts, job.crashes, job.busy)
        if job.state not in STATES or not all(isinstance(text, str) for text in texts):
            raise ValueError("it is no job")
        if not all(isinstance(number, int | float) for number in numbers):
            raise ValueError("it is no job")
        return job


def jobs_folder(store: Path) -> Path:
    return store.with_name(store.name + ".jobs")


@contextlib.contextmanager
def jobs_held(store: Path) -> Iterator[None]:
    """Meanwhile no other daemon tunes for `store`. Raises DaemonError where one does, or where that cannot be made sure of."""
    lock = store.with_name(store.name + ".jobs.lock")
    only_serve = "`tuner serve --no-tune` only serves it"
    try:
        make_folder(lock.absolute().parent)
        held = take_lock(lock)
    except LockTaken as taken:
        raise DaemonError(f"{taken.holder} tunes for store {store} already: {only_serve}") from None
    except OSError as error:
        raise DaemonError(f"cannot tune for store {store} ({error.strerror}: {lock}): {only_serve}") from error
    try:
        yield
    finally:
        held.release()


class Jobs:
    """The jobs in `folder`, which is made when the first one comes. Only the daemon that holds them (`jobs_held`) changes them.

    Files that are no jobs are left alone and counted in `ignored`; a job that was running when the last daemon ended is queued.
    Methods that write raise StoreError where the folder cannot be written; what they would have changed is as it was then.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.ignored = 0
        self._jobs: dict[str, Job] = {}
        for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
            job = self._read(path)
            if job is None:
                self.ignored += 1
            else:
                self._jobs[job.exact_key] = replace(job, state="queued") if job.state == "running" else job

    def all(self) -> list[Job]:
        """Every job, the first reported first."""
        return sorted(self._jobs.values(), key=lambda job: (job.created, job.exact_key))

    def count(self) -> dict[str, int]:
        """Number of jobs by state."""
        counted = Counter(job.state for job in self._jobs.values())
        return {state: counted[state] for state in STATES if counted[state]}

    def get(self, exact_key: str) -> Job | None:
        return self._jobs.get(exact_key)

    def next(self, now: float) -> Job | None:
        """The job to start: of those whose time has come, the first reported."""
        return next((job for job in self.all() if job.state == "queued" and job.not_before <= now), None)

    def wants(self, exact_key: str, known: bool) -> bool:
        """Whether a report of this program would become a job.

        One that was tuned is not wanted again while the store has it, one that was given up not for a day.
        """
        if sum(job.state not in ENDED for job in self._jobs.values()) >= QUEUE_LIMIT:
            return False
        job = self._jobs.get(exact_key)
        if job is None:
            return True
        if job.state == "done":
            return not known
        return job.state in GIVEN_UP and time.time() - job.updated >= GIVEN_UP_S

    def add(self, report: MissReport) -> Job:
        """Queue the program of `report`. Raises StoreError."""
        program, now = report.program, time.time()
        keys = tuple(graph.key for graph in report.graphs)
        job = Job(program.exact_key, program.workload_key, program.target_name, keys, report.threads, now, now)
        self._make_folder()
        self._write(self.report(job), json.dumps(report.to_json()))
        self.put(job)
        return job

    def put(self, job: Job) -> Job:
        """Keep `job` in place of what was known of it. Raises StoreError."""
        job = replace(job, updated=time.time())
        self._write(self.folder / f"{job.exact_key}.json", json.dumps(job.to_json()))
        self._jobs[job.exact_key] = job
        if job.state in ENDED:
            self.report(job).unlink(missing_ok=True)
            self._forget_oldest()
        return job

    def show(self, job: Job) -> None:
        """Remember how a running job gets on; that is not kept."""
        if job.exact_key in self._jobs:
            self._jobs[job.exact_key] = job

    def report(self, job: Job) -> Path:
        """The file with the job's program and graphs, as `MissReport.to_json` gives them."""
        return self.folder / f"{job.exact_key}.report"

    def forget_given_up(self) -> None:
        """Drop what was refused or failed, so that it is wanted again."""
        self._forget([job for job in self._jobs.values() if job.state in GIVEN_UP])

    def _forget_oldest(self) -> None:
        ended = sorted((job for job in self._jobs.values() if job.state in ENDED), key=lambda job: job.updated)
        self._forget(ended[: max(0, len(ended) - ENDED_LIMIT)])

    def _forget(self, jobs: list[Job]) -> None:
        for job in jobs:
            del self._jobs[job.exact_key]
            with contextlib.suppress(OSError):  # a folder that cannot be written to: it is forgotten for this daemon's time
                (self.folder / f"{job.exact_key}.json").unlink(missing_ok=True)

    def _read(self, path: Path) -> Job | None:
        try:
            if not JOB_NAME.fullmatch(path.name) or path.is_symlink() or path.stat().st_size > STATE_LIMIT_BYTES:
                return None
            job = Job.from_json(json.loads(path.read_text()))
            if f"{job.exact_key}.json" != path.name or (job.state not in ENDED and not self.report(job).is_file()):
                return None
            return job
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            log.warning("%s is no job and is ignored: %s", path, error)
            return None

    def _make_folder(self) -> None:
        try:
            private = make_folder(self.folder)
        except OSError as error:
            raise StoreError(f"cannot make the folder {self.folder} for jobs: {error.strerror}") from error
        if not private:
            raise StoreError(f"others can write to {self.folder}: no job is kept there")

    def _write(self, path: Path, text: str) -> None:
        """All of `text` or nothing, for this user alone."""
        part = path.with_suffix(".part")
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
            part.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise StoreError(f"cannot keep the job in {self.folder}: {error.strerror}") from error


def crashed(job: Job, how: str) -> Job:
    """`job` after its tuning process ended by itself."""
    job = replace(job, crashes=job.crashes + 1, phase="", best=1.0)
    if job.crashes >= CRASHES_LIMIT:
        return replace(job, state="failed", reason=f"{how}, {job.crashes} times")
    return replace(job, state="queued", reason=f"{how}; it is tried once more")


def busy(job: Job, why: str, now: float) -> Job:
    """`job` after the machine was too loud to tune it."""
    job = replace(job, busy=job.busy + 1, phase="", best=1.0)
    if job.busy >= BUSY_LIMIT:
        return replace(job, state="failed", reason=f"busy, {job.busy} times: {why}")
    delay_s = min(BUSY_DELAY_S * 2.0 ** (job.busy - 1), BUSY_DELAY_LIMIT_S)
    return replace(job, state="queued", reason=f"busy: {why}", not_before=now + delay_s)


def put_back(job: Job, why: str) -> Job:
    """`job` after it was stopped through no fault of its own."""
    return replace(job, state="queued", reason=why, phase="", best=1.0)
