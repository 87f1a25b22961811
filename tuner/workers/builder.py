"""Compiles candidates of one graph: the part of a session that a compile pool needs as well."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, fx

from tuner.anatomy import Anatomy
from tuner.compilers.inductor.apply import Realised, compile_candidate
from tuner.compilers.inductor.decompose import TableWithout, late_decompose
from tuner.compilers.inductor.hooks import inductor_config
from tuner.compilers.inductor.lowered import Lowered, lower
from tuner.errors import DuplicateCode, PlanNotRealised, PlanRefused, UnsupportedGraph
from tuner.plan import Groups, Plan, canonical_groups
from tuner.workers.verdicts import failure, starved
from tuner.workload.fx import to_fx
from tuner.workload.graph import Graph, TensorMeta
from tuner.workload.inputs import empty
from tuner.workload.symbolic import Guarded, symbolic_module

Made = TypeVar("Made")


@dataclass(frozen=True)
class Built:
    """A compiled candidate. function: takes a list of inputs, which it empties. compile_s: wall time of its compilation.

    holds: whether it is for these values of the graph's symbols. The compiler may decide by the sizes that it is given, and then
    guards what it decided: a user's process would compile anew for others.
    """

    function: Callable[[list[Tensor]], Any]
    realised: Realised
    compile_s: float
    holds: Callable[[Sequence[int]], bool] = lambda sizes: True

    def describe(self) -> dict[str, Any]:
        groups = self.realised.groups
        return {
            "status": "ok",
            "realised": None if groups is None else [list(group) for group in groups],
            "code_key": self.realised.code_key,
            "compile_s": self.compile_s,
        }


class Builder:
    """inputs: what the graph is compiled for. Fake ones (see `fake_inputs`) give the same code.

    A graph whose sizes vary is compiled for symbols, whatever the inputs: with the sizes of its making for hints, as a user's
    compile has those of its first call.
    """

    def __init__(self, graph: Graph, inputs: Sequence[Tensor]):
        self.graph, self.inputs = graph, inputs
        self._lowered: Lowered | None = None

    def module(self, plan: Plan) -> tuple[fx.GraphModule, Sequence[Any]]:
        """The graph with the ops undecomposed that the plan keeps native, and what to compile it for. Raises UnsupportedGraph."""
        native = self.graph.native_form if plan.native else None
        if not self.graph.symbols:
            if native is None:
                return to_fx(self.graph), self.inputs
            return late_decompose(to_fx(native), plan.native, fake_inputs(self.graph)), self.inputs
        if native is None:
            return symbolic_module(self.graph)
        gm, inputs = symbolic_module(native)
        order = native_order(self.graph, native)
        in_order(gm, order)
        inputs = [*(inputs[i] for i in order), *inputs[len(order) :]]
        return late_decompose(gm, plan.native, inputs), inputs

    def build(self, plan: Plan, expected: Groups | None = None, seen_codes: Sequence[str] = (), own_copy: str = "") -> Built:
        """Raises DuplicateCode, PlanNotRealised, PlanRefused, and whatever the compiler raises."""
        started = time.perf_counter()
        gm, inputs = self.module(plan)
        function, realised = compile_candidate(
            gm, inputs, plan, expected=expected, seen_codes=seen_codes, own_copy=own_copy, **self._settings(plan)
        )
        holds = Guarded(inputs[: len(self.graph.symbols)]) if self.graph.symbols else Built.holds
        return Built(function, realised, time.perf_counter() - started, holds)

    def _settings(self, plan: Plan) -> dict[str, Any]:
        """What Inductor's inner step is told of the graph."""
        return {
            "static_input_idxs": self.graph.call_positions,
            "is_inference": self.graph.phase == "inference",
            "is_backward": self.graph.phase == "backward",
            "cpp_wrapper": inductor_config.cpp_wrapper,
            "graph_id": 0,
            "get_decomp_fn": TableWithout(plan.native),
        }

    def anatomy(self, plan: Plan) -> Anatomy | dict[str, Any]:
        """What comes of a lowering of the graph under `plan`, or the verdict that it ends with: see `attempt`.

        The latest lowering is kept: another plan that differs from its by groups needs none.
        """
        return _verdict_or(lambda: self._anatomy(plan))

    def _anatomy(self, plan: Plan) -> Anatomy:
        if self._lowered is not None and (anatomy := self._lowered.under(plan)) is not None:
            return anatomy
        # Two at a time would be twice the memory.
        self._lowered = None
        self._lowered = lower(*self.module(plan), plan, **self._settings(plan))
        return self._lowered.anatomy

    def attempt(self, plan: Plan, expected: Any, seen_codes: Sequence[str], own_copy: str = "") -> Built | dict[str, Any]:
        """`build`, or the verdict that it ends with.

        status: "compile_error", "out_of_resources", "duplicate" (its code is in `seen_codes`), "not_realised" (other groups than
        the `expected` ones came out: see realised), "refused" (the plan may not be applied to this graph); the last three come
        before the C++ compiler runs.
        """
        groups = None if expected is None else canonical_groups(expected)
        return _verdict_or(lambda: self.build(plan, groups, seen_codes, own_copy))


