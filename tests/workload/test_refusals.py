"""What cannot be stored, rebuilt or tuned is refused, and the refusal names it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn
from tracing import graph_of, numbers

from tuner.compilers.inductor.capture import capture
from tuner.errors import SpecError, UnsupportedGraph
from tuner.workload.fx import from_fx, op_from_name, op_name, to_fx


@pytest.fixture
def doubled() -> Iterator[torch._library.custom_ops.CustomOpDef]:
    @torch.library.custom_op("tuner_test::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    doubled.register_fake(torch.empty_like)
    yield doubled
    doubled._destroy() if hasattr(doubled, "_destroy") else doubled._lib._destroy()


def refusal_of(function, *inputs) -> UnsupportedGraph:
    with pytest.raises(UnsupportedGraph) as caught:
        capture(function, inputs)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_custom_op_cannot_be_rebuilt_and_is_named(doubled):
    graph = graph_of(lambda x: doubled(x.exp()).sin(), numbers(3))
    assert "tuner_test.doubled.default" in graph.calls, "it has a key: a look-up may ask for it"
    with pytest.raises(UnsupportedGraph, match=r"tuner_test\.doubled\.default"):
        to_fx(graph)


@pytest.mark.parametrize("name", ["_c10d_functional.all_reduce.default", "c10d.allreduce_.default"])
def test_a_collective_is_refused_as_one_and_by_node(name):
    graph = graph_of(lambda x: x.exp().sin(), numbers(3))
    (place,) = [i for i, node in enumerate(graph.nodes) if node.target == "aten.sin.default"]
    nodes = list(graph.nodes)
    nodes[place] = replace(nodes[place], target=name)
    with pytest.raises(UnsupportedGraph, match=rf"node {place} {name} is a collective") as caught:
        to_fx(replace(graph, nodes=tuple(nodes)))
    assert caught.value.reason == "collective"


def test_an_op_that_reaches_for_a_file_is_not_called_for_a_stored_graph():
    with pytest.raises(UnsupportedGraph, match="would map a file"):
        op_from_name("aten.from_file.default")


def test_an_op_that_this_torch_does_not_have_is_named():
    with pytest.raises(UnsupportedGraph, match=r"aten\.no_such_op\.default"):
        op_from_name("aten.no_such_op.default")
    with pytest.raises(UnsupportedGraph, match=r"aten\.add\.no_such_overload"):
        op_from_name("aten.add.no_such_overload")


@pytest.mark.parametrize(
    "name", ["os.system", "builtins.eval", "operator.attrgetter", "", "aten", "aten.add", "torch.ops.aten.add"]
)
def test_a_stored_graph_cannot_call_anything_but_ops(name):
    with pytest.raises(UnsupportedGraph):
        op_from_name(name)


@pytest.mark.parametrize("op", [torch.ops.aten.add.Tensor, torch.ops.aten.__and__.Scalar, torch.ops.prims.iota.default])
def test_an_op_is_found_again_by_its_name(op):
    assert op_from_name(op_name(op)) is op


@pytest.mark.parametrize(
    ("function", "node"),
    [
        pytest.param(torch.nonzero, "nonzero", id="nonzero"),
        pytest.param(lambda x: x[x > 0].exp(), "index", id="boolean index"),
        pytest.param(lambda x: torch.unique(x), "_unique2", id="unique"),
    ],
)
def test_shapes_that_depend_on_data_are_refused_by_node(function, node):
    error = refusal_of(function, numbers(6, 4))
    assert error.reason == "symbolic_sizes"
    assert f"node {node}" in str(error)


def test_a_node_that_is_neither_an_op_nor_an_input_is_refused_by_name():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            return self.layer(x)

    with pytest.raises(UnsupportedGraph):
        from_fx(torch.fx.symbolic_trace(Model()))


def test_a_callable_of_which_nothing_is_compiled_is_refused():
    with pytest.raises(SpecError, match="nothing to tune"):
        capture(lambda x: x, [numbers(3)])


def test_a_callable_that_fails_is_refused_with_one_line():
    with pytest.raises(SpecError) as caught:
        capture(lambda x: x @ x, [numbers(3, 4)])
    assert "\n" not in str(caught.value)


def test_capturing_goes_on_after_a_refusal():
    refusal_of(torch.nonzero, numbers(6, 4))
    (program,) = capture(lambda x: x.exp(), [numbers(3)])
    assert program.graphs[0].calls == ("aten.exp.default",)
