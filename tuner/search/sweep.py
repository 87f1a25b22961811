"""A sweep: screen each workload, one final for all, a final for each whole callable, record the winners."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from numpy.linalg import LinAlgError

from tuner.answer import ProgramChoice
from tuner.cache.contract import Store
from tuner.errors import DeviceBusy, SpecError, TunerError, WorkerError, one_line
from tuner.measurement import Policy, ProgramFinal, Winner
from tuner.search.bench import Bench
from tuner.search.dispatch import DispatchSearch, choose_dispatch, settled_dispatch, wants_dispatch
from tuner.search.effort import RANKS, Effort
from tuner.search.final import conclude, run_finals
from tuner.search.heats import race, racers_of
from tuner.search.kernels import kernels_of_loss
from tuner.search.native_table import TableSearch, choose_table, sizes_vary, wants_table, withdraw_choices
from tuner.search.progress import Progress
from tuner.search.rules import MAX_JOBS, SEED, Rules
from tuner.search.screen import screen
from tuner.search.screened import Screening
from tuner.search.sequence import hold_sequence_finals, sequences_of
from tuner.search.whole import has_callable, hold_whole_final, plans_of, programs_of
from tuner.search.workloads import Resolved
from tuner.search_spaces.space import SPACE_VERSION
from tuner.target import Query
from tuner.workers.device_lock import hold_device, lock_name
from tuner.workers.pool import CompilePool


@dataclass
class Outcome:
    """What became of one graph of one SPEC; no winner where it could not be tuned (`error` says why) or was not reached.

    whole: what the final of the whole callable said of the graph's program, where there was one.
    """

    resolved: Resolved
    progress: Progress
    winner: Winner | None = None
    generation: int | None = None
    error: TunerError | None = None
    whole: ProgramFinal | None = None

    @property
    def not_tuned(self) -> str:
        """Why this graph is left to the compiler's default, where it is one that no process could make again; else ""."""
        opaque = self.resolved.graph.opaque
        return f"{', '.join(opaque)} cannot be rebuilt elsewhere" if opaque else ""

    def fail(self, error: TunerError) -> None:
        self.error = error
        self.progress.enter("failed")


@dataclass
class Sweep:
    """A sweep under way; `outcomes` is up to date at any moment, so an interrupted one can still be shown.

    tables: what was found of native ops of training programs, by SPEC. dispatches: of a plan for each size, by SPEC.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    interrupted: bool = False
    started: float = field(default_factory=time.monotonic)
    whole_seconds: float = 0.0
    tables: dict[str, TableSearch] = field(default_factory=dict)
    dispatches: dict[str, DispatchSearch] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Seconds since the sweep was planned."""
        return time.monotonic() - self.started

    @property
    def finals_s(self) -> float:
        """Those seconds of "measuring" that the finals took, of graphs and of whole callables."""
        return sum({id(outcome.progress): outcome.progress.final_s for outcome in self.outcomes}.values()) + self.whole_seconds

    @property
    def spent(self) -> dict[str, float]:
        """Those seconds by what they were spent on: "compiling" (checks included), "measuring" (the finals of whole callables
        included), and "idle", the rest: capture, starting processes, waiting for a device or for quiet."""
        distinct = {id(outcome.progress): outcome.progress.seconds_spent for outcome in self.outcomes}.values()
        compiling = sum(spent["compiling"] for spent in distinct)
        measuring = sum(spent["measuring"] for spent in distinct) + self.whole_seconds
        return {"compiling": compiling, "measuring": measuring, "idle": max(0.0, self.seconds - compiling - measuring)}


def plan_sweep(workloads: Sequence[Resolved], effort: Effort, notify: Callable[[], None]) -> Sweep:
    """A sweep over `workloads`, not started."""
    return Sweep([Outcome(w, Progress(w.spec, w.query.workload_key, effort.trials, effort.seconds, notify)) for w in workloads])


