"""Screening of one workload: propose, compile, check, time with few samples."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.cache.contract import Store
from tuner.measure.statistics import median_of
from tuner.plan import Groups, Plan, canonical_groups
from tuner.search.bench import DEFAULT, Bench, open_request
from tuner.search.budget import Budget
from tuner.search.effort import Effort
from tuner.search.progress import Progress
from tuner.search.proposals import FixedList, Proposer
from tuner.search.rules import Rules
from tuner.search.screened import Screening
from tuner.search.trials import Trials
from tuner.search.workloads import Resolved
from tuner.search_spaces.inductor_knobs import fixed_by_user
from tuner.search_spaces.native import NATIVE_OPS
from tuner.search_spaces.space import Candidate, without_knobs
from tuner.workers.pool import CompilePool

# Candidates handed to each process of the compile pool at a time: enough to even out, few enough to look at the clock in between.
BATCH = 2


def screen(
    bench: Bench, pool: CompilePool | None, resolved: Resolved, store: Store, effort: Effort, progress: Progress, rules: Rules
) -> Screening:
    """Tries candidates until the space, the trials or the seconds are used up.

    Each trial is stored when it ends. Candidates that the store has a verdict on are not compiled again. pool: compiles ahead;
    without one the measuring process compiles. Raises UnsupportedGraph, WorkerError where the default itself fails, DeviceBusy.
    """
    progress.enter("screening")
    default = bench.open(resolved)
    # From here on: opening a large graph may take longer than a small effort allows, and is nothing tried.
    budget = Budget(effort.trials, effort.seconds)
    stored = store.winner(resolved.query.exact_key)
    trials = Trials(bench, resolved, store, effort, progress, rules, budget)
    result = Screening(resolved, default["default_ms"], canonical_groups(default["realised"] or []))
    result.incumbent = DEFAULT if stored is None or not rules.allows(stored[0].plan) else stored[0].plan
    result.numerics = rules.numerics
    progress.default_ms = result.default_ms
    trials.open(default)
    opened = False
    for proposer in _proposers(trials, result.default_groups, result.incumbent, default.get("checkable", True)):
        if pool is not None and not opened:
            pool.open(open_request(resolved, bench.policy, bench.seed))
            opened = True
        _exhaust(proposer, trials, pool)
    if trials.default_samples:
        result.default_ms = median_of(trials.default_samples, bench.policy.size_count)
    result.passed = trials.passed
    result.cut_short = bool(result.default_groups) and not trials.judged and not budget.in_time
    progress.spent_s = budget.elapsed_s
    return result


def _exhaust(proposer: Proposer, trials: Trials, pool: CompilePool | None) -> None:
    """Tries what is proposed, until that is all or its share of the budget is used up."""
    size = 1 if pool is None else BATCH * pool.size
    while count := min(size, trials.budget.left(proposer.share)):
        if not (batch := trials.admitted(proposer, count)):
            return
        for candidate, verdict in trials.compiled(pool, batch):
            proposer.told(candidate, trials.trial(candidate, verdict))
            trials.bench.replace_if_leaking()
            trials.progress.notify()
            if not trials.budget.in_time:
                return


def _proposers(trials: Trials, groups: Groups, incumbent: Plan, checkable: bool) -> Iterator[Proposer]:
    # Where the compiler generates no kernels, there is nothing to choose.
    if not groups:
        return
    if found := FixedList(_space(trials, groups, incumbent, checkable)):
        yield found


def _space(trials: Trials, groups: Groups, incumbent: Plan, checkable: bool) -> list[Candidate]:
    """The space, the stored winner first. Where outputs cannot be checked, only what leaves numerics alone."""
    resolved, refused = trials.resolved, trials.progress.refused
    native = resolved.graph.native_form
    ops = [call for call in native.calls if call in NATIVE_OPS] if native is not None else []
    everything = trials.rules.candidates(resolved, groups, ops)
    # What is set for the whole process is the user's choice: a plan that changed it would not be served.
    found = without_knobs(everything, fixed_by_user(resolved.query.ambient))
    if len(found) < len(everything):
        refused["set by the user"] += len(everything) - len(found)
    if not incumbent.is_default and all(candidate.plan != incumbent for candidate in found):
        found.append(Candidate("incumbent", incumbent))
    found.sort(key=lambda candidate: candidate.plan != incumbent)
    if not checkable:
        refused["not checkable"] += sum(not candidate.plan.leaves_numerics for candidate in found)
        found = [candidate for candidate in found if candidate.plan.leaves_numerics]
    return found
