"""What the commands share: options, tables, and the words of the JSON output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from tuner.errors import UsageError
from tuner.measurement import Winner, describe_sizes
from tuner.settings import Settings
from tuner.target import Query
from tuner.workload.graph import SPEC_PHASES, SpecPhase, is_stored_key
from tuner.workload.shapes import parse_dims

if TYPE_CHECKING:
    from tuner.cache.contract import StoredProgram
    from tuner.search.workloads import Resolved

Function = TypeVar("Function", bound=Callable[..., Any])
SHORT_KEY = 12
# Sizes by the name of what varies, and whether all that can vary does.
Varying = tuple[Mapping[str, Sequence[int]], bool]


def store_option(function: Function) -> Function:
    text = "Path of the store.  [default: $TUNER_STORE, else the user's own]"
    return click.option("--store", type=click.Path(path_type=Path), default=None, help=text)(function)


def socket_option(function: Function) -> Function:
    text = "The daemon's Unix socket.  [default: without --store $TUNER_SOCKET, else one named for the store]"
    return click.option("--socket", type=click.Path(path_type=Path), default=None, help=text)(function)


def json_option(function: Function) -> Function:
    return click.option("--json", "as_json", is_flag=True, callback=_claim_stdout, help="Print JSON instead of text.")(function)


_answers: list[TextIO] = []


def _claim_stdout(ctx: click.Context, param: click.Parameter, as_json: bool) -> bool:
    """With --json, standard output is for the answer alone: whatever user code prints, now or later, goes to standard error."""
    with suppress(OSError, ValueError):
        if as_json and not _answers and sys.stdout.fileno() == 1:
            _answers.append(os.fdopen(os.dup(1), "w"))
            os.dup2(2, 1)
    return as_json


def settings_for(store: Path | None, socket: Path | None = None) -> Settings:
    """Settings of the environment, outranked by the options. Raises UsageError."""
    try:
        settings = Settings.from_environment(store=store)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return settings if socket is None else replace(settings, socket=socket)


@contextmanager
def user_output_on_stderr() -> Iterator[None]:
    """What user code prints, from Python or below it, goes to standard error: standard output is for our answer alone."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def graphs_of(
    spec: str,
    threads: int | None,
    forms: Callable[[str], Mapping[str, Any] | None],
    find: Callable[[str], list[str]],
    varying: Varying = ({}, False),
    phase: SpecPhase | None = None,
    compiled_with: tuple[str | None, Sequence[str]] = (None, ()),
    programs: Callable[[str], list[StoredProgram]] = lambda prefix: [],
) -> list[Resolved]:
    """The graphs of a SPEC, as `tuner.search.workloads.resolve`, with what the user's code prints out of the way.

    varying: what `varying_of` says. compiled_with: --mode and --option.
    """
    from tuner.search.workloads import resolve

    if any(compiled_with) and is_stored_key(spec) and programs(spec):
        raise UsageError(f"{spec}: a stored program has the settings that it was compiled with: no --mode, no --option")
    with user_output_on_stderr(), _settings(*compiled_with):
        return resolve(
            spec, threads=threads, forms=forms, find=find, programs=programs, dims=varying[0], dynamic=varying[1], phase=phase
        )


def _settings(mode: str | None, options: Sequence[str]) -> AbstractContextManager[None]:
    if mode is None and not options:
        return nullcontext()
    from tuner.compilers.inductor.options import compile_options

    return compile_options(mode, options)


def varying_options(function: Function) -> Function:
    """--dim and --dynamic; `varying_of` reads them."""
    text = "Sizes of a dimension that varies: a name that SPEC declares, or ARGUMENT.AXIS; of a stored key s0. Repeatable."
    function = click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE,…", help=text)(function)
    return click.option("--dynamic", is_flag=True, help="Tune what torch.compile(dynamic=True) makes of SPEC.")(function)


def varying_of(dims: Sequence[str], dynamic: bool) -> tuple[dict[str, tuple[int, ...]], bool]:
    """The sizes by name, and whether all sizes vary. Raises UsageError."""
    return parse_dims(dims), dynamic


def compile_settings(function: Function) -> Function:
    """--mode and --option."""
    text = "A setting of Inductor's, as torch.compile(options=…) takes it; VALUE is JSON or a word. Repeatable."
    function = click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help=text)(function)
    return click.option("--mode", default=None, help="As torch.compile(mode=…) takes it.")(function)


def phase_option(function: Function) -> Function:
    text = "Take SPEC as a call without gradients, or as a training step.  [default: a step where an output requires a gradient]"
    return click.option("--phase", type=click.Choice(SPEC_PHASES), default=None, help=text)(function)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, allow_nan=False), file=_answers[0] if _answers else None)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns: drawn by rich on a terminal; elsewhere plain, two spaces apart, never wrapped."""
    if sys.stdout.isatty():
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*header, box=box.SIMPLE_HEAD)
        for row in rows:
            table.add_row(*map(Text, row))
        Console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_block(title: str, lines: Sequence[tuple[str, str]]) -> None:
    """A title and indented `name  value` lines; values that are empty are left out."""
    click.echo(click.style(title, bold=True))
    width = max((len(name) for name, _ in lines), default=0)
    for name, value in lines:
        if value:
            click.echo(f"  {name.ljust(width)}  {value}")


def named(fields: Mapping[str, Any]) -> str:
    """Fields in one line for people."""
    return ", ".join(f"{name} {_text(value)}" for name, value in sorted(fields.items()))


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + named(value) + "}"
    return "; ".join(map(_text, value)) if isinstance(value, list | tuple) else str(value)


def speedup(value: float, low: float, high: float) -> str:
    return f"{value:.3f}x ({low:.3f} to {high:.3f})"


def workload_json(query: Query, spec: str | None, program_key: str | None) -> dict[str, Any]:
    """The fields that name a workload."""
    return {"spec": spec, "program_key": program_key, "workload_key": query.workload_key, "target": query.target_name}


def winner_json(winner: Winner, generation: int | None) -> dict[str, Any]:
    """A winner's fields. With the default as winner: plan null, winner_ms equal to default_ms, speed-ups 1."""
    default = winner.kind == "default"
    return {
        "winner": winner.kind,
        "plan": None if default else winner.plan.to_json(),
        "groups": None if winner.groups is None else [list(group) for group in winner.groups],
        "default_ms": winner.default_ms,
        "winner_ms": winner.default_ms if default else winner.winner_ms,
        "speedup": 1.0 if default else winner.speedup,
        "speedup_low": 1.0 if default else winner.speedup_low,
        "speedup_high": 1.0 if default else winner.speedup_high,
        "effort": winner.effort,
        "space_version": winner.space_version,
        "generation": generation,
    }


def by_size(evidence: Mapping[str, Any]) -> str:
    """The speed-up at each of the sizes at which a winner was measured, in one line; "" where its graph has no symbols."""
    told = [
        f"{describe_sizes([one['size']])}: {speedup(one['speedup'], one['speedup_low'], one['speedup_high'])}"
        for one in evidence.get("by_size", ())
    ]
    return "; ".join(told)
