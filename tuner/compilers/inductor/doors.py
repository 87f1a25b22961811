"""The seams to Inductor: every way of compiling passes them, whoever called.

Two functions of `torch._inductor.compile_fx` are called through that module's globals, so replacing them once reaches also those
who imported `compile_fx` or `compile_fx_inner` before. `_compile_fx_main` gets each program, after all settings are in force;
`_compile_fx_inner` each graph, within whatever inner step the caller has put around it. Read in torch 2.13.0. Nothing here loads
torch by itself.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from tuner.compilers.after_import import after_import

MODULE = "torch._inductor.compile_fx"
# The parameters that the seams are known to have.
SEAMS = {
    "_compile_fx_main": (
        "model_",
        "example_inputs_",
        "inner_compile",
        "ignore_shape_env",
        "get_decomp_fn",
        "compile_region_name",
    ),
    "_compile_fx_inner": ("gm", "example_inputs", "compile_region_name", "graph_kwargs"),
}

# Goes on to Inductor: a graph, its inputs, the inner step to use, and what gives the decompositions (None: the caller's own).
Run = Callable[[Any, Any, Callable[..., Any], Callable[[], Any] | None], Any]

# Makes what is to be in force while a graph is compiled, of its module and the arguments by name that Inductor is given for it.
Enter = Callable[[Any, Mapping[str, Any]], contextlib.AbstractContextManager[None]]

# Whether the caller of this thread is to be served: True under backend="tuner", False within our own compiles, else as enabled.
_caller: ContextVar[bool | None] = ContextVar("tuner_caller", default=None)
# What is to be in force while the next graph of this thread is compiled.
_within: ContextVar[Enter | None] = ContextVar("tuner_within", default=None)
_enabled = threading.Event()
_waiting = threading.Event()
_lock = threading.Lock()


def enable() -> None:
    """From now on, whoever compiles with Inductor in this process is served: the stored winners, else the default.

    That is torch.compile with backend="inductor", `compile_fx`, `standalone_compile` and AOTInductor. What was compiled before
    stays as it is. May be called again, from any thread, and before torch is imported, which this does not do.
    """
    _enabled.set()
    with _lock:
        if _waiting.is_set():
            return
        _waiting.set()
    after_import(MODULE, _install_or_warn)


def disable() -> None:
    """From now on, only backend="tuner" is served. What was compiled before stays as it is."""
    _enabled.clear()


def _install_or_warn(module: ModuleType) -> None:
    # The client's border: this is called within somebody's import of torch.
    try:
        trouble: object = install(module)
    except Exception as error:
        trouble = error
    if trouble:
        warn_unsupported(trouble)


def warn_unsupported(trouble: object) -> None:
    """Says, where nothing was said yet, why nobody is served in this process."""
    from tuner.lookup.client import warn_once

    warn_once("this torch is not supported (%s); Inductor compiles by default", trouble)


@contextlib.contextmanager
def served(value: bool = True) -> Iterator[None]:
    """What Inductor compiles within the context and this thread is served, or with False passes as if we were not there."""
    token = _caller.set(value)
    try:
        yield
    finally:
        _caller.reset(token)


@contextlib.contextmanager
def within_inner_step(enter: Enter) -> Iterator[None]:
    """The next graph that Inductor compiles in this context and thread is compiled within what `enter` makes.

    Settings that a caller's inner step brings with it are in force by then, so that `enter` sees and outlasts them.
    """
    token = _within.set(enter)
    try:
        yield
    finally:
        _within.reset(token)


def install(module: ModuleType) -> str:
    """Puts the doors into torch's `module`, once; why that cannot be, or "" where they are there."""
    with _lock:
        if trouble := ", ".join(filter(None, (_trouble(module, name) for name in SEAMS))):
            return trouble
        for name, door in (("_compile_fx_main", _program_door), ("_compile_fx_inner", _graph_door)):
            original = getattr(module, name)
            if not hasattr(original, "passes_tuner"):
                made = door(original)
                made.passes_tuner = True  # type: ignore[attr-defined]
                setattr(module, name, made)
        return ""


def _trouble(module: ModuleType, name: str) -> str:
    original = getattr(module, name, None)
    if original is None:
        return f"{MODULE}.{name} is missing"
    try:
        parameters = inspect.signature(original).parameters
    except (TypeError, ValueError):  # what is callable without a signature
        return f"{MODULE}.{name} does not say what it takes"
    # What somebody else has put there may take whatever comes.
    kinds = {parameter.kind for parameter in parameters.values()}
    passes_on = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= kinds
    return "" if passes_on or tuple(parameters) == SEAMS[name] else f"{MODULE}.{name} takes other arguments"


def _program_door(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compile_fx_main(
        model_: Any, example_inputs_: Any, inner_compile: Callable[..., Any], ignore_shape_env: bool, *rest: Any, **more: Any
    ) -> Any:
        def run(gm: Any, inputs: Any, inner: Callable[..., Any], decompositions: Callable[[], Any] | None) -> Any:
            changed = more if decompositions is None else {**more, "get_decomp_fn": decompositions}
            return original(gm, inputs, inner, ignore_shape_env, *rest, **changed)

        caller = _caller.get()
        # Nothing but names may be given to what is known: where more is, the decompositions may be among it.
        served = (_enabled.is_set() if caller is None else caller) and not rest
        program = _compile_program() if served else None
        # What is compiled further within has a caller of its own, and what is in force for a graph around it is none of its own.
        tokens = _caller.set(None if served else caller), _within.set(None)
        try:
            if program is None:
                return run(model_, example_inputs_, inner_compile, None)
            return program(model_, example_inputs_, inner_compile, run)
        finally:
            _caller.reset(tokens[0])
            _within.reset(tokens[1])

    return compile_fx_main


def _graph_door(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compile_fx_inner(*args: Any, **kwargs: Any) -> Any:
        enter = _within.get()
        if enter is None:
            return original(*args, **kwargs)
        token = _within.set(None)
        try:
            with enter(args[0] if args else kwargs.get("gm"), kwargs):
                return original(*args, **kwargs)
        finally:
            _within.reset(token)

    return compile_fx_inner


@functools.cache
def _compile_program() -> Any:
    # The client's border: in a torch that we do not know, loading our own modules may fail in any way.
    try:
        from tuner.compilers.inductor.backend import compile_program
    except Exception as error:
        warn_unsupported(error)
        return None
    return compile_program
