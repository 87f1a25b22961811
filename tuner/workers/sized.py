"""One size at which a graph is measured: the inputs that are timed, those that are checked, and how long the default takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from tuner.measure.device import Device
from tuner.measure.timing import repetitions_for
from tuner.measurement import Policy
from tuner.workers.checks import CheckedInputs
from tuner.workers.timed import Timed
from tuner.workload.graph import Graph, InputData

WARM_UP_CALLS = 5
# Distance between the seeds of the inputs that are timed and of those that are checked as well.
CHECK_SEED = 1_000_003
# Larger inputs are checked only as they are timed: twice the memory and a second reference run cost more than they tell.
MAX_CHECK_BYTES = 2**30


def made_at(graph: Graph, sizes: Sequence[int], data: Sequence[InputData]) -> Graph:
    """The graph as it is where it is made at these sizes, with what was seen in its inputs there."""
    symbols = tuple(replace(symbol, hint=size) for symbol, size in zip(graph.symbols, sizes, strict=True))
    return replace(graph, symbols=symbols, data=tuple(data))


class Sized(Timed):
    """sizes: values of the graph's symbols, none where it has none."""

    def __init__(self, graph: Graph, module: fx.GraphModule, seed: int, policy: Policy, device: Device, sizes: Sequence[int]):
        super().__init__(policy, device)
        self.sizes = tuple(sizes)
        self.timed = CheckedInputs(graph, module, seed, device, self.sizes)
        self.checked = [self.timed]
        if graph.inputs and self.timed.bytes <= MAX_CHECK_BYTES:
            self.checked.append(CheckedInputs(graph, module, seed + CHECK_SEED, device, self.sizes))

    @property
    def restore(self) -> Callable[[], Any] | None:
        return self.put_back if self.timed.originals else None

    def put_back(self) -> None:
        self.timed.restore()

    def compare_with(self, function: Callable[[list[Any]], Any]) -> None:
        """Where eager cannot say what is right, what this function makes is."""
        for inputs in self.checked:
            if not inputs.reference.checkable:
                inputs.reference.compare_with(inputs.outcome(function))

    def deviation(self, function: Callable[[list[Any]], Any]) -> float:
        """How far its calls stray from the reference, in units of the tolerance. Raises what a call raises."""
        return max(inputs.deviation(function) for inputs in self.checked)

    def call(self, function: Callable[[list[Any]], Any]) -> Callable[[], Any]:
        """One call on the inputs that are timed."""
        return lambda: function(self.timed.passed)

    def peak_bytes(self, call: Callable[[], Any]) -> int:
        """See Device.peak_bytes; the inputs included."""
        peak = self.device.peak_bytes(call) + self.timed.bytes
        self.timed.restore()
        return peak

    def time_default(self, call: Callable[[], Any]) -> None:
        times_ms = []
        for _ in range(2 * WARM_UP_CALLS):
            started = time.perf_counter()
            self.timed.restore()
            if self.policy.cache == "cold":
                self.device.flush()
            times_ms.append(self.device.time_ms(call, 1, self.policy.clock, None))
            self.call_s = time.perf_counter() - started
        self.default_ms = min(times_ms[WARM_UP_CALLS:])
        self.repetitions = repetitions_for(self.default_ms, self.policy)
