"""A program that a daemon does not know, with its graphs: what a compiling process gives it to tune. No torch here.

What comes in is checked before it is kept: nothing but data of the forms that `tuner.workload.fx` writes, each graph under the
key that it has. Nothing of it is executed here; what a tuner later rebuilds of it are calls of ATen's own ops on made-up inputs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tuner.canonical import canonical_json
from tuner.errors import SpecError
from tuner.target import Query
from tuner.workload.expressions import LENGTH_LIMIT, number_at, value_of
from tuner.workload.graph import PHASES, REBUILDABLE_NAMESPACES, Graph, Node, Symbol, TensorMeta

# What one report may hold; a program of 2,000 operations is about 1 MB.
REPORT_LIMIT_BYTES = 4 * 1024 * 1024
GRAPHS_LIMIT = 16
NODES_LIMIT = 4000
THREADS_LIMIT = 4096
NOTHING: Mapping[str, Any] = MappingProxyType({})
SYMBOLS_LIMIT = 64
KEY = re.compile(r"[0-9a-f]{64}")
# from_file maps a file, and can make one: of all ops the only one that reaches out of the process.
OP = re.compile(
    rf"(?:{'|'.join(REBUILDABLE_NAMESPACES)})\.(?!from_file)(?:_?[A-Za-z]\w*|__i?(?:and|or|xor|lshift|rshift)__)\.[A-Za-z]\w*"
)
WORD = re.compile(r"[a-z]\w*")
# Those with which a graph differs from what it is by default stand there only then.
FORM_FIELDS = frozenset(
    Graph("", (), [], (), (), user_visible=(), names=("x",), yields=("x",), symbols=(Symbol(2, None, 2),)).to_json()
)


@dataclass(frozen=True)
class MissReport:
    """program: the query of kind "program" that was not known; graphs: what it gives, in order."""

    program: Query
    graphs: tuple[Graph, ...]

    @property
    def threads(self) -> int:
        """Threads that the program was compiled for."""
        return int(self.program.ambient["threads"])

    @property
    def queries(self) -> tuple[Query, ...]:
        """The query of each graph."""
        program = self.program
        return tuple(Query("graph", graph.key, program.target, program.toolchain, program.ambient) for graph in self.graphs)

    def to_json(self) -> dict[str, Any]:
        graphs = [{"key": graph.key, "form": graph.to_json()} for graph in self.graphs]
        return {"program": self.program.to_json(), "graphs": graphs}

    @staticmethod
    def from_json(data: Any) -> MissReport:
        """The report that `to_json` wrote, checked throughout. Raises SpecError or ValueError on anything else."""
        try:
            _only(data, {"program", "graphs"})
            program = Query.from_json(_only(data["program"], {"kind", "workload_key", "target", "toolchain", "ambient"}))
            if program.kind != "program" or not KEY.fullmatch(program.workload_key):
                raise ValueError("it is about no program")
            canonical_json(program.fields())
            check_settings(program.ambient)
            rows = data["graphs"]
            if not isinstance(rows, list) or not 1 <= len(rows) <= GRAPHS_LIMIT:
                raise ValueError(f"it holds not 1 to {GRAPHS_LIMIT} graphs")
            return MissReport(program, tuple(_graph(row) for row in rows))
        except (TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"it is malformed: {type(error).__name__}") from error


def _only(data: Any, names: set[str] | frozenset[str]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError("a part of it is no JSON object")
    if unknown := sorted(set(data) - names):
        raise ValueError(f"it has an unknown field {unknown[0][:40]!r}")
    return data


def check_settings(ambient: Mapping[str, Any], in_force: Mapping[str, Any] = NOTHING) -> None:
    """Raises ValueError on an ambient from outside, a report or a store, under which nothing is to be compiled.

    Settings that are texts may name commands and paths: those are taken over from nobody. in_force: Inductor's settings of this
    process, its user's own, as `ambient` has them; what is the same there is taken over from them.
    """
    threads = ambient.get("threads")
    if not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= THREADS_LIMIT:
        raise ValueError("it does not say for how many threads it was compiled")
    settings = ambient.get("inductor", {})
    if not isinstance(settings, Mapping):
        raise ValueError("its settings of Inductor are no object")
    for name, value in settings.items():
        harmless = value is None or isinstance(value, bool | int | float)
        if not harmless and not (name in in_force and in_force[name] == value):
            raise ValueError(f"setting {name[:60]} is not taken over from another process")


def _graph(row: Any) -> Graph:
    _only(row, {"key", "form"})
    form = row["form"]
    for part in (form, form["native_form"]):
        if part is not None and len(_only(part, FORM_FIELDS)["nodes"]) > NODES_LIMIT:
            raise ValueError(f"a graph has more than {NODES_LIMIT} nodes")
    graph = Graph.from_json(form)
    _check(graph)
    if (native := graph.native_form) is not None:
        if native.native_form is not None:
            raise ValueError("a native form has a native form")
        _check(native)
        # Each form numbers its symbols by its own first use of them.
        if _inputs_of(native) != _inputs_of(graph) or sorted(native.hints) != sorted(graph.hints):
            raise ValueError("a native form has other inputs than its graph")
    if row["key"] != graph.key:
        raise ValueError("a graph has another key than is claimed")
    return graph


def _inputs_of(graph: Graph) -> list[TensorMeta]:
    return [TensorMeta.from_json(node.value).at(graph.hints) for node in graph.inputs]


def _check(graph: Graph) -> None:
    """Raises ValueError, SpecError on what `tuner.workload.fx.from_fx` would not have made."""
    if graph.phase not in PHASES:
        raise SpecError(f"a graph of phase {str(graph.phase)[:20]!r}, which there is not")
    if len(graph.symbols) > SYMBOLS_LIMIT:
        raise ValueError(f"a graph has more than {SYMBOLS_LIMIT} symbols")
    if not isinstance(graph.outputs, list):
        raise ValueError("a graph's outputs are no list")
    if len(graph.names) not in (0, len(graph.inputs)) or len(graph.yields) not in (0, len(graph.outputs)):
        raise ValueError("a graph's names do not fit its inputs and outputs")
    for symbol in graph.symbols:
        if not -(2**63) <= symbol.low <= symbol.hint <= (2**63 if symbol.high is None else symbol.high) <= 2**63:
            raise ValueError("a symbol is not within its bounds")
    if sorted(graph.order) != list(range(len(graph.nodes))) or len(graph.data) != len(graph.inputs):
        raise ValueError("a graph's order or data does not fit its nodes")
    for position in (*graph.static_inputs, *graph.mutated):
        if not isinstance(position, int) or not 0 <= position < len(graph.inputs):
            raise ValueError("a graph names an input that it does not have")
    if graph.user_visible is not None and not all(0 <= i < len(graph.outputs) for i in graph.user_visible):
        raise ValueError("a graph shows an output that it does not have")
    before: set[int] = set()
    for i in graph.order:
        _check_node(graph.nodes[i], graph, before)
        before.add(i)
    _check_argument(graph.outputs, graph, before)
    canonical_json([seen.to_json() for seen in graph.data])


def _check_node(node: Node, graph: Graph, before: Set[int]) -> None:
    if node.op == "call":
        if not isinstance(node.target, str) or not (node.target == "operator.getitem" or OP.fullmatch(node.target)):
            raise SpecError(f"op {str(node.target)[:60]!r} cannot be rebuilt from a report")
        _check_value(node.value, graph)
    elif node.op in ("input", "constant"):
        if TensorMeta.from_json(node.value).device != "cpu":
            raise SpecError(f"an input is on {str(node.value[3])[:20]}; only the CPU is supported yet")
        _check_value(node.value, graph)
        if node.op == "constant" and node.target not in ("scalar", "zero", "other"):
            raise ValueError("a constant of unknown content")
    else:
        raise ValueError(f"a node is a {str(node.op)[:20]!r}")
    if not isinstance(node.args, list) or not isinstance(node.kwargs, dict):
        raise ValueError("a node's arguments are no list and object")
    _check_argument(node.args, graph, before)
    _check_argument(list(node.kwargs.values()), graph, before)


def _check_value(value: Any, graph: Graph) -> None:
    """Metadata of one tensor, or of several, or of none; sizes are looked at as they were when the graph was made."""
    if isinstance(value, list) and value and not isinstance(value[0], str):
        for item in value:
            _check_value(item, graph)
    elif value:
        meta = TensorMeta.from_json(value)
        if meta.layout:
            raise SpecError(f"a {meta.layout[:20]} tensor cannot be made like one that was seen")
        lowest = min((value_of(size, graph.hints) for size in (*meta.shape, *meta.stride)), default=0)
        if not (WORD.fullmatch(meta.dtype) and WORD.fullmatch(meta.device)) or lowest < 0:
            raise ValueError("a value's metadata makes no sense")


def _check_argument(value: Any, graph: Graph, before: Set[int]) -> None:
    """before: numbers of the nodes that it can name, as they are made before it is used."""
    if value is None or isinstance(value, bool | int | str):
        return
    if isinstance(value, float) and math.isfinite(value):
        return
    if isinstance(value, list):
        for item in value:
            _check_argument(item, graph, before)
        return
    if isinstance(value, dict) and len(value) == 1:
        ((kind, content),) = value.items()
        if kind == "node" and isinstance(content, int) and content in before:
            return
        if kind == "sym" and isinstance(content, str) and len(content) <= LENGTH_LIMIT:
            number_at(content, graph.hints)
            return
        if kind == "complex" and isinstance(content, list) and len(content) == 2:
            return _check_argument(content, graph, before)
        if kind == "float" and content in ("inf", "-inf", "nan"):
            return
        if kind in ("dtype", "torch", "device") and isinstance(content, str) and WORD.fullmatch(content):
            return
    raise ValueError("an argument is no data of a graph")
