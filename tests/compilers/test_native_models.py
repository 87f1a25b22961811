"""Native ops, one occurrence at a time, on ten models: what a plan does not keep is decomposed to what the default has."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from serving import Bench, Example, gelu_of_norm, realise
from torch import nn
from torch.nn import functional

from tuner.compilers.inductor.capture import capture
from tuner.compilers.inductor.decompose import late_decompose
from tuner.errors import PlanRefused
from tuner.plan import Plan
from tuner.search_spaces.native import NATIVE_OPS
from tuner.workers.builder import fake_inputs
from tuner.workload.fx import from_fx, make_inputs, op_name, to_fx
from tuner.workload.graph import Graph


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    """One head over a mask that is no constant."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = (query @ key.transpose(-1, -2)).masked_fill(mask, float("-inf"))
        return torch.softmax(scores, -1).tril() @ key


class Gated(nn.Module):
    """RMSNorm and SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.gate, self.down = nn.RMSNorm(16), nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Labels(nn.Module):
    """Embedding, two activations, cross entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = functional.gelu(self.head(functional.gelu(self.table(tokens))))
        return functional.cross_entropy(hidden, tokens, label_smoothing=0.1)


class Step(nn.Module):
    """One step of an LSTM, and what it says of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(16, 16), nn.Linear(16, 32)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden, state = self.cell(x, (hidden, state))
        return functional.log_softmax(self.head(hidden), -1), hidden, state


def dequantised(packed: torch.Tensor, scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    weight = (packed.to(torch.float32) - 128) * scale
    return functional.hardswish(x.to(torch.bfloat16).to(torch.float32) @ weight.t())


def upsampled(x: torch.Tensor) -> torch.Tensor:
    wide = functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
    return functional.leaky_relu(functional.pad(wide, (1, 1, 1, 1), mode="reflect")) + functional.pixel_shuffle(x, 2).sum()


MODELS: dict[str, Callable[[], tuple[Any, tuple[torch.Tensor, ...]]]] = {
    "MLP": lambda: (
        nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.Mish(), nn.LayerNorm(16)),
        (normal(4, 16),),
    ),
    # Dropout keeps its training path off, and the layer off its fused fast path.
    "transformer layer": lambda: (_encoder(), (normal(2, 6, 16),)),
    "convolution, batch norm": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.SiLU()),
        (normal(2, 3, 12, 12),),
    ),
    "group norm": lambda: (
        nn.Sequential(nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 8, 1), nn.Softplus()),
        (normal(2, 8, 6, 6),),
    ),
    "embedding, loss": lambda: (Labels(), (torch.arange(12) % 32,)),
    "LSTM cell": lambda: (Step(), (normal(4, 16), normal(4, 16), normal(4, 16))),
    "attention with a mask": lambda: (Attention(), (normal(2, 6, 8), normal(2, 6, 8) + 1, normal(6, 6) > 1)),
    "RMSNorm, SwiGLU": lambda: (Gated(), (normal(4, 16),)),
    "upsampling": lambda: (upsampled, (normal(1, 4, 6, 6),)),
    "dequantised": lambda: (dequantised, ((normal(8, 16) * 30 + 128).to(torch.uint8), normal(8, 1), normal(4, 16))),
}


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", batch_first=True)
    torch.backends.mha.set_fastpath_enabled(False)
    return layer


@pytest.fixture(autouse=True)
def _fast_path() -> Any:
    yield
    torch.backends.mha.set_fastpath_enabled(True)


def graph_of(example: Example) -> Graph:
    function, inputs = example
    if isinstance(function, nn.Module):
        function.eval()
    (graph,) = [graph for program in capture(function, inputs) for graph in program.graphs]
    return graph


@functools.cache
def model(name: str) -> Graph:
    return graph_of(MODELS[name]())


def ops(gm: torch.fx.GraphModule) -> Counter[str]:
    return Counter(op_name(node.target) for node in gm.graph.nodes if node.op == "call_function")


def decomposed(graph: Graph, *keep: str) -> torch.fx.GraphModule:
    assert graph.native_form is not None
    return late_decompose(to_fx(graph.native_form), keep, fake_inputs(graph))


@pytest.mark.parametrize("name", MODELS)
def test_with_nothing_kept_the_ops_are_the_defaults(name: str) -> None:
    graph = model(name)
    assert graph.native_form is not None, "nothing of it can stay native"
    assert NATIVE_OPS.intersection(graph.native_form.calls)
    made = decomposed(graph)
    assert sorted(ops(made).elements()) == sorted(graph.calls)
    assert from_fx(made).key == graph.key


@pytest.mark.parametrize("name", MODELS)
def test_of_each_op_one_occurrence_can_be_kept_and_the_others_decomposed(name: str) -> None:
    graph = model(name)
    assert graph.native_form is not None
    calls = graph.native_form.calls
    gm = to_fx(graph)
    with torch.no_grad():
        wanted = gm(*make_inputs(graph, 0))
        for op in sorted(NATIVE_OPS.intersection(calls)):
            for i in range(calls.count(op)):
                kept = decomposed(graph, f"{op}#{i}")
                assert ops(kept)[op] == 1
                for one, other in zip(kept(*make_inputs(graph, 0)), wanted, strict=True):
                    torch.testing.assert_close(one, other)
            whole = decomposed(graph, op)
            assert ops(whole)[op] == calls.count(op)
            every = decomposed(graph, *(f"{op}#{i}" for i in range(calls.count(op))))
            assert from_fx(every).key == from_fx(whole).key


def twice() -> Example:
    """The same op on two inputs of other sizes."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return functional.gelu(x) + 1, functional.gelu(y) * 2

    return function, (normal(8, 16), normal(8, 24))


