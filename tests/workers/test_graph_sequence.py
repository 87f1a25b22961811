"""The graphs of a training program in a measuring process: each checked, then run one after the other."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from tuner.compilers.inductor.capture import capture
from tuner.errors import PlanNotRealised
from tuner.measure.device import open_device
from tuner.measurement import Policy
from tuner.plan import Plan, canonical_groups
from tuner.search_spaces.fusion import no_fusion
from tuner.workers.sequence import GraphSequence
from tuner.workers.session import Session
from tuner.workload.graph import Graph

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
