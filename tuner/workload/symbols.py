"""From torch's symbolic sizes to ours: symbols numbered by first use, expressions as texts that hold in every process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils._sympy.symbol import SymT, symbol_is_type

from tuner.errors import UnsupportedGraph
from tuner.workload.expressions import joined
from tuner.workload.graph import Symbol

# Of sympy symbols, their ranges (torch.utils._sympy.value_ranges.ValueRanges).
Ranges = Mapping[Any, Any]
SymbolicNumber = torch.SymInt | torch.SymFloat | torch.SymBool
LOWEST = -(2**63)


def is_number(node: fx.Node) -> bool:
    """Whether the node yields a number, such as a size: in our form that is an expression, and no node."""
    return isinstance(node.meta.get("val"), SymbolicNumber | bool | int | float)


class Symbols:
    """Numbers symbols when a text first needs them. values: all that the texts are made of, in that order; read if at all.

    An expression may be the first to need several symbols. They are told apart by which of them is first a size by itself.
    """

    def __init__(self, values: Callable[[], Iterable[Any]] = tuple):
        self.numbers: dict[sympy.Symbol, int] = {}
        self._values = values
        self._alone: dict[Any, int] | None = None
        self._environment: Any = None
        self._texts: dict[Any, str] = {}

    def number(self, value: Any, node: object = "an input") -> Any:
        """A number as JSON: itself, or {"sym": text}. Raises UnsupportedGraph, naming the node, for sizes that depend on data."""
        size = self.size(value, node)
        return {"sym": size} if isinstance(size, str) else size

    def size(self, value: Any, node: object = "an input") -> Any:
        """A size as JSON: a number, or the text of an expression. Raises UnsupportedGraph as `number` does."""
        if not isinstance(value, SymbolicNumber):
            return value
        if (expression := expression_of(value)) is None:
            raise UnsupportedGraph("symbolic_sizes", f"{node} has sizes of its own kind, as jagged tensors have")
        self._environment = value.node.shape_env
        if isinstance(expression, sympy.Integer):
            return int(expression)
        if isinstance(expression, sympy.Float):
            return float(expression)
        return self.text(expression, node)

    def text(self, expression: Any, node: object = "an input") -> str:
        """The text of a sympy expression."""
        if (known := self._texts.get(expression)) is not None:
            return known
        new = [symbol for symbol in expression.free_symbols if symbol not in self.numbers]
        for symbol in new:
            if not symbol_is_type(symbol, SymT.SIZE):
                raise UnsupportedGraph("symbolic_sizes", f"{node} has sizes that depend on data: {expression}")
            if self._environment is not None and symbol not in self._environment.var_to_range:
                raise UnsupportedGraph("symbolic_sizes", f"{node} has ragged sizes, which are no numbers: {expression}")
        for symbol in sorted(new, key=self._rank) if len(new) > 1 else new:
            self.numbers[symbol] = len(self.numbers)
        text = self._texts[expression] = written(expression, self.numbers)
        return text

    def _rank(self, symbol: Any) -> tuple[int, str]:
        if self._alone is None:
            self._alone = {}
            for value in self._values():
                for size in sizes_in(value):
                    if (found := expression_of(size)) is not None and found.is_Symbol:
                        self._alone.setdefault(found, len(self._alone))
        return self._alone.get(symbol, len(self._alone)), str(symbol)

    def declared(self, ranges: Ranges | None = None) -> tuple[Symbol, ...]:
        """The symbols that got a number, in order, with their ranges: those given, or where there is none the present ones."""
        return tuple(self._declared(symbol, ranges or {}) for symbol in self.numbers)

    def _declared(self, symbol: Any, ranges: Ranges) -> Symbol:
        found = ranges.get(symbol) or self._environment.var_to_range[symbol]
        # torch < 2.13 calls it otherwise.
        hints = getattr(self._environment, "backed_var_to_val", None) or self._environment.var_to_val
        if (hint := hints.get(symbol)) is None or not hint.is_Integer:
            raise UnsupportedGraph("symbolic_sizes", f"nothing is known of the size {symbol}")
        low = int(found.lower) if found.lower.is_Integer else LOWEST
        high = int(found.upper) if found.upper.is_Integer else None
        return Symbol(low, high, int(hint))


def expression_of(size: Any) -> Any:
    """The sympy expression that a size is; None where it is a number, or of a kind that has none."""
    return getattr(size.node, "expr", None) if isinstance(size, SymbolicNumber) else None


def sizes_in(value: Any) -> Iterable[Any]:
    """All sizes and strides of a value, and numbers that it is itself."""
    if isinstance(value, torch.Tensor):
        yield from value.shape
        if value.layout == torch.strided:
            yield from value.stride()
    elif isinstance(value, list | tuple):
        for item in value:
            yield from sizes_in(item)
    elif isinstance(value, SymbolicNumber):
        yield value


def written(expression: Any, numbers: Mapping[Any, int], division: str = "CleanDiv") -> str:
    """The one text of a sympy expression whose symbols have `numbers`: the same whatever torch called them.

    division: how one with fractions is written, which is an integer as a whole: a size is one, what is rounded need not be.
    """
    if expression.is_Symbol:
        return f"s{numbers[expression]}"
    if expression.is_Integer:
        return str(int(expression))
    if expression.is_Float:
        return repr(float(expression))
    if expression.is_Rational or ((expression.is_Add or expression.is_Mul) and _has_fraction(expression)):
        numerator, denominator = expression.as_numer_denom()
        if denominator.is_Integer and denominator != 1:
            return joined(division, [written(numerator, numbers, division), str(int(denominator))])
    name = type(expression).__name__
    division = division if name in ("Add", "Mul") else "IntTrueDiv"
    operands = [written(operand, numbers, division) for operand in expression.args]
    return joined({"Add": "+", "Mul": "*"}.get(name, NAMES.get(name, name)), operands) if operands else NAMES.get(name, name)


def _has_fraction(expression: Any) -> bool:
    return any(not number.is_Integer for number in expression.atoms(sympy.Rational))


# sympy's names of relations, ours are those of torch's own printer.
NAMES = {
    "Equality": "Eq",
    "Unequality": "Ne",
    "StrictLessThan": "Lt",
    "LessThan": "Le",
    "StrictGreaterThan": "Gt",
    "GreaterThan": "Ge",
    "BooleanTrue": "True",
    "BooleanFalse": "False",
}
