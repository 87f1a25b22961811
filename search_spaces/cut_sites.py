"""Where a graph may be cut: values that lie within leaves, those together that lie at equal places."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

from tuner.anatomy import Anatomy, Leaf


def cut_sites(anatomy: Anatomy) -> list[tuple[str, ...]]:
    """Ids of cuts, those of equal places in one entry, in the order of the graph: each entry is to be made or left as a whole.

    A place is which operation, of what it is made and for what, within a leaf; it is equal in leaves that compute the same, be
    they in equal layers, in different ones or in another graph. Of a value that several leaves compute, all of its places count.
    So a deep model has no more entries than a shallow one. Linear in leaves times their operations.
    """
    places: dict[int, set[str]] = defaultdict(set)
    for leaf in anatomy.leaves:
        for number, place in _places(anatomy, leaf):
            places[number].add(f"{leaf.content} {place}")
    sites: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for number, op in enumerate(anatomy.ops):
        if op.cut:
            around = places[number] or {_told([op.target, *(anatomy.ops[before].target for before in op.inputs)])}
            sites[tuple(sorted(around))].append(op.cut)
    return [tuple(cuts) for cuts in sites.values()]


def _places(anatomy: Anatomy, leaf: Leaf) -> Iterator[tuple[int, str]]:
    """Of each operation in a leaf, what tells it from the others: what it is made of, and what is made of it, within the leaf."""
    made: dict[int, str] = {}
    users: dict[int, list[int]] = {op: [] for op in leaf.ops}
    for op in leaf.ops:
        inside = [before for before in anatomy.ops[op].inputs if before in made]
        made[op] = _told([anatomy.ops[op].target, len(anatomy.ops[op].inputs), sorted(made[before] for before in inside)])
        for before in inside:
            users[before].append(op)
    used: dict[int, str] = {}
    for op in reversed(leaf.ops):
        used[op] = _told([anatomy.ops[op].target, sorted((used[user], made[user]) for user in users[op])])
    alike: Counter[tuple[str, str]] = Counter()
    for op in leaf.ops:
        seen = made[op], used[op]
        yield op, f"{seen[0]} {seen[1]} {alike[seen]}"
        alike[seen] += 1


def _told(parts: list[Any]) -> str:
    return blake2b(repr(parts).encode(), digest_size=12).hexdigest()
