"""What paired samples say: speed-ups with intervals, and who is ahead, under repeated looks.

Two levels of chance, two tools. *Between processes* identical code usually agrees to 0.2%, and once in a while one function is
slow for a whole process (2.2 times was seen), whatever the number of samples: an interval needs processes, and must outlive one
that is odd. *Within a process* samples come in pairs, taken in one round in random order: their signs are fair coins where two
functions are alike, however the machine drifts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, lgamma, log

import numpy as np
from scipy.special import bdtr, stdtrit

from tuner.measure.promises import FALSE_WINNERS

RESAMPLES = 500
# From this many processes on, the lowest and the highest are set aside: one odd process does not decide.
TRIM_FROM = 6


@dataclass(frozen=True)
class Speedup:
    """default time / candidate time, with the bounds of its interval (95%, where nothing else is said)."""

    value: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Width of the interval relative to the value."""
        return (self.high - self.low) / self.value


Pair = tuple[Sequence[float], Sequence[float]]


def median_of(samples_ms: Sequence[float], sizes: int = 1) -> float:
    """The median; of samples at several sizes, of which sample i is at size i % sizes, the geometric mean of their medians."""
    if sizes == 1:
        return float(np.median(samples_ms))
    return float(np.exp(np.mean([np.log(np.median(samples_ms[i::sizes])) for i in range(sizes)])))


def median_ratio(default_ms: Sequence[float], candidate_ms: Sequence[float], sizes: int = 1) -> float:
    """Median default time / median candidate time of one process; of several sizes, see `median_of`, the geometric mean."""
    return median_of(default_ms, sizes) / median_of(candidate_ms, sizes)


def relative_error(default_ms: Sequence[float], candidate_ms: Sequence[float], sizes: int = 1) -> float:
    """Standard error of `median_ratio`, relative, from the scatter of paired rounds: rough, and blind to odd processes."""
    logs = np.log(np.asarray(default_ms)) - np.log(np.asarray(candidate_ms))
    variances = [float(np.var(logs[i::sizes], ddof=1)) if len(logs) > sizes else 0.0 for i in range(sizes)]
    # pi / 2: a median scatters more than a mean, by that.
    return float(np.sqrt(np.pi / 2 * np.mean(variances) / len(logs)))


def at_size(processes: Sequence[Pair], size: int, sizes: int) -> list[Pair]:
    """The samples of one of several sizes."""
    return [(default_ms[size::sizes], candidate_ms[size::sizes]) for default_ms, candidate_ms in processes]


def speedups_by_size(processes: Sequence[Pair], error: float = FALSE_WINNERS, sizes: int = 1) -> list[Speedup]:
    """`speedup_of` at each size."""
    return [speedup_of(at_size(processes, size, sizes), error) for size in range(sizes)]


def speedup_of(processes: Sequence[Pair], error: float = FALSE_WINNERS, seed: int = 0, sizes: int = 1) -> Speedup:
    """The typical speed-up over processes; either bound of the interval fails with probability `error` at most.

    processes: (default samples, candidate samples) of each, paired by round. sizes: of how many sizes the samples are, see
    `median_of`; then the speed-up is the geometric mean over them. The value is the geometric mean of the processes'
    ratios of medians. The bounds are the wider of two: Student's t over the processes' logarithms, from 6 processes on over those
    between the extremes (Yuen's trimmed mean, Biometrika 61:165, 1974); and a bootstrap over the rounds within processes, which
    is all there is where only one process is given. A percentile bootstrap over three processes would not do: its lower bound is
    about the worst of them, and one in eight sets of three is on one side by chance.
    """
    logs = np.sort([log(median_ratio(default_ms, candidate_ms, sizes)) for default_ms, candidate_ms in processes])
    count, trim = len(logs), 1 if len(logs) >= TRIM_FROM else 0
    kept = logs[trim : count - trim]
    value = float(kept.mean())
    within = np.sqrt(sum(_bootstrap_variance(pair, seed + i, sizes) for i, pair in enumerate(processes))) / count
    half = float(-stdtrit(np.inf, error) * within)
    if count > 1:
        winsorised = np.clip(logs, kept[0], kept[-1])
        spread = winsorised.std(ddof=1) / ((1 - 2 * trim / count) * np.sqrt(count))
        half = max(half, float(-stdtrit(len(kept) - 1, error) * spread))
    return Speedup(exp(value), exp(value - half), exp(value + half))


def _bootstrap_variance(pair: Pair, seed: int, sizes: int = 1) -> float:
    """Variance of log(ratio of medians), or of its mean over sizes, when the rounds of one process are drawn again."""
    if sizes > 1:
        return sum(_bootstrap_variance(one, seed) for i in range(sizes) for one in at_size([pair], i, sizes)) / sizes**2
    rounds = np.array(pair)
    picks = np.random.default_rng(seed).integers(0, rounds.shape[1], (RESAMPLES, rounds.shape[1]))
    medians = np.median(rounds[:, picks], axis=2)
    return float(np.log(medians[0] / medians[1]).var())


def lead(a_ms: Sequence[float], b_ms: Sequence[float], margin: float = 0.0) -> float:
    """Evidence that `a` is faster than `b` by more than `margin` (relative), from samples paired by round. 1 says nothing.

    An e-value: where `a` is ahead in at most half of the rounds in the long run, it exceeds 1/p at any time, looked at as often
    as one likes, with probability p at most (Ville's inequality). It is the mean over all p > 1/2, equally weighted, of the
    likelihood ratio of `p` against 1/2 for the signs (Ramdas et al., Game-theoretic statistics and safe anytime-valid
    inference, Statistical Science 38:576, 2023). Signs do not mind outliers, nor the clock's drift.
    """
    difference = np.asarray(a_ms) * (1 + margin) - np.asarray(b_ms)
    wins, losses = int((difference < 0).sum()), int((difference > 0).sum())
    rounds = wins + losses
    log_beta = lgamma(wins + 1) + lgamma(losses + 1) - lgamma(rounds + 2)
    tail = float(bdtr(wins, rounds + 1, 0.5))
    return exp(min(700.0, (rounds + 1) * log(2) + log_beta + log(tail))) if tail > 0 else 0.0
