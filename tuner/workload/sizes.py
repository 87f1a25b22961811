"""Sizes that are expressions, computed by torch: on its symbols, or as nodes of an FX graph."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from tuner.errors import UnsupportedGraph
from tuner.workload.expressions import Term, parse

# What a node that computes with sizes calls, by the names of `tuner.workload.expressions`; as torch itself writes it.
OPERATIONS: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "*": operator.mul,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "PowByNatural": operator.pow,
    "Max": torch.sym_max,
    "Min": torch.sym_min,
    "IntTrueDiv": operator.truediv,
    "FloatTrueDiv": operator.truediv,
    "ToFloat": torch.sym_float,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
    "TruncToInt": math.trunc,
    "RoundToInt": round,
    "Where": torch.sym_ite,
    "Eq": operator.eq,
    "Ne": operator.ne,
    "Lt": operator.lt,
    "Le": operator.le,
    "Gt": operator.gt,
    "Ge": operator.ge,
    "And": operator.and_,
    "Or": operator.or_,
    "Not": torch.sym_not,
}
# Of any number of operands; torch's take two.
_FOLDED = ("+", "*", "Max", "Min", "And", "Or")


def computed(term: Term, symbol: Callable[[int], Any], call: Callable[..., Any]) -> Any:
    """An expression made of what `symbol` gives for its symbols by what `call(operation, *operands)` gives.

    Raises UnsupportedGraph for an expression that cannot be computed outside the compiler.
    """
    if term.name == "number":
        return term.value
    if term.name == "symbol":
        return symbol(int(term.value))
    operands = [computed(operand, symbol, call) for operand in term.operands]
    if term.name == "ModularIndexing":
        value, divisor, modulus = operands
        return call(operator.mod, call(operator.floordiv, value, divisor), modulus)
    if term.name == "Pow" and isinstance(power := operands[1], int) and 0 < power < 64:
        return functools.reduce(functools.partial(call, operator.mul), [operands[0]] * power)
    if (operation := OPERATIONS.get(term.name)) is None:
        raise UnsupportedGraph("symbolic_sizes", f"a size with {term.name} cannot be rebuilt")
    if term.name in _FOLDED:
        return functools.reduce(functools.partial(call, operation), operands)
    return call(operation, *operands)


class SizeNodes:
    """The nodes of an FX graph that give its sizes: a placeholder for each symbol, made first; others where first asked for."""

    def __init__(self, graph: fx.Graph, symbols: int):
        self._graph = graph
        self._symbols = [graph.placeholder(f"size{i}_1") for i in range(symbols)]
        self._made: dict[str, Any] = {}

    def __call__(self, text: str) -> Any:
        """What gives the size `text`. Raises UnsupportedGraph for no expression, or one over other symbols."""
        if text not in self._made:
            try:
                self._made[text] = computed(parse(text), self._symbols.__getitem__, self._call)
            except (ValueError, IndexError) as error:
                raise UnsupportedGraph("symbolic_sizes", f"a size cannot be rebuilt: {error}") from error
        return self._made[text]

    def _call(self, operation: Callable[..., Any], *operands: Any) -> Any:
        if not any(isinstance(operand, fx.Node) for operand in operands):
            return operation(*operands)
        return self._graph.call_function(operation, operands)
