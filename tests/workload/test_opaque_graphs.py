"""What cannot be made again in another process has a key by its content, and is refused where it would be rebuilt."""

from __future__ import annotations

import json
import operator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import fx
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention
from tracing import graph_of, numbers

from tuner.errors import UnsupportedGraph
from tuner.workload.fx import from_fx, to_fx
from tuner.workload.graph import Graph
from tuner.workload.inputs import UNSEEN
from tuner.workload.seen import seen_in_all


@torch.compiler.nested_compile_region
def region(x):
    return x.sin() * 2


CASES: dict[str, tuple[Any, ...]] = {
    "higher_order.cond": (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), numbers(3)),
    "higher_order.while_loop": (
        lambda x: while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y.sin()), (torch.tensor(0), x)),
        numbers(3),
    ),
    "higher_order.scan": (lambda x: scan(lambda c, y: (c + y, c * y), torch.zeros(4), x), numbers(5, 4)),
    "higher_order.flex_attention": (lambda x: flex_attention(x, x, x), numbers(1, 2, 16, 8)),
    "higher_order.invoke_subgraph": (lambda x: region(region(x)) + 1, numbers(5, 4)),
    "higher_order.with_effects": (torch.linalg.inv, numbers(3, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_an_op_that_holds_graphs_or_effects_has_a_key_and_is_refused_by_name_when_rebuilt(name):
    function, *inputs = CASES[name]
    graph = graph_of(function, *inputs)
    assert name in graph.opaque
    assert Graph.from_json(json.loads(json.dumps(graph.to_json()))).key == graph.key
    with pytest.raises(UnsupportedGraph) as caught:
        to_fx(graph)
    assert caught.value.reason == "unsupported_node"
    assert any(opaque in str(caught.value) for opaque in graph.opaque)


def test_nested_graphs_count_by_their_content_and_not_by_their_names():
    def branching(one, other):
        return graph_of(lambda x: torch.cond(x.sum() > 0, one, other, (x,)), numbers(3)).key

    def sine(value):
        return value.sin()

    assert branching(torch.sin, torch.cos) == branching(sine, torch.cos)
    assert len({branching(torch.sin, torch.cos), branching(torch.cos, torch.sin), branching(torch.sin, torch.tan)}) == 3


def test_a_graph_without_such_nodes_is_not_opaque():
    assert graph_of(lambda x: x.topk(2)[0] + 1, numbers(3)).opaque == ()


class FakeKernel:
    """Looks like a kernel of Triton's, which need not be there."""

    def __init__(self, source: str, **scope: Any):
        exec(source, scope)
        self.src, self.fn = source, scope["kernel"]
        self.__name__ = "kernel"


class Tuned:
    """Looks like a kernel under Triton's autotuner."""

    configs, keys = ("BLOCK: 64",), ("n",)

    def __init__(self, kernel: FakeKernel):
        self.fn = kernel


SOURCE = "def kernel(x, n):\n    return helper(x) + LIMIT\n"


def calling(kernel: Any, constants: dict[str, Any] | None = None) -> Graph:
    """A graph that calls a user's kernel, as Dynamo leaves it."""
    made = fx.Graph()
    x = made.placeholder("x")
    called = made.call_function(
        torch.ops.higher_order.triton_kernel_wrapper_functional,
        kwargs={
            "kernel_idx": kernel_side_table.add_kernel(kernel),
            "constant_args_idx": kernel_side_table.add_constant_args(constants or {"n": 8}),
            "grid": [(1, 1, 1)],
            "tma_descriptor_metadata": {},
            "kwargs": {"x": x},
            "tensors_to_clone": ["x"],
        },
    )
    made.output((made.call_function(operator.getitem, (called, "x")),))
    x.meta["val"] = torch.empty(8)
    return from_fx(fx.GraphModule(torch.nn.Module(), made))


@pytest.fixture
def _kernels_forgotten():
    yield
    kernel_side_table.reset_table()


@pytest.mark.usefixtures("_kernels_forgotten")
def test_a_users_kernel_counts_by_its_source_and_constants_and_not_by_its_number():
    helper = FakeKernel("def kernel(x):\n    return x * 2\n")
    first = calling(FakeKernel(SOURCE, helper=helper, LIMIT=3))
    again = calling(FakeKernel(SOURCE, helper=helper, LIMIT=3))
    assert first.key == again.key
    assert "higher_order.triton_kernel_wrapper_functional" in first.opaque
    others = [
        calling(FakeKernel(SOURCE + "# other\n", helper=helper, LIMIT=3)),
        calling(FakeKernel(SOURCE, helper=FakeKernel("def kernel(x):\n    return x * 3\n"), LIMIT=3)),
        calling(FakeKernel(SOURCE, helper=helper, LIMIT=4)),
        calling(FakeKernel(SOURCE, helper=helper, LIMIT=3), {"n": 16}),
        calling(Tuned(FakeKernel(SOURCE, helper=helper, LIMIT=3))),
    ]
    assert len({graph.key for graph in [first, *others]}) == 6


@pytest.mark.usefixtures("_kernels_forgotten")
def test_a_users_kernel_counts_by_what_has_one_name_in_two_modules_and_by_what_a_module_holds():
    def key(own, others, limit):
        settings = ModuleType("settings")
        settings.LIMIT = limit
        scale, another = (FakeKernel(f"def kernel(x):\n    return x * {by}\n") for by in (own, others))
        helper = FakeKernel("def kernel(x):\n    return scale(x)\n", scale=another)
        source = "def kernel(x, n):\n    return helper(scale(x)) + settings.LIMIT\n"
        return calling(FakeKernel(source, helper=helper, scale=scale, settings=settings)).key

    assert key(2, 3, 4) == key(2, 3, 4)
    assert len({key(2, 3, 4), key(5, 3, 4), key(2, 5, 4), key(2, 3, 5)}) == 4


@pytest.mark.usefixtures("_kernels_forgotten")
def test_a_kernel_without_a_source_is_refused_with_a_reason():
    with pytest.raises(UnsupportedGraph) as caught:
        calling(object())
    assert caught.value.reason == "user_kernel"


def reduced(group: str) -> Graph:
    made = fx.Graph()
    x = made.placeholder("x")
    summed = made.call_function(torch.ops._c10d_functional.all_reduce.default, (x, "sum", group))
    made.output((made.call_function(torch.ops._c10d_functional.wait_tensor.default, (summed,)),))
    for node in made.nodes:
        node.meta["val"] = torch.empty(8)
    return from_fx(fx.GraphModule(torch.nn.Module(), made))


@pytest.fixture
def _alone():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("_alone")
def test_a_collective_counts_by_its_kind_and_the_size_of_its_group_and_not_by_the_groups_name():
    everyone = torch.distributed.group.WORLD.group_name
    other = torch.distributed.new_group([0]).group_name
    assert everyone != other
    assert reduced(everyone).key == reduced(other).key
    assert reduced(everyone).key != reduced("a group of nobody").key
    with pytest.raises(UnsupportedGraph, match=r"all_reduce\.default is a collective") as caught:
        to_fx(reduced(everyone))
    assert caught.value.reason == "collective"


def test_a_sparse_tensor_is_told_by_its_layout():
    made = fx.Graph()
    x = made.placeholder("x")
    made.output((made.call_function(torch.ops.aten.sin.default, (x,)),))
    gm = fx.GraphModule(torch.nn.Module(), made)
    keys = []
    for value in (torch.ones(3, 3), torch.ones(3, 3).to_sparse(), torch.ones(3, 3).to_sparse_csr()):
        for node in made.nodes:
            node.meta["val"] = value
        keys.append(from_fx(gm).key)
    assert len(set(keys)) == 3


def test_nothing_is_remembered_of_an_input_without_strides():
    dense = torch.ones(3, 3)
    assert seen_in_all([dense.to_sparse(), 7, dense])[0] == UNSEEN
    assert len(seen_in_all([dense.to_sparse(), 7, dense])) == 2


def kept_for_a_backward(calls: list[tuple[Any, Any]]) -> str:
    """The key of a forward that yields nothing but what it keeps: each function of the input, and of a constant or a graph."""
    root, made = torch.nn.Module(), fx.Graph()
    x = made.placeholder("x")
    for i, (_, held) in enumerate(calls):
        setattr(root, f"held_{i}", held)
    outputs = [made.call_function(function, (x, made.get_attr(f"held_{i}"))) for i, (function, _) in enumerate(calls)]
    made.output(tuple(outputs)).meta["user_visible_output_idxs"] = []
    for node in (x, *outputs):
        node.meta["val"] = torch.empty(8)
    return from_fx(fx.GraphModule(root, made), phase="forward").key


def test_what_is_kept_is_told_apart_by_names_constants_and_nested_graphs_and_not_by_addresses_or_order():
    def named(name):
        scope: dict[str, Any] = {"__name__": "made"}
        exec(f"def {name}(x, y):\n    return x", scope)
        return scope[name]

    def nested(function):
        inner = fx.Graph()
        inner.output((inner.call_function(function, (inner.placeholder("y"),)),))
        return fx.GraphModule(torch.nn.Module(), inner)

    one = torch.tensor(1.0)
    cases = [
        lambda: [(named("first"), one), (named("second"), one)],
        lambda: [(torch.ops.aten.mul.Tensor, torch.tensor(2.0)), (torch.ops.aten.mul.Tensor, torch.tensor(3.0))],
        lambda: [(torch.ops.aten.mul.Tensor, nested(op)) for op in (torch.ops.aten.sin.default, torch.ops.aten.cos.default)],
    ]
    for case in cases:
        made = [case() for _ in range(8)]
        keys = [kept_for_a_backward(calls) for calls in made] + [kept_for_a_backward(calls[::-1]) for calls in made]
        assert len(set(keys)) == 1
