"""The graphs of a training program in a measuring process: each checked, then run one after the other."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from tuner.compilers.inductor.capture import capture
from tuner.compilers.marks import marked
from tuner.errors import PlanNotRealised
from tuner.measure.device import open_device
from tuner.measurement import Policy
from tuner.plan import Plan, canonical_groups
from tuner.search_spaces.fusion import no_fusion
from tuner.workers.sequence import GraphSequence
from tuner.workers.session import Session
from tuner.workload.graph import Graph
from tuner.workload.shapes import Dim

pytestmark = pytest.mark.slow
POLICY = Policy.for_cpu(1)


@pytest.fixture(scope="module")
def graphs() -> list[Graph]:
    """Forward and backward, as they come out of a store; the backward holds outputs that are None."""
    torch.manual_seed(0)
    layer = nn.Sequential(nn.LayerNorm(64), nn.GELU())
    (program,) = capture(layer, (torch.randn(32, 64),), phase="training")
    return [Graph.from_json(json.loads(json.dumps(graph.to_json()))) for graph in program.graphs]


@torch.no_grad()
def test_forward_and_backward_are_checked_against_eager_and_candidates_are_found_right(graphs: list[Graph]) -> None:
    rows = []
    for graph in graphs:
        session = Session(graph, 1, POLICY, open_device("cpu"))
        default = session.describe_default()
        assert default["checkable"]
        assert default["error"] < 1
        groups = no_fusion(canonical_groups(default["realised"]))
        assert session.try_plan(Plan(groups=groups), groups, ())["status"] == "ok"
        rows.append({"graph": graph.to_json(), "plan": Plan(groups=groups).to_json(), "groups": groups, "sizes": []})
    sequence = GraphSequence(rows, 5, POLICY, open_device("cpu"))
    told = sequence.describe_default()
    assert told["compile_s"] > 0
    assert told["error"] is not None
    assert told["error"] <= 1
    assert told["outcomes"] == [[graph.key, "served"] for graph in graphs]
    times = sequence.time_plans([], samples=3, seed=0, patience=0)["times"]
    assert {name: len(samples) for name, samples in times.items()} == {"default": 3, "planned": 3}


@torch.no_grad()
def test_a_plan_that_is_not_realised_ends_it(graphs: list[Graph]) -> None:
    row = {"graph": graphs[0].to_json(), "plan": Plan(groups=(("0:1|:X:0",),)).to_json(), "groups": [["0:1|:X:0"]], "sizes": []}
    with pytest.raises(PlanNotRealised):
        GraphSequence([row], 5, POLICY, open_device("cpu"))


@torch.no_grad()
def test_graphs_whose_sizes_vary_are_run_at_each_of_them() -> None:
    function, x = lambda x: torch.softmax(x * 2, -1).sum(0), torch.ones(8, 16)
    ((varying,),) = [one.graphs for one in capture(function, marked((x,), [Dim("n", (8,), ((0, 0),))]), None)]
    ((fixed,),) = [one.graphs for one in capture(function, (x,))]
    rows = [
        {"graph": varying.to_json(), "plan": Plan(compiler="eager").to_json(), "groups": None, "sizes": [[4], [40]]},
        {"graph": fixed.to_json(), "plan": Plan().to_json(), "groups": None, "sizes": []},
    ]
    sequence = GraphSequence(rows, 5, replace(POLICY, sizes=((4,), (40,))), open_device("cpu"))
    told = sequence.describe_default()
    assert told["error"] <= 1
    assert told["outcomes"] == [[varying.key, "served"]]
    assert [[one.timed.values[0].shape[0] for one in each.sized] for each in sequence.passes] == [[4, 8], [40, 8]]
    times = sequence.time_plans([], samples=3, seed=0, patience=0)["times"]
    assert {name: len(samples) for name, samples in times.items()} == {"default": 6, "planned": 6}
