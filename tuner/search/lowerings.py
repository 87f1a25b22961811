"""The search over what changes lowering: first each choice alone, then the best of them together, then the knobs' values."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from tuner.anatomy import Anatomy
from tuner.plan import Plan
from tuner.search.bench import DEFAULT
from tuner.search.kernel_costs import KernelCosts
from tuner.search.proposals import Result
from tuner.search.trials import Trials
from tuner.search_spaces.cut_sites import cut_sites
from tuner.search_spaces.lowering import joined, moved_cuts
from tuner.search_spaces.space import Candidate

# What a choice has to gain to be joined with others, relative; and beyond the noise of its measurement, in standard errors.
GAIN, ERRORS = 0.01, 2.0
# Choices that are tried on top of the best.
PARTNERS = 8
# Of the best choice's speed-up: what another has to have for its groups to be searched too, and the default.
NEAR_BEST, DEFAULT_NEAR = 0.97, 0.85


class Combining:
    """The best choice with the next best, as long as that gains; one proposal at a time."""

    phase = "combining"
    ahead = False

    def __init__(self, trials: Trials, costs: KernelCosts, share: float):
        self.trials, self.costs, self.share = trials, costs, share
        self._partners: deque[Plan] | None = None
        self.best, self.best_ratio = DEFAULT, 1.0
        self._waiting = False

    def next(self, count: int) -> list[Candidate]:
        if self._partners is None:
            gaining = gains(self.trials)
            if gaining:
                self.best, self.best_ratio = gaining[0]
            self._partners = deque(plan for plan, _ in gaining[1 : 1 + PARTNERS])
        while self._partners and not self._waiting:
            if (plan := self._joined(self._partners.popleft())) is not None:
                self._waiting = True
                return [Candidate("combined", plan)]
        return []

    def told(self, candidate: Candidate, result: Result) -> None:
        self._waiting = False
        if result.ratio is not None and result.admissible and result.ratio > self.best_ratio * (1 + max(GAIN / 2, result.noise)):
            self.best, self.best_ratio = candidate.plan, result.ratio

    def _joined(self, partner: Plan) -> Plan | None:
        plan = joined(self.best, partner)
        if plan is None:
            return None
        # Cuts are named by places in a graph that other native ops change.
        lost = [one for one in (self.best, partner) if not set(one.cuts) <= set(plan.cuts)]
        if lost and isinstance(anatomy := self.costs.anatomy(replace(plan, cuts=())), Anatomy):
            sites = cut_sites(anatomy)
            cuts = {cut for one in lost for cut in moved_cuts(one.cuts, sites)}
            plan = replace(plan, cuts=tuple(sorted({*plan.cuts, *cuts})))
        return None if plan in (self.best, partner) else plan


def gains(trials: Trials) -> list[tuple[Plan, float]]:
    """Lowering choices that beat the default by more than the noise, with their speed-ups, best first."""
    found: dict[Plan, float] = {}
    for finalist in trials.passed:
        plan, noise = finalist.candidate.plan, trials.noise(finalist)
        if plan.groups is None and plan.compiler == "inductor" and finalist.ratio > 1 + max(GAIN, ERRORS * noise):
            found[plan] = max(finalist.ratio, found.get(plan, 0.0))
    return sorted(found.items(), key=lambda one: (-one[1], one[0].complexity, one[0].key))


def best_lowerings(trials: Trials, count: int) -> list[tuple[Plan, float]]:
    """Lowering choices under which groups are worth a search, best first, each with its own speed-up; the default's is 1.

    A choice is as good as the best that was measured with it, without fusion say. The default is one of them unless it is far
    behind; of those that have the same native ops and cuts only the best is.
    """
    own = {DEFAULT: 1.0, **dict(gains(trials))}
    best = dict(own)
    for finalist in trials.passed:
        plan = replace(finalist.candidate.plan, groups=None)
        if plan in best and finalist.ratio > 1 + ERRORS * trials.noise(finalist):
            best[plan] = max(best[plan], finalist.ratio)
    order = sorted(own, key=lambda plan: (-best[plan], plan.complexity, plan.key))
    leading = best[order[0]]
    near = [plan for plan in order if best[plan] > leading * (DEFAULT_NEAR if plan == DEFAULT else NEAR_BEST)]
    chosen: dict[object, Plan] = {}
    for plan in [order[0], *(plan for plan in near if plan == DEFAULT), *near]:
        chosen.setdefault((plan.native, plan.cuts) if plan != DEFAULT else DEFAULT, plan)
    return [(plan, own[plan]) for plan in list(chosen.values())[:count]]
