"""What a warm start keeps, counts and tells: AOTAutograd's cache answers, and no graph passes the inner step."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from serving import Bench, gelu_of_norm, pointwise_then_sum, realise
from steps import alone, known, scores, settle, train
from torch._dynamo import pgo
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

import tuner
from tuner.compilers.inductor.events import Served
from tuner.compilers.inductor.hooks import cache_dir, compiler_config, dynamo_config
from tuner.compilers.inductor.pinned import Pinned
from tuner.plan import Plan
from tuner.search_spaces.fusion import no_fusion

pytestmark = pytest.mark.slow


def hits() -> tuple[int, int]:
    """How often AOTAutograd's and Inductor's own cache answered in this process."""
    return counters["aot_autograd"]["autograd_cache_hit"], counters["inductor"]["fxgraph_cache_hit"]


def binaries() -> set[Path]:
    return set(Path(cache_dir()).rglob("*.so"))


def no_fusion_plan(bench: Bench) -> Plan:
    return Plan(groups=no_fusion(realise(bench.resolve(pointwise_then_sum()).graph, Plan())[1]))


def test_an_unrelated_winner_invalidates_nothing_and_a_hit_is_counted(bench: Bench) -> None:
    bench.settle(pointwise_then_sum(), no_fusion_plan(bench))
    bench.run(pointwise_then_sum())
    # another graph of the same target, toolchain and settings
    bench.settle(gelu_of_norm(), Plan(native=("aten.gelu.default",)))
    _, report = bench.run(pointwise_then_sum())
    assert hits() == (1, 1)
    (graph,) = report["served"]
    assert (graph.outcome, graph.tier, graph.winner) == ("served from cache", "exact", "plan")
    assert report["counts"] == {"program": 1, "served from cache": 1}


def test_a_plan_with_a_knob_runs_the_same_binaries_from_a_warm_cache(bench: Bench) -> None:
    bench.settle(pointwise_then_sum(), Plan(config=(("max_fusion_size", 1),)))
    # What settling compiled is not what serving compiles.
    with fresh_cache():
        cold, report = bench.run(pointwise_then_sum())
        assert [graph.outcome for graph in report["served"]] == ["served"]
        before = binaries()
        warm, report = bench.run(pointwise_then_sum())
        assert [graph.outcome for graph in report["served"]] == ["served from cache"]
        assert before
        # Other flags would make another: its name holds them.
        assert binaries() == before
    assert all(torch.equal(one, other) for one, other in zip(cold, warm, strict=True))


def test_an_unrelated_winner_without_the_remedy(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pinned, "tag", property(lambda self: f"generation {self.answer.generation}"))
    bench.settle(pointwise_then_sum(), no_fusion_plan(bench))
    bench.run(pointwise_then_sum())
    bench.run(pointwise_then_sum())
    assert hits()[0] == 1
    bench.settle(gelu_of_norm(), Plan())
    bench.run(pointwise_then_sum())
    assert hits()[0] == 0, "where the store's age is in the key, every winner invalidates every program"


def test_a_new_winner_of_the_backward_leaves_the_forwards_entry_valid(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = known(bench, scores, monkeypatch)
    settle(bench, graphs, alone(graphs, "forward"))
    before = train(bench)
    assert before.outcomes == [("forward", "served"), ("backward", "default")]
    settle(bench, graphs, alone(graphs, "forward", "backward"))
    after = train(bench)
    assert hits() == (0, 1)
    assert after.outcomes == [("forward", "served"), ("backward", "served")]
    assert (after.codes[0], after.served[0].realised) == (before.codes[0], None)


def test_programs_and_graphs_stand_in_the_structured_trace_also_when_warm(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    plan = no_fusion_plan(bench)
    bench.settle(pointwise_then_sum(), plan)
    caplog.set_level(logging.DEBUG, "torch.__trace")
    for warm in (False, True):
        caplog.clear()
        _, report = bench.run(pointwise_then_sum())
        told = {"tuner_program": [], "tuner_graph": []}
        for record in caplog.records:
            name = getattr(record, "metadata", {}).get("artifact", {}).get("name")
            if name in told:
                told[name].append(json.loads(record.payload))
        (program,), (graph,) = told["tuner_program"], told["tuner_graph"]
        (served,) = report["served"]
        assert program["answered_by_compile_caches"] == warm
        assert (program["program_key"], program["generation"]) == (served.program_key, 1)
        assert [(one["tier"], one["plan"]) for one in program["graphs"]] == [("exact", plan.describe())]
        assert (graph["workload_key"], graph["outcome"]) == (served.workload_key, served.outcome)


def test_the_report_is_of_this_process(bench: Bench) -> None:
    bench.run(pointwise_then_sum())
    bench.run(pointwise_then_sum())
    assert [graph.outcome for graph in tuner.report()["served"]] == ["default from cache"]


def test_a_profile_of_sizes_outlives_an_unrelated_winner(bench: Bench) -> None:
    function = pointwise_then_sum()[0]
    inputs = [torch.ones(rows, 32) for rows in (8, 9)]

    def process(*calls: torch.Tensor) -> list[Served]:
        bench.new_process()
        pgo.reset_code_state()
        compiled = torch.compile(function, backend="tuner")
        with torch.no_grad():
            for value in calls:
                compiled(value, value)
        return tuner.report()["served"]

    with compiler_config.patch(job_id="test"), dynamo_config.patch(automatic_dynamic_local_pgo=True):
        fixed, symbolic = process(*inputs)
        bench.settle(gelu_of_norm(), Plan(native=("aten.gelu.default",)))
        (again,) = process(inputs[0])
        with compiler_config.patch(cache_key_tag="generation 1"):
            (forgotten,) = process(inputs[0])
    assert fixed.workload_key != symbolic.workload_key
    assert (again.outcome, again.workload_key) == ("default from cache", symbolic.workload_key)
    assert forgotten.workload_key == fixed.workload_key, "a tag for the whole process is in the profile's key"
