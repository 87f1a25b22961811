"""The search over knobs together, on top of the best that was found before: by the sampler, until it gains nothing more."""

from __future__ import annotations

import math
from dataclasses import replace

from tuner.measure.promises import MIN_SPEEDUP
from tuner.plan import Plan
from tuner.search.proposals import Result
from tuner.search.rules import SEED
from tuner.search.samplers import KnobSampler
from tuner.search.trials import Trials
from tuner.search_spaces.inductor_knobs import fixed_by_user
from tuner.search_spaces.parameters import Parameter
from tuner.search_spaces.space import Candidate

LABEL = "knobs"


class KnobSearch:
    """Configs for the native ops and cuts of `base`, a plan without groups.

    ratio: its speed-up. dry: how many proposals in a row may gain nothing.

    Of the knobs, those are turned that changed the code when they were tried alone. What they gave then, under other native ops
    and cuts too, is what the sampler starts from.
    """

    phase = "knobs"
    ahead = True

    def __init__(self, trials: Trials, base: Plan, ratio: float, share: float, dry: int):
        self.trials, self.base, self.share = trials, base, share
        self.best, self.best_ratio = base, ratio
        self._left = dry
        self._dry = dry
        ratios = self._ratios()
        plain = replace(base, config=())
        # What the native ops and cuts give by themselves; where nobody has measured that, what they give with the config.
        self._reference = 1.0 if plain.is_default else ratios.get(plain, ratio)
        self._sampler = KnobSampler(self._knobs(ratios), SEED)
        for plan, found in ratios.items():
            alone = not plan.native and not plan.cuts
            if alone or replace(plan, config=()) == plain:
                self._sampler.tell(plan.config, math.log(found / (1.0 if alone else self._reference)))
        self._sampler.tell(base.config, math.log(ratio / self._reference))

    def next(self, count: int) -> list[Candidate]:
        if self._left <= 0:
            return []
        asked = [config for _ in range(min(count, self._left)) if (config := self._sampler.ask()) is not None]
        return [Candidate(LABEL, replace(self.base, config=config)) for config in asked]

    def told(self, candidate: Candidate, result: Result) -> None:
        ratio = result.ratio
        self._sampler.tell(candidate.plan.config, None if ratio is None else math.log(ratio / self._reference))
        if ratio is not None and result.admissible and ratio > self.best_ratio * max(MIN_SPEEDUP, 1 + result.noise):
            self.best, self.best_ratio, self._left = candidate.plan, ratio, self._dry
        else:
            self._left -= 1

    def _ratios(self) -> dict[Plan, float]:
        """What was measured without groups, and how much faster it was."""
        found: dict[Plan, float] = {}
        for finalist in self.trials.passed:
            plan = finalist.candidate.plan
            if plan.groups is None and plan.compiler == self.base.compiler:
                found[plan] = finalist.ratio
        return found

    def _knobs(self, ratios: dict[Plan, float]) -> dict[str, Parameter]:
        fixed = fixed_by_user(self.trials.resolved.query.ambient)
        tried = {name for plan in ratios for name, _ in plan.config}
        knobs = self.trials.rules.knobs(self.trials.resolved)
        return {name: knob for name, knob in knobs.items() if name in tried and name not in fixed}
