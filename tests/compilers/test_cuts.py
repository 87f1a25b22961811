"""Cuts: values put into memory within what would be one leaf. Named, made, refused where there may be none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lowering import lower
from serving import Example, pointwise_then_sum, realise

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


def test_a_cut_puts_the_value_into_memory_as_a_leaf_of_its_own() -> None:
    graph = graph_of(masked_softmax())
    default = lower(graph, Plan())
    site = default.site(WHERE)
    assert not any(leaf.startswith(f"{site.partition(':')[0]}:") for leaf in default.leaves)
    made = lower(graph, Plan(cuts=(site,)))
    assert made.cut == (site,)
    assert any(leaf.startswith(f"{site.partition(':')[0]}:") for leaf in made.leaves)
    assert (len(made.leaves), made.code != default.code) == (len(default.leaves) + 1, True)
    assert made.sites == default.sites


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
    assert any(leaf.startswith(f"{site.partition(':')[0]}:") for (leaf,) in alone)


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
