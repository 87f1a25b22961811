"""What a compile that misses gives to a daemon that wants it, and that it is never in the way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from serving import Example, gelu_of_norm
from steps import Step, scores
from torch._dynamo.utils import counters
from torch._inductor.runtime.runtime_utils import cache_dir

import tuner
from tuner.answer import ProgramAnswer
from tuner.compilers.inductor import memo
from tuner.compilers.inductor import report as report_module
from tuner.lookup.client import Client
from tuner.settings import Settings
from tuner.target import Query
from tuner.workload.fx import UNSEEN
from tuner.workload.miss_report import MissReport

pytestmark = pytest.mark.slow
Given = list[MissReport]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Given:
    """The reports that a daemon is given, which wants every program that it does not know, and takes all."""
    reports: Given = []
    ask = Client.program

    def program(self: Client, query: Query) -> ProgramAnswer:
        answer = ask(self, query)
        return replace(answer, wanted=not answer.settled)

    def take(self: Client, report: MissReport) -> str:
        reports.append(MissReport.from_json(json.loads(json.dumps(report.to_json()))))
        return ""

    monkeypatch.setattr(Client, "program", program)
    monkeypatch.setattr(Client, "report", take)
    monkeypatch.setattr(report_module, "_spent_s", 0.0)
    return reports


class Layer(torch.nn.Module):
    """Parameters, one of them of few runs, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.weight = torch.nn.Parameter(torch.randn(64, generator=generator), requires_grad=False)
        self.steps = torch.nn.Parameter(STEPS.clone(), requires_grad=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x * self.weight + self.steps) * mask


STEPS = torch.tensor([3.25, 7.5]).repeat_interleave(32)


def layer() -> Example:
    """With noise and a mask of few runs."""
    return Layer(), (torch.randn(16, 64, generator=torch.Generator().manual_seed(3)), torch.ones(16, 64).tril())


def adds_in_place() -> Example:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return torch.sin(x)

    return function, (torch.zeros(8, 8),)


@pytest.mark.parametrize("example", [gelu_of_norm, layer, adds_in_place])
def test_a_report_says_what_a_capture_says(bench, given, example):
    made = example()
    function, inputs = made
    expected = function(*(value.clone() for value in inputs))
    outputs, report = bench.run(made)
    torch.testing.assert_close(outputs, expected)
    captured = bench.resolve(made)
    (told,) = given
    assert captured.program_query is not None
    assert told.program.exact_key == captured.program_query.exact_key
    assert [query.exact_key for query in told.queries] == [captured.query.exact_key]
    assert [graph.to_json() for graph in told.graphs] == [captured.graph.to_json()]
    assert report["counts"] == {"program": 1, "default": 1, "miss reported": 1}


def test_of_parameters_the_content_is_never_told(bench, given):
    bench.run(layer())
    (told,) = given
    (graph,) = told.graphs
    whole = {seen.runs is not None for i, seen in enumerate(graph.data) if i in graph.static_inputs}
    assert whole == {False}
    assert any(seen.runs is not None for seen in graph.data)
    assert "3.25, 32" not in json.dumps(told.to_json())


def test_of_a_parameter_that_is_no_modules_neither(bench, given):
    steps = torch.nn.Parameter(STEPS.clone(), requires_grad=False)
    bench.run((lambda x: torch.sin(x + steps), (torch.ones(64),)))
    (graph,) = given[0].graphs
    assert sorted(seen.runs is not None for seen in graph.data) == [False, True]


def test_it_is_told_once_and_at_the_first_call(bench, given):
    function, inputs = gelu_of_norm()
    bench.new_process()
    compiled = torch.compile(function, backend="tuner", dynamic=False)
    with torch.no_grad():
        for _ in range(3):
            compiled(*inputs)
    assert len(given) == 1


def test_two_programs_are_two_reports(bench, given):
    bench.run(gelu_of_norm())
    bench.run(layer())
    assert len({report.program.workload_key for report in given}) == 2


def test_the_compile_caches_neither_see_the_report_nor_hide_the_program(bench, given):
    bench.run(gelu_of_norm())
    bench.run(gelu_of_norm())
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1
    assert len(given) == 2
    assert given[0] == given[1]


def test_a_program_that_the_caches_answered_is_remembered_by_what_was_traced_for_its_report(bench, given):
    bench.run(gelu_of_norm())
    key = given[0].program.exact_key
    (Path(cache_dir()) / "tuner" / f"{key}.json").unlink()
    (graph,) = bench.run(gelu_of_norm())[1]["served"]
    assert (graph.outcome, graph.workload_key) == ("default from cache", "")
    assert memo.remembered(key) == tuple(graph.key for graph in given[1].graphs)


