"""Several workers that compile candidates ahead: into Inductor's cache, from which the measuring worker loads them.

On a GPU they compile while others measure; on a CPU they would disturb, so the caller takes all results before he measures.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from tuner.errors import UnsupportedGraph, WorkerDied, WorkerError
from tuner.plan import Groups, Plan
from tuner.workers.limits import OPEN_S, limits
from tuner.workers.memory import is_leaking
from tuner.workers.process import CHILD, START_S, Worker
from tuner.workers.verdicts import lost

# Compilations after which a worker is replaced, should it leak unnoticed.
RECYCLE_AFTER = 100
# Each worker of the pool is one compilation, so that as many run at once as the pool has workers.
ENVIRONMENT = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}

# (plan, groups it is expected to be realised in, own_copy: see compile_candidate)
Job = tuple[Plan, Groups | None, str]
Verdict = dict[str, Any]


class CompilePool:
    """`size` workers for graphs that are measured with `threads` threads. `open` says for which graph they compile.

    seconds: spent so far by all workers together, on opening graphs and compiling.
    """

    def __init__(self, threads: int, size: int, device: str = "cpu", module: str = CHILD):
        self.size, self.seconds = size, 0.0
        self._slots = [_Slot(threads, device, module) for _ in range(size)]
        self._free: queue.SimpleQueue[_Slot] = queue.SimpleQueue()
        for slot in self._slots:
            self._free.put(slot)
        self._executor = ThreadPoolExecutor(size, thread_name_prefix="compile")
        self._request: dict[str, Any] = {}
        self._not_opened: Mapping[str, Any] | None = None
        self._lock = threading.Lock()

    def open(self, request: Mapping[str, Any]) -> None:
        """For the graph of this request to "open" a worker. Each worker opens it when its first job comes."""
        self._request = {**request, "compile_only": True}

    def compile(
        self, jobs: Sequence[Job], seen_codes: Sequence[str], default: Mapping[str, Any]
    ) -> Iterator[tuple[Plan, Verdict | None]]:
        """Each plan with its verdict, see Builder.attempt, as they come; None where a worker could not even open the graph.

        default: what the measuring worker told of the default, for the time limit. Code that a job has made is a duplicate in
        jobs that start later. Goes on while the caller does other things; a caller who stops early leaves no job waiting.
        """
        seen = set(seen_codes)
        limit_s = limits(default).compile_s
        futures = [self._executor.submit(self._one, job, self._request, seen, limit_s) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()

    def _one(self, job: Job, request: Mapping[str, Any], seen: set[str], limit_s: float) -> tuple[Plan, Verdict | None]:
        # Who could not open a graph once would cost as much again for each of its candidates.
        if request is self._not_opened:
            return job[0], None
        slot, started = self._free.get(), time.monotonic()
        with self._lock:
            known = sorted(seen)
        try:
            verdict = slot.compile(job, request, known, limit_s)
        finally:
            self._free.put(slot)
        with self._lock:
            self.seconds += time.monotonic() - started
            if verdict is None:
                self._not_opened = request
            if verdict is not None and verdict["status"] == "ok" and verdict["code_key"]:
                seen.add(verdict["code_key"])
        return job[0], verdict

    def close(self) -> None:
        """Kills the workers, with what they compile."""
        for slot in self._slots:
            slot.close()
        self._executor.shutdown(wait=True, cancel_futures=True)
        for slot in self._slots:
            slot.drop()

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Slot:
    """A place for one worker, which is started when needed and replaced when it is lost, has grown or has compiled much.

    Used by one thread at a time, but for `close`, which ends what that thread waits for.
    """

    def __init__(self, threads: int, device: str, module: str):
        self.threads, self.device, self.module = threads, device, module
        self._worker: Worker | None = None
        self._request: Mapping[str, Any] | None = None
        self._opened_bytes = self._compiled = 0
        self._closed, self._lock = False, threading.Lock()

    def compile(self, job: Job, request: Mapping[str, Any], seen_codes: Sequence[str], limit_s: float) -> Verdict | None:
        plan, expected, own_copy = job
        asked = {"plan": plan.to_json(), "expected": expected, "seen_codes": seen_codes, "own_copy": own_copy}
        try:
            worker = self._opened(request)
        except (WorkerError, UnsupportedGraph):
            self.drop()
            return None
        try:
            verdict: Verdict = worker.ask(limit_s, do="compile", **asked)
        except WorkerError as error:
            self.drop()
            return lost(error)
        self._compiled += 1
        if self._compiled >= RECYCLE_AFTER or is_leaking(self._opened_bytes, verdict["resident_bytes"]):
            self.drop()
        return verdict

    def _opened(self, request: Mapping[str, Any]) -> Worker:
        with self._lock:
            if self._closed:
                raise WorkerDied("the compile pool was closed")
            if self._worker is None:
                self._worker, self._request, self._compiled = Worker(self.threads, self.device, self.module, ENVIRONMENT), None, 0
            worker = self._worker
        if self._request is not request:
            self._opened_bytes = worker.ask(START_S + OPEN_S, do="open", **request)["resident_bytes"]
            self._request = request
        return worker

    def drop(self) -> None:
        with self._lock:
            if self._worker is not None:
                self._worker.__exit__()
                self._worker = None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._worker is not None:
                self._worker.kill()
