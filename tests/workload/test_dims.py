"""Sizes that vary: how they are asked for, where they stand, and example inputs of other sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tuner.compilers.marks import marked
from tuner.errors import SpecError, TunerError, UsageError
from tuner.workload.dims import check_sizes, dims_of, resized
from tuner.workload.shapes import Dim, Shapes, default_sizes, parse_dims


def scaled(x: Tensor, weights: list[Tensor], by: float = 1.0) -> Tensor:
    return x * weights[1] * by


INPUTS = (torch.arange(12.0).reshape(4, 3), [torch.ones(3), torch.ones(4, 1)], 2.0)


def dims(*options: str, declared: Any = None, function: Any = scaled) -> tuple[Dim, ...]:
    return dims_of(parse_dims(options), declared or {}, function, INPUTS)


def test_a_size_is_named_by_the_spec_or_by_parameter_and_axis() -> None:
    declared = {"batch": ((0, 0), (2, -2)), "width": ((0, 1), (1, 0))}
    assert dims("batch=1,8", declared=declared) == (Dim("batch", (1, 8), ((0, 0), (2, 0))),)
    assert dims("x.0=8") == (Dim("x.0", (8,), ((0, 0),)),)
    assert dims("0.-1=8") == (Dim("0.-1", (8,), ((0, 1),)),)

    class Model(nn.Module):
        def forward(self, hidden: Tensor) -> Tensor:
            return hidden

    assert dims("hidden.1=2", function=Model()) == (Dim("hidden.1", (2,), ((0, 1),)),)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["batch"], "NAME=SIZE"),
        (["batch="], "NAME=SIZE"),
        (["=3"], "NAME=SIZE"),
        (["x.0=0"], "at least 1"),
        (["x.0=-3"], "at least 1"),
        (["x.0=2", "x.0=3"], "given twice"),
        (["btach=8"], "no such name (declared are batch)"),
        (["y.0=8"], "not given 'y'"),
        (["3.0=8"], "not given '3'"),
        (["x.2=8"], "no axis 2 of input 0, which has 2 dimensions"),
        (["weights.0=8"], "weights is no tensor but a list"),
        (["by.0=8"], "by is no tensor but a float"),
        (["x.0=8", "batch=4"], "it stands where x.0 does"),
        (["x.0=1,2,3,4,5", "x.1=1,2,3,4"], "20 combinations of sizes, more than 16"),
    ],
)
def test_what_makes_no_sense_is_one_line(options: list[str], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        dims(*options, declared={"batch": ((0, 0), (2, 0))})
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_inputs_of_other_sizes_are_cut_off_or_the_same_again() -> None:
    (batch,) = dims("batch=2,4,6", declared={"batch": ((0, 0), (2, 0))})
    for size in batch.sizes:
        x, (narrow, column), by = resized(INPUTS, {batch: size})
        assert (x.shape, column.shape, by) == ((size, 3), (size, 1), 2.0)
        assert narrow is INPUTS[1][0], "what does not vary is the very same"
        assert torch.equal(x, INPUTS[0][torch.arange(size) % 4])
        assert x.is_contiguous()
        assert scaled(x, [narrow, column], by).shape == (size, 3)


def test_the_order_of_dimensions_in_memory_and_the_need_of_a_gradient_stay() -> None:
    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
    (dim,) = dims_of(parse_dims(["x.0=5"]), {}, lambda x: x, (image,))
    (made,) = resized((image,), {dim: 5})
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert made.requires_grad
    assert made.is_leaf
    (again,) = marked((made,), [dim])
    assert again.is_contiguous(memory_format=torch.channels_last)
    assert again.requires_grad
    assert again.is_leaf


def test_what_is_broadcast_stays_so() -> None:
    row = torch.arange(6.0).reshape(6, 1).expand(6, 4)
    for axis, size, stride in ((0, 9, (1, 0)), (1, 9, (1, 0)), (1, 2, (1, 0))):
        (dim,) = dims_of(parse_dims([f"x.{axis}={size}"]), {}, lambda x: x, (row,))
        (made,) = resized((row,), {dim: size})
        assert (made.shape[axis], made.stride()) == (size, stride)
        assert torch.equal(made[:, 0], torch.arange(made.shape[0]) % 6.0)


def test_a_tensor_that_cannot_be_cut_is_told_in_one_line() -> None:
    odd = torch.zeros(4, dtype=torch.uint8).view(torch.bits8)
    shapes = Shapes(dims_of(parse_dims(["x.0=2"]), {}, lambda x: x, (odd,)))
    with pytest.raises(SpecError, match=r"it fails with x\.0=2"):
        check_sizes(lambda x: x, (odd,), shapes)


def test_marks_make_a_size_a_symbol_and_leave_the_callers_tensors_alone() -> None:
    (dim,) = dims("x.0=4")
    seen: list[list[str]] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        seen.append([type(value).__name__ for value in inputs])
        return gm

    for size in (4, 1):
        torch._dynamo.reset()
        (x, *_) = resized(INPUTS, {dim: size})
        torch.compile(lambda x: x * 2, backend=backend)(*marked((x,), [dim]))
    torch._dynamo.reset()
    assert [kinds.count("SymInt") for kinds in seen] == [1, 0], "torch specialises a size of 1"
    assert not hasattr(INPUTS[0], "_dynamo_weak_dynamic_indices")


def test_a_size_that_the_callable_refuses_is_named() -> None:
    def halved(x: Tensor) -> Tensor:
        return x.view(2, -1)

    shapes = Shapes(dims_of(parse_dims(["x.0=4,7"]), {}, halved, (torch.randn(8),)))
    with pytest.raises(SpecError, match=r"it fails with x\.0=7: RuntimeError") as caught:
        check_sizes(halved, (torch.randn(8),), shapes)
    assert isinstance(caught.value, TunerError)


def test_shapes_come_back_from_json_with_all_combinations() -> None:
    shapes = Shapes(dims("x.0=1,2", "x.1=3,4"), dynamic=True)
    assert Shapes.from_json(shapes.to_json()) == shapes
    assert [tuple(point.values()) for point in shapes.points] == [(1, 3), (1, 4), (2, 3), (2, 4)]
    assert shapes.compilations == [None, True]
    assert Shapes().points == [{}]
    assert Shapes().compilations == [False]
    assert not Shapes()
    assert Shapes(dynamic=True)


def test_where_nobody_names_sizes_they_are_half_the_one_seen_and_double() -> None:
    assert default_sizes((8,), [(2, None)]) == ((4,), (8,), (16,))
    assert default_sizes((8, 6), [(2, None), (2, None)]) == ((4, 3), (8, 6), (16, 12))
    assert default_sizes((7,), [(2, None)]) == ((7,), (14,)), "half of it is no size"
    assert default_sizes((8,), [(6, 12)]) == ((8,),)