def run_sweep(
    sweep: Sweep,
    store: Store,
    policy: Policy,
    effort: Effort,
    again: bool,
    rules: Rules | None = None,
    wait: Callable[[str], None] | None = None,
) -> None:
    """Tunes every workload once, equal ones together. `again`: also those that the store has settled, see `_settled`.

    Holds the device all along. wait: told once, in words, when another process holds it. A graph that cannot be tuned gets an
    error and leaves the others alone; one that cannot be rebuilt is passed over. KeyboardInterrupt passes through: what was
    measured is in the store.
    """
    rules = rules or Rules()
    _remember(sweep.outcomes, store)
    first: dict[str, Outcome] = {}
    for outcome in sweep.outcomes:
        first.setdefault(outcome.resolved.query.exact_key, outcome)
    anew = again or rules.retry
    rebuildable = {key: outcome for key, outcome in first.items() if not outcome.not_tuned}
    to_tune = {
        key: outcome for key, outcome in rebuildable.items() if anew or not _settled(outcome, store, policy, effort, rules)
    }
    for outcome in first.values():
        if outcome.not_tuned:
            outcome.progress.enter("not tuned")
    unjudged = any(_unjudged(spec, outcomes, first, store, effort, rules) for spec, outcomes in _by_spec(sweep).items())
    devices = {lock_name(outcome.resolved.device) for outcome in first.values()} if to_tune or unjudged else set()
    with ExitStack() as held:
        for device in sorted(devices):
            held.enter_context(hold_device(device, wait))
        _tune(to_tune, store, policy, effort, rules)
        try:
            _conclude(sweep, first, store, policy, effort)
            if rules.dispatch:
                _choose_dispatches(sweep, first, store, policy, effort, anew, rules)
        finally:
            # What was not recorded has not won.
            for outcome in first.values():
                outcome.winner = outcome.winner if outcome.generation is not None else None
            _share(sweep, first, store)


def _tune(to_tune: Mapping[str, Outcome], store: Store, policy: Policy, effort: Effort, rules: Rules) -> None:
    seconds = {key: outcome.progress.seconds_spent for key, outcome in to_tune.items()}
    jobs = min(len(os.sched_getaffinity(0)), MAX_JOBS) if rules.jobs is None else rules.jobs
    screenings: dict[str, Screening] = {}
    with _bench(0, policy, effort, rules) as bench, ExitStack() as stack:
        pool = None
        if jobs > 1 and to_tune:
            device = next(iter(to_tune.values())).resolved.device
            pool = stack.enter_context(CompilePool(policy.threads, jobs, device, Bench.module))
        for key, outcome in to_tune.items():
            with _failing(outcome):
                bench.seconds = seconds[key]
                found = screen(bench, pool, outcome.resolved, store, effort, outcome.progress, rules)
                if found.cut_short:
                    why = f"the {effort.seconds:g} seconds were over before any candidate was tried: nothing is settled"
                    outcome.fail(TunerError(why))
                    continue
                screenings[key] = found
                # Here and below the default has won, and the graph is open.
                if not racers_of(found, effort):
                    found.kernels = kernels_of_loss(bench, effort.seconds - outcome.progress.elapsed_s)
    with _bench(1, policy, effort, rules) as bench:
        for key, screening in screenings.items():
            with _failing(to_tune[key]):
                bench.seconds = seconds[key]
                raced = bool(racers_of(screening, effort))
                screening.finalists = race(bench, screening, store, effort, to_tune[key].progress)
                if raced and not screening.finalists:
                    screening.kernels = kernels_of_loss(bench, effort.seconds - to_tune[key].progress.elapsed_s)
    screenings = {key: screening for key, screening in screenings.items() if to_tune[key].error is None}

    def watch(screening: Screening) -> None:
        to_tune[screening.resolved.query.exact_key].progress.enter("final")

    before = {key: seconds[key]["measuring"] for key in screenings}
    evidence = run_finals(list(screenings.values()), store, policy, effort, watch, seconds, rules)
    for key in screenings:
        to_tune[key].progress.final_s = seconds[key]["measuring"] - before[key]
    for key, screening in screenings.items():
        outcome, final = to_tune[key], evidence.get(key)
        if final is not None and final.error is not None:
            final.error.args = (f"the final could not be held: {final.error}",)
            outcome.fail(final.error)
            continue
        outcome.winner = winner = conclude(screening, final, policy, effort, seconds[key])
        outcome.progress.best, outcome.progress.best_plan = winner.speedup, winner.plan.describe()


