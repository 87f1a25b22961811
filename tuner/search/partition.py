"""The grouping of least cost, exactly: each leaf is in one group, and the groups can run one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_array

Group = frozenset[int]
# What one group more costs, of the dearest: enough to choose between groupings of equal cost, too little to choose anything else.
PER_GROUP = 1e-6
# The solver takes differences under 1e-6 for none: costs are scaled so that the dearest group costs this.
SCALE = 1e4
# A share this close to 0 or 1 is 0 or 1.
WHOLE = 1e-6
# Groups for each leaf that the first exact program has: those that look best.
FIRST_TRIED = 6
LEAST_SECONDS = 0.05
# the status of scipy's solvers
INFEASIBLE = 2


class NothingCovers(Exception):
    """No choice of groups covers the leaves, or none without a circle was found in time."""


def best_partition(
    leaves: Iterable[int], costs: Mapping[Group, float], after: Iterable[tuple[int, int]], seconds: float = 10.0
) -> list[Group]:
    """Groups of `costs`, each leaf in one of them, whose costs sum to least; of those that cost the same, fewest groups.

    after: pairs (a, b) of leaves where a runs before b. Groups that would have to wait for each other in a circle are never
    chosen together: circles are forbidden as they turn up, until none does. After `seconds` the best that is known is taken, its
    circles broken up into single leaves. The order of the arguments does not matter.

    Raises NothingCovers where no choice of groups covers the leaves without a circle, ValueError where a cost is no number or
    infinite.
    """
    wanted = frozenset(leaves)
    if not wanted:
        return []
    program = _Program(wanted, costs)
    pairs = sorted({(a, b) for a, b in after if a != b and a in wanted and b in wanted})
    ends = time.monotonic() + seconds
    chosen = program.solve(seconds)
    while circles := _circles(chosen, pairs):
        if time.monotonic() >= ends:
            chosen = _without_circles(chosen, pairs, costs)
            break
        for circle in circles:
            program.forbid(circle)
        chosen = program.solve(max(ends - time.monotonic(), 0.0), chosen)
    return sorted(chosen, key=min)


class _Program:
    """One variable for each group, whether it is chosen; one equation for each leaf; one inequality for each circle."""

    def __init__(self, leaves: Group, costs: Mapping[Group, float]):
        self.groups = sorted((group for group in costs if group and group <= leaves), key=lambda group: sorted(group))
        self.holding: dict[int, list[int]] = {leaf: [] for leaf in sorted(leaves)}
        for column, group in enumerate(self.groups):
            for leaf in group:
                self.holding[leaf].append(column)
        if bare := [leaf for leaf, columns in self.holding.items() if not columns]:
            raise NothingCovers(f"no group holds leaf {bare[0]}")
        prices = np.array([costs[group] for group in self.groups], dtype=float)
        if not np.isfinite(prices).all():
            raise ValueError("a cost that is no finite number")
        dearest = float(np.abs(prices).max()) or 1.0
        self._prices = prices * (SCALE / dearest) + SCALE * PER_GROUP
        self._circles: list[list[int]] = []
        self._most: list[float] = []

    def forbid(self, circle: Sequence[tuple[int, int]]) -> None:
        """Groups that stand at the places of a circle are not all chosen, nor any others that would close it.

        Each place is told by the leaf by which the circle comes into a group, and that by which it leaves it: whatever groups
        hold both, the circle is the same. Of the groups of one place only one can be chosen, as they share a leaf; and where all
        places have different ones, the circle is closed.
        """
        columns = {column for enters, leaves in circle for column in set(self.holding[enters]) & set(self.holding[leaves])}
        self._circles.append(sorted(columns))
        self._most.append(len(circle) - 1.0)

    def solve(self, seconds: float, known: Sequence[Group] | None = None) -> list[Group]:
        """The cheapest choice; `known`, or every leaf alone, where time is up before there is any.

        Shares of groups are allowed first: that is quick, a bound, and most often a choice already. It also tells of each group
        by how much it would worsen things. The exact program then needs only those groups that worsen things by no more than
        what lies between the bound and a choice that is known, which are few.
        """
        ends = time.monotonic() + max(seconds, LEAST_SECONDS)
        count, matrix = len(self.holding), self._matrix()
        shared: Any = linprog(
            self._prices,
            A_eq=matrix[:count],
            b_eq=np.ones(count),
            A_ub=matrix[count:] if matrix.shape[0] > count else None,
            b_ub=self._most if self._most else None,
            bounds=(0, None),
            options={"time_limit": max(seconds, LEAST_SECONDS)},
        )
        if shared.status == INFEASIBLE:
            raise NothingCovers("no choice of groups covers the leaves")
        if shared.x is None:
            found = self._exactly(np.arange(len(self.groups)), matrix, ends)
            return self._unsolved(known) if found is None else self._chosen(found)
        if np.abs(shared.x - shared.x.round()).max() < WHOLE:
            return self._chosen(shared.x)
        worse = np.asarray(shared.lower.marginals)
        tried = np.argsort(worse, kind="stable")[: FIRST_TRIED * count]
        found = self._exactly(np.sort(tried), matrix, ends)
        needed = np.flatnonzero(worse <= (np.inf if found is None else self._prices @ found - shared.fun + WHOLE))
        if not np.isin(needed, tried).all():
            better = self._exactly(needed, matrix, ends)
            found = found if better is None else better
        return self._unsolved(known) if found is None else self._chosen(found)

    def _exactly(self, columns: Any, matrix: Any, ends: float) -> Any:
        """Which groups are chosen, 1 or 0, when only `columns` may be; None where they cover nothing, or time is up."""
        count = len(self.holding)
        least = np.where(np.arange(matrix.shape[0]) < count, 1.0, -np.inf)
        result: Any = milp(
            self._prices[columns],
            integrality=np.ones(len(columns)),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(matrix[:, columns], least, np.array([1.0] * count + self._most)),
            options={"time_limit": max(ends - time.monotonic(), LEAST_SECONDS), "mip_rel_gap": 0.0},
        )
        if result.x is None:
            if result.status == INFEASIBLE and len(columns) == len(self.groups):
                raise NothingCovers("no choice of groups covers the leaves")
            return None
        found = np.zeros(len(self.groups))
        found[columns] = result.x.round()
        return found

    def _chosen(self, shares: Any) -> list[Group]:
        return [group for group, share in zip(self.groups, shares, strict=True) if share > 0.5]

    def _unsolved(self, known: Sequence[Group] | None) -> list[Group]:
        alone = [frozenset((leaf,)) for leaf in self.holding]
        if known or set(alone) <= set(self.groups):
            return list(known or alone)
        raise NothingCovers("no choice of groups was found in time")

    def _matrix(self) -> Any:
        rows = [*self.holding.values(), *self._circles]
        starts = np.cumsum([0, *map(len, rows)])
        columns = np.concatenate([np.array(row, dtype=np.int64) for row in rows])
        return csr_array((np.ones(len(columns)), columns, starts), shape=(len(rows), len(self.groups)))


def _circles(groups: Sequence[Group], pairs: Iterable[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Shortest circles in which groups wait for each other, one by each group that is in any; none where there is none.

    A circle is told by the leaves by which it comes into each of its groups, and leaves it.
    """
    of = {leaf: number for number, group in enumerate(groups) for leaf in group}
    edges: list[dict[int, tuple[int, int]]] = [{} for _ in groups]
    for a, b in pairs:
        if of[a] != of[b]:
            edges[of[a]].setdefault(of[b], (a, b))
    found: dict[frozenset[int], list[tuple[int, int]]] = {}
    for start in _stuck(edges):
        if way := _way_back(edges, start):
            crossed = [edges[one][following] for one, following in zip(way, (*way[1:], way[0]), strict=True)]
            enters = [crossed[i - 1][1] for i in range(len(way))]
            found.setdefault(frozenset(way), list(zip(enters, (a for a, _ in crossed), strict=True)))
    return list(found.values())


