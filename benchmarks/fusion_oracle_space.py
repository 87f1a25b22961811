"""Every grouping of a small graph: what may be asked for, and what the compiler makes of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from tuner.anatomy import Anatomy
from tuner.plan import Groups
from tuner.search_spaces.fusion import convex_groups, lifted, regions, regrouped
from tuner.search_spaces.groups import waits

Group = frozenset[int]


def partitions(leaves: Sequence[int], groups: Sequence[Group], after: Sequence[tuple[int, int]]) -> Iterator[list[Group]]:
    """Every choice of `groups` that covers each leaf once and can be run one group after the other. after: (a, b): a before b."""
    holding = {leaf: [group for group in groups if leaf in group] for leaf in leaves}

    def cover(left: Group, chosen: list[Group]) -> Iterator[list[Group]]:
        if not left:
            if not has_circle(chosen, after):
                yield [*chosen]
            return
        for group in holding[min(left)]:
            if group <= left:
                yield from cover(left - group, [*chosen, group])

    yield from cover(frozenset(leaves), [])


def has_circle(groups: Sequence[Group], after: Sequence[tuple[int, int]]) -> bool:
    """Whether some of the groups have to wait for each other."""
    of = {leaf: i for i, group in enumerate(groups) for leaf in group}
    before: dict[int, set[int]] = {i: set() for i in range(len(groups))}
    for a, b in after:
        if of[a] != of[b]:
            before[of[b]].add(of[a])
    while ready := [i for i, waiting in before.items() if not waiting & before.keys()]:
        for i in ready:
            del before[i]
    return bool(before)


def requests(anatomy: Anatomy, most: int, seed: int = 0) -> tuple[list[Groups], bool]:
    """Groupings to ask the compiler for: all there are, or `most` of them drawn at random; and whether it is all."""
    found = [anatomy.groups]
    chosen: list[list[Group]] = [[]]
    for region in regions(anatomy):
        leaves = region.occurrences[0]
        own = [
            lifted(anatomy, region, one)
            for one in partitions(leaves, convex_groups(anatomy, region, 100_000), waits(anatomy, leaves))
        ]
        chosen = [[*before, *one] for before in chosen for one in own]
    found += [regrouped(anatomy, groups) for groups in chosen]
    found = list(dict.fromkeys(found))
    complete = len(found) <= most
    return (found if complete else [found[0], *random.Random(seed).sample(found[1:], most - 1)]), complete


def realised(wanted: Sequence[Groups], make: Callable[[Groups], Groups | None]) -> list[Groups]:
    """What the compiler makes of these, each once. make: None where it makes nothing of it."""
    return list(dict.fromkeys(made for groups in wanted if (made := make(groups)) is not None))
