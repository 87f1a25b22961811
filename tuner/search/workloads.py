"""From a SPEC to the graphs it stands for, each with the query that asks for its winner."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from tuner.cache.contract import StoredProgram
from tuner.errors import SpecError, UnsupportedGraph, UsageError
from tuner.measurement import Policy
from tuner.target import Query
from tuner.workload.graph import Graph, InputData, SpecPhase, is_stored_key
from tuner.workload.shapes import MAX_SIZES, STATIC, Shapes, default_sizes


@dataclass(frozen=True)
class Resolved:
    """One graph of a SPEC. program_query: the program it was captured from; None for a stored key.

    sizes: of a symbolic graph, the values of its symbols at which it is tuned; see `Policy.sizes`. shapes: what varies in the
    whole callable. Where that is one dim: dim_sizes, its sizes at which the graph has `sizes`, in this order; symbol: what the
    dim is called in the program's key, "s0". data: what was seen in the inputs at each of the sizes, where it was.
    """

    spec: str
    graph: Graph
    query: Query
    program_query: Query | None
    sizes: tuple[tuple[int, ...], ...] = ()
    shapes: Shapes = STATIC
    dim_sizes: tuple[int, ...] = ()
    data: tuple[tuple[InputData, ...], ...] = ()
    symbol: str = ""

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
    programs: Callable[[str], list[StoredProgram]] = lambda prefix: [],
    dims: Mapping[str, Sequence[int]] = MappingProxyType({}),
    dynamic: bool = False,
    phase: SpecPhase | None = None,
) -> list[Resolved]:
    """The graphs of `spec`, in order, under this process's settings; torch's thread count is set to `threads` if given.

    Those of a stored program are under the settings that it was compiled with. forms, find, programs: a store's `graph`,
    `find_graphs` and `find_programs`. dims: sizes by the name of what varies; dynamic: whatever can vary does.
    phase: see `capture`; None: as `phase_of` finds it. Raises SpecError, UnsupportedGraph, UsageError.
    """
    import torch

    from tuner.workload.dims import check_sizes, dims_of
    from tuner.workload.spec import load

    if phase is not None and is_stored_key(spec):
        raise UsageError(f"{spec}: what is stored has its phase: no --phase")
    if is_stored_key(spec) and (made := programs(spec)):
        from tuner.search.stored_programs import resolve_stored

        if find(spec):
            raise SpecError(f"{spec}: a stored workload and a stored program have this key: give more digits")
        return resolve_stored(spec, made, threads, forms, dims)
    threads = torch.get_num_threads() if threads is None else threads
    torch.set_num_threads(threads)
    if is_stored_key(spec):
        keys = find(spec)
        if len(keys) != 1:
            raise SpecError(f"{spec}: {'no stored workload has' if not keys else f'{len(keys)} stored workloads have'} this key")
        form = forms(keys[0])
        assert form is not None
        graph = Graph.from_json(form)
        return [_resolved(spec, graph, None, sizes=sizes_named(graph, dims))]
    loaded = load(spec)
    # A SPEC that sets a number of its own would be tuned for another than it was asked for.
    torch.set_num_threads(threads)
    shapes = Shapes(dims_of(dims, loaded.dims, loaded.function, loaded.inputs), dynamic)
    try:
        check_sizes(loaded.function, loaded.inputs, shapes)
        return resolve_callable(spec, loaded.function, loaded.inputs, shapes, phase)
    except SpecError as error:
        if not str(error).startswith(spec):
            error.args = (f"{spec}: {error}",)
        raise


def resolve_callable(
    spec: str,
    function: Callable[..., Any],
    inputs: Sequence[Any],
    shapes: Shapes = STATIC,
    phase: SpecPhase | None = None,
) -> list[Resolved]:
    """The graphs that torch.compile makes of `function` for `inputs`, in order; `spec` names them. Raises as `resolve`.

    Where sizes vary, those of each size: one that is the same at several has these as its sizes.
    """
    from tuner.compilers.inductor.capture import capture
    from tuner.compilers.inductor.hooks import missing_hooks
    from tuner.workload.step import phase_of

    if missing := missing_hooks():
        raise SpecError(f"this torch lacks {', '.join(missing)}: no plan could be applied")
    try:
        phase = phase or phase_of(function, inputs)
        if not shapes:
            programs = capture(function, inputs, phase=phase)
            return [_resolved(spec, graph, program.key) for program in programs for graph in program.graphs]
        return list(_at_each_size(spec, function, inputs, shapes, phase).values())
    except SpecError as error:
        error.args = (f"{spec}: {error}",)
        raise


def _at_each_size(
    spec: str, function: Callable[..., Any], inputs: Sequence[Any], shapes: Shapes, phase: SpecPhase
) -> dict[tuple[str, str], Resolved]:
    """The graphs, by the keys of program and graph, that are made for some size; each with the sizes for which it is."""
    from tuner.compilers.inductor.capture import capture
    from tuner.compilers.marks import marked
    from tuner.workload.dims import resized

    found: dict[tuple[str, str], Resolved] = {}
    # Of each graph: its sizes, with those of the dims and the data seen, in the order of the points. Of each program: its
    # symbols' sizes by point.
    at: dict[str, dict[tuple[int, ...], tuple[tuple[int, ...], tuple[InputData, ...]]]] = {}
    program_hints: dict[str, dict[tuple[int, ...], tuple[int, ...]]] = {}
    for point in shapes.points:
        made, dims = resized(inputs, point), tuple(point.values())
        for dynamic in shapes.compilations:
            for program in capture(function, marked(made, shapes.dims), dynamic, phase):
                program_hints.setdefault(program.key, {})[dims] = program.hints
                for graph in program.graphs:
                    found.setdefault((program.key, graph.key), _resolved(spec, graph, program.key, shapes))
                    # Of sizes that nobody named those of the example inputs are one.
                    if shapes.dims and graph.symbols:
                        at.setdefault(graph.key, {}).setdefault(graph.hints, (dims, graph.data))
    sized = {key: _sized(one, at.get(one.graph.key, {})) for key, one in found.items()}
    return {(program, graph): replace(one, symbol=_symbol(program_hints[program])) for (program, graph), one in sized.items()}


def _sized(graph: Resolved, at: Mapping[tuple[int, ...], tuple[tuple[int, ...], tuple[InputData, ...]]]) -> Resolved:
    """The graph with its sizes; at: the dims' sizes and the data seen by those of its symbols."""
    if not at:
        return graph
    alone = all(len(dims) == 1 for dims, _ in at.values())
    dim_sizes = tuple(dims[0] for dims, _ in at.values()) if alone else ()
    return replace(graph, sizes=tuple(at), dim_sizes=dim_sizes, data=tuple(data for _, data in at.values()))


