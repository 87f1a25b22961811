"""Speed-ups with their intervals, and evidence under repeated looks: true ratios are found, and noise is not taken for a gain."""

from __future__ import annotations

from math import comb, exp, log

import numpy as np
import pytest

from tuner.measure.promises import FALSE_WINNERS, MIN_SPEEDUP
from tuner.measure.statistics import at_size, lead, median_of, median_ratio, speedup_of, speedups_by_size

SAMPLES = 30


def processes(ratio: float, seed: int, *, count: int = 3, offset: float = 0.0, noise: float = 0.02, samples: int = SAMPLES):
    """Samples of a default and of a candidate `ratio` times as fast, in `count` processes.

    noise: standard deviation of a sample; offset: that of a process's own bias towards one of the two, both relative.
    """
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        base = generator.uniform(0.8, 1.2)
        bias = np.exp(generator.normal(0, offset)) if offset else 1.0
        default = base * np.exp(generator.normal(0, noise, samples))
        candidate = base / ratio * bias * np.exp(generator.normal(0, noise, samples))
        made.append((default.tolist(), candidate.tolist()))
    return made


def exact(*ratios: float) -> list[tuple[list[float], list[float]]]:
    """Processes without noise within, one for each ratio."""
    return [([ratio] * 5, [1.0] * 5) for ratio in ratios]


@pytest.mark.parametrize("ratio", [0.5, 0.97, 1.0, 1.05, 2.0, 30.0])
def test_a_known_ratio_is_found_again(ratio):
    found = [speedup_of(processes(ratio, seed)) for seed in range(20)]
    assert np.mean([speedup.value for speedup in found]) == pytest.approx(ratio, rel=0.01)
    for speedup in found:
        assert speedup.value == pytest.approx(ratio, rel=0.03)
        assert speedup.low <= speedup.value <= speedup.high


@pytest.mark.parametrize(("count", "offset"), [(1, 0.0), (3, 0.02), (8, 0.02)])
def test_either_bound_fails_about_as_often_as_it_may(count, offset):
    found = [speedup_of(processes(1.2, seed, count=count, offset=offset, noise=0.05, samples=15), 0.05) for seed in range(200)]
    # 5%, and two standard errors of 200 draws above.
    assert np.mean([speedup.low > 1.2 for speedup in found]) <= 0.081
    assert np.mean([speedup.high < 1.2 for speedup in found]) <= 0.081


def test_a_smaller_error_makes_a_wider_interval_around_the_same_value():
    made = processes(1.2, seed=0)
    wide, narrow = speedup_of(made, 0.005), speedup_of(made, 0.05)
    assert wide.value == narrow.value
    assert wide.low < narrow.low < narrow.high < wide.high
    assert wide.width > narrow.width > 0


def test_without_noise_there_is_no_interval():
    speedup = speedup_of(exact(2.0, 2.0, 2.0))
    assert (speedup.low, speedup.value, speedup.high) == pytest.approx((2.0, 2.0, 2.0))
    assert speedup.width == pytest.approx(0.0)


def test_processes_that_agree_by_luck_do_not_make_it_narrower_than_their_samples_are():
    # The same samples in each process: between them there is nothing.
    (pair,) = processes(1.2, seed=0, count=1, noise=0.1)
    alone, three = speedup_of([pair]), speedup_of([pair] * 3)
    assert three.high > three.value > three.low
    # A mean of three is 1/sqrt(3) as uncertain; the bootstrap of each process has a seed of its own.
    assert log(three.high / three.value) == pytest.approx(log(alone.high / alone.value) / 3**0.5, rel=0.1)


def test_between_three_processes_it_is_students_t():
    # 4.302653: the 97.5% quantile of t with 2 degrees of freedom, from any table; the deviation of -s, 0, s is s.
    spread = 0.01
    speedup = speedup_of(exact(exp(-spread), 1.0, exp(spread)), 0.025)
    assert log(speedup.high) == pytest.approx(4.302653 * spread / 3**0.5, rel=1e-4)
    assert log(speedup.low) == pytest.approx(-4.302653 * spread / 3**0.5, rel=1e-4)


