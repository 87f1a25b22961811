"""What the compiler schedules of a graph: leaves, buffers, operations, order."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from tuner.anatomy import Anatomy, Leaf
from tuner.compilers.inductor.anatomy import read_anatomy
from tuner.compilers.inductor.capture import capture
from tuner.plan import Plan
from tuner.workers.builder import Builder, fake_inputs
from tuner.workload.graph import Graph

Function = Callable[..., Any]


def graphs_of(function: Function, *inputs: torch.Tensor) -> list[Graph]:
    return [graph for program in capture(function, inputs) for graph in program.graphs]


def read(graph: Graph, plan: Plan | None = None) -> Anatomy:
    found = Builder(graph, fake_inputs(graph)).anatomy(plan or Plan())
    assert isinstance(found, Anatomy), found
    return found


def anatomy_of(function: Function, *inputs: torch.Tensor) -> Anatomy:
    (graph,) = graphs_of(function, *inputs)
    return read(graph)


def kinds(anatomy: Anatomy) -> list[str]:
    return sorted(leaf.kind.removeprefix("ComputedBuffer.") for leaf in anatomy.leaves)


def the_one(anatomy: Anatomy, kind: str) -> tuple[int, Leaf]:
    (found,) = [(i, leaf) for i, leaf in enumerate(anatomy.leaves) if leaf.kind.endswith(kind)]
    return found


def targets(anatomy: Anatomy, leaf: Leaf) -> list[str]:
    return [anatomy.ops[i].target for i in leaf.ops]


def masked_softmax(score: torch.Tensor, bias: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.where(mask, score * 0.125 + bias, float("-inf")), -1)


def score_bias_mask() -> tuple[torch.Tensor, ...]:
    return torch.randn(4, 8, 16), torch.randn(8, 16), torch.ones(8, 16, dtype=torch.bool)


def test_a_masked_softmax_is_four_leaves_in_a_row_over_its_inputs() -> None:
    anatomy = anatomy_of(masked_softmax, *score_bias_mask())
    assert kinds(anatomy) == ["Pointwise", "Pointwise", "Reduction", "Reduction"]
    assert all(leaf.fusable for leaf in anatomy.leaves)
    highest, exponential, total, quotient = range(4)
    made = {leaf.writes[0]: i for i, leaf in enumerate(anatomy.leaves)}
    after = [leaf.after for leaf in anatomy.leaves]
    assert after == [(), (highest,), (exponential,), (exponential, total)]
    assert [[made[buffer] for buffer in leaf.reads if buffer in made] for leaf in anatomy.leaves] == list(map(list, after))
    inputs = [anatomy.buffers[buffer] for buffer in anatomy.leaves[highest].reads]
    assert sorted((buffer.meta, buffer.bytes, buffer.source, buffer.escapes) for buffer in inputs) == [
        ("bool[8,16]{16,1}", 128, "input", False),
        ("float32[4,8,16]{128,16,1}", 2048, "input", False),
        ("float32[8,16]{16,1}", 512, "input", False),
    ]
    (result,) = anatomy.leaves[quotient].writes
    assert (anatomy.buffers[result].source, anatomy.buffers[result].escapes) == ("leaf", True)
    assert sum(buffer.escapes for buffer in anatomy.buffers) == 1


def test_what_is_computed_within_a_leaf_may_be_cut_and_what_is_in_memory_or_a_constant_may_not() -> None:
    anatomy = anatomy_of(masked_softmax, *score_bias_mask())
    cuts = {op.target: op.cut for op in anatomy.ops}
    assert cuts["aten.where.self"].endswith(":aten.where.self")
    assert cuts["aten.add.Tensor"]
    assert not any(cuts[name] for name in ("aten.amax.default", "aten.exp.default", "aten.div.Tensor"))
    where = next(i for i, op in enumerate(anatomy.ops) if op.target == "aten.where.self")
    assert [where in leaf.ops for leaf in anatomy.leaves] == [True, True, False, False]
    assert "aten.add.Tensor" in {anatomy.ops[i].target for i in anatomy.ops[where].inputs}


def test_a_library_call_is_a_leaf_that_fuses_with_nothing() -> None:
    anatomy = anatomy_of(lambda x, w: torch.relu(x @ w), torch.randn(8, 16), torch.randn(16, 4))
    call, product = the_one(anatomy, "ExternKernelOut")
    _, rest = the_one(anatomy, "Pointwise")
    assert (product.fusable, rest.fusable) == (False, True)
    assert rest.after == (call,)
    assert rest.reads == product.writes
    assert targets(anatomy, product) == ["aten.mm.default"]
    assert len(product.reads) == 2


def test_groups_are_those_that_come_of_the_plan() -> None:
    (graph,) = graphs_of(masked_softmax, *score_bias_mask())
    default = read(graph)
    assert sorted(leaf for group in default.groups for leaf in group) == sorted(leaf.id for leaf in default.leaves)
    assert any(len(group) > 1 for group in default.groups)
    alone = tuple((leaf.id,) for leaf in default.leaves)
    unfused = read(graph, Plan(groups=alone))
    assert unfused.groups == alone
    assert (unfused.leaves, unfused.buffers, unfused.ops) == (default.leaves, default.buffers, default.ops)
    native = read(graph, Plan(native=("aten._softmax.default",)))
    assert kinds(native) == ["FallbackKernel", "MultiOutput", "Pointwise"]


def test_what_a_plan_may_not_keep_native_is_a_verdict() -> None:
    (graph,) = graphs_of(masked_softmax, *score_bias_mask())
    told = Builder(graph, fake_inputs(graph)).anatomy(Plan(native=("aten._softmax.default#7",)))
    assert isinstance(told, dict)
    assert (told["status"], told["why"]) == ("refused", "not allowed here")


def test_it_is_the_same_after_its_way_through_json() -> None:
    anatomy = anatomy_of(masked_softmax, *score_bias_mask())
    assert Anatomy.from_json(json.loads(json.dumps(anatomy.to_json()))) == anatomy


def test_a_graph_without_operations_has_no_leaves() -> None:
    gm = torch.fx.symbolic_trace(lambda x: (x,))
    x = torch.randn(4)
    (passed,) = gm.graph.find_nodes(op="placeholder")
    passed.meta["val"] = x
    assert read_anatomy(gm, [x], Plan(), is_inference=True, graph_id=0) == Anatomy((), (), (), ())
