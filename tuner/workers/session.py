"""One graph in the measuring process: the default and the candidates that were compiled, checked and timed beside it.

Runs in the child only. Every function answers with JSON values.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.anatomy import Anatomy
from tuner.errors import UnsupportedGraph
from tuner.measure.device import Device
from tuner.measurement import Policy, describe_sizes
from tuner.plan import Plan
from tuner.workers.builder import Builder, Built
from tuner.workers.memory import resident_bytes_now
from tuner.workers.sized import Sized, made_at
from tuner.workers.timed import described, times_of
from tuner.workers.verdicts import failure, starved
from tuner.workload.fx import to_fx
from tuner.workload.graph import Graph, InputData

DEFAULT_KEY = Plan().key
# How far, in units of the tolerance, the default may stray from eager.
MAX_DEFAULT_ERROR = 10.0


@dataclass
class Entry:
    """A compiled candidate that was found right. runs: one call on the inputs that are timed, of each size.

    peak_bytes: on the CPU, of a process that has loaded torch, holds the inputs, and makes this call: what its user sees of it;
    a list of such where the policy has sizes.
    """

    runs: list[Callable[[], Any]]
    built: Built
    error: float
    peak_bytes: int | list[int]

    def describe(self) -> dict[str, Any]:
        return {**self.built.describe(), "error": self.error, "peak_bytes": self.peak_bytes}


class CompileSession:
    """Compiles candidates of one graph and runs none: what it compiles lies in Inductor's cache for who does."""

    def __init__(self, builder: Builder):
        self.builder = builder

    def describe_default(self) -> dict[str, Any]:
        return {"status": "ok", "resident_bytes": resident_bytes_now()}

    def compile_plan(self, plan: Plan, expected: Any, seen_codes: Sequence[str], own_copy: str = "") -> dict[str, Any]:
        """See Builder.attempt; the candidate is not run and not kept."""
        built = self.builder.attempt(plan, expected, seen_codes, own_copy)
        return {**(built.describe() if isinstance(built, Built) else built), "resident_bytes": resident_bytes_now()}

    def anatomy(self, plan: Plan) -> dict[str, Any]:
        """status "ok" with the anatomy of the graph under `plan`, or a verdict of Builder.attempt's; nothing is compiled."""
        read = self.builder.anatomy(plan)
        told = {"status": "ok", "anatomy": read.to_json()} if isinstance(read, Anatomy) else read
        return {**told, "resident_bytes": resident_bytes_now()}


