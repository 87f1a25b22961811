"""The kernels of a graph by default and under its winner: what a sweep kept of them, and which belong together."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any

from tuner.anatomy import Anatomy, KernelTimes

# operations that only say how memory is looked at; named only where there is nothing else to name
_VIEWS = """
view reshape _unsafe_view permute transpose t expand expand_as unsqueeze squeeze slice select alias detach as_strided getitem
split split_with_sizes unbind view_as diagonal
"""
VIEWS = frozenset(_VIEWS.split())
ALIGNED_EXACTLY = 2000


@dataclass(frozen=True)
class Kernel:
    """What runs in one go. leaves, ops: numbers in the anatomy. key: of the group of leaves; equal ones compute the same.

    names: its operations, short, in the graph's order. library: no kernel is generated for it. bytes: read and written, together.
    ms: milliseconds of one call, None where it was not timed by itself, as library calls are not.
    """

    key: str
    leaves: tuple[int, ...]
    ops: tuple[int, ...]
    names: tuple[str, ...]
    library: bool
    bytes: int
    ms: float | None

    @property
    def title(self) -> str:
        """Its operations in one line, each kind once: "where, amax, sub, exp"."""
        text = ", ".join(dict.fromkeys(self.names))
        return f"{text} (library)" if self.library else text


@dataclass(frozen=True)
class Side:
    """A graph under one plan. kernels: in an order in which they can run. times: None where they were not kept."""

    anatomy: Anatomy
    kernels: tuple[Kernel, ...]
    times: KernelTimes | None

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Side:
        """What a winner's evidence holds of one plan. Raises what `Kernels.of` catches on any other structure."""
        anatomy = Anatomy.from_json(data["anatomy"])
        times = KernelTimes.from_json(data["times"]) if data.get("times") else None
        groups = _groups(anatomy)
        ms = _times_of(anatomy, groups, times)
        order = _running_order(anatomy, groups)
        return Side(anatomy, tuple(_kernel(anatomy, groups[one], ms.get(one)) for one in order), times)

    @cached_property
    def holder(self) -> dict[int, int]:
        """Leaf -> its kernel, by numbers."""
        return {leaf: number for number, kernel in enumerate(self.kernels) for leaf in kernel.leaves}

    @cached_property
    def bytes(self) -> int:
        return sum(kernel.bytes for kernel in self.kernels)

    @property
    def kernels_ms(self) -> float:
        return sum(kernel.ms or 0.0 for kernel in self.kernels)

    def to_json(self) -> dict[str, Any]:
        """For programs: each kernel, and what they come to."""
        return {
            "kernels": [
                {
                    "group_key": kernel.key,
                    "leaves": [self.anatomy.leaves[leaf].id for leaf in kernel.leaves],
                    "ops": list(kernel.names),
                    "library": kernel.library,
                    "bytes": kernel.bytes,
                    "ms": kernel.ms,
                }
                for kernel in self.kernels
            ],
            "bytes": self.bytes,
            "kernels_ms": self.kernels_ms,
            "library_ms": self.times and self.times.library_ms,
            "total_ms": self.times and self.times.total_ms,
        }


@dataclass(frozen=True)
class Kernels:
    """Both sides; winner is None where the default won. missing: why nothing is known, else empty."""

    default: Side | None = None
    winner: Side | None = None
    missing: str = ""

    @staticmethod
    def of(evidence: Mapping[str, Any]) -> Kernels:
        """What a winner's evidence says; whatever cannot be read is missing, and never an error."""
        told = evidence.get("kernels")
        if not isinstance(told, Mapping):
            return Kernels(missing="its sweep recorded none")
        if not isinstance(told.get("default"), Mapping):
            return Kernels(missing=str(told.get("error") or "its sweep could not record them").splitlines()[0][:300])
        try:
            winner = told.get("winner")
            return Kernels(Side.from_json(told["default"]), Side.from_json(winner) if isinstance(winner, Mapping) else None)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            return Kernels(missing=f"what its sweep recorded cannot be read ({type(error).__name__})")

    def to_json(self) -> dict[str, Any] | None:
        if self.default is None:
            return None
        return {"default": self.default.to_json(), "winner": self.winner and self.winner.to_json()}


@dataclass(frozen=True)
class Block:
    """Kernels of both sides that share operations, of all equal places of the graph. Numbers in `Side.kernels`."""

    default: tuple[int, ...]
    winner: tuple[int, ...]


def short(target: str) -> str:
    """An operation's name without library and overload: "where" of "aten.where.self"."""
    parts = target.split(".")
    return (parts[-2] if len(parts) > 2 else parts[-1]) or target