def test_three_processes_of_a_noisy_machine_hardly_ever_pass_for_a_gain():
    # A percentile bootstrap over three processes passes one in eight of these.
    passed = [speedup_of(processes(1.0, seed, offset=0.03, samples=15)).low > MIN_SPEEDUP for seed in range(300)]
    assert np.mean(passed) <= FALSE_WINNERS


def test_identical_code_is_hardly_ever_a_winner_though_processes_differ_by_one_percent():
    passed = [speedup_of(processes(1.0, seed, offset=0.01, samples=15)).low > MIN_SPEEDUP for seed in range(200)]
    assert np.mean(passed) <= FALSE_WINNERS


@pytest.mark.parametrize(("count", "offset"), [(3, 0.002), (8, 0.01)])
def test_a_true_gain_of_five_percent_is_found(count, offset):
    made = [processes(1.05, seed, count=count, offset=offset, noise=0.005) for seed in range(50)]
    passed = [speedup_of(one, 0.005).low > MIN_SPEEDUP for one in made]
    assert np.mean(passed) >= 0.9


@pytest.mark.parametrize("odd", [0.45, 2.2])
def test_one_odd_process_of_eight_does_not_decide(odd):
    for place in range(8):
        real, alike = [1.05] * 8, [1.0] * 8
        real[place] = alike[place] = odd
        assert speedup_of(exact(*real)).low > MIN_SPEEDUP
        assert speedup_of(exact(*real)).value == pytest.approx(1.05)
        assert speedup_of(exact(*alike)).low <= MIN_SPEEDUP


@pytest.mark.parametrize("odd", [1.6, 2.2])
def test_identical_code_with_one_odd_process_is_no_gain(odd):
    # Seen: one process of eight took 1.6 times as long over one of two identical functions.
    for count in (3, 5, 8):
        made = processes(1.0, seed=count, count=count, noise=0.005)
        made[1] = ([ms * odd for ms in made[1][0]], made[1][1])
        assert speedup_of(made).low < MIN_SPEEDUP


def test_one_bad_process_of_three_keeps_a_candidate_out():
    good = processes(1.5, seed=0, count=2)
    (bad,) = processes(0.9, seed=1, count=1)
    for order in ([*good, bad], [bad, *good], [good[0], bad, good[1]]):
        assert speedup_of(order).low < 0.9


def test_two_odd_processes_of_eight_on_one_side_are_not_set_aside():
    assert speedup_of(exact(0.5, 0.5, *[1.2] * 6)).value < 1.2


def test_one_bad_sample_does_not_count():
    ((default, candidate),) = processes(1.5, seed=0, count=1)
    spoiled = [*candidate[:-1], 1000.0]
    speedup = speedup_of([(default, spoiled)] * 3)
    assert (speedup.low, speedup.value, speedup.high) == pytest.approx((1.5, 1.5, 1.5), rel=0.05)


def test_the_value_is_the_geometric_mean_over_processes():
    assert speedup_of(exact(4.0, 1.0)).value == pytest.approx(2.0)


def test_the_same_samples_give_the_same_interval_in_whatever_order():
    made = processes(1.1, seed=3)
    assert speedup_of(made) == speedup_of(made)
    assert speedup_of(made, seed=1).value == speedup_of(made, seed=2).value == pytest.approx(speedup_of(made[::-1]).value)


def test_a_swap_of_default_and_candidate_turns_the_speed_up_over():
    made = processes(1.3, seed=5)
    there, back = speedup_of(made), speedup_of([(candidate, default) for default, candidate in made])
    assert there.value == pytest.approx(1 / back.value)
    assert there.low == pytest.approx(1 / back.high, rel=0.02)


def test_a_ratio_is_of_medians():
    assert median_ratio([2.0, 2.0, 100.0], [1.0, 1.0, 0.001]) == 2.0


@pytest.mark.parametrize("drift", [False, True])
def test_alike_functions_hardly_ever_lead_however_often_one_looks(drift):
    """Ville's inequality: at most `p` of runs ever exceed 1/p."""
    runs, rounds = 400, 120
    generator = np.random.default_rng(0)
    highest = []
    for _ in range(runs):
        common = np.exp(np.cumsum(generator.normal(0, 0.05, rounds))) if drift else 1.0
        a, b = (common * np.exp(generator.normal(0, 0.02, rounds)) for _ in range(2))
        highest.append(max(lead(a[:n], b[:n]) for n in range(1, rounds + 1)))
    for p in (0.5, 0.2, 0.1, 0.05, 0.01):
        assert np.mean(np.array(highest) > 1 / p) <= p
    # It is evidence, and no constant: some do come far.
    assert max(highest) > 5