class Session(CompileSession):
    """Compiles, checks and times candidates of one graph on inputs made from `seed`, at each of the policy's sizes.

    data: what was seen in the inputs at each of these, where it was; else what the graph has is made to fit. Raises
    UnsupportedGraph where it cannot.
    """

    def __init__(self, graph: Graph, seed: int, policy: Policy, device: Device, data: Sequence[Sequence[InputData]] = ()):
        self.policy, self.device = policy, device
        module = to_fx(graph)
        seen: Sequence[Sequence[InputData] | None] = data or [None] * policy.size_count
        self.sized = [
            Sized(graph if own is None else made_at(graph, sizes, own), module, seed, policy, device, sizes)
            for sizes, own in zip(policy.sizes or ((),), seen, strict=True)
        ]
        self.timed = self.sized[0].timed
        super().__init__(Builder(graph, self.timed.values))
        self.entries: dict[str, Entry] = {}
        self.allowed_error = MAX_DEFAULT_ERROR
        built = self.builder.build(Plan())
        if (outside := self._outside(built)) is not None:
            raise UnsupportedGraph("symbolic_sizes", f"the compiler's default makes other code for {outside}: tune that apart")
        started = time.perf_counter()
        default = self._checked(built)
        self.check_s = time.perf_counter() - started
        if not default.error <= MAX_DEFAULT_ERROR:
            raise UnsupportedGraph("unchecked", "the compiler's default itself differs from eager: nothing can be checked")
        # The default is what users get without us: where it strays from eager itself, candidates may stray twice as far.
        self.allowed_error = max(1.0, 2 * default.error)
        self.entries[DEFAULT_KEY] = default
        for one, run in zip(self.sized, default.runs, strict=True):
            one.time_default(run)

    @property
    def checkable(self) -> bool:
        """Whether eager can say what is right; if not, only plans that leave the numerics alone are tried."""
        return self.timed.reference.checkable

    def _outside(self, built: Built) -> str | None:
        """The first of the sizes that what was compiled is not for."""
        outside = [one.sizes for one in self.sized if not built.holds(one.sizes)]
        return describe_sizes(outside[:1]) if outside else None

    def _checked(self, built: Built) -> Entry:
        """Raises what a call raises; peak memory is read where the error is allowed."""
        if DEFAULT_KEY not in self.entries:
            for one in self.sized:
                one.compare_with(built.function)
        entry = Entry([one.call(built.function) for one in self.sized], built, 0.0, 0)
        entry.error = max(one.deviation(built.function) for one in self.sized)
        if entry.error <= self.allowed_error:
            peaks = [one.peak_bytes(run) for one, run in zip(self.sized, entry.runs, strict=True)]
            entry.peak_bytes = peaks if self.policy.sizes else peaks[0]
        return entry

    def describe_default(self) -> dict[str, Any]:
        """The default's verdict, and what the search has to know of it.

        default_ms: rough, milliseconds for one call. repetitions: calls that make one sample. check_s: wall time of its check;
        call_s: of one call with what comes before it; both of the size whose samples take longest. checkable, reason: see
        Reference.
        """
        return {
            **self.entries[DEFAULT_KEY].describe(),
            **described(self.sized),
            "check_s": self.check_s,
            "checkable": self.checkable,
            "reason": self.timed.reference.reason,
            "resident_bytes": resident_bytes_now(),
        }

    def try_plan(self, plan: Plan, expected: Any, seen_codes: Sequence[str], own_copy: str = "") -> dict[str, Any]:
        """Compiles and checks `plan`.

        status: "ok", "wrong", "crash" (a call raised), "refused" (the graph cannot be checked, and the plan may change numerics),
        or one of Builder.attempt's. error: None where it is infinite. sticky: the worker has to be replaced.
        """
        return {**self._try(plan, expected, seen_codes, own_copy), "resident_bytes": resident_bytes_now()}

    def _try(self, plan: Plan, expected: Any, seen_codes: Sequence[str], own_copy: str) -> dict[str, Any]:
        if not self.checkable and not plan.leaves_numerics:
            return {"status": "refused", "message": f"outputs cannot be checked: {self.timed.reference.reason}"}
        built = self.builder.attempt(plan, expected, seen_codes, own_copy)
        if not isinstance(built, Built):
            return built
        if (outside := self._outside(built)) is not None:
            return {"status": "refused", "why": "not for all sizes", "message": f"the compiler makes other code for {outside}"}
        try:
            entry = self._checked(built)
        # A border of the worker loop: whatever running a candidate raises is a verdict on it.
        except BaseException as error:
            status = "out_of_resources" if starved(error) else "crash"
            return {**built.describe(), **failure(error), "status": status, "sticky": self.device.is_sticky(error)}
        if not entry.error <= self.allowed_error:
            message = f"differs from what it should be by {entry.error:.3g} times the tolerance"
            told = entry.error if math.isfinite(entry.error) else None
            return {**built.describe(), "status": "wrong", "error": told, "message": message}
        self.entries[plan.key] = entry
        return entry.describe()

    def time_plans(self, keys: Sequence[str], samples: int, seed: int, patience: int = 0) -> dict[str, Any]:
        """Interleaved samples of the default and the plans with these keys; see `times_of`."""
        chosen = [DEFAULT_KEY, *keys]
        calls = [[self.entries[key].runs[i] for key in chosen] for i in range(len(self.sized))]
        times = times_of(chosen, self.sized, calls, samples, seed, patience, [one.sizes for one in self.sized])
        return {**times, "resident_bytes": resident_bytes_now()}

    def forget(self, keys: Sequence[str]) -> None:
        """Drops compiled candidates; the default stays."""
        for key in keys:
            if key != DEFAULT_KEY:
                self.entries.pop(key, None)
