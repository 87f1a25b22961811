"""The search for a grouping under given lowering choices: the cheapest partition by what groups are believed to cost.

What a group costs is learnt from profiles, in which each group is a kernel of its own, and from whole measurements. The partition
of least cost is computed, not searched; groups that nobody has timed are given the benefit of the doubt, so that the cheapest
partition names what is worth a profile. What that takes grows with the distinct regions of a graph, not with their occurrences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tuner.anatomy import Anatomy
from tuner.errors import one_line
from tuner.plan import Groups, Plan
from tuner.search.grouping_space import Choice, GroupingSpace
from tuner.search.kernel_costs import KernelCosts
from tuner.search.proposals import Result
from tuner.search.trials import Trials
from tuner.search_spaces.fusion import no_fusion
from tuner.search_spaces.space import Candidate

# A proposal has to be predicted to win by this, relative to the best that was measured. The best of what is known is measured
# even if it is predicted to lose by less than NEAR.
WORTH, NEAR = 0.01, 0.02
# Deviations that unknown groups are given, one after the other: the next where by the one before nothing is worth a profile.
DOUBT = (1.0, 1.6)
# A larger graph is left to the compiler's grouping.
MAX_LEAVES = 6_000
# Proposals in a row that the compiler groups otherwise, and that lead to nothing.
MAX_UNREACHABLE = 20
# Profiles between two whole measurements of the best known, where that is predicted to win; seconds of all that are kept for it.
PROFILES_APART, KEPT = 4, 0.15
# Of what is left: at most for timing each leaf alone.
SPENT_ON_LEAVES = 0.7
# How often the group of which least is known is left out of a best that was slower than predicted.
DETOURS = 3
# By how much a search is shorter where the store knows what each leaf alone costs.
KNOWN_BEFORE = 3
# What a solver or a fit raises where numbers get out of hand, numpy's LinAlgError among them; leaves in a circle, too.
OUT_OF_HAND = (RuntimeError, ArithmeticError, ValueError)
# The least deviation of a whole measurement, relative: below, identical code differs.
WHOLE_NOISE = 0.004


class GroupSearch:
    """Groupings under `base`, a plan without groups. ratio: its speed-up over the default, as measured; 1 for the default itself.

    default_ms: of a call, whole. costs: shared with searches under other plans.
    """

    phase = "groups"
    ahead = False

    def __init__(self, trials: Trials, costs: KernelCosts, base: Plan, ratio: float, default_ms: float, share: float = 1.0):
        self.trials, self.costs, self.base, self.share = trials, costs, base, share
        self.default_ms, self.base_ms = default_ms, default_ms / ratio
        self.space: GroupingSpace | None = None
        # Of what was measured here: milliseconds of the whole, by groups; infinite where it failed.
        self.whole_ms: dict[Groups, float] = {}
        self._profiled: set[Groups] = set()
        self._patience = trials.effort.dry
        # Pieces of a proposal whose profile failed, and what is proposed next.
        self._pieces: list[Groups] = []
        self._waiting: Groups | None = None
        self._opened = self._explored = self._done = False
        self._doubt = self._dry = self._unreachable = self._since_whole = 0
        self._resting: set[Choice] = set()
        self._least_ms = self._reached_ms = float("inf")
        # Requests that the compiler makes otherwise, and that led to nothing.
        self._futile: set[Groups] = set()

    def next(self, count: int) -> list[Candidate]:
        with self._ending():
            if not self._opened:
                self._opened = True
                self._open()
            while self._waiting is None and not self._done and self.trials.budget.left(self.share):
                self._step()
        if self._done or self._waiting is None or self._waiting in self.whole_ms:
            return []
        self.whole_ms[self._waiting] = float("inf")
        label = "groups" if any(len(group) > 1 for group in self._waiting) else "no fusion"
        return [Candidate(label, replace(self.base, groups=self._waiting))]

    def told(self, candidate: Candidate, result: Result) -> None:
        groups, self._waiting = self._waiting, None
        assert groups is not None
        with self._ending():
            self._learn(groups, result)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """The one place where numbers that got out of hand end the search, with a note: they are no candidate's fault, nor worth
        a sweep.
        """
        try:
            yield
        except OUT_OF_HAND as error:
            self._end(f"no more groups are sought: {one_line(error)}")

    def _learn(self, groups: Groups, result: Result) -> None:
        """Takes in what became of a grouping that was put forward."""
        assert self.space is not None
        self._since_whole = 0
        if result.ratio is None:
            # Whatever of it is in nothing that was right; else it fails together only.
            if suspects := [one for one in self.space.chosen(groups) if not self.space.was_seen(one)]:
                self._take_apart(suspects)
            else:
                self._set_aside(groups)
            return
        if not result.admissible:
            # Its halves, with more leaves by themselves, might need even more memory, and say nothing of why.
            self._set_aside(groups)
        ms = self.default_ms / result.ratio
        if result.admissible:
            self.space.seen.update(set(self.space.keys(groups)))
            self.whole_ms[groups] = ms
        if not self._profiling:
            self._count_dry(result.admissible and ms < self._reached_ms * (1 - WORTH))
        self._reached_ms = self._best_ms
        if result.measurement is not None:
            noise = max(result.noise, WHOLE_NOISE) * (ms**2 + self.base_ms**2) ** 0.5
            plus, minus = self.space.keys(groups), self.space.keys(self.space.anatomy.groups)
            self.costs.observe_whole(plus, minus, ms - self.base_ms, noise)

    @property
    def _profiling(self) -> bool:
        return not self.costs.refused

    @property
    def _best_ms(self) -> float:
        best = max((finalist.ratio for finalist in self.trials.passed), default=1.0)
        return min([self.default_ms / max(best, 1.0), *self.whole_ms.values()])

    def _gain(self, groups: Groups, deviations: float = 0.0) -> float:
        """By how much it is predicted to beat the best measured, relative."""
        assert self.space is not None
        ms = self.whole_ms.get(groups) or self.base_ms + self.space.difference_ms(groups, deviations)
        return (self._best_ms - ms) / self._best_ms

    def _open(self) -> None:
        """Reads the anatomy, declares what may be chosen, and times the kernels of the base, and each leaf alone."""
        anatomy = self.costs.anatomy(self.base)
        if not isinstance(anatomy, Anatomy):
            self._end(f"no groups are sought: {anatomy.get('message') or anatomy['status']}")
            return
        if len(anatomy.leaves) > MAX_LEAVES:
            self._end(f"no groups are sought: {len(anatomy.leaves)} leaves are more than {MAX_LEAVES}")
            return
        self.space = space = GroupingSpace(self.base, anatomy, self.costs, self.trials.progress, self.trials.effort.dry)
        if not space.spaces:
            self._done = True
            return
        self._profile([anatomy.groups])
        # From here on in the milliseconds of the profile, of one process and one size.
        if total_ms := self.costs.totals.get(self.base.key):
            self.default_ms, self.base_ms = self.default_ms * total_ms / self.base_ms, total_ms
        self.whole_ms[anatomy.groups] = self._reached_ms = self.base_ms
        self.costs.recall(key for one in space.spaces for key in one.groups.values())
        if self._profiling and self.trials.budget.left(self.share):
            # As many regions as most of what is left is enough for.
            regions, seconds = len(space.spaces), self.trials.budget.left_s * SPENT_ON_LEAVES
            fresh = space.keep_what_fits(int(seconds / self.costs.kernel_s))
            if len(space.spaces) < regions:
                self.trials.progress.notes.append(f"{len(space.spaces)} of {regions} regions fit into the seconds")
            if fresh:
                self._time_leaves(range(len(space.spaces)))
            else:
                # Somebody has searched here before.
                self._patience //= KNOWN_BEFORE
        if (alone := no_fusion(anatomy.groups)) not in self.whole_ms:
            self._waiting = alone

    def _time_leaves(self, numbers: Sequence[int]) -> None:
        """Times the leaves of regions, each leaf alone; a region over which that fails is left as it is."""
        assert self.space is not None
        if not self._profile([self.space.alone(numbers)]) or not self._profiling:
            return
        half = len(numbers) // 2
        if not half:
            self.space.closed |= set(numbers)
            return
        for part in (numbers[:half], numbers[half:]):
            if self.trials.budget.left(self.share):
                self._time_leaves(part)

    def _end(self, note: str = "") -> None:
        self._note(note)
        self._done = True

    def _note(self, note: str) -> None:
        if note and note not in self.trials.progress.notes:
            self.trials.progress.notes.append(note)

    def _step(self) -> None:
        """One proposal: refused by the compiler, or profiled, or put forward to be measured whole; or the end."""
        if (groups := self._proposal()) is None:
            return
        assert self.space is not None
        realised = self.costs.anatomy(replace(self.base, groups=groups))
        if not isinstance(realised, Anatomy):
            self.trials.progress.refused["not lowered"] += 1
            self._leave_out(self.space.choices(self.space.numbers(groups)))
            self._futile.add(groups)
            return
        if realised.groups != groups:
            self._futile.add(groups)
            self.trials.progress.refused["unreachable grouping"] += 1
            self._unreachable += 1
            missing = set(self.space.numbers(groups)) - set(self.space.numbers(realised.groups))
            self._leave_out(self.space.choices(missing))
            groups = realised.groups
            if groups in self.whole_ms or groups in self._profiled or self._gain(groups, DOUBT[self._doubt]) <= WORTH:
                return
        self._unreachable = 0
        if self._profiling and groups not in self._profiled and self.space.unknown(groups):
            self._profile([groups])
        elif groups not in self.whole_ms:
            self._waiting = groups

    def _proposal(self) -> Groups | None:
        """What is worth a look next; None where something has to be thought over first, or where the search has ended."""
        assert self.space is not None
        if self._pieces:
            return self._pieces.pop()
        if self._profiling and (groups := self._best_known()) is not None:
            return groups
        if self._explored:
            self._end()
            return None
        groups = self.space.cheapest(DOUBT[self._doubt], self._resting)
        gain = self._gain(groups, DOUBT[self._doubt])
        if gain > WORTH and groups not in self._futile and not (groups in self._profiled and self.space.unknown(groups)):
            return groups
        if self._doubt + 1 < len(DOUBT):
            self._doubt += 1
        else:
            self._explored = True
        return None

    def _best_known(self) -> Groups | None:
        """The best of known groups, where it is time to measure it whole and that was not done."""
        assert self.space is not None
        budget = self.trials.budget
        last = budget.left(self.share) <= 2 or budget.left_s < KEPT * budget.seconds
        if not (self._explored or last or self._since_whole >= PROFILES_APART):
            return None
        groups = self.space.cheapest(None, self._resting)
        while groups in self.whole_ms:
            # Slower than predicted: another one, without the group of which least is known.
            slower = self.whole_ms[groups] > self._best_ms * (1 + WORTH)
            known = self.space.choices(self.space.numbers(groups)) - self._resting
            if not (slower and known and len(self._resting) < DETOURS):
                return None
            self._resting.add(self.space.least_known(known))
            groups = self.space.cheapest(None, self._resting)
        least = -NEAR if self._explored else WORTH
        return groups if self._gain(groups) > least and groups not in self._futile else None

    def _count_dry(self, better: bool) -> None:
        """Ends the exploration after so many profiles, or whole measurements, in a row that found nothing better."""
        self._dry = 0 if better else self._dry + 1
        if self._dry >= self._patience:
            self._explored = True

    def _leave_out(self, choices: set[Choice]) -> None:
        """From now on; where the compiler refuses whatever is asked, or only what was left out before, the exploration ends."""
        assert self.space is not None
        if choices <= self.space.banned or self._unreachable >= MAX_UNREACHABLE:
            self._explored = True
        self.space.banned |= choices

    def _take_apart(self, suspects: Sequence[Choice]) -> None:
        """Of what failed together: half by half, until it is known which fail alone."""
        assert self.space is not None
        if half := len(suspects) // 2:
            self._pieces += [self.space.only(suspects[:half]), self.space.only(suspects[half:])]
        elif suspects:
            self._leave_out(set(suspects))

    def _set_aside(self, groups: Groups) -> None:
        """Another grouping is to be the cheapest: without the choice of this one of which least is known, a few times."""
        assert self.space is not None
        if len(self._resting) < self._patience and (known := set(self.space.chosen(groups)) - self._resting):
            self._resting.add(self.space.least_known(known))

    def _profile(self, wanted: Sequence[Groups]) -> bool:
        """Times the kernels of groupings; one that fails is taken apart, until the groups are found that fail alone.

        Whether any failed.
        """
        assert self.space is not None
        self._profiled |= set(wanted)
        self._since_whole += 1
        base = self.space.anatomy.groups
        plans = {groups: self.base if groups == base else replace(self.base, groups=groups) for groups in wanted}
        unknown = {groups: self.space.unknown(groups) for groups in wanted}
        failed = self.costs.profile(list(plans.values()))
        if not self._profiling:
            self._note(f"kernels are not timed one by one: {self.costs.refused}")
            self.costs.spread(self.space.keys(base), self.base_ms)
            return True
        for groups, plan in plans.items():
            if plan.key not in failed:
                continue
            self.trials.progress.failed[str(failed[plan.key]["status"])] += 1
            self._take_apart(unknown[groups])
        least_ms = self.space.difference_ms(self.space.cheapest(None), 0.0)
        self._count_dry(least_ms < self._least_ms - WORTH * self._best_ms)
        self._least_ms = min(least_ms, self._least_ms)
        return bool(failed)
