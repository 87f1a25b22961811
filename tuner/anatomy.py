"""What the compiler schedules: the leaves of one graph, what they read and write, of which operations they are made. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from tuner.plan import Groups
from tuner.structure import kept, structural_key

# iteration sizes within a local id, where all of them are numbers: "2048x1024|1024"
ITERATION = re.compile(r"\d+:(\d+(?:[x|]\d+)*)\|?:")


# Elements of one buffer that a point of a loop is taken to read, at most: a window of a pooling reads more, most read one.
READS_A_POINT = 4


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

    @property
    def elements(self) -> int:
        """Its number of elements, from its bytes and the bits that its dtype has in its name; without any it has 8."""
        return self.bytes // self._element_bytes

    def first(self, count: int) -> int:
        """Bytes of so many of its elements, or of all where it has fewer."""
        return min(self.bytes, count * self._element_bytes)

    @property
    def _element_bytes(self) -> int:
        bits = re.match(r"[a-z]+(\d+)", self.meta)
        return max(int(bits[1]) // 8, 1) if bits else 1

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

    @cached_property
    def number(self) -> dict[str, int]:
        """The number of each leaf, by its local id."""
        return {leaf.id: i for i, leaf in enumerate(self.leaves)}

    @cached_property
    def grouped(self) -> tuple[frozenset[int], ...]:
        """`groups`, by leaf numbers."""
        return tuple(frozenset(self.number[leaf] for leaf in group) for group in self.groups)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Of each buffer, the leaves that read it, ascending."""
        return self._touching(leaf.reads for leaf in self.leaves)

    @cached_property
    def writers(self) -> tuple[tuple[int, ...], ...]:
        """Of each buffer, the leaves that write it, ascending."""
        return self._touching(leaf.writes for leaf in self.leaves)

    @cached_property
    def users(self) -> tuple[frozenset[int], ...]:
        """Of each buffer, the leaves that read or write it."""
        return tuple(frozenset(both) for both in map(tuple.__add__, self.readers, self.writers))

    @cached_property
    def touched(self) -> tuple[tuple[int, ...], ...]:
        """Of each leaf, the buffers that it reads, and then those that it writes."""
        return tuple(leaf.reads + leaf.writes for leaf in self.leaves)

    @cached_property
    def signatures(self) -> tuple[str, ...]:
        """Of each leaf, what it computes, and which of the buffers that it touches are one and the same."""
        places = ([touched.index(buffer) for buffer in touched] for touched in self.touched)
        return tuple(
            f"{leaf.kind} {leaf.content} {len(leaf.reads)} {same}" for leaf, same in zip(self.leaves, places, strict=True)
        )

    @cached_property
    def followers(self) -> tuple[tuple[int, ...], ...]:
        """Of each leaf, those that have it in their `after`, ascending."""
        found: list[list[int]] = [[] for _ in self.leaves]
        for number, leaf in enumerate(self.leaves):
            for before in set(leaf.after):
                found[before].append(number)
        return tuple(map(tuple, found))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Of each leaf, how many stand before it on the longest way to it. Raises ValueError if leaves wait in a circle."""
        depths = [0] * len(self.leaves)
        waiting = [len(set(leaf.after)) for leaf in self.leaves]
        ready = [number for number, count in enumerate(waiting) if not count]
        for number in ready:
            for follower in self.followers[number]:
                depths[follower] = max(depths[follower], depths[number] + 1)
                waiting[follower] -= 1
                if not waiting[follower]:
                    ready.append(follower)
        if len(ready) < len(self.leaves):
            raise ValueError("leaves that wait for each other in a circle")
        return tuple(depths)

    def group_key(self, leaves: Iterable[int]) -> str:
        """Key of these leaves as one kernel: equal for equal groups of any graph, whatever runs around them."""
        members = frozenset(leaves)
        if (key := self._keys.get(members)) is None:
            key = self._keys[members] = structural_key(self, members)
        return key

    def bytes_of(self, leaves: Iterable[int]) -> int:
        """Bytes that a kernel of these leaves moves: each buffer read that comes from outside, each written that must be kept.

        Of a buffer, no more than its leaves' loops have points for: of a table in which something is looked up, not all is read.
        """
        members = set(leaves)
        read: dict[int, int] = {}
        written: dict[int, int] = {}
        for leaf in members:
            for buffer in self.leaves[leaf].reads:
                read[buffer] = read.get(buffer, 0) + self._points[leaf] * READS_A_POINT
            for buffer in self.leaves[leaf].writes:
                written[buffer] = written.get(buffer, 0) + self._points[leaf]
        given = {b: n for b, n in read.items() if self.buffers[b].source != "leaf" or not members.issuperset(self.writers[b])}
        filled = {b: n for b, n in written.items() if kept(self, b, members)}
        return sum(self.buffers[b].first(count) for part in (given, filled) for b, count in part.items())

    @cached_property
    def moved(self) -> tuple[int, ...]:
        """Bytes that each leaf would move by itself."""
        return tuple(self.bytes_of((leaf,)) for leaf in range(len(self.leaves)))

    def work_of(self, leaves: Iterable[int]) -> float:
        """Roughly how many operations on single elements these leaves do: points of the loops times operations of the graph."""
        return float(sum(self._points[leaf] * max(1, len(self.leaves[leaf].ops)) for leaf in set(leaves)))

    @cached_property
    def _keys(self) -> dict[frozenset[int], str]:
        return {}

    @cached_property
    def _points(self) -> tuple[int, ...]:
        """Points of each leaf's loops; where it has none, or symbols in them, elements of the largest buffer that it touches."""
        found = []
        for leaf, touched in zip(self.leaves, self.touched, strict=True):
            if leaf.fusable and (sizes := ITERATION.match(leaf.id)):
                found.append(prod(map(int, re.split(r"[x|]", sizes[1]))))
            else:
                found.append(max((self.buffers[buffer].elements for buffer in touched), default=1))
        return tuple(found)

    def _touching(self, buffers: Iterable[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
        found: list[list[int]] = [[] for _ in self.buffers]
        for number, touched in enumerate(buffers):
            for buffer in sorted(set(touched)):
                found[buffer].append(number)
        return tuple(map(tuple, found))

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
