"""A speed-up with its interval: true ratios are found again, and noise is not taken for a gain."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.measure.statistics import MIN_SPEEDUP, median_ratio, speedup_of

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


@pytest.mark.parametrize("ratio", [0.5, 0.97, 1.0, 1.05, 2.0, 30.0])
def test_a_known_ratio_is_found_again(ratio):
    found = [speedup_of(processes(ratio, seed)) for seed in range(20)]
    assert np.mean([speedup.value for speedup in found]) == pytest.approx(ratio, rel=0.01)
    for speedup in found:
        assert speedup.value == pytest.approx(ratio, rel=0.03)
        assert speedup.low <= speedup.value <= speedup.high


def test_the_interval_holds_the_truth_most_of_the_time():
    found = [speedup_of(processes(1.2, seed, noise=0.05)) for seed in range(100)]
    assert sum(speedup.low <= 1.2 <= speedup.high for speedup in found) >= 75


def test_without_noise_there_is_no_interval():
    speedup = speedup_of([([2.0] * 5, [1.0] * 5)] * 3)
    assert (speedup.low, speedup.value, speedup.high) == pytest.approx((2.0, 2.0, 2.0))


def test_identical_code_is_hardly_ever_a_winner_though_processes_differ_by_one_percent():
    passed = [speedup_of(processes(1.0, seed, offset=0.01)).low > MIN_SPEEDUP for seed in range(300)]
    assert np.mean(passed) <= 0.025


def test_a_true_gain_of_five_percent_is_mostly_found():
    passed = [speedup_of(processes(1.05, seed, offset=0.01)).low > MIN_SPEEDUP for seed in range(100)]
    assert np.mean(passed) >= 0.8


def test_one_bad_process_of_three_pulls_the_lower_bound_down_to_it():
    good = processes(1.5, seed=0, count=2)
    (bad,) = processes(0.9, seed=1, count=1)
    for order in ([*good, bad], [bad, *good], [good[0], bad, good[1]]):
        speedup = speedup_of(order)
        assert speedup.low == pytest.approx(0.9, rel=0.03)
        assert speedup.low < 1 < speedup.value


def test_one_bad_sample_does_not_count():
    ((default, candidate),) = processes(1.5, seed=0, count=1)
    spoiled = [*candidate[:-1], 1000.0]
    speedup = speedup_of([(default, spoiled)] * 3)
    assert (speedup.low, speedup.value, speedup.high) == pytest.approx((1.5, 1.5, 1.5), rel=0.05)


def test_the_value_is_the_geometric_mean_over_processes():
    speedup = speedup_of([([4.0], [1.0]), ([1.0], [1.0])])
    assert speedup.value == pytest.approx(2.0)


def test_the_same_samples_give_the_same_interval():
    made = processes(1.1, seed=3)
    assert speedup_of(made) == speedup_of(made)
    assert speedup_of(made, seed=1).value == speedup_of(made, seed=2).value


def test_a_swap_of_default_and_candidate_turns_the_speed_up_over():
    made = processes(1.3, seed=5)
    there, back = speedup_of(made), speedup_of([(candidate, default) for default, candidate in made])
    assert there.value == pytest.approx(1 / back.value)
    assert there.low == pytest.approx(1 / back.high, rel=0.02)


def test_a_ratio_is_of_medians():
    assert median_ratio([2.0, 2.0, 100.0], [1.0, 1.0, 0.001]) == 2.0
