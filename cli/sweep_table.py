"""What a sweep shows: a live table on a terminal, one line for each change of phase elsewhere, nothing when quiet."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Protocol

import click
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tuner.cli.output import SHORT_KEY, by_size, speedup
from tuner.search.progress import SCREENING, Progress
from tuner.search.sweep import Outcome, Sweep

REFRESH_S = 0.25
HEADER = ("spec", "phase", "default ms", "best", "plan", "measured", "per min", "dup", "refused", "failed", "left")


class Show(Protocol):
    """attach: the sweep to show. changed: called on every change. finish: the last picture."""

    def attach(self, sweep: Sweep) -> None: ...
    def changed(self) -> None: ...
    def finish(self) -> None: ...


def watched(stack: ExitStack, quiet: bool) -> Show:
    """The right `Show` for standard output, ended with `stack`."""
    if quiet:
        return Quiet()
    console = Console()
    if not console.is_terminal:
        return Lines()
    return Tables(stack.enter_context(Live(console=console, refresh_per_second=4, transient=True)), console)


class Quiet:
    def attach(self, sweep: Sweep) -> None: ...
    def changed(self) -> None: ...
    def finish(self) -> None: ...


class Lines:
    """One line when a workload enters a phase, and the results at the end."""

    def __init__(self) -> None:
        self.sweep, self.phases = Sweep(), dict[int, str]()

    def attach(self, sweep: Sweep) -> None:
        self.sweep = sweep

    def changed(self) -> None:
        for i, outcome in enumerate(self.sweep.outcomes):
            phase = outcome.progress.phase
            if self.phases.get(i, "waiting") != phase:
                self.phases[i] = phase
                click.echo(f"{_name(outcome)} {phase}: {outcome.not_tuned or _state(outcome.progress)}")

    def finish(self) -> None:
        for outcome in self.sweep.outcomes:
            for line in result_lines(outcome):
                click.echo(line)
        for line in (*table_lines(self.sweep), *dispatch_lines(self.sweep)):
            click.echo(line)
        click.echo(spent_line(self.sweep))


class Tables:
    """A table that is drawn anew on every change, then replaced by the results."""

    def __init__(self, live: Live, console: Console):
        self.live, self.console, self.sweep, self.drawn = live, console, Sweep(), 0.0

    def attach(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.live.update(_table(sweep))

    def changed(self) -> None:
        if time.monotonic() - self.drawn > REFRESH_S:
            self.drawn = time.monotonic()
            self.live.update(_table(self.sweep))

    def finish(self) -> None:
        self.live.stop()
        for outcome in self.sweep.outcomes:
            for line in result_lines(outcome):
                self.console.print(Text(line))
        for line in (*table_lines(self.sweep), *dispatch_lines(self.sweep)):
            self.console.print(Text(line))
        self.console.print(Text(spent_line(self.sweep)))


def _table(sweep: Sweep) -> Group:
    table = Table(*HEADER, box=box.SIMPLE_HEAD)
    for outcome in sweep.outcomes:
        p = outcome.progress
        left = max(0.0, p.seconds - p.elapsed_s) if p.phase in SCREENING else 0.0
        table.add_row(
            Text(p.spec, overflow="ellipsis"),
            p.phase,
            f"{p.default_ms:.3f}" if p.default_ms is not None else "",
            f"{p.best:.2f}x" if p.default_ms is not None else "",
            Text(p.best_plan, overflow="ellipsis", no_wrap=True),
            f"{p.measured}",
            f"{_per_minute(p):.0f}" if p.elapsed_s else "",
            f"{p.duplicates}",
            _counts(p.refused),
            _counts(p.failed),
            f"{left:.0f} s" if p.phase in SCREENING else "",
        )
    return Group(table)


def _name(outcome: Outcome) -> str:
    phase = outcome.resolved.graph.phase
    shown = "" if phase == "inference" else f" {phase}"
    return f"{outcome.resolved.spec}{shown} [{outcome.resolved.query.workload_key[:SHORT_KEY]}]"


def _per_minute(p: Progress) -> float:
    return 60 * (p.measured + p.profiled + p.failed.total()) / p.elapsed_s if p.elapsed_s else 0.0


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _state(p: Progress) -> str:
    if p.default_ms is None:
        return "started"
    parts = [f"default {p.default_ms:.3f} ms", f"best {p.best:.2f}x", f"{p.measured} measured", f"{p.duplicates} duplicate"]
    parts += [f"{p.profiled} profiled"] if p.profiled else []
    parts += [text for text in (_counts(p.refused), _counts(p.failed)) if text]
    return ", ".join(parts)


def result_lines(outcome: Outcome) -> list[str]:
    """The result of one workload for people."""
    name = _name(outcome)
    winner, p = outcome.winner, outcome.progress
    # A compiler's message may have many lines.
    notes = [f"    {note.strip().splitlines()[0]}" for note in p.notes if note.strip()]
    if winner is None:
        left = f"not tuned: {outcome.not_tuned}" if outcome.not_tuned else ""
        return [f"{name}: {left or outcome.error or 'not finished'}", *notes]
    lines = [
        f"{name}: default {winner.default_ms:.3f} ms, winner {winner.winner_ms:.3f} ms, {winner.speedup:.2f}x "
        f"({winner.speedup_low:.2f} to {winner.speedup_high:.2f}), {winner.plan.describe()}"
        + (f" (settled in generation {outcome.generation})" if p.phase == "settled" else "")
    ]
    if told := by_size(winner.evidence):
        lines.append(f"    by size: {told}")
    if (whole := outcome.whole) is not None:
        lines.append(
            f"    the whole callable: {whole.verdict}, {whole.evidence['error']}"
            if "error" in whole.evidence
            else f"    the whole callable: {whole.default_ms:.3f} ms, with its plans {whole.planned_ms:.3f} ms, "
            f"{speedup(whole.speedup, whole.speedup_low, whole.speedup_high)}: {whole.verdict}"
        )
    lines += notes
    if p.over_memory is not None and p.over_memory[0] > winner.speedup:
        ratio, memory, plan = p.over_memory
        lines.append(
            f"    left out for its peak memory, {memory:.2f} times the default's: {plan}, about {ratio:.2f}x as screened"
        )
    return lines


def table_lines(sweep: Sweep) -> Iterator[str]:
    """What was found of native ops of programs that train."""
    for spec, found in sweep.tables.items():
        if found.won:
            speed = found.speedup
            gain = speedup(speed.value, speed.low, speed.high)
            yield f"{spec}: {found.kind} stays undecomposed, {gain} over a step with its plans alone"
        elif found.screened or found.reason:
            best = max(found.screened.items(), key=lambda one: one[1], default=None)
            tried = "" if best is None else f", best as screened {best[0]}, {best[1]:.2f}x"
            yield f"{spec}: no op kind stays undecomposed{tried}{f'; {found.reason}' if found.reason else ''}"


def dispatch_lines(sweep: Sweep) -> Iterator[str]:
    """What was found of a plan for each size."""
    for spec, found in sweep.dispatches.items():
        if not found.won:
            yield f"{spec}: one plan for all sizes: {found.reason}"
            continue
        for buckets in found.buckets.values():
            limits = ", ".join("any other size" if bucket.up_to is None else f"up to {bucket.up_to}" for bucket in buckets)
            yield f"{spec}: a plan for each size of {buckets[0].symbol}: {limits}"


def spent_line(sweep: Sweep) -> str:
    spent = ", ".join(f"{seconds:.0f} s {name}" for name, seconds in sweep.spent.items())
    return f"{sweep.seconds:.0f} s: {spent}"
