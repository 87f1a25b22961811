"""What the worker measures is what a user's compile gets: the same generated code, but for comments and kernel names."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from serving import Bench, Example, gelu_of_norm, pointwise_then_sum, realise

from tuner.compilers.inductor.apply import compile_candidate
from tuner.compilers.inductor.capture import form_of
from tuner.compilers.inductor.decompose import TableWithout
from tuner.compilers.inductor.hooks import GraphLowering, compile_fx, compile_fx_inner, functorch_config, inductor_config
from tuner.plan import Plan
from tuner.search.workloads import resolve_callable
from tuner.search_spaces.fusion import no_fusion
from tuner.workers.builder import Builder
from tuner.workload.inputs import make_inputs
from tuner.workload.step import Step
from tuner.workload.symbolic import symbolic_module

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[2] / "examples" / "graphs.py"


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every code that Inductor generates during the test."""
    seen: list[str] = []
    monkeypatch.setattr(GraphLowering, "save_output_code", staticmethod(seen.append))
    with inductor_config.patch(fx_graph_cache=False), functorch_config.patch(enable_autograd_cache=False):
        yield seen


def plain(code: str) -> str:
    """Generated code without comments, with kernels numbered: their names tell which modules the user wrote."""
    lines = [line for line in code.splitlines() if not line.strip().startswith("#")]
    text = "\n".join(lines).partition("def benchmark_compiled_module")[0]
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match.group(0) not in names:
            names.append(match.group(0))
        return f"kernel_{names.index(match.group(0))}"

    return re.sub(r"cpp_fused_\w*", number, text)


def example(name: str) -> Example:
    spec = importlib.util.spec_from_file_location("example_graphs", EXAMPLES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: Example = getattr(module, name)()
    return made


def conv_channels_last() -> Example:
    conv = torch.nn.Conv2d(8, 8, 3, padding=1).eval().requires_grad_(False)
    x = torch.randn(2, 8, 16, 16).to(memory_format=torch.channels_last)
    return lambda x: torch.relu(conv(x)).mean((2, 3)), (x,)


def transposed_output() -> Example:
    return lambda x: (torch.sin(x).t(), x.t().contiguous() + 1), (torch.randn(24, 40),)


@pytest.mark.parametrize(
    "make",
    [
        lambda: example("encoder_layer"),
        lambda: example("masked_softmax"),
        lambda: example("adamw_step"),
        lambda: example("int8_dequantise_gelu"),
        conv_channels_last,
        transposed_output,
    ],
    ids=["encoder_layer", "masked_softmax", "adamw_step", "int8_dequantise_gelu", "conv_channels_last", "transposed_output"],
)
def test_the_default_is_measured_as_users_get_it(make: Callable[[], Example], codes: list[str], bench: Bench) -> None:
    function, inputs = make()
    graph = bench.resolve((function, inputs)).graph
    codes.clear()
    with torch.no_grad():
        torch.compile(function, dynamic=False)(*inputs)
    realise(graph, Plan(), static_input_idxs=graph.static_inputs)
    users, measured = codes
    assert plain(measured) == plain(users)


def without_names(code: str) -> list[str]:
    """Lines of `plain` code but for where a size stands among what is passed; symbols and tensors by their first appearance."""
    names: dict[str, str] = {}
    passing = re.compile(r"args|^ *return \[|^ *(?:s\d+|assert .*) = |_1 = ")
    lines = [line for line in plain(code).splitlines() if not passing.search(line)]
    pattern = re.compile(r"\b(?:s\d+|arg\d+_1)\b")
    return [pattern.sub(lambda match: names.setdefault(match.group(0), f"name{len(names)}"), line) for line in lines]


def test_a_graph_with_symbolic_sizes_is_measured_as_users_get_it(codes: list[str], bench: Bench) -> None:
    layer = torch.nn.Linear(32, 32).requires_grad_(False)
    graphs = []

    def inner(gm: Any, inputs: Any, **kwargs: Any) -> Any:
        graphs.append(form_of(gm, kwargs, inputs))
        return compile_fx_inner(gm, inputs, **kwargs)

    bench.new_process()
    compiled = torch.compile(
        lambda x: torch.softmax(layer(x) * x.shape[0], -1),
        backend=lambda gm, inputs: compile_fx(gm, inputs, inner_compile=inner),
        dynamic=True,
    )
    with torch.no_grad():
        compiled(torch.randn(24, 32))
    (graph,) = graphs
    gm, fakes = symbolic_module(graph)
    compile_candidate(
        gm, fakes, Plan(), is_inference=True, static_input_idxs=graph.call_positions, graph_id=0, get_decomp_fn=TableWithout(())
    )
    users, measured = codes
    assert [symbol.hint for symbol in graph.symbols] == [24]
    assert "extern_kernels" in users
    assert without_names(measured) == without_names(users)


@pytest.mark.parametrize("kind", ["native", "groups", "knob"])
def test_a_plan_is_served_as_it_was_measured(kind: str, codes: list[str], bench: Bench) -> None:
    made: Any = gelu_of_norm if kind == "native" else pointwise_then_sum
    graph = bench.resolve(made()).graph
    plan = {
        "native": Plan(native=("aten.gelu.default",)),
        "knob": Plan(config=(("realize_opcount_threshold", 1),)),
        "groups": Plan(groups=no_fusion(realise(graph, Plan())[1])),
    }[kind]
    bench.settle(made(), plan)
    codes.clear()
    realise(graph, plan)
    _, report = bench.run(made())
    assert [graph.outcome for graph in report["served"]] == ["served"]
    measured, served = codes
    assert plain(served) == plain(measured)


def conv_in_training() -> Example:
    """What its forward keeps is laid out otherwise than as it was traced; it writes running statistics."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
    return net, (torch.randn(2, 4, 12, 12),)


def dropout_in_training() -> Example:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Dropout(0.5), torch.nn.Tanh())
    return net, (torch.randn(8, 32).requires_grad_(),)


@pytest.mark.parametrize(
    "make",
    [lambda: example("layer_norm_step"), conv_in_training, dropout_in_training],
    ids=["layer_norm_step", "conv", "dropout"],
)
def test_a_forward_and_a_backward_are_measured_as_users_get_them(make: Callable[[], Example], codes: list[str]) -> None:
    function, inputs = make()
    graphs = [workload.graph for workload in resolve_callable("test", function, inputs)]
    assert [graph.phase for graph in graphs] == ["forward", "backward"]
    codes.clear()
    torch._dynamo.reset()
    Step(inputs)(torch.compile(function, dynamic=False))
    users = list(codes)
    codes.clear()
    for graph in graphs:
        with torch.no_grad():
            Builder(graph, make_inputs(graph, seed=0)).build(Plan())
    for measured, users_own in zip(codes, users, strict=True):
        # What needs no gradient is None in a user's backward, which a stored one leaves out: nothing is computed for it.
        wanted = [line.replace("None, ", "") if "return (" in line else line for line in plain(users_own).splitlines()]
        assert plain(measured).splitlines() == wanted
