"""Three ways in which Inductor's compile caches hand out code that is not the plan's, each with its remedy, and without it.

The tests "without" show that the trap is there in this torch: where one fails, torch has closed the trap, and the remedy may go.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from lowering import lower
from serving import Bench, gelu_of_norm, pointwise_then_sum, realise
from steps import used_codes
from torch._guards import TracingContext, tracing
from torch._inductor.compile_fx import compile_fx_inner
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tuner.answer import ProgramAnswer
from tuner.compilers.inductor.apply import ForcedGroups, ReadBack, Realised, applied, code_key_of
from tuner.compilers.inductor.capture import capture
from tuner.compilers.inductor.cpp_code import cpp_flags
from tuner.compilers.inductor.cuts import CutPass
from tuner.compilers.inductor.doors import within_inner_step
from tuner.compilers.inductor.hooks import V, inductor_config
from tuner.plan import Plan
from tuner.search_spaces.fusion import no_fusion
from tuner.workload.fx import make_inputs, to_fx
from tuner.workload.graph import Graph

pytestmark = pytest.mark.slow


def compiled_code(graph: Graph, how: contextlib.AbstractContextManager[Any]) -> str:
    """Key of the code that Inductor returns for `graph`, with its FX cache on, whether compiled now or before."""
    # The cache is passed by where no shape environment is about.
    mode = FakeTensorMode(shape_env=ShapeEnv())
    inputs = [mode.from_tensor(value, static_shapes=True) for value in make_inputs(graph, 0)]
    with torch.no_grad(), tracing(TracingContext(mode)), how:
        compiled = compile_fx_inner(to_fx(graph), inputs, is_inference=True, graph_id=0)
    return code_key_of(compiled.source_code, cpp_flags(compiled.source_code))


@pytest.fixture
def graph(bench: Bench) -> Graph:
    return capture(*pointwise_then_sum())[0].graphs[0]


@pytest.fixture
def alone(graph: Graph) -> Plan:
    return Plan(groups=no_fusion(realise(graph, Plan())[1]))


@contextlib.contextmanager
def handler_alone(plan: Plan) -> Iterator[None]:
    """The plan, set as the thread's choices handler only: what is in no cache key."""
    assert plan.groups is not None
    realised = Realised({})
    choices = ForcedGroups(plan.groups, realised, "handler")
    with V.set_choices_handler(choices), _naming(realised):
        yield


@contextlib.contextmanager
def class_alone(plan: Plan) -> Iterator[None]:
    """The plan, set as the configured class only: in the key, but not looked at once a thread has its handler."""
    assert plan.groups is not None
    realised = Realised({})
    choices = ForcedGroups(plan.groups, realised, "class")
    with inductor_config.patch(inductor_choices_class=lambda: choices), _naming(realised):
        yield


def _naming(realised: Realised) -> contextlib.AbstractContextManager[Any]:
    """The pass that names leaves, under an uuid that says nothing of the plan."""
    return inductor_config.patch(_pre_fusion_custom_pass=ReadBack(realised, None, "names", after=False))


@contextlib.contextmanager
def default_with_names() -> Iterator[None]:
    with _naming(Realised({})):
        yield


def test_stale_hit_a_plan_is_not_answered_with_the_cached_default(graph: Graph, alone: Plan) -> None:
    wanted = realise(graph, alone)[2]
    default = compiled_code(graph, contextlib.nullcontext())
    assert compiled_code(graph, applied(alone, Realised({}))) == wanted != default
    assert compiled_code(graph, contextlib.nullcontext()) == default


def test_stale_hit_without_the_remedy(graph: Graph, alone: Plan) -> None:
    wanted = realise(graph, alone)[2]
    default = compiled_code(graph, default_with_names())
    assert compiled_code(graph, handler_alone(alone)) == default != wanted


def test_poisoned_key_a_plan_is_not_stored_as_the_default(graph: Graph, alone: Plan) -> None:
    wanted = realise(graph, alone)[2]
    compiled_code(graph, contextlib.nullcontext())
    read = Realised({})
    assert compiled_code(graph, applied(alone, read)) == wanted
    assert read.groups == alone.groups
    again = Realised({})
    assert compiled_code(graph, applied(alone, again)) == wanted
    assert again.groups is None, "the second time it was to come from the cache"


