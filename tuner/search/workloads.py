"""From a SPEC to the graphs it stands for, each with the query that asks for its winner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.errors import SpecError
from tuner.measurement import Policy
from tuner.target import Query
from tuner.workload.graph import Graph, is_stored_key


@dataclass(frozen=True)
class Resolved:
    """One graph of a SPEC. program_query: the program it was captured from; None for a stored key.

    sizes: of a symbolic graph, the values of its symbols at which it is tuned; see `Policy.sizes`.
    """

    spec: str
    graph: Graph
    query: Query
    program_query: Query | None
    sizes: tuple[tuple[int, ...], ...] = ()

    def policy(self, policy: Policy) -> Policy:
        """How times of this graph are taken in a sweep of this policy."""
        return replace(policy, sizes=self.sizes)

    @property
    def device(self) -> str:
        """The device to measure on, as `tuner.measure.device.open_device` names it; a graph without inputs is the CPU's."""
        kinds = {node.value[3] for node in self.graph.inputs} or {"cpu"}
        return "cpu" if kinds == {"cpu"} else f"{min(kinds - {'cpu'})}:0"

    @property
    def program_key(self) -> str | None:
        return None if self.program_query is None else self.program_query.workload_key


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

    from tuner.workload.spec import load_spec

    threads = torch.get_num_threads() if threads is None else threads
    torch.set_num_threads(threads)
    if is_stored_key(spec):
        keys = find(spec)
        if len(keys) != 1:
            raise SpecError(f"{spec}: {'no stored workload has' if not keys else f'{len(keys)} stored workloads have'} this key")
        form = forms(keys[0])
        assert form is not None
        return [_resolved(spec, Graph.from_json(form), None)]
    function, inputs = load_spec(spec)
    # A SPEC that sets a number of its own would be tuned for another than it was asked for.
    torch.set_num_threads(threads)
    return resolve_callable(spec, function, inputs)


def resolve_callable(spec: str, function: Callable[..., Any], inputs: Sequence[Any]) -> list[Resolved]:
    """The graphs that torch.compile makes of `function` for `inputs`, in order; `spec` names them. Raises as `resolve`."""
    from tuner.compilers.inductor.capture import capture
    from tuner.compilers.inductor.hooks import missing_hooks

    if missing := missing_hooks():
        raise SpecError(f"this torch lacks {', '.join(missing)}: no plan could be applied")
    try:
        programs = capture(function, inputs)
    except SpecError as error:
        error.args = (f"{spec}: {error}",)
        raise
    return [_resolved(spec, graph, program.key) for program in programs for graph in program.graphs]


def _resolved(spec: str, graph: Graph, program_key: str | None) -> Resolved:
    from tuner.compilers.inductor.ambient import ambient, cpu_target, cpu_toolchain

    for node in graph.inputs:
        if node.value[3] != "cpu":
            raise SpecError(f"{spec}: an input is on {node.value[3]}; only the CPU is supported yet")
    where = (cpu_target().fields(), cpu_toolchain(), ambient())
    program = None if program_key is None else Query("program", program_key, *where)
    return Resolved(spec, graph, Query("graph", graph.key, *where), program)
