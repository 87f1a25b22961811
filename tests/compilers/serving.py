"""Serving a chosen winner to a compile in this process, for tests of the back end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from stored import settled, winner

import tuner
from tuner.cache.sqlite import SqliteStore
from tuner.compilers import dynamo
from tuner.compilers.inductor.apply import compile_candidate
from tuner.compilers.inductor.decompose import TableWithout, late_decompose
from tuner.plan import Groups, Plan
from tuner.search.workloads import Resolved, resolve_callable
from tuner.workload.fx import make_inputs, to_fx
from tuner.workload.graph import Graph

Example = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def realise(graph: Graph, plan: Plan, **more: Any) -> tuple[Callable[[list[Any]], Any], Groups, str]:
    """Compiles `graph` under `plan` outside of the back end: callable, realised groups, code key."""
    inputs = make_inputs(graph, seed=0)
    gm = to_fx(graph)
    if plan.native:
        assert graph.native_form is not None
        with torch._subclasses.FakeTensorMode() as mode:
            fakes = [mode.from_tensor(value) for value in inputs]
        gm = late_decompose(to_fx(graph.native_form), plan.native, fakes)
    with torch.no_grad():
        compiled, realised = compile_candidate(
            gm, inputs, plan, is_inference=True, graph_id=0, get_decomp_fn=TableWithout(plan.native), **more
        )
    assert realised.groups is not None
    assert realised.code_key is not None
    return compiled, realised.groups, realised.code_key


@dataclass
class Bench:
    """What a test of the back end needs. store: path of the store that the back end reads."""

    store: Path

    def resolve(self, example: Example) -> Resolved:
        (resolved,) = resolve_callable("test", *example)
        return resolved

    def settle(self, example: Example, plan: Plan, groups: Groups | None = None) -> Groups:
        """Makes `plan` the winner of the example's graph; `groups` instead of those that the compiler makes under it."""
        resolved = self.resolve(example)
        groups = groups or realise(resolved.graph, plan)[1]
        made = settled(resolved.query) if plan.is_default else winner(resolved.query, plan)
        assert resolved.program_query is not None
        with SqliteStore(self.store) as store:
            store.add_graph(resolved.query.workload_key, resolved.graph.to_json())
            store.add_program(resolved.program_query, [resolved.query], "test")
            store.record_winner(replace(made, groups=groups))
        return groups

    def new_process(self) -> None:
        """Forgets what a new process would not know: Dynamo's code, the client, the report. The caches on disk stay."""
        torch._dynamo.reset()
        dynamo.reset()
        tuner.reset_report()
        torch._dynamo.utils.counters.clear()

    def run(self, example: Example, **options: Any) -> tuple[Any, dict[str, Any]]:
        """What the example returns when compiled with backend="tuner", as in a new process; and the report."""
        self.new_process()
        function, inputs = example
        with torch.no_grad():
            outputs = torch.compile(function, backend="tuner", **options)(*(value.clone() for value in inputs))
        return outputs, tuner.report()


def pointwise_then_sum() -> Example:
    """Four leaves that the default fuses into one group."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = torch.sin(x) * y
        b = torch.softmax(a, -1)
        return b, a + 1

    generator = torch.Generator().manual_seed(0)
    return function, (torch.randn(64, 128, generator=generator), torch.randn(64, 128, generator=generator))


def gelu_of_norm() -> Example:
    """A graph with two op kinds that may stay native."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, (128,))) * 2

    return function, (torch.randn(32, 128, generator=torch.Generator().manual_seed(1)),)
