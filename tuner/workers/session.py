"""One graph in the measuring process: the default and the candidates that were compiled, checked and timed beside it.

Runs in the child only. Every function answers with JSON values.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tuner.errors import UnsupportedGraph
from tuner.measure.device import Device
from tuner.measure.timing import measure_stretch, repetitions_for
from tuner.measurement import Policy
from tuner.plan import Plan
from tuner.workers.builder import Builder, Built
from tuner.workers.checks import CheckedInputs
from tuner.workers.memory import resident_bytes_now
from tuner.workers.verdicts import failure, starved
from tuner.workload.graph import Graph

DEFAULT_KEY = Plan().key
WARM_UP_CALLS = 5
# How far, in units of the tolerance, the default may stray from eager.
MAX_DEFAULT_ERROR = 10.0
# Distance between the seeds of the inputs that are timed and of those that are checked as well.
CHECK_SEED = 1_000_003
# Larger inputs are checked only as they are timed: twice the memory and a second reference run cost more than they tell.
MAX_CHECK_BYTES = 2**30


@dataclass
class Entry:
    """A compiled candidate that was found right. run: one call on the inputs that are timed.

    peak_bytes: on the CPU, of a process that has loaded torch, holds the inputs, and makes this call: what its user sees of it.
    """

    run: Callable[[], Any]
    built: Built
    error: float
    peak_bytes: int

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


class Session(CompileSession):
    """Compiles, checks and times candidates of one graph on inputs made from `seed`. Raises UnsupportedGraph where it cannot."""

    def __init__(self, graph: Graph, seed: int, policy: Policy, device: Device):
        self.policy, self.device = policy, device
        module = Builder(graph, ()).module(Plan())
        self.timed = CheckedInputs(graph, module, seed, device)
        self.checked = [self.timed]
        if graph.inputs and self.timed.bytes <= MAX_CHECK_BYTES:
            self.checked.append(CheckedInputs(graph, module, seed + CHECK_SEED, device))
        super().__init__(Builder(graph, self.timed.values))
        self.restore = self.timed.restore if self.timed.originals else None
        self.entries: dict[str, Entry] = {}
        self.allowed_error = MAX_DEFAULT_ERROR
        built = self.builder.build(Plan())
        started = time.perf_counter()
        default = self._checked(built)
        self.check_s = time.perf_counter() - started
        if not default.error <= MAX_DEFAULT_ERROR:
            raise UnsupportedGraph("unchecked", "the compiler's default itself differs from eager: nothing can be checked")
        # The default is what users get without us: where it strays from eager itself, candidates may stray twice as far.
        self.allowed_error = max(1.0, 2 * default.error)
        self.entries[DEFAULT_KEY] = default
        self.default_ms, self.call_s = self._rough(default)
        self.repetitions = repetitions_for(self.default_ms, policy)

    @property
    def checkable(self) -> bool:
        """Whether eager can say what is right; if not, only plans that leave the numerics alone are tried."""
        return self.timed.reference.checkable

    def _checked(self, built: Built) -> Entry:
        """Raises what a call raises; peak memory is read where the error is allowed."""
        for inputs in self.checked:
            if not inputs.reference.checkable and DEFAULT_KEY not in self.entries:
                inputs.reference.compare_with(inputs.outcome(built.function))
        entry = Entry(lambda: built.function(list(self.timed.values)), built, 0.0, 0)
        entry.error = max(inputs.deviation(built.function) for inputs in self.checked)
        if entry.error <= self.allowed_error:
            entry.peak_bytes = self.device.peak_bytes(entry.run) + self.timed.bytes
            self.timed.restore()
        return entry

    def _rough(self, entry: Entry) -> tuple[float, float]:
        """Milliseconds of one call by the policy's clock, and wall seconds of one with what comes before it."""
        times_ms = []
        for _ in range(2 * WARM_UP_CALLS):
            started = time.perf_counter()
            self.timed.restore()
            if self.policy.cache == "cold":
                self.device.flush()
            times_ms.append(self.device.time_ms(entry.run, 1, self.policy.clock, None))
            call_s = time.perf_counter() - started
        return min(times_ms[WARM_UP_CALLS:]), call_s

    def describe_default(self) -> dict[str, Any]:
        """The default's verdict, and what the search has to know of it.

        default_ms: rough, milliseconds for one call. repetitions: calls that make one sample. check_s: wall time of its check;
        call_s: of one call with what comes before it. checkable, reason: see Reference.
        """
        return {
            **self.entries[DEFAULT_KEY].describe(),
            "default_ms": self.default_ms,
            "repetitions": self.repetitions,
            "check_s": self.check_s,
            "call_s": self.call_s,
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
        """Interleaved samples of the default and the plans with these keys.

        times: by key, milliseconds for one call. conditions, busy: see Stretch.
        """
        chosen = [DEFAULT_KEY, *keys]
        with torch.compiler.set_stance("fail_on_recompile"):
            stretch = measure_stretch(
                self.device,
                [self.entries[key].run for key in chosen],
                self.policy,
                samples=samples,
                repetitions=self.repetitions,
                restore=self.restore,
                seed=seed,
                patience=patience,
            )
        return {
            "times": dict(zip(chosen, stretch.times_ms, strict=True)),
            "conditions": stretch.conditions,
            "busy": stretch.busy,
            "resident_bytes": resident_bytes_now(),
        }

    def forget(self, keys: Sequence[str]) -> None:
        """Drops compiled candidates; the default stays."""
        for key in keys:
            if key != DEFAULT_KEY:
                self.entries.pop(key, None)
