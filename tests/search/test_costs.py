"""Costs of groups: against closed forms, and against made-up truths that a search would have to find out."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from tuner.measurement import GroupTime
from tuner.search.costs import START_MS, Estimate, GroupCosts, calibrated, conditioned, fitted

FEATURES = {"a": (4000.0, 1000.0), "b": (8000.0, 1000.0), "c": (2000.0, 5000.0)}


def test_before_anything_is_timed_a_guess_grows_with_bytes_and_operations_and_is_vague():
    costs = GroupCosts()
    costs.add_known(FEATURES | {"d": (4000.0, 9000.0)})
    small, large, busy = (costs.estimate(key) for key in "abd")
    assert small.mean == pytest.approx(float(START_MS @ (1, 4000, 1000)))
    assert large.mean > small.mean < busy.mean
    assert small.sd == pytest.approx(small.mean)
    assert not small.known


def test_a_group_of_which_nothing_is_known_is_an_error_wherever_it_is_named():
    costs = GroupCosts()
    costs.add_known(FEATURES)
    with pytest.raises(KeyError):
        costs.estimate("z")
    with pytest.raises(KeyError):
        costs.observe_difference(Counter("az"), Counter("b"), 0.1, 0.01)
    costs.observe("z", 0.5, 0.01)
    assert costs.estimate("z") == Estimate(pytest.approx(0.5), pytest.approx(0.01), True)
    costs.observe_difference(Counter("az"), Counter("b"), 0.1, 0.01)


def test_a_timed_group_is_known_and_its_guess_combined_with_its_times_by_their_weights():
    costs = GroupCosts()
    costs.expect("a", 1.0, 0.3)
    assert costs.estimate("a") == Estimate(1.0, 0.3, False)
    for ms in (2.0, 2.1):
        costs.observe("a", ms, 0.2)
    weights = np.array([1 / 0.3**2, 1 / 0.2**2, 1 / 0.2**2])
    mean = weights @ (1.0, 2.0, 2.1) / weights.sum()
    assert costs.estimate("a") == Estimate(pytest.approx(mean), pytest.approx(weights.sum() ** -0.5), True)


def test_times_of_one_group_that_contradict_each_other_leave_it_less_certain():
    agreeing, contradicting = GroupCosts(), GroupCosts()
    for costs, times in ((agreeing, (1.0, 1.0)), (contradicting, (0.8, 1.2))):
        for ms in times:
            costs.observe("a", ms, 0.01)
    assert agreeing.estimate("a").sd == pytest.approx(0.01 / 2**0.5)
    assert contradicting.estimate("a").mean == pytest.approx(1.0)
    assert 0.1 < contradicting.estimate("a").sd < 0.3


def test_what_other_processes_timed_replaces_the_guess_and_is_known_where_it_is_certain():
    costs = GroupCosts()
    costs.add_known(FEATURES)
    costs.expect("a", 0.3, 0.15)
    costs.expect("b", 0.3, 0.03)
    assert costs.estimate("a") == Estimate(0.3, 0.15, False)
    assert costs.estimate("b") == Estimate(0.3, 0.03, True)


def test_a_whole_graph_moves_each_group_by_its_share_of_the_doubt():
    costs = GroupCosts()
    costs.expect("a", 1.0, 0.3)
    costs.expect("b", 1.0, 0.1)
    costs.expect("c", 1.0, 0.2)
    costs.observe_difference(Counter({"a": 2, "b": 1}), Counter("c"), 2.3, 0.1)
    # d = 2a + b - c + noise, of variance 4 * .09 + .01 + .04 + .01 = .42 and mean 2
    assert costs.estimate("a").mean == pytest.approx(1.0 + 0.3 * 2 * 0.09 / 0.42)
    assert costs.estimate("b").mean == pytest.approx(1.0 + 0.3 * 0.01 / 0.42)
    assert costs.estimate("c").mean == pytest.approx(1.0 - 0.3 * 0.04 / 0.42)
    assert costs.estimate("a").sd ** 2 == pytest.approx(0.09 - (2 * 0.09) ** 2 / 0.42)


def test_a_group_on_both_sides_of_a_difference_is_not_moved_by_it():
    costs = GroupCosts()
    for key in "abc":
        costs.expect(key, 1.0, 0.2)
    costs.observe_difference(Counter("ab"), Counter("ac"), 0.2, 0.01)
    assert costs.estimate("a") == Estimate(pytest.approx(1.0), pytest.approx(0.2), True)
    assert costs.estimate("b").mean > 1.05 > 0.95 > costs.estimate("c").mean


def test_conditioning_is_that_of_the_dense_gaussian():
    random = np.random.default_rng(0)
    mean, variance = random.uniform(1, 2, 12), random.uniform(0.1, 1, 12)
    counts = random.integers(-2, 3, (5, 12)).astype(float)
    noise = random.uniform(0.1, 0.5, 5)
    told = counts @ mean + 0.1 * random.normal(size=5)
    precision = np.diag(1 / variance) + counts.T @ np.diag(1 / noise) @ counts
    expected = np.linalg.solve(precision, mean / variance + counts.T @ (told / noise))
    found, left = conditioned(mean, variance, counts, told, noise)
    assert found == pytest.approx(expected)
    assert left == pytest.approx(np.diag(np.linalg.inv(precision)))


def test_whole_graphs_that_contradict_timed_kernels_are_believed_less():
    costs = GroupCosts()
    costs.observe("a", 1.0, 0.01)
    costs.observe("b", 1.0, 0.01)
    for ms in (1.0, -1.0):
        costs.observe_difference(Counter("a"), Counter("b"), ms, 0.001)
    assert costs.estimate("a").mean == pytest.approx(1.0, abs=0.01)
    absurd = GroupCosts()
    absurd.observe("a", 1.0, 0.01)
    absurd.observe_difference(Counter("a"), Counter(), 100.0, 0.0)
    assert absurd.estimate("a").mean == pytest.approx(1.0, abs=0.03)


def test_the_same_equation_a_hundred_times_is_solved_without_blowing_up():
    costs = GroupCosts()
    costs.add_known(FEATURES)
    for _ in range(100):
        costs.observe_difference(Counter("a"), Counter("b"), 0.001, 0.0)
    found = costs.estimate("a"), costs.estimate("b")
    assert found[0].mean - found[1].mean == pytest.approx(0.001, abs=1e-5)
    assert all(np.isfinite((one.mean, one.sd)).all() and one.sd > 0 for one in found)


def test_no_cost_is_negative_and_the_optimistic_one_is_never_nothing():
    costs = GroupCosts()
    costs.expect("a", 0.1, 0.1)
    costs.observe_difference(Counter(), Counter("a"), 0.05, 0.001)
    assert costs.estimate("a").mean == 0.0
    assert Estimate(1.0, 0.2, True).low() == pytest.approx(0.8)
    assert Estimate(1.0, 0.2, True).low(2.0) == pytest.approx(0.6)
    assert Estimate(1.0, 2.0, False).low() == pytest.approx(0.1)


def test_one_timed_group_sets_the_scale_of_all_guesses():
    costs = GroupCosts()
    costs.add_known(FEATURES)
    before = costs.estimate("b").mean
    costs.observe("a", 10 * costs.estimate("a").mean, 1e-6)
    assert costs.estimate("b").mean == pytest.approx(10 * before)
    assert costs.estimate("b").sd < costs.estimate("b").mean


def test_what_other_processes_timed_sets_the_scale_until_groups_are_timed_here():
    costs = GroupCosts()
    costs.add_known(FEATURES)
    before = costs.estimate("b").mean
    costs.expect("a", 10 * costs.estimate("a").mean, 0.01)
    assert costs.estimate("b").mean == pytest.approx(10 * before)
    costs.observe("a", 100 * costs.guess("a").mean, 1e-9)
    assert costs.estimate("b").mean == pytest.approx(1000 * before, rel=1e-3)


def made_up(count: int, seed: int = 0) -> tuple[list[tuple[float, float]], np.ndarray]:
    """Features of groups, and times with which the rates 5 µs, 1 ns a byte and 0.5 ns an operation are 10% wrong."""
    random = np.random.default_rng(seed)
    features = [(float(10 ** random.uniform(3, 6)), float(10 ** random.uniform(3, 6))) for _ in range(count)]
    rates = np.array([5e-3, 1e-6, 5e-7])
    exact = np.array([(1.0, *one) for one in features]) @ rates
    return features, exact * np.exp(0.1 * random.normal(size=count))


def test_the_fit_finds_the_rates_though_a_tenth_of_the_groups_are_ten_times_as_slow():
    features, times = made_up(60)
    times[::10] *= 10
    rates, spread = fitted(features, times)
    assert rates == pytest.approx([5e-3, 1e-6, 5e-7], rel=0.35)
    assert spread < 0.5


def test_a_fit_of_groups_that_bytes_and_operations_say_nothing_of_is_vague():
    features, times = made_up(60)
    _, near = fitted(features, times)
    _, far = fitted(features, times * np.exp(np.random.default_rng(1).normal(size=60)))
    assert near < 0.5 < far <= 1.0


def test_guesses_of_untimed_groups_are_mostly_within_their_deviation():
    features, times = made_up(80, seed=3)
    costs = GroupCosts()
    costs.add_known({str(number): one for number, one in enumerate(features)})
    for number in range(40):
        costs.observe(str(number), times[number], 0.01 * times[number])
    found = [costs.estimate(str(number)) for number in range(40, 80)]
    assert not any(one.known for one in found)
    assert sum(abs(one.mean - ms) < one.sd for one, ms in zip(found, times[40:], strict=True)) > 36


def test_whole_graphs_alone_order_groups_that_no_kernel_was_timed_of():
    """Every pair of eight groups in a graph of its own, noise of 1% of a graph."""
    random = np.random.default_rng(5)
    truth = {name: 0.05 + 0.05 * number for number, name in enumerate("hgfedcba")}
    costs = GroupCosts()
    costs.add_known(dict.fromkeys(truth, (1e5, 1e5)))
    for one, other in itertools.combinations(truth, 2):
        ms = truth[one] - truth[other] + 0.003 * random.normal()
        costs.observe_difference(Counter([one]), Counter([other]), ms, 0.003)
    assert sorted(truth, key=lambda key: costs.estimate(key).mean) == sorted(truth, key=truth.__getitem__)


def test_two_thousand_groups_and_three_hundred_whole_graphs_give_every_group_a_sane_cost():
    random = np.random.default_rng(7)
    features, times = made_up(2000, seed=7)
    truth = {str(number): ms for number, ms in enumerate(times)}
    costs = GroupCosts()
    costs.add_known(dict(zip(truth, features, strict=True)))
    for key in list(truth)[:600]:
        costs.observe(key, truth[key] * (1 + 0.02 * random.normal()), 0.02 * truth[key])
    for _ in range(300):
        plus, minus = (Counter(map(str, random.integers(0, 2000, 20))) for _ in range(2))
        ms = sum(truth[key] * count for key, count in plus.items()) - sum(truth[key] * count for key, count in minus.items())
        costs.observe_difference(plus, minus, ms, 0.01 * abs(ms) + 1e-3)
    found = {key: costs.estimate(key) for key in truth}
    assert all(np.isfinite((one.mean, one.sd)).all() and one.sd > 0 for one in found.values())
    wrong = np.array([abs(found[key].mean - ms) / ms for key, ms in truth.items()])
    assert np.median(wrong[:600]) < 0.02
    assert np.median(wrong[600:]) < 0.15
    z = np.array([abs(found[key].mean - ms) / found[key].sd for key, ms in truth.items()])
    assert (z < 3).mean() > 0.95


def test_times_of_another_process_are_brought_to_this_ones_scale_by_the_groups_in_common():
    stored = [GroupTime(key, ms, "1") for key, ms in (("a", 1.0), ("b", 2.0), ("c", 4.0), ("d", 3.0))]
    found = calibrated(stored, {"a": 1.5, "b": 3.0, "c": 6.0})
    assert list(found) == ["d"], "what was timed here needs no calibration"
    ms, sd = found["d"]
    assert ms == pytest.approx(4.5)
    assert sd < 0.15 * ms


def test_one_group_that_ran_amiss_does_not_spoil_the_scale():
    stored = [GroupTime(key, 1.0, "1") for key in "abcdez"]
    assert calibrated(stored, {**dict.fromkeys("abcd", 1.2), "e": 12.0})["z"][0] == pytest.approx(1.2)


def test_times_of_processes_with_nothing_in_common_are_taken_as_they_are_with_a_wide_deviation():
    (ms, sd), *_ = calibrated([GroupTime("a", 1.0, "1")], {}).values()
    assert (ms, sd) == (1.0, 0.5)


def test_of_several_processes_the_calibrated_one_weighs_most():
    stored = [GroupTime("a", 1.0, "1"), GroupTime("b", 1.0, "1"), GroupTime("b", 5.0, "2")]
    ms, _ = calibrated(stored, {"a": 2.0})["b"]
    assert 2.0 < ms < 2.5


def test_times_of_one_process_count_once_however_often_they_were_taken():
    once, often = ([GroupTime("b", 1.0, "1")] * count for count in (1, 9))
    assert calibrated(once, {}) == calibrated(often, {})


def test_stored_times_of_nothing_are_passed_over():
    assert calibrated([GroupTime("a", 0.0, "1"), GroupTime("b", 1.0, "1")], {"a": 1.0}) == {"b": (1.0, 0.5)}
    assert calibrated([GroupTime("a", 1.0, "1"), GroupTime("b", 1.0, "1")], {"a": 0.0}) == {"b": (1.0, 0.5)}
