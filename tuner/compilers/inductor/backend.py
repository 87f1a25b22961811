"""Compiling a program: ask for its plans, compile with them, and by default where anything goes wrong on our side."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from tuner.compilers.inductor import events
from tuner.compilers.inductor.ambient import ambient, cpu_target, cpu_toolchain
from tuner.compilers.inductor.dispatch import compile_pinned
from tuner.compilers.inductor.doors import Run
from tuner.compilers.inductor.hooks import DYNAMO_SIGNALS, compiler_config, missing_hooks
from tuner.compilers.inductor.pinned import NotPinned, Pinned, kept_lazily
from tuner.compilers.inductor.program import copied, is_training, program_key, program_ranges
from tuner.compilers.inductor.random_plans import compile_at_random
from tuner.compilers.inductor.report import reporting
from tuner.compilers.inductor.users import Outranking, option_names, users_hooks
from tuner.errors import UnsupportedGraph, find_cause
from tuner.lookup.client import Client, Door
from tuner.search_spaces.inductor_knobs import fixed_by_user
from tuner.settings import Settings
from tuner.target import Query


@functools.cache
def client() -> Client:
    """This process's door to the answers; settings are read when the first graph is compiled."""
    return Client(Settings.from_environment())


def compile_program(gm: fx.GraphModule, example_inputs: Sequence[Any], inner: Callable[..., Any], run: Run) -> Any:
    """A program as it comes to the door, its settings in force; `inner` is the caller's inner step, `run` goes on to Inductor.

    Never fails where Inductor would not: what goes wrong is counted, warned of once, and compiled by default.
    """

    def by_default(gm: fx.GraphModule) -> Any:
        return run(gm, example_inputs, inner, None)

    events.count("program")
    # The client's border: what fails here on our account must not fail the user's build.
    try:
        seed = _seed()
        pinned = None if seed else _pin(gm, example_inputs, inner)
        untouched = copied(gm) if pinned is not None and (pinned.may_fail or pinned.answer.wanted) else None
    except UnsupportedGraph as error:
        events.count(f"default: {error.reason}")
        return by_default(gm)
    except Exception as error:
        events.swallowed("look-up error", error)
        return by_default(gm)
    if seed:
        return compile_at_random(gm, example_inputs, inner, run, seed)
    if pinned is None:
        return by_default(gm)
    try:
        compiled = compile_pinned(pinned, gm, example_inputs, run)
    except DYNAMO_SIGNALS:
        raise
    except Exception as error:
        if untouched is None or not pinned.may_fail:
            raise
        if find_cause(error, NotPinned):
            events.count("default: not pinned")
        else:
            events.swallowed("plan error", error)
        compiled = by_default(copied(untouched))
    if untouched is None or not pinned.answer.wanted:
        return compiled
    if not isinstance(compiled, types.FunctionType):
        events.count("miss not reported: an artifact")
        return compiled
    return reporting(compiled, untouched, example_inputs, {}, pinned)


def _seed() -> str:
    """What plans are drawn from, where a test asks for plans at random; else empty.

    Raises UnsupportedGraph where the user's hooks or settings cannot be named.
    """
    settings = client().settings
    if settings.disabled or not settings.random_plans or missing_hooks():
        return ""
    users_hooks()
    ambient()
    return settings.random_plans


def _pin(gm: fx.GraphModule, example_inputs: Sequence[Any], inner: Callable[..., Any]) -> Pinned | None:
    """Asks for the program's plans, once. None where nothing of ours applies."""
    door: Door = client()
    if door.settings.disabled:
        events.count("default: disabled")
        return None
    if missing := missing_hooks():
        raise UnsupportedGraph("missing_hooks", f"this torch lacks {', '.join(missing)}")
    if not isinstance(gm, fx.GraphModule):
        raise UnsupportedGraph("no_graph", f"the program is a {type(gm).__name__}")
    if any(isinstance(value, torch.Tensor) and value.device.type != "cpu" for value in example_inputs):
        raise UnsupportedGraph("device", "only the CPU is supported yet")
    if (training := is_training(gm, example_inputs)) and kept_lazily():
        raise UnsupportedGraph("bundled_training", "its backward would be saved with it, whatever becomes of the plan")
    key = program_key(gm, example_inputs)
    try:
        where = (cpu_target().fields(), cpu_toolchain(), ambient())
    except UnsupportedGraph as error:
        events.record(events.Served(key, "", "default", "default", 0, "default", f"{error.reason}: {error}", door.source))
        raise
    if own := option_names(inner) | fixed_by_user(where[2]):
        door = Outranking(door, own)
    answer = door.program(Query("program", key, *where))
    user_tag, ranges = compiler_config.cache_key_tag, program_ranges(gm, example_inputs)
    return Pinned(key, answer, where, door, door.source, user_tag, inner, training=training, ranges=ranges)
