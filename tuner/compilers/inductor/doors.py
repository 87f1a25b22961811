"""The one seam to Inductor: every way of compiling a program passes it, whoever called, after all settings are in force.

`torch._inductor.compile_fx._compile_fx_main` is called through its module's globals, so replacing that attribute once also
reaches those who imported `compile_fx` before. Read in torch 2.13.0. Nothing here loads torch by itself.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from tuner.lookup.client import warn_once

MODULE = "torch._inductor.compile_fx"
SEAM = "_compile_fx_main"
# The parameters that the seam is known to have.
PARAMETERS = ("model_", "example_inputs_", "inner_compile", "ignore_shape_env", "get_decomp_fn", "compile_region_name")

# Goes on to Inductor: a graph, its inputs, the inner step to use, and what gives the decompositions (None: the caller's own).
Run = Callable[[Any, Any, Callable[..., Any], Callable[[], Any] | None], Any]

# Whether the caller of this thread is to be served: True under backend="tuner", False within our own compiles, else as enabled.
_caller: ContextVar[bool | None] = ContextVar("tuner_caller", default=None)
_enabled = threading.Event()
_lock = threading.Lock()


@contextlib.contextmanager
def served(value: bool = True) -> Iterator[None]:
    """What Inductor compiles within the context and this thread is served, or with False passes as if we were not there."""
    token = _caller.set(value)
    try:
        yield
    finally:
        _caller.reset(token)


def install(module: ModuleType) -> str:
    """Puts the door into torch's `module`, once; why that cannot be, or "" where it is there."""
    with _lock:
        original = getattr(module, SEAM, None)
        if hasattr(original, "passes_tuner"):
            return ""
        if original is None:
            return f"{MODULE}.{SEAM} is missing"
        if tuple(inspect.signature(original).parameters) != PARAMETERS:
            return f"{MODULE}.{SEAM} takes other arguments"
        setattr(module, SEAM, _door(original))
        return ""


def _door(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compile_fx_main(
        model_: Any, example_inputs_: Any, inner_compile: Callable[..., Any], ignore_shape_env: bool, **more: Any
    ) -> Any:
        caller = _caller.get()
        if not (_enabled.is_set() if caller is None else caller):
            return original(model_, example_inputs_, inner_compile, ignore_shape_env, **more)

        def run(gm: Any, inputs: Any, inner: Callable[..., Any], decompositions: Callable[[], Any] | None) -> Any:
            changed = more if decompositions is None else {**more, "get_decomp_fn": decompositions}
            return original(gm, inputs, inner, ignore_shape_env, **changed)

        program = _compile_program()
        # What is compiled further within has a caller of its own.
        token = _caller.set(None)
        try:
            if program is None:
                return run(model_, example_inputs_, inner_compile, None)
            return program(model_, example_inputs_, inner_compile, run)
        finally:
            _caller.reset(token)

    compile_fx_main.passes_tuner = True  # type: ignore[attr-defined]
    return compile_fx_main


@functools.cache
def _compile_program() -> Any:
    try:
        from tuner.compilers.inductor.backend import compile_program
    except (ImportError, AttributeError) as error:
        warn_once("this torch is not supported (%s); Inductor compiles by default", error)
        return None
    return compile_program


def installed() -> bool:
    """Whether compiles pass the door in this process."""
    return hasattr(getattr(sys.modules.get(MODULE), SEAM, None), "passes_tuner")
