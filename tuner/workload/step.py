"""A training step of a callable: a forward call, and the backward from gradients of its outputs that are the same each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tuner.errors import SpecError
from tuner.workload.graph import SpecPhase

SEED = 20261


def phase_of(function: Callable[..., Any], inputs: Sequence[Any]) -> SpecPhase:
    """ "training" where some output requires a gradient when gradients are on; of a module in eval mode never.

    Calls the function on copies of the inputs, unless it is such a module. What only runs without gradients, as an update of
    parameters in place does, is inference.
    """
    if isinstance(function, torch.nn.Module) and not function.training:
        return "inference"
    with torch.enable_grad():
        try:
            return "training" if differentiable(function(*copies(inputs))) else "inference"
        except RuntimeError:
            return "inference"


def copies(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """The inputs with tensors of their own, each a leaf that requires a gradient where the original does."""

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        made = leaf.detach().clone().requires_grad_(leaf.requires_grad)
        # Marks of sizes that vary.
        made.__dict__.update(leaf.__dict__)
        return made

    return tuple(pytree.tree_map(copy, tuple(inputs)))


def differentiable(outputs: Any) -> list[Tensor]:
    """The tensors among `outputs` that a backward can start from, each once."""
    found = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]
    return list({id(leaf): leaf for leaf in found if leaf.requires_grad and leaf.grad_fn is not None}.values())


class Step:
    """Runs training steps of a callable, or of what it was compiled to, on its own inputs.

    The gradient of an output of one element, a loss, is 1, those of others are fixed random numbers: ones would cancel where a
    softmax or a norm comes last, and what is left of it, rounding alone, could not be compared.
    """

    def __init__(self, inputs: Sequence[Any]):
        self.inputs = tuple(inputs)
        self.leaves: list[Tensor] = []
        self._gradients: list[Tensor] = []

    def __call__(self, call: Callable[..., Any]) -> Any:
        """One step; the outputs. What parameters and inputs got is then in `gradients`. `forget` comes before the next.

        Raises SpecError where no output requires a gradient.
        """
        with torch.enable_grad():
            outputs = call(*self.inputs)
            roots = differentiable(outputs)
            if not roots:
                raise SpecError("it cannot be run as a training step: no output requires a gradient")
            if not self.leaves:
                self.leaves = leaves_of(roots)
                self._gradients = _gradients_for(roots)
                self.forget()
            torch.autograd.backward(roots, self._gradients)
        return outputs

    @property
    def gradients(self) -> list[Tensor | None]:
        """What the last step left in each leaf, in the same order for any compilation of the callable."""
        return [leaf.grad for leaf in self.leaves]

    def forget(self) -> None:
        """Drops all gradients: what is there would be added to."""
        for leaf in self.leaves:
            leaf.grad = None


def _gradients_for(roots: Sequence[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    made = []
    for root in roots:
        # As the output lies in memory, which is what a backward is compiled for.
        like = torch.empty_like(root.detach())
        wide = torch.ones(root.shape) if root.numel() == 1 else torch.randn(root.shape, generator=generator)
        made.append(like.copy_(wide))
    return made


def leaves_of(roots: Sequence[Tensor]) -> list[Tensor]:
    """Parameters and inputs that a backward from `roots` gives gradients to, wherever the callable holds them."""
    found: dict[int, Tensor] = {}
    seen: set[Any] = set()
    stack = [root.grad_fn for root in reversed(roots)]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (variable := getattr(node, "variable", None)) is not None:
            found[id(variable)] = variable
        stack.extend(following for following, _ in reversed(node.next_functions))
    return list(found.values())
