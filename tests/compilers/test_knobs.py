"""Knobs reach the compiler by name and value; those with which this machine or its torch cannot run are refused beforehand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from serving import Bench, gelu_of_norm, pointwise_then_sum, realise
from torch._inductor import config

from tuner.compilers.inductor import apply
from tuner.compilers.inductor.capture import capture
from tuner.compilers.inductor.cpp_code import cpp_flags
from tuner.compilers.inductor.hooks import GraphLowering
from tuner.compilers.inductor.knobs import CANNOT_RUN, unrunnable
from tuner.errors import DuplicateCode, PlanError, PlanRefused
from tuner.plan import Plan
from tuner.search_spaces.inductor_knobs import knobs_for
from tuner.search_spaces.validate import check_plan
from tuner.workload.graph import Graph

TRIALS = [(name, value) for name, knob in knobs_for("cpu", 2, numerics=True).items() for value in knob.trials]


@pytest.fixture(scope="module")
def graph() -> Graph:
    return capture(*gelu_of_norm())[0].graphs[0]


@pytest.fixture
def lowered_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No C++ compiler runs: generated code is taken for a duplicate."""

    def end(code: str) -> None:
        raise DuplicateCode("any")

    monkeypatch.setattr(GraphLowering, "save_output_code", staticmethod(end))


@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_a_graph_is_lowered_under_every_knob(graph: Graph, lowered_only: None, trial: tuple[str, Any]) -> None:
    with pytest.raises(DuplicateCode):
        realise(graph, Plan(config=(trial,)))


def test_a_knob_is_in_force_while_the_graph_is_compiled_and_only_then(
    graph: Graph, lowered_only: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(apply.ReadBack, "__call__", lambda _, nodes: seen.append(config.cpp.max_horizontal_fusion_size) or nodes)
    with pytest.raises(DuplicateCode):
        realise(graph, Plan(config=(("cpp.max_horizontal_fusion_size", 3),)))
    assert set(seen) == {3}
    assert config.cpp.max_horizontal_fusion_size == 16


def test_every_trial_of_a_cpu_is_runnable_on_it() -> None:
    assert not [trial for trial in TRIALS if unrunnable([trial])]


@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_a_knob_leaves_alone_how_generated_code_is_compiled_when_a_warm_cache_loads_it(trial: tuple[str, Any]) -> None:
    # What the generated text must hold for `cpp_flags` to take it for one that holds C++.
    before = cpp_flags("cpp_pybinding(")
    assert "march=native" in before
    with config.patch(dict([trial])):
        assert cpp_flags("cpp_pybinding(") == before


def test_settings_that_do_not_are_no_knobs() -> None:
    before = cpp_flags("cpp_pybinding(")
    with config.patch({"cpp.enable_floating_point_contract_flag": "fast"}):
        assert cpp_flags("cpp_pybinding(") != before
    for name in ("cpp.enable_floating_point_contract_flag", "cpp.enable_unsafe_math_opt_flag", "cpp.simdlen"):
        with pytest.raises(PlanError, match="is not a declared knob"):
            check_plan(Plan(config=((name, 256),)))


@pytest.mark.parametrize(
    ("knob", "told"),
    [
        (("combo_kernels", True), "combo_kernels means nothing on cpu"),
        (("triton.max_tiles", 2), "triton.max_tiles means nothing on cpu"),
    ],
)
def test_what_this_machine_cannot_run_is_refused_before_anything_is_lowered(
    graph: Graph, lowered_only: None, knob: tuple[str, Any], told: str
) -> None:
    assert told in unrunnable([("realize_reads_threshold", 2), knob])
    with pytest.raises(PlanRefused, match=told) as caught:
        realise(graph, Plan(config=(knob,)))
    assert caught.value.why == CANNOT_RUN


def test_a_knob_that_this_torch_lacks_is_refused(graph: Graph, lowered_only: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(config._config, "loop_reindexing_after_fusion")
    with pytest.raises(PlanRefused, match=r"this torch has no setting torch._inductor.config.loop_reindexing_after_fusion"):
        realise(graph, Plan(config=(("loop_reindexing_after_fusion", False),)))


@pytest.mark.slow
def test_a_winner_with_a_knob_that_cannot_be_run_here_costs_the_plan_and_not_the_compile(bench: Bench) -> None:
    example = pointwise_then_sum()
    bench.settle(example, Plan(config=(("combo_kernels", True),)), groups=(("0:64|128:ComputedBuffer.Pointwise:0",),))
    outputs, report = bench.run(example)
    function, inputs = example
    for ours, eager in zip(outputs, function(*inputs), strict=True):
        torch.testing.assert_close(ours, eager)
    assert [served.outcome for served in report["served"]] == ["fallback"]
    assert "combo_kernels means nothing on cpu" in report["served"][0].reason
