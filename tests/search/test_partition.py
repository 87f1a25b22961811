"""The exact partition, against all partitions tried one by one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence

import pytest

from tuner.search.partition import NothingCovers, best_partition

Group = frozenset[int]


def partitions(leaves: Sequence[int], groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Every choice of groups that has each leaf once."""
    if not leaves:
        yield []
        return
    for group in groups:
        if leaves[0] in group and group <= set(leaves):
            for rest in partitions([leaf for leaf in leaves if leaf not in group], groups):
                yield [group, *rest]


def can_run(groups: Sequence[Group], after: set[tuple[int, int]]) -> bool:
    """Whether the groups can run one after the other, found by running whatever can."""
    left = list(groups)
    while left:
        waiting = {leaf for group in left for leaf in group}
        ready = next((g for g in left if not any(b in g and a not in g and a in waiting for a, b in after)), None)
        if ready is None:
            return False
        left.remove(ready)
    return True


def random_dag(draw: random.Random, count: int) -> set[tuple[int, int]]:
    return {(a, b) for a, b in itertools.combinations(range(count), 2) if draw.random() < 0.35}


def is_convex(group: Group, after: set[tuple[int, int]], count: int) -> bool:
    below = {a: {b for x, b in after if x == a} for a in range(count)}
    reached = {leaf: set(below[leaf]) for leaf in below}
    for leaf in reversed(range(count)):
        for other in below[leaf]:
            reached[leaf] |= reached[other]
    outside = set(range(count)) - group
    return not any(out in reached[leaf] and reached[out] & group for leaf in group for out in outside)


def cost_of(partition: Sequence[Group], costs: Mapping[Group, float]) -> float:
    return sum(costs[group] for group in partition)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("convex", [True, False])
def test_none_is_cheaper(seed, convex):
    draw = random.Random(seed)
    count = draw.randint(3, 7)
    after = random_dag(draw, count)
    every = [frozenset(group) for size in range(1, 5) for group in itertools.combinations(range(count), size)]
    groups = [group for group in every if not convex or is_convex(group, after, count)]
    # cheap when they are large: most of the cheapest choices are in a circle
    costs = {group: draw.uniform(1, 3) for group in groups if len(group) == 1 or draw.random() < 0.5}
    found = best_partition(range(count), costs, after)
    assert sorted(leaf for group in found for leaf in group) == list(range(count))
    assert can_run(found, after)
    cheapest = min(cost_of(one, costs) for one in partitions(range(count), list(costs)) if can_run(one, after))
    assert cost_of(found, costs) == pytest.approx(cheapest, rel=1e-5)


def test_convex_groups_that_wait_for_each_other_are_not_chosen_together():
    """0 before 2, 3 before 1: {0 1} and {2 3} are convex each, yet neither can run first."""
    costs = {frozenset(group): cost for group, cost in [((0, 1), 1), ((2, 3), 1), ((0,), 1), ((1,), 1), ((2,), 1), ((3,), 5)]}
    assert best_partition(range(4), costs, []) == [{0, 1}, {2, 3}]
    assert best_partition(range(4), costs, [(0, 2), (3, 1)]) == [{0}, {1}, {2, 3}]


def test_a_circle_of_three_groups_is_forbidden_too():
    costs = {frozenset(pair): 1.0 for pair in [(0, 1), (2, 3), (4, 5)]} | {frozenset((leaf,)): 1.0 for leaf in range(6)}
    after = [(0, 3), (2, 5), (4, 1)]
    found = best_partition(range(6), costs, after)
    assert len(found) == 4
    assert can_run(found, set(after))


def test_shares_of_groups_are_no_partition():
    """Half of each pair would cost 1.5."""
    costs = {frozenset(pair): 1.0 for pair in itertools.combinations(range(3), 2)}
    costs |= {frozenset((leaf,)): cost for leaf, cost in enumerate((0.7, 0.8, 0.9))}
    assert best_partition(range(3), costs, []) == [{0}, {1, 2}]


