"""The final of a whole callable with real processes: what it times is what a user of the store gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stored import winner

from tuner.measurement import Policy, Winner
from tuner.plan import Plan, canonical_groups
from tuner.search.bench import Bench
from tuner.search.effort import EFFORTS
from tuner.search.whole import MAX_ERROR, hold_whole_final, plans_of
from tuner.search.workloads import Resolved, resolve
from tuner.search_spaces.fusion import no_fusion
from tuner.workers.process import Worker

pytestmark = pytest.mark.slow
POLICY = Policy.for_cpu(1)
SPECS = """
import torch

def broken_graph():
    def function(x):
        y = torch.softmax(torch.sin(x), -1) * 2
        torch._dynamo.graph_break()
        return torch.softmax(y + 1, -1), x.add_(1)
    return function, (torch.randn(32, 64),)

def step():
    # All of it would cancel in a sum: what is compared is more than rounding.
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.Dropout(0.5), torch.nn.Softmax(-1)), (torch.randn(32, 64),)
"""


def unfused(graphs: list[Resolved]) -> dict[str, Winner]:
    """A winner for each graph, by exact-match key: every leaf a kernel of its own, as the compiler realises it."""
    winners = {}
    with Bench(POLICY, seed=0) as bench:
        for graph in graphs:
            groups = canonical_groups(bench.open(graph)["realised"])
            plan = Plan(groups=no_fusion(groups))
            verdict = bench.try_plan(plan, plan.groups, ())
            assert verdict["status"] == "ok"
            winners[graph.query.exact_key] = winner(graph.query, plan, groups=canonical_groups(verdict["realised"]))
    return winners


def test_the_plans_of_all_graphs_are_served_and_timed_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "specs.py").write_text(SPECS)
    spec = f"{tmp_path / 'specs.py'}:broken_graph"
    graphs = resolve(spec, threads=1, forms=lambda _: None, find=lambda _: [])
    assert len(graphs) == 2
    winners = unfused(graphs)
    told: list[Any] = []

    class Recorded(Worker):
        def ask(self, timeout_s: float, **request: Any) -> Any:
            told.append(super().ask(timeout_s, **request))
            return told[-1]

    monkeypatch.setattr("tuner.search.whole.Worker", Recorded)
    # One process, for the sake of the test's time: what it says of the speed-up is nobody's business here.
    finals = hold_whole_final(spec, graphs, winners, POLICY, replace(EFFORTS["quick"], looks=(1,), final_samples=5, patience=0))
    opened, timed = told
    assert [outcome for _, outcome, *_ in opened["outcomes"]] == ["served"] * 2
    assert {key for key, *_ in opened["outcomes"]} == {graph.query.workload_key for graph in graphs}
    assert 0 <= opened["error"] <= MAX_ERROR
    assert [final.query for final in finals] == [graph.program_query for graph in graphs]
    assert [final.plans for final in finals] == [plans_of([graph], winners) for graph in graphs]
    for final in finals:
        assert final.verdict in ("confirmed", "vetoed")
        assert (final.evidence["processes"], final.evidence["samples_per_process"]) == (1, 5)
        assert final.speedup_low <= final.speedup <= final.speedup_high
        assert final.speedup == pytest.approx(final.default_ms / final.planned_ms)
    assert set(timed["times"]) == {"default", "planned"}


def test_of_what_trains_a_step_is_timed_and_both_its_graphs_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "specs.py").write_text(SPECS)
    spec = f"{tmp_path / 'specs.py'}:step"
    graphs = resolve(spec, threads=1, forms=lambda _: None, find=lambda _: [])
    assert [graph.graph.phase for graph in graphs] == ["forward", "backward"]
    winners = unfused(graphs)
    # Raises where a plan was not served; where a gradient differs, the evidence says so.
    (final,) = hold_whole_final(spec, graphs, winners, POLICY, replace(EFFORTS["quick"], looks=(1,), final_samples=5, patience=0))
    assert "error" not in final.evidence
    assert final.plans == plans_of(graphs, winners)
