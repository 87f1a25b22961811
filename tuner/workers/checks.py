"""Inputs of one graph, what it should make of them, and what a candidate makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from tuner.measure.device import Device
from tuner.measure.reference import Reference, seeded
from tuner.workers.builder import native_reference
from tuner.workload.fx import make_inputs, memory_of
from tuner.workload.graph import Graph


class CheckedInputs:
    """One set of inputs, made from `seed`, with its reference.

    sizes: values of the graph's symbols, which are passed before the inputs; by default those of its making. module: the graph as
    eager would run it. originals: copies of the inputs that the graph writes, by position.
    """

    def __init__(self, graph: Graph, module: fx.GraphModule, seed: int, device: Device, sizes: Sequence[int] = ()):
        self.graph, self.seed, self.mutated, self.device = graph, seed, graph.mutated, device
        self.sizes = tuple(sizes) or graph.hints
        self.values = self._made()
        self.sums = self._sums()
        self.originals = {i: self.values[i].clone() for i in self.mutated}
        mutated = [len(self.sizes) + i for i in self.mutated]
        self.reference = Reference.of(module, self.passed, mutated, seed, native_reference(graph))

    def _made(self) -> list[Tensor]:
        return make_inputs(self.graph, self.seed, self.sizes)[len(self.sizes) :]

    @property
    def passed(self) -> list[Any]:
        """What a call is passed: a list of its own, which it may empty."""
        return [*self.sizes, *self.values]

    @property
    def bytes(self) -> int:
        """Memory that the inputs take, shared storage counted once."""
        return sum(storage.nbytes() for storage in self._storages())

    def restore(self) -> None:
        """Puts back what was written."""
        for i, original in self.originals.items():
            self.values[i].copy_(original)

    def outcome(self, function: Callable[[list[Any]], Sequence[Any]]) -> list[Any]:
        """Outputs and mutated inputs of one call on fresh state and poisoned memory, copied. Raises what the call raises."""
        self.restore()
        seeded(self.reference.seed)
        try:
            with self.device.poisoned():
                outputs = function(self.passed)
                self.device.synchronize()
            copied = [value.clone() if isinstance(value, Tensor) else value for value in outputs]
            return copied + [self.values[i].clone() for i in self.mutated]
        finally:
            self.restore()

    def deviation(self, function: Callable[[list[Any]], Sequence[Any]]) -> float:
        """How far one call strays from the reference, in units of the tolerance. Raises what the call raises.

        Infinitely far is one that writes an input which the graph does not write; the inputs are as before then, too.
        """
        try:
            found = self.reference.deviation(self.outcome(function))
        finally:
            if spoiled := self._sums() != self.sums:
                for value, made in zip(self.values, self._made(), strict=True):
                    memory_of(value).copy_(memory_of(made))
                # What lies between elements that are apart is nobody's, and other bytes in each that is made.
                self.sums = self._sums()
        return math.inf if spoiled else found

    def _sums(self) -> list[int]:
        """A checksum of each storage: its words of eight bytes, and the bytes that are left over."""
        sums = []
        for storage in self._storages():
            memory = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            words = memory.numel() // 8 * 8
            sums.append(int(memory[:words].view(torch.int64).sum()) + int(memory[words:].sum()))
        return sums

    def _storages(self) -> list[torch.UntypedStorage]:
        """Where the inputs lie, shared storage once."""
        return list({value.untyped_storage().data_ptr(): value.untyped_storage() for value in self.values}.values())