def _verdict_or(compile_it: Callable[[], Made]) -> Made | dict[str, Any]:
    """What compiling a candidate gives, or the verdict that it ends with: see `Builder.attempt`."""
    started = time.perf_counter()
    try:
        return compile_it()
    except DuplicateCode as error:
        verdict: dict[str, Any] = {"status": "duplicate", "code_key": error.code_key}
    except PlanNotRealised as error:
        realised = [list(group) for group in error.groups]
        verdict = {"status": "not_realised", "message": str(error), "realised": realised}
    except PlanRefused as error:
        verdict = {"status": "refused", "why": error.why, "message": str(error)}
    # A border of the worker loop: whatever compiling a candidate raises is a verdict on it.
    except BaseException as error:
        verdict = {"status": "out_of_resources" if starved(error) else "compile_error", **failure(error)}
    return {**verdict, "compile_s": time.perf_counter() - started}


def native_order(graph: Graph, native: Graph) -> list[int]:
    """For each symbol of the graph its number in the graph's native form, which numbers them by its own first use.

    Raises UnsupportedGraph where the inputs do not tell.
    """
    numbers: dict[str, int] = {}
    for ours, theirs in zip(graph.inputs, native.inputs, strict=True):
        for one, other in zip(TensorMeta.from_json(ours.value).shape, TensorMeta.from_json(theirs.value).shape, strict=True):
            if isinstance(one, str) and isinstance(other, str) and one[1:].isdecimal() and other[1:].isdecimal():
                numbers[one] = int(other[1:])
    names = [f"s{i}" for i in range(len(graph.symbols))]
    if sorted(numbers.get(name, -1) for name in names) != list(range(len(native.symbols))):
        raise UnsupportedGraph("symbolic_sizes", "which size is which in the graph's native form cannot be told")
    return [numbers[name] for name in names]


def in_order(gm: fx.GraphModule, order: Sequence[int]) -> None:
    """Makes a rebuilt graph take its sizes in another order."""
    passed = gm.graph.find_nodes(op="placeholder")
    after = passed[len(order)] if len(passed) > len(order) else passed[-1].next
    for number in order:
        after.prepend(passed[number])
    gm.recompile()


def native_reference(graph: Graph) -> fx.GraphModule | None:
    """The native form of a graph, called as the graph is; None where it has none, or where the two cannot be matched."""
    if (native := graph.native_form) is None:
        return None
    gm = to_fx(native)
    if graph.symbols:
        try:
            in_order(gm, native_order(graph, native))
        except UnsupportedGraph:
            return None
    return gm


def fake_inputs(graph: Graph) -> list[Tensor]:
    """Inputs of the graph that have metadata and no memory; none for a graph whose sizes vary, which `Builder` makes itself."""
    if graph.symbols:
        return []
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        return [empty(TensorMeta.from_json(node.value)) for node in graph.inputs]
