"""The graphs of a program without a callable, one after the other in the measuring process: by default, and with their plans.

Runs in the child only. Each graph has inputs of its own, made like those that were seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tuner.measure.device import Device
from tuner.measure.timing import measure_stretch, repetitions_for
from tuner.measurement import Policy
from tuner.plan import Plan, canonical_groups
from tuner.workers.builder import Builder
from tuner.workers.session import MAX_DEFAULT_ERROR
from tuner.workers.sized import Sized
from tuner.workload.fx import to_fx
from tuner.workload.graph import Graph

WARM_UP_CALLS = 3


class GraphSequence:
    """rows: for each graph its form, its plan, the groups that this is realised in, and values of its symbols, all as JSON.

    Raises UnsupportedGraph, PlanNotRealised, and what compiling or running raises.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], seed: int, policy: Policy, device: Device):
        self.policy, self.device = policy, device
        self.sized: list[Sized] = []
        self.default: list[Callable[[], Any]] = []
        self.planned: list[Callable[[], Any]] = []
        self.error, self.served = 0.0, list[str]()
        for row in rows:
            self._add(Graph.from_json(row["graph"]), Plan.from_json(row["plan"]), row["groups"], row["sizes"], seed)

    def _add(self, graph: Graph, plan: Plan, groups: Any, sizes: Sequence[int], seed: int) -> None:
        one = Sized(graph, to_fx(graph), seed, self.policy, self.device, sizes)
        builder = Builder(graph, one.timed.values)
        default = builder.build(Plan()).function
        one.compare_with(default)
        self.sized.append(one)
        self.default.append(one.call(default))
        if plan.is_default:
            self.planned.append(self.default[-1])
            return
        planned = builder.build(plan, None if groups is None else canonical_groups(groups)).function
        # As for a candidate: where the default itself strays from eager, a plan may stray twice as far.
        allowed = max(1.0, 2 * min(one.deviation(default), MAX_DEFAULT_ERROR))
        self.error = max(self.error, one.deviation(planned) / allowed)
        self.planned.append(one.call(planned))
        self.served.append(graph.key)

    def _restore(self) -> None:
        for one in self.sized:
            one.timed.restore()

    def describe_default(self) -> dict[str, Any]:
        """error: how far a graph with its plan is off, in units of what is allowed; None for infinity. See Whole for the rest."""
        started = time.perf_counter()
        _run_all(self.default)
        call_s = time.perf_counter() - started
        clock = self.policy.clock
        times_ms = [self.device.time_ms(lambda: _run_all(self.default), 1, clock, self._restore) for _ in range(WARM_UP_CALLS)]
        self._restore()
        self.repetitions = repetitions_for(min(times_ms), self.policy)
        return {
            "default_ms": min(times_ms),
            "repetitions": self.repetitions,
            "error": self.error if self.error != float("inf") else None,
            "outcomes": [[key, "served"] for key in self.served],
            "call_s": call_s,
            "compile_s": 0.0,
            "check_s": 0.0,
        }

    def time_plans(self, keys: list[str], samples: int, seed: int, patience: int) -> dict[str, Any]:
        """Samples of "default" and "planned", milliseconds for one call of each graph, whatever the keys; see measure_stretch."""
        with torch.compiler.set_stance("fail_on_recompile"):
            stretch = measure_stretch(
                self.device,
                [lambda: _run_all(self.default), lambda: _run_all(self.planned)],
                self.policy,
                samples=samples,
                repetitions=self.repetitions,
                restore=self._restore if any(one.restore for one in self.sized) else None,
                seed=seed,
                patience=patience,
            )
        times = dict(zip(("default", "planned"), stretch.times_ms, strict=True))
        return {"times": times, "conditions": stretch.conditions, "busy": stretch.busy}


def _run_all(calls: Sequence[Callable[[], Any]]) -> None:
    for call in calls:
        call()