def _stuck(edges: Sequence[Mapping[int, Any]]) -> list[int]:
    """Groups that can never run, as they wait, directly or not, for a circle."""
    waiting = [0] * len(edges)
    for row in edges:
        for following in row:
            waiting[following] += 1
    ready = [one for one, count in enumerate(waiting) if not count]
    for one in ready:
        for following in edges[one]:
            waiting[following] -= 1
            if not waiting[following]:
                ready.append(following)
    return [one for one, count in enumerate(waiting) if count]


def _way_back(edges: Sequence[Mapping[int, Any]], start: int) -> list[int] | None:
    """The shortest way from a group to itself, each group once; None where there is none."""
    came: dict[int, int] = {}
    queue = [start]
    for here in queue:
        for following in edges[here]:
            if following == start:
                way = [here]
                while way[-1] != start:
                    way.append(came[way[-1]])
                return way[::-1]
            if following not in came:
                came[following] = here
                queue.append(following)
    return None


def _without_circles(groups: Sequence[Group], pairs: Sequence[tuple[int, int]], costs: Mapping[Group, float]) -> list[Group]:
    """The groups, those broken up into single leaves that stand in the way of running one after the other."""
    chosen = list(groups)
    while circles := _circles(chosen, pairs):
        held = {leaf: group for group in chosen for leaf in group}
        breakable = [
            group
            for group in {held[enters]: None for enters, _ in circles[0]}
            if len(group) > 1 and all(frozenset((leaf,)) in costs for leaf in group)
        ]
        if not breakable:
            raise NothingCovers("no choice of groups without a circle was found in time")
        broken = min(breakable, key=lambda group: sum(costs[frozenset((leaf,))] for leaf in group) - costs[group])
        chosen.remove(broken)
        chosen += [frozenset((leaf,)) for leaf in sorted(broken)]
    return chosen
