"""Cuts: values put into memory within what would be one leaf. Named, made, refused where there may be none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hard_distributed
import pytest
import torch
from lowering import lower, lower_program
from serving import Example, gelu_of_norm, pointwise_then_sum, realise
from steps import inputs as step_inputs
from test_training_traps import swapped

from tuner.compilers.inductor.capture import capture
from tuner.errors import PlanRefused
from tuner.plan import Plan
from tuner.search_spaces.fusion import no_fusion
from tuner.workload.fx import make_inputs, to_fx
from tuner.workload.graph import Graph

WHERE = "aten.where.self"


def graph_of(example: tuple[Any, ...], **more: Any) -> Graph:
    return capture(*example, **more)[0].graphs[0]


def random_numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def masked_softmax() -> Example:
    def function(x: torch.Tensor, bias: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.where(mask, x * 0.5 + bias, float("-inf")), -1)

    return function, (random_numbers(2, 8, 16), random_numbers(2, 1, 16), random_numbers(8, 16) > -2)


def ops_of(sites: Sequence[str]) -> list[str]:
    return [site.partition(":")[2] for site in sites]


def test_a_cut_puts_the_value_into_memory_as_a_leaf_of_its_own() -> None:
    graph = graph_of(masked_softmax())
    default = lower(graph, Plan())
    site = default.site(WHERE)
    assert not default.leaf_of(site)
    made = lower(graph, Plan(cuts=(site,)))
    assert made.leaf_of(site)
    assert (made.cut, made.sites) == ((site,), default.sites)
    assert (len(made.leaves), made.code != default.code) == (len(default.leaves) + 1, True)


def test_naming_the_cuts_changes_nothing_of_what_is_compiled() -> None:
    graph = graph_of(pointwise_then_sum())
    assert realise(graph, Plan())[2] == lower(graph, Plan()).code


@pytest.mark.slow
def test_every_cut_and_all_of_them_compute_the_same() -> None:
    graph = graph_of(masked_softmax())
    reference = to_fx(graph)(*make_inputs(graph, 0))
    sites = lower(graph, Plan()).sites
    assert len(sites) >= 4
    for cuts in (*((site,) for site in sites), sites):
        compiled, _, _ = realise(graph, Plan(cuts=tuple(sorted(cuts))))
        for output, wanted in zip(compiled(make_inputs(graph, 0)), reference, strict=True):
            torch.testing.assert_close(output, wanted)


def test_groups_name_the_leaves_that_are_there_after_the_cuts() -> None:
    graph = graph_of(masked_softmax())
    site = lower(graph, Plan()).site(WHERE)
    cut = lower(graph, Plan(cuts=(site,)))
    alone = no_fusion(cut.groups)
    assert lower(graph, Plan(cuts=(site,), groups=alone)).groups == alone
    assert (cut.leaf_of(site),) in alone


@pytest.mark.parametrize("target", ["5000:aten.where.self", "0:aten.where.self", "aten.mul.Tensor"])
def test_a_cut_that_the_graph_does_not_have_is_refused(target: str) -> None:
    graph = graph_of(masked_softmax())
    site = lower(graph, Plan()).site(WHERE)
    cut = target if ":" in target else f"{site.partition(':')[0]}:{target}"
    with pytest.raises(PlanRefused, match=cut):
        lower(graph, Plan(cuts=(cut, site)))


def test_a_cut_is_refused_where_the_user_has_switched_its_pass_off() -> None:
    graph = graph_of(masked_softmax())
    site = lower(graph, Plan()).site(WHERE)
    with pytest.raises(PlanRefused, match=site):
        lower(graph, Plan(cuts=(site,)), disabled_passes="post_grad_custom_post_pass")


def test_equal_graphs_have_equal_cuts_whatever_the_order_and_names_of_their_statements() -> None:
    def one(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.softmax(torch.sin(x) * y, -1)
        columns = (torch.cos(y) + x).sum(0)
        return rows, columns

    def other(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        second = (torch.cos(b) + a).sum(0)
        first = torch.softmax(torch.sin(a) * b, -1)
        return first, second

    inputs = random_numbers(4, 8), random_numbers(4, 8)
    graphs = [graph_of((function, inputs)) for function in (one, other)]
    assert graphs[0].key == graphs[1].key
    assert graphs[0].order != graphs[1].order
    named = [lower(graph, Plan()) for graph in graphs]
    assert named[0].sites == named[1].sites
    for target in ("aten.sin.default", "aten.add.Tensor"):
        site = named[0].site(target)
        made = [lower(graph, Plan(cuts=(site,))) for graph in graphs]
        assert made[0].cut == made[1].cut == (site,)
        assert made[0].leaves == made[1].leaves != named[0].leaves


def test_forward_and_backward_are_cut_alike_whatever_the_order_of_their_statements() -> None:
    graphs = [
        capture(swapped(first), tuple(value.requires_grad_() for value in step_inputs()), phase="training")[0].graphs
        for first in (0, 1)
    ]
    for one, other in zip(*graphs, strict=True):
        assert one.key == other.key
        sites = lower(one, Plan()).sites
        assert sites == lower(other, Plan()).sites
        made = [lower(graph, Plan(cuts=tuple(sorted(sites)))) for graph in (one, other)]
        assert made[0].leaves == made[1].leaves
        assert set(made[0].cut) == set(sites) != set()


def test_a_cut_is_the_same_whether_sizes_are_known_or_not() -> None:
    static, dynamic = graph_of(masked_softmax()), graph_of(masked_softmax(), dynamic=True)
    assert dynamic.symbols
    site = lower(static, Plan()).site(WHERE)
    for graph in (static, dynamic):
        made = lower(graph, Plan(cuts=(site,)))
        assert (made.cut, bool(made.leaf_of(site))) == ((site,), True)


def test_a_cut_is_named_in_the_graph_that_holds_the_plans_native_ops() -> None:
    graph = graph_of(gelu_of_norm())
    native = ("aten.gelu.default",)
    default, kept = lower(graph, Plan()), lower(graph, Plan(native=native))
    assert default.sites != kept.sites
    site = kept.site("aten.sub.Tensor")
    made = lower(graph, Plan(native=native, cuts=(site,)))
    assert made.leaf_of(site)
    assert len(made.leaves) == len(kept.leaves) + 1


def test_under_the_cpp_wrapper_the_same_values_are_cut() -> None:
    graph = graph_of(masked_softmax())
    site = lower(graph, Plan()).site(WHERE)
    assert lower(graph, Plan(cuts=(site,)), cpp_wrapper=True).leaf_of(site)


def test_views_sums_and_what_the_graph_yields_or_a_library_computes_are_no_cuts() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scaled = torch.sin(x).view(8, 4).t() * 2
        total = scaled.sum(-1, keepdim=True)
        product = (scaled - total) @ w
        return product.cos() + 1, product.exp()

    sites = lower(graph_of((function, (random_numbers(4, 8), random_numbers(8, 8)))), Plan()).sites
    assert ops_of(sites) == ["aten.sin.default", "aten.mul.Tensor", "aten.sub.Tensor", "aten.cos.default"]


def test_what_is_made_or_read_by_what_the_compiler_cannot_see_into_is_no_cut() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        near = torch.sin(x) * 2
        made = torch.cond(x.sum() > 0, lambda x: torch.sin(x) * 2, lambda x: torch.cos(x) + 1, (near,))
        return (made + 1).cos() * x.exp().square()

    found = lower_program(function, (random_numbers(4, 8),), Plan(), drawn=lambda _: True)
    assert [site.partition(":")[2] for site in found.cut] == [
        "aten.sin.default",
        "aten.cos.default",
        "aten.exp.default",
        "aten.pow.Tensor_Scalar",
    ]
    within = [module for name, module in found.graph.named_children() if isinstance(module, torch.fx.GraphModule)]
    assert len(within) == 2
    assert not any("tuner_position" in node.meta for module in within for node in module.graph.nodes)


def test_next_to_a_collective_nothing_is_cut() -> None:
    from torch.distributed import _functional_collectives as collectives

    def function(x: torch.Tensor) -> torch.Tensor:
        reduced = collectives.all_reduce(torch.sin(x) + 1, "sum", torch.distributed.group.WORLD)
        return torch.cos(reduced * 2).square() * 3

    with hard_distributed.fake_ranks():
        found = lower_program(function, (random_numbers(4, 8),), Plan(), drawn=lambda _: True)
    assert ops_of(found.cut) == ["aten.sin.default", "aten.cos.default", "aten.pow.Tensor_Scalar"]
