"""Speed-ups with intervals, from paired samples of several processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
# Promise 1: what the lower bound of a winner's speed-up must exceed.
MIN_SPEEDUP = 1.01


@dataclass(frozen=True)
class Speedup:
    """default time / candidate time, with the bounds of its 95% interval."""

    value: float
    low: float
    high: float


def median_ratio(default_ms: Sequence[float], candidate_ms: Sequence[float]) -> float:
    """Median default time / median candidate time of one process."""
    return float(np.median(default_ms) / np.median(candidate_ms))


def speedup_of(processes: Sequence[tuple[Sequence[float], Sequence[float]]], seed: int = 0) -> Speedup:
    """Geometric mean over processes of the ratio of medians; interval by a bootstrap over processes, then over their samples.

    processes: (default samples, candidate samples) of each, paired by round. Processes are resampled too, since identical code
    differs more between processes than inside one: with three, the lower bound is about that of the worst.
    """
    generator = np.random.default_rng(seed)
    logs = []
    for default_ms, candidate_ms in processes:
        pairs = np.array([default_ms, candidate_ms])
        picks = generator.integers(0, pairs.shape[1], (RESAMPLES, pairs.shape[1]))
        medians = np.median(pairs[:, picks], axis=2)
        logs.append(np.log(medians[0] / medians[1]))
    table = np.array(logs)
    chosen = generator.integers(0, len(logs), (RESAMPLES, len(logs)))
    means = table[chosen, np.arange(RESAMPLES)[:, None]].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    value = np.mean([np.log(median_ratio(default_ms, candidate_ms)) for default_ms, candidate_ms in processes])
    return Speedup(float(np.exp(value)), float(np.exp(low)), float(np.exp(high)))
