"""One graph with a size that varies, compiled once: checked and timed at each of the policy's sizes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tuner.compilers.inductor.capture import capture
from tuner.compilers.marks import marked
from tuner.errors import UnsupportedGraph
from tuner.measure.device import open_device
from tuner.measurement import Policy
from tuner.plan import Plan, canonical_groups
from tuner.search_spaces.fusion import no_fusion
from tuner.workers.builder import in_order, native_order
from tuner.workers.session import DEFAULT_KEY, Session
from tuner.workload.fx import to_fx
from tuner.workload.graph import Graph
from tuner.workload.inputs import make_inputs
from tuner.workload.shapes import Dim

pytestmark = pytest.mark.slow
SIZES = ((3,), (16,), (130,))
POLICY = replace(Policy.for_cpu(1), sizes=SIZES)
NATIVE = Plan(native=("aten._softmax.default",))


def attention(scores: Tensor, bias: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """Yields a view of a size that is an expression; writes what it is given."""
    weights = torch.softmax(scores * 0.5 + bias, -1)
    total.add_(weights.sum(-1))
    return weights.reshape(-1, 32), weights * scores.shape[0]


@pytest.fixture(scope="module")
def graph() -> Graph:
    generator = torch.Generator().manual_seed(0)
    inputs = (torch.randn(8, 4, 32, generator=generator), torch.randn(4, 32, generator=generator), torch.zeros(8, 4))
    dim = Dim("batch", (8,), ((0, 0), (2, 0)))
    ((found,),) = [program.graphs for program in capture(attention, marked(inputs, [dim]), None)]
    return Graph.from_json(json.loads(json.dumps(found.to_json())))


@pytest.fixture(scope="module")
def session(graph: Graph) -> Iterator[Session]:
    with torch.no_grad():
        yield Session(graph, 0, POLICY, open_device("cpu"))


def test_the_default_is_checked_at_each_size_and_told_with_its_memory_at_each(session: Session) -> None:
    told = session.describe_default()
    assert told["status"] == "ok"
    assert 0 <= told["error"] <= 1
    assert len(told["peak_bytes"]) == len(SIZES)
    assert told["peak_bytes"] == sorted(told["peak_bytes"])
    assert [one.timed.values[0].shape[0] for one in session.sized] == [3, 16, 130]
    assert told["default_ms"] == pytest.approx(math.prod(one.default_ms for one in session.sized) ** (1 / 3))


def test_plans_run_at_each_size_native_ops_and_groups_too(session: Session) -> None:
    groups = session.entries[DEFAULT_KEY].built.realised.groups
    assert groups is not None
    apart = Plan(groups=no_fusion(canonical_groups(groups)))
    for plan in (NATIVE, apart, Plan(config=(("realize_reads_threshold", 1),))):
        verdict = session.try_plan(plan, plan.groups, [])
        assert verdict["status"] == "ok", verdict
        assert 0 <= verdict["error"] <= 1
        assert len(verdict["peak_bytes"]) == len(SIZES)
    assert all("s0" in leaf for group in groups for leaf in group), "symbols are numbered by first use"
    told = session.time_plans([NATIVE.key, apart.key], 4, seed=1)
    assert {key: len(times) for key, times in told["times"].items()} == dict.fromkeys((DEFAULT_KEY, NATIVE.key, apart.key), 12)
    assert all(ms > 0 for times in told["times"].values() for ms in times)
    assert len(told["conditions"]["at_sizes"]) == len(SIZES)


def test_what_is_wrong_at_one_size_only_is_wrong(session: Session) -> None:
    right = session.entries[DEFAULT_KEY].built.function

    def wrong_when_large(inputs: list[Tensor]) -> list[Tensor]:
        large = inputs[0] == 130
        outputs = list(right(inputs))
        return [outputs[0] * 1.5, *outputs[1:]] if large else outputs

    built = replace(session.entries[DEFAULT_KEY].built, function=wrong_when_large)
    assert [one.deviation(right) <= 1 for one in session.sized] == [True] * 3
    assert session._checked(built).error > 1
    assert [one.deviation(wrong_when_large) <= 1 for one in session.sized] == [True, True, False]


def test_a_native_form_that_numbers_its_sizes_otherwise_is_called_as_the_graph_is() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.softmax(x * 2, -1) + y.sum()

    inputs = (torch.ones(6, 5), torch.ones(7))
    dims = [Dim("rows", (6,), ((0, 0),)), Dim("length", (7,), ((1, 0),))]
    ((graph,),) = [program.graphs for program in capture(function, marked(inputs, dims), None)]
    native = graph.native_form
    assert native is not None
    order = native_order(graph, native)
    swapped = replace(native, nodes=tuple(_renamed(node) for node in native.nodes), symbols=native.symbols[::-1])
    assert native_order(graph, swapped) == [1 - number for number in order]
    gm = to_fx(swapped)
    in_order(gm, native_order(graph, swapped))
    made = make_inputs(graph, 0, (3, 4))
    torch.testing.assert_close(gm(*made), to_fx(graph)(*made))


def _renamed(node: object) -> object:
    """A node with s0 and s1 exchanged."""
    text = json.dumps(node.to_json())  # type: ignore[attr-defined]
    swapped = text.replace("s0", "s_").replace("s1", "s0").replace("s_", "s1")
    return type(node)(*json.loads(swapped))


def test_code_that_the_compiler_makes_for_some_sizes_only_is_not_measured_at_others() -> None:
    ((sorting,),) = [
        program.graphs
        for program in capture(lambda x: torch.sort(x, -1).values, marked((torch.ones(2, 8),), [Dim("n", (8,), ((0, 1),))]), None)
    ]
    # It sorts by indexes of 16 bits where they do.
    policy = replace(POLICY, sizes=((8,), (40_000,)))
    with torch.no_grad(), pytest.raises(UnsupportedGraph, match="makes other code for s0=40000"):
        Session(sorting, 0, policy, open_device("cpu"))


def test_inputs_at_each_size_hold_what_was_seen_there() -> None:
    def masked(x: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax(torch.where(mask, x, -1e9), -1)

    dims = (Dim("length", (24, 40), ((0, 0), (0, 1), (1, 0), (1, 1))),)
    causal = {size: torch.ones(size, size, dtype=torch.bool).tril() for size in (24, 40)}
    seen = {
        size: next(one.graphs[0] for one in capture(masked, marked((torch.randn(size, size), mask), dims), None))
        for size, mask in causal.items()
    }
    assert seen[24].key == seen[40].key
    data = [graph.data for graph in seen.values()]
    with torch.no_grad():
        policy = replace(POLICY, sizes=tuple(graph.hints for graph in seen.values()))
        session = Session(seen[24], 0, policy, open_device("cpu"), data)
    for one, mask in zip(session.sized, causal.values(), strict=True):
        assert any(torch.equal(value, mask) for value in one.timed.values if value.dtype == torch.bool)
