"""Screening of one workload: propose, compile, check, time with few samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tuner.anatomy import Anatomy
from tuner.cache.contract import Store
from tuner.plan import Plan, canonical_groups
from tuner.search.bench import DEFAULT, Bench, open_request
from tuner.search.budget import Budget
from tuner.search.effort import Effort
from tuner.search.groupings import GroupSearch
from tuner.search.kernel_costs import KernelCosts
from tuner.search.knob_search import KnobSearch
from tuner.search.lowerings import Combining, best_lowerings, gains
from tuner.search.progress import Progress
from tuner.search.proposals import FixedList, Proposer
from tuner.search.rules import Rules
from tuner.search.screened import Screening
from tuner.search.transfer import seeds
from tuner.search.trials import Trials
from tuner.search.workloads import Resolved
from tuner.search_spaces.cut_sites import cut_sites
from tuner.search_spaces.inductor_knobs import fixed_by_user
from tuner.search_spaces.lowering import first_choices, ranked_cuts
from tuner.search_spaces.native import NATIVE_OPS
from tuner.search_spaces.space import Candidate, knob_candidates, without_knobs
from tuner.workers.pool import CompilePool

# Candidates handed to each process of the compile pool at a time: enough to even out, few enough to look at the clock in between.
BATCH = 2
# Of the budget: when the list of lowering choices has to end, and what comes after it before groups.
ALONE_SHARE, COMBINED_SHARE, KNOBS_SHARE = 0.5, 0.6, 0.7


def screen(
    bench: Bench, pool: CompilePool | None, resolved: Resolved, store: Store, effort: Effort, progress: Progress, rules: Rules
) -> Screening:
    """Tries candidates until the space, the trials or the seconds are used up.

    Each trial is stored when it ends. Candidates that the store has a verdict on are not compiled again. pool: compiles ahead;
    without one the measuring process compiles. Raises UnsupportedGraph, WorkerError where the default itself fails, DeviceBusy.
    """
    progress.enter("screening" if rules.space is not None else "lowering")
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
    for proposer in _proposers(trials, result, default.get("checkable", True)):
        if pool is not None and not opened:
            pool.open(open_request(resolved, bench.policy, bench.seed))
            opened = True
        if proposer.phase != progress.phase:
            progress.enter(proposer.phase)
        _exhaust(proposer, trials, pool if proposer.ahead else None)
    result.default_ms = trials.default_ms
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


def _proposers(trials: Trials, screening: Screening, checkable: bool) -> Iterator[Proposer]:
    """What is searched, one after the other: what changes lowering, the best of that together, groups under the best of that."""
    # Where the compiler generates no kernels, there is nothing to choose.
    if not screening.default_groups:
        return
    if (space := trials.rules.space) is not None:
        if found := FixedList(_allowed(trials, space(screening.default_groups, _native_ops(trials)), screening, checkable)):
            yield found
        return
    costs = KernelCosts(trials)
    default = costs.anatomy(DEFAULT)
    cuts = ranked_cuts(default, cut_sites(default)) if isinstance(default, Anatomy) and checkable else []
    if not isinstance(default, Anatomy):
        trials.progress.notes.append(f"no cuts are tried: {default.get('message') or default['status']}")
    knobs = knob_candidates(trials.rules.knobs(trials.resolved))
    first = first_choices(screening.default_groups, _native_ops(trials), cuts, knobs)
    taught = [one for one in seeds(trials.store, trials.resolved) if trials.rules.allows(one.plan)]
    if found := FixedList(_allowed(trials, [*taught, *first], screening, checkable), "lowering", ALONE_SHARE):
        yield found
    if checkable:
        yield Combining(trials, costs, COMBINED_SHARE)
        if gaining := gains(trials):
            yield KnobSearch(trials, *gaining[0], share=KNOBS_SHARE, dry=trials.effort.dry)
    bases = best_lowerings(trials, trials.effort.bases)
    for number, (plan, ratio) in enumerate(bases, 1):
        share = KNOBS_SHARE + (1 - KNOBS_SHARE) * (1 - 0.5**number) if number < len(bases) else 1.0
        yield GroupSearch(trials, costs, plan, ratio, trials.default_ms, share)


def _native_ops(trials: Trials) -> list[str]:
    native = trials.resolved.graph.native_form
    return [call for call in native.calls if call in NATIVE_OPS] if native is not None else []


def _allowed(trials: Trials, everything: Iterable[Candidate], screening: Screening, checkable: bool) -> list[Candidate]:
    """What may be tried, the stored winner first. Where outputs cannot be checked, only what leaves numerics alone."""
    refused, incumbent = trials.progress.refused, screening.incumbent
    everything = list(everything)
    # What is set for the whole process is the user's choice: a plan that changed it would not be served.
    found = without_knobs(everything, fixed_by_user(trials.resolved.query.ambient))
    if len(found) < len(everything):
        refused["set by the user"] += len(everything) - len(found)
    if not incumbent.is_default and all(candidate.plan != incumbent for candidate in found):
        found.append(Candidate("incumbent", incumbent))
    # Of a plan that several teach, the first place counts.
    chosen: dict[Plan, Candidate] = {}
    for candidate in found:
        chosen.setdefault(candidate.plan, candidate)
    found = sorted(chosen.values(), key=lambda candidate: candidate.plan != incumbent)
    if not checkable:
        refused["not checkable"] += sum(not candidate.plan.leaves_numerics for candidate in found)
        found = [candidate for candidate in found if candidate.plan.leaves_numerics]
    return found
