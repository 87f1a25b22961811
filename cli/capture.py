"""`tuner capture`: run a command, and keep the programs that it compiles."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.output import SHORT_KEY, json_option, print_json, print_table, settings_for, socket_option, store_option
from tuner.errors import SpecError, StoreBusy, TunerError
from tuner.workload.captured import FOLDER_VARIABLE, Captured, CapturedGraph, CapturedProgram, read_folder
from tuner.workload.graph import Graph

if TYPE_CHECKING:
    from tuner.cache.sqlite import SqliteStore

# Seconds between looks at a store that another process writes.
BUSY_POLL_S = 0.5
# How many of the sizes at which a graph ran stand in its row.
SHOWN_SIZES = 8
# Says whether a Python has our entry point, so that torch loads the recorder there.
# Not of the folder that one happens to be in, from which a script is not started.
HAS_TUNER = (
    "import sys; sys.path = [path for path in sys.path if path]; import importlib.metadata as m; "
    "sys.exit(not any(e.name == 'tuner' for e in m.entry_points(group='torch.backends')))"
)


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--threads", type=click.IntRange(min=1), default=None, help="Run it with this OMP_NUM_THREADS.")
@store_option
@socket_option
@json_option
def capture(command: tuple[str, ...], threads: int | None, store: Path | None, socket: Path | None, as_json: bool) -> None:
    """Run COMMAND, a script that calls torch.compile, and store the programs that it compiles, to be tuned.

    For instance: tuner capture -- python train.py --epochs 1. The script is not changed: whatever back end it names, what
    Inductor would be given is recorded, forward and backward, and runs eagerly: no C++ is compiled. So do its subprocesses. The
    programs are those of the script's own settings and threads. What was captured is kept also where the command fails.
    """
    settings = settings_for(store, socket)
    from tuner.cache.sqlite import SqliteStore
    from tuner.lookup.yielding import ask_to_yield

    # What is wrong with the store is to be known before a long run, not after it.
    try:
        SqliteStore(settings.store).close()
    except StoreBusy:
        pass
    folder = Path(tempfile.mkdtemp(prefix="tuner-capture-"))
    try:
        exit_code = _run(command, folder, threads)
        captured = read_folder(folder)
        ask_to_yield(settings.socket)
        with _opened_when_free(lambda: SqliteStore(settings.store)) as opened:
            _keep(captured, opened)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print_json(_as_json(captured, command, exit_code))
    else:
        _print(captured)
    _raise_what_failed(captured, command, exit_code)


def _run(command: Sequence[str], folder: Path, threads: int | None) -> int:
    """The exit code of `command`, run with the recorder; minus the signal that ended it. Raises SpecError."""
    environment = {**os.environ, FOLDER_VARIABLE: str(folder)}
    # Where the script asks for our winners it is to get none: what is recorded is what would be compiled by default.
    environment["TUNER_DISABLE"] = "1"
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        hint = f": tuner capture -- python {command[0]}" if command[0].endswith(".py") else ""
        raise SpecError(f"{command[0]} cannot be run ({error.strerror}){hint}") from error
    with _signals_passed_on(process) as interrupts:
        exit_code = process.wait()
    return -signal.SIGINT if exit_code and interrupts else exit_code


@contextmanager
def _signals_passed_on(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Ctrl-C reaches the command by itself, SIGTERM is passed on; this process outlives both, to keep what was captured.

    Gives a list that Ctrl-C adds to.
    """
    interrupts: list[int] = []
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number)),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: process.terminate()),
    }
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _opened_when_free(open_store: Callable[[], SqliteStore]) -> Iterator[SqliteStore]:
    """The store, once nobody else writes it. One Ctrl-C is not enough to give it up. Raises StoreError."""
    told = interrupted = False
    while True:
        try:
            store = open_store()
            break
        except StoreBusy as error:
            if not told:
                click.echo(f"Waiting: {error}", err=True)
            told = True
        try:
            time.sleep(BUSY_POLL_S)
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            click.echo("What was captured is not stored yet: press Ctrl-C again to lose it", err=True)
    with store:
        yield store


def _keep(captured: Captured, store: SqliteStore) -> None:
    for program in captured.programs:
        for one in program.graphs:
            _keep_graph(one, store)
        # What is known of a program may be more than one run of a script makes of it.
        if program.query is not None and not _is_known(program, store):
            store.add_program(program.query, program.graph_queries(), _name(program))


def _keep_graph(one: CapturedGraph, store: SqliteStore) -> None:
    """Stores the graph; one that is stored already with what was seen in its inputs then and now."""
    form = store.graph(one.graph.key)
    try:
        graph = one.graph if form is None else one.added_to(Graph.from_json(form))
    # A form that is none of this version's.
    except (SpecError, ValueError, TypeError, LookupError, AttributeError):
        graph = one.graph
    if graph.to_json() != form:
        store.add_graph(one.graph.key, graph.to_json(), anew=True)


