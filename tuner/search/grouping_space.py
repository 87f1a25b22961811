"""The groupings of one graph under given lowering choices: what may be chosen in each region, and what that may cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tuner.anatomy import Anatomy
from tuner.plan import Groups, Plan
from tuner.search.kernel_costs import KernelCosts
from tuner.search.partition import NothingCovers, best_partition
from tuner.search.progress import Progress
from tuner.search_spaces.fusion import Region, convex_groups, lifted, regions, regrouped
from tuner.search_spaces.groups import waits
from tuner.search_spaces.links import realised_links

# Groups of all regions together, of one region at least so many. Of regions beyond, those that move least keep their groups.
MAX_GROUPS, LEAST_GROUPS = 4_000, 200
# Seconds for one partition of one region, and of all together.
SOLVE_S, SOLVE_ALL_S = 5.0, 20.0

# A group of a region: the region's number, and leaves of its first occurrence.
Choice = tuple[int, frozenset[int]]


def by_place(choice: Choice) -> tuple[int, list[int]]:
    """A fixed order of choices."""
    return choice[0], sorted(choice[1])


@dataclass(frozen=True)
class RegionSpace:
    """What may be chosen in one region: keys of groups, by leaves of its first occurrence. after: pairs: a runs before b."""

    region: Region
    groups: Mapping[frozenset[int], str]
    after: tuple[tuple[int, int], ...]

    @property
    def leaves(self) -> tuple[int, ...]:
        return self.region.occurrences[0]

    @cached_property
    def first(self) -> dict[int, int]:
        """The leaf of the first occurrence that a leaf of any corresponds to."""
        return {leaf: same[0] for same in zip(*self.region.occurrences, strict=True) for leaf in same}

    @cached_property
    def members(self) -> frozenset[int]:
        """The leaves of all occurrences."""
        return frozenset(self.first)


class GroupingSpace:
    """anatomy: of the base, a plan without groups; its groups stay where nothing is chosen. spaces: the regions in which
    something may be chosen. links_asked: how often the compiler is asked which pairs of leaves it fuses, at most.
    """

    def __init__(self, base: Plan, anatomy: Anatomy, costs: KernelCosts, progress: Progress, links_asked: int):
        self.base, self.anatomy, self.costs = base, anatomy, costs
        self.banned: set[Choice] = set()
        # Regions in which nothing is chosen any more.
        self.closed: set[int] = set()
        # In how many whole measurements a group was, by key: what it could gain was seen there, if not what it costs.
        self.seen: Counter[str] = Counter()
        found = [region for region in regions(anatomy) if len(region.occurrences[0]) > 1]
        moved = {region.key: anatomy.bytes_of(region.occurrences[0]) * len(region.occurrences) for region in found}
        found.sort(key=lambda region: (-moved[region.key], region.key))
        chosen = found[: MAX_GROUPS // LEAST_GROUPS]
        if len(found) > len(chosen):
            progress.notes.append(f"groups are sought in {len(chosen)} of {len(found)} regions")
        links = realised_links(anatomy, chosen, self._made_of, links_asked) if chosen else frozenset()
        limit = max(LEAST_GROUPS, MAX_GROUPS // max(1, len(chosen)))
        self.spaces = [self._space(region, limit, links) for region in chosen]
        costs.describe(anatomy, anatomy.grouped)

    def _made_of(self, groups: Groups) -> Groups | None:
        """What the compiler makes of a grouping; None where it says nothing, or where there is no time to ask."""
        if not self.costs.trials.budget.in_time:
            return None
        made = self.costs.anatomy(replace(self.base, groups=groups))
        return made.groups if isinstance(made, Anatomy) else None

    def _space(self, region: Region, limit: int, links: frozenset[frozenset[int]]) -> RegionSpace:
        groups = self.costs.describe(self.anatomy, convex_groups(self.anatomy, region, limit, links))
        return RegionSpace(region, groups, tuple(waits(self.anatomy, region.occurrences[0])))

    def numbers(self, groups: Groups) -> list[frozenset[int]]:
        return [frozenset(self.anatomy.number[leaf] for leaf in group) for group in groups]

    def keys(self, groups: Groups) -> Counter[str]:
        """The groups' keys, each as often as it occurs."""
        numbers = self.numbers(groups)
        keys = self.costs.describe(self.anatomy, numbers)
        return Counter(keys[group] for group in numbers)

    def difference_ms(self, groups: Groups, deviations: float) -> float:
        """By how much a call with these groups is slower than with the base's; unknown groups cost so many deviations less."""
        counts = self.keys(groups)
        counts.subtract(self.keys(self.anatomy.groups))
        return sum(count * self._cost(key, deviations) for key, count in counts.items() if count)

    def _cost(self, key: str, deviations: float) -> float:
        estimate = self.costs.estimate(key)
        return estimate.mean if estimate.known or key in self._base_keys else estimate.low(deviations / (1 + self.seen[key]))

    @cached_property
    def _base_keys(self) -> frozenset[str]:
        return frozenset(self.keys(self.anatomy.groups))

    def cheapest(self, deviations: float | None, without: Iterable[Choice] = ()) -> Groups:
        """The grouping of least cost, each region by itself; where none is cheaper than the base's groups, those.

        deviations: what unknown groups are given; None: only known ones are chosen. without: what else is left out.
        """
        out = self.banned | set(without)
        made: list[frozenset[int]] = []
        for number, space in enumerate(self.spaces):
            if number in self.closed:
                continue
            costs = {
                group: self._cost(key, deviations or 0.0)
                for group, key in space.groups.items()
                if (number, group) not in out and (deviations is not None or self.costs.estimate(key).known)
            }
            try:
                found = best_partition(space.leaves, costs, space.after, self._solve_s)
            # Not every leaf has a group, as some kernels were never timed.
            except NothingCovers:
                continue
            if sum(costs[group] for group in found) * len(space.region.occurrences) < self._base_ms(space):
                made += lifted(self.anatomy, space.region, found)
        return regrouped(self.anatomy, made)

    def _base_ms(self, space: RegionSpace) -> float:
        """What the base's groups cost in all occurrences of a region; of one that reaches out of it, the part by its leaves."""
        touched = [group for group in self.anatomy.grouped if not group.isdisjoint(space.members)]
        keys = self.costs.describe(self.anatomy, touched)
        return sum(self._cost(keys[group], 0.0) * len(group & space.members) / len(group) for group in touched)

    def choices(self, groups: Iterable[frozenset[int]]) -> set[Choice]:
        """The groups of more than one leaf, in whatever occurrence, as choices of their regions."""
        found: set[Choice] = set()
        for group in groups:
            for number, space in enumerate(self.spaces):
                if len(group) > 1 and group <= space.members:
                    found.add((number, frozenset(space.first[leaf] for leaf in group)))
        return found

    @property
    def _solve_s(self) -> float:
        """Seconds for one region's partition now: all of them together are to be done within what is left."""
        left_s = max(self.costs.trials.budget.left_s, 0.0)
        return min(SOLVE_S, min(SOLVE_ALL_S, left_s) / len(self.spaces))

    @cached_property
    def _base_choices(self) -> frozenset[Choice]:
        return frozenset(self.choices(self.anatomy.grouped))

    def chosen(self, groups: Groups) -> list[Choice]:
        """The choices in which a grouping differs from the base, in a fixed order."""
        return sorted(self.choices(self.numbers(groups)) - self._base_choices, key=by_place)

    def least_known(self, choices: Iterable[Choice]) -> Choice:
        return max(choices, key=lambda one: (self.costs.estimate(self._key(one)).sd, *by_place(one)))

    def unknown(self, groups: Groups) -> list[Choice]:
        """The choices of a grouping that have no known cost, in a fixed order."""
        found = self.choices(self.numbers(groups))
        return sorted((one for one in found if not self.is_known(one)), key=by_place)

    def was_seen(self, choice: Choice) -> bool:
        """Whether a whole graph that holds it was right and within its limits."""
        return self.seen[self._key(choice)] > 0

    def is_known(self, choice: Choice) -> bool:
        return self.costs.estimate(self._key(choice)).known

    def _key(self, choice: Choice) -> str:
        return self.costs.describe(self.anatomy, [choice[1]])[choice[1]]

    def only(self, chosen: Sequence[Choice]) -> Groups:
        """A grouping of these choices; the other leaves of their regions are by themselves."""
        made: list[frozenset[int]] = []
        for number in sorted({number for number, _ in chosen}):
            space, groups = self.spaces[number], [group for one, group in chosen if one == number]
            taken = frozenset[int]().union(*groups)
            singles = [frozenset({leaf}) for leaf in space.leaves if leaf not in taken]
            made += lifted(self.anatomy, space.region, [*groups, *singles])
        return regrouped(self.anatomy, made)

    def keep_what_fits(self, count: int) -> int:
        """Chooses from now on only in as many regions, from the first, as have `count` leaves that nobody has timed, at most.

        How many these have. In the other regions nothing could be predicted. To be called before anything is chosen.
        """
        fresh: set[str] = set()
        kept: list[RegionSpace] = []
        for space in self.spaces:
            singles = {space.groups[frozenset({leaf})] for leaf in space.leaves}
            more = {key for key in singles if not self.costs.estimate(key).known}
            if len(fresh | more) <= count:
                fresh |= more
                kept.append(space)
        self.spaces = kept
        return len(fresh)

    def alone(self, numbers: Iterable[int]) -> Groups:
        """The leaves of these regions by themselves, in all occurrences."""
        return regrouped(self.anatomy, [frozenset({leaf}) for number in numbers for leaf in self.spaces[number].first])
