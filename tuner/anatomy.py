"""What the compiler schedules: the leaves of one graph, what they read and write, of which operations they are made. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.plan import Groups


@dataclass(frozen=True)
class Buffer:
    """Memory that leaves read or write.

    meta: dtype, sizes and strides as one text, "float32[8,128]{128,1}". bytes: its size. source: "input", "constant" or "leaf",
    who fills it. escapes: whether the graph yields it, or writes an input with it.
    """

    meta: str
    bytes: int
    source: str
    escapes: bool = False

    def to_json(self) -> list[Any]:
        return [self.meta, self.bytes, self.source, self.escapes]


@dataclass(frozen=True)
class Leaf:
    """The smallest thing that the scheduler may fuse.

    id: its local id. kind: IR class, "ComputedBuffer.Reduction". fusable: whether a kernel is generated for it, so that it may
    share one. content: digest of what it computes, buffers named by their place in reads and writes. reads, writes: numbers of
    buffers, in the order in which the leaf names them. after: numbers of leaves that must run before it, whatever for.
    ops: numbers of the operations of which it is made, ascending.
    """

    id: str
    kind: str
    fusable: bool
    content: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    after: tuple[int, ...]
    ops: tuple[int, ...]

    def to_json(self) -> list[Any]:
        return [self.id, self.kind, self.fusable, self.content, *map(list, (self.reads, self.writes, self.after, self.ops))]


@dataclass(frozen=True)
class Op:
    """An operation of the graph as it is lowered. inputs: numbers of operations; those of inputs of the graph are not there.

    cut: the id of the cut that would put its value into memory; "" where it is there already, or cannot be.
    """

    target: str
    inputs: tuple[int, ...]
    cut: str = ""

    def to_json(self) -> list[Any]:
        return [self.target, list(self.inputs), self.cut]


@dataclass(frozen=True)
class Anatomy:
    """leaves, by local id in the order of `leaf_order`; groups: which of them share a kernel, as realised."""

    leaves: tuple[Leaf, ...]
    buffers: tuple[Buffer, ...]
    ops: tuple[Op, ...]
    groups: Groups

    def to_json(self) -> dict[str, Any]:
        return {
            "leaves": [leaf.to_json() for leaf in self.leaves],
            "buffers": [buffer.to_json() for buffer in self.buffers],
            "ops": [op.to_json() for op in self.ops],
            "groups": [list(group) for group in self.groups],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Anatomy:
        """What `to_json` wrote. Raises KeyError, TypeError, ValueError on any other structure."""
        leaves = tuple(Leaf(*row[:4], *(tuple(map(int, part)) for part in row[4:])) for row in data["leaves"])
        buffers = tuple(Buffer(*row) for row in data["buffers"])
        ops = tuple(Op(target, tuple(map(int, inputs)), cut) for target, inputs, cut in data["ops"])
        return Anatomy(leaves, buffers, ops, tuple(tuple(group) for group in data["groups"]))


@dataclass(frozen=True)
class KernelTimes:
    """Where the time of one call goes. kernels: the leaves of each generated kernel, by local ids, and its milliseconds.

    library_ms: of calls into libraries. total_ms: of the whole call; what is left of it is Python between the kernels. All are
    medians over calls in which each kernel is a function of its own.
    """

    kernels: tuple[tuple[tuple[str, ...], float], ...]
    library_ms: float
    total_ms: float

    def to_json(self) -> dict[str, Any]:
        kernels = [[list(leaves), ms] for leaves, ms in self.kernels]
        return {"kernels": kernels, "library_ms": self.library_ms, "total_ms": self.total_ms}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> KernelTimes:
        """What `to_json` wrote. Raises KeyError, TypeError, ValueError on any other structure."""
        kernels = tuple((tuple(map(str, leaves)), float(ms)) for leaves, ms in data["kernels"])
        return KernelTimes(kernels, float(data["library_ms"]), float(data["total_ms"]))
