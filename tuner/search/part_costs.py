"""What a group of leaves costs, guessed from what its leaves cost alone, and from other groups in which leaves met.

Fusing saves the bytes that need not be moved, at a rate to be learnt, and it changes how the rest is computed: for better, where
loops are shared, or for worse, where one loop spoils another's vectors. How two leaves get on is taken as the same in all groups
that have both. So a group's cost is the sum of its leaves', less rate x bytes saved, plus a term for each pair of its leaves,
plus a rest of its own; rate and pairs are Gaussian, and known from the groups that were timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np

# of the milliseconds that a byte takes in leaves alone: expected of a byte saved, and the deviation of that
SAVING, SAVING_SPREAD = 0.5, 0.25
# deviations: of a pair's term, as a share of what both cost alone; of a group's rest, as a share of what all its leaves do; of a
# timed group's time
PAIR_SPREAD, REST_SPREAD, TIME_SPREAD = 0.12, 0.06, 0.02
# fusing never hides the costliest leaf altogether
LEAST_OF_COSTLIEST = 0.7

Pair = tuple[str, str]


@dataclass(frozen=True)
class Whole:
    """A group. parts: how many leaves of each key it has. saved_bytes: what its leaves alone move more than it does."""

    parts: Mapping[str, int]
    saved_bytes: float


class PartCosts:
    """alone: milliseconds of each leaf by itself, and its bytes. timed: groups of several leaves with their milliseconds.

    All parts of what is timed or asked must be in `alone`.
    """

    def __init__(self, alone: Mapping[str, tuple[float, float]], timed: Sequence[tuple[Whole, float]]):
        self.alone = alone
        per_byte = [ms / count for ms, count in alone.values() if count > 0]
        self.per_byte = median(per_byte) if per_byte else 0.0
        self.pairs: dict[Pair, int] = {}
        for whole, _ in timed:
            for pair, _ in _pairs(whole):
                self.pairs.setdefault(pair, len(self.pairs))
        # first the rate, then each pair; all in units of their deviations
        self.known = np.zeros((len(timed), 1 + len(self.pairs)))
        for row, (whole, _) in enumerate(timed):
            for column, value in self._terms(whole).items():
                self.known[row, column] = value
        rest = np.array([self._rest(whole) ** 2 + (TIME_SPREAD * ms) ** 2 for whole, ms in timed])
        self.inverse: Any = np.linalg.inv(self.known @ self.known.T + np.diag(rest + 1e-18)) if timed else np.zeros((0, 0))
        self.weights = self.inverse @ np.array([ms - self._expected(whole) for whole, ms in timed])

    def guess(self, whole: Whole) -> tuple[float, float]:
        """Mean and deviation, milliseconds. Raises KeyError for a leaf whose cost is not known."""
        terms = self._terms(whole)
        columns = [column for column in terms if column < self.known.shape[1]]
        values = np.array([terms[column] for column in columns])
        shared = self.known[:, columns] @ values
        mean = self._expected(whole) + float(shared @ self.weights)
        variance = sum(value**2 for value in terms.values()) + self._rest(whole) ** 2 - float(shared @ self.inverse @ shared)
        costliest = max(self.alone[key][0] for key in whole.parts)
        return max(mean, LEAST_OF_COSTLIEST * costliest), max(variance, self._rest(whole) ** 2) ** 0.5

    def _sum(self, whole: Whole) -> float:
        return sum(self.alone[key][0] * count for key, count in whole.parts.items())

    def _expected(self, whole: Whole) -> float:
        return self._sum(whole) - SAVING * self.per_byte * whole.saved_bytes

    def _rest(self, whole: Whole) -> float:
        return REST_SPREAD * self._sum(whole)

    def _terms(self, whole: Whole) -> dict[int, float]:
        """By column, the group's share in the rate and in each pair, in their deviations; pairs of no timed group come last."""
        terms = {0: SAVING_SPREAD * self.per_byte * whole.saved_bytes}
        unknown = len(self.pairs)
        for pair, count in _pairs(whole):
            place = self.pairs.get(pair)
            if place is None:
                place, unknown = unknown, unknown + 1
            terms[1 + place] = count * PAIR_SPREAD * (self.alone[pair[0]][0] + self.alone[pair[1]][0])
        return terms


def _pairs(whole: Whole) -> Iterator[tuple[Pair, int]]:
    """Every two of its leaves, by keys, and how often they meet."""
    parts = sorted(whole.parts.items())
    for key, count in parts:
        if count > 1:
            yield (key, key), count * (count - 1) // 2
    for (one, count), (other, others) in combinations(parts, 2):
        yield (one, other), count * others