@pytest.mark.parametrize(("name", "value"), [("TUNER_REPORT_MISSES", "0"), ("TUNER_DISABLE", "1")])
def test_it_can_be_switched_off(bench, given, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    _, report = bench.run(gelu_of_norm())
    assert given == []
    assert not [outcome for outcome in report["counts"] if outcome.startswith("miss")]


def fail(*_: Any, **__: Any) -> Any:
    raise RuntimeError("made to fail")


@pytest.mark.parametrize(
    ("where", "outcome"),
    [
        ("tuner.compilers.inductor.report.graph_forms", "trace error"),
        ("tuner.compilers.inductor.report.seen_in_all", "first call error"),
        ("tuner.lookup.client.Client.report", "first call error"),
    ],
)
def test_a_report_that_fails_is_counted_and_the_program_runs(bench, given, monkeypatch, caplog, where, outcome):
    monkeypatch.setattr(where, fail)
    example = gelu_of_norm()
    outputs, report = bench.run(example)
    torch.testing.assert_close(outputs, example[0](*example[1]))
    assert report["counts"] == {
        "program": 1,
        "default": 1,
        f"miss not reported: {outcome}": 1,
    }
    assert caplog.text.count("cannot report a program to the daemon: RuntimeError: made to fail") == 1


def test_a_program_that_is_too_large_is_not_reported(bench, given, monkeypatch):
    monkeypatch.setattr(report_module, "NODES_LIMIT", 3)
    _, report = bench.run(gelu_of_norm())
    assert (given, report["counts"]["miss not reported: too_large"]) == ([], 1)


def test_a_process_that_has_spent_its_time_reports_no_more(bench, given, monkeypatch):
    monkeypatch.setattr(report_module, "_spent_s", 2 * report_module.BUDGET_S)
    _, report = bench.run(gelu_of_norm())
    assert (given, report["counts"]["miss not reported: time"]) == ([], 1)


def test_a_training_program_is_reported_when_its_backward_is_compiled(bench, given):
    for warm in (False, True):
        bench.new_process()
        step = Step(torch.compile(scores, backend="tuner"))
        assert len(given) == (1 if warm else 0)
        step.backward()
        (told,) = given
        assert [graph.phase for graph in told.graphs] == ["forward", "backward"]
        forward, backward = told.graphs
        assert [seen == UNSEEN for seen in (*forward.data, *backward.data)] == [False] * 2 + [True] * len(backward.inputs)
        assert tuner.report()["counts"]["miss reported"] == 1
        keys = [graph.workload_key for graph in tuner.report()["served"]]
        assert keys == [graph.key for graph in told.graphs]
        given.clear()


def test_a_large_training_program_that_the_caches_answered_is_not_traced_again(bench, given, monkeypatch):
    Step(torch.compile(scores, backend="tuner")).backward()
    given.clear()
    monkeypatch.setattr(report_module, "TRAINING_NODES_LIMIT", 3)
    bench.new_process()
    Step(torch.compile(scores, backend="tuner")).backward()
    assert (given, tuner.report()["counts"]["miss not reported: too_large"]) == ([], 1)


def test_a_program_that_nobody_could_rebuild_is_not_reported(bench, given):
    @torch.library.custom_op("tuner_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    _, report = bench.run((lambda x: torch.sin(twice(x)), (torch.ones(8),)))
    assert (given, report["counts"]["miss not reported: opaque"]) == ([], 1)


def test_of_a_symbolic_program_is_told_what_its_first_call_held(bench, given):
    bench.run((lambda x: torch.sin(x) * 2, (torch.full((8, 4), 3.0),)), dynamic=True)
    (graph,) = given[0].graphs
    assert len(graph.symbols) == 2
    assert (graph.data[0].low, graph.data[0].high) == (3.0, 3.0)


def test_inputs_that_are_not_those_of_the_graph_count_as_unseen(bench):
    graph = bench.resolve(layer()).graph
    assert report_module._seen(graph, [torch.ones(3)]) == (UNSEEN,) * len(graph.inputs)


def test_what_the_compiler_returns_keeps_its_attributes(given):
    def compiled(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    compiled.serialize = "how to"  # type: ignore[attr-defined]
    function, inputs = gelu_of_norm()
    gm = torch.fx.symbolic_trace(function)
    door = SimpleNamespace(settings=Settings(False, None, None), report=lambda report: "")  # type: ignore[arg-type]
    query = Query("program", "0" * 64, {}, {}, {"threads": 1})
    with torch.no_grad():
        made = report_module.reporting(
            compiled, gm, inputs, {}, SimpleNamespace(door=door, query=query, graphs=[], training=False, cached=False)
        )
        assert made is not compiled
        assert (made.serialize, made.__wrapped__) == ("how to", compiled)
        assert torch.equal(made(torch.ones(2)), torch.full((2,), 2.0))
