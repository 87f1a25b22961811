"""The graphs of a program without a callable, one after the other in the measuring process: by default, and with their plans.

Runs in the child only. Each graph has inputs of its own, made like those that were seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tuner.measure.device import Device
from tuner.measurement import Policy
from tuner.plan import Plan, canonical_groups
from tuner.workers.builder import Builder
from tuner.workers.session import MAX_DEFAULT_ERROR
from tuner.workers.sized import Sized
from tuner.workers.timed import Timed, described, times_of
from tuner.workload.fx import to_fx
from tuner.workload.graph import Graph


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
            one.time_default(one.run_default)
        return {
            **described(self.passes),
            "error": self.error if self.error != float("inf") else None,
            "outcomes": [[key, "served"] for key in self.served],
            "compile_s": self.compile_s,
            "check_s": 0.0,
        }

    def time_plans(self, keys: list[str], samples: int, seed: int, patience: int) -> dict[str, Any]:
        """Samples of "default" and "planned", milliseconds for one call of each graph, whatever the keys; see `times_of`."""
        calls = [[one.run_default, one.run_planned] for one in self.passes]
        return times_of(("default", "planned"), self.passes, calls, samples, seed, patience, self.policy.sizes or ((),))


class _Pass(Timed):
    """One call of each graph, at one of the sizes, by default and with the plans."""

    def __init__(self, policy: Policy, device: Device):
        super().__init__(policy, device)
        self.sized: list[Sized] = []
        self.default: list[Callable[[], Any]] = []
        self.planned: list[Callable[[], Any]] = []

    def add(self, one: Sized, default: Callable[[list[Any]], Any], planned: Callable[[list[Any]], Any]) -> None:
        self.sized.append(one)
        self.default.append(one.call(default))
        self.planned.append(one.call(planned))

    @property
    def restore(self) -> Callable[[], Any] | None:
        return self.put_back if any(one.restore for one in self.sized) else None

    def put_back(self) -> None:
        for one in self.sized:
            one.put_back()

    def run_default(self) -> None:
        for call in self.default:
            call()

    def run_planned(self) -> None:
        for call in self.planned:
            call()
