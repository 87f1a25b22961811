"""Winners that cut: served, found again by a warm start, and where the graph has no such cut, compiled by default and counted."""

from __future__ import annotations

import pytest
import torch
from lowering import lower
from serving import Bench, pointwise_then_sum
from steps import Known, Step, known, scores, settle, train
from steps import inputs as step_inputs
from test_user_hooks import GraphPass
from torch._dynamo.utils import counters

from tuner.compilers.inductor.capture import capture
from tuner.compilers.inductor.hooks import InferenceAwareGraphPass, inductor_config
from tuner.plan import Plan
from tuner.search_spaces.fusion import no_fusion

pytestmark = pytest.mark.slow


def cutting(bench: Bench, *places: int) -> Plan:
    """The plan that makes these of the example's cuts."""
    sites = lower(bench.resolve(pointwise_then_sum()).graph, Plan()).sites
    return Plan(cuts=tuple(sorted(sites[place] for place in places)))


def test_a_winner_that_cuts_is_served_and_its_successor_is_no_stale_hit(bench: Bench) -> None:
    function, inputs = example = pointwise_then_sum()
    bench.run(example)
    for places in ((0,), (1,), (0, 1)):
        groups = bench.settle(example, cutting(bench, *places))
        outputs, report = bench.run(example)
        assert [(graph.outcome, graph.realised) for graph in report["served"]] == [("served", groups)]
        torch.testing.assert_close(outputs, function(*inputs))
        assert [graph.outcome for graph in bench.run(example)[1]["served"]] == ["served from cache"]


def test_a_cut_that_the_graph_does_not_have_is_counted_and_compiled_by_default(bench: Bench) -> None:
    function, inputs = example = pointwise_then_sum()
    bench.settle(example, Plan(cuts=("5000:aten.sin.default",)), groups=lower(bench.resolve(example).graph, Plan()).groups)
    outputs, report = bench.run(example)
    (graph,) = report["served"]
    assert (graph.outcome, graph.reason) == ("fallback", "no value of this graph can be cut as 5000:aten.sin.default")
    torch.testing.assert_close(outputs, function(*inputs))


def test_forward_and_backward_are_cut_and_grouped_also_in_another_thread(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = known(bench, scores, monkeypatch)
    plans = plans_of_step(graphs)
    settle(bench, graphs, plans)
    planned = train(bench, in_thread=True)
    assert planned.outcomes == [("forward", "served"), ("backward", "served")]
    assert {graph.phase: graph.realised for graph in planned.served} == {phase: plan.groups for phase, plan in plans.items()}
    torch.testing.assert_close(planned.values, Step(scores).gradients())


def plans_of_step(graphs: Known) -> dict[str, Plan]:
    """All cuts, and nothing fused."""
    (program,) = capture(scores, tuple(value.requires_grad_() for value in step_inputs()), phase="training")
    assert [graph.key for graph in program.graphs] == [query.workload_key for query in graphs.graphs.values()]
    plans = {}
    for graph in program.graphs:
        cut = Plan(cuts=tuple(sorted(lower(graph, Plan()).sites)))
        assert cut.cuts
        plans[graph.phase] = Plan(cuts=cut.cuts, groups=no_fusion(lower(graph, cut).groups))
    return plans


class Informed(InferenceAwareGraphPass):
    """Keeps what it is told, and whether anybody has numbered the nodes before."""

    def __init__(self) -> None:
        self.told: list[tuple[bool, bool]] = []

    def __call__(self, graph: torch.fx.Graph, is_inference: bool) -> None:
        self.told.append((is_inference, any("tuner_position" in node.meta for node in graph.nodes)))

    def uuid(self) -> str:
        return "informed"


def test_the_users_passes_over_the_graph_run_before_it_is_cut_and_are_in_the_caches_key(bench: Bench) -> None:
    example, misses = pointwise_then_sum(), []
    for name in ("one", "two"):
        plain, informed = GraphPass(name), Informed()
        with inductor_config.patch(post_grad_custom_post_pass=[plain, informed]):
            groups = bench.settle(example, cutting(bench, 0))
            plain.seen = 0
            informed.told.clear()
            (graph,) = bench.run(example)[1]["served"]
        assert (graph.outcome, graph.realised) == ("served", groups)
        assert (plain.seen, informed.told) == (1, [(True, False)])
        misses.append(counters["inductor"]["fxgraph_cache_miss"])
    assert misses == [1, 1]
