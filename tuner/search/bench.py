"""A measuring process with one graph on it, replaced when it dies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.canonical import named_fields
from tuner.errors import WorkerDied, WorkerError, WorkerTimeout
from tuner.measurement import Policy, Status
from tuner.plan import Groups, Plan
from tuner.search.workloads import Resolved
from tuner.workers.process import START_S, Worker

COMPILE_S = 300.0
# Floor and factor of the time allowed for timing: the default's own time for all samples, many times over.
TIMING_FLOOR_S, TIMING_FACTOR = 20.0, 50.0
DEFAULT = Plan()


class Bench:
    """A worker that holds one open graph; a dead one is replaced, and the graph opened again.

    seed: of the inputs; each seed is other data. live: keys of the plans that the present worker has compiled and found right.
    """

    def __init__(self, policy: Policy, seed: int):
        self.policy, self.seed = policy, seed
        self._worker: Worker | None = None
        self._resolved: Resolved | None = None
        self.live: set[str] = set()
        self.default: dict[str, Any] = {}

    @property
    def process(self) -> str:
        return self._worker.name if self._worker else ""

    def open(self, resolved: Resolved) -> dict[str, Any]:
        """Compiles, checks and times the default; a worker that dies over it is replaced once.

        Raises UnsupportedGraph, WorkerError.
        """
        try:
            return self._open(resolved)
        except WorkerDied:
            return self._open(resolved)

    def _open(self, resolved: Resolved) -> dict[str, Any]:
        self._resolved = resolved
        if self._worker is None:
            self._worker = Worker(self.policy.threads)
        request = {"graph": resolved.graph.to_json(), "ambient": named_fields(resolved.query.ambient)}
        self.default = self._ask(START_S + COMPILE_S, do="open", **request, seed=self.seed, clock=self.policy.clock)
        self.live = {DEFAULT.key}
        return self.default

    def _ask(self, timeout_s: float, **request: Any) -> Any:
        assert self._worker is not None
        try:
            return self._worker.ask(timeout_s, **request)
        except (WorkerTimeout, WorkerDied):
            self.close()
            raise

    def try_plan(self, plan: Plan, expected: Groups | None, seen_codes: list[str]) -> dict[str, Any]:
        """The worker's verdict, see Session.try_plan. Where it hangs or dies over the plan, the verdict is "timeout" or "crash".

        Raises WorkerError, UnsupportedGraph where a new worker cannot open the graph again: that is not the plan's fault.
        """
        if self._worker is None:
            assert self._resolved is not None
            self.open(self._resolved)
        try:
            verdict = self._ask(COMPILE_S, do="try", plan=plan.to_json(), expected=expected, seen_codes=seen_codes)
        except WorkerError as error:
            return {"status": fault(error), "message": str(error)}
        if verdict["status"] == "ok":
            self.live.add(plan.key)
        return verdict

    def prepare(self, wanted: Sequence[tuple[Plan, Groups | None]]) -> dict[str, dict[str, Any]]:
        """Verdicts by plan key; those that are "ok" are all live. A plan that kills the worker costs the others a repetition."""
        verdicts: dict[str, dict[str, Any]] = {}
        while missing := [
            (plan, groups)
            for plan, groups in wanted
            if plan.key not in self.live and verdicts.get(plan.key, {"status": "ok"})["status"] == "ok"
        ]:
            plan, groups = missing[0]
            verdicts[plan.key] = self.try_plan(plan, groups, [])
        return verdicts

    def time(self, plans: Sequence[Plan], samples: int) -> dict[str, list[float]]:
        """Interleaved samples by plan key, the default's among them, of live plans. Raises WorkerError."""
        calls = (samples + 1) * self.default["repetitions"] * (len(plans) + 1)
        limit_s = TIMING_FLOOR_S + TIMING_FACTOR * calls * self.default["default_ms"] / 1e3
        return self._ask(limit_s, do="time", keys=[plan.key for plan in plans], samples=samples, seed=self.seed)

    def time_each(self, wanted: Sequence[tuple[Plan, Groups | None]], samples: int) -> dict[str, dict[str, list[float]] | Status]:
        """For each live plan, by its key, what `time` says: of all together, or one by one where the worker is lost over them.

        A plan over which it is lost alone gets a verdict instead.
        """
        try:
            times = self.time([plan for plan, _ in wanted], samples)
            return {plan.key: times for plan, _ in wanted}
        except WorkerError as error:
            if len(wanted) == 1:
                return {wanted[0][0].key: fault(error)}
        found: dict[str, dict[str, list[float]] | Status] = {}
        for plan, groups in wanted:
            self.prepare([(plan, groups)])
            found |= self.time_each([(plan, groups)], samples) if plan.key in self.live else {plan.key: "crash"}
        return found

    def close(self) -> None:
        self.live = set()
        if self._worker is not None:
            self._worker.__exit__(None, None, None)
            self._worker = None

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def fault(error: WorkerError) -> Status:
    """The verdict on a candidate over which the worker was lost."""
    return "timeout" if isinstance(error, WorkerTimeout) else "crash"
