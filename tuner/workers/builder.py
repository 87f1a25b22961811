"""Compiles candidates of one graph: the part of a session that a compile pool needs as well."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from tuner.compilers.inductor.apply import Realised, compile_candidate
from tuner.compilers.inductor.decompose import TableWithout, late_decompose
from tuner.compilers.inductor.hooks import inductor_config
from tuner.errors import DuplicateCode, PlanNotRealised, PlanRefused
from tuner.plan import Groups, Plan, canonical_groups
from tuner.workers.verdicts import failure, starved
from tuner.workload.fx import empty, to_fx
from tuner.workload.graph import Graph, TensorMeta


@dataclass(frozen=True)
class Built:
    """A compiled candidate. function: takes a list of inputs, which it empties. compile_s: wall time of its compilation."""

    function: Callable[[list[Tensor]], Any]
    realised: Realised
    compile_s: float

    def describe(self) -> dict[str, Any]:
        groups = self.realised.groups
        return {
            "status": "ok",
            "realised": None if groups is None else [list(group) for group in groups],
            "code_key": self.realised.code_key,
            "compile_s": self.compile_s,
        }


class Builder:
    """inputs: what the graph is compiled for. Fake ones (see `fake_inputs`) give the same code."""

    def __init__(self, graph: Graph, inputs: Sequence[Tensor]):
        self.graph, self.inputs = graph, inputs

    def module(self, plan: Plan) -> fx.GraphModule:
        """The graph with the ops undecomposed that the plan keeps native. Raises UnsupportedGraph."""
        if not plan.native or self.graph.native_form is None:
            return to_fx(self.graph)
        return late_decompose(to_fx(self.graph.native_form), plan.native, fake_inputs(self.graph))

    def build(self, plan: Plan, expected: Groups | None = None, seen_codes: Sequence[str] = (), own_copy: str = "") -> Built:
        """Raises DuplicateCode, PlanNotRealised, PlanRefused, and whatever the compiler raises."""
        started = time.perf_counter()
        function, realised = compile_candidate(
            self.module(plan),
            self.inputs,
            plan,
            expected=expected,
            seen_codes=seen_codes,
            own_copy=own_copy,
            static_input_idxs=self.graph.static_inputs,
            is_inference=self.graph.phase == "inference",
            is_backward=self.graph.phase == "backward",
            cpp_wrapper=inductor_config.cpp_wrapper,
            graph_id=0,
            get_decomp_fn=TableWithout(plan.native),
        )
        return Built(function, realised, time.perf_counter() - started)

    def attempt(self, plan: Plan, expected: Any, seen_codes: Sequence[str], own_copy: str = "") -> Built | dict[str, Any]:
        """`build`, or the verdict that it ends with.

        status: "compile_error", "out_of_resources", "duplicate" (its code is in `seen_codes`), "not_realised" (other groups than
        the `expected` ones came out: see realised), "refused" (the plan may not be applied to this graph); the last three come
        before the C++ compiler runs.
        """
        started = time.perf_counter()
        try:
            return self.build(plan, None if expected is None else canonical_groups(expected), seen_codes, own_copy)
        except DuplicateCode as error:
            verdict: dict[str, Any] = {"status": "duplicate", "code_key": error.code_key}
        except PlanNotRealised as error:
            realised = [list(group) for group in error.groups]
            verdict = {"status": "not_realised", "message": str(error), "realised": realised}
        except PlanRefused as error:
            verdict = {"status": "refused", "why": "not allowed here", "message": str(error)}
        # A border of the worker loop: whatever compiling a candidate raises is a verdict on it.
        except BaseException as error:
            verdict = {"status": "out_of_resources" if starved(error) else "compile_error", **failure(error)}
        return {**verdict, "compile_s": time.perf_counter() - started}


def fake_inputs(graph: Graph) -> list[Tensor]:
    """Inputs of the graph that have metadata and no memory."""
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        return [empty(TensorMeta.from_json(node.value)) for node in graph.inputs]
