"""The graphs of a program without a callable, one after the other in the measuring process: by default, and with their plans.

Runs in the child only. Each graph has inputs of its own, made like those that were seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tuner.measure.device import Device
from tuner.measure.statistics import median_of
from tuner.measure.timing import Stretch, measure_stretch, repetitions_for
from tuner.measurement import Policy
from tuner.plan import Plan, canonical_groups
from tuner.workers.builder import Builder
from tuner.workers.session import MAX_DEFAULT_ERROR
from tuner.workers.sized import ORDERS_APART, Sized, busy_of, conditions_of, interleaved
from tuner.workload.fx import to_fx
from tuner.workload.graph import Graph

WARM_UP_CALLS = 3


class GraphSequence:
    """rows: for each graph its form, its plan, the groups that this is realised in, and values of its symbols, all as JSON.

    Where sizes vary these are several, as many as the policy has, and a graph without symbols is the same at each. Raises
    UnsupportedGraph, PlanNotRealised, and what compiling or running raises.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], seed: int, policy: Policy, device: Device):
        self.policy, self.device = policy, device
        self.passes = [_Pass(policy, device) for _ in range(policy.size_count)]
        self.error, self.served = 0.0, list[str]()
        self.compile_s = 0.0
        for row in rows:
            self._add(Graph.from_json(row["graph"]), Plan.from_json(row["plan"]), row["groups"], row["sizes"], seed)

    def _add(self, graph: Graph, plan: Plan, groups: Any, sizes: Sequence[Sequence[int]], seed: int) -> None:
        module = to_fx(graph)
        sized = [Sized(graph, module, seed, self.policy, self.device, one) for one in sizes or [()] * len(self.passes)]
        builder = Builder(graph, sized[0].timed.values)
        started = time.perf_counter()
        default = builder.build(Plan()).function
        self.compile_s += time.perf_counter() - started
        planned = default
        for one in sized:
            one.compare_with(default)
        if not plan.is_default:
            planned = builder.build(plan, None if groups is None else canonical_groups(groups)).function
            self.served.append(graph.key)
        for one, whole in zip(sized, self.passes, strict=True):
            whole.add(one, default, planned)
            if not plan.is_default:
                # As for a candidate: where the default itself strays from eager, a plan may stray twice as far.
                allowed = max(1.0, 2 * min(one.deviation(default), MAX_DEFAULT_ERROR))
                self.error = max(self.error, one.deviation(planned) / allowed)

    def describe_default(self) -> dict[str, Any]:
        """error: how far a graph with its plan is off, in units of what is allowed; None for infinity. compile_s: of all graphs.

        See Whole for the rest.
        """
        for one in self.passes:
            one.time_default()
        longest = max(self.passes, key=lambda one: one.repetitions * one.call_s)
        return {
            "default_ms": median_of([one.default_ms for one in self.passes], len(self.passes)),
            "repetitions": longest.repetitions,
            "error": self.error if self.error != float("inf") else None,
            "outcomes": [[key, "served"] for key in self.served],
            "call_s": longest.call_s,
            "compile_s": self.compile_s,
            "check_s": 0.0,
        }

    def time_plans(self, keys: list[str], samples: int, seed: int, patience: int) -> dict[str, Any]:
        """Samples of "default" and "planned", milliseconds for one call of each graph, whatever the keys; see measure_stretch.

        Where sizes vary, one of each in a round.
        """
        with torch.compiler.set_stance("fail_on_recompile"):
            stretches = [one.stretch(samples, seed + ORDERS_APART * i, patience) for i, one in enumerate(self.passes)]
        times = dict(zip(("default", "planned"), interleaved(stretches), strict=True))
        busy = busy_of(stretches, self.policy.sizes or ((),))
        return {"times": times, "conditions": conditions_of(stretches), "busy": busy}


class _Pass:
    """One call of each graph, at one of the sizes, by default and with the plans."""

    def __init__(self, policy: Policy, device: Device):
        self.policy, self.device = policy, device
        self.sized: list[Sized] = []
        self.default: list[Callable[[], Any]] = []
        self.planned: list[Callable[[], Any]] = []
        self.default_ms = self.call_s = 0.0
        self.repetitions = 1

    def add(self, one: Sized, default: Callable[[list[Any]], Any], planned: Callable[[list[Any]], Any]) -> None:
        self.sized.append(one)
        self.default.append(one.call(default))
        self.planned.append(one.call(planned))

    def _restore(self) -> None:
        for one in self.sized:
            one.timed.restore()

    def time_default(self) -> None:
        started = time.perf_counter()
        _run_all(self.default)
        self.call_s = time.perf_counter() - started
        clock = self.policy.clock
        times_ms = [self.device.time_ms(lambda: _run_all(self.default), 1, clock, self._restore) for _ in range(WARM_UP_CALLS)]
        self._restore()
        self.default_ms = min(times_ms)
        self.repetitions = repetitions_for(self.default_ms, self.policy)

    def stretch(self, samples: int, seed: int, patience: int) -> Stretch:
        return measure_stretch(
            self.device,
            [lambda: _run_all(self.default), lambda: _run_all(self.planned)],
            self.policy,
            samples=samples,
            repetitions=self.repetitions,
            restore=self._restore if any(one.restore for one in self.sized) else None,
            seed=seed,
            patience=patience,
        )


def _run_all(calls: Sequence[Callable[[], Any]]) -> None:
    for call in calls:
        call()
