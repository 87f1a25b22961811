"""Graphs lowered under a plan, without C++: where they may be cut, what leaves and code come out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import fx

from tuner.compilers.inductor.apply import Realised, applied, code_key_of
from tuner.compilers.inductor.cpp_code import cpp_flags
from tuner.compilers.inductor.cuts import CUT, cut_id
from tuner.compilers.inductor.decompose import TableWithout, late_decompose
from tuner.compilers.inductor.hooks import GraphLowering, compile_fx, compile_fx_inner, functorch_config, inductor_config
from tuner.errors import PlanRefused, find_cause
from tuner.plan import Groups, Plan, leaf_order
from tuner.workload.fx import make_inputs, to_fx
from tuner.workload.graph import Graph
from tuner.workload.symbolic import symbolic_module

Drawn = Callable[[str], bool] | None


class Enough(Exception):
    """Raised in place of compiling the generated code."""


@dataclass(frozen=True)
class Lowered:
    """sites: ids of all cuts that the graph may have, cut: of those that were made, both by place; code: its key."""

    sites: tuple[str, ...]
    cut: tuple[str, ...]
    groups: Groups
    code: str
    graph: fx.GraphModule

    @property
    def leaves(self) -> frozenset[str]:
        return frozenset(leaf for group in self.groups for leaf in group)

    def site(self, target: str) -> str:
        """The first site of an op, "aten.where.self"."""
        return next(site for site in self.sites if site.endswith(f":{target}"))

    def leaf_of(self, site: str) -> str:
        """The leaf that computes the value of a site; "" where it is none's last."""
        place = site.partition(":")[0]
        return next((leaf for leaf in sorted(self.leaves) if leaf.startswith(f"{place}:")), "")


def lower(graph: Graph, plan: Plan, drawn: Drawn = None, **settings: Any) -> Lowered:
    """What a stored `graph` is lowered to under `plan`, and under Inductor's `settings`. Raises PlanRefused."""
    inputs: Sequence[Any] = make_inputs(graph, seed=0)
    gm = to_fx(graph)
    if graph.symbols:
        gm, inputs = symbolic_module(graph)
    elif plan.native:
        assert graph.native_form is not None
        with torch._subclasses.FakeTensorMode() as mode:
            fakes = [mode.from_tensor(value) for value in inputs]
        gm = late_decompose(to_fx(graph.native_form), plan.native, fakes)
    (output,) = gm.graph.find_nodes(op="output")
    output.meta["user_visible_output_idxs"] = [i for i, value in enumerate(output.args[0]) if isinstance(value, fx.Node)]
    kwargs = {"is_inference": graph.phase == "inference", "is_backward": graph.phase == "backward", "graph_id": 0}
    return _lower(gm, inputs, plan, drawn, {**kwargs, "get_decomp_fn": TableWithout(plan.native)}, settings)


def lower_program(function: Callable[..., Any], inputs: Sequence[Any], plan: Plan, drawn: Drawn = None) -> Lowered:
    """What the first graph that torch.compile makes of a function is lowered to, whatever is in it."""
    found: list[Lowered] = []

    def inner(gm: fx.GraphModule, given: Sequence[Any], **kwargs: Any) -> Any:
        found.append(_lower(gm, given, plan, drawn, kwargs, {}))
        raise Enough

    torch._dynamo.reset()
    with (
        contextlib.suppress(torch._dynamo.exc.BackendCompilerFailed),
        torch.no_grad(),
        functorch_config.patch(enable_autograd_cache=False),
    ):
        torch.compile(function, backend=lambda gm, given: compile_fx(gm, given, inner_compile=inner), dynamic=False)(*inputs)
    torch._dynamo.reset()
    return found[0]


def _lower(
    gm: fx.GraphModule, inputs: Sequence[Any], plan: Plan, drawn: Drawn, kwargs: dict[str, Any], settings: dict[str, Any]
) -> Lowered:
    realised, codes = Realised({}, inspect=lambda *_: None), list[str]()
    how = applied(plan, realised, drawn=drawn)
    try:
        with torch.no_grad(), inductor_config.patch(settings), without_compiling(codes), how:
            compile_fx_inner(gm, inputs, **kwargs)
    except Exception as error:
        if refused := find_cause(error, PlanRefused):
            raise refused from error
        if not find_cause(error, Enough):
            raise
    assert realised.groups is not None
    sites = tuple(sorted(filter(None, map(cut_id, gm.graph.nodes)), key=leaf_order))
    made = frozenset(cut_id(node) for node in gm.graph.nodes if CUT in node.meta)
    return Lowered(
        sites, tuple(site for site in sites if site in made), realised.groups, code_key_of(codes[0], cpp_flags(codes[0])), gm
    )


@contextlib.contextmanager
def without_compiling(codes: list[str]) -> Iterator[None]:
    """Whatever Inductor generates within is put into `codes`, and not compiled."""

    def read(code: str) -> None:
        codes.append(code)
        raise Enough

    with mock.patch.object(GraphLowering, "save_output_code", staticmethod(read)), inductor_config.patch(fx_graph_cache=False):
        yield
