"""One program compiled for each bucket of a size that varies, with that bucket's plans; a call picks by its own size."""

from __future__ import annotations

import functools
import types
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from tuner.answer import Bucket
from tuner.compilers.inductor import events
from tuner.compilers.inductor.doors import Run
from tuner.compilers.inductor.hooks import V, inductor_config
from tuner.compilers.inductor.pinned import Pinned, is_kept
from tuner.compilers.inductor.program import copied, program_symbols

# Position of an input of the program, and the axis that has the size; None where the input is the size itself.
Place = tuple[int, int | None]


def compile_pinned(pinned: Pinned, gm: fx.GraphModule, example_inputs: Sequence[Any], run: Run) -> Any:
    """The program compiled with its answers, or dispatching over its buckets where it has any. Raises as Pinned.compile."""
    if not pinned.answer.dispatch:
        return pinned.compile(gm, example_inputs, run)
    place = _place(gm, example_inputs, pinned.answer.dispatch[0].symbol)
    if place is None or not _may_dispatch():
        events.count("no dispatch: an artifact" if place is not None else "no dispatch: another size")
        return pinned.without_dispatch().compile(gm, example_inputs, run)
    return _dispatching(pinned, gm, example_inputs, run, place)


def _may_dispatch() -> bool:
    """Whether what is compiled is called by this process: not by AOTInductor or standalone_compile, which make one artifact."""
    return not is_kept() and V.aot_compilation is not True and inductor_config.triton.autotune_at_compile_time is not True


def _place(gm: fx.GraphModule, example_inputs: Sequence[Any], symbol: str) -> Place | None:
    """Where a call of the program has the size that its key calls `symbol`."""
    values, numbers = program_symbols(gm, example_inputs)
    for i, value in enumerate(values):
        sizes = enumerate(value.shape) if isinstance(value, torch.Tensor) else [(None, value)]
        for axis, size in sizes:
            if isinstance(size, torch.SymInt) and f"s{numbers.get(size.node.expr, -1)}" == symbol:
                return i, axis
    return None


def _dispatching(pinned: Pinned, gm: fx.GraphModule, example_inputs: Sequence[Any], run: Run, place: Place) -> Any:
    """Each bucket has answers of its own, so a key of its own in the compile caches, forward and backward; equal ones share."""
    buckets = pinned.answer.dispatch
    made: dict[Any, Callable[..., Any]] = {}
    for bucket in buckets:
        if bucket.plans not in made:
            made[bucket.plans] = pinned.of_bucket(bucket).compile(copied(gm), example_inputs, run)
    calls = [made[bucket.plans] for bucket in buckets]
    if not all(isinstance(call, types.FunctionType) for call in calls):
        events.count("no dispatch: an artifact")
        return pinned.without_dispatch().compile(gm, example_inputs, run)
    limits, (position, axis) = _limits(buckets), place

    @functools.wraps(calls[0])
    def dispatch(*args: Any) -> Any:
        size = args[position] if axis is None else args[position].shape[axis]
        return calls[bisect_left(limits, size)](*args)

    return dispatch


def _limits(buckets: Sequence[Bucket]) -> list[int]:
    """The largest size of each bucket but the last, which takes all that is left."""
    return [bucket.up_to for bucket in buckets[:-1] if bucket.up_to is not None]
