"""Marks on inputs that make torch.compile take sizes for dynamic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tuner.workload.shapes import Dim


def marked(inputs: Sequence[Any], dims: Sequence[Dim]) -> tuple[Any, ...]:
    """Copies of the inputs that torch.compile takes for dynamic in these dims, as it does by itself for sizes that it saw vary.

    Inputs of which no size varies are the very same. Sizes that it specialises, as it does 1, stay static.
    """
    leaves, spec = pytree.tree_flatten(tuple(inputs))
    for position in {position for dim in dims for position, _ in dim.places}:
        # No view: of one, torch.compile looks at the base as well.
        leaves[position] = leaves[position].detach().clone().requires_grad_(leaves[position].requires_grad)
    for dim in dims:
        for position, axis in dim.places:
            torch._dynamo.maybe_mark_dynamic(leaves[position], axis)
    return tuple(pytree.tree_unflatten(leaves, spec))
