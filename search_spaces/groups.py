"""Which leaves may share a kernel: convex sets of leaves for which kernels are generated, connected by buffers.

Convex: no way leads out of the set and back into it, else the kernel would wait for itself. What else a compiler refuses only it
can say. Sets of leaves are integers here, one bit for each leaf that stands on a way between leaves of the region.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence

from tuner.anatomy import Anatomy
from tuner.search_spaces.islands import belonging

# Sets of more leaves than this are not changed leaf by leaf: they stand for themselves, with what they are cut into.
LARGEST_CHANGED = 64
# At how many places at most a large set is cut in two; middle ones first.
MOST_CUTS = 200


def convex_sets(
    anatomy: Anatomy,
    leaves: Iterable[int],
    own: Sequence[frozenset[int]],
    limit: int,
    links: Collection[frozenset[int]] | None = None,
) -> list[frozenset[int]]:
    """Sets of these leaves that may share a kernel, each once: single leaves, `own` sets and all leaves together first.

    Then the rest, fewest steps first from one of these: a step adds or removes a leaf, joins two own sets, or cuts an own set or
    the whole in two, in the order in which leaves wait for each other. All there are, as every such set can be taken apart leaf
    by leaf; or the `limit` that are nearest, but single leaves and own sets always. Time and memory go with the number of sets
    times that of leaves.

    links: pairs of leaves that connect a set, beside those of an own set that share a buffer; None: all that belong together.
    """
    ways = Ways(anatomy, leaves)
    if links is not None:
        ways.link_only([*links, *(pair for group in own for pair in _touching(anatomy, group).values())])
    singles = [ways.bit[leaf] for leaf in ways.own]
    given = [bits for bits in map(ways.bits, own) if ways.convex(bits)]
    whole = [ways.all] if ways.allowed(ways.all) else []
    found = dict.fromkeys([*singles, *sorted(given, key=_size_and_place), *whole])
    steps: list[tuple[int, int, int]] = []
    seen = set(found)

    def step(bits: Iterable[int], distance: int) -> None:
        for one in bits:
            if one not in seen:
                seen.add(one)
                heapq.heappush(steps, (distance, one.bit_count(), one))

    if len(found) < limit:
        step((part for bits in (*given, *whole) for part in ways.halves(bits)), 1)
        step(ways.unions(given), 1)
        for bits in found:
            step(ways.neighbours(bits), 1)
    while steps and len(found) < limit:
        distance, _, bits = heapq.heappop(steps)
        found[bits] = None
        step(ways.neighbours(bits), distance + 1)
    return [ways.leaves_of(bits) for bits in found]


def waits(anatomy: Anatomy, leaves: Iterable[int]) -> list[tuple[int, int]]:
    """Pairs (a, b) of these leaves where b waits for a, directly or for something between that is none of them."""
    own = set(leaves)
    between = _between(anatomy, sorted(own))
    found = []
    for leaf in sorted(own):
        todo, seen = [leaf], set[int]()
        while todo:
            for before in anatomy.leaves[todo.pop()].after:
                if before in seen:
                    continue
                seen.add(before)
                if before in own:
                    found.append((before, leaf))
                elif before in between:
                    todo.append(before)
    return found


class Ways:
    """Some leaves, and the ways between them: those that lead through each other, and through leaves that stand between."""

    def __init__(self, anatomy: Anatomy, leaves: Iterable[int]):
        def by_depth(leaf: int) -> tuple[int, int]:
            return anatomy.depths[leaf], leaf

        self.own = sorted(set(leaves), key=by_depth)
        between = _between(anatomy, self.own)
        self.leaves = [*self.own, *sorted(between, key=by_depth)]
        self.bit = {leaf: 1 << i for i, leaf in enumerate(self.leaves)}
        self.all = (1 << len(self.own)) - 1
        self.above, self.below, self.linked = ([0] * len(self.leaves) for _ in range(3))
        place = {leaf: i for i, leaf in enumerate(self.leaves)}
        order = sorted(self.leaves, key=by_depth)
        for leaf in order:
            for before in filter(place.__contains__, anatomy.leaves[leaf].after):
                self.above[place[leaf]] |= self.above[place[before]] | self.bit[before]
        for leaf in reversed(order):
            for after in filter(place.__contains__, anatomy.followers[leaf]):
                self.below[place[leaf]] |= self.below[place[after]] | self.bit[after]
        for together in _sharing(anatomy, self.own):
            bits = self.bits(together)
            for leaf in together:
                self.linked[place[leaf]] |= bits & ~self.bit[leaf]

    def link_only(self, links: Iterable[Collection[int]]) -> None:
        """From now on only the leaves within each of these are connected."""
        self.linked = [0] * len(self.leaves)
        for together in links:
            bits = self.bits(self.bit.keys() & together)
            for i in _ones(bits):
                self.linked[i] |= bits & ~(1 << i)

    def pairs(self) -> Iterator[frozenset[int]]:
        """Pairs of connected leaves with nothing in between, in a fixed order."""
        for i, near in enumerate(self.linked):
            for j in _ones(near >> i << i):
                if self.convex(1 << i | 1 << j):
                    yield frozenset((self.leaves[i], self.leaves[j]))

    def bits(self, leaves: Iterable[int]) -> int:
        return sum(self.bit[leaf] for leaf in set(leaves))

    def leaves_of(self, bits: int) -> frozenset[int]:
        return frozenset(self.leaves[i] for i in _ones(bits))

    def allowed(self, bits: int) -> bool:
        return self.convex(bits) and self._part(bits) == bits

    def convex(self, bits: int) -> bool:
        above, below = self._reach(bits)
        return not above & below & ~bits

    def neighbours(self, bits: int) -> Iterator[int]:
        """What an allowed set becomes when one leaf joins or leaves it, where that is allowed too."""
        if bits.bit_count() > LARGEST_CHANGED:
            return
        above, below = self._reach(bits)
        near = 0
        for i in _ones(bits):
            near |= self.linked[i]
        for i in _ones(near & ~bits):
            if not ((self.above[i] & below) | (self.below[i] & above)) & ~bits:
                yield bits | 1 << i
        for i in _ones(bits):
            left = bits & ~(1 << i)
            # what has leaves of the set on both sides stands between them
            if left and not (self.above[i] & bits and self.below[i] & bits) and self._part(left) == left:
                yield left

    def halves(self, bits: int) -> Iterator[int]:
        """The connected parts of what comes of cutting a set in two, in the order of depth; middle cuts first."""
        leaves = [1 << i for i in _ones(bits)]
        places = sorted(range(1, len(leaves)), key=lambda place: abs(2 * place - len(leaves)))[:MOST_CUTS]
        for place in places:
            upper = sum(leaves[:place])
            for half in (upper, bits & ~upper):
                while half:
                    part = self._part(half)
                    half &= ~part
                    if self.convex(part):
                        yield part

    def unions(self, sets: list[int]) -> Iterator[int]:
        """Two of the sets as one, where that is allowed."""
        holder = {i: bits for bits in sets for i in _ones(bits)}
        for one in sets:
            near = 0
            for i in _ones(one):
                near |= self.linked[i]
            for other in sorted({holder[i] for i in _ones(near & ~one) if i in holder}, key=_size_and_place):
                if self.allowed(one | other):
                    yield one | other

    def _reach(self, bits: int) -> tuple[int, int]:
        """All that stands before a leaf of the set, and all that stands after one."""
        above = below = 0
        for i in _ones(bits):
            above |= self.above[i]
            below |= self.below[i]
        return above, below

    def _part(self, bits: int) -> int:
        """The connected part of a set that holds its first leaf."""
        found, new = 0, bits & -bits
        while new:
            found |= new
            near = 0
            for i in _ones(new):
                near |= self.linked[i]
            new = near & bits & ~found
        return found


def _between(anatomy: Anatomy, leaves: list[int]) -> set[int]:
    """Other leaves that must run after one of these and before another."""
    inside = set(leaves)
    last = max((anatomy.depths[leaf] for leaf in leaves), default=0)
    below: set[int] = set()
    todo = [*leaves]
    while todo:
        following = {one for one in anatomy.followers[todo.pop()] if anatomy.depths[one] < last and one not in inside}
        todo += following - below
        below |= following
    found: set[int] = set()
    todo = [*leaves]
    while todo:
        before = {one for one in anatomy.leaves[todo.pop()].after if one in below}
        todo += before - found
        found |= before
    return found


def _touching(anatomy: Anatomy, leaves: Iterable[int]) -> dict[int, dict[int, None]]:
    """Of each buffer, those of the leaves that read or write it."""
    touching: dict[int, dict[int, None]] = {}
    for leaf in leaves:
        for buffer in anatomy.touched[leaf]:
            touching.setdefault(buffer, {})[leaf] = None
    return touching


def _sharing(anatomy: Anatomy, leaves: list[int]) -> Iterator[list[int]]:
    """For each buffer, those of the leaves that belong together for its sake, where there are two."""
    for buffer, users in _touching(anatomy, leaves).items():
        if len(together := belonging(anatomy, buffer, [*users])) > 1:
            yield together


def _ones(bits: int) -> Iterator[int]:
    """Places of the bits that are set, ascending."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _size_and_place(bits: int) -> tuple[int, int]:
    return bits.bit_count(), bits
