"""What is to be remembered of the inputs of a graph, for others to be made like them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Any

import torch

from tuner.workload.arguments import encode, layout_of
from tuner.workload.graph import InputData
from tuner.workload.inputs import UNSEEN, extent, written_once

# Inputs made of fewer runs, and longer ones on average, are kept whole. A causal mask of 2,048 x 2,048 has 4,096 runs; weights
# that were trained have as many runs as elements. Integers, up to that number, are kept whatever they are: offsets, lengths and
# permutations are only valid as they are.
MAX_RUNS = 8192
MIN_RUN_LENGTH = 8
# An evenly strided part of an input, of at most so many elements, says what its data are like; whole inputs are looked at for
# runs up to the second number, and only where the part has few. This runs within a user's own first call: 2^18 numbers take
# about 10 ms, and a network has hundreds of parameters.
ENOUGH = 1 << 18
MAX_LOOKED_AT = 1 << 24
# Views of one memory that span more than so many times their own sizes are made apart from each other.
APART = 2


def seen_in_all(passed: Sequence[Any], parameters: Container[int] = ()) -> tuple[InputData, ...]:
    """What is to be remembered of a graph's inputs, of which those at `parameters` are parameters: see `seen_in`.

    passed: all that a call passes. Sizes among them are no inputs of our form: nothing is remembered of them.
    """
    first: dict[int, int] = {}
    data: list[InputData] = []
    places = [place for place, value in enumerate(passed) if isinstance(value, torch.Tensor)]
    inputs = [passed[place] for place in places]
    for i, value in enumerate(inputs):
        if layout_of(value):
            data.append(UNSEEN)
            continue
        seen = seen_in(value, parameter=places[i] in parameters)
        if value.numel():
            owner = first.setdefault(value.untyped_storage().data_ptr(), i)
            if owner != i and _close(value, inputs[owner]):
                seen = replace(seen, shares=(owner, value.data_ptr() - inputs[owner].data_ptr()))
        data.append(seen)
    return tuple(data)


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two views of one memory are to be made as such: not slices far apart in a large cache, for all between counts."""
    bounds = [(x.data_ptr(), x.data_ptr() + extent(x.shape, x.stride()) * x.element_size()) for x in (one, other)]
    span = max(end for _, end in bounds) - min(start for start, _ in bounds)
    return span <= APART * sum(end - start for start, end in bounds)


def part_of(tensor: torch.Tensor) -> torch.Tensor:
    """At most ENOUGH elements of `tensor`, flat, in their order: every third of the longest dimension, again and again."""
    part = tensor
    while part.numel() > ENOUGH:
        longest = max(range(part.dim()), key=part.shape.__getitem__)
        part = part[(*[slice(None)] * longest, slice(None, None, 3))]
    return part.reshape(-1)


def starts_of_runs(flat: torch.Tensor) -> torch.Tensor:
    """Places, but for the first, where another value begins. A part, in order, has no more of them than the whole."""
    return (flat[1:] != flat[:-1]).nonzero().flatten() + 1


def seen_in(tensor: torch.Tensor, parameter: bool = False) -> InputData:
    """What is to be remembered of `tensor`: of a parameter never the content, unless it is zeros or ones throughout."""
    if tensor.numel() == 0 or tensor.dtype.is_complex:
        return UNSEEN
    own = tensor.detach()[written_once(tensor)]
    part = part_of(own)
    runs = _runs(own, part, parameter)
    finite = part.double()
    finite = finite[finite.isfinite()]
    if finite.numel() == 0:
        return replace(UNSEEN, runs=runs)
    low, high = float(finite.min()), float(finite.max())
    # The sum and the squares of numbers near the largest double are infinite, those of their shares of it are not.
    scale = max(abs(low), abs(high)) or 1.0
    shares = finite / scale
    mean, std = scale * float(shares.mean()), scale * float(shares.std(correction=0))
    if not tensor.dtype.is_floating_point:
        # Torch has no minimum of wide unsigned integers; those past int64 wrap around here, and back when inputs are made.
        integers = part.to(torch.int64)
        low, high = int(integers.min()), int(integers.max())
    return InputData(low, high, mean, std, runs)


def _runs(tensor: torch.Tensor, part: torch.Tensor, parameter: bool) -> tuple[tuple[Any, int], ...] | None:
    """The whole content as runs, where it is to be kept."""
    kept_whole = not tensor.dtype.is_floating_point and tensor.dtype != torch.bool and not parameter
    most = MAX_RUNS if kept_whole else min(MAX_RUNS, tensor.numel() / MIN_RUN_LENGTH)
    if tensor.numel() > MAX_LOOKED_AT or len(starts_of_runs(part)) >= most:
        return None
    flat = tensor.reshape(-1)
    starts = starts_of_runs(flat)
    if len(starts) >= most or (parameter and (len(starts) or flat[0].item() not in (0, 1))):
        return None
    bounds = [0, *starts.tolist(), len(flat)]
    values = flat[torch.tensor(bounds[:-1])].tolist()
    return tuple((encode(value, {}, "input"), end - start) for value, start, end in zip(values, bounds, bounds[1:], strict=False))
