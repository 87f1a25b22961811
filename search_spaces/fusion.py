"""Groupings of scheduler leaves: which leaves share a kernel. A grouping is a full partition of the leaves of one graph.

What may share a kernel is searched region by region: a region is an island of leaves, with all other islands that are built
alike. What is found for one of them holds for all, and what is chosen within one never stands in the way of another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tuner.anatomy import Anatomy
from tuner.plan import Groups, canonical_groups
from tuner.search_spaces.groups import convex_sets
from tuner.search_spaces.islands import islands
from tuner.structure import structural_order


@dataclass(frozen=True)
class Region:
    """Leaves among which groups are sought. key: equal for equal regions of any graph, whatever their neighbours.

    occurrences: where it is found in this graph, by leaf numbers; the leaves of all occurrences correspond place by place.
    """

    key: str
    occurrences: tuple[tuple[int, ...], ...]


def no_fusion(groups: Groups) -> Groups:
    """Every leaf alone."""
    return canonical_groups((leaf,) for group in groups for leaf in group)


def regions(anatomy: Anatomy) -> tuple[Region, ...]:
    """The regions of a graph, in the order of their first leaves. Near linear in leaves and in what they read and write.

    Each of the anatomy's own groups lies within one; those that hold a leaf for which no kernel is generated are in none.
    """
    found: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for island in islands(anatomy):
        found[anatomy.group_key(island)].append(tuple(structural_order(anatomy, island)))
    made = [Region(key, tuple(sorted(occurrences, key=min))) for key, occurrences in found.items()]
    return tuple(sorted(made, key=lambda region: min(region.occurrences[0])))


def convex_groups(
    anatomy: Anatomy, region: Region, limit: int = 4_000, links: Collection[frozenset[int]] | None = None
) -> list[frozenset[int]]:
    """Groups of which the first occurrence of a region may be made, by leaf numbers: `convex_sets`, the anatomy's own first.

    links: pairs of leaves that connect a group; see `realised_links`.
    """
    leaves = region.occurrences[0]
    return convex_sets(anatomy, leaves, groups_within(anatomy, leaves), limit, links)


def lifted(anatomy: Anatomy, region: Region, groups: Iterable[frozenset[int]]) -> list[frozenset[int]]:
    """The same groups in every occurrence of the region; `groups` are those of the first."""
    first = region.occurrences[0]
    place = {leaf: i for i, leaf in enumerate(first)}
    wanted = [[place[leaf] for leaf in group] for group in groups]
    return [frozenset(occurrence[i] for i in group) for occurrence in region.occurrences for group in wanted]


def regrouped(anatomy: Anatomy, groups: Iterable[frozenset[int]]) -> Groups:
    """The anatomy's partition with these groups in it: leaves of none of them stay together as they are."""
    chosen = [*groups]
    taken = frozenset[int]().union(*chosen)
    rest = [left for group in anatomy.grouped if (left := group - taken)]
    return canonical_groups([anatomy.leaves[leaf].id for leaf in group] for group in (*chosen, *rest))


def groups_within(anatomy: Anatomy, leaves: Iterable[int]) -> list[frozenset[int]]:
    """The anatomy's own groups among these leaves, in the order of their first."""
    members = frozenset(leaves)
    return sorted((part for group in anatomy.grouped if (part := group & members)), key=min)
