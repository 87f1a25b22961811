"""A program with a plan for each bucket of a size: every call runs its bucket's, and is right at sizes that nobody named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from serving import Bench, Example
from torch import Tensor

import tuner
from tuner.answer import Bucket
from tuner.cache.sqlite import SqliteStore
from tuner.compilers.inductor.hooks import functorch_config
from tuner.compilers.inductor.pinned import Pinned
from tuner.plan import Plan, canonical_groups
from tuner.search.workloads import Resolved, resolve_callable
from tuner.search_spaces.fusion import no_fusion
from tuner.workers.builder import Builder
from tuner.workload.graph import SpecPhase
from tuner.workload.shapes import Dim, Shapes

SHAPES = Shapes((Dim("batch", (4, 32), ((0, 0),)),))


def rows(x: Tensor, weight: Tensor) -> Tensor:
    return torch.softmax(torch.sin(x) * weight, -1) + torch.cos(x)


def example(batch: int, gradients: bool = False) -> Example:
    generator = torch.Generator().manual_seed(batch)
    made = torch.randn(batch, 64, generator=generator), torch.randn(64, generator=generator)
    return rows, tuple(value.requires_grad_(gradients) for value in made)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """For each call of a compiled program, the reason of the answers that it was compiled with."""
    called: list[str] = []
    before = Pinned.compile

    def compile(self: Pinned, *arguments: Any) -> Any:
        compiled, answers = before(self, *arguments), list(self.answer.answers.values())

        def call(*args: Any) -> Any:
            called.append(answers[0].reason.removeprefix("the program's choice for "))
            return compiled(*args)

        return call

    monkeypatch.setattr(Pinned, "compile", compile)
    return called


def no_fusion_of(graph: Resolved) -> tuple[Plan, Any]:
    """A plan that fuses nothing, and its groups as realised."""
    with torch.no_grad():
        default = Builder(graph.graph, ()).build(Plan()).realised.groups
        plan = Plan(groups=no_fusion(canonical_groups(default or ())))
        return plan, Builder(graph.graph, ()).build(plan).realised.groups


def choose(bench: Bench, phase: SpecPhase, buckets: Callable[[list[tuple[str, Plan, Any]]], list[Bucket]]) -> list[Resolved]:
    """Stores a choice for the program: `buckets` is told plans that fuse nothing, one for each of its graphs."""
    function, inputs = example(8, phase == "training")
    graphs = resolve_callable("test", function, inputs, SHAPES, phase)
    plans = sorted((graph.query.exact_key, *no_fusion_of(graph)) for graph in graphs)
    (program,) = {graph.program_query for graph in graphs}
    assert program is not None
    with SqliteStore(bench.store) as store:
        store.add_program(program, [graph.query for graph in graphs], "test")
        store.record_program_choice(program, (), buckets(plans))
    return graphs


def test_a_call_runs_the_plan_of_its_bucket_and_equal_buckets_share_what_is_compiled(bench: Bench, ran: list[str]) -> None:
    def buckets(plans: list[tuple[str, Plan, Any]]) -> list[Bucket]:
        return [Bucket("s0", 4, tuple(plans)), Bucket("s0", 20, ()), Bucket("s0", None, tuple(plans))]

    (graph,) = choose(bench, "inference", buckets)
    assert graph.sizes == ((4,), (32,))
    bench.new_process()
    compiled = torch.compile(rows, backend="tuner", dynamic=True)
    with torch.no_grad():
        for batch in (32, 2, 4, 5, 20, 21, 77):
            _, inputs = example(batch)
            # Its last size is a number that only dynamic=True lets vary: here it does not.
            torch._dynamo.mark_static(inputs[0], 1)
            torch._dynamo.mark_static(inputs[1], 0)
            torch.testing.assert_close(compiled(*inputs), rows(*inputs))
    assert ran == ["s0 up to 4", *["s0 up to 4"] * 2, *["s0 up to 20"] * 2, *["s0 up to 4"] * 2], "the last shares the first's"
    served = tuner.report()["served"]
    assert [(one.outcome, one.workload_key) for one in served] == [
        ("served", graph.graph.key),
        ("default", graph.graph.key),
    ]
    assert served[0].realised != served[1].realised


def test_a_training_step_runs_its_buckets_plans_forward_and_backward(bench: Bench, ran: list[str]) -> None:
    graphs = choose(bench, "training", lambda plans: [Bucket("s0", 8, tuple(plans)), Bucket("s0", None, ())])
    assert [graph.graph.phase for graph in graphs] == ["forward", "backward"]
    bench.new_process()
    compiled = torch.compile(rows, backend="tuner")
    for batch in (6, 7, 9, 3):
        _, inputs = example(batch, gradients=True)
        _, eager = example(batch, gradients=True)
        torch._dynamo.maybe_mark_dynamic(inputs[0], 0)
        compiled(*inputs).square().sum().backward()
        rows(*eager).square().sum().backward()
        for mine, theirs in zip(inputs, eager, strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad)
    assert ran == ["s0 up to 8", "s0 up to 8", "any other size", "s0 up to 8"]
    outcomes = {(one.phase, one.outcome) for one in tuner.report()["served"]}
    assert outcomes == {("forward", "served"), ("backward", "served"), ("forward", "default"), ("backward", "default")}


@pytest.mark.parametrize(
    ("symbol", "kept", "why"), [("s7", False, "no dispatch: another size"), ("s0", True, "no dispatch: an artifact")]
)
def test_where_one_artifact_is_made_or_a_size_is_not_met_there_is_one_plan_for_all(
    bench: Bench, ran: list[str], symbol: str, kept: bool, why: str
) -> None:
    choose(bench, "inference", lambda plans: [Bucket(symbol, 8, tuple(plans)), Bucket(symbol, None, ())])
    bench.new_process()
    _, inputs = example(8)
    torch._dynamo.maybe_mark_dynamic(inputs[0], 0)
    # As standalone_compile sets it.
    with torch.no_grad(), functorch_config.patch(force_non_lazy_backward_lowering=kept):
        torch.testing.assert_close(torch.compile(rows, backend="tuner")(*inputs), rows(*inputs))
    assert tuner.report()["counts"][why] == 1
    assert len(ran) == 1
