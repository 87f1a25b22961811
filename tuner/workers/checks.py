"""Inputs of one graph, what it should make of them, and what a candidate makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, fx

from tuner.measure.device import Device
from tuner.measure.reference import Reference, seeded
from tuner.workload.fx import make_inputs
from tuner.workload.graph import Graph


class CheckedInputs:
    """One set of inputs, made from `seed`, with its reference.

    module: the graph as eager would run it. originals: copies of the inputs that the graph writes, by position.
    """

    def __init__(self, graph: Graph, module: fx.GraphModule, seed: int, device: Device):
        self.mutated, self.device = graph.mutated, device
        self.values = make_inputs(graph, seed)
        self.originals = {i: self.values[i].clone() for i in self.mutated}
        self.reference = Reference.of(module, self.values, self.mutated, seed)

    @property
    def bytes(self) -> int:
        """Memory that the inputs take, shared storage counted once."""
        storages = {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in self.values}
        return sum(storages.values())

    def restore(self) -> None:
        """Puts back what was written."""
        for i, original in self.originals.items():
            self.values[i].copy_(original)

    def outcome(self, function: Callable[[list[Tensor]], Sequence[Any]]) -> list[Any]:
        """Outputs and mutated inputs of one call on fresh state and poisoned memory, copied. Raises what the call raises."""
        self.restore()
        seeded(self.reference.seed)
        try:
            with self.device.poisoned():
                outputs = function(list(self.values))
                self.device.synchronize()
            copied = [value.clone() if isinstance(value, Tensor) else value for value in outputs]
            return copied + [self.values[i].clone() for i in self.mutated]
        finally:
            self.restore()

    def deviation(self, function: Callable[[list[Tensor]], Sequence[Any]]) -> float:
        """How far one call strays from the reference, in units of the tolerance. Raises what the call raises."""
        return self.reference.deviation(self.outcome(function))
