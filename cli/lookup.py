"""`tuner lookup`: what a compile of SPEC would be told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from tuner.answer import Answer, Bucket, ProgramAnswer
from tuner.cli.output import (
    SHORT_KEY,
    compile_settings,
    graphs_of,
    json_option,
    phase_option,
    print_block,
    print_json,
    settings_for,
    speedup,
    store_option,
    varying_of,
    varying_options,
    workload_json,
)
from tuner.errors import StoreError
from tuner.measurement import describe_sizes
from tuner.plan import Plan
from tuner.workload.graph import SpecPhase

if TYPE_CHECKING:
    from tuner.cache.contract import StoredProgram
    from tuner.lookup.client import Client
    from tuner.search.workloads import Resolved

Forms = Callable[[str], dict[str, Any] | None]
Find = Callable[[str], list[str]]
FindPrograms = Callable[[str], "list[StoredProgram]"]


@click.command(short_help="Show what a compile of SPEC would be told.")
@click.argument("spec")
@click.option("--threads", type=click.IntRange(min=1), default=None, help="Ask for this thread count.  [default: torch's own]")
@varying_options
@phase_option
@compile_settings
@store_option
@json_option
def lookup(
    spec: str,
    threads: int | None,
    dims: tuple[str, ...],
    dynamic: bool,
    phase: SpecPhase | None,
    mode: str | None,
    options: tuple[str, ...],
    store: Path | None,
    as_json: bool,
) -> None:
    """Show, for each graph of SPEC, the answer that a compile would get, and why.

    The daemon is asked if one serves the store, else the store is read. A miss is an answer too: the compiler's default.
    """
    from tuner.lookup.client import Client

    settings = settings_for(store)
    with stored_graphs(settings.store) as (forms, find, find_programs):
        resolved = graphs_of(spec, threads, forms, find, varying_of(dims, dynamic), phase, (mode, options), find_programs)
    client = Client(settings)
    programs: dict[str, ProgramAnswer] = {}
    found = []
    for place, workload in enumerate(resolved, start=1):
        answer = as_compiled(client, workload, programs)
        named = workload_json(workload.query, workload.spec, workload.program_key)
        native = native_table_of(workload, programs)
        kept: dict[str, Any] = {"native_table": list(native)} if native else {}
        buckets = buckets_of(workload, programs)
        if buckets:
            kept["dispatch"] = [bucket.to_json() for bucket in buckets]
        found.append({**named, "phase": workload.graph.phase, **answer.to_json(), **kept, "source": client.source})
        if not as_json:
            of = f"graph {place} of {len(resolved)}{'' if workload.graph.phase == 'inference' else f', {workload.graph.phase}'}"
            print_block(
                f"{workload.spec}  {of}  {workload.query.workload_key[:SHORT_KEY]}",
                [
                    ("target", workload.query.target_name),
                    ("winner", f"{answer.winner}: {answer.plan.describe()}" if answer.winner == "plan" else "default"),
                    (
                        "speed-up",
                        speedup(answer.speedup, answer.speedup_low, answer.speedup_high) if answer.winner == "plan" else "",
                    ),
                    ("sizes", f"measured at {describe_sizes(answer.sizes)}" if answer.sizes else ""),
                    ("dispatch", described(buckets, workload)),
                    ("native", f"the program keeps {', '.join(native)} undecomposed: its graphs are others" if native else ""),
                    ("tier", answer.tier),
                    ("generation", str(answer.generation)),
                    ("reason", answer.reason),
                    ("source", client.source),
                ],
            )
    if as_json:
        print_json(found)


def as_compiled(client: Client, workload: Resolved, programs: dict[str, ProgramAnswer]) -> Answer:
    """The answer that a compile of the workload's program gets for it; programs: those asked for already, by exact-match key."""
    program = workload.program_query
    if program is not None:
        if program.exact_key not in programs:
            programs[program.exact_key] = client.program(program)
        known = programs[program.exact_key]
        if known.known:
            nameless = Answer(Plan(), "default", known.generation, "the program's record does not name this graph")
            return known.answers.get(workload.query.exact_key, nameless)
    return client.lookup(workload.query)


def native_table_of(workload: Resolved, programs: Mapping[str, ProgramAnswer]) -> tuple[str, ...]:
    """Op kinds that the workload's program leaves undecomposed throughout, among those that were asked for."""
    program = workload.program_query
    known = None if program is None else programs.get(program.exact_key)
    return () if known is None else known.native_table


def buckets_of(workload: Resolved, programs: Mapping[str, ProgramAnswer]) -> tuple[Bucket, ...]:
    """The buckets by which the workload's program picks plans at run time, if it does, among those that were asked for."""
    program = workload.program_query
    known = None if program is None else programs.get(program.exact_key)
    return () if known is None else known.dispatch


def described(buckets: Sequence[Bucket], workload: Resolved) -> str:
    """What the graph is served at run time, for people: "s0 up to 22: native aten.gelu; any other size: default"."""
    parts = []
    for bucket in buckets:
        plans = [plan for key, plan, _ in bucket.plans if key == workload.query.exact_key]
        limit = "any other size" if bucket.up_to is None else f"{bucket.symbol} up to {bucket.up_to}"
        parts.append(f"{limit}: {plans[0].describe() if plans else 'default'}")
    return "; ".join(parts)


@contextlib.contextmanager
def stored_graphs(path: Path) -> Iterator[tuple[Forms, Find, FindPrograms]]:
    """How to find graphs and programs by key in the store at `path`; who looks for one gets the StoreError that there was."""
    from tuner.cache.sqlite import SqliteStore

    try:
        store = SqliteStore(path, read_only=True)
    except StoreError as error:
        # A SPEC that names no stored key needs no store: its graphs are asked for, and the client says what is wrong.
        failed = error

        def unreadable(key: str) -> NoReturn:
            raise failed

        yield unreadable, unreadable, unreadable
        return
    with store:
        yield store.graph, store.find_graphs, store.find_programs