def blocks(default: Side, winner: Side) -> list[Block]:
    """Which kernels of the default became which of the winner, by the operations whose values they make; equal ones as one."""
    sides = (default, winner)
    same = _same_ops([op.target for op in default.anatomy.ops], [op.target for op in winner.anatomy.ops])
    homes, holders = zip(*(_makers(side) for side in sides), strict=True)
    parent: dict[tuple[int, int], tuple[int, int]] = {}

    def root(one: tuple[int, int]) -> tuple[int, int]:
        while parent.setdefault(one, one) != one:
            parent[one] = one = parent[parent[one]]
        return one

    for here, there, mapped in ((0, 1, same), (1, 0, {there: here for here, there in same.items()})):
        for op, kernel in homes[here].items():
            other = mapped.get(op)
            match = None if other is None else homes[there].get(other, holders[there].get(other))
            if match is not None:
                parent[root((here, kernel))] = root((there, match))
    made: defaultdict[tuple[int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for number, side in enumerate(sides):
        for kernel in range(len(side.kernels)):
            made[root((number, kernel))][number].append(kernel)
    return list(_equal_as_one(made.values(), default, winner))


def _equal_as_one(made: Iterable[tuple[list[int], list[int]]], default: Side, winner: Side) -> Iterator[Block]:
    alike: defaultdict[Any, list[tuple[list[int], list[int]]]] = defaultdict(list)
    # where the kernel stands, as a share of its side: winners' kernels without a default's stand among the others
    ends = (len(default.kernels) or 1, len(winner.kernels) or 1)
    for one in sorted(made, key=lambda pair: min([pair[0][0] / ends[0]] if pair[0] else [pair[1][0] / ends[1]])):
        old, new = ([side.kernels[kernel].key for kernel in part] for side, part in zip((default, winner), one, strict=True))
        alike[tuple(sorted(old)), tuple(sorted(new))].append(one)
    for found in alike.values():
        yield Block(*(tuple(kernel for pair in found for kernel in pair[number]) for number in (0, 1)))


def _same_ops(default: Sequence[str], winner: Sequence[str]) -> dict[int, int]:
    """Operation of the default -> the same of the winner: all, where one graph was lowered; the longest common runs elsewhere."""
    if default == winner:
        return {number: number for number in range(len(default))}
    matcher = SequenceMatcher(None, default, winner, autojunk=max(len(default), len(winner)) > ALIGNED_EXACTLY)
    return {match.a + i: match.b + i for match in matcher.get_matching_blocks() for i in range(match.size)}


def _makers(side: Side) -> tuple[dict[int, int], dict[int, int]]:
    """Operation -> the kernel that makes its value, or the first that computes it on the way."""
    homes: dict[int, int] = {}
    holders: dict[int, int] = {}
    for number, kernel in enumerate(side.kernels):
        for leaf in kernel.leaves:
            ops = side.anatomy.leaves[leaf].ops
            if ops:
                homes.setdefault(ops[-1], number)
            for op in ops:
                holders.setdefault(op, number)
    return homes, holders


def _groups(anatomy: Anatomy) -> list[tuple[int, ...]]:
    """The leaves of each kernel, ascending; a leaf that no group names is alone."""
    numbers = {leaf.id: number for number, leaf in enumerate(anatomy.leaves)}
    groups = [tuple(sorted(numbers[leaf] for leaf in group)) for group in anatomy.groups if group]
    grouped = {leaf for group in groups for leaf in group}
    return groups + [(number,) for number in range(len(anatomy.leaves)) if number not in grouped]


def _times_of(anatomy: Anatomy, groups: Sequence[tuple[int, ...]], times: KernelTimes | None) -> dict[int, float]:
    """Group -> milliseconds, all of its kernels together where it has several."""
    holder = {anatomy.leaves[leaf].id: number for number, group in enumerate(groups) for leaf in group}
    told: defaultdict[int, float] = defaultdict(float)
    for leaves, ms in times.kernels if times else ():
        for number in {holder[leaf] for leaf in leaves[:1]}:
            told[number] += ms
    return dict(told)


def _running_order(anatomy: Anatomy, groups: Sequence[tuple[int, ...]]) -> list[int]:
    """The groups in an order in which they can run, by their first leaf where several can."""
    holder = {leaf: number for number, group in enumerate(groups) for leaf in group}
    before = [{holder[one] for leaf in group for one in anatomy.leaves[leaf].after} for group in groups]
    before = [needed - {number} for number, needed in enumerate(before)]
    followers: defaultdict[int, list[int]] = defaultdict(list)
    for number, needed in enumerate(before):
        for one in needed:
            followers[one].append(number)
    waits = [len(needed) for needed in before]
    ready = [(group[0], number) for number, group in enumerate(groups) if not waits[number]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, number = heapq.heappop(ready)
        order.append(number)
        for one in followers[number]:
            waits[one] -= 1
            if not waits[one]:
                heapq.heappush(ready, (groups[one][0], one))
    # none is left where groups are what a compiler made of a graph
    placed = set(order)
    return order + [number for number in range(len(groups)) if number not in placed]


def _kernel(anatomy: Anatomy, group: tuple[int, ...], ms: float | None) -> Kernel:
    leaves = [anatomy.leaves[leaf] for leaf in group]
    library = not any(leaf.fusable for leaf in leaves)
    # of what a library is given, others have made the values
    ops = tuple(sorted({op for leaf in leaves for op in (leaf.ops[-1:] if library else leaf.ops)}))
    names = [short(anatomy.ops[op].target) for op in ops]
    telling = [name for name in names if name not in VIEWS] or names or [leaf.kind.split(".")[-1] for leaf in leaves]
    return Kernel(anatomy.group_key(group), group, ops, tuple(telling), library, anatomy.bytes_of(group), ms)