def _bench(process: int, policy: Policy, effort: Effort, rules: Rules) -> Bench:
    return Bench(policy, SEED + process, effort.patience, own_copies=rules.own_copies)


@contextmanager
def _failing(outcome: Outcome) -> Iterator[None]:
    """What goes wrong over one workload is its outcome, and no matter of the others."""
    try:
        yield
    except (SpecError, WorkerError, DeviceBusy) as error:
        outcome.fail(error)
    # Matrices of what was measured can be singular, times zero. What was measured is in the store.
    except (ArithmeticError, LinAlgError) as error:
        outcome.fail(TunerError(f"the search could not compute what to try next: {one_line(error)}"))


def _conclude(sweep: Sweep, first: Mapping[str, Outcome], store: Store, policy: Policy, effort: Effort) -> None:
    """Records the winners: those of a callable after its own final, where it needs one, since until then they might do harm."""
    by_spec = _by_spec(sweep)
    waiting = {spec: outcomes for spec, outcomes in by_spec.items() if _needs_final(spec, outcomes, first, store, effort)}
    for spec in sorted(by_spec, key=waiting.__contains__):
        finals: Sequence[ProgramFinal] = ()
        if spec in waiting and not (finals := _whole_final(sweep, spec, waiting[spec], first, store, policy, effort)):
            continue
        # The vetoes first: no moment in which a losing set is served.
        for final in finals:
            store.record_program_final(final)
        graphs = [outcome.resolved for outcome in by_spec[spec]]
        new = [one for graph in graphs if (one := first[graph.query.exact_key]).winner is not None and one.generation is None]
        # The final was of the plans alone.
        if new or finals:
            withdraw_choices(graphs, spec, store)
        for outcome in new:
            if outcome.winner is not None and outcome.generation is None:
                outcome.generation = store.record_winner(outcome.winner)
                outcome.progress.enter("done")
        _choose_table(sweep, spec, graphs, bool(new or finals), first, store, policy, effort)


def _share(sweep: Sweep, first: Mapping[str, Outcome], store: Store) -> None:
    """What became of a graph is the outcome of each SPEC that has it, with the final of what is in force for its program."""
    by_spec = _by_spec(sweep)
    for outcome in sweep.outcomes:
        original = first[outcome.resolved.query.exact_key]
        outcome.winner, outcome.generation, outcome.error = original.winner, original.generation, original.error
        outcome.progress = original.progress
        if outcome.winner is not None and (program := outcome.resolved.program_query) is not None:
            made = [one.resolved for one in by_spec[outcome.resolved.spec] if one.resolved.program_query == program]
            found = store.program_final(program.exact_key, _plans_in_force(program, made, first, store))
            outcome.whole = None if found is None else found[0]


def _choose_table(
    sweep: Sweep,
    spec: str,
    graphs: Sequence[Resolved],
    anew: bool,
    first: Mapping[str, Outcome],
    store: Store,
    policy: Policy,
    effort: Effort,
) -> None:
    """Searches the table of a callable that trains; what fails over it leaves the winners as they are, and is told."""
    if has_callable(spec) and sizes_vary(graphs):
        sweep.tables[spec] = TableSearch(reason="none is searched where sizes vary")
    if not _wants_table(spec, graphs, anew, store, effort):
        return
    originals = [one for graph in graphs if not (one := first[graph.query.exact_key]).not_tuned]
    if reason := _without_winner(originals):
        sweep.tables[spec] = TableSearch(reason=reason)
        return
    for outcome in originals:
        outcome.progress.enter("native ops")
    started = time.monotonic()
    try:
        sweep.tables[spec] = choose_table(spec, graphs, _in_force(graphs, first, store), store, policy, effort)
    except (SpecError, WorkerError, DeviceBusy) as error:
        sweep.tables[spec] = TableSearch(reason=str(error))
    finally:
        sweep.whole_seconds += time.monotonic() - started
        for outcome in originals:
            outcome.progress.enter("done")


