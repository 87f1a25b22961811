"""Inductor's main step for the graphs alone: what AOTAutograd makes of a program, ended before any of them is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from tuner.compilers.inductor.hooks import compile_fx
from tuner.compilers.inductor.program import copied
from tuner.errors import find_cause


class Stop(Exception):
    """Ends a trace of which only the graphs are wanted."""


def never_called(inputs: list[Any]) -> Any:
    """Stands for a compiled forward while its backward is traced."""
    raise Stop


never_called._boxed_call = True  # type: ignore[attr-defined]


def trace_graphs(gm: fx.GraphModule, example_inputs: Sequence[Any], inner_compile: Any, **how: Any) -> None:
    """Gives the graphs of a program to `inner_compile`, until that raises Stop. Raises what it raises else, and AOTAutograd's.

    how: more arguments of compile_fx. The program is left as it is.
    """
    try:
        compile_fx(copied(gm), example_inputs, inner_compile=inner_compile, **how)
    except Exception as error:
        if not find_cause(error, Stop):
            raise
