"""A measuring process with one graph on it, replaced when it dies, grows or loses its device."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any

from tuner.anatomy import Anatomy, KernelTimes
from tuner.canonical import named_fields
from tuner.errors import DeviceBusy, WorkerDied, WorkerError, WorkerTimeout
from tuner.measurement import Policy
from tuner.plan import Groups, Plan
from tuner.search.workloads import Resolved
from tuner.workers.limits import OPEN_S, limits
from tuner.workers.memory import is_leaking
from tuner.workers.process import CHILD, START_S, Worker
from tuner.workers.verdicts import lost

DEFAULT = Plan()
# Distance between the seeds of two stretches' orders, beyond those of the processes of a sweep.
ORDERS = 1000
# What a profile is given however little time is left: it is asked for with some in hand.
LEAST_PROFILE_S = 20.0


@dataclass(frozen=True)
class Timed:
    """Interleaved samples, milliseconds for one call, by plan key, the default's among them; what was read meanwhile.

    Where the graph is measured at several sizes, each round has one sample of each, in the policy's order.
    """

    times: dict[str, list[float]]
    conditions: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Profiled:
    """Where the time of a graph goes, by plan key, the default's among them; a verdict on each plan for which that is not known.

    times: medians over calls in which each group is a function of its own; conditions: what was read meanwhile.
    """

    times: dict[str, KernelTimes]
    failed: dict[str, dict[str, Any]] = field(default_factory=dict)
    conditions: dict[str, Any] = field(default_factory=dict)


class Bench:
    """A worker that holds one open graph; a dead one is replaced, and the graph opened again.

    policy: of the sweep; from `open` on with the sizes of the open graph.
    seed: of the inputs; each seed is other data. patience: how often a noisy stretch is repeated. live: keys of the plans that
    the present worker has compiled and found right. seconds: wall time spent "compiling" (checks included) and "measuring".
    own_copies: let every candidate have code of its own, also where it is equal to another's; for benchmarks of the method.
    """

    module = CHILD

    def __init__(
        self, policy: Policy, seed: int, patience: int = 0, seconds: dict[str, float] | None = None, own_copies: bool = False
    ):
        self.policy, self.seed, self.patience, self.own_copies = policy, seed, patience, own_copies
        self.seconds = defaultdict[str, float](float) if seconds is None else seconds
        self._worker: Worker | None = None
        self._resolved: Resolved | None = None
        self._opened_bytes = self._bytes = self._stretches = 0
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
        self._resolved, self.policy = resolved, resolved.policy(self.policy)
        if self._worker is None:
            self._worker = Worker(self.policy.threads, resolved.device, self.module)
        with self._spent("compiling"):
            limit_s = START_S + OPEN_S * self.policy.size_count
            self.default = self._ask(limit_s, do="open", **open_request(resolved, self.policy, self.seed))
        self.live = {DEFAULT.key}
        self._opened_bytes = self._bytes = self.default.get("resident_bytes", 0)
        return self.default

    @contextmanager
    def _spent(self, on: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[on] += time.monotonic() - started

    def _ask(self, timeout_s: float, **request: Any) -> Any:
        assert self._worker is not None
        try:
            return self._worker.ask(timeout_s, **request)
        except (WorkerTimeout, WorkerDied):
            self.close()
            raise

    def try_plan(self, plan: Plan, expected: Groups | None, seen_codes: Sequence[str]) -> dict[str, Any]:
        """The worker's verdict, see Session.try_plan. Where it hangs or dies over the plan, the verdict says so.

        Raises WorkerError, UnsupportedGraph where a new worker cannot open the graph again: that is not the plan's fault.
        """
        self._reopen()
        request = {"plan": plan.to_json(), "expected": expected, "seen_codes": list(seen_codes)}
        try:
            with self._spent("compiling"):
                verdict = self._ask(limits(self.default).try_s, do="try", **request, own_copy=plan.key if self.own_copies else "")
        except WorkerError as error:
            return lost(error)
        if verdict["status"] == "ok":
            self.live.add(plan.key)
        self._bytes = verdict.get("resident_bytes", 0)
        if verdict.get("sticky"):
            self.close()
        return verdict

    def _reopen(self) -> None:
        if self._worker is None:
            assert self._resolved is not None
            self.open(self._resolved)

    def anatomy(self, plan: Plan, seconds: float = inf) -> Anatomy | dict[str, Any]:
        """The anatomy of the open graph under `plan`, or the verdict that its lowering ends with. Raises as `try_plan` does.

        seconds: what it may take at most; more than 0.
        """
        self._reopen()
        try:
            with self._spent("compiling"):
                told = self._ask(min(seconds, limits(self.default).compile_s), do="anatomy", plan=plan.to_json())
        except WorkerError as error:
            return lost(error)
        self._bytes = told.get("resident_bytes", 0)
        return Anatomy.from_json(told["anatomy"]) if told["status"] == "ok" else told

    def replace_if_leaking(self) -> None:
        """Ends a worker that has grown too much: the next trial starts another. To be called when nothing live is needed more."""
        if is_leaking(self._opened_bytes, self._bytes):
            self.close()

    def prepare(self, wanted: Sequence[tuple[Plan, Groups | None]]) -> dict[str, dict[str, Any]]:
        """A verdict on each, by plan key; those that are "ok" are all live. One that kills the worker costs the others a try."""
        verdicts: dict[str, dict[str, Any]] = {}
        while missing := [(plan, groups) for plan, groups in wanted if self._missing(plan, verdicts)]:
            plan, groups = missing[0]
            verdicts[plan.key] = self.try_plan(plan, groups, ())
        return verdicts

    def _missing(self, plan: Plan, verdicts: Mapping[str, dict[str, Any]]) -> bool:
        """Not live, and not because of a verdict on it."""
        return plan.key not in self.live and (plan.key not in verdicts or verdicts[plan.key]["status"] == "ok")

    def time(self, plans: Sequence[Plan], samples: int, known: bool = False) -> Timed:
        """`samples` rounds of live plans and the default. known: they were timed before, and are not much slower than it.

        Raises WorkerError; DeviceBusy where the machine was not quiet enough.
        """
        repetitions = self.default["repetitions"]
        limit_s = self.policy.size_count * limits(self.default).stretch_s(len(plans), samples, repetitions, self.patience, known)
        keys = [plan.key for plan in plans]
        # Each stretch has an order of its own: repeated, the luck of one would look like evidence.
        self._stretches += 1
        order = self.seed + ORDERS * self._stretches
        with self._spent("measuring"):
            told = self._ask(limit_s, do="time", keys=keys, samples=samples, seed=order, patience=self.patience)
        self._bytes = told.get("resident_bytes", 0)
        if told.get("busy") and self.patience:
            raise DeviceBusy(told["busy"])
        busy = {"busy": told["busy"]} if told.get("busy") else {}
        return Timed(told["times"], {**told.get("conditions", {}), **busy})

    def time_each(self, wanted: Sequence[tuple[Plan, Groups | None]], samples: int) -> dict[str, Timed | dict[str, Any]]:
        """For each live plan, by its key, what `time` says: of all together, or one by one where the worker is lost over them.

        A plan over which it is lost alone gets a verdict instead.
        """
        try:
            timed = self.time([plan for plan, _ in wanted], samples, known=True)
            return {plan.key: timed for plan, _ in wanted}
        except WorkerError as error:
            if len(wanted) == 1:
                return {wanted[0][0].key: lost(error)}
        found: dict[str, Timed | dict[str, Any]] = {}
        for plan, groups in wanted:
            verdicts = self.prepare([(plan, groups)])
            found |= self.time_each([(plan, groups)], samples) if plan.key in self.live else verdicts
        return found

    def profile(self, plans: Sequence[Plan], rounds: int, seconds: float = inf) -> Profiled:
        """Times of each kernel of the default and the plans, which need not be live; their outputs are not checked.

        Where the worker is lost over them, they are profiled one by one: one over which it is lost alone gets a verdict. Raises
        WorkerError where it is lost over the default, UnsupportedGraph where a new worker cannot open the graph again. seconds:
        what it may take at most; LEAST_PROFILE_S at least.
        """
        plans = [plan for plan in plans if plan != DEFAULT]
        try:
            return self._profile(plans, rounds, seconds)
        except WorkerError as error:
            if not plans:
                raise
            if len(plans) == 1:
                return Profiled({}, {plans[0].key: lost(error)})
        parts = [self.profile([plan], rounds, seconds) for plan in plans]
        # Each part has the default's own times beside it.
        times = {key: kernels for part in reversed(parts) for key, kernels in part.times.items()}
        failed = {key: verdict for part in parts for key, verdict in part.failed.items()}
        return Profiled(times, failed, next((part.conditions for part in parts if part.conditions), {}))

    def _profile(self, plans: Sequence[Plan], rounds: int, seconds: float) -> Profiled:
        self._reopen()
        limit = limits(self.default)
        # Each is called twice as often as in a stretch: with its kernels watched, and without.
        stretch_s = limit.stretch_s(2 * len(plans) + 1, rounds, self.default["repetitions"], 0, known=False)
        limit_s = sum(limit.split_s(plan.groups) for plan in (DEFAULT, *plans)) + stretch_s
        self._stretches += 1
        order = self.seed + ORDERS * self._stretches
        limit_s = min(limit_s, max(seconds, LEAST_PROFILE_S))
        started = time.monotonic()
        # Where the worker is lost, all of it counts so: what takes long is compiling.
        with self._spent("compiling"):
            told = self._ask(limit_s, do="profile", plans=[plan.to_json() for plan in plans], rounds=rounds, seed=order)
        measuring_s = max(0.0, time.monotonic() - started - told.get("compile_s", 0.0))
        self.seconds["compiling"] -= measuring_s
        self.seconds["measuring"] += measuring_s
        self._bytes = told.get("resident_bytes", 0)
        if any(verdict.get("sticky") for verdict in told["failed"].values()):
            self.close()
        times = {key: KernelTimes.from_json(kernels) for key, kernels in told["times"].items()}
        return Profiled(times, told["failed"], told["conditions"])

    def close(self) -> None:
        self.live = set()
        if self._worker is not None:
            self._worker.__exit__(None, None, None)
            self._worker = None

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_request(resolved: Resolved, policy: Policy, seed: int) -> dict[str, Any]:
    """What a worker is told to open a graph."""
    ambient = named_fields(resolved.query.ambient)
    data = {"data": [[seen.to_json() for seen in at] for at in resolved.data]} if resolved.data else {}
    return {"graph": resolved.graph.to_json(), "ambient": ambient, "seed": seed, "policy": policy.fields(), **data}
