"""The key of a stored program as a SPEC: its graphs, each under the settings that it was compiled with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tuner.cache.contract import StoredProgram
from tuner.canonical import differing_fields
from tuner.errors import SpecError, UsageError
from tuner.search.workloads import Resolved, sizes_named, sizes_of
from tuner.target import Query
from tuner.workload.graph import Graph
from tuner.workload.miss_report import check_settings


def resolve_stored(
    spec: str,
    made: Sequence[StoredProgram],
    threads: int | None,
    forms: Callable[[str], Mapping[str, Any] | None],
    dims: Mapping[str, Sequence[int]],
) -> list[Resolved]:
    """The graphs of the program in `made`, which are records of it, for this machine; torch's thread count is set to theirs.

    threads: as many instead of those that it was compiled with. Raises SpecError, UsageError.
    """
    import torch

    programs = _for_threads(spec, _harmless(spec, _here(spec, made)), threads)
    torch.set_num_threads(_threads(programs[0]))
    found = [one for program in programs for one in _graphs(spec, program, forms, dims)]
    varying = {f"s{i}" for one in found for i in range(len(one.graph.symbols))}
    if dims and not varying:
        raise UsageError(f"--dim: {spec} has no size that varies")
    if unknown := sorted(dims.keys() - varying):
        raise UsageError(f"--dim {unknown[0]}: the stored program has the sizes {', '.join(sorted(varying))}")
    if dims and (several := [one.graph for one in found if len(one.graph.symbols) > 1]):
        raise UsageError(f"--dim: each graph of {spec} numbers its sizes by itself: name a graph, like {several[0].key[:12]}")
    return found


def _graphs(
    spec: str,
    program: StoredProgram,
    forms: Callable[[str], Mapping[str, Any] | None],
    dims: Mapping[str, Sequence[int]],
) -> list[Resolved]:
    found = []
    for query in program.graphs:
        form = forms(query.workload_key)
        if form is None:
            raise SpecError(f"{spec}: graph {query.workload_key[:12]} of the program is not in the store")
        graph = Graph.from_json(form)
        # Of sizes that other graphs of the program have, this one may lack some.
        own = {name: sizes for name, sizes in dims.items() if name in {f"s{i}" for i in range(len(graph.symbols))}}
        found.append(Resolved(spec, graph, query, program.query, sizes_named(graph, own) or sizes_of(graph)))
    return found


def _here(spec: str, made: Sequence[StoredProgram]) -> list[StoredProgram]:
    """Those records that are of this target and toolchain."""
    from tuner.compilers.inductor.ambient import cpu_target, cpu_toolchain

    if len({program.query.workload_key for program in made}) > 1:
        raise SpecError(f"{spec}: several stored programs have this key: give more digits")
    here = Query("program", made[0].query.workload_key, cpu_target().fields(), cpu_toolchain(), {})
    keys = here.target_key, here.toolchain_key
    if fitting := [program for program in made if (program.query.target_key, program.query.toolchain_key) == keys]:
        return fitting
    stored = {**made[-1].query.fields(), "ambient": {}}
    raise SpecError(f"{spec}: the program was compiled elsewhere: {'; '.join(differing_fields(here.fields(), stored))}")


def _harmless(spec: str, made: Sequence[StoredProgram]) -> Sequence[StoredProgram]:
    """`made`, if nobody but this process's user has chosen what their settings would run; who wrote a store is not known."""
    from tuner.compilers.inductor.ambient import changed_settings

    own = changed_settings()
    for ambient in (query.ambient for program in made for query in (program.query, *program.graphs)):
        try:
            check_settings(ambient, own)
        except ValueError as error:
            told = f"{spec}: the stored program cannot be tuned: {error}; what is your own can be said with --option"
            raise SpecError(told) from error
    return made


def _for_threads(spec: str, made: Sequence[StoredProgram], threads: int | None) -> list[StoredProgram]:
    """The programs for one number of threads, equal ones once."""
    recorded = sorted(set(map(_threads, made)))
    if threads is None:
        if len(recorded) > 1:
            told = " and ".join(map(str, recorded))
            raise UsageError(f"{spec}: the program was compiled for {told} threads: say which with --threads")
        return list(made)
    if own := [program for program in made if _threads(program) == threads]:
        return own
    changed = [_with_threads(program, threads) for program in made]
    return list({program.query.exact_key: program for program in changed}.values())


def _threads(program: StoredProgram) -> int:
    return int(program.query.ambient["threads"])


def _with_threads(program: StoredProgram, threads: int) -> StoredProgram:
    def changed(query: Query) -> Query:
        ambient = {**query.ambient, "threads": threads}
        return Query(query.kind, query.workload_key, query.target, query.toolchain, ambient)

    return StoredProgram(changed(program.query), tuple(map(changed, program.graphs)), program.spec)