def swapped() -> Example:
    """`twice` with its statements in the other order: an equal graph."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        second = functional.gelu(y) * 2
        return functional.gelu(x) + 1, second

    return function, twice()[1]


@pytest.mark.parametrize(("index", "width"), [(0, 16), (1, 24)])
def test_an_occurrence_is_the_same_one_whatever_the_order_of_the_statements(index: int, width: int) -> None:
    first, second = graph_of(twice()), graph_of(swapped())
    assert first.key == second.key
    for graph in (first, second):
        (node,) = [n for n in decomposed(graph, f"aten.gelu.default#{index}").graph.nodes if str(n.target) == "aten.gelu.default"]
        assert node.meta["val"].shape == (8, width)


def test_one_occurrence_is_a_library_call_and_the_rest_is_fused() -> None:
    graph = graph_of(twice())
    compiled, groups, _ = realise(graph, Plan(native=("aten.gelu.default#1",)))
    leaves = [leaf for group in groups for leaf in group]
    assert sum("Kernel" in leaf for leaf in leaves) == 1
    assert any("ComputedBuffer" in leaf for leaf in leaves)
    for one, other in zip(compiled(make_inputs(graph, 0)), to_fx(graph)(*make_inputs(graph, 0)), strict=True):
        torch.testing.assert_close(one, other)


def test_an_occurrence_is_kept_where_a_program_is_served(bench: Bench) -> None:
    example = twice()
    stored = bench.settle(example, Plan(native=("aten.gelu.default#1",)))
    cold, report = bench.run(example)
    assert [(served.outcome, served.realised) for served in report["served"]] == [("served", stored)]
    warm, _ = bench.run(example)
    assert torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"] == 1
    for found in (cold, warm):
        for one, other in zip(found, example[0](*example[1]), strict=True):
            torch.testing.assert_close(one, other)


def test_an_occurrence_that_the_graph_lacks_is_refused() -> None:
    with pytest.raises(PlanRefused, match=r"aten.gelu.default#1"):
        decomposed(graph_of(gelu_of_norm()), "aten.gelu.default#1")
