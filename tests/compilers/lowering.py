"""Graphs lowered under a plan, without C++: where they may be cut, what leaves and code come out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from unittest import mock

import torch
from torch import fx

from tuner.compilers.inductor.apply import Realised, applied, code_key_of
from tuner.compilers.inductor.cpp_code import cpp_flags
from tuner.compilers.inductor.cuts import CUT, cut_id
from tuner.compilers.inductor.decompose import TableWithout, late_decompose
from tuner.compilers.inductor.hooks import GraphLowering, compile_fx_inner, inductor_config
from tuner.errors import PlanRefused, find_cause
from tuner.plan import Plan
from tuner.workload.fx import make_inputs, to_fx
from tuner.workload.graph import Graph


class Enough(Exception):
    """Raised in place of compiling the generated code."""


@dataclass(frozen=True)
class Lowered:
    """sites: ids of all cuts that the graph may have; cut: of those that were made; leaves: local ids; code: its key."""

    sites: tuple[str, ...]
    cut: tuple[str, ...]
    leaves: frozenset[str]
    groups: tuple[tuple[str, ...], ...]
    code: str

    def site(self, target: str) -> str:
        """The first site of an op, "aten.where.self"."""
        return next(site for site in self.sites if site.endswith(f":{target}"))


@contextlib.contextmanager
def without_compiling(codes: list[str]) -> Iterator[None]:
    """Whatever Inductor generates within is put into `codes`, and not compiled."""

    def read(code: str) -> None:
        codes.append(code)
        raise Enough

    with mock.patch.object(GraphLowering, "save_output_code", staticmethod(read)), inductor_config.patch(fx_graph_cache=False):
        yield


def lower(graph: Graph, plan: Plan, drawn: Callable[[str], bool] | None = None, **settings: object) -> Lowered:
    """What `graph` is lowered to under `plan`. Raises PlanRefused."""
    inputs = make_inputs(graph, seed=0)
    gm = to_fx(graph)
    if plan.native:
        assert graph.native_form is not None
        with torch._subclasses.FakeTensorMode() as mode:
            fakes = [mode.from_tensor(value) for value in inputs]
        gm = late_decompose(to_fx(graph.native_form), plan.native, fakes)
    (output,) = gm.graph.find_nodes(op="output")
    output.meta["user_visible_output_idxs"] = [i for i, value in enumerate(output.args[0]) if isinstance(value, fx.Node)]
    realised, codes = Realised({}, inspect=lambda *_: None), list[str]()
    kwargs = {"is_inference": graph.phase == "inference", "is_backward": graph.phase == "backward"}
    try:
        with (
            torch.no_grad(),
            inductor_config.patch(settings),
            without_compiling(codes),
            applied(plan, realised, drawn=drawn),
        ):
            compile_fx_inner(gm, inputs, graph_id=0, get_decomp_fn=TableWithout(plan.native), **kwargs)
    except Exception as error:
        if refused := find_cause(error, PlanRefused):
            raise refused from error
        if not find_cause(error, Enough):
            raise
    sites = tuple(sorted(filter(None, map(cut_id, gm.graph.nodes)), key=lambda site: int(site.partition(":")[0])))
    cut = tuple(sorted(cut_id(node) for node in gm.graph.nodes if CUT in node.meta))
    assert realised.groups is not None
    code = code_key_of(codes[0], cpp_flags(codes[0]))
    return Lowered(sites, cut, frozenset(realised.ids.values()), realised.groups, code)
