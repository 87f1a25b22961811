"""Running a hard case under a back end, and whether two runs came to the same, bit for bit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from hard_graphs import Case
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tuner.compilers.inductor.hooks import dynamo_config, functorch_config, inductor_config
from tuner.measure.correctness import deviation


def run(make: Callable[[], Case], backend: str) -> list[Any]:
    """All that the case's calls leave behind: outputs, inputs, parameters and buffers after each call, and gradients.

    With no compile cache but that of machine code, so that every graph comes by, as in a new process.
    """
    torch._dynamo.reset()
    case = make()
    with (
        contextlib.nullcontext() if case.training else torch.no_grad(),
        functorch_config.patch(enable_autograd_cache=False),
        inductor_config.patch({"fx_graph_cache": False, **case.inductor}),
        dynamo_config.patch(dict(case.dynamo)),
    ):
        compiled = torch.compile(case.function, backend=backend, **case.options)
        found: list[Any] = []
        for inputs in case.calls:
            torch.manual_seed(0)
            outputs = compiled(*inputs)
            if case.training:
                loss_of(outputs).backward()
            found.append(left_behind(case, inputs, outputs))
    torch._dynamo.reset()
    return found


def loss_of(outputs: Any) -> Tensor:
    floats = [value for value in pytree.tree_leaves(outputs) if isinstance(value, Tensor) and value.requires_grad]
    losses = [value.float().sum() for value in floats]
    return sum(losses[1:], losses[0])


def left_behind(case: Case, inputs: tuple[Any, ...], outputs: Any) -> list[Any]:
    tensors = [value for value in pytree.tree_leaves([inputs]) if isinstance(value, Tensor)]
    if isinstance(case.function, nn.Module):
        tensors += [*case.function.parameters(), *case.function.buffers()]
    after = [[value, value.grad if value.is_leaf else None] for value in tensors]
    return [copied(value) for value in pytree.tree_leaves([outputs, after, aliases(inputs, outputs)])]


def copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) and value.layout == torch.strided else value


def aliases(inputs: Any, outputs: Any) -> list[tuple[int, int]]:
    """Pairs of positions, among inputs and outputs, of tensors in one memory."""
    places = []
    for value in pytree.tree_leaves([inputs, outputs]):
        try:
            places.append(value.untyped_storage()._cdata)
        except (AttributeError, NotImplementedError, RuntimeError):
            places.append(None)
    return [(i, j) for j, place in enumerate(places) for i in range(j) if place is not None and places[i] == place]


def same(found: Any, wanted: Any) -> str:
    """ "" where both are bit for bit the same, with the same types, strides and aliases; else what differs first."""
    left, right = pytree.tree_leaves(found), pytree.tree_leaves(wanted)
    if len(left) != len(right):
        return f"{len(left)} values against {len(right)}"
    for i, (value, like) in enumerate(zip(left, right, strict=True)):
        if type(value) is not type(like):
            return f"value {i} is a {type(value).__name__} against {type(like).__name__}"
        if not isinstance(value, Tensor):
            if value != like:
                return f"value {i} is {value!r} against {like!r}"
        elif difference := _tensors(value, like):
            return f"value {i}: {difference}"
    return ""


def close(found: Any, wanted: Any) -> str:
    """The same for values that another order of computing may have rounded otherwise: "" where all are within the tolerance."""
    left, right = pytree.tree_leaves(found), pytree.tree_leaves(wanted)
    if len(left) != len(right):
        return f"{len(left)} values against {len(right)}"
    for i, (value, like) in enumerate(zip(left, right, strict=True)):
        if isinstance(value, Tensor) and isinstance(like, Tensor) and type(value) is type(like):
            value, like = (_plain(one) for one in (value, like))
            if value.dtype != like.dtype or value.shape != like.shape or value.device != like.device:
                return f"value {i}: {value.dtype} {tuple(value.shape)} against {like.dtype} {tuple(like.shape)}"
            if value.device.type != "meta" and (off := deviation([value], [like])) > 1:
                return f"value {i} is {off:.3g} tolerances off"
        elif type(value) is not type(like) or value != like:
            return f"value {i} is {value!r} against {like!r}"
    return ""


def _plain(value: Tensor) -> Tensor:
    if value.layout == torch.jagged:
        return value.values()
    value = value if value.layout == torch.strided else value.to_dense()
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def _tensors(value: Tensor, like: Tensor) -> str:
    if value.layout == torch.jagged == like.layout:
        # the ragged size is a number of this process's own
        return _tensors(value.values(), like.values()) or _tensors(value.offsets(), like.offsets())
    if (value.dtype, value.shape, value.layout, value.device) != (like.dtype, like.shape, like.layout, like.device):
        return f"{value.dtype} {tuple(value.shape)} against {like.dtype} {tuple(like.shape)}"
    if value.device.type == "meta":
        return ""
    if value.layout != torch.strided:
        value, like = value.to_dense(), like.to_dense()
    elif value.stride() != like.stride():
        return f"strides {value.stride()} against {like.stride()}"
    bits = [part.resolve_conj().contiguous().flatten() for part in (value, like)]
    if not value.numel():
        return ""
    return "" if torch.equal(*(part.view(torch.uint8) for part in bits)) else "other bits"
