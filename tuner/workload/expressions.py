"""Sizes that are expressions over the symbols s0, s1, …: their one text, its parser, its value. No torch here.

The grammar, which is all that is ever read of such a text:
    sum = product ("+" product)*          product = factor ("*" factor)*
    factor = [-]integer | decimal | s<N> | Name "(" sum ("," sum)* ")" | "(" sum ")"
Operands of "+", "*", Max and Min stand in the order of their texts, so equal expressions are equal texts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

# Sizes of a real network are some 10 to 300 characters long, and no deeper than a chain of convolutions.
LENGTH_LIMIT = 4000
DEPTH_LIMIT = 40
# What a size may come to, on the way as well: torch's own are 64 bits wide.
VALUE_LIMIT = 2**63

Number = int | float
_TOKEN = re.compile(r"-?\d+(?:\.\d+)?e[+-]?\d{1,3}|-?\d+\.\d+|-?\d{1,19}|s\d{1,4}(?!\w)|[A-Z]\w{0,30}|[-+*(),]", re.ASCII)
_SYMBOL = re.compile(r"s(\d{1,4})", re.ASCII)


@dataclass(frozen=True)
class Term:
    """name: "number" (value), "symbol" (value: its number), "+", "*", or a function's; operands: what it is applied to."""

    name: str
    operands: tuple[Term, ...] = ()
    value: Number = 0


def _floor_div(a: Number, b: Number) -> Number:
    return a // b


def _exact(a: Number, b: Number) -> Number:
    if a % b:
        raise ValueError(f"{b} does not divide {a}")
    return a // b


def _power(a: Number, b: Number) -> Number:
    if not (isinstance(b, int) and 0 <= b <= 63):
        raise ValueError("an exponent is out of range")
    return a**b


