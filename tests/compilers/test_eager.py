"""A plan that leaves a graph to eager: library calls only, saved by the compile caches, refused where it would be wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from serving import Bench, Example, gelu_of_norm, pointwise_then_sum, realise
from torch._dynamo.utils import counters

from tuner.compilers.inductor.apply import Realised, applied
from tuner.compilers.inductor.hooks import compile_fx, compile_fx_inner, inductor_config
from tuner.errors import PlanRefused, find_cause
from tuner.plan import Plan
from tuner.workload.fx import make_inputs, to_fx

EAGER = Plan(compiler="eager")
UNDECOMPOSED = Plan(compiler="eager", native=("aten.gelu.default", "aten.native_layer_norm.default"))


def writing() -> Example:
    """Reads an input through a view before and after it is written."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = x.t() + y
        x.add_(1)
        return before, x * y, x.t()

    generator = torch.Generator().manual_seed(2)
    return function, (torch.randn(8, 8, generator=generator), torch.randn(8, 8, generator=generator))


def convolution() -> Example:
    """The default moves it to another layout, with kernels around it."""
    layer = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.MaxPool2d(2)).eval()
    return layer, (torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(3)),)


def attention() -> Example:
    """The library's call of it can draw random numbers, and here draws none."""
    generator = torch.Generator().manual_seed(5)
    return torch.nn.functional.scaled_dot_product_attention, tuple(
        torch.randn(1, 2, 8, 16, generator=generator) for _ in range(3)
    )


@pytest.mark.parametrize("make", [pointwise_then_sum, gelu_of_norm, writing, convolution, attention])
def test_each_op_is_a_library_call_and_the_outputs_are_eagers_own(bench: Bench, make: Callable[[], Example]) -> None:
    graph = bench.resolve(make()).graph
    compiled, groups, _ = realise(graph, EAGER)
    assert all(len(group) == 1 for group in groups)
    assert not any("ComputedBuffer" in leaf for (leaf,) in groups), "the compiler made a kernel"
    ours, theirs = make_inputs(graph, 0), make_inputs(graph, 0)
    with torch.no_grad():
        found, wanted = compiled(list(ours)), to_fx(graph)(*theirs)
    for one, other in zip([*found, *ours], [*wanted, *theirs], strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()


def test_what_may_stay_native_is_not_decomposed(bench: Bench) -> None:
    whole, _ = realise(bench.resolve(gelu_of_norm()).graph, UNDECOMPOSED)[1:]
    parts, _ = realise(bench.resolve(gelu_of_norm()).graph, EAGER)[1:]
    assert len(whole) < len(parts)


@pytest.mark.parametrize("plan", [EAGER, UNDECOMPOSED], ids=["decomposed", "undecomposed"])
def test_a_warm_start_traces_and_compiles_nothing(bench: Bench, plan: Plan) -> None:
    example = gelu_of_norm()
    bench.settle(example, plan)
    cold, report = bench.run(example)
    assert [served.outcome for served in report["served"]] == ["served"]
    assert counters["aot_autograd"]["autograd_cache_saved"] == 1
    warm, report = bench.run(example)
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1
    assert counters["inductor"]["fxgraph_cache_miss"] == 0
    assert [served.outcome for served in report["served"]] == ["served from cache"]
    assert torch.equal(cold, warm)
    with torch.no_grad():
        torch.testing.assert_close(warm, example[0](*example[1]))


def test_an_eager_winner_that_came_later_is_not_answered_with_the_cached_default(bench: Bench) -> None:
    example = gelu_of_norm()
    bench.run(example)
    bench.settle(example, UNDECOMPOSED)
    _, report = bench.run(example)
    assert [served.outcome for served in report["served"]] == ["served"]


def test_a_graph_that_draws_random_numbers_is_not_left_to_eager(bench: Bench) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5, training=True) + 1

    example = function, (torch.randn(16, 16),)
    with pytest.raises(PlanRefused, match="random"):
        realise(bench.resolve(example).graph, EAGER)
    bench.settle(example, EAGER, groups=(("0:4:FallbackKernel:0",),))
    _, report = bench.run(example)
    assert [(served.outcome, served.realised) for served in report["served"]] == [("fallback", None)]
    assert "random" in report["served"][0].reason


@pytest.mark.parametrize("setting", ["triton.cudagraphs", "cpp_wrapper"])
def test_where_the_compilers_mode_does_not_allow_it_a_graph_is_not_left_to_eager(bench: Bench, setting: str) -> None:
    graph = bench.resolve(pointwise_then_sum()).graph
    with inductor_config.patch({setting: True}), pytest.raises(PlanRefused):
        realise(graph, EAGER)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_training_step_can_be_left_to_eager(bench: Bench, dynamic: bool) -> None:
    """Forward and backward through Inductor's own door, as they would be served; lazily compiled where nothing else would be."""

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ weight).softmax(-1)

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        return compile_fx(gm, inputs, inner_compile=step)

    def step(*arguments: Any, **more: Any) -> object:
        with applied(EAGER, realised := Realised({})):
            made.append(realised)
            return compile_fx_inner(*arguments, **more)

    def gradients(called: Callable[..., torch.Tensor]) -> list[torch.Tensor | None]:
        generator = torch.Generator().manual_seed(4)
        leaves = [torch.randn(8, 8, generator=generator).requires_grad_() for _ in range(2)]
        called(*leaves).square().sum().backward()
        return [leaf.grad for leaf in leaves]

    made: list[Realised] = []
    ours = gradients(torch.compile(function, backend=backend, dynamic=dynamic))
    assert made
    for one, other in zip(ours, gradients(function), strict=True):
        torch.testing.assert_close(one, other)


def test_an_error_other_than_ours_is_not_taken_for_a_refusal() -> None:
    assert find_cause(ValueError("random"), PlanRefused) is None
