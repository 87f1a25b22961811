"""What groups of leaves cost: learnt from timed kernels and whole graphs, else guessed from bytes and operations.

A linear Gaussian model. Each group key has an unknown cost in milliseconds. Before anything is measured it is what a fit of the
timed groups on bytes moved and operations says, give or take half of it, or, where it is known what its leaves cost alone, what
`tuner.search.part_costs` makes of that; a timed kernel is an equation of one unknown, the
difference of two whole graphs one of many. The posterior is exact; only equations of many unknowns need a matrix, as wide as
there are such equations.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np
from scipy.optimize import nnls

from tuner.measurement import GroupTime
from tuner.search.part_costs import PartCosts, Whole

# milliseconds for a kernel, a byte and an operation, until groups are timed: only their proportions matter after the first one
START_MS = np.array([2e-3, 1e-7, 2e-7])
# deviation of a cost from its guess, as a share of the guess: before any group is timed, and as if so many had been timed
UNFITTED_SPREAD, PRIOR_SPREAD, PRIOR_GROUPS = 1.0, 0.5, 4
LEAST_SPREAD = 0.4
# how much one timed group weighs against the start's proportions in the fit
START_WEIGHT = 0.5
FIT_ROUNDS = 8
OUTLIER_SHARE = 0.3
EXCESS_ROUNDS = 16
# a cost is known that was timed here; or elsewhere, or in whole graphs that halved its deviation, if that is at most this share
KNOWN_SHARE, TOLD_SHARE = 0.25, 0.5
# of the same kernel in two processes: deviation as a share, where groups in common say by how much they differ, and where none do
SAME_KERNEL_SPREAD, SAME_KERNEL_GROUPS = 0.15, 2
OTHER_PROCESS_SPREAD = 0.5
LEAST_CALIBRATED_SPREAD = 0.05


@dataclass(frozen=True)
class Estimate:
    """What a group is believed to cost: mean and deviation, milliseconds. known: it was timed, or told of well enough."""

    mean: float
    sd: float
    known: bool

    def low(self, deviations: float = 1.0) -> float:
        """The cost if things go well; a tenth of the mean at least, since nothing is free."""
        return max(self.mean - deviations * self.sd, 0.1 * self.mean)


@dataclass(frozen=True)
class _Difference:
    plus: Counter[str]
    minus: Counter[str]
    ms: float
    sd: float


class GroupCosts:
    """Costs of groups by key. What is observed is taken in at the next `estimate`, so that observing much at once costs once."""

    def __init__(self) -> None:
        self._features: dict[str, tuple[float, float]] = {}
        self._parts: dict[str, Mapping[str, int]] = {}
        self._expected: dict[str, tuple[float, float]] = {}
        self._timed: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        self._differences: list[_Difference] = []

    def add_known(
        self, features: Mapping[str, tuple[float, float]], parts: Mapping[str, Mapping[str, int]] | None = None
    ) -> None:
        """Say of groups how many bytes they move and how many operations they compute: what a guess needs.

        parts: of groups of several leaves, the keys of each of them as a group by itself, and how often it occurs. With them, and
        with what those cost, a guess is several times as good.
        """
        self._features.update(features)
        self._parts.update({key: leaves for key, leaves in (parts or {}).items() if sum(leaves.values()) > 1})
        self.__dict__.pop("_wholes", None)
        self._forget()

    def expect(self, key: str, ms: float, sd: float) -> None:
        """Take `ms`, give or take `sd`, as the guess of a group: what other processes timed, see `calibrated`."""
        self._expected[key] = (ms, _positive(sd))
        self._forget()

    def observe(self, key: str, ms: float, sd: float) -> None:
        """The group's kernel was timed here."""
        self._timed[key].append((ms, _positive(sd)))
        self._forget()

    def observe_difference(self, plus: Mapping[str, int], minus: Mapping[str, int], ms: float, sd: float) -> None:
        """A whole graph made of the groups `plus`, each so many times, took `ms` more than one made of `minus`, or less.

        Raises KeyError for a group of which nothing is known, not even its features.
        """
        for key in {*plus, *minus}:
            if not (key in self._features or key in self._expected or key in self._timed):
                raise KeyError(f"nothing is known of the group {key[:12]}")
        self._differences.append(_Difference(Counter(plus), Counter(minus), ms, _positive(sd)))
        self._forget()

    def estimate(self, key: str) -> Estimate:
        """Raises KeyError for a group of which nothing is known, not even its features."""
        before = self._alone(key)
        mean, sd = self._posterior.get(key, before)
        mean = max(mean, 0.0)
        # a guess is not known however good: the best of many would be the luckiest
        told = key in self._expected or sd <= TOLD_SHARE * before[1]
        return Estimate(mean, sd, key in self._timed or (told and sd <= KNOWN_SHARE * mean))

    def guess(self, key: str) -> Estimate:
        """What was believed of the group before it was timed. Raises KeyError as `estimate`."""
        mean, sd = self._prior(key)
        return Estimate(mean, sd, False)

    def _forget(self) -> None:
        for name in ("_fit", "_alone_ms", "_by_parts", "_posterior"):
            self.__dict__.pop(name, None)

    @cached_property
    def _fit(self) -> tuple[Any, float]:
        """Milliseconds for a kernel, a byte and an operation; the deviation of a cost from what they say, as a share."""
        told = {key: ms for key, (ms, _) in self._expected.items()}
        told |= {key: _combined(times)[0] for key, times in self._timed.items()}
        timed = [(ms, self._features[key]) for key, ms in told.items() if ms > 0 and key in self._features]
        return fitted([features for _, features in timed], [ms for ms, _ in timed])

    def _prior(self, key: str) -> tuple[float, float]:
        by_parts = self._by_parts.get(key)
        if key in self._expected:
            return _product([self._expected[key], by_parts]) if by_parts else self._expected[key]
        if by_parts:
            return by_parts
        rates, spread = self._fit
        mean = float(rates @ (1.0, *self._features[key]))
        return mean, spread * mean

    @cached_property
    def _alone_ms(self) -> dict[str, float]:
        """Of leaves that are groups by themselves, milliseconds of those that were timed, here or elsewhere."""
        leaves = {leaf for whole in self._wholes.values() for leaf in whole.parts}
        return {leaf: ms for leaf in leaves if (ms := self._told(leaf))}

    @cached_property
    def _wholes(self) -> dict[str, Whole]:
        """The groups of several leaves."""
        known = {key: parts for key, parts in self._parts.items() if self._features.keys() >= {key, *parts}}
        alone = {key: sum(self._features[leaf][0] * count for leaf, count in parts.items()) for key, parts in known.items()}
        return {key: Whole(parts, alone[key] - self._features[key][0]) for key, parts in known.items()}

    @cached_property
    def _by_parts(self) -> dict[str, tuple[float, float]]:
        """Guesses of the groups that were not timed, of whose leaves each was, by itself."""
        told = {key: whole for key, whole in self._wholes.items() if self._alone_ms.keys() >= whole.parts.keys()}
        timed = [(whole, _combined(self._timed[key])[0]) for key, whole in told.items() if key in self._timed]
        asked = {key: whole for key, whole in told.items() if key not in self._timed}
        costs = PartCosts({leaf: (ms, self._features[leaf][0]) for leaf, ms in self._alone_ms.items()}, timed)
        return dict(zip(asked, costs.guesses(list(asked.values())), strict=True)) if asked else {}

    def _told(self, key: str) -> float | None:
        """Milliseconds of a group that was timed here, or elsewhere if it is known how times there compare."""
        if key in self._timed:
            return _combined(self._timed[key])[0]
        ms, sd = self._expected.get(key, (0.0, 0.0))
        return ms if sd <= KNOWN_SHARE * ms else None

    def _alone(self, key: str) -> tuple[float, float]:
        """Mean and deviation by the guess and the group's own times, without whole graphs."""
        times = self._timed.get(key, [])
        if key in self._features or key in self._expected:
            guess = self._prior(key)
            return _product([guess, _combined(times)]) if times else guess
        if not times:
            raise KeyError(f"nothing is known of the group {key[:12]}")
        return _combined(times)

    @cached_property
    def _posterior(self) -> dict[str, tuple[float, float]]:
        """Mean and deviation of the groups that whole graphs say something of."""
        touched = sorted({key for one in self._differences for key in {*one.plus, *one.minus}})
        if not touched:
            return {}
        place = {key: number for number, key in enumerate(touched)}
        counts = np.zeros((len(self._differences), len(touched)))
        for row, one in enumerate(self._differences):
            for sign, keys in ((1, one.plus), (-1, one.minus)):
                for key, count in keys.items():
                    counts[row, place[key]] += sign * count
        mean, sd = np.array([self._alone(key) for key in touched]).T
        told = np.array([one.ms for one in self._differences])
        noise = np.array([one.sd for one in self._differences]) ** 2
        mean, variance = conditioned(mean, sd**2, counts, told, noise)
        return {key: (float(mean[number]), float(variance[number]) ** 0.5) for key, number in place.items()}