# By the names of torch.utils._sympy.functions, and sympy's own.
FUNCTIONS: dict[str, tuple[int, Callable[..., Number]]] = {
    "FloorDiv": (2, _floor_div),
    "CleanDiv": (2, _exact),
    "Mod": (2, lambda a, b: a % b),
    "PythonMod": (2, lambda a, b: a % b),
    "ModularIndexing": (3, lambda a, b, c: a // b % c),
    "Pow": (2, _power),
    "PowByNatural": (2, _power),
    "Max": (0, lambda *parts: max(parts)),
    "Min": (0, lambda *parts: min(parts)),
    "IntTrueDiv": (2, lambda a, b: a / b),
    "FloatTrueDiv": (2, lambda a, b: a / b),
    "ToFloat": (1, float),
    "FloorToInt": (1, math.floor),
    "CeilToInt": (1, math.ceil),
    "TruncToInt": (1, math.trunc),
    "RoundToInt": (1, round),
    "Where": (3, lambda condition, a, b: a if condition else b),
    "Eq": (2, lambda a, b: a == b),
    "Ne": (2, lambda a, b: a != b),
    "Lt": (2, lambda a, b: a < b),
    "Le": (2, lambda a, b: a <= b),
    "Gt": (2, lambda a, b: a > b),
    "Ge": (2, lambda a, b: a >= b),
    "And": (0, lambda *parts: all(parts)),
    "Or": (0, lambda *parts: any(parts)),
    "Not": (1, lambda a: not a),
    "True": (-1, lambda: True),
    "False": (-1, lambda: False),
}


@lru_cache(maxsize=1024)
def parse(text: str) -> Term:
    """The expression that `text` is. Raises ValueError on anything else; executes nothing, in time linear in the length."""
    if not isinstance(text, str) or len(text) > LENGTH_LIMIT:
        raise ValueError("a size is no expression, or too long")
    tokens: list[str] = []
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise ValueError(f"a size holds {text[place : place + 20]!r}, which is no part of an expression")
        tokens.append(found.group())
        place = found.end()
    term, rest = _sum(tokens, 0, 0)
    if rest != len(tokens):
        raise ValueError(f"a size goes on after its end: {text[:60]!r}")
    return term


def _sum(tokens: list[str], place: int, depth: int) -> tuple[Term, int]:
    return _joined(tokens, place, depth, "+", lambda t, p, d: _joined(t, p, d, "*", _factor))


def _joined(
    tokens: list[str], place: int, depth: int, sign: str, part: Callable[[list[str], int, int], tuple[Term, int]]
) -> tuple[Term, int]:
    term, place = part(tokens, place, depth)
    operands = [term]
    while place < len(tokens) and tokens[place] == sign:
        term, place = part(tokens, place + 1, depth)
        operands.append(term)
    return (operands[0] if len(operands) == 1 else Term(sign, tuple(operands))), place


def _factor(tokens: list[str], place: int, depth: int) -> tuple[Term, int]:
    token = tokens[place] if place < len(tokens) else ""
    if depth > DEPTH_LIMIT:
        raise ValueError("a size is nested too deep")
    if token == "(":
        term, place = _sum(tokens, place + 1, depth + 1)
        return term, _expected(tokens, place, ")")
    if symbol := _SYMBOL.fullmatch(token):
        return Term("symbol", value=int(symbol.group(1))), place + 1
    if token in FUNCTIONS:
        return _call(tokens, place, depth)
    if re.fullmatch(r"-?\d+", token):
        return Term("number", value=int(token)), place + 1
    if re.fullmatch(r"-?\d.*", token):
        if not math.isfinite(value := float(token)):
            raise ValueError("a size is out of range")
        return Term("number", value=value), place + 1
    raise ValueError(f"a size holds {token[:40]!r} where an operand should be")


def _call(tokens: list[str], place: int, depth: int) -> tuple[Term, int]:
    name = tokens[place]
    wanted = FUNCTIONS[name][0]
    if wanted < 0:
        return Term(name), place + 1
    place = _expected(tokens, place + 1, "(")
    operands: list[Term] = []
    while True:
        term, place = _sum(tokens, place, depth + 1)
        operands.append(term)
        if place >= len(tokens) or tokens[place] != ",":
            break
        place += 1
    if wanted and len(operands) != wanted:
        raise ValueError(f"{name} takes {wanted} operands")
    return Term(name, tuple(operands)), _expected(tokens, place, ")")


def _expected(tokens: list[str], place: int, token: str) -> int:
    if place >= len(tokens) or tokens[place] != token:
        raise ValueError(f"a size lacks a {token!r}")
    return place + 1


def symbols_in(term: Term) -> set[int]:
    """Numbers of the symbols in `term`."""
    if term.name == "symbol":
        return {int(term.value)}
    return set().union(*map(symbols_in, term.operands))


def apply(name: str, operands: Sequence[Number]) -> Number:
    """The value of "+", "*" or a function. Raises ValueError where there is none, or none that a size could have."""
    try:
        value = sum(operands) if name == "+" else math.prod(operands) if name == "*" else FUNCTIONS[name][1](*operands)
    except ArithmeticError as error:
        raise ValueError(f"{name} has no value here") from error
    # Written so that what is no number is refused as well.
    if not abs(value) < VALUE_LIMIT:
        raise ValueError("a size is out of range")
    return value


def value_of(size: int | str, sizes: Sequence[int]) -> int:
    """A size at the given sizes of the symbols, by number. Raises ValueError where it has none."""
    if isinstance(size, int):
        return size
    return int(_value(parse(size), sizes))


def number_at(text: str, sizes: Sequence[int]) -> Number:
    """The value of any expression, which may be no integer. Raises ValueError."""
    return _value(parse(text), sizes)


def _value(term: Term, sizes: Sequence[int]) -> Number:
    if term.name == "number":
        return term.value
    if term.name == "symbol":
        if term.value >= len(sizes):
            raise ValueError(f"a size names s{term.value}, which there is not")
        return sizes[int(term.value)]
    return apply(term.name, [_value(operand, sizes) for operand in term.operands])


def joined(name: str, operands: Sequence[str]) -> str:
    """The one text of `name` applied to operands that are such texts."""
    if name in ("+", "*"):
        # Sums within a product need their brackets; products within a sum need none.
        parts = [f"({one})" if name == "*" and _is_sum(one) else one for one in operands]
        return name.join(sorted(parts))
    return f"{name}({','.join(sorted(operands) if name in ('Max', 'Min', 'And', 'Or') else operands)})"


def _is_sum(text: str) -> bool:
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "+" and depth == 0 and text[place - 1] != "e":
            return True
    return False
