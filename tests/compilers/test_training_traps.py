"""Training programs and the compile caches: each trap with its remedy, and without it.

The tests "without" show that the trap is there in this torch: where one fails, torch has closed the trap, and the remedy may go.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest
import torch
from serving import Bench
from steps import Function, Known, Step, alone, known, scores, settle, train
from stored import winner
from torch._inductor.output_code import CompiledFxGraph

import tuner
from tuner.answer import ProgramAnswer
from tuner.cache.sqlite import SqliteStore
from tuner.compilers.inductor import apply
from tuner.compilers.inductor.hooks import functorch_config, inductor_config
from tuner.compilers.inductor.pinned import Pinned
from tuner.plan import Plan

pytestmark = pytest.mark.slow
BOTH = [("forward", "served"), ("backward", "served")]
FROM_CACHE = [("", "served from cache")] * 2
DEFAULT = [("forward", "default"), ("backward", "default")]


@pytest.fixture
def graphs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Known:
    return known(bench, scores, monkeypatch)


def test_forward_and_backward_are_served_their_own_plans_and_a_warm_start_says_so(bench: Bench, graphs: Known) -> None:
    default = train(bench)
    assert default.outcomes == DEFAULT
    plans = alone(graphs, "forward", "backward")
    settle(bench, graphs, plans)
    planned = train(bench)
    assert planned.outcomes == BOTH
    assert {graph.phase: graph.realised for graph in planned.served} == {phase: plan.groups for phase, plan in plans.items()}
    assert not set(planned.codes) & set(default.codes)
    torch.testing.assert_close(planned.values, Step(scores).gradients())
    warm = train(bench)
    assert (warm.outcomes, warm.codes) == (FROM_CACHE, planned.codes)
    assert [graph.workload_key for graph in warm.served] == [query.workload_key for query in graphs.graphs.values()]
    torch.testing.assert_close(warm.values, planned.values)


def test_a_backward_in_another_thread_and_after_the_store_changed_has_the_plan_of_its_program(
    bench: Bench, graphs: Known
) -> None:
    default = train(bench)
    plans = alone(graphs, "backward")
    settle(bench, graphs, plans)
    planned = train(bench, between=lambda: settle(bench, graphs, {}), in_thread=True)
    assert planned.outcomes == [("forward", "default"), ("backward", "served")]
    assert planned.served[1].realised == plans["backward"].groups
    # The store has no plan any more: what was made under it is found by nobody.
    withdrawn = train(bench)
    assert (withdrawn.outcomes, withdrawn.codes) == ([("", "default from cache")] * 2, default.codes)
    settle(bench, graphs, plans)
    warm = train(bench)
    assert (warm.outcomes, warm.codes) == ([("", "default from cache"), ("", "served from cache")], planned.codes)


@pytest.mark.parametrize("remedy", [True, False], ids=["with the remedy", "without the remedy"])
def test_a_planned_backward_in_another_thread_is_compiled_under_the_settings_of_its_program(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, remedy: bool
) -> None:
    """torch keeps settings by thread, and takes along those alone that were given as options."""
    seen = []
    before = CompiledFxGraph.post_compile

    def post_compile(self: CompiledFxGraph, *args: Any, **kwargs: Any) -> Any:
        seen.append(inductor_config.epilogue_fusion)
        return before(self, *args, **kwargs)

    if not remedy:
        monkeypatch.setattr(Pinned, "_settings", lambda self: contextlib.nullcontext())
    with inductor_config.patch(epilogue_fusion=False):
        graphs = known(bench, scores, monkeypatch)
        settle(bench, graphs, alone(graphs, "backward"))
        monkeypatch.setattr(CompiledFxGraph, "post_compile", post_compile)
        planned = train(bench, in_thread=True)
    assert planned.outcomes == [("forward", "default"), ("backward", "served")]
    assert seen == [False, not remedy]


def test_a_plan_of_the_backward_is_compiled_without_the_settings_that_its_thread_alone_has(
    bench: Bench, graphs: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(bench, graphs, alone(graphs, "backward"))
    seen = []
    before = CompiledFxGraph.post_compile

    def post_compile(self: CompiledFxGraph, *args: Any, **kwargs: Any) -> Any:
        seen.append(inductor_config.epilogue_fusion)
        return before(self, *args, **kwargs)

    monkeypatch.setattr(CompiledFxGraph, "post_compile", post_compile)
    bench.new_process()
    step = Step(torch.compile(scores, backend="tuner"))
    with inductor_config.patch(epilogue_fusion=False):
        step.backward()
    assert [graph.outcome for graph in tuner.report()["served"]] == ["default", "served"]
    assert seen == [True, True]


def test_a_backward_whose_plan_fails_where_artifacts_are_kept_by_then_does_not_fail(bench: Bench, graphs: Known) -> None:
    (first, second, *rest) = alone(graphs, "backward")["backward"].groups or ()
    knob = Plan(config=(("realize_opcount_threshold", 1),))
    with SqliteStore(bench.store) as store:
        store.add_program(graphs.program, list(graphs.graphs.values()), "test")
        store.record_winner(replace(winner(graphs.graphs["backward"], knob), groups=((*first, *second), *rest)))
    bench.new_process()
    step = Step(torch.compile(scores, backend="tuner"))
    with functorch_config.patch(force_non_lazy_backward_lowering=True):
        torch.testing.assert_close(step.gradients(), Step(scores).gradients())
    assert [graph.outcome for graph in tuner.report()["served"]] == ["default", "fallback"]


def test_a_training_program_whose_backward_would_be_saved_whatever_becomes_of_it_has_no_plan(bench: Bench, graphs: Known) -> None:
    settle(bench, graphs, alone(graphs, "backward"))
    with functorch_config.patch(bundled_autograd_cache=True):
        trained = train(bench)
    assert trained.served == []
    assert trained.counts["default: bundled_training"] == 1
    torch.testing.assert_close(trained.values, Step(scores).gradients())


def test_store_changed_between_forward_and_backward_without_the_remedy(
    bench: Bench, graphs: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = train(bench)
    settle(bench, graphs, alone(graphs, "backward"))
    find = Pinned._find

    def asking_anew(self: Pinned, *args: Any) -> Any:
        self.answer = self.door.program(self.query)
        return find(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Pinned, "_find", asking_anew)
        train(bench, between=lambda: settle(bench, graphs, {}))
    settle(bench, graphs, alone(graphs, "backward"))
    warm = train(bench)
    assert warm.outcomes == [("", "default from cache"), ("", "served from cache")]
    assert warm.codes == default.codes, "the default, saved under the plan's key"


def test_backward_outside_the_tag_without_the_remedy(bench: Bench, graphs: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the uuids tells two plans of a backward apart in Inductor's own cache."""
    (first, *rest) = alone(graphs, "backward")["backward"].groups or ()
    pairs = {"backward": Plan(groups=((*first, *rest[0]), *rest[1:]))}
    for kind in (apply.ReadBack, apply.ForcedGroups):
        monkeypatch.setattr(kind, "uuid", lambda self: "always the same")
    monkeypatch.setattr(apply.ReadBack, "__reduce__", lambda self: (str, ("always the same",)))
    settle(bench, graphs, alone(graphs, "backward"))
    one = train(bench)
    settle(bench, graphs, pairs)
    other = train(bench)
    assert other.outcomes == [("forward", "default"), ("backward", "served")]
    assert (other.codes, other.served[1].realised) == (one.codes, None), "the other plan's code, from the cache"


