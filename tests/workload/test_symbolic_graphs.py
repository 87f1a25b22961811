"""Graphs whose sizes vary: one key whatever torch calls the symbols, and the same graph again when it is rebuilt."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from tracing import forms_of, numbers

from tuner.errors import UnsupportedGraph
from tuner.search.workloads import sizes_of
from tuner.workload.fx import from_fx, make_inputs, to_fx
from tuner.workload.graph import Graph, InputData
from tuner.workload.symbolic import symbolic_module


def activated(x):
    return torch.nn.functional.gelu(x * 2).reshape(-1)


def two_sizes(x, y):
    return torch.cat([x, y]).softmax(-1) * x.shape[0], x.flatten()[::2]


def weighted(x, weight):
    return (x @ weight).tanh().sum(0)


CASES = {
    "pointwise": (activated, (numbers(6, 4),)),
    "two sizes and a number": (two_sizes, (numbers(6, 4), numbers(9, 4))),
    "convolution": (
        lambda x: torch.nn.functional.conv2d(x.expand(-1, 3, -1, -1), torch.ones(3, 3, 3, 3), stride=2, padding=1).flatten(1),
        (numbers(2, 1, 9, 11),),
    ),
    "a resized image": (lambda x: torch.nn.functional.interpolate(x, scale_factor=1.5), (numbers(1, 2, 6, 8),)),
    "a range": (lambda x: x + torch.arange(x.shape[0])[:, None] // 2, (numbers(6, 5),)),
    "a number": (lambda x, factor: x * factor, (numbers(3, 4), 7)),
    "in place": (lambda x: x.add_(x.shape[0]), (numbers(6, 4),)),
}


def graph_of(function, *inputs) -> Graph:
    _, (graph,) = forms_of(function, inputs, dynamic=True)
    return graph


def test_automatic_and_demanded_dynamism_give_one_key():
    automatic = forms_of(activated, (numbers(6, 4),), (numbers(7, 5),))
    demanded = forms_of(activated, (numbers(5, 9),), dynamic=True)
    assert automatic[0] == demanded[0]
    assert automatic[1][0].key == demanded[1][0].key
    assert (automatic[1][0].hints, demanded[1][0].hints) == ((7, 5), (5, 9))


def test_automatic_dynamism_and_a_marked_size_give_one_key_for_program_and_graph():
    automatic = forms_of(activated, (numbers(6, 4),), (numbers(7, 4),))
    marked = numbers(5, 4)
    torch._dynamo.mark_dynamic(marked, 0)
    program, (graph,) = forms_of(activated, (marked,))
    assert automatic[0] == program
    assert automatic[1][0].key == graph.key
    assert (automatic[1][0].hints, graph.hints) == ((7,), (5,))


def test_dynamic_true_and_automatic_dynamism_agree_where_only_one_size_can_vary():
    layer = torch.nn.Linear(4, 4).requires_grad_(False)
    automatic = forms_of(layer, (numbers(6, 4),), (numbers(7, 4),))
    demanded = forms_of(layer, (numbers(5, 4),), dynamic=True)
    assert automatic[0] == demanded[0]
    assert automatic[1][0].key == demanded[1][0].key


def test_a_key_depends_neither_on_names_nor_on_the_order_of_independent_statements():
    def one(x, y):
        left = x.exp()
        right = y.sin()
        return left.sum(0) - right.sum(0)

    def other(hidden, zeta):
        right = zeta.sin()
        left = hidden.exp()
        return left.sum(0) - right.sum(0)

    inputs = numbers(6, 4), numbers(9, 4)
    first, second = graph_of(one, *inputs), graph_of(other, *inputs)
    assert first.key == second.key
    assert len(first.symbols) == 3
    assert [symbol.hint for symbol in first.symbols] == [6, 4, 9]


def test_what_a_symbol_may_be_is_in_the_key_and_what_it_was_is_not():
    def marked(least, most):
        x = numbers(6, 4)
        torch._dynamo.mark_dynamic(x, 0, min=least, max=most)
        return forms_of(activated, (x,))[1][0]

    assert marked(2, 64).symbols[0].high == 64
    assert len({marked(2, 64).key, marked(2, 32).key, marked(4, 64).key}) == 3
    graph = marked(2, 64)
    assert replace(graph, symbols=(replace(graph.symbols[0], hint=9),)).key == graph.key
    static = forms_of(activated, (numbers(6, 4),), dynamic=False)[1][0]
    assert static.symbols == ()
    assert static.key != graph.key


def training(function, *inputs, **more):
    return forms_of(function, inputs, dynamic=True, training=True, **more)[1]


def test_the_key_of_a_backward_does_not_depend_on_what_was_done_to_the_forward():
    inputs = numbers(6, 4), numbers(4, 4).requires_grad_()

    def narrow(values):
        (size, *_) = [value for value in values if isinstance(value, torch.SymInt)]
        torch._check(size <= 4096)
        assert size.node.shape_env.var_to_range[size.node.expr].upper == 4096

    forward, backward = training(weighted, *inputs)
    _, after = training(weighted, *inputs, after_each=narrow)
    assert (forward.phase, backward.phase) == ("forward", "backward")
    assert after.key == backward.key
    assert after.symbols[0].high is None


@pytest.mark.parametrize("name", CASES)
def test_a_rebuilt_graph_is_the_same_and_computes_the_same_at_other_sizes(name):
    function, inputs = CASES[name]
    graph = graph_of(function, *inputs)
    assert graph.symbols
    assert not [node for node in graph.nodes if node.target.startswith(("operator.mul", "aten.sym"))]
    graph = Graph.from_json(json.loads(json.dumps(graph.to_json(), allow_nan=False)))
    gm, fakes = symbolic_module(graph)
    again = from_fx(gm, graph.phase, graph.call_positions)
    assert (again.key, again.symbols) == (graph.key, graph.symbols)
    sizes = [symbol.hint + (2 if symbol.high is None else 0) for symbol in graph.symbols]
    made = make_inputs(graph, 1, sizes)
    assert len(made) == len(fakes)
    assert made[: len(sizes)] == sizes
    copies = [value.clone() if isinstance(value, torch.Tensor) else value for value in made]
    wanted = function(*_as_called(graph, function, copies, inputs))
    got = to_fx(graph)(*made)
    for one, other in zip(got, wanted if isinstance(wanted, tuple) else [wanted], strict=True):
        torch.testing.assert_close(one, other)


def _as_called(graph, function, made, inputs):
    """What the function is called with: a form's inputs stand in the order of the call, and numbers among them are symbols."""
    tensors = iter(made[len(graph.symbols) :])
    return [next(tensors) if isinstance(value, torch.Tensor) else made[len(graph.symbols) - 1] for value in inputs]


