"""What a group costs, guessed from what its leaves cost alone and how they got on in other groups."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from tuner.search.costs import GroupCosts
from tuner.search.part_costs import PartCosts, Whole


def guess(costs: PartCosts, whole: Whole) -> tuple[float, float]:
    return costs.guesses([whole])[0]


# milliseconds of leaves alone, and the bytes that each moves
ALONE = {"a": (1.0, 1e6), "b": (1.0, 1e6), "c": (2.0, 2e6), "d": (0.1, 1e5)}


def test_fused_leaves_cost_their_sum_less_what_they_need_not_move():
    costs = PartCosts(ALONE, [])
    apart, _ = guess(costs, Whole({"a": 1, "b": 1}, saved_bytes=0))
    fused, _ = guess(costs, Whole({"a": 1, "b": 1}, saved_bytes=5e5))
    assert apart == pytest.approx(2.0)
    assert fused == pytest.approx(1.75), "half of the microsecond that a byte takes"


def test_the_costliest_leaf_is_not_fused_away():
    mean, _ = guess(PartCosts(ALONE, []), Whole({"a": 1, "c": 1}, saved_bytes=1e9))
    assert mean == pytest.approx(1.4)


def test_leaves_that_got_on_badly_do_so_in_larger_groups_and_others_are_left_alone():
    bad = [(Whole({"a": 1, "b": 1}, 0.0), 3.5)]
    before, after = PartCosts(ALONE, []), PartCosts(ALONE, bad)
    with_both, with_one = Whole({"a": 1, "b": 1, "c": 1}, 0.0), Whole({"a": 1, "c": 1}, 0.0)
    assert guess(after, with_both)[0] > guess(before, with_both)[0] + 1.0
    assert guess(after, with_both)[1] < guess(before, with_both)[1]
    assert guess(after, with_one) == pytest.approx(guess(before, with_one))


def test_the_rate_at_which_saved_bytes_are_worth_something_is_learnt():
    told = [(Whole({"a": 1, "b": 1}, 1e6), 2.0), (Whole({"c": 1, "d": 1}, 1e6), 2.1)]
    asked = Whole({"b": 1, "c": 1}, 1e6)
    assert guess(PartCosts(ALONE, told), asked)[0] > guess(PartCosts(ALONE, []), asked)[0] + 0.1


def test_a_leaf_that_occurs_several_times_meets_itself():
    told = [(Whole({"a": 2}, 0.0), 3.0)]
    three = Whole({"a": 3}, 0.0)
    # three pairs of it, each one worse
    assert guess(PartCosts(ALONE, told), three)[0] == pytest.approx(6.0, rel=0.2)


def test_a_guess_is_that_of_the_dense_gaussian():
    random = np.random.default_rng(0)
    told = [(Whole(dict.fromkeys(names, 1), 1e5), 2 + random.normal()) for names in ("ab", "bc", "abd")]
    costs = PartCosts(ALONE, told)
    asked = Whole(dict.fromkeys("abc", 1), 2e5)
    pairs = list(combinations("abcd", 2))

    def terms(whole: Whole) -> list[float]:
        near = [0.12 * (ALONE[x][0] + ALONE[y][0]) * (x in whole.parts and y in whole.parts) for x, y in pairs]
        return [0.25e-6 * whole.saved_bytes, *near]

    def expected(whole: Whole) -> float:
        return sum(ALONE[name][0] for name in whole.parts) - 0.5e-6 * whole.saved_bytes

    rows = np.array([terms(whole) for whole, _ in told])
    noise = [(0.06 * sum(ALONE[name][0] for name in whole.parts)) ** 2 + (0.02 * ms) ** 2 for whole, ms in told]
    inverse = np.linalg.inv(rows @ rows.T + np.diag(noise))
    row = np.array(terms(asked))
    mean = expected(asked) + row @ rows.T @ inverse @ [ms - expected(whole) for whole, ms in told]
    variance = row @ row - row @ rows.T @ inverse @ rows @ row + (0.06 * 4.0) ** 2
    assert guess(costs, asked) == pytest.approx((mean, variance**0.5))


def test_groups_are_guessed_by_their_parts_once_all_of_these_were_timed():
    costs = GroupCosts()
    costs.add_known({"a": (1e6, 1e6), "b": (1e6, 1e6), "ab": (1e6, 2e6)}, {"ab": {"a": 1, "b": 1}})
    costs.observe("a", 5.0, 0.01)
    by_features = costs.estimate("ab")
    costs.observe("b", 1.0, 0.01)
    by_parts = costs.estimate("ab")
    assert by_parts.sd < by_features.sd / 2
    assert 3.5 <= by_parts.mean <= 6.0
    assert not by_parts.known, "however good the guess"
    costs.observe("ab", 7.0, 0.1)
    assert costs.estimate("ab").mean == pytest.approx(7.0, abs=0.05)


def test_what_another_process_timed_counts_as_a_part_and_beside_one():
    costs = GroupCosts()
    costs.add_known({"a": (1e6, 1e6), "b": (1e6, 1e6), "ab": (1e6, 2e6)}, {"ab": {"a": 1, "b": 1}})
    costs.expect("a", 5.0, 0.5)
    costs.expect("b", 1.0, 0.3)
    vague = costs.estimate("ab")
    costs.expect("b", 1.0, 0.1)
    assert costs.estimate("ab").mean > vague.mean + 1.0, "vague parts are none"
    by_parts = costs.estimate("ab")
    costs.expect("ab", 2 * by_parts.mean, by_parts.sd)
    both = costs.estimate("ab")
    assert both.mean == pytest.approx(1.5 * by_parts.mean)
    assert both.sd == pytest.approx(by_parts.sd / 2**0.5)


def test_ten_leaves_alone_and_a_few_groups_tell_of_all_others():
    """A made-up truth: vectors spoilt by one leaf, bytes at half the rate of leaves alone, a tenth of luck."""
    random = np.random.default_rng(3)
    names = [f"leaf {number}" for number in range(10)]
    alone = {name: float(random.uniform(0.05, 0.2)) for name in names}
    costs, truth, parts = GroupCosts(), dict(alone), {}
    features = dict.fromkeys(names, (1e5, 1e5))
    for size in (2, 3, 4):
        for start in range(10 - size + 1):
            members = names[start : start + size]
            key = "+".join(members)
            spoilt = 0.3 * (size - 1) * alone[names[4]] if names[4] in members else 0.0
            truth[key] = (sum(alone[one] for one in members) - 0.02 * (size - 1) + spoilt) * float(np.exp(0.03 * random.normal()))
            parts[key], features[key] = Counter(members), (1e5 * 1.2, 1e5 * size)
    costs.add_known(features, parts)
    for key in [*names, *list(parts)[:9]]:
        costs.observe(key, truth[key], 0.02 * truth[key])
    asked = list(parts)[9:]
    found = {key: costs.estimate(key) for key in asked}
    assert np.mean([abs(found[key].mean - truth[key]) / truth[key] for key in asked]) < 0.1
    assert np.mean([abs(found[key].mean - truth[key]) < 2 * found[key].sd for key in asked]) > 0.9
    assert not any(one.sd > 0.5 * one.mean for one in found.values())
