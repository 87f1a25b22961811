"""What the compiler schedules of a graph: leaves, buffers, operations, order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from splits import single_splits

from tuner.anatomy import Anatomy, Leaf
from tuner.compilers.inductor import events
from tuner.compilers.inductor.capture import capture
from tuner.compilers.inductor.hooks import compile_fx
from tuner.compilers.inductor.lowered import lower
from tuner.compilers.inductor.program import copied
from tuner.plan import Plan
from tuner.search_spaces.fusion import no_fusion
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


def test_what_a_library_call_reads_is_made_by_other_leaves_and_may_be_cut_there() -> None:
    anatomy = anatomy_of(lambda x, w: torch.nn.functional.gelu(x) @ w, torch.randn(8, 16), torch.randn(16, 4))
    assert targets(anatomy, the_one(anatomy, "ExternKernelOut")[1]) == ["aten.mm.default"]
    made_of = targets(anatomy, the_one(anatomy, "Pointwise")[1])
    assert "aten.erf.default" in made_of
    assert "aten.mm.default" not in made_of
    cuts = {op.target for op in anatomy.ops if op.cut}
    assert "aten.erf.default" in cuts


def test_a_buffer_that_is_read_twice_has_one_place() -> None:
    (one,) = anatomy_of(lambda x: x[:4] + x[4:], torch.randn(8, 16)).leaves
    (other,) = anatomy_of(lambda x, y: x[:4] + y[4:], torch.randn(8, 16), torch.randn(8, 16)).leaves
    assert (len(one.reads), len(other.reads)) == (1, 2)
    assert one.content != other.content


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


def test_other_groups_are_read_without_lowering_the_graph_again(monkeypatch: pytest.MonkeyPatch) -> None:
    (graph,) = graphs_of(masked_softmax, *score_bias_mask())
    builder = Builder(graph, fake_inputs(graph))
    default = builder.anatomy(Plan())
    assert isinstance(default, Anatomy)
    wanted = [Plan(groups=groups) for groups in (no_fusion(default.groups), *single_splits(default.groups), default.groups)]
    anew = [read(graph, plan) for plan in (*wanted, Plan())]
    assert len({anatomy.groups for anatomy in anew}) >= 3
    with monkeypatch.context() as patch:
        patch.setattr(Builder, "module", None)
        assert [builder.anatomy(plan) for plan in (*wanted, Plan())] == anew
    cut = next(op.cut for op in default.ops if op.cut)
    assert builder.anatomy(Plan(cuts=(cut,))) == read(graph, Plan(cuts=(cut,)))
    assert builder.anatomy(Plan()) == default


def test_where_a_graph_cannot_be_scheduled_again_it_is_lowered_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    (graph,) = graphs_of(masked_softmax, *score_bias_mask())
    builder = Builder(graph, fake_inputs(graph))
    default = builder.anatomy(Plan())
    assert isinstance(default, Anatomy)
    apart = Plan(groups=no_fusion(default.groups))
    monkeypatch.setattr("torch._inductor.debug.DebugContext", lambda: 1 / 0)
    assert builder.anatomy(apart) == read(graph, apart)
    assert events.report()["counts"]["not scheduled again: ZeroDivisionError"] >= 1


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
    assert lower(gm, [x], Plan(), is_inference=True, graph_id=0).anatomy == Anatomy((), (), (), ())


def test_an_input_that_is_updated_is_one_buffer_that_is_rewritten_after_it_was_read() -> None:
    def update(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        before = torch.cumsum(x, 0)
        x.mul_(y)
        return torch.cumsum(x, 1) + before

    anatomy = anatomy_of(update, torch.randn(8, 16), torch.randn(8, 16))
    (rewritten,) = [i for i, buffer in enumerate(anatomy.buffers) if buffer.source == "input" and buffer.escapes]
    (writer,) = [i for i, leaf in enumerate(anatomy.leaves) if rewritten in leaf.writes]
    readers = [i for i, leaf in enumerate(anatomy.leaves) if rewritten in leaf.reads and i != writer]
    assert len(readers) == 2
    assert set(readers) <= set(anatomy.leaves[writer].after)
    assert anatomy.buffers[rewritten].bytes == 8 * 16 * 4


def test_what_is_joined_is_pieces_that_are_read_and_one_that_is_whole() -> None:
    anatomy = anatomy_of(lambda x, y: torch.cat([x.sin(), y.cos()]) @ x.mT, torch.randn(8, 16), torch.randn(4, 16))
    join, whole = the_one(anatomy, "ConcatKernel")
    assert not whole.fusable
    assert [anatomy.buffers[piece].bytes for piece in whole.reads] == [8 * 16 * 4, 4 * 16 * 4]
    assert [anatomy.buffers[made].bytes for made in whole.writes] == [12 * 16 * 4]
    assert the_one(anatomy, "ExternKernelOut")[1].after == (join,)


def test_a_view_that_a_library_call_gives_is_the_memory_that_it_views() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.polar(x.exp(), x)) + 1

    anatomy = anatomy_of(function, torch.randn(8))
    writes = [buffer for leaf in anatomy.leaves for buffer in leaf.writes]
    assert len(writes) == len(set(writes)) < len(anatomy.leaves)
    complex_ones = [i for i, buffer in enumerate(anatomy.buffers) if buffer.meta.startswith("complex64")]
    assert any(set(complex_ones) & set(leaf.reads) for leaf in anatomy.leaves if leaf.fusable)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(32), torch.nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + torch.nn.functional.dropout(torch.nn.functional.gelu(self.linear(x)), 0.25, self.training))


def blocks(count: int) -> torch.nn.Module:
    return torch.nn.Sequential(*(Block() for _ in range(count)))


def test_the_leaves_of_equal_layers_have_equal_contents() -> None:
    anatomy = anatomy_of(blocks(3).eval(), torch.randn(4, 32))
    contents = [leaf.content for leaf in anatomy.leaves]
    period = len(contents) // 3
    assert contents[:period] == contents[period : 2 * period] == contents[2 * period :]
    assert len(set(contents[:period])) == period
    assert [leaf.fusable for leaf in anatomy.leaves[:period]].count(False) == 1


def training_anatomies(function: Function, *inputs: torch.Tensor) -> list[Anatomy]:
    return [read(graph) for program in capture(function, inputs, phase="training") for graph in program.graphs]


@pytest.mark.slow
def test_the_forward_and_the_backward_of_a_training_step_have_layers_that_are_equal_too() -> None:
    forward, backward = training_anatomies(blocks(3).train(), torch.randn(4, 32, requires_grad=True))
    for anatomy in (forward, backward):
        counts = Counter(leaf.content for leaf in anatomy.leaves if leaf.fusable)
        # The outermost layers' neighbours are not those of the others, and seeds are drawn once for all.
        assert sum(count >= 2 for count in counts.values()) > len(counts) / 2
    assert any(buffer.escapes for buffer in forward.buffers)
    assert not {leaf.content for leaf in backward.leaves if leaf.fusable} <= {leaf.content for leaf in forward.leaves}


def rows_then_columns(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.sin(x).sum(-1)
    columns = torch.cos(y).sum(0)
    return rows, columns


def columns_then_rows(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    second = torch.cos(y).sum(0)
    first = torch.sin(x).sum(-1)
    return first, second


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_the_order_of_independent_statements_and_names_of_variables_do_not_matter(phase: str) -> None:
    inputs = [torch.randn(8, 16, requires_grad=phase == "training") for _ in range(2)]
    ones, others = (
        [graph for program in capture(function, inputs, phase=phase) for graph in program.graphs]
        for function in (rows_then_columns, columns_then_rows)
    )
    assert [graph.key for graph in ones] == [graph.key for graph in others]
    assert [graph.order for graph in ones] != [graph.order for graph in others]
    assert [read(graph) for graph in ones] == [read(graph) for graph in others]


def as_compiled(function: Function, *inputs: torch.Tensor, dynamic: bool = False) -> list[Anatomy]:
    """The anatomy of each graph that torch.compile makes for a call without gradients, read where it would be compiled."""
    found: list[Anatomy] = []

    def inner(gm: Any, inputs: Any, **kwargs: Any) -> Any:
        found.append(lower(copied(gm), inputs, Plan(), **kwargs).anatomy)

        def run(values: list[Any]) -> Any:
            return gm.forward(*values)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def backend(gm: Any, inputs: Any) -> Any:
        return compile_fx(gm, inputs, inner_compile=inner)

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=backend, dynamic=dynamic)(*inputs)
    torch._dynamo.reset()
    return found


def test_symbols_are_texts_that_do_not_depend_on_what_torch_calls_them() -> None:
    def function(x: torch.Tensor, zeta: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.cat([x, zeta], 1).relu(), -1) * zeta[:, :1]

    def renamed(alpha: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.cat([alpha, b], 1).relu(), -1) * b[:, :1]

    sizes = torch.randn(6, 10), torch.randn(6, 7)
    (one,), (other,) = as_compiled(function, *sizes, dynamic=True), as_compiled(renamed, *sizes, dynamic=True)
    assert one == other
    x = next(buffer for buffer in one.buffers if buffer.source == "input")
    assert (x.meta, x.bytes) == ("float32[s0,s1]{s1,1}", 240)


def test_of_a_branch_the_leaves_within_are_not_told() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin().cumsum(0) + 1, lambda x: x.cos(), (x.exp(),)) * 2

    (anatomy,) = as_compiled(function, torch.randn(8, 16))
    branch, leaf = the_one(anatomy, "Conditional")
    assert not leaf.fusable
    assert not {"aten.sin.default", "aten.cos.default", "aten.cumsum.default"} & {op.target for op in anatomy.ops}
    assert all(after < len(anatomy.leaves) for leaf in anatomy.leaves for after in leaf.after)
    assert any(branch in leaf.after for leaf in anatomy.leaves)


PRINTED = """
import sys; sys.path[:0] = sys.argv[1:]
from test_anatomy import layers
print(layers())
"""


def layers() -> str:
    return json.dumps(anatomy_of(blocks(2).eval(), torch.randn(4, 32)).to_json())


@pytest.mark.slow
def test_it_is_the_same_in_a_process_that_hashes_differently() -> None:
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    command = [sys.executable, "-P", "-c", PRINTED, str(Path(__file__).parent), str(Path(__file__).parents[1])]
    done = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == layers()


def test_a_cut_that_is_made_is_a_leaf_of_its_own_and_the_others_keep_their_names() -> None:
    (graph,) = graphs_of(masked_softmax, *score_bias_mask())
    default = read(graph)
    (cut,) = [op.cut for op in default.ops if op.target == "aten.where.self"]
    anatomy = read(graph, Plan(cuts=(cut,)))
    assert len(anatomy.leaves) == len(default.leaves) + 1
    assert {op.cut for op in anatomy.ops} == {op.cut for op in default.ops if op.cut != cut}
    (made,) = [i for i, leaf in enumerate(anatomy.leaves) if leaf.id.split(":")[0] == cut.split(":")[0]]
    assert sum(made in leaf.after for leaf in anatomy.leaves) >= 2


def contents(function: Function, *inputs: torch.Tensor) -> list[str]:
    return [leaf.content for leaf in anatomy_of(function, *inputs).leaves]


def test_what_computes_something_else_has_another_content() -> None:
    x, y, index = torch.randn(8, 16), torch.randn(8, 16), torch.tensor([3, 1, 2])
    pad = torch.nn.functional.pad
    different = [
        contents(lambda x: x * 2, x),
        contents(lambda x: x * 3, x),
        contents(lambda x: x * 2.5, x),
        contents(lambda x: x * 2, x.double()),
        contents(lambda x, y: x.T * y, x, torch.randn(16, 8)),
        contents(lambda x: x * 2, x[:, :8].contiguous()),
        contents(lambda x, y: x - y, x, y),
        contents(lambda x, y: y - x * 2, x, y),
        contents(lambda x: x.sum(0), x),
        contents(lambda x: x.sum(1), x),
        contents(lambda x: x.amax(1), x),
        contents(lambda x: pad(x, (1, 1)), x),
        contents(lambda x: pad(x, (1, 1), value=3.0), x),
        contents(lambda x: pad(x, (0, 2)), x),
        contents(lambda x, index: x[index], x, index),
        contents(lambda x, index: x[:, index], x, index),
        contents(lambda x, index: x[index], torch.randn(9, 16), index),
    ]
    assert all(len(made) == 1 for made in different)
    assert len({content for (content,) in different}) == len(different)


def test_what_computes_the_same_on_other_buffers_has_the_same_content() -> None:
    x, y = torch.randn(8, 16), torch.randn(8, 16)
    twice = contents(lambda x, y: ((x - y).sum(0), torch.sin(y).cumsum(0), (y - x).sum(0)), x, y)
    (once,) = contents(lambda a, b: (b - a).sum(0), x, y)
    assert twice.count(once) == 2
    table = torch.randn(8, 16)
    first, second = torch.tensor([3, 1, 2]), torch.tensor([0, 0, 5])
    assert len(set(contents(lambda t, i, j: (t[i], t[j]), table, first, second))) == 1
