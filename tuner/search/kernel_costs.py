"""What the kernels of one graph cost: from profiles of it, from the store, from whole measurements; else guessed."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import mean, median
from typing import Any

from tuner.anatomy import Anatomy, KernelTimes
from tuner.errors import UnsupportedGraph, WorkerError
from tuner.measurement import GroupTime
from tuner.plan import Plan
from tuner.search.bench import DEFAULT
from tuner.search.costs import Estimate, GroupCosts, calibrated
from tuner.search.trials import Trials

# Calls of each plan in a profile.
ROUNDS = 15
# Deviation of a kernel's time in a profile: a share of it, and milliseconds that the clock and Python leave unclear.
SPREAD, BUSY_SPREAD, UNCLEAR_MS = 0.02, 0.06, 1e-4
# Deviation of what a kernel is guessed to take of a whole, as a share.
GUESSED = 0.5
# Names of knobs that change which leaves there are, and nothing of the code of each, begin so.
LOWERED = "realize_"
# Until one was compiled: seconds for a kernel that nobody has compiled before.
KERNEL_S = 2.0


class KernelCosts:
    """Costs of groups by key, in the milliseconds of the first profile. known: keys that need no profile."""

    def __init__(self, trials: Trials):
        self.trials, self.model = trials, GroupCosts()
        self.kernel_s = KERNEL_S
        self._anatomies: dict[Plan, Anatomy | dict[str, Any]] = {}
        self._first: dict[str, float] = {}
        self._now: dict[str, float] = {}
        self._described: set[str] = set()
        # Of this screening; and by how much the times of the latest are multiplied.
        self._processes: set[str] = set()
        self._stored: set[tuple[str, str]] = set()
        # Of a whole call with its kernels apart, by plan key.
        self.totals: dict[str, float] = {}
        self._scale = 1.0
        # What a profile of the graph ended with, where it cannot be profiled at all.
        self.refused = ""

    def anatomy(self, plan: Plan) -> Anatomy | dict[str, Any]:
        """See `Bench.anatomy`; the verdict "timeout" or "crash" where the graph cannot be opened again either."""
        if plan not in self._anatomies:
            self.trials.progress.anatomies += 1
            try:
                self._anatomies[plan] = _under(plan, self.trials.bench.anatomy(plan))
            except (WorkerError, UnsupportedGraph) as error:
                self._anatomies[plan] = {"status": "crash", "message": str(error)}
            self.trials.progress.notify()
        return self._anatomies[plan]

    def describe(self, anatomy: Anatomy, groups: Iterable[frozenset[int]]) -> dict[frozenset[int], str]:
        """The keys of groups, of which the model is told what it needs for a guess."""
        keys = {group: anatomy.group_key(group) for group in groups}
        fresh = {key: group for group, key in keys.items() if key not in self._described}
        if not fresh:
            return keys
        leaves = {leaf: anatomy.group_key({leaf}) for group in fresh.values() for leaf in group}
        parts = {key: Counter(leaves[leaf] for leaf in group) for key, group in fresh.items()}
        fresh |= {key: frozenset({leaf}) for leaf, key in leaves.items() if key not in self._described}
        self.model.add_known({key: (anatomy.bytes_of(group), anatomy.work_of(group)) for key, group in fresh.items()}, parts)
        self._described |= set(fresh)
        return keys

    def estimate(self, key: str) -> Estimate:
        return self.model.estimate(key)

    def recall(self, keys: Iterable[str]) -> None:
        """Takes in what other processes timed, made comparable by the groups that were timed here as well."""
        wanted = sorted({*keys, *self._now})
        rows = self.trials.store.group_times(self.trials.resolved.query, self.trials.bench.policy, wanted) if wanted else []
        for key, (ms, sd) in calibrated([row for row in rows if row.process not in self._processes], self._now).items():
            self.model.expect(key, ms, sd)

    def spread(self, counts: Mapping[str, int], ms: float) -> None:
        """Without a clock for kernels: spreads the time of a whole over its groups, by what they move and compute."""
        guesses = {key: self.model.guess(key).mean for key in counts}
        scale = ms / max(sum(guesses[key] * count for key, count in counts.items()), 1e-12)
        for key, guess in guesses.items():
            self.model.expect(key, guess * scale, GUESSED * guess * scale)

    def profile(self, plans: Sequence[Plan]) -> dict[str, dict[str, Any]]:
        """Times the kernels of the plans; a verdict by plan key on each that could not be. One trial each."""
        trials = self.trials
        started, left_s, before = time.monotonic(), trials.budget.left_s, len(self._now)
        trials.budget.trials += len([plan for plan in plans if not plan.is_default]) or 1
        try:
            told = trials.bench.profile(plans, ROUNDS, left_s)
        except (WorkerError, UnsupportedGraph) as error:
            self.refused = str(error)
            return {plan.key: {"status": "crash", "message": str(error)} for plan in plans}
        busy = bool(told.conditions.get("busy"))
        self._learn(DEFAULT, told.times.get(DEFAULT.key), busy)
        for plan in plans:
            self._learn(plan, told.times.get(plan.key), busy)
        trials.progress.profiled += sum(plan.key in told.times for plan in plans)
        elapsed_s = time.monotonic() - started
        if any(verdict["status"] == "timeout" for verdict in told.failed.values()):
            # What only the end of the seconds cut short has not hung.
            trials.budget.hung_s += elapsed_s if elapsed_s < left_s else 0.0
        elif made := len(self._now) - before:
            self.kernel_s = max(0.1, elapsed_s / made)
        # A plan that fails costs itself; where the default has no times either, there is no clock for kernels.
        if DEFAULT.key in told.failed:
            self.refused = str(told.failed[DEFAULT.key].get("message", "")) or "no times came"
        trials.progress.notify()
        return told.failed

    def _learn(self, plan: Plan, times: KernelTimes | None, busy: bool) -> None:
        if times is None:
            return
        anatomy = self.anatomy(replace(plan, groups=None))
        if not isinstance(anatomy, Anatomy):
            return
        seen = defaultdict[str, list[float]](list)
        for leaves, ms in times.kernels:
            if all(leaf in anatomy.number for leaf in leaves) and ms > 0:
                group = frozenset(anatomy.number[leaf] for leaf in leaves)
                seen[self.describe(anatomy, [group])[group]].append(ms)
        found = {key: mean(each) for key, each in seen.items()}
        process = self.trials.bench.process
        self._processes.add(process)
        # What was timed beside others' work tells other sweeps nothing; the same kernel of the same process, nothing new.
        if not busy and (
            rows := [GroupTime(key, ms, process) for key, ms in found.items() if (key, process) not in self._stored]
        ):
            self.trials.store.add_group_times(self.trials.resolved.query, self.trials.bench.policy, rows)
            self._stored |= {(row.key, process) for row in rows}
        if plan.is_default:
            # The clock drifts, and another process has another: the default's kernels say by how much.
            ratios = [self._first[key] / ms for key, ms in found.items() if key in self._first]
            self._scale = median(ratios) if ratios else 1.0
            self._first = self._first or found
        self.totals[plan.key] = times.total_ms * self._scale
        spread = BUSY_SPREAD if busy else SPREAD
        for key, ms in found.items():
            self.model.observe(key, ms * self._scale, spread * ms * self._scale + UNCLEAR_MS)
            self._now[key] = ms * self._scale

    def observe_whole(self, plus: Mapping[str, int], minus: Mapping[str, int], ms: float, sd: float) -> None:
        """A graph of the groups `plus` was measured as `ms` slower than one of the groups `minus`."""
        if Counter(plus) != Counter(minus):
            self.model.observe_difference(Counter(plus), Counter(minus), ms, sd)


def _under(plan: Plan, told: Anatomy | dict[str, Any]) -> Anatomy | dict[str, Any]:
    """The anatomy with leaves that are others where knobs make other code of the same loops: they take other times."""
    knobs = [f"{name}={value}" for name, value in plan.config if not name.startswith(LOWERED)]
    if not knobs or not isinstance(told, Anatomy):
        return told
    return replace(told, leaves=tuple(replace(leaf, content=" ".join([leaf.content, *knobs])) for leaf in told.leaves))
