"""A sweep: screen each workload, one final for all, record the winners."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tuner.cache.contract import Store
from tuner.errors import SpecError, WorkerError
from tuner.measurement import Policy, Winner
from tuner.search.bench import Bench
from tuner.search.effort import RANKS, Effort
from tuner.search.final import conclude, run_finals
from tuner.search.progress import Progress
from tuner.search.screen import SEED, Screening, screen
from tuner.search.workloads import Resolved
from tuner.search_spaces.space import SPACE_VERSION


@dataclass
class Outcome:
    """What became of one graph of one SPEC; no winner where it could not be tuned (`error` says why) or was not reached."""

    resolved: Resolved
    progress: Progress
    winner: Winner | None = None
    generation: int | None = None
    error: str | None = None
    worker_failed: bool = False

    def fail(self, error: str, worker_failed: bool) -> None:
        self.error, self.worker_failed = error, worker_failed
        self.progress.enter("failed")


@dataclass
class Sweep:
    """A sweep under way; `outcomes` is up to date at any moment, so an interrupted one can still be shown."""

    outcomes: list[Outcome] = field(default_factory=list)
    interrupted: bool = False
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds since the sweep was planned."""
        return time.monotonic() - self.started


def plan_sweep(workloads: Sequence[Resolved], effort: Effort, notify: Callable[[], None]) -> Sweep:
    """A sweep over `workloads`, not started."""
    return Sweep([Outcome(w, Progress(w.spec, w.query.workload_key, effort.trials, effort.seconds, notify)) for w in workloads])


def run_sweep(sweep: Sweep, store: Store, policy: Policy, effort: Effort, again: bool) -> None:
    """Tunes every workload once, equal ones together. `again`: also those that the store has settled for this effort and space.

    A graph that cannot be tuned gets an error and leaves the others alone. KeyboardInterrupt passes through: what was measured
    is in the store.
    """
    _remember(sweep.outcomes, store)
    first: dict[str, Outcome] = {}
    for outcome in sweep.outcomes:
        first.setdefault(outcome.resolved.query.exact_key, outcome)
    screenings: list[Screening] = []
    with Bench(policy, SEED) as bench:
        for outcome in first.values():
            if not again and _settled(outcome, store, effort):
                continue
            try:
                screenings.append(screen(bench, outcome.resolved, store, effort, outcome.progress, again))
            except (SpecError, WorkerError) as error:
                outcome.fail(str(error), isinstance(error, WorkerError))
    by_key = {s.resolved.query.exact_key: s for s in screenings}
    evidence = run_finals(screenings, store, policy, effort, lambda s: first[s.resolved.query.exact_key].progress.enter("final"))
    for key, screening in by_key.items():
        outcome, final = first[key], evidence.get(key)
        if final is not None and final.error is not None:
            outcome.fail(final.error, worker_failed=True)
            continue
        outcome.winner = winner = conclude(screening, final, policy, effort)
        outcome.generation = store.record_winner(winner)
        outcome.progress.best, outcome.progress.best_plan = winner.speedup, winner.plan.describe()
        outcome.progress.enter("done")
    for outcome in sweep.outcomes:
        original = first[outcome.resolved.query.exact_key]
        if outcome is not original:
            outcome.winner, outcome.generation, outcome.error = original.winner, original.generation, original.error
            outcome.progress = original.progress


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
        store.add_program(program, [outcome.resolved.query for outcome in made], made[0].resolved.spec)


def _settled(outcome: Outcome, store: Store, effort: Effort) -> bool:
    """Whether the store has a winner of at least this effort over this space; if so, the outcome takes it."""
    found = store.winner(outcome.resolved.query.exact_key)
    if found is None:
        return False
    winner, generation = found
    if (
        winner.space_version != SPACE_VERSION
        or not {winner.effort, effort.name} <= set(RANKS)
        or RANKS.index(winner.effort) < RANKS.index(effort.name)
    ):
        return False
    outcome.winner, outcome.generation = winner, generation
    progress = outcome.progress
    progress.default_ms, progress.best, progress.best_plan = winner.default_ms, winner.speedup, winner.plan.describe()
    progress.enter("settled")
    return True
