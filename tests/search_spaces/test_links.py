"""Pairs that the compiler realises, and the groups that are left when it refuses others."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from drawn import Drawing, random_anatomy

from tuner.anatomy import Anatomy
from tuner.plan import Groups, canonical_groups
from tuner.search_spaces.fusion import convex_groups, groups_within, regions
from tuner.search_spaces.links import realised_links


def compiler(anatomy: Anatomy, refuses: Callable[[int, int], bool]) -> tuple[Callable[[Groups], Groups], list[Groups]]:
    """What comes of a grouping where no two leaves in a row share a kernel that are refused; and all that was asked for."""
    asked: list[Groups] = []

    def ask(groups: Groups) -> Groups:
        asked.append(groups)
        made = []
        for group in groups:
            numbers = sorted(anatomy.number[leaf] for leaf in group)
            refused = any(refuses(a, b) for a, b in itertools.pairwise(numbers))
            made += [(leaf,) for leaf in group] if refused else [group]
        return canonical_groups(made)

    return ask, asked


def chain(count: int) -> Drawing:
    graph = Drawing()
    graph.given("x")
    for i in range(count):
        graph.leaf(f"leaf{i}", [f"leaf{i - 1}" if i else "x"])
    return graph


def test_a_chain_takes_two_questions_however_long_it_is():
    anatomy = chain(30).anatomy()
    ask, asked = compiler(anatomy, lambda a, b: b == 7)
    found = realised_links(anatomy, regions(anatomy), ask)
    assert found == {frozenset((i, i + 1)) for i in range(29)} - {frozenset((6, 7))}
    assert len(asked) == 2


def test_all_regions_are_asked_about_at_once():
    graph = Drawing()
    graph.given("x")
    now = "x"
    for i in range(6):
        graph.leaf(f"mm{i}", [now], library=True)
        graph.leaf(f"a{i}", [f"mm{i}"], content=f"a{i}")
        graph.leaf(f"b{i}", [f"a{i}"])
        now = f"b{i}"
    anatomy = graph.anatomy()
    ask, asked = compiler(anatomy, lambda a, b: a == 4)
    assert realised_links(anatomy, regions(anatomy), ask) == {frozenset((3 * i + 1, 3 * i + 2)) for i in (0, 2, 3, 4, 5)}
    assert len(asked) == 1


def test_groups_that_a_refused_pair_would_have_to_connect_are_left_out():
    anatomy = chain(8).anatomy()
    region = regions(anatomy)[0]
    ask, _ = compiler(anatomy, lambda a, b: b == 5)
    links = realised_links(anatomy, [region], ask)
    found = convex_groups(anatomy, region, 100, links)
    assert set(found) == {group for group in convex_groups(anatomy, region, 100) if not {4, 5} <= group}


def test_the_compilers_own_groups_stay_whatever_it_says_of_pairs():
    anatomy = chain(8).anatomy("leaf1 leaf2 leaf3")
    region = regions(anatomy)[0]
    ask, _ = compiler(anatomy, lambda a, b: True)
    found = convex_groups(anatomy, region, 100, realised_links(anatomy, [region], ask))
    assert set(groups_within(anatomy, range(8))) <= set(found)
    assert set(found) == {*map(frozenset, ([i] for i in range(8))), frozenset((1, 2, 3)), frozenset((1, 2)), frozenset((2, 3))}


def test_pairs_that_are_not_asked_about_are_believed():
    anatomy = chain(8).anatomy()
    ask, asked = compiler(anatomy, lambda a, b: True)
    found = realised_links(anatomy, regions(anatomy), ask, most=1)
    assert found == {frozenset((i, i + 1)) for i in (1, 3, 5)}
    assert len(asked) == 1


def test_where_nothing_can_be_said_all_pairs_are_believed():
    anatomy = chain(4).anatomy()
    assert realised_links(anatomy, regions(anatomy), lambda groups: None) == {frozenset((i, i + 1)) for i in range(3)}


@pytest.mark.parametrize("seed", range(20))
def test_pairs_that_are_asked_for_together_could_all_be_realised(seed):
    anatomy = random_anatomy(seed, count=14)
    ask, asked = compiler(anatomy, lambda a, b: False)
    realised_links(anatomy, regions(anatomy), ask, most=50)
    for groups in asked:
        left = {frozenset(anatomy.number[leaf] for leaf in group) for group in groups}
        while left:
            waiting = frozenset[int]().union(*left)
            ready = {group for group in left if not any({*anatomy.leaves[leaf].after} & (waiting - group) for leaf in group)}
            assert ready, "the groups wait for each other in a circle"
            left -= ready