def conditioned(mean: Any, variance: Any, counts: Any, told: Any, noise: Any) -> tuple[Any, Any]:
    """Means and variances of independent Gaussian costs, given that `counts @ costs` was `told`, give or take noise (a variance).

    Equations that contradict one another, or the costs, by more than their noise explains are believed less, all alike
    (the Birge ratio): a kernel in a whole graph runs on other caches than the kernel that was timed.
    """
    weighted = counts * variance
    explained = weighted @ counts.T
    # what is told without any noise, twice over, would leave nothing to invert
    noise = np.maximum(noise, 1e-9 * explained.diagonal().max())
    surprise = told - counts @ mean
    covariance = explained + np.diag(noise * _excess(explained, noise, surprise))
    gain = np.linalg.solve(covariance, weighted).T
    left = variance - np.einsum("ij,ji->i", gain, weighted)
    # rounding can eat all of a variance where an equation settles it
    return mean + gain @ surprise, np.maximum(left, 1e-12 * variance)


def _excess(explained: Any, noise: Any, surprise: Any) -> float:
    """The least factor of the noise, 1 or more, with which the surprise is no larger than chance makes it (two deviations)."""
    limit = len(surprise) + 2.0 * (2.0 * len(surprise)) ** 0.5

    def surprising(factor: float) -> bool:
        return float(surprise @ np.linalg.solve(explained + np.diag(noise * factor), surprise)) > limit

    if not surprising(1.0):
        return 1.0
    low, high = 1.0, float(surprise**2 @ (1.0 / noise)) / limit
    for _ in range(EXCESS_ROUNDS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if surprising(middle) else (low, middle)
    return high


def fitted(features: Sequence[tuple[float, float]], ms: Sequence[float]) -> tuple[Any, float]:
    """Milliseconds for a kernel, a byte and an operation, none negative, by groups' (bytes, operations) and times.

    Robust: what lies far off its prediction weighs less. Few groups set the scale and leave the proportions as they start. Also
    the deviation of the times from the prediction, as a share of it; never below LEAST_SPREAD.
    """
    if not len(ms):
        return START_MS, UNFITTED_SPREAD
    rows, times = np.array([(1.0, *one) for one in features]), np.array(ms)
    scaled = START_MS * float(np.median(times / (rows @ START_MS)))
    rates = scaled
    ridge = START_WEIGHT * np.diag(1.0 / scaled)
    off = times / (rows @ rates) - 1.0
    for _ in range(FIT_ROUNDS):
        # errors are shares: of the geometric mean of time and prediction, so that twice and half are equally wrong
        weights = 1.0 / np.sqrt(times * (rows @ rates))
        weights *= np.sqrt(np.minimum(1.0, OUTLIER_SHARE / np.maximum(np.abs(off), 1e-9)))
        left = np.vstack([rows * weights[:, None], ridge])
        right = np.concatenate([times * weights, ridge @ scaled])
        # in units of the start's rates, of which bytes and kernels differ by orders of magnitude
        rates = scaled * np.maximum(nnls(left * scaled, right)[0], 1e-6)
        off = np.log(times / (rows @ rates))
    scatter = 1.4826 * float(np.median(np.abs(off)))
    spread = np.sqrt((len(times) * scatter**2 + PRIOR_GROUPS * PRIOR_SPREAD**2) / (len(times) + PRIOR_GROUPS))
    return rates, float(np.clip(spread, LEAST_SPREAD, UNFITTED_SPREAD))


def calibrated(stored: Sequence[GroupTime], now: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """What other processes' times say of groups here: key -> milliseconds and deviation, for groups that are not in `now`.

    now: milliseconds of groups timed in the process at hand. Processes differ by a factor, the median ratio of the groups in
    common; where there are none the factor is taken as 1, with a wide deviation.
    """
    processes: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for time in stored:
        if time.ms > 0:
            processes[time.process][time.key].append(time.ms)
    told: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for times in processes.values():
        seen = {key: median(ms) for key, ms in times.items()}
        factor, spread = _factor([now[key] / ms for key, ms in seen.items() if now.get(key, 0.0) > 0])
        for key, ms in seen.items():
            if key not in now:
                told[key].append((ms * factor, ms * factor * spread))
    result = {}
    for key, guesses in told.items():
        mean, sd = _product(guesses)
        result[key] = (mean, max(sd, LEAST_CALIBRATED_SPREAD * mean))
    return result


def _factor(ratios: Sequence[float]) -> tuple[float, float]:
    """By how much times of a process are to be multiplied, and the deviation of what comes out, as a share."""
    if not ratios:
        return 1.0, OTHER_PROCESS_SPREAD
    logs = np.log(ratios)
    scatter = 1.4826 * float(np.median(np.abs(logs - np.median(logs))))
    count = len(ratios)
    one = (count * scatter**2 + SAME_KERNEL_GROUPS * SAME_KERNEL_SPREAD**2) / (count + SAME_KERNEL_GROUPS)
    # of the single kernel, and of the factor
    return float(np.exp(np.median(logs))), float(np.sqrt(one + one / count))


def _combined(times: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Mean and deviation by several times of one group; wider where they contradict one another."""
    mean, sd = _product(times)
    if len(times) > 1:
        ratio = sum(((ms - mean) / one) ** 2 for ms, one in times) / (len(times) - 1)
        sd *= max(1.0, ratio) ** 0.5
    return mean, sd


def _product(guesses: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Mean and deviation of the product of Gaussians."""
    weights = [1.0 / sd**2 for _, sd in guesses]
    total = sum(weights)
    return sum(weight * mean for weight, (mean, _) in zip(weights, guesses, strict=True)) / total, total**-0.5


def _positive(sd: float) -> float:
    """A deviation that can be divided by: below a picosecond nothing is known better."""
    return max(sd, 1e-9)
