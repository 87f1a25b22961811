"""torch.compile(backend="tuner"): what is served, what is compiled by default, and that no build breaks."""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from serving import Bench, Example, gelu_of_norm, pointwise_then_sum, realise
from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache

import tuner
from tuner.answer import Answer, ProgramAnswer
from tuner.cache.sqlite import SqliteStore
from tuner.compilers.inductor import backend, capture, doors, pinned
from tuner.compilers.inductor.hooks import compiler_config
from tuner.lookup.client import Client
from tuner.plan import Plan
from tuner.search_spaces.fusion import no_fusion

pytestmark = pytest.mark.slow
KNOB = Plan(config=(("realize_opcount_threshold", 1),))
GELU = Plan(native=("aten.gelu.default",))


def no_fusion_plan(bench: Bench) -> Plan:
    return Plan(groups=no_fusion(realise(bench.resolve(pointwise_then_sum()).graph, Plan())[1]))


def outcome(report: dict) -> tuple[str, str]:
    (graph,) = report["served"]
    return graph.outcome, graph.tier


@pytest.mark.parametrize(("example", "plan"), [(pointwise_then_sum, None), (pointwise_then_sum, KNOB), (gelu_of_norm, GELU)])
def test_a_stored_winner_is_served_with_the_groups_that_were_stored(bench: Bench, example: object, plan: Plan | None) -> None:
    assert callable(example)
    groups = bench.settle(example(), plan or no_fusion_plan(bench))
    outputs, report = bench.run(example())
    (graph,) = report["served"]
    assert (graph.outcome, graph.tier, graph.winner, graph.source) == ("served", "exact", "plan", "store")
    assert graph.realised == groups
    function, inputs = example()
    torch.testing.assert_close(outputs, function(*inputs))


def test_without_a_store_everything_is_compiled_by_default(bench: Bench) -> None:
    outputs, report = bench.run(pointwise_then_sum())
    assert outcome(report) == ("default", "default")
    function, inputs = pointwise_then_sum()
    torch.testing.assert_close(outputs, function(*inputs))


def test_a_graph_that_another_program_was_swept_for_is_served(bench: Bench) -> None:
    groups = bench.settle(pointwise_then_sum(), no_fusion_plan(bench))
    function, inputs = pointwise_then_sum()

    def other_program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return function(x.view(64, 128), torch.Tensor.contiguous(y))

    _, report = bench.run((other_program, inputs))
    (graph,) = report["served"]
    assert (graph.outcome, graph.realised) == ("served", groups)


def test_a_native_plan_of_another_program_is_not_applied_in_part(bench: Bench) -> None:
    bench.settle(gelu_of_norm(), GELU)
    function, inputs = gelu_of_norm()
    _, report = bench.run((lambda x: function(x.view(32, 128)), inputs))
    (graph,) = report["served"]
    assert graph.outcome == "default"
    assert "sweep this program" in graph.reason


