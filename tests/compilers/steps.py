"""Training steps compiled with backend="tuner", winners for their graphs, and the code that was used."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from serving import Bench
from stored import settled, winner
from torch._inductor.output_code import CompiledFxGraph

import tuner
from tuner.cache.sqlite import SqliteStore
from tuner.compilers.inductor.ambient import ambient, cpu_target, cpu_toolchain
from tuner.compilers.inductor.apply import code_key_of
from tuner.compilers.inductor.events import Served
from tuner.plan import Plan
from tuner.search_spaces.fusion import no_fusion
from tuner.target import Query

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def scores(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Both its graphs have leaves that the default fuses."""
    return torch.softmax(torch.sin(x) * w, -1)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(16, 64, generator=generator), torch.randn(16, 64, generator=generator)


@dataclass
class Step:
    """One training step of `function`: its forward when made, its backward when asked for."""

    function: Callable[..., Any]
    leaves: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.leaves = [value.requires_grad_() for value in inputs()]
        self.output = self.function(*self.leaves)

    def backward(self, in_thread: bool = False) -> None:
        if not in_thread:
            self.output.square().sum().backward()
            return
        failed: list[BaseException] = []

        def work() -> None:
            try:
                self.output.square().sum().backward()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]

    def gradients(self) -> list[torch.Tensor]:
        self.backward()
        return [self.output.detach(), *(leaf.grad for leaf in self.leaves if leaf.grad is not None)]


@dataclass
class Trained:
    """What one process did. codes: key of the code of each graph, whether it was compiled or came from a cache."""

    values: list[torch.Tensor]
    served: list[Served]
    counts: dict[str, int]
    codes: list[str]

    @property
    def outcomes(self) -> list[tuple[str, str]]:
        return [(graph.phase, graph.outcome) for graph in self.served]


@contextlib.contextmanager
def used_codes() -> Iterator[list[str]]:
    """Keys of the code of all graphs that are made ready to be called within the context."""
    codes: list[str] = []
    before = CompiledFxGraph.post_compile

    def post_compile(self: CompiledFxGraph, *args: Any, **kwargs: Any) -> Any:
        codes.append(code_key_of(self.source_code))
        return before(self, *args, **kwargs)

    CompiledFxGraph.post_compile = post_compile  # type: ignore[method-assign]
    try:
        yield codes
    finally:
        CompiledFxGraph.post_compile = before  # type: ignore[method-assign]


def train(
    bench: Bench, function: Function = scores, between: Callable[[], object] = lambda: None, in_thread: bool = False
) -> Trained:
    """A training step of the function as in a new process; `between` happens after its forward was compiled and run."""
    bench.new_process()
    with used_codes() as codes:
        step = Step(torch.compile(function, backend="tuner"))
        between()
        step.backward(in_thread)
    values = [step.output.detach(), *(leaf.grad for leaf in step.leaves if leaf.grad is not None)]
    report = tuner.report()
    return Trained(values, report["served"], report["counts"], codes)


@dataclass(frozen=True)
class Known:
    """The graphs of a program by phase: their keys, and the groups that the default makes."""

    program: Query
    graphs: dict[str, Query]
    groups: dict[str, Any]


def known(bench: Bench, function: Function, monkeypatch: Any) -> Known:
    """What a read-back says of a function's graphs; leaves the compile caches with nothing under the default's key."""
    monkeypatch.setenv("TUNER_READ_BACK", "1")
    served = train(bench, function).served
    monkeypatch.delenv("TUNER_READ_BACK")
    where = (cpu_target().fields(), cpu_toolchain(), ambient())
    program = Query("program", served[0].program_key, *where)
    graphs = {graph.phase: Query("graph", graph.workload_key, *where) for graph in served}
    return Known(program, graphs, {graph.phase: graph.realised for graph in served})


def settle(bench: Bench, known: Known, plans: dict[str, Plan], record: bool = True) -> None:
    """Makes `plans`, by phase, the winners of a program's graphs, the default that of the others."""
    with SqliteStore(bench.store) as store:
        if record:
            store.add_program(known.program, list(known.graphs.values()), "test")
        for phase, query in known.graphs.items():
            plan = plans.get(phase, Plan())
            made = settled(query) if plan.is_default else winner(query, plan)
            store.record_winner(replace(made, groups=plan.groups or known.groups[phase]))


def alone(known: Known, *phases: str) -> dict[str, Plan]:
    """Plans that fuse nothing, for the graphs of these phases."""
    return {phase: Plan(groups=no_fusion(known.groups[phase])) for phase in phases}