def swapped(first: int) -> Function:
    """Two statements in one order or the other, and so what is met, kept for the backward and given back first."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if first:
            a = torch.tanh(x).sum(-1)
            b = torch.softmax(w, 0).amax(0)
        else:
            b = torch.softmax(w, 0).amax(0)
            a = torch.tanh(x).sum(-1)
        return a[:, None] * b

    return function


def test_a_winner_of_a_training_graph_is_realised_where_two_independent_statements_are_swapped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = (known(bench, swapped(first), monkeypatch) for first in (0, 1))
    assert here.program != there.program
    assert here.graphs == there.graphs
    plans = alone(here, "forward", "backward")
    settle(bench, here, plans)
    planned = train(bench, swapped(1))
    assert planned.outcomes == BOTH
    assert {graph.phase: graph.realised for graph in planned.served} == {phase: plan.groups for phase, plan in plans.items()}
    torch.testing.assert_close(planned.values, Step(swapped(1)).gradients(), rtol=1e-4, atol=1e-4)


def test_swapped_statements_without_the_remedy(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where leaves are named by the order of the statements, the groups of one program are not those of the other."""
    monkeypatch.setattr(apply, "canonical_order", lambda graph, phase: list(graph.nodes))
    here = known(bench, swapped(0), monkeypatch)
    settle(bench, here, alone(here, "forward", "backward"))
    wrong = train(bench, swapped(1)).served[0]
    assert (wrong.phase, wrong.tier, wrong.outcome, wrong.reason) == ("forward", "exact", "fallback", "not realised")


def activated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x * w) * 2


def choose(bench: Bench, known: Known, *native: str) -> None:
    with SqliteStore(bench.store) as store:
        store.record_program_choice(known.program, native)


def test_decomposition_table_a_programs_choice_is_used_and_kept_apart(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = known(bench, activated, monkeypatch)
    settle(bench, graphs, {})
    default = train(bench, activated)
    choose(bench, graphs, "aten.gelu.default")
    native = train(bench, activated)
    assert [graph.phase for graph in native.served] == ["forward", "backward"]
    assert native.served[0].workload_key != graphs.graphs["forward"].workload_key
    torch.testing.assert_close(native.values, Step(activated).gradients())
    assert train(bench, activated).codes == native.codes != default.codes
    choose(bench, graphs)
    assert train(bench, activated).codes == default.codes


def test_decomposition_table_without_the_remedy(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = known(bench, activated, monkeypatch)
    settle(bench, graphs, {})
    default = train(bench, activated)
    choose(bench, graphs, "aten.gelu.default")
    monkeypatch.setattr(ProgramAnswer, "plans_digest", "")
    native = train(bench, activated)
    assert (native.outcomes, native.codes) == ([("", "default from cache")] * 2, default.codes), "the table is in no key"
