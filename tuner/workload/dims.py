"""Where the sizes that vary stand in a SPEC's example inputs, and example inputs of other sizes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tuner.errors import SpecError, UsageError, one_line
from tuner.workload.inputs import written_once
from tuner.workload.shapes import MAX_SIZES, Dim, Place, Shapes


def dims_of(
    asked: Mapping[str, Sequence[int]],
    declared: Mapping[str, Sequence[Place]],
    function: Callable[..., Any],
    inputs: Sequence[Any],
) -> tuple[Dim, ...]:
    """Where the sizes asked for stand: at the places declared, or at one that the name itself says, "x.0" or "1.0".

    Raises UsageError for a name that is neither, and where there are too many combinations of sizes.
    """
    dims = tuple(Dim(name, tuple(sizes), _places(name, declared, function, inputs)) for name, sizes in asked.items())
    count = len(Shapes(dims).points)
    if count > MAX_SIZES:
        raise UsageError(f"--dim: these are {count} combinations of sizes, more than {MAX_SIZES}")
    taken: dict[Place, str] = {}
    for dim in dims:
        for place in dim.places:
            if (other := taken.setdefault(place, dim.name)) != dim.name:
                raise UsageError(f"--dim {dim.name}: it stands where {other} does")
    return dims


def _places(
    name: str, declared: Mapping[str, Sequence[Place]], function: Callable[..., Any], inputs: Sequence[Any]
) -> tuple[Place, ...]:
    leaves = pytree.tree_leaves(tuple(inputs))
    if name in declared:
        places = tuple((int(position), int(axis)) for position, axis in declared[name])
    else:
        places = (_place_named(name, declared, function, inputs),)
    checked = []
    for position, axis in places:
        leaf = leaves[position] if 0 <= position < len(leaves) else None
        if not isinstance(leaf, Tensor) or not -leaf.dim() <= axis < leaf.dim():
            what = f"has {leaf.dim()} dimensions" if isinstance(leaf, Tensor) else "is no tensor"
            raise UsageError(f"--dim {name}: there is no axis {axis} of input {position}, which {what}")
        if leaf.shape[axis] == 0:
            raise UsageError(f"--dim {name}: the example input {position} is empty there")
        checked.append((position, axis % leaf.dim()))
    return tuple(checked)


def _place_named(
    name: str, declared: Mapping[str, Sequence[Place]], function: Callable[..., Any], inputs: Sequence[Any]
) -> Place:
    """The place that "x.0" or "1.0" names: a parameter of the callable or its number, and an axis."""
    argument, separator, axis = name.rpartition(".")
    known = f"declared are {', '.join(declared)}" if declared else "none is declared"
    if not separator or not axis.lstrip("-").isdecimal():
        raise UsageError(f"--dim {name}: no such name ({known}), and it is not ARGUMENT.AXIS, like x.0")
    names = _parameters(function)
    number = int(argument) if argument.isdecimal() else names.index(argument) if argument in names else -1
    if not 0 <= number < len(inputs):
        raise UsageError(f"--dim {name}: the callable is not given {argument!r} ({known}; its parameters are {', '.join(names)})")
    if not isinstance(inputs[number], Tensor):
        raise UsageError(f"--dim {name}: {argument} is no tensor but a {type(inputs[number]).__name__}")
    return len(pytree.tree_leaves(tuple(inputs[:number]))), int(axis)


def _parameters(function: Callable[..., Any]) -> list[str]:
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        return list(inspect.signature(called).parameters)
    # A callable of C's has none to tell.
    except (TypeError, ValueError):
        return []


def resized(inputs: Sequence[Any], point: Mapping[Dim, int]) -> tuple[Any, ...]:
    """The example inputs with these sizes: cut off, or the same again. Tensors that nothing is done to are the very same."""
    leaves, spec = pytree.tree_flatten(tuple(inputs))
    for dim, size in point.items():
        for position, axis in dim.places:
            leaves[position] = _resized(leaves[position], axis, size)
    return tuple(pytree.tree_unflatten(leaves, spec))


def _resized(tensor: Tensor, axis: int, size: int) -> Tensor:
    if tensor.shape[axis] == size:
        return tensor
    shape = [size if i == axis else old for i, old in enumerate(tensor.shape)]
    with torch.no_grad():
        picked = tensor[written_once(tensor)]
        if tensor.stride(axis):
            picked = picked.index_select(axis, torch.arange(size, device=tensor.device) % tensor.shape[axis])
        # In the same order of dimensions in memory, which kernels depend on; what is broadcast stays so.
        order = sorted(range(tensor.dim()), key=lambda i: (-tensor.stride()[i], i))
        made = picked.permute(order).contiguous().permute([order.index(i) for i in range(tensor.dim())]).expand(shape)
    return made.requires_grad_(tensor.requires_grad)


def check_sizes(function: Callable[..., Any], inputs: Sequence[Any], shapes: Shapes) -> None:
    """Raises SpecError, naming the size, where the callable fails in eager mode at one of the sizes."""
    if not shapes.dims:
        return
    for point in shapes.points:
        try:
            made = pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, resized(inputs, point))
            with torch.no_grad():
                function(*made)
        # As where a SPEC is loaded: whatever the user's code raises is told in one line.
        except (Exception, SystemExit) as error:
            sizes = ", ".join(f"{dim.name}={size}" for dim, size in point.items())
            raise SpecError(f"it fails with {sizes}: {one_line(error)}") from error
