"""Training graphs: what capture keeps of a forward and its backward is what Inductor is given when a user trains."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tuner.compilers.inductor.capture import capture, form_of, graph_forms
from tuner.compilers.inductor.hooks import compile_fx, compile_fx_inner, functorch_config, inductor_config
from tuner.errors import SpecError
from tuner.search.workloads import resolve_callable
from tuner.workload.graph import Graph
from tuner.workload.step import Step

Example = tuple[Callable[..., Any], tuple[Tensor, ...]]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def normed() -> Example:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU()), (numbers(8, 32),)


def convolved() -> Example:
    """What it keeps for its backward is laid out otherwise than as it was traced."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), (numbers(2, 4, 8, 8),)


def dropped() -> Example:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.Tanh()), (numbers(4, 16).requires_grad_(),)


def captured(example: Example) -> list[Graph]:
    """As they come out of a store."""
    (program,) = capture(*example, phase="training")
    return [Graph.from_json(json.loads(json.dumps(graph.to_json()))) for graph in program.graphs]


def compiled(example: Example) -> list[str]:
    """Keys of what Inductor really compiles in a training step, each when it is compiled."""
    keys = []

    def backend(gm: Any, inputs: Any) -> Any:
        def inner(made: Any, inputs_like: Any, **kwargs: Any) -> Any:
            keys.append(form_of(made, kwargs, inputs_like).key)
            return compile_fx_inner(made, inputs_like, **kwargs)

        return compile_fx(gm, inputs, inner_compile=inner)

    function, inputs = example
    torch._dynamo.reset()
    with inductor_config.patch(fx_graph_cache=False), functorch_config.patch(enable_autograd_cache=False):
        Step(inputs)(torch.compile(function, backend=backend, dynamic=False))
    return keys


def test_a_step_gives_a_forward_and_a_backward_graph():
    forward, backward = captured(normed())
    assert (forward.phase, backward.phase) == ("forward", "backward")
    assert forward.user_visible == (0,), "the rest is kept for the backward"
    assert forward.key != backward.key
    assert forward.native_form is None


def test_a_backward_says_which_of_its_inputs_its_forward_yields():
    forward, backward = captured(normed())
    assert {name for name in backward.names if not name.startswith("tangents")} == set(forward.yields[1:])
    assert [node.value for node, name in zip(backward.inputs, backward.names, strict=True) if name == "primals_1"] in (
        [],
        [forward.inputs[0].value],
    )


def test_what_was_seen_in_the_inputs_of_both_is_kept_but_not_what_parameters_hold():
    forward, backward = captured(normed())
    assert all(seen.std > 0 for graph in (forward, backward) for seen in graph.data if seen.runs is None)
    text = json.dumps([forward.to_json(), backward.to_json()])
    weight = normed()[0][0].weight  # type: ignore[index]
    assert all(str(value)[:7] not in text for value in weight[0, :20].tolist())


def test_what_is_not_told_to_train_is_captured_without_gradients():
    (program,) = capture(*normed())
    assert [graph.phase for graph in program.graphs] == ["inference"]
    assert [workload.graph.phase for workload in resolve_callable("m.py:f", *normed())] == ["forward", "backward"]
    (alone,) = resolve_callable("m.py:f", *normed(), phase="inference")
    assert alone.graph.key == program.graphs[0].key


def test_what_cannot_train_is_refused_in_words():
    with pytest.raises(SpecError, match="no output requires a gradient"):
        resolve_callable("m.py:f", torch.sin, (numbers(4),), phase="training")


def test_capture_leaves_no_gradient_behind():
    function, inputs = normed()
    capture(function, inputs, phase="training")
    assert all(parameter.grad is None for parameter in function.parameters())  # type: ignore[attr-defined]


@pytest.mark.parametrize("make", [normed, convolved, dropped])
def test_a_back_end_knows_both_graphs_before_it_has_compiled_one(make: Callable[[], Example]):
    found: list[Graph] = []

    def backend(gm: Any, inputs: Any) -> Any:
        found.extend(graph_forms(gm, inputs, {}))
        return gm.forward

    function, inputs = make()
    torch._dynamo.reset()
    torch.compile(function, backend=backend, dynamic=False)(*inputs)
    assert [graph.key for graph in found] == [graph.key for graph in captured(make())]


def test_sizes_that_vary_are_symbols_in_both_graphs():
    (program,) = capture(*normed(), dynamic=True, phase="training")
    assert [[symbol.hint for symbol in graph.symbols] for graph in program.graphs] == [[8], [8]]


@pytest.mark.slow
@pytest.mark.parametrize("make", [normed, convolved, dropped])
def test_the_keys_are_those_of_what_is_compiled_for_a_user(make: Callable[[], Example]):
    assert compiled(make()) == [graph.key for graph in captured(make())]
