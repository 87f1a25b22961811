"""A plan that was found for a graph whose sizes vary is served however they came to vary, and realised in the same groups."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from serving import Bench
from stored import winner
from torch import Tensor

import tuner
from tuner.cache.sqlite import SqliteStore
from tuner.lookup.reader import StoreReader
from tuner.plan import Groups, Plan, canonical_groups
from tuner.search.workloads import Resolved, resolve_callable
from tuner.search_spaces.fusion import no_fusion
from tuner.workers.builder import Builder
from tuner.workload.shapes import Dim, Shapes


def scaled(x: Tensor) -> Tensor:
    return torch.sigmoid(x * x.shape[0]) + torch.softmax(torch.sin(x), 0)


def numbers(size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(size))


@pytest.fixture
def settled(bench: Bench) -> tuple[Resolved, Groups]:
    """The graph of `scaled` where its one size varies, and the groups of the plan that won for it: nothing is fused."""
    (graph,) = resolve_callable("test", scaled, (numbers(8),), Shapes((Dim("n", (8, 64), ((0, 0),)),)))
    with torch.no_grad():
        groups = no_fusion(canonical_groups(Builder(graph.graph, ()).build(Plan()).realised.groups or ()))
        plan = Plan(groups=groups)
        realised = Builder(graph.graph, ()).build(plan).realised.groups
    assert realised is not None
    assert len(realised) > 1
    assert graph.program_query is not None
    with SqliteStore(bench.store) as store:
        store.add_program(graph.program_query, [graph.query], "test")
        store.record_winner(replace(winner(graph.query, plan), groups=realised, policy=graph.policy(winner().policy)))
    return graph, realised


@pytest.mark.parametrize("way", ["automatic", "dynamic=True", "mark_dynamic", "maybe_mark_dynamic"])
def test_however_a_size_came_to_vary_the_plan_is_served(bench: Bench, settled: tuple[Resolved, Groups], way: str) -> None:
    graph, groups = settled
    assert graph.sizes == ((8,), (64,))
    bench.new_process()
    compiled = torch.compile(scaled, backend="tuner", dynamic=True if way == "dynamic=True" else None)
    first, *others = (numbers(size) for size in (12, 30, 5))
    if way == "mark_dynamic":
        torch._dynamo.mark_dynamic(first, 0)
    if way == "maybe_mark_dynamic":
        torch._dynamo.maybe_mark_dynamic(first, 0)
    with torch.no_grad():
        for value in (first, *others):
            torch.testing.assert_close(compiled(value), scaled(value))
    served = tuner.report()["served"]
    # By itself torch compiles for the first size alone, and only then for all others.
    assert [one.outcome for one in served] == (["default", "served"] if way == "automatic" else ["served"])
    assert served[-1].workload_key == graph.graph.key
    assert served[-1].realised == groups
    assert graph.program_query is not None
    (answer,) = StoreReader(bench.store).program(graph.program_query).answers.values()
    assert answer.sizes == ((8,), (64,))