def _without_winner(outcomes: Sequence[Outcome]) -> str:
    """Why nothing can be chosen for the callable as a whole; "" where all its graphs that can be rebuilt have winners."""
    if not outcomes:
        return "none of its graphs can be rebuilt"
    missing = [outcome for outcome in outcomes if outcome.winner is None]
    return f"graph {missing[0].resolved.query.workload_key[:12]} could not be tuned" if missing else ""


def _choose_dispatches(
    sweep: Sweep, first: Mapping[str, Outcome], store: Store, policy: Policy, effort: Effort, anew: bool, rules: Rules
) -> None:
    """Searches a plan for each size, where it is not settled; what fails over it leaves the winners as they are, and is told."""
    for spec, outcomes in _by_spec(sweep).items():
        graphs = [outcome.resolved for outcome in outcomes]
        originals = {key: one for graph in graphs if not (one := first[key := graph.query.exact_key]).not_tuned}
        if reason := _without_winner(list(originals.values())):
            sweep.dispatches[spec] = DispatchSearch(reason=reason)
            continue
        if not anew and not wants_dispatch(graphs, store, effort, rules):
            sweep.dispatches[spec] = settled_dispatch(graphs, store)
            continue
        for outcome in originals.values():
            outcome.progress.enter("dispatch")
        progress = {key: outcome.progress for key, outcome in originals.items()}
        try:
            winners = _in_force(graphs, first, store)
            sweep.dispatches[spec] = found = choose_dispatch(spec, graphs, winners, store, policy, effort, progress, rules)
            sweep.whole_seconds += found.whole_seconds
        except (SpecError, WorkerError, DeviceBusy) as error:
            sweep.dispatches[spec] = DispatchSearch(reason=str(error))
        finally:
            for outcome in originals.values():
                outcome.progress.enter("done")


def _wants_table(spec: str, graphs: Sequence[Resolved], anew: bool, store: Store, effort: Effort) -> bool:
    return has_callable(spec) and wants_table(graphs, anew, store, effort.patience)


def _plans_in_force(program: Query, graphs: Sequence[Resolved], first: Mapping[str, Outcome], store: Store) -> str:
    """Which plans, and which table or buckets, these graphs of a program are served with."""
    found = store.program_choice(program.exact_key)
    choice = ProgramChoice() if found is None else found[0]
    return plans_of(graphs, _in_force(graphs, first, store), choice.native_table, choice.dispatch)


def _by_spec(sweep: Sweep) -> dict[str, list[Outcome]]:
    by_spec: dict[str, list[Outcome]] = {}
    for outcome in sweep.outcomes:
        by_spec.setdefault(outcome.resolved.spec, []).append(outcome)
    return by_spec


def _in_force(graphs: Sequence[Resolved], first: Mapping[str, Outcome], store: Store) -> dict[str, Winner]:
    """The winner of each graph, by exact-match key; where it could not be tuned, the one that is served, if any."""
    winners: dict[str, Winner] = {}
    for graph in graphs:
        key = graph.query.exact_key
        if (winner := first[key].winner) is not None:
            winners[key] = winner
        elif (served := _served(graph, store)) is not None:
            winners[key] = served[0]
    return winners


def _unjudged(
    spec: str, outcomes: Sequence[Outcome], first: Mapping[str, Outcome], store: Store, effort: Effort, rules: Rules
) -> bool:
    """Whether something is to be measured of the callable as a whole, even if all its graphs are settled."""
    graphs = [outcome.resolved for outcome in outcomes]
    return (
        _needs_final(spec, outcomes, first, store, effort)
        or _wants_table(spec, graphs, False, store, effort)
        or (rules.dispatch and wants_dispatch(graphs, store, effort, rules))
    )


