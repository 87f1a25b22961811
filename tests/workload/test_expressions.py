"""Sizes as texts: one text for equal expressions, read without executing anything."""

from __future__ import annotations

import pytest
import sympy
from torch.utils._sympy.functions import FloorDiv, Max, Mod, TruncToInt

from tuner.workload.expressions import LENGTH_LIMIT, parse, symbols_in, value_of
from tuner.workload.sizes import computed
from tuner.workload.symbols import written


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4*s0", 32),
        ("-1*s0+2", -6),
        ("1+FloorDiv(-1+s0,2)", 4),
        ("(s0+1)*(s1+-2)", 9),
        ("Max(s0,s1,5)", 8),
        ("Max(s1)+Min(9)", 12),
        ("Pow(s1,3)", 27),
        ("ModularIndexing(s0,2,3)", 1),
        ("TruncToInt(1.5*ToFloat(s0))", 12),
        ("Where(Lt(s0,s1),1,2)", 2),
        ("12", 12),
    ],
)
def test_an_expression_has_its_value(text, value):
    assert value_of(text, [8, 3]) == value
    assert symbols_in(parse(text)) <= {0, 1}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s0+",
        "s0 + 1",
        "-s0",
        "s2",
        "__import__('os').system('true')",
        "Pow(9,Pow(9,9))",
        "Pow(s0,63)*Pow(s0,63)",
        "Pow(2,64)",
        "FloorDiv(1,0)",
        "CleanDiv(s0,3)",
        "Exec(1)",
        "Max(1",
        "FloorDiv(1,2,3)",
        "9" * 30,
        "(" * 3000 + ")" * 3000,
        "Max(" * 900,
        "s0+" * LENGTH_LIMIT + "s0",
        "1e999999999",
    ],
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        value_of(text, [8, 3])


def test_a_fraction_in_an_expression_is_a_division_of_the_whole():
    a, b = sympy.symbols("a b", integer=True, positive=True)
    numbers = {a: 0, b: 1}
    half = written((a + b) / 2 + a / 4, numbers)
    assert "Rational" not in half
    assert value_of(half, [8, 4]) == 8
    assert computed(parse(half), [8, 4].__getitem__, lambda operation, *operands: operation(*operands)) == 8
    assert value_of(written(TruncToInt(a / 2), numbers), [7]) == 3
    with pytest.raises(ValueError, match="does not divide"):
        value_of(half, [8, 3])


def test_equal_expressions_are_equal_texts_whatever_their_symbols_are_called():
    def text(first, second):
        a, b = sympy.Symbol(first, integer=True, positive=True), sympy.Symbol(second, integer=True, positive=True)
        numbers = {a: 0, b: 1}
        expression = Max(1, 3 * a * b + FloorDiv(b - 1, 2) * (a + Mod(b, 4)) + b**2 - a)
        return written(expression, numbers)

    texts = {text(first, second) for first in ("s77", "a", "s100") for second in ("s1", "zz", "s99")}
    assert len(texts) == 1
    (one,) = texts
    assert value_of(one, [5, 7]) == 3 * 35 + 3 * (5 + 3) + 49 - 5
