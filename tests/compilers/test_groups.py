"""Groupings: named, forced, read back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from serving import gelu_of_norm, pointwise_then_sum, realise
from splits import single_splits

from tuner.compilers.inductor.apply import compile_candidate
from tuner.compilers.inductor.capture import capture, form_of
from tuner.compilers.inductor.hooks import compile_fx, functorch_config
from tuner.compilers.inductor.program import copied
from tuner.errors import DuplicateCode, PlanNotRealised
from tuner.plan import Groups, Plan
from tuner.search_spaces.fusion import no_fusion
from tuner.workload.fx import make_inputs, to_fx
from tuner.workload.graph import Graph
from tuner.workload.symbolic import symbolic_module

pytestmark = pytest.mark.slow


def graph_of(example: tuple) -> Graph:
    return capture(*example)[0].graphs[0]


def test_the_default_grouping_is_forced_to_itself() -> None:
    graph = graph_of(pointwise_then_sum())
    _, default, code = realise(graph, Plan())
    assert any(len(group) > 1 for group in default)
    _, forced, forced_code = realise(graph, Plan(groups=default), expected=default)
    assert (forced, forced_code) == (default, code)


def test_no_fusion_puts_every_leaf_alone_and_changes_the_code() -> None:
    graph = graph_of(pointwise_then_sum())
    _, default, code = realise(graph, Plan())
    _, alone, alone_code = realise(graph, Plan(groups=no_fusion(default)))
    assert alone == no_fusion(default)
    assert all(len(group) == 1 for group in alone)
    assert alone_code != code


def test_every_grouping_that_is_realised_computes_the_same() -> None:
    graph = graph_of(pointwise_then_sum())
    _, default, _ = realise(graph, Plan())
    reference = to_fx(graph)(*make_inputs(graph, 0))
    realised = 0
    for groups in (no_fusion(default), *single_splits(default)):
        try:
            compiled, made, _ = realise(graph, Plan(groups=groups), expected=groups)
        except PlanNotRealised:
            continue
        realised += made == groups
        for output, wanted in zip(compiled(make_inputs(graph, 0)), reference, strict=True):
            torch.testing.assert_close(output, wanted)
    assert realised >= 2


def test_a_grouping_that_names_other_leaves_is_refused_before_any_code_is_compiled() -> None:
    graph = graph_of(pointwise_then_sum())
    stranger = (("0:7x7|:ComputedBuffer.Pointwise:0", "1:7x7|:ComputedBuffer.Pointwise:0"),)
    with pytest.raises(PlanNotRealised) as caught:
        realise(graph, Plan(groups=stranger), expected=stranger)
    assert caught.value.groups == no_fusion(realise(graph, Plan())[1])


def test_code_that_was_seen_is_not_compiled_again() -> None:
    graph = graph_of(pointwise_then_sum())
    _, _, code = realise(graph, Plan())
    with pytest.raises(DuplicateCode) as caught:
        realise(graph, Plan(config=(("realize_opcount_threshold", 999),)), seen_codes=[code])
    assert caught.value.code_key == code


def test_leaf_ids_do_not_depend_on_the_order_of_independent_statements() -> None:
    x = torch.randn(16, 32)

    def one(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.sin(x).sum(-1)
        columns = torch.cos(x).sum(0)
        return rows, columns

    def other(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        columns = torch.cos(x).sum(0)
        rows = torch.sin(x).sum(-1)
        return rows, columns

    first, second = graph_of((one, (x,))), graph_of((other, (x,)))
    assert first.key == second.key
    assert first.order != second.order
    leaves = [{leaf for group in realise(graph, Plan())[1] for leaf in group} for graph in (first, second)]
    assert leaves[0] == leaves[1]
    assert len(leaves[0]) >= 2


def test_a_native_op_becomes_a_library_call() -> None:
    graph = graph_of(gelu_of_norm())
    _, default, code = realise(graph, Plan())
    compiled, groups, native_code = realise(graph, Plan(native=("aten.gelu.default",)))
    assert any("FallbackKernel" in leaf or "ExternKernel" in leaf for group in groups for leaf in group)
    assert not any("FallbackKernel" in leaf or "ExternKernel" in leaf for group in default for leaf in group)
    assert native_code != code
    torch.testing.assert_close(compiled(make_inputs(graph, 0))[0], to_fx(graph)(*make_inputs(graph, 0))[0])


def test_native_ops_are_kept_where_the_environment_says_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    graph = graph_of((lambda x: torch.nn.functional.mish(x) + 1, (torch.randn(32, 128),)))
    compiled, groups, _ = realise(graph, Plan(native=("aten.mish.default",)))
    assert any("FallbackKernel" in leaf or "ExternKernel" in leaf for group in groups for leaf in group)
    torch.testing.assert_close(compiled(make_inputs(graph, 0))[0], to_fx(graph)(*make_inputs(graph, 0))[0])


def test_the_native_form_decomposes_to_the_graph_itself() -> None:
    from tuner.compilers.inductor.decompose import late_decompose
    from tuner.workload.fx import from_fx

    graph = graph_of(gelu_of_norm())
    assert graph.native_form is not None
    assert {"aten.gelu.default", "aten.native_layer_norm.default"} <= set(graph.native_form.calls)
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = [mode.from_tensor(value) for value in make_inputs(graph, 0)]
    assert from_fx(late_decompose(to_fx(graph.native_form), (), fakes)).key == graph.key


def groups_of(gm: Any, inputs: Any, graph: Graph) -> Groups:
    """The default's groups; nothing is compiled."""
    static = graph.call_positions if graph.symbols else graph.static_inputs
    with pytest.raises(PlanNotRealised) as caught:
        compile_candidate(gm, inputs, Plan(), expected=(), static_input_idxs=static, is_inference=True, graph_id=0)
    return caught.value.groups


def test_leaves_are_called_the_same_whatever_torch_calls_the_symbols() -> None:
    found: list[tuple[Graph, Groups]] = []

    def inner(gm: Any, inputs: Any, **kwargs: Any) -> Any:
        graph = form_of(gm, kwargs, inputs)
        found.append((graph, groups_of(copied(gm), inputs, graph)))

        def run(values: list[Any]) -> Any:
            return gm.forward(*values)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def function(x: torch.Tensor, zeta: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.cat([x, zeta]) * x.shape[0], -1).reshape(-1)

    torch._dynamo.reset()
    with torch.no_grad(), functorch_config.patch(enable_autograd_cache=False):
        torch.compile(function, backend=lambda gm, inputs: compile_fx(gm, inputs, inner_compile=inner), dynamic=True)(
            torch.randn(6, 8), torch.randn(9, 8)
        )
    torch._dynamo.reset()
    ((graph, users),) = found
    rebuilt = groups_of(*symbolic_module(graph), graph)
    assert len(graph.symbols) == 3
    assert any("s0" in leaf for group in users for leaf in group)
    assert rebuilt == users
    assert Plan.from_json(Plan(groups=users).to_json()).groups == users
