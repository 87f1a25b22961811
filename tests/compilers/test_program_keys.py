"""The key of a program: of all that Dynamo may give a back end, and of nothing that changes from call to call."""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.testing._internal.two_tensor import TwoTensor

from tuner.compilers.inductor.program import is_training, program_key, program_ranges
from tuner.errors import UnsupportedGraph


def programs(function: Callable[..., Any], *calls: tuple[Any, ...], **options: Any) -> list[tuple[str, Any]]:
    """Key and ranges of each program that Dynamo makes of the calls."""
    found: list[tuple[str, Any]] = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        found.append((program_key(gm, inputs), program_ranges(gm, inputs)))
        return gm.forward

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, **options)
    for inputs in calls:
        compiled(*inputs)
    torch._dynamo.reset()
    return found


def key_of(function: Callable[..., Any], *inputs: Any, **options: Any) -> str:
    ((key, _),) = programs(function, inputs, **options)
    return key


def square(size: int = 4) -> torch.Tensor:
    return torch.ones(size, size)


def test_a_symbolic_program_is_known_by_its_symbols_and_not_by_the_sizes_of_its_first_call() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * x.shape[0]

    small, large = (key_of(function, torch.ones(size, 4), dynamic=True) for size in (6, 60))
    assert small == large
    (_, automatic) = programs(function, (torch.ones(6, 4),), (torch.ones(7, 9),))
    assert automatic[0] == small
    assert key_of(function, torch.ones(6, 4), dynamic=False) != small


def test_the_ranges_of_a_program_are_those_of_its_symbols() -> None:
    x = torch.ones(6, 4)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
    ((key, ranges),) = programs(lambda x: torch.tanh(x), (x,))
    assert [(int(one.lower), int(one.upper)) for one in ranges.values()] == [(2, 64)]
    assert programs(lambda x: torch.tanh(x), (square(),))[0][1] == {}
    other = torch.ones(6, 4)
    torch._dynamo.mark_dynamic(other, 0, min=2, max=32)
    assert key_of(lambda x: torch.tanh(x), other) != key


def test_which_inputs_need_gradients_is_in_the_key_of_a_training_program() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y).exp()

    keys = {
        key_of(function, square().requires_grad_(first), square().requires_grad_(second))
        for first in (False, True)
        for second in (False, True)
    }
    assert len(keys) == 4
    with torch.no_grad():
        assert key_of(function, square().requires_grad_(), square()) == key_of(function, square(), square().requires_grad_())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(lambda x: x[:, ..., 1:3] + 1, lambda x: x[:, ..., 1:4] + 1, id="slice"),
        pytest.param(lambda x: x.to(torch.float64), lambda x: x.to(torch.float16), id="dtype"),
        pytest.param(lambda x: x.reshape(torch.Size([2, 8])), lambda x: x.reshape(torch.Size([8, 2])), id="size"),
        pytest.param(lambda x: x * (2 + 1j), lambda x: x * (2 + 2j), id="complex"),
        pytest.param(
            lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
            lambda x: torch.cond(x.sum() > 0, torch.sin, torch.tan, (x,)),
            id="nested graph",
        ),
        pytest.param(lambda x: x + torch.tensor(2.0), lambda x: x + torch.tensor(3.0), id="constant"),
    ],
)
def test_what_a_program_says_is_in_its_key(one: Any, other: Any) -> None:
    assert key_of(one, square()) == key_of(one, square())
    assert key_of(one, square()) != key_of(other, square())


def test_a_subclass_is_told_from_a_plain_tensor_and_by_what_is_in_it() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    two, wide = TwoTensor(square(), square()), TwoTensor(square().double(), square().double())
    assert len({key_of(function, value) for value in (square(), two, wide)}) == 3
    assert key_of(function, two) == key_of(function, TwoTensor(square(), square()))


class Mode(enum.Enum):
    FAST = 1
    EXACT = 2


def test_arguments_that_are_no_data_count_by_their_names() -> None:
    def program(*arguments: Any, **named: Any) -> str:
        made = fx.Graph()
        x = made.placeholder("x")
        called = made.call_function(torch.sin, (x,))
        made.output((called,))
        gm = fx.GraphModule(torch.nn.Module(), made)
        # FX refuses such arguments where it is asked to make a node of them; Dynamo's own nodes hold them all the same.
        object.__setattr__(called, "_args", (x, *arguments))
        object.__setattr__(called, "_kwargs", named)
        return program_key(gm, [square()])

    different: list[tuple[Any, ...]] = [
        (Mode.FAST,),
        (Mode.EXACT,),
        (torch.sin,),
        (torch.cos,),
        (object(),),
        ({"a": 1},),
        (frozenset({1}),),
    ]
    keys = [program(*arguments) for arguments in different]
    assert len(set(keys)) == len(keys)
    assert keys == [program(*arguments) for arguments in different[:4]] + [program(object())] + [
        program(*arguments) for arguments in different[5:]
    ]


def with_module(module: torch.nn.Module) -> str:
    """The key of a program that calls the module as it is."""

    class Calls(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = module

        def forward(self, x: torch.Tensor) -> Any:
            return self.held(x)

    return program_key(fx.symbolic_trace(Calls()), [torch.ones(1, 4, 8, 8)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.nn.AvgPool2d(2), torch.nn.AvgPool2d(3)),
        (torch.nn.LeakyReLU(0.1), torch.nn.LeakyReLU(0.3)),
        (torch.nn.Conv2d(4, 4, 3), torch.nn.Conv2d(4, 4, 3, stride=2)),
        (torch.nn.Dropout(0.1), torch.nn.Dropout(0.1).eval()),
    ],
)
def test_what_a_module_was_made_with_is_in_the_key_of_a_program_that_calls_it(one: Any, other: Any) -> None:
    assert with_module(one) == with_module(copy.deepcopy(one))
    assert with_module(one) != with_module(other)


def test_a_module_that_cannot_be_told_from_others_gives_no_key() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2)
    hooked = torch.nn.ReLU()
    hooked.register_forward_hook(lambda *_: None)
    for module in (layer, hooked):
        with pytest.raises(UnsupportedGraph):
            with_module(module)


def test_parameters_that_a_program_holds_make_it_one_of_training() -> None:
    keys = []
    for needs in (True, False):
        gm = fx.symbolic_trace(torch.nn.Linear(4, 4).requires_grad_(needs))
        assert is_training(gm, [square()]) == needs
        keys.append(program_key(gm, [square()]))
        with torch.no_grad():
            assert not is_training(gm, [square()])
    assert keys[0] != keys[1]