def test_a_training_graph_with_symbols_is_rebuilt_as_it_was():
    forward, backward = training(weighted, numbers(6, 4), numbers(4, 4).requires_grad_())
    assert {"sym": "s0"} in forward.outputs
    assert None not in backward.outputs
    for graph in (forward, backward):
        gm, _ = symbolic_module(graph)
        assert from_fx(gm, graph.phase, graph.call_positions).key == graph.key
    outputs = to_fx(forward)(*make_inputs(forward, 0, {"s0": 9}))
    assert 9 in [value for value in outputs if not isinstance(value, torch.Tensor)]


def convolutional():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3, stride=2), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten())


TRAINED = {
    "attention": (lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x).mean(0), (numbers(2, 2, 8, 4),)),
    "convolution and batch norm": (convolutional(), (numbers(3, 2, 9, 8),)),
    "embedding": (lambda table, i: torch.nn.functional.embedding(i, table).sum(1), (numbers(20, 4), torch.arange(15).view(3, 5))),
}


@pytest.mark.parametrize("name", TRAINED)
def test_forward_and_backward_of_a_layer_are_rebuilt_as_they_were(name):
    function, (first, *rest) = TRAINED[name]
    for graph in training(function, first.clone().requires_grad_(), *rest):
        gm, _ = symbolic_module(graph)
        again = from_fx(gm, graph.phase, graph.call_positions)
        assert [node.to_json() for node in again.nodes] == [node.to_json() for node in graph.nodes]
        assert again.key == graph.key
        to_fx(graph)(*make_inputs(graph, 0))


def test_a_size_that_a_symbol_cannot_have_is_refused():
    graph = graph_of(activated, numbers(6, 4))
    with pytest.raises(UnsupportedGraph, match="s0 cannot be 1"):
        symbolic_module(graph, {"s0": 1})


def test_indexes_made_for_smaller_sizes_stay_within_them():
    graph = graph_of(lambda table, index: table[index], numbers(64, 4), torch.tensor([63, 0, 5]))
    place = next(i for i, node in enumerate(graph.inputs) if node.value[0] == "int64")
    data = list(graph.data)
    data[place] = InputData(0, 63)
    graph = replace(graph, data=tuple(data))
    made = make_inputs(graph, 0, [symbol.hint if symbol.hint != 64 else 8 for symbol in graph.symbols])
    to_fx(graph)(*made)
    assert int(made[len(graph.symbols) + place].max()) < 8


def test_what_was_seen_at_other_sizes_than_a_graph_was_made_for_is_no_obstacle():
    graph = graph_of(activated, numbers(6, 4))
    graph = replace(graph, data=(InputData(0.0, 1.0, runs=((0.0, 20), (1.0, 20))),))
    assert make_inputs(graph, 0)[2].shape == (6, 4)
    assert make_inputs(graph, 0, [10, 4])[2].flatten().tolist() == [0.0] * 20 + [1.0] * 20


def test_what_was_one_value_throughout_is_so_at_every_size():
    graph = graph_of(activated, numbers(6, 4))
    graph = replace(graph, data=(InputData(1.0, 1.0, 1.0, 0.0, ((1.0, 24),)),))
    assert torch.equal(make_inputs(graph, 0, [8, 4])[2], torch.ones(8, 4))


def test_sizes_at_which_an_op_has_no_place_to_read_from_are_left_out_and_the_op_is_named():
    graph = graph_of(lambda x: torch.select(torch.cat([x, x]), 0, 40) * 1.5, numbers(32))
    graph = replace(graph, symbols=(replace(graph.symbols[0], low=2),))
    with pytest.raises(UnsupportedGraph, match=r"IndexError at aten\.select"):
        symbolic_module(graph, (16,))
    assert sizes_of(graph) == ((32,), (64,))
