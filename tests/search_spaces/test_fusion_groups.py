"""Groups that a region may be made of: all of them where they are few, else those near the compiler's own."""

from __future__ import annotations

import itertools
import random

import pytest
from drawn import Drawing, random_anatomy

from tuner.anatomy import Anatomy
from tuner.search_spaces.fusion import Region, convex_groups, groups_within, lifted, regions
from tuner.search_spaces.groups import waits


def whole(anatomy: Anatomy) -> Region:
    """The largest region of a graph."""
    return max(regions(anatomy), key=lambda region: len(region.occurrences[0]))


def chain(count: int) -> Drawing:
    graph = Drawing()
    graph.given("x")
    for i in range(count):
        graph.leaf(f"leaf{i}", [f"leaf{i - 1}" if i else "x"])
    return graph


def brute(anatomy: Anatomy, region: Region) -> set[frozenset[int]]:
    """Every connected convex set, by trying all."""
    leaves = sorted(region.occurrences[0])
    below = {leaf: reached(anatomy, leaf) for leaf in range(len(anatomy.leaves))}
    found = set()
    for size in range(1, len(leaves) + 1):
        for group in map(frozenset, itertools.combinations(leaves, size)):
            outside = set(range(len(anatomy.leaves))) - group
            convex = not any(out in below[leaf] and below[out] & group for leaf in group for out in outside)
            if convex and connected(anatomy, group):
                found.add(group)
    return found


def reached(anatomy: Anatomy, leaf: int) -> set[int]:
    todo, seen = [leaf], set()
    while todo:
        for following in anatomy.followers[todo.pop()]:
            if following not in seen:
                seen.add(following)
                todo.append(following)
    return seen


def connected(anatomy: Anatomy, group: frozenset[int]) -> bool:
    touched = {leaf: {*anatomy.leaves[leaf].reads, *anatomy.leaves[leaf].writes} for leaf in group}
    part = {min(group)}
    while more := {leaf for leaf in group - part if any(touched[leaf] & touched[other] for other in part)}:
        part |= more
    return part == group


@pytest.mark.parametrize("seed", range(30))
def test_every_connected_convex_group_comes_once(seed):
    anatomy = random_anatomy(seed, count=10)
    for region in regions(anatomy):
        found = convex_groups(anatomy, region, 4_000)
        assert len(found) == len(set(found))
        assert set(found) == brute(anatomy, region)


def test_of_a_chain_every_run_is_a_group():
    anatomy = chain(6).anatomy()
    assert len(convex_groups(anatomy, whole(anatomy), 4_000)) == 6 * 7 // 2


def test_single_leaves_come_first_then_the_compilers_own_groups_and_all_together():
    anatomy = chain(8).anatomy("leaf0 leaf1 leaf2", "leaf3 leaf4")
    found = convex_groups(anatomy, whole(anatomy), 4_000)
    assert found[:8] == [{leaf} for leaf in range(8)]
    assert found[8:11] == [{3, 4}, {0, 1, 2}, {*range(8)}]


def test_a_limit_leaves_single_leaves_and_the_compilers_own_groups():
    anatomy = chain(30).anatomy(" ".join(f"leaf{i}" for i in range(14)), "leaf20 leaf21")
    for limit in (0, 10, 33):
        found = convex_groups(anatomy, whole(anatomy), limit)
        assert set(groups_within(anatomy, range(30))) <= set(found)
        assert {frozenset({leaf}) for leaf in range(30)} <= set(found)
        assert len(found) == 33, "30 leaves, two groups, and all of them"


def test_where_there_are_more_than_the_limit_those_near_the_compilers_own_are_taken():
    first, second = range(12), range(12, 24)
    anatomy = chain(24).anatomy(*(" ".join(f"leaf{i}" for i in part) for part in (first, second)))
    found = set(convex_groups(anatomy, whole(anatomy), 110))
    assert len(found) == 110
    assert {frozenset(first[:cut]) for cut in range(1, 12)} < found, "its halves"
    assert frozenset(first) | {12} in found, "one leaf more"
    assert frozenset(range(5, 20)) not in found