def test_it_is_a_fair_bet():
    """Under the null the expectation is at most 1 after any number of rounds: summed over all outcomes of coins."""
    for rounds in (1, 2, 5, 20):
        outcomes = ((wins, lead([1.0] * wins + [3.0] * (rounds - wins), [2.0] * rounds)) for wins in range(rounds + 1))
        assert sum(comb(rounds, wins) * value for wins, value in outcomes) / 2**rounds == pytest.approx(1.0)


def test_without_rounds_or_differences_it_says_nothing():
    assert lead([], []) == pytest.approx(1.0)
    assert lead([1.0, 2.0], [1.0, 2.0]) == pytest.approx(1.0)


def test_it_grows_with_evidence_and_falls_with_counter_evidence():
    ahead = [lead([1.0] * n, [1.1] * n) for n in (1, 2, 5, 10, 20, 2000)]
    behind = [lead([1.1] * n, [1.0] * n) for n in (1, 2, 5, 10, 20, 2000)]
    assert ahead == sorted(ahead)
    assert behind == sorted(behind, reverse=True)
    assert ahead[-1] < float("inf")
    assert ahead[4] > 1000
    assert behind[4] < 0.1


def test_rounds_that_tie_are_no_evidence():
    assert lead([1.0] * 10, [1.1] * 10) == lead([1.0] * 10 + [1.1] * 50, [1.1] * 60)


def test_a_lead_within_the_margin_is_none():
    a, b = [1.0] * 40, [1.004] * 40
    assert lead(a, b) > 1000
    assert lead(a, b, margin=0.005) < 0.1


def test_outliers_and_a_drift_of_both_change_nothing():
    generator = np.random.default_rng(1)
    a, b = np.exp(generator.normal(0, 0.02, 40)), 1.02 * np.exp(generator.normal(0, 0.02, 40))
    plain = lead(a, b)
    drift = np.linspace(1, 3, 40)
    assert lead(a * drift, b * drift) == pytest.approx(plain)
    spoiled = a.copy()
    worst = int(np.argmax(a - b))
    spoiled[worst] = 1000.0
    assert lead(spoiled, b) == pytest.approx(plain), "that round was lost anyhow: by how much is no matter"


def at_two_sizes(small, large):
    """Processes that were measured at two sizes, each round at both, of those at either."""
    return [
        tuple([ms for pair in zip(*both, strict=True) for ms in pair] for both in zip(one, other, strict=True))
        for one, other in zip(small, large, strict=True)
    ]


def test_over_several_sizes_the_speed_up_is_their_geometric_mean_whatever_each_takes():
    made = at_two_sizes(exact(2.0, 2.0), [([300.0] * 5, [600.0] * 5)] * 2)
    assert median_of(made[0][0], 2) == pytest.approx((2.0 * 300.0) ** 0.5)
    assert median_ratio(*made[0], 2) == pytest.approx(1.0)
    assert speedup_of(made, sizes=2).value == pytest.approx(1.0)
    assert [one.value for one in speedups_by_size(made, sizes=2)] == pytest.approx([2.0, 0.5])


def test_each_size_has_the_interval_that_it_has_alone_and_their_mean_is_narrower():
    small, large = processes(1.2, seed=1, offset=0.02), processes(1.2, seed=2, offset=0.02)
    made = at_two_sizes(small, large)
    assert at_size(made, 0, 2) == small
    assert at_size(made, 1, 2) == large
    assert speedups_by_size(made, 0.05, sizes=2) == [speedup_of(small, 0.05), speedup_of(large, 0.05)]
    alone, both = speedup_of([small[0]]), speedup_of([at_two_sizes(small, large)[0]], sizes=2)
    assert log(both.high / both.low) < log(alone.high / alone.low), "half of the noise of each, in one process"
