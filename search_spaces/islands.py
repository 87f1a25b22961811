"""Islands: leaves for which kernels are generated, that share buffers, with no barrier on any way from one to another.

Levels are told apart by barriers: library calls, and whatever else no kernel is generated for. All leaves of an island stand at
one level, so whatever is grouped within one island makes no circle with what is grouped within another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from tuner.anatomy import Anatomy

# Leaves that read the same buffer belong together for its sake if it is at least this share of what they move: else all that
# scale by the same number would be one island, for nothing.
LEAST_SHARE = 1 / 64


def islands(anatomy: Anatomy) -> list[frozenset[int]]:
    """The islands of a graph, by leaf numbers. What shares one of the anatomy's own groups with a barrier is in none.

    Own groups are not taken apart. Near linear in leaves and in what they read and write.
    """
    units = _Units(anatomy)
    joined = _Joined(len(units.members))
    at: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for buffer, touching in enumerate(anatomy.users):
        for leaf in touching:
            if not units.barrier[unit := units.of[leaf]]:
                at[buffer][units.level[unit]].append(leaf)
        for leaves in at[buffer].values():
            joined.join(units.of[leaf] for leaf in belonging(anatomy, buffer, leaves))
    _delay(anatomy, units, joined, at)
    found: dict[int, frozenset[int]] = defaultdict(frozenset)
    for root, island in joined.members.items():
        if not units.barrier[root]:
            found[root] = frozenset[int]().union(*(units.members[unit] for unit in island))
    return list(found.values())


def belonging(anatomy: Anatomy, buffer: int, leaves: Sequence[int]) -> list[int]:
    """Those of the leaves, all of which touch the buffer, that belong together for its sake.

    All of them where one fills it, else those to which reading it once instead of twice means something.
    """
    if not set(leaves).isdisjoint(anatomy.writers[buffer]):
        return list(leaves)
    return [leaf for leaf in leaves if anatomy.buffers[buffer].bytes >= LEAST_SHARE * anatomy.moved[leaf]]


def _delay(anatomy: Anatomy, units: _Units, joined: _Joined, at: dict[int, dict[int, list[int]]]) -> None:
    """Islands that nobody needs before a later level move there, if they share something with others there; last ones first.

    The first level at which a leaf could run need not be that at which it is of use: what is made of inputs could run first.
    """
    for unit in sorted(range(len(units.members)), key=lambda unit: (units.level[unit], units.depth[unit]), reverse=True):
        if units.barrier[unit] or joined.root(unit) != unit:
            continue
        island = set(joined.members[unit])
        level = units.level[unit]
        needed = [units.level[after] for one in island for after in units.after[one] if after not in island]
        if not needed or (latest := min(needed)) <= level:
            continue
        inside = frozenset[int]().union(*(units.members[one] for one in island))
        touched = {buffer for leaf in inside for buffer in anatomy.touched[leaf]}
        together = {unit}
        for buffer in touched:
            there = [leaf for leaf in at[buffer][latest] if units.level[units.of[leaf]] == latest]
            near = belonging(anatomy, buffer, [*(inside & anatomy.users[buffer]), *there])
            if not inside.isdisjoint(near):
                together.update(units.of[leaf] for leaf in near)
        if not together <= island:
            for one in island:
                units.level[one] = latest
            for buffer in touched:
                at[buffer][latest] += inside & anatomy.users[buffer]
            joined.join([unit, *together])


class _Units:
    """What is not taken apart: the anatomy's own groups, and leaves that are in none.

    members: of each unit, its leaves. of: the unit of each leaf. after: of each unit, those that wait for it. barrier: whether
    no kernel is generated for one of its leaves. level: how many barriers stand before it, on the way that has most. depth: the
    same, of units.
    """

    def __init__(self, anatomy: Anatomy):
        grouped = frozenset[int]().union(*anatomy.grouped)
        alone = [frozenset((leaf,)) for leaf in range(len(anatomy.leaves))]
        if not self._ordered(anatomy, [*anatomy.grouped, *(one for one in alone if not one <= grouped)]):
            # groups that wait for each other in a circle are no scheduler's
            self._ordered(anatomy, alone)

    def _ordered(self, anatomy: Anatomy, members: list[frozenset[int]]) -> bool:
        """Takes `members` for the units. Whether they can run one after the other."""
        self.members = members
        self.of = {leaf: unit for unit, leaves in enumerate(members) for leaf in leaves}
        self.barrier = [not all(anatomy.leaves[leaf].fusable for leaf in leaves) for leaves in members]
        self.after: list[set[int]] = [set() for _ in members]
        self.level, self.depth, waiting = [0] * len(members), [0] * len(members), [0] * len(members)
        for unit, leaves in enumerate(members):
            before = {self.of[other] for leaf in leaves for other in anatomy.leaves[leaf].after} - {unit}
            waiting[unit] = len(before)
            for other in before:
                self.after[other].add(unit)
        ready = [unit for unit, count in enumerate(waiting) if not count]
        for unit in ready:
            for following in self.after[unit]:
                self.level[following] = max(self.level[following], self.level[unit] + self.barrier[unit])
                self.depth[following] = max(self.depth[following], self.depth[unit] + 1)
                waiting[following] -= 1
                if not waiting[following]:
                    ready.append(following)
        return len(ready) == len(members)


class _Joined:
    """Disjoint sets of numbers. members: of each root, the numbers of its set."""

    def __init__(self, count: int):
        self._up = list(range(count))
        self.members = {number: [number] for number in range(count)}

    def root(self, one: int) -> int:
        while self._up[one] != one:
            self._up[one] = one = self._up[self._up[one]]
        return one

    def join(self, numbers: Iterable[int]) -> None:
        roots = {self.root(number): None for number in numbers}
        # the smaller sets move, so that all joins together are near linear
        big = max(roots, key=lambda root: len(self.members[root]), default=None)
        for small in roots:
            if big is not None and small != big:
                self._up[small] = big
                self.members[big] += self.members.pop(small)