def test_leaves_that_only_read_the_same_may_share_a_kernel():
    graph = Drawing()
    graph.given("x")
    graph.leaf("rows", ["x"], bytes=64, escapes=True)
    graph.leaf("columns", ["x"], bytes=64, escapes=True)
    anatomy = graph.anatomy()
    assert frozenset({0, 1}) in convex_groups(anatomy, whole(anatomy), 4_000)


def test_what_waits_for_a_library_call_in_between_is_no_group():
    graph = Drawing()
    graph.given("x")
    graph.leaf("norm", ["x"])
    graph.leaf("mm", ["norm"], library=True)
    graph.leaf("add", ["mm", "norm"])
    anatomy = graph.anatomy()
    assert [group for region in regions(anatomy) for group in convex_groups(anatomy, region, 100)] == [{0}, {2}]


def test_a_leaf_that_only_has_to_wait_stands_between_too():
    """`third` reads nothing of `second`, and `second` shares no buffer with the others: only the order puts it between."""
    graph = Drawing()
    graph.given("x", "y")
    graph.leaf("first", ["x"])
    graph.leaf("second", ["y"], after=["first"])
    graph.leaf("third", ["first"], after=["second"])
    anatomy = graph.anatomy()
    assert set(convex_groups(anatomy, whole(anatomy), 100)) == {frozenset({0}), frozenset({2})}


def test_the_same_groups_come_in_the_same_order():
    anatomy = random_anatomy(4, count=14, barriers=0)
    assert convex_groups(anatomy, whole(anatomy), 100) == convex_groups(anatomy, whole(anatomy), 100)
    assert len(convex_groups(anatomy, whole(anatomy), 100)) == 100


@pytest.mark.parametrize("seed", range(10))
def test_what_is_proposed_in_a_large_region_is_connected_and_convex(seed):
    anatomy = random_anatomy(seed, count=14)
    below = {leaf: reached(anatomy, leaf) for leaf in range(14)}
    for region in regions(anatomy):
        for group in convex_groups(anatomy, region, 200):
            outside = set(range(14)) - group
            assert not any(out in below[leaf] and below[out] & group for leaf in group for out in outside)
            assert connected(anatomy, group)
            assert all(anatomy.leaves[leaf].fusable for leaf in group) or len(group) == 1


@pytest.mark.parametrize("seed", range(10))
def test_the_order_within_leaves_holds_for_what_runs_between_them_too(seed):
    anatomy = random_anatomy(seed, count=12)
    leaves = [leaf for leaf in range(12) if leaf % 3]
    pairs = waits(anatomy, leaves)
    below = {leaf: {b for a, b in pairs if a == leaf} for leaf in leaves}
    for leaf in reversed(leaves):
        for other in list(below[leaf]):
            below[leaf] |= below[other]
    assert below == {leaf: reached(anatomy, leaf) & {*leaves} for leaf in leaves}


@pytest.mark.parametrize("seed", range(20))
def test_a_group_has_one_key_in_all_occurrences_of_its_region(seed):
    """So that what is known of one is known of all: three times the same random leaves, each after a library call."""
    graph = Drawing()
    graph.given("x")
    for copy in range(3):
        draw = random.Random(seed)
        graph.leaf(f"mm{copy}", [f"last{copy - 1}" if copy else "x"], library=True)
        made = [f"mm{copy}"]
        for i in range(7):
            graph.leaf(f"{copy}leaf{i}", draw.sample(made, min(len(made), draw.choice((1, 2)))), content=draw.choice("ab"))
            made.append(f"{copy}leaf{i}")
        graph.leaf(f"last{copy}", made[-2:], escapes=True)
    anatomy = graph.anatomy()
    found = regions(anatomy)
    assert {len(region.occurrences) for region in found} == {3}
    for region in found:
        for group in convex_groups(anatomy, region, 300):
            assert {anatomy.group_key(one) for one in lifted(anatomy, region, [group])} == {anatomy.group_key(group)}
