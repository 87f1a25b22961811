"""Graphs with symbolic sizes made again: symbols of torch's, expressions as nodes, fake inputs to compile for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import GuardSource, Source
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from tuner.errors import UnsupportedGraph
from tuner.workload.expressions import parse
from tuner.workload.fx import to_fx
from tuner.workload.graph import Graph, Symbol, TensorMeta
from tuner.workload.inputs import Sizes, sizes_of
from tuner.workload.sizes import computed

# What an op raises for sizes that it cannot have, also through torch's own shape functions.
_REFUSALS = (RuntimeError, ValueError, LookupError, TypeError, ArithmeticError, AssertionError)


class _Propagation(FakeTensorProp):
    """Knows at which node it is."""

    at: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        self.at = n
        return super().run_node(n)


class _Stated(Source):
    """Where a symbol comes from that no program has: it is stated. Nothing guards on it."""

    def __init__(self, text: str):
        self._text = text

    @property
    def guard_source(self) -> GuardSource:
        return GuardSource.CONSTANT

    @property
    def _name_template(self) -> str:
        return self._text


def symbolic_module(graph: Graph, sizes: Sizes = None) -> tuple[fx.GraphModule, list[Any]]:
    """The graph, and what to compile it for: a SymInt for each symbol, then a fake tensor for each input.

    sizes: of the symbols, by number or by name ("s0"), where they are not to be those of the graph's making; the compiler takes
    them as hints, and the symbols keep their bounds. Each call makes symbols of its own: compile a module only for the inputs
    that came with it, and each pair once. A graph without symbols gives fake tensors alone. What is compiled is called with a
    number for each symbol, then tensors, as `make_inputs` makes them; `Graph.call_positions` are its static inputs.
    Raises UnsupportedGraph.
    """
    hints = sizes_of(graph, sizes)
    gm = to_fx(graph)
    environment = ShapeEnv()
    symbols = [_symbol(environment, i, *pair) for i, pair in enumerate(zip(graph.symbols, hints, strict=True))]
    mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    inputs: list[Any] = list(symbols)
    propagation = _Propagation(gm, mode)
    try:
        with mode:
            inputs += [_fake(TensorMeta.from_json(node.value), symbols) for node in graph.inputs]
        if graph.symbols:
            # With it, ops that know only numbers are decomposed, as they are where AOTAutograd traces.
            with enable_python_dispatcher():
                propagation.propagate_dont_convert_inputs(*inputs)
    except _REFUSALS as error:
        at = "" if propagation.at is None else f" at {propagation.at.target}"
        why = f"the graph cannot be rebuilt at these sizes: {type(error).__name__}{at}"
        raise UnsupportedGraph("symbolic_sizes", why) from error
    for node, value in zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True):
        node.meta["val"] = value
    return gm, inputs


class Guarded:
    """Whether values of these symbols satisfy what a compiler has assumed of them, once it has compiled for them."""

    def __init__(self, symbols: Sequence[Any]):
        environment = symbols[0].node.shape_env
        self._symbols = [symbol.node._expr for symbol in symbols]
        self._ranges = [environment.var_to_range[symbol] for symbol in self._symbols]
        found = environment.replacements
        equal = [sympy.Eq(symbol, found[symbol]) for symbol in self._symbols if symbol in found]
        self._assumed = [*(guard.expr for guard in environment.guards), *equal]

    def __call__(self, sizes: Sequence[int]) -> bool:
        if not all(one.lower <= size <= one.upper for one, size in zip(self._ranges, sizes, strict=True)):
            return False
        values = dict(zip(self._symbols, sizes, strict=True))
        return not any(one.subs(values) == sympy.false for one in self._assumed)


def _symbol(environment: ShapeEnv, number: int, symbol: Symbol, hint: int) -> Any:
    if not symbol.low <= hint <= (hint if symbol.high is None else symbol.high):
        raise UnsupportedGraph("symbolic_sizes", f"s{number} cannot be {hint}: it is from {symbol.low} to {symbol.high}")
    source = _Stated(f"s{number}")
    positive = True if symbol.low > 0 else None
    made = environment.create_symbol(
        hint, source, DimDynamic.DYNAMIC, constraint_dim=None, positive=positive, do_not_specialize_zero_one=True
    )
    environment.var_to_range[made] = ValueRanges(symbol.low, int_oo if symbol.high is None else symbol.high)
    return environment.create_symintnode(made, hint=hint, source=source)


def _fake(meta: TensorMeta, symbols: list[Any]) -> torch.Tensor:
    if meta.layout:
        raise UnsupportedGraph("unsupported_node", f"a {meta.layout} tensor cannot be made like one that was seen")
    shape, stride = ([_size(size, symbols) for size in part] for part in (meta.shape, meta.stride))
    return torch.empty_strided(shape, stride, dtype=getattr(torch, meta.dtype), device=meta.device)


def _size(size: int | str, symbols: list[Any]) -> Any:
    if isinstance(size, int):
        return size
    return computed(parse(size), symbols.__getitem__, lambda operation, *operands: operation(*operands))