def test_tuner_disable_asks_nobody(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.settle(pointwise_then_sum(), no_fusion_plan(bench))
    monkeypatch.setenv("TUNER_DISABLE", "1")
    _, report = bench.run(pointwise_then_sum())
    assert report["served"] == []
    assert report["counts"]["default: disabled"] == 1


def test_a_program_with_symbolic_sizes_is_looked_up_by_its_key(bench: Bench) -> None:
    bench.new_process()
    compiled = torch.compile(lambda x: torch.tanh(x) * 2, backend="tuner", dynamic=True)
    with torch.no_grad():
        for rows in (8, 9, 10):
            x = torch.randn(rows, 32)
            torch.testing.assert_close(compiled(x), torch.tanh(x) * 2)
    assert tuner.report()["counts"] == {"program": 1, "default": 1}
    assert len(tuner.report()["served"][0].workload_key) == 64


def test_a_users_setting_makes_another_exact_match(bench: Bench) -> None:
    bench.settle(pointwise_then_sum(), no_fusion_plan(bench))
    _, report = bench.run(pointwise_then_sum(), options={"epilogue_fusion": False})
    (graph,) = report["served"]
    assert (graph.outcome, graph.tier) == ("default", "default")


def test_a_miss_by_thread_count_says_so(bench: Bench) -> None:
    bench.settle(pointwise_then_sum(), no_fusion_plan(bench))
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        _, report = bench.run(pointwise_then_sum())
    finally:
        torch.set_num_threads(threads)
    (graph,) = report["served"]
    assert graph.outcome == "default"
    assert "thread" in graph.reason


def test_groups_that_do_not_come_out_as_stored_are_not_served(bench: Bench) -> None:
    plan = no_fusion_plan(bench)
    assert plan.groups is not None
    first, second, *rest = plan.groups
    bench.settle(pointwise_then_sum(), KNOB, groups=((*first, *second), *rest))
    outputs, report = bench.run(pointwise_then_sum())
    (graph,) = report["served"]
    assert (graph.outcome, graph.reason) == ("fallback", "not realised")
    function, inputs = pointwise_then_sum()
    torch.testing.assert_close(outputs, function(*inputs))
    # and what was compiled instead is in no cache under the plan's name
    assert [graph.outcome for graph in bench.run(pointwise_then_sum())[1]["served"]] == ["fallback"]


@pytest.mark.parametrize(
    "edit",
    [
        {"config": {"cpp.cxx": "/tmp/evil"}},
        {"config": {"realize_opcount_threshold": -5}},
        {"native": ["aten.add.Tensor"]},
        {"compiler": "shell"},
        {"surprise": 1},
    ],
)
def test_a_plan_that_does_not_validate_is_never_applied(bench: Bench, edit: dict) -> None:
    bench.settle(pointwise_then_sum(), KNOB)
    with sqlite3.connect(bench.store) as connection:
        plan = {**json.loads(connection.execute("SELECT plan FROM winners").fetchone()[0]), **edit}
        connection.execute("UPDATE winners SET plan = ?", [json.dumps(plan)])
    connection.close()
    outputs, report = bench.run(pointwise_then_sum())
    (graph,) = report["served"]
    assert (graph.outcome, graph.tier) == ("default", "default")
    function, inputs = pointwise_then_sum()
    torch.testing.assert_close(outputs, function(*inputs))


def test_a_store_that_is_not_a_database_does_not_break_the_build(bench: Bench) -> None:
    bench.store.write_bytes(b"garbage" * 1000)
    outputs, report = bench.run(pointwise_then_sum())
    assert outcome(report) == ("default", "default")
    function, inputs = pointwise_then_sum()
    torch.testing.assert_close(outputs, function(*inputs))
    assert bench.store.read_bytes() == b"garbage" * 1000


def test_an_error_of_ours_does_not_break_the_build(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> str:
        raise RuntimeError("a bug in the tuner")

    monkeypatch.setattr(backend, "program_key", broken)
    outputs, report = bench.run(pointwise_then_sum())
    assert report["counts"]["default: look-up error"] == 1
    function, inputs = pointwise_then_sum()
    torch.testing.assert_close(outputs, function(*inputs))


def test_a_plan_that_makes_the_compiler_fail_is_compiled_by_default(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.settle(gelu_of_norm(), GELU)

    def broken(*_: object) -> object:
        raise RuntimeError("no such decomposition")

    monkeypatch.setattr(pinned, "late_decompose", broken)
    outputs, _ = bench.run(gelu_of_norm())
    function, inputs = gelu_of_norm()
    torch.testing.assert_close(outputs, function(*inputs))


def test_an_error_of_the_users_is_his_own(bench: Bench) -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(3, 3)

    with pytest.raises(Exception, match=r"(?i)size|shape|mat"):
        bench.run((wrong, (torch.ones(2, 2),)))


def test_read_back_reports_the_groups_of_a_settled_default(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = bench.settle(pointwise_then_sum(), Plan())
    monkeypatch.setenv("TUNER_READ_BACK", "1")
    (graph,) = bench.run(pointwise_then_sum())[1]["served"]
    assert (graph.outcome, graph.tier, graph.realised) == ("default", "exact", groups)


def test_groups_read_back_are_those_of_the_graph_and_not_of_a_branch_of_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        made = torch.cond(x.sum() > 0, lambda x: torch.sin(x) + 1, lambda x: torch.softmax(x, -1), (x,))
        return torch.softmax(made, -1)

    monkeypatch.setenv("TUNER_READ_BACK", "1")
    (graph,) = bench.run((function, (torch.ones(8, 8),)))[1]["served"]
    assert graph.outcome == "default"
    leaves = [leaf for group in graph.realised for leaf in group]
    assert len([leaf for leaf in leaves if "Conditional" in leaf]) == 1


@pytest.mark.parametrize(("spent_s", "reason"), [(1000.0, "deadline"), (0.0, "store")])
def test_why_nothing_is_known_is_said_truly(bench: Bench, spent_s: float, reason: str) -> None:
    bench.store.write_bytes(b"garbage" * 1000)
    backend.client().spent_s = spent_s
    with torch.no_grad():
        torch.compile(lambda x: x + 1, backend="tuner")(torch.ones(4))
    (graph,) = tuner.report()["served"]
    assert graph.outcome == "default"
    assert reason in graph.reason
    assert graph.reason != pinned.NO_STORE


def test_a_mutated_input_is_mutated_by_served_code_too(bench: Bench) -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(0.5).add_(torch.sin(y))
        return (x * y).sum(-1)

    inputs = pointwise_then_sum()[1]
    bench.settle((step, inputs), Plan(groups=no_fusion(realise(bench.resolve((step, inputs)).graph, Plan())[1])))
    bench.new_process()
    with torch.no_grad():
        mine, reference = inputs[0].clone(), inputs[0].clone()
        output = torch.compile(step, backend="tuner")(mine, inputs[1])
        torch.testing.assert_close(output, step(reference, inputs[1]))
        torch.testing.assert_close(mine, reference)
    assert [graph.outcome for graph in tuner.report()["served"]] == ["served"]


def test_unrelated_winners_leave_warm_caches_warm(bench: Bench) -> None:
    bench.settle(pointwise_then_sum(), no_fusion_plan(bench))
    bench.run(pointwise_then_sum())
    bench.settle(gelu_of_norm(), GELU)
    assert outcome(bench.run(pointwise_then_sum())[1]) == ("served from cache", "exact")


def test_the_store_is_only_read(bench: Bench, tmp_path: Path) -> None:
    bench.settle(pointwise_then_sum(), no_fusion_plan(bench))
    before = bench.store.read_bytes()
    bench.run(pointwise_then_sum())
    assert bench.store.read_bytes() == before
    with SqliteStore(bench.store) as store:
        assert store.counts()["measurements"] == 0


def test_equal_graphs_of_one_process_are_compiled_alike(bench: Bench) -> None:
    groups = bench.settle(pointwise_then_sum(), no_fusion_plan(bench))
    bench.new_process()
    function, inputs = pointwise_then_sum()
    with torch.no_grad():
        torch.compile(function, backend="tuner")(*inputs)
        torch.compile(lambda a, b: function(a, b), backend="tuner")(*inputs)
    served = [replace(graph, program_key="") for graph in tuner.report()["served"]]
    assert {graph.realised for graph in served} <= {groups, None}
    assert all(graph.outcome == "served" for graph in served)


def other_program() -> Example:
    """Another program with the graph of `pointwise_then_sum`."""
    function, inputs = pointwise_then_sum()
    return (lambda x, y: function(x.view(64, 128), y)), inputs


def test_a_look_up_that_fails_leaves_nothing_in_the_compile_caches(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.settle(pointwise_then_sum(), no_fusion_plan(bench))
    with monkeypatch.context() as patch:
        patch.setattr(Client, "lookup", lambda *_: Answer(Plan(), "default", 0, "the deadline is used up"))
        assert outcome(bench.run(other_program())[1]) == ("default", "default")
    assert outcome(bench.run(other_program())[1]) == ("served", "exact")


def test_winners_that_are_defaults_leave_the_caches_of_unknown_programs_warm(bench: Bench) -> None:
    bench.settle(pointwise_then_sum(), no_fusion_plan(bench))
    stranger = (lambda x: torch.tanh(x) * 3, (torch.randn(16, 16),))
    bench.run(stranger)
    bench.settle(gelu_of_norm(), Plan())
    assert outcome(bench.run(stranger)[1]) == ("default from cache", "default")


def test_a_graph_with_constant_tensors_is_served(bench: Bench) -> None:
    constant = torch.linspace(0, 1, 128)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.sin(x) + torch.tensor([0.5, -0.5] * 64) * constant, -1)

    example = (function, (torch.randn(64, 128),))
    bench.settle(example, KNOB)
    outputs, report = bench.run(example)
    assert outcome(report) == ("served", "exact")
    torch.testing.assert_close(outputs, function(*example[1]))


def test_native_ops_are_served_where_patterns_match_on_decomposed_ones(bench: Bench) -> None:
    example = (lambda x: torch.nn.functional.gelu(torch.softmax(x * 0.125, -1)), (torch.randn(64, 128),))
    assert bench.resolve(example).graph.native_form is not None
    bench.settle(example, GELU)
    assert outcome(bench.run(example)[1]) == ("served", "exact")


def test_where_native_ops_do_not_lead_back_to_the_graph_none_is_offered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "late_decompose", lambda gm, keep: gm)
    assert bench.resolve(gelu_of_norm()).graph.native_form is None


def test_a_native_winner_of_a_graph_that_is_not_met_is_compiled_by_default(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.settle(gelu_of_norm(), GELU)
    monkeypatch.setattr(ProgramAnswer, "native", ("aten.silu.default",))
    stored = ProgramAnswer(True, 1, {"another graph": Answer(Plan(native=("aten.silu.default",)), "exact", 1, "")})
    monkeypatch.setattr(Client, "program", lambda *_: stored)
    outputs, report = bench.run(gelu_of_norm())
    assert report["counts"]["default: not pinned"] == 1
    function, inputs = gelu_of_norm()
    torch.testing.assert_close(outputs, function(*inputs))


def test_a_users_addition_to_the_caches_key_is_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.settle(pointwise_then_sum(), no_fusion_plan(bench))
    tags = []
    load = AOTAutogradCache.try_load

    def try_load(*args: Any, **kwargs: Any) -> Any:
        tags.append(compiler_config.cache_key_tag)
        return load(*args, **kwargs)

    monkeypatch.setattr(AOTAutogradCache, "try_load", try_load)
    with compiler_config.patch(cache_key_tag="mine"):
        assert outcome(bench.run(pointwise_then_sum())[1]) == ("served", "exact")
    (tag,) = tags
    assert tag.startswith("mine-tuner-")


def test_a_torch_without_our_hooks_compiles_by_default(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tuner.compilers.inductor.backend", None)
        doors._compile_program.cache_clear()
        function, inputs = pointwise_then_sum()
        with torch.no_grad():
            torch.testing.assert_close(torch.compile(function, backend="tuner")(*inputs), function(*inputs))
        assert tuner.report()["counts"] == {}
    doors._compile_program.cache_clear()


def test_a_failing_read_back_does_not_break_the_build(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> object:
        raise KeyError("op7")

    monkeypatch.setenv("TUNER_READ_BACK", "1")
    monkeypatch.setattr("tuner.compilers.inductor.apply.realised_groups", broken)
    outputs, report = bench.run(pointwise_then_sum())
    (graph,) = report["served"]
    assert graph.outcome == "fallback"
    function, inputs = pointwise_then_sum()
    torch.testing.assert_close(outputs, function(*inputs))


def test_threads_that_compile_at_once_are_each_served(bench: Bench) -> None:
    groups = [bench.settle(pointwise_then_sum(), no_fusion_plan(bench)), bench.settle(gelu_of_norm(), GELU)]
    bench.new_process()
    errors = []

    def work(example: Example) -> None:
        try:
            function, inputs = example
            with torch.no_grad():
                torch.testing.assert_close(torch.compile(function, backend="tuner")(*inputs), function(*inputs))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=[example()]) for example in (pointwise_then_sum, gelu_of_norm)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert {graph.realised for graph in tuner.report()["served"]} == set(groups)
