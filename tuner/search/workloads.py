"""From a SPEC to the graphs it stands for, each with the query that asks for its winner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.errors import SpecError
from tuner.target import Query
from tuner.workload.graph import Graph


@dataclass(frozen=True)
class Resolved:
    """One graph of a SPEC. program_query: the program it was captured from; None for a stored key."""

    spec: str
    graph: Graph
    query: Query
    program_query: Query | None


def resolve(
    spec: str,
    *,
    threads: int | None,
    forms: Callable[[str], Mapping[str, Any] | None],
    find: Callable[[str], list[str]],
) -> list[Resolved]:
    """The graphs of `spec`, in order, under this process's settings; torch's thread count is set to `threads` if given.

    forms, find: a store's `graph` and `find_graphs`. Raises SpecError, UnsupportedGraph.
    """
    import torch

    from tuner.compilers.inductor.ambient import ambient, cpu_target, cpu_toolchain
    from tuner.compilers.inductor.capture import capture
    from tuner.workload.spec import is_stored_key, load_spec

    if threads is not None:
        torch.set_num_threads(threads)
    where = (cpu_target().fields(), cpu_toolchain(), ambient())

    def of(graph: Graph, program_key: str | None) -> Resolved:
        for node in graph.inputs:
            if node.value[3] != "cpu":
                raise SpecError(f"{spec}: an input is on {node.value[3]}; only the CPU is supported yet")
        program = None if program_key is None else Query("program", program_key, *where)
        return Resolved(spec, graph, Query("graph", graph.key, *where), program)

    if is_stored_key(spec):
        keys = find(spec)
        if len(keys) != 1:
            raise SpecError(f"{spec}: {'no stored workload has' if not keys else f'{len(keys)} stored workloads have'} this key")
        form = forms(keys[0])
        assert form is not None
        return [of(Graph.from_json(form), None)]
    function, inputs = load_spec(spec)
    try:
        programs = capture(function, inputs)
    except SpecError as error:
        error.args = (f"{spec}: {error}",)
        raise
    return [of(graph, program.key) for program in programs for graph in program.graphs]
