"""One size at which a graph is measured: the inputs that are timed, those that are checked, and how long the default takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from tuner.measure.device import Device
from tuner.measure.timing import Stretch, measure_stretch, repetitions_for
from tuner.measurement import Policy
from tuner.workers.checks import CheckedInputs
from tuner.workload.graph import Graph, InputData

WARM_UP_CALLS = 5
# Distance between the seeds of the inputs that are timed and of those that are checked as well; and of the orders of two sizes.
CHECK_SEED, ORDERS_APART = 1_000_003, 7919
# Larger inputs are checked only as they are timed: twice the memory and a second reference run cost more than they tell.
MAX_CHECK_BYTES = 2**30


def made_at(graph: Graph, sizes: Sequence[int], data: Sequence[InputData]) -> Graph:
    """The graph as it is where it is made at these sizes, with what was seen in its inputs there."""
    symbols = tuple(replace(symbol, hint=size) for symbol, size in zip(graph.symbols, sizes, strict=True))
    return replace(graph, symbols=symbols, data=tuple(data))


class Sized:
    """sizes: values of the graph's symbols, none where it has none. default_ms, call_s, repetitions: once `time_default` ran.

    default_ms: rough, of one call by the policy's clock; call_s: wall seconds of one with what comes before it.
    """

    def __init__(self, graph: Graph, module: fx.GraphModule, seed: int, policy: Policy, device: Device, sizes: Sequence[int]):
        self.sizes, self.policy, self.device = tuple(sizes), policy, device
        self.timed = CheckedInputs(graph, module, seed, device, self.sizes)
        self.checked = [self.timed]
        if graph.inputs and self.timed.bytes <= MAX_CHECK_BYTES:
            self.checked.append(CheckedInputs(graph, module, seed + CHECK_SEED, device, self.sizes))
        self.restore = self.timed.restore if self.timed.originals else None
        self.default_ms = self.call_s = 0.0
        self.repetitions = 1

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

    def stretch(self, calls: Sequence[Callable[[], Any]], samples: int, seed: int, patience: int) -> Stretch:
        return measure_stretch(
            self.device,
            calls,
            self.policy,
            samples=samples,
            repetitions=self.repetitions,
            restore=self.restore,
            seed=seed,
            patience=patience,
        )


def interleaved(stretches: Sequence[Stretch]) -> list[list[float]]:
    """The samples of each call at all sizes: in each round one of each size, in their order."""
    return [
        [ms for one_round in zip(*of_call, strict=True) for ms in one_round]
        for of_call in zip(*(stretch.times_ms for stretch in stretches), strict=True)
    ]


def conditions_of(stretches: Sequence[Stretch]) -> dict[str, Any]:
    """What was read while they were measured: of several sizes, that of the first, and all under "at_sizes"."""
    first = stretches[0].conditions
    return first if len(stretches) == 1 else {**first, "at_sizes": [stretch.conditions for stretch in stretches]}


def busy_of(stretches: Sequence[Stretch], sizes: Sequence[Sequence[int]]) -> str | None:
    """Why the times of one of them are not to be trusted, or None."""
    told = ((stretch.busy, size) for stretch, size in zip(stretches, sizes, strict=True) if stretch.busy is not None)
    return next((f"{busy} (at {list(size)})" if size else busy for busy, size in told), None)
