"""What a set of leaves is, whatever their names and whatever runs around them: one order of the leaves, and one key.

The order is found by refining colours: a leaf's colour says what it computes, from what, and for whom, within the set. Leaves
that are alike in all of that are told apart by a walk along the buffers, and only where they are alike in that too, by their
numbers: such leaves are interchangeable in all but contrived sets. The key is a digest of the whole set written in this order,
so equal keys mean equal sets always; that equal sets have equal keys could fail in a contrived one, at the cost of measuring it
twice. Near linear in leaves and what they read and write.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence, Set
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from tuner.canonical import digest

if TYPE_CHECKING:
    from tuner.anatomy import Anatomy

# Colours spread one step a round; what two sweeps along the edges have not told apart rarely is after more.
ROUNDS = 6


def structural_order(anatomy: Anatomy, leaves: Iterable[int]) -> list[int]:
    """The leaves in an order that depends on their structure alone, each after those of the set that it needs."""
    return _Set(anatomy, leaves).order()


def structural_key(anatomy: Anatomy, leaves: Iterable[int]) -> str:
    """Key of the leaves as one kernel: equal for structurally equal sets of any graph, in every process.

    It covers what each leaf computes; which buffers they share; metadata and size of each buffer; and which of those that the
    set fills must be in memory, because somebody outside needs them. It does not cover who fills the other buffers.
    """
    within = _Set(anatomy, leaves)
    return digest("group", within.written(within.order()))


def kept(anatomy: Anatomy, buffer: int, members: Set[int]) -> bool:
    """Whether a buffer that the members fill must be in memory: an input, or one that the graph yields or a leaf outside uses."""
    one = anatomy.buffers[buffer]
    return one.escapes or one.source != "leaf" or not anatomy.users[buffer] <= members


class _Set:
    """A set of leaves and what they touch, while it is put in order."""

    def __init__(self, anatomy: Anatomy, leaves: Iterable[int]):
        self.anatomy = anatomy
        self.members = frozenset(leaves)
        # of each leaf, how many of the set stand before it
        self.depth: dict[int, int] = {}
        for leaf in sorted(self.members, key=lambda leaf: anatomy.depths[leaf]):
            before = [self.depth[other] for other in anatomy.leaves[leaf].after if other in self.members]
            self.depth[leaf] = max(before, default=-1) + 1
        self.leaves = sorted(self.members, key=lambda leaf: (self.depth[leaf], leaf))

    def order(self) -> list[int]:
        colours = {leaf: self.anatomy.signatures[leaf] for leaf in self.leaves}
        if not self._told_apart(colours):
            touching: dict[int, list[tuple[int, int]]] = defaultdict(list)
            for leaf in self.leaves:
                for port, buffer in enumerate(self.anatomy.touched[leaf]):
                    touching[buffer].append((port, leaf))
            colours = self._refined(colours, touching)
            if not self._told_apart(colours):
                colours = self._walked(colours, touching)
        return sorted(self.leaves, key=lambda leaf: (self.depth[leaf], colours[leaf]))

    def written(self, order: Sequence[int]) -> dict[str, Any]:
        """The whole set as JSON, leaves numbered by `order`, buffers as they first come up."""
        place = {leaf: i for i, leaf in enumerate(order)}
        numbers: dict[int, int] = {}
        rows = []
        for leaf in order:
            one = self.anatomy.leaves[leaf]
            reads, writes = ([numbers.setdefault(buffer, len(numbers)) for buffer in part] for part in (one.reads, one.writes))
            rows.append([one.kind, one.content, reads, writes, sorted(place[other] for other in self._waits_for(leaf))])
        return {"leaves": rows, "buffers": [self._memory(buffer) for buffer in numbers]}

    def _memory(self, buffer: int) -> list[Any]:
        one = self.anatomy.buffers[buffer]
        if self.members.isdisjoint(self.anatomy.writers[buffer]):
            use = "read"
        elif one.source != "leaf":
            use = "rewritten"
        else:
            use = "kept" if kept(self.anatomy, buffer, self.members) else "inner"
        # the size too: where sizes are symbols, the text of two sizes is one
        return [one.meta, one.bytes, use]

    def _waits_for(self, leaf: int) -> Iterable[int]:
        """Leaves of the set whose memory this one overwrites, or that it must follow though it reads nothing of theirs."""
        one = self.anatomy.leaves[leaf]
        for other in self.members.intersection(one.after):
            read = not set(one.reads).isdisjoint(self.anatomy.leaves[other].writes)
            if not read and not set(self.anatomy.touched[leaf]).isdisjoint(self.anatomy.touched[other]):
                yield other

    def _told_apart(self, colours: dict[int, str]) -> bool:
        return len({(self.depth[leaf], colour) for leaf, colour in colours.items()}) == len(colours)

    def _refined(self, colours: dict[int, str], touching: dict[int, list[tuple[int, int]]]) -> dict[int, str]:
        """Colours that also say what surrounds a leaf within the set."""
        base = {buffer: str(self._memory(buffer)) for buffer in touching}
        for against in (False, True):
            colours = self._swept(colours, base, touching, against)
            if self._told_apart(colours):
                return colours
        count = len(set(colours.values()))
        for _ in range(ROUNDS):
            seen = {b: _hash(base[b], *sorted(f"{port} {colours[leaf]}" for port, leaf in at)) for b, at in touching.items()}
            colours = {leaf: _hash(colours[leaf], *map(seen.__getitem__, self.anatomy.touched[leaf])) for leaf in self.leaves}
            before, count = count, len(set(colours.values()))
            if count == before or self._told_apart(colours):
                break
        return colours

    def _swept(
        self, colours: dict[int, str], base: dict[int, str], touching: dict[int, list[tuple[int, int]]], against: bool
    ) -> dict[int, str]:
        """Colours that say all that a leaf is computed from, at any distance; or, against the edges, all that it is for."""
        found: dict[int, str] = {}
        depth = {leaf: -deep for leaf, deep in self.depth.items()} if against else self.depth
        for leaf in reversed(self.leaves) if against else self.leaves:
            around = [colours[leaf]]
            for buffer in self.anatomy.touched[leaf]:
                around.append(base[buffer])
                around += sorted(f"{port} {found[other]}" for port, other in touching[buffer] if depth[other] < depth[leaf])
            found[leaf] = _hash(*around)
        return found

    def _walked(self, colours: dict[int, str], touching: dict[int, list[tuple[int, int]]]) -> dict[int, str]:
        """Colours that say also when a walk along shared buffers, from the rarest leaf, comes by: no two are alike."""
        rank = {leaf: (self.depth[leaf], colours[leaf]) for leaf in self.leaves}
        cells = Counter(rank.values())
        starts = sorted(
            self.leaves, key=lambda leaf: (cells[self.depth[leaf], colours[leaf]], self.depth[leaf], colours[leaf], leaf)
        )
        visited: dict[int, int] = {}
        crossed: set[int] = set()
        for start in starts:
            queue = [start]
            for leaf in queue:
                if leaf in visited:
                    continue
                visited[leaf] = len(visited)
                for buffer in self.anatomy.touched[leaf]:
                    if buffer not in crossed:
                        crossed.add(buffer)
                        queue += [
                            other for _, _, _, other in sorted((self.depth[o], colours[o], p, o) for p, o in touching[buffer])
                        ]
        return {leaf: f"{colours[leaf]} {visited[leaf]:09}" for leaf in self.leaves}


def _hash(*parts: str) -> str:
    return blake2b("\n".join(parts).encode(), digest_size=12).hexdigest()