def test_poisoned_key_without_the_remedy(graph: Graph, alone: Plan) -> None:
    wanted = realise(graph, alone)[2]
    default = compiled_code(graph, default_with_names())
    assert compiled_code(graph, class_alone(alone)) == default != wanted


def two_cuts(graph: Graph) -> list[Plan]:
    sites = lower(graph, Plan()).sites
    return [Plan(cuts=(site,)) for site in (sites[0], sites[1])]


def test_stale_hit_a_cut_is_not_answered_with_another(graph: Graph) -> None:
    wanted = [lower(graph, plan).code for plan in two_cuts(graph)]
    assert len({*wanted, lower(graph, Plan()).code}) == 3
    compiled_code(graph, contextlib.nullcontext())
    assert [compiled_code(graph, applied(plan, Realised({}))) for plan in two_cuts(graph)] == wanted


def test_stale_hit_of_a_cut_without_the_remedy(graph: Graph) -> None:
    def cut_alone(plan: Plan) -> contextlib.AbstractContextManager[Any]:
        """The pass that cuts, under an uuid that says nothing of the plan."""

        def enter(gm: torch.fx.GraphModule, kwargs: Mapping[str, Any]) -> contextlib.AbstractContextManager[Any]:
            cutting = CutPass(gm, "inference", plan.cuts.__contains__, "cuts")
            return inductor_config.patch(post_grad_custom_post_pass=cutting)

        return within_inner_step(enter)

    one, other = two_cuts(graph)
    wanted = [lower(graph, plan).code for plan in (one, other)]
    assert compiled_code(graph, cut_alone(one)) == compiled_code(graph, cut_alone(other)) == wanted[0] != wanted[1]


@pytest.mark.parametrize("example", [pointwise_then_sum, gelu_of_norm])
def test_autograd_hit_a_new_winner_is_served_by_the_next_process(bench: Bench, example: Any) -> None:
    first = bench.run(example())[1]
    assert [graph.outcome for graph in first["served"]] == ["default"]
    (warm,) = bench.run(example())[1]["served"]
    assert (warm.outcome, warm.workload_key) == ("default from cache", first["served"][0].workload_key)
    plan = Plan(native=("aten.gelu.default",))
    if example is pointwise_then_sum:
        plan = Plan(groups=no_fusion(realise(bench.resolve(example()).graph, Plan())[1]))
    groups = bench.settle(example(), plan)
    outputs, planned = bench.run(example())
    assert [(graph.outcome, graph.realised) for graph in planned["served"]] == [("served", groups)]
    (warm,) = bench.run(example())[1]["served"]
    assert (warm.outcome, warm.winner, warm.tier) == ("served from cache", "plan", "exact")
    function, inputs = example()
    torch.testing.assert_close(outputs, function(*inputs))


def test_autograd_hit_without_the_remedy(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProgramAnswer, "plans_digest", "")
    with used_codes() as default:
        bench.run(pointwise_then_sum())
    bench.settle(pointwise_then_sum(), Plan(groups=no_fusion(realise(bench.resolve(pointwise_then_sum()).graph, Plan())[1])))
    with used_codes() as codes:
        (graph,) = bench.run(pointwise_then_sum())[1]["served"]
    assert (graph.outcome, codes) == ("served from cache", default), "a warm autograd cache never asks for the new winner"


def test_a_withdrawn_winner_leaves_no_plan_behind(bench: Bench) -> None:
    bench.settle(pointwise_then_sum(), Plan(groups=no_fusion(realise(bench.resolve(pointwise_then_sum()).graph, Plan())[1])))
    assert [graph.outcome for graph in bench.run(pointwise_then_sum())[1]["served"]] == ["served"]
    bench.settle(pointwise_then_sum(), Plan())
    (graph,) = bench.run(pointwise_then_sum())[1]["served"]
    assert (graph.outcome, graph.tier, graph.winner) == ("default", "exact", "default")
