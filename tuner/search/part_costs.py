"""What a group of leaves costs, guessed from what its leaves cost alone, and from other groups in which leaves met.

Fusing saves the bytes that need not be moved, at a rate to be learnt, and it changes how the rest is computed: for better, where
loops are shared, or for worse, where one loop spoils another's vectors. How two leaves get on is taken as the same in all groups
that have both. So a group's cost is the sum of its leaves', less rate x bytes saved, plus a term for each pair of its leaves,
plus a rest of its own; rate and pairs are Gaussian, and known from the groups that were timed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

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

    @cached_property
    def pairs(self) -> tuple[tuple[Pair, int], ...]:
        """Every two of its leaves, by keys, and how often they meet."""
        parts = sorted(self.parts.items())
        same = [((key, key), count * (count - 1) // 2) for key, count in parts if count > 1]
        return (*same, *(((one, other), count * others) for (one, count), (other, others) in combinations(parts, 2)))


class PartCosts:
    """alone: milliseconds of each leaf by itself, and its bytes. timed: groups of several leaves with their milliseconds.

    All parts of what is timed or asked must be in `alone`.
    """

    def __init__(self, alone: Mapping[str, tuple[float, float]], timed: Sequence[tuple[Whole, float]]):
        self.alone = alone
        per_byte = [ms / count for ms, count in alone.values() if count > 0]
        self.per_byte = median(per_byte) if per_byte else 0.0
        self.pairs: dict[Pair, int] = {}
        wholes, times = [whole for whole, _ in timed], np.array([ms for _, ms in timed])
        self.known = self._terms(wholes)
        noise = self._rests(wholes) ** 2 + (TIME_SPREAD * times) ** 2
        self.inverse = (
            np.linalg.inv((self.known @ self.known.T).toarray() + np.diag(noise + 1e-18)) if timed else np.zeros((0, 0))
        )
        self.weights = self.inverse @ (times - self._expected(wholes))

    def guesses(self, wholes: Sequence[Whole]) -> list[tuple[float, float]]:
        """Means and deviations, milliseconds. Raises KeyError for a leaf whose cost is not known."""
        terms = self._terms(wholes)
        # a pair that no timed group has is a doubt, and no more
        shared = (terms[:, : self.known.shape[1]] @ self.known.T).toarray()
        means = self._expected(wholes) + shared @ self.weights
        rests = self._rests(wholes) ** 2
        told = np.einsum("ij,ij->i", shared @ self.inverse, shared)
        variances = np.maximum(np.asarray(terms.multiply(terms).sum(axis=1)).ravel() - told, 0.0) + rests
        least = [LEAST_OF_COSTLIEST * max(self.alone[key][0] for key in whole.parts) for whole in wholes]
        return list(zip(np.maximum(means, least).tolist(), np.sqrt(variances).tolist(), strict=True))

    def _sums(self, wholes: Sequence[Whole]) -> Any:
        return np.array([sum(self.alone[key][0] * count for key, count in whole.parts.items()) for whole in wholes])

    def _expected(self, wholes: Sequence[Whole]) -> Any:
        return self._sums(wholes) - SAVING * self.per_byte * np.array([whole.saved_bytes for whole in wholes])

    def _rests(self, wholes: Sequence[Whole]) -> Any:
        return REST_SPREAD * self._sums(wholes)

    def _terms(self, wholes: Sequence[Whole]) -> Any:
        """A row for each: its share in the rate, then in each pair, in their deviations. Pairs that are new get columns."""
        rows, columns, values = [], [], []
        for row, whole in enumerate(wholes):
            rows.append(row)
            columns.append(0)
            values.append(SAVING_SPREAD * self.per_byte * whole.saved_bytes)
            for pair, count in whole.pairs:
                rows.append(row)
                columns.append(1 + self.pairs.setdefault(pair, len(self.pairs)))
                values.append(count * PAIR_SPREAD * (self.alone[pair[0]][0] + self.alone[pair[1]][0]))
        return csr_matrix((values, (rows, columns)), shape=(len(wholes), 1 + len(self.pairs)))