def _is_known(program: CapturedProgram, store: SqliteStore) -> bool:
    """Whether the store's record of the program has all of these graphs."""
    assert program.query is not None
    exact_key = program.query.exact_key
    return all(any(made.exact_key == exact_key for made in store.programs_of(one.graph.key)) for one in program.graphs)


def _name(program: CapturedProgram) -> str:
    return "no program key" if program.query is None else f"program {program.query.workload_key[:SHORT_KEY]}"


def _print(captured: Captured) -> None:
    rows = [_row(program, one) for program in captured.programs for one in program.graphs]
    if rows:
        print_table(("program", "graph", "phase", "nodes", "threads", "calls", "sizes", "never tuned for"), rows)
    for (_, words), count in captured.left_out.items():
        click.echo(f"left out {count}x: {words}", err=True)
    if captured.unreadable:
        click.echo(f"{captured.unreadable} files of the command are no captured programs", err=True)
    tunable = [program for program in captured.programs if any(not one.graph.opaque for one in program.graphs)]
    if keys := [program.query.workload_key for program in tunable if program.query is not None]:
        click.echo("next: tuner sweep " + " ".join(key[:SHORT_KEY] for key in dict.fromkeys(keys)))


def _row(program: CapturedProgram, one: CapturedGraph) -> tuple[str, ...]:
    key, threads = ("-", "-") if program.query is None else (program.query.workload_key, str(program.query.ambient["threads"]))
    graph = one.graph
    named = (key[:SHORT_KEY], graph.key[:SHORT_KEY], graph.phase, str(len(graph.nodes)))
    often = sorted(one.sizes.items(), key=lambda pair: -pair[1])
    shown = [f"{'x'.join(map(str, size))} ({count})" for size, count in often[:SHOWN_SIZES]]
    sizes = ", ".join([*shown, *([f"{len(often) - SHOWN_SIZES} more"] if len(often) > SHOWN_SIZES else [])])
    return (*named, threads, str(one.calls), sizes, ", ".join(graph.opaque))


def _as_json(captured: Captured, command: Sequence[str], exit_code: int) -> dict[str, Any]:
    programs = [
        {
            "program_key": None if program.query is None else program.query.workload_key,
            "target": None if program.query is None else program.query.target_name,
            "ambient": None if program.query is None else dict(program.query.ambient),
            "graphs": [
                {
                    "workload_key": one.graph.key,
                    "phase": one.graph.phase,
                    "nodes": len(one.graph.nodes),
                    "calls": one.calls,
                    "opaque": list(one.graph.opaque),
                    "sizes": [{"sizes": list(size), "calls": count} for size, count in one.sizes.items()],
                }
                for one in program.graphs
            ],
        }
        for program in captured.programs
    ]
    left_out = [{"reason": reason, "words": words, "count": count} for (reason, words), count in captured.left_out.items()]
    return {
        "command": list(command),
        "exit_code": exit_code,
        "processes": captured.processes,
        "programs": programs,
        "left_out": left_out,
        "unreadable": captured.unreadable,
    }


def _raise_what_failed(captured: Captured, command: Sequence[str], exit_code: int) -> None:
    """The exit code: how the command ended, else whether there is something to tune."""
    count = len(captured.programs)
    kept = f"what it had compiled is kept: {count} program{'s' * (count != 1)}" if count else "nothing was captured"
    if exit_code == -signal.SIGINT:
        click.echo(f"Interrupted; {kept}", err=True)
        sys.exit(130)
    if reason := captured.unsupported or captured.failed:
        kept = f"{kept}: {reason}"
    if exit_code:
        how = f"was ended by signal {-exit_code}" if exit_code < 0 else f"failed with exit code {exit_code}"
        raise TunerError(f"{command[0]} {how}; {kept}")
    if captured.programs:
        return
    if captured.unsupported:
        raise SpecError(f"nothing can be captured: {captured.unsupported}")
    if captured.left_out:
        raise SpecError("nothing of what the command compiles can be tuned; see above")
    if captured.failed:
        raise SpecError(f"nothing to capture: {captured.failed}")
    if captured.processes:
        raise SpecError("nothing to capture: the command called no function that torch.compile compiles")
    raise SpecError(_why_not_loaded(command[0]))


def _why_not_loaded(program: str) -> str:
    """Why no process of a command had the recorder in it."""
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        return "nothing to capture: TORCH_DEVICE_BACKEND_AUTOLOAD keeps torch from loading the recorder"
    if Path(program).name.startswith("python"):
        done = subprocess.run([program, "-c", HAS_TUNER], capture_output=True, check=False)
        if done.returncode:
            return f"nothing to capture: {program} has no tuner installed: install it beside the script's torch"
        return "nothing to capture: the command did not import torch"
    return "nothing to capture: the command did not import torch, or in a Python that has no tuner installed"
