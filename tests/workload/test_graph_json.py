"""A graph goes to JSON and comes back as itself: same key, same results, same writes."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.nn import functional
from tracing import copied, graph_of, numbers, random_program, random_program_inputs, traced

from tuner.errors import SpecError
from tuner.workload.fx import from_fx, make_inputs, to_fx
from tuner.workload.graph import Graph


def update(param, grad, average):
    param.mul_(0.9)
    average.lerp_(grad, 0.1)
    param.addcdiv_(average, grad.abs().add_(1e-3), value=-0.01)


def write_into_a_view(x, y):
    x[1:].add_(y[:-1])
    return x.sum(), y[0]


def write_through_an_alias(x, y):
    y.mul_(2)
    return x + 1


def aliases():
    base = numbers(64)
    return base[:32], base[16:48]


BASE = numbers(6, 4)
CASES = {
    "pointwise": (lambda x: (x * 2 + 1).relu(), numbers(3, 4)),
    "scalar tensor": (lambda x: x * 2, torch.tensor(3.0)),
    "no elements": (lambda x: x.sum(0) + 1, numbers(0, 3)),
    "list of tensors": (lambda x, y: torch.cat([x, y, x], 1), numbers(3, 4), numbers(3, 2)),
    "list with gaps": (lambda x, i: x[:, i], numbers(3, 4), torch.tensor([3, 0, -1])),
    "several outputs of one op": (lambda x: torch.topk(x, 3), numbers(3, 9)),
    "one of several outputs": (lambda x: torch.split(x, 2)[1] + 1, numbers(6, 3)),
    "same output twice": (lambda x: ((y := x + 1), y), numbers(3)),
    "input as output": (lambda x: (x, x + 1), numbers(3)),
    "nothing as output": (lambda x: (None, x + 1, 3), numbers(3)),
    "dtype and memory format": (lambda x: x.to(torch.float64, memory_format=torch.channels_last), numbers(2, 3, 4, 4)),
    "dtype, layout and device": (lambda x: x + torch.ones(3, dtype=torch.bfloat16, device="cpu"), numbers(3)),
    "infinite literal": (lambda x: x.masked_fill(x > 0, float("-inf")), numbers(9)),
    "NaN literal": (lambda x: torch.where(x > 0, x, float("nan")), numbers(9)),
    "long integer literal": (lambda x: x + (2**63 - 1), torch.arange(4)),
    "string argument": (lambda x, y: torch.div(x, y, rounding_mode="floor"), numbers(9), numbers(9, seed=1)),
    "zero constant": (lambda x: x + torch.tensor([0.0, 0.0, 0.0]), numbers(3)),
    "scalar constant": (lambda x: x + torch.tensor([2.5]), numbers(3)),
    "infinite scalar constant": (lambda x: x + torch.tensor([float("-inf")]), numbers(3)),
    "module": (nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.GELU()).eval(), numbers(3, 4)),
    "convolution, channels last": (nn.Conv2d(3, 4, 3), numbers(1, 3, 8, 8).to(memory_format=torch.channels_last)),
    "batch norm": (nn.BatchNorm1d(4).eval(), numbers(3, 4)),
    "batch norm that counts": (nn.BatchNorm1d(4).train(), numbers(3, 4)),
    "attention": (lambda x: functional.scaled_dot_product_attention(x, x, x), numbers(1, 2, 6, 4)),
    "embedding": (lambda table, i: functional.embedding(i, table), numbers(16, 3), torch.tensor([3, 15, 0])),
    "scatter": (lambda x, i: x.scatter_add(0, i, torch.ones(5)), numbers(3), torch.tensor([0, 1, 2, 0, 1])),
    "transposed": (lambda x: x.exp(), numbers(6, 4).t()),
    "strided": (lambda x: x.exp(), numbers(6, 8)[:, ::2]),
    "expanded": (lambda x: x.exp(), numbers(6, 1).expand(6, 4)),
    "overlapping": (lambda x: x.exp(), numbers(8).unfold(0, 3, 1)),
    "booleans": (lambda x: ~x, numbers(8) > 0),
    "int8": (lambda x: x.to(torch.float32) * 0.5, torch.arange(-8, 8, dtype=torch.int8)),
    "bfloat16": (lambda x: x.sin(), numbers(8, dtype=torch.bfloat16)),
    "complex": (lambda x: x * x.conj(), numbers(8).to(torch.complex64)),
    "complex literal": (lambda x: (x * (2 + 1j)).sum(), numbers(3).to(torch.complex64)),
    "number as input": (lambda x, factor: x * factor, numbers(3), 2.5),
    "in place": (lambda x: x.add_(1), numbers(3, 4)),
    "in place, nothing returned": (update, numbers(3, 4), numbers(3, 4, seed=1), numbers(3, 4, seed=2)),
    "in place, read before and after": (lambda x: (x.sum(), x.mul_(2).sum()), numbers(3, 4)),
    "in place into a view": (write_into_a_view, numbers(3, 4), numbers(3, 4, seed=1)),
    "in place through an alias": (write_through_an_alias, *aliases()),
    "in place, one after the other": (lambda x, y: (x.mul_(2), y.add_(x), None)[2], numbers(3), numbers(3, seed=1)),
}


def through_json(graph: Graph) -> Graph:
    return Graph.from_json(json.loads(json.dumps(graph.to_json(), allow_nan=False)))


@pytest.fixture(scope="module", params=CASES)
def case(request):
    """A graph as the compiler is given it, and inputs for it. Tests that write into the inputs copy them."""
    function, *inputs = CASES[request.param]
    return traced(function, *inputs)


def test_a_graph_comes_back_from_json_as_it_was(case):
    gm, _ = case
    graph = from_fx(gm, static_inputs=(0,))
    assert through_json(graph) == graph
    assert through_json(graph).key == graph.key


def test_a_rebuilt_graph_has_the_same_key_when_it_is_traced_again(case):
    gm, inputs = case
    graph = from_fx(gm)
    rebuilt = to_fx(through_json(graph))
    with FakeTensorMode() as mode, torch.no_grad():
        FakeTensorProp(rebuilt, mode).propagate(*(mode.from_tensor(value) for value in inputs))
    again = from_fx(rebuilt)
    assert again.key == graph.key
    assert (again.order, again.mutated) == (graph.order, graph.mutated)


def test_a_rebuilt_graph_computes_and_writes_the_same(case):
    gm, inputs = case
    graph = through_json(from_fx(gm))
    mine, theirs = ([copied(value) for value in inputs] for _ in range(2))
    with torch.no_grad():
        got, wanted = to_fx(graph)(*mine), gm(*theirs)
    assert len(got) == len(wanted)
    for left, right in zip([*got, *mine], [*wanted, *theirs], strict=True):
        assert same(left, right)
    written = [i for i, (before, after) in enumerate(zip(inputs, theirs, strict=True)) if not same(before, after)]
    assert set(written) <= set(graph.mutated), "inputs that are written are known"


def test_a_rebuilt_graph_runs_on_inputs_made_for_it(case):
    gm, inputs = case
    graph = through_json(from_fx(gm))
    made = make_inputs(graph, seed=1)
    for value, seen in zip(made, inputs, strict=True):
        assert (value.dtype, value.shape, value.stride()) == (seen.dtype, seen.shape, seen.stride())
    with torch.no_grad():
        to_fx(graph)(*made)


def same(left, right) -> bool:
    if not isinstance(left, torch.Tensor):
        return left == right and type(left) is type(right)
    if (left.dtype, left.shape, left.stride()) != (right.dtype, right.shape, right.stride()):
        return False
    return torch.equal(left.isnan(), right.isnan()) and torch.equal(left.nan_to_num(), right.nan_to_num())


@pytest.mark.parametrize("seed", range(6))
def test_a_random_program_comes_back_as_it_was(seed):
    gm, inputs = traced(random_program(seed, order=seed), *random_program_inputs())
    graph = from_fx(gm)
    back = through_json(graph)
    assert (back, back.key) == (graph, graph.key)
    for got, wanted in zip(to_fx(back)(*inputs), gm(*inputs), strict=True):
        assert same(got, wanted)


def test_written_inputs_are_known_by_their_position():
    graph = graph_of(lambda x, y, z: (z.exp() + x, y.mul_(2))[0], numbers(3), numbers(4), numbers(3))
    assert [graph.inputs[i].value[1] for i in graph.mutated] == [[4]]
    assert graph_of(lambda x: x.clone().mul_(2), numbers(3)).mutated == ()


def test_inputs_stand_in_the_order_in_which_a_call_passes_them():
    gm, _ = traced(lambda x, y, z: (z.exp() @ y).sum() + x, numbers(2), numbers(4, 5), numbers(3, 4))
    shapes = [tuple(node.meta["val"].shape) for node in gm.graph.find_nodes(op="placeholder")]
    assert sorted(shapes) == [(2,), (3, 4), (4, 5)]
    assert [tuple(node.value[1]) for node in through_json(from_fx(gm)).inputs] == shapes


def test_the_order_of_statements_survives_though_it_is_not_in_the_key():
    def plain(x, y):
        left, right = x.exp(), y.sin()
        return left @ right

    def swapped(x, y):
        right, left = y.sin(), x.exp()
        return left @ right

    def targets(function):
        gm = to_fx(through_json(graph_of(function, numbers(3, 3), numbers(3, 3))))
        return [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]

    assert targets(plain)[:2] == ["aten.exp.default", "aten.sin.default"]
    assert targets(swapped)[:2] == ["aten.sin.default", "aten.exp.default"]


def test_dead_statements_are_left_out():
    def function(x):
        return x.exp()

    gm, _ = traced(function, numbers(3))
    (output,) = gm.graph.find_nodes(op="output")
    with gm.graph.inserting_before(output):
        gm.graph.call_function(torch.ops.aten.sin.default, (next(iter(gm.graph.nodes)),))
    assert from_fx(gm).key == graph_of(function, numbers(3)).key
    assert from_fx(gm).calls == ("aten.exp.default",)


def test_a_graph_can_be_hashed_and_compared():
    first, second = (graph_of(lambda x: x.exp(), numbers(3)) for _ in range(2))
    assert first == second
    assert len({first, second, graph_of(lambda x: x.sin(), numbers(3))}) == 2


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(lambda good: {}, id="empty"),
        pytest.param(lambda good: {**good, "schema": 2}, id="newer schema"),
        pytest.param(lambda good: {name: value for name, value in good.items() if name != "data"}, id="no data"),
        pytest.param(lambda good: {**good, "nodes": [["input"]]}, id="short node"),
        pytest.param(lambda good: {**good, "user_visible": [float("inf")]}, id="infinite place"),
        pytest.param(lambda good: {**good, "nodes": None}, id="no nodes"),
        pytest.param(lambda good: {**good, "data": [[1, 2]]}, id="short data"),
        pytest.param(lambda good: {**good, "native_form": {}}, id="broken native form"),
    ],
)
def test_a_malformed_stored_graph_is_refused(broken):
    good = graph_of(lambda x: x.exp(), numbers(3)).to_json()
    Graph.from_json(good)
    with pytest.raises(SpecError):
        Graph.from_json(broken(good))
