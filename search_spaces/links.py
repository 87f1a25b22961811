"""Which pairs of leaves the compiler puts in one kernel at all: what it refuses to two, it mostly refuses to more.

Of 147 groups of three leaves and more, drawn from a dozen graphs on a CPU (Inductor of torch 2.13), 43 are connected by pairs
that come about by themselves, and 35 of these come about. Of the 104 others one does: a group that the compiler makes anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tuner.anatomy import Anatomy
from tuner.plan import Groups
from tuner.search_spaces.fusion import Region, regrouped
from tuner.search_spaces.groups import Ways, waits

Pair = frozenset[int]


def realised_links(
    anatomy: Anatomy, regions: Iterable[Region], ask: Callable[[Groups], Groups | None], most: int = 12
) -> frozenset[Pair]:
    """Pairs of leaves, in the first occurrence of each region, that share a kernel if they are asked to; for `convex_groups`.

    ask: the groups that come of a grouping; None where that cannot be said. Many pairs are asked for at once, disjoint ones of
    all regions: about as often as the leaf with most neighbours has some, and at most `most` times. Pairs that are not asked
    for, or about which nothing can be said, are taken for realised.
    """
    first = [region.occurrences[0] for region in regions]
    left = [pair for leaves in first for pair in Ways(anatomy, leaves).pairs()]
    order = [pair for leaves in first for pair in waits(anatomy, leaves)]
    all_leaves = frozenset[int]().union(*left)
    found: set[Pair] = set()
    for _ in range(most):
        if not left:
            break
        asked = _disjoint(left, order)
        left = [pair for pair in left if pair not in asked]
        alone = sorted(all_leaves.difference(*asked))
        groups = ask(regrouped(anatomy, [*asked, *(frozenset((leaf,)) for leaf in alone)]))
        made = None if groups is None else {frozenset(anatomy.number[leaf] for leaf in group) for group in groups}
        found.update(pair for pair in asked if made is None or pair in made)
    return frozenset(found).union(left)


def _disjoint(pairs: Iterable[Pair], order: Sequence[tuple[int, int]]) -> list[Pair]:
    """The first of the pairs, and all after it that have no leaf in common with those before, nor wait for them in a circle."""
    chosen: list[Pair] = []
    taken: set[int] = set()
    for pair in pairs:
        if taken.isdisjoint(pair):
            chosen.append(pair)
            taken |= pair
    if _can_run(chosen, order):
        return chosen
    kept: list[Pair] = []
    for pair in chosen:
        if _can_run([*kept, pair], order):
            kept.append(pair)
    return kept


def _can_run(groups: Sequence[Pair], order: Iterable[tuple[int, int]]) -> bool:
    """Whether the groups, and all other leaves by themselves, can run one after the other."""
    of = {leaf: min(group) for group in groups for leaf in group}
    after: dict[int, set[int]] = {}
    waiting: dict[int, int] = {}
    for a, b in order:
        first, second = of.get(a, a), of.get(b, b)
        if first != second and second not in after.setdefault(first, set()):
            after[first].add(second)
            waiting[second] = waiting.get(second, 0) + 1
    ready = [one for one in after if not waiting.get(one)]
    for one in ready:
        for following in after.get(one, ()):
            waiting[following] -= 1
            if not waiting[following]:
                ready.append(following)
    return not any(waiting.values())
