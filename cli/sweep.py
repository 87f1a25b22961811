"""`tuner sweep`: search and measure, live."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.output import (
    compile_settings,
    graphs_of,
    json_option,
    phase_option,
    print_json,
    settings_for,
    socket_option,
    store_option,
    varying_of,
    varying_options,
    winner_json,
    workload_json,
)
from tuner.errors import SpecError, UsageError
from tuner.search.effort import EFFORTS
from tuner.workload.graph import SpecPhase

if TYPE_CHECKING:
    from tuner.search.sweep import Outcome, Sweep
    from tuner.search.workloads import Resolved

WHOLE_FIELDS = ("verdict", "speedup", "speedup_low", "speedup_high", "default_ms", "planned_ms")
WINNER_FIELDS = ("default_ms", "winner_ms", "speedup", "speedup_low", "speedup_high", "winner", "plan")


@click.command()
@click.argument("specs", nargs=-1, required=True, metavar="SPEC...")
@click.option("--effort", type=click.Choice(list(EFFORTS)), default="normal", show_default=True, help="How much to search.")
@click.option("--trials", type=int, default=None, help="Candidates to compile per workload, at most.  [default: by effort]")
@click.option("--seconds", type=float, default=None, help="Seconds to screen one workload, at most; the final comes on top.")
@click.option("--threads", type=int, default=None, help="Tune for this many threads.  [default: torch's, or a stored program's]")
@click.option("--memory-limit", type=float, default=None, help="Peak memory allowed, relative to the default's.  [default: 1.02]")
@click.option(
    "--cache", type=click.Choice(["warm", "cold"]), default="warm", show_default=True, help="Last-level cache when timed."
)
@click.option("--jobs", type=int, default=None, help="Processes that compile ahead.  [default: one for each core]")
@click.option("--again", is_flag=True, help="Search also what is settled in the store for this effort.")
@click.option(
    "--allow-numerics",
    is_flag=True,
    help="Try also what computes values by another formula or under weaker rules, within the same tolerance. What wins is served "
    "until it is swept again without this.",
)
@click.option("--retry-quarantined", is_flag=True, help="Try candidates again that were wrong, crashed or hung.")
@click.option(
    "--when-busy",
    type=click.Choice(["wait", "measure"]),
    default="wait",
    show_default=True,
    help="On a busy machine: wait, then refuse what stays noisy; or measure all the same.",
)
@varying_options
@click.option("--dispatch", is_flag=True, help="Choose a plan for each size of the one --dim, and pick by size at run time.")
@phase_option
@compile_settings
@store_option
@socket_option
@json_option
def sweep(
    specs: tuple[str, ...],
    effort: str,
    trials: int | None,
    seconds: float | None,
    threads: int | None,
    memory_limit: float | None,
    cache: str,
    jobs: int | None,
    again: bool,
    allow_numerics: bool,
    retry_quarantined: bool,
    when_busy: str,
    dims: tuple[str, ...],
    dynamic: bool,
    dispatch: bool,
    phase: SpecPhase | None,
    mode: str | None,
    options: tuple[str, ...],
    store: Path | None,
    socket: Path | None,
    as_json: bool,
) -> None:
    """Tune the graphs of each SPEC and store the winners.

    SPEC is file.py:function, which returns a callable and its example inputs; model.pt2, written by torch.export.save; or the key
    of a stored workload or program. With --dim the plan that wins is one that does no harm at any of the sizes. Ctrl-C keeps what
    was measured.
    """
    given = {"--trials": trials, "--seconds": seconds, "--threads": threads, "--memory-limit": memory_limit, "--jobs": jobs}
    for name, value in given.items():
        if value is not None and not value > 0:
            raise UsageError(f"{name} must be more than 0, not {value:g}")
    if threads is not None and threads > (os.cpu_count() or 1):
        raise UsageError(f"--threads must be at most {os.cpu_count()}, the number of cores, not {threads}")
    varying = varying_of(dims, dynamic)
    if dispatch and (len(varying[0]) != 1 or dynamic or len(next(iter(varying[0].values()))) < 2):
        raise UsageError("--dispatch picks by the size of one --dim, given with at least two sizes")
    settings = settings_for(store, socket)
    from tuner.cache.sqlite import SqliteStore
    from tuner.cli.sweep_table import watched
    from tuner.lookup.yielding import ask_to_yield
    from tuner.measurement import Policy
    from tuner.search.backward_data import filled
    from tuner.search.rules import Rules
    from tuner.search.sweep import plan_sweep, run_sweep

    chosen = EFFORTS[effort]
    if (trials, seconds, memory_limit) != (None, None, None):
        # Another budget than the effort's: what it finds settles nothing.
        chosen = replace(
            chosen,
            name="custom",
            trials=chosen.trials if trials is None else trials,
            seconds=chosen.seconds if seconds is None else seconds,
            memory_limit=chosen.memory_limit if memory_limit is None else memory_limit,
        )
    if when_busy == "measure":
        chosen = replace(chosen, patience=0)
    rules = Rules(retry=retry_quarantined, jobs=jobs, dispatch=dispatch, numerics=allow_numerics)
    ask_to_yield(settings.socket)
    with SqliteStore(settings.store) as opened, ExitStack() as stack:
        known = opened.graph, opened.find_graphs, varying, phase, (mode, options), opened.find_programs
        workloads = [workload for spec in specs for workload in graphs_of(spec, threads, *known)]
        threads = _threads_of(workloads)
        show, insist = watched(stack, quiet=as_json), stack.enter_context(insistent_interrupts())

        def waiting(why: str) -> None:
            click.echo(f"Waiting: {why}", err=True)

        def changed() -> None:
            insist()
            show.changed()

        plan = plan_sweep(filled(workloads), chosen, changed)
        show.attach(plan)
        try:
            run_sweep(plan, opened, Policy.for_cpu(threads, cache), chosen, again, rules, waiting)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would cost the results
            plan.interrupted = True
        show.finish()
    if as_json:
        spent = {f"seconds_{name}": round(seconds, 3) for name, seconds in plan.spent.items()}
        results = [result_json(outcome) for outcome in plan.outcomes]
        tables = {spec: found.evidence() for spec, found in plan.tables.items()}
        named = {"native_tables": tables} if tables else {}
        if plan.dispatches:
            named["dispatch"] = {spec: found.evidence() for spec, found in plan.dispatches.items()}
        finals = {"seconds_finals": round(plan.finals_s, 3)}
        print_json({"results": results, **named, "seconds": round(plan.seconds, 3), **spent, **finals})
    _raise_what_failed(plan)


def _threads_of(workloads: Sequence[Resolved]) -> int:
    """The number of threads that all of them are tuned for. Raises UsageError where there are several."""
    found = sorted({int(workload.query.ambient["threads"]) for workload in workloads})
    if len(found) > 1:
        raise UsageError(f"these are for {' and '.join(map(str, found))} threads: sweep them apart, or say --threads")
    return found[0]


@contextmanager
def insistent_interrupts() -> Iterator[Callable[[], None]]:
    """Ctrl-C that is not lost where Python drops exceptions, as in finalisers: what this yields raises it once more."""
    hits: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        hits.append(number)
        raise KeyboardInterrupt

    def insist() -> None:
        if hits:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield insist
    finally:
        signal.signal(signal.SIGINT, before)


def result_json(outcome: Outcome) -> dict[str, Any]:
    """One entry of `results`; a workload without a winner has null in its place, and `error` where it failed.

    not_tuned: why it was left to the compiler's default, where it cannot be rebuilt in another process.
    """
    resolved, progress = outcome.resolved, outcome.progress
    won: dict[str, Any] = {"default_ms": progress.default_ms}
    if outcome.winner is not None:
        won = winner_json(outcome.winner, outcome.generation)
    return {
        **workload_json(resolved.query, resolved.spec, resolved.program_key),
        "phase": resolved.graph.phase,
        "candidates_measured": progress.measured,
        "candidates_duplicate": progress.duplicates,
        "candidates_refused": dict(progress.refused),
        "candidates_failed": dict(progress.failed),
        "candidates_profiled": progress.profiled,
        "notes": progress.notes,
        **{name: won.get(name) for name in WINNER_FIELDS},
        "whole": None if outcome.whole is None else {name: getattr(outcome.whole, name) for name in WHOLE_FIELDS},
        **({"not_tuned": outcome.not_tuned} if outcome.not_tuned else {}),
        **({"error": str(outcome.error)} if outcome.error else {}),
    }


def _raise_what_failed(plan: Sweep) -> None:
    """The exit code: Ctrl-C, else the first workload that could not be tuned."""
    if plan.interrupted:
        measured = sum(outcome.progress.measured for outcome in plan.outcomes)
        click.echo(f"Interrupted; {measured} measurements are in the store, the next screening goes on from them", err=True)
        sys.exit(130)
    for outcome in plan.outcomes:
        if outcome.error is not None:
            outcome.error.args = (f"{outcome.resolved.spec}: {outcome.error}",)
            raise outcome.error
    if plan.outcomes and all(outcome.not_tuned for outcome in plan.outcomes):
        outcome = plan.outcomes[0]
        raise SpecError(f"{outcome.resolved.spec}: nothing to tune: {outcome.not_tuned}")