def _needs_final(spec: str, outcomes: Sequence[Outcome], first: Mapping[str, Outcome], store: Store, effort: Effort) -> bool:
    """Whether plans won for a callable, or for a program of several graphs, that were not judged together before, or anew.

    Or on a busy machine, where there is patience for a quiet one.
    """
    graphs = [outcome.resolved for outcome in outcomes]
    winners = _in_force(graphs, first, store)
    made = programs_of(graphs) if has_callable(spec) else sequences_of(graphs)
    chosen = {
        program.exact_key: _plans_in_force(program, of_it, first, store)
        for program, of_it in made.items()
        if plans_of(of_it, winners)
    }
    if not chosen:
        return False
    new = any(first[key].winner is not None and first[key].generation is None for key in winners)
    finals = [store.program_final(program, plans) for program, plans in chosen.items()]
    return new or any(final is None or (effort.patience > 0 and "busy" in final[0].evidence) for final in finals)


def _whole_final(
    sweep: Sweep,
    spec: str,
    outcomes: Sequence[Outcome],
    first: Mapping[str, Outcome],
    store: Store,
    policy: Policy,
    effort: Effort,
) -> list[ProgramFinal]:
    """The finals of the SPEC's programs; none, and its outcomes failed, where it could not be held."""
    originals = [first[outcome.resolved.query.exact_key] for outcome in outcomes]
    for outcome in originals:
        if outcome.winner is not None and outcome.generation is None:
            outcome.progress.enter("whole")
    started = time.monotonic()
    graphs = [outcome.resolved for outcome in outcomes]
    try:
        winners = _in_force(graphs, first, store)
        if not has_callable(spec):
            return hold_sequence_finals(graphs, winners, policy, effort)
        return hold_whole_final(spec, graphs, winners, policy, effort)
    except (SpecError, WorkerError, DeviceBusy) as error:
        error.args = (f"the final of the whole could not be held: {error}",)
        for outcome in originals:
            outcome.winner = outcome.winner if outcome.generation is not None else None
            outcome.fail(error)
        return []
    finally:
        sweep.whole_seconds += time.monotonic() - started


def _remember(outcomes: Sequence[Outcome], store: Store) -> None:
    """Stores the graphs, and which program makes which."""
    programs: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        store.add_graph(outcome.resolved.query.workload_key, outcome.resolved.graph.to_json())
        if (program := outcome.resolved.program_query) is not None:
            programs.setdefault(f"{outcome.resolved.spec} {program.exact_key}", []).append(outcome)
    for made in programs.values():
        program = made[0].resolved.program_query
        assert program is not None
        graphs = [outcome.resolved.query for outcome in made]
        choice = store.program_choice(program.exact_key)
        if choice is not None and choice[0].native_table:
            # The table that is in force gives other graphs, which are on record beside these.
            recorded = [one for one in store.find_programs(program.workload_key) if one.query.exact_key == program.exact_key]
            beside = [graph for one in recorded for graph in one.graphs]
            graphs = list({graph.exact_key: graph for graph in [*graphs, *beside]}.values())
        store.add_program(program, graphs, made[0].resolved.spec)


def _served(graph: Resolved, store: Store) -> tuple[Winner, int] | None:
    """The store's winner and its generation, where it is not in quarantine."""
    found = store.winner(graph.query.exact_key)
    return None if found is None or found[0].plan.key in store.quarantined(graph.query) else found


def _settled(outcome: Outcome, store: Store, policy: Policy, effort: Effort, rules: Rules) -> bool:
    """Whether the store has a winner of this policy and at least this effort over this space, and serves it: then the outcome's.

    One that was measured on a busy machine settles nothing for those who ask for a quiet one.
    """
    found = _served(outcome.resolved, store)
    if found is None:
        return False
    winner, generation = found
    if (
        winner.space_version != SPACE_VERSION
        or winner.policy != outcome.resolved.policy(policy)
        or (winner.evidence.get("busy") and effort.patience)
        or not rules.settled_by(winner.evidence, [winner.plan])
        or not {winner.effort, effort.name} <= set(RANKS)
        or RANKS.index(winner.effort) < RANKS.index(effort.name)
    ):
        return False
    outcome.winner, outcome.generation = winner, generation
    progress = outcome.progress
    progress.default_ms, progress.best, progress.best_plan = winner.default_ms, winner.speedup, winner.plan.describe()
    progress.enter("settled")
    return True