def _symbol(hints: Mapping[tuple[int, ...], tuple[int, ...]]) -> str:
    """Which symbol of a program has the size of the one dim, told by several of its sizes; "" where that cannot be told."""
    if len(hints) < 2 or any(len(dims) != 1 for dims in hints):
        return ""
    count = min(map(len, hints.values()))
    return next((f"s{i}" for i in range(count) if all(sizes[i] == dims[0] for dims, sizes in hints.items())), "")


def sizes_named(graph: Graph, dims: Mapping[str, Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """The values of a stored graph's symbols that `dims` asks for by their own names, "s0"; none asked for: none.

    Raises UsageError for another name, and where there are too many.
    """
    names = [f"s{i}" for i in range(len(graph.symbols))]
    if unknown := [name for name in dims if name not in names]:
        known = f"has the sizes {', '.join(names)}" if names else "has no size that varies"
        raise UsageError(f"--dim {unknown[0]}: the stored graph {known}")
    if not dims:
        return ()
    points = tuple(itertools.product(*(dims.get(name, (hint,)) for name, hint in zip(names, graph.hints, strict=True))))
    if len(points) > MAX_SIZES:
        raise UsageError(f"--dim: these are {len(points)} combinations of sizes, more than {MAX_SIZES}")
    for point in points:
        for name, size, symbol in zip(names, point, graph.symbols, strict=True):
            if size < symbol.low or (symbol.high is not None and size > symbol.high):
                raise UsageError(f"--dim {name}={size}: in this graph it is from {symbol.low} to {symbol.high or 'any size'}")
    return points


def sizes_of(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """The sizes at which a graph is tuned where nobody named any; none where none varies."""
    if not graph.symbols:
        return ()
    points = default_sizes(graph.hints, [(symbol.low, symbol.high) for symbol in graph.symbols])
    return tuple(point for point in points if point == graph.hints or _is_possible(graph, point))


def _is_possible(graph: Graph, point: Sequence[int]) -> bool:
    """Whether the graph can be run at these sizes: that one has to be even, say, is not in its form."""
    from tuner.workload.symbolic import symbolic_module

    try:
        symbolic_module(graph, tuple(point))
    except UnsupportedGraph:
        return False
    return True


def _resolved(
    spec: str,
    graph: Graph,
    program_key: str | None,
    shapes: Shapes = STATIC,
    sizes: tuple[tuple[int, ...], ...] = (),
) -> Resolved:
    from tuner.compilers.inductor.ambient import ambient, cpu_target, cpu_toolchain

    for node in graph.inputs:
        if node.value[3] != "cpu":
            raise SpecError(f"{spec}: an input is on {node.value[3]}; only the CPU is supported yet")
    where = (cpu_target().fields(), cpu_toolchain(), ambient())
    program = None if program_key is None else Query("program", program_key, *where)
    return Resolved(spec, graph, Query("graph", graph.key, *where), program, sizes or sizes_of(graph), shapes)