def test_of_partitions_that_cost_the_same_the_one_with_fewest_groups_is_chosen():
    costs = {frozenset((0,)): 1.0, frozenset((1,)): 1.0, frozenset((0, 1)): 2.0}
    assert best_partition([0, 1], costs, [(0, 1)]) == [{0, 1}]


def test_a_small_difference_in_cost_outweighs_the_number_of_groups():
    costs = {frozenset((0,)): 1.0, frozenset((1,)): 1.0, frozenset((0, 1)): 2.0001}
    assert best_partition([0, 1], costs, [(0, 1)]) == [{0}, {1}]


def test_costs_may_be_tiny_and_negative():
    """As those of what is hoped for: a cost less what is unsure of it."""
    costs = {frozenset((0,)): 1e-6, frozenset((1,)): 1e-6, frozenset((0, 1)): -3e-6}
    assert best_partition([0, 1], costs, []) == [{0, 1}]


def test_the_order_of_the_arguments_does_not_matter():
    draw = random.Random(5)
    after = random_dag(draw, 8)
    groups = [frozenset(group) for size in (1, 2, 3) for group in itertools.combinations(range(8), size)]
    costs = {group: float(draw.randint(1, 2)) for group in groups}
    found = best_partition(range(8), costs, sorted(after))
    for _ in range(3):
        draw.shuffle(groups)
        again = best_partition(
            draw.sample(range(8), 8), {group: costs[group] for group in groups}, draw.sample(sorted(after), len(after))
        )
        assert again == found


def test_nothing_is_covered_by_nothing():
    assert best_partition([], {}, []) == []


@pytest.mark.parametrize(
    ("costs", "error", "message"),
    [
        ({(0,): 1.0}, NothingCovers, "no group holds leaf 1"),
        ({(0, 1): 1.0, (1, 2): 1.0}, NothingCovers, "covers the leaves"),
        ({(0, 1, 2): float("nan")}, ValueError, "finite"),
        ({(0, 2): 1.0, (1,): 1.0}, NothingCovers, "covers the leaves"),
    ],
)
def test_where_nothing_covers_the_leaves_it_says_so(costs, error, message):
    with pytest.raises(error, match=message):
        best_partition(range(3), {frozenset(group): cost for group, cost in costs.items()}, [(0, 1), (1, 2)])


def test_when_time_is_up_what_is_known_is_made_to_run():
    """No time at all: groups in a circle are broken up, the one whose leaves cost least alone."""
    costs = {frozenset(group): cost for group, cost in [((0, 1), 1), ((2, 3), 1), ((0,), 1), ((1,), 1), ((2,), 1), ((3,), 5)]}
    found = best_partition(range(4), costs, [(0, 2), (3, 1)], seconds=0.0)
    assert sorted(leaf for group in found for leaf in group) == [0, 1, 2, 3]
    assert can_run(found, {(0, 2), (3, 1)})


def test_large_regions_are_solved():
    """A chain of 300 leaves with all runs of up to six: shortest path says what is best."""
    draw = random.Random(0)
    costs = {
        frozenset(range(a, b)): draw.uniform(0.5, 1.5) * (b - a) ** 0.7 for a in range(300) for b in range(a + 1, min(a + 7, 301))
    }
    best = [0.0]
    for b in range(1, 301):
        best.append(min(best[a] + costs[frozenset(range(a, b))] for a in range(max(0, b - 6), b)))
    found = best_partition(range(300), costs, [(a, a + 1) for a in range(299)])
    assert cost_of(found, costs) == pytest.approx(best[-1], rel=1e-5)


def test_where_shares_of_groups_cannot_be_computed_the_program_is_solved_all_the_same(monkeypatch):
    class Failed:
        x, status = None, 4

    monkeypatch.setattr("tuner.search.partition.linprog", lambda *given, **named: Failed())
    costs = {frozenset((0,)): 1.0, frozenset((1,)): 1.0, frozenset((0, 1)): 1.5}
    assert best_partition([0, 1], costs, []) == [{0, 1}]
