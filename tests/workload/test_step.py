"""What is run as a training step, and what a step leaves behind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tuner.errors import SpecError
from tuner.workload.step import Step, phase_of


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_what_requires_a_gradient_trains_and_a_module_in_eval_mode_never_does():
    layer, inputs = nn.Linear(4, 4), (numbers(2, 4),)
    assert phase_of(layer, inputs) == "training"
    assert phase_of(lambda x: layer(x), inputs) == "training"
    assert phase_of(layer.eval(), inputs) == "inference"
    assert phase_of(lambda x: layer(x).detach(), inputs) == "inference"
    assert phase_of(torch.sin, inputs) == "inference"
    assert phase_of(torch.sin, (numbers(2, 4).requires_grad_(),)) == "training"
    assert phase_of(lambda x: x.mul_(2), (numbers(2, 4).requires_grad_(),)) == "inference", "an update in place has no gradient"


def test_to_find_out_it_runs_on_copies_also_without_gradients_around():
    x = numbers(4).requires_grad_()

    def writes(x: Tensor) -> Tensor:
        y = x * 2
        y.add_(1)
        return y

    plain = numbers(4)
    with torch.no_grad():
        assert phase_of(writes, (x,)) == "training"
        assert phase_of(lambda a, b: a.mul_(2) + b, (plain, x)) == "training"
    assert torch.equal(plain, numbers(4))
    assert x.grad is None


def test_a_step_leaves_a_gradient_in_each_parameter_and_input_wherever_it_is_held():
    layer, x = nn.Linear(3, 2), numbers(5, 3).requires_grad_()
    step = Step((x,))
    step(lambda x: torch.tanh(layer(x)))
    held = {id(layer.weight), id(layer.bias), id(x)}
    assert {id(leaf) for leaf in step.leaves} == held
    assert all(gradient is not None and bool(gradient.abs().sum() > 0) for gradient in step.gradients)


def test_each_step_is_like_the_one_before():
    layer, x = nn.Linear(3, 2), numbers(5, 3)
    step = Step((x,))
    made = []
    for _ in range(2):
        step(layer)
        made.append([gradient.clone() for gradient in step.gradients if gradient is not None])
        step.forget()
        assert step.gradients == [None, None]
    assert all(torch.equal(a, b) for a, b in zip(*made, strict=True))


def test_the_gradient_of_a_loss_is_one_and_those_of_larger_outputs_do_not_cancel():
    x = numbers(4, 8).requires_grad_()
    step = Step((x,))
    step(lambda x: (x * 3).sum())
    assert torch.equal(step.gradients[0], torch.full((4, 8), 3.0))
    x.grad = None
    step = Step((x,))
    step(lambda x: torch.softmax(x, -1))
    (gradient,) = step.gradients
    # With ones it would be rounding errors, of about 1e-8.
    assert bool(gradient.abs().max() > 1e-2)


def test_what_has_no_gradient_cannot_be_run_as_a_step():
    with pytest.raises(SpecError, match="no output requires a gradient"):
        Step((numbers(2),))(torch.sin)
