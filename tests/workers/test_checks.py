"""The inputs of a check stay what they were: who writes one that the graph only reads is found out, and misleads nobody."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tuner.measure.device import open_device
from tuner.workers.checks import CheckedInputs
from tuner.workload.fx import UNSEEN, make_inputs, memory_of, to_fx
from tuner.workload.graph import Graph, InputData, Node, TensorMeta

SEED = 3
Function = Callable[[list[Tensor]], Sequence[Any]]


def meta(dtype: str, *shape: int, stride: tuple[int, ...] | None = None) -> TensorMeta:
    return TensorMeta(dtype, shape, stride or tuple(torch.empty(shape, device="meta").stride()), "cpu")


PLAIN = meta("float32", 4, 3)


def checked(*metas: TensorMeta, data: Sequence[InputData] = (), writes: bool = False) -> CheckedInputs:
    """Of a graph that reads all its inputs, returns each one's logical inverse, and writes the first if `writes`."""
    inputs = [Node("input", "", [], {}, one.to_json()) for one in metas]
    made = [meta("bool", *one.shape).to_json() for one in metas]
    calls = [Node("call", "aten.logical_not.default", [{"node": i}], {}, value) for i, value in enumerate(made)]
    outputs = [{"node": len(metas) + i} for i in range(len(metas))]
    if writes:
        calls.append(Node("call", "aten.mul_.Tensor", [{"node": 0}, 2.0], {}, metas[0].to_json()))
    nodes, seen = (*inputs, *calls), tuple(data) or (UNSEEN,) * len(metas)
    graph = Graph("inference", nodes, outputs, tuple(range(len(nodes))), seen, mutated=(0,) if writes else ())
    return CheckedInputs(graph, to_fx(graph), SEED, open_device("cpu"))


def right(inputs: list[Tensor]) -> list[Tensor]:
    return [value.logical_not() for value in inputs]


def right_and_writing(inputs: list[Tensor]) -> list[Tensor]:
    outputs = right(inputs)
    inputs[0].mul_(2.0)
    return outputs


def spoiling(position: int, function: Function = right) -> Function:
    """Right in what it returns, and one byte of an input is another then."""

    def run(inputs: list[Tensor]) -> Sequence[Any]:
        outputs = function(inputs)
        memory_of(inputs[position]).view(torch.uint8)[-1] ^= 1
        return outputs

    return run


def unchanged(inputs: CheckedInputs) -> bool:
    """Byte for byte what the seed makes, whatever lies between the elements."""
    made = make_inputs(inputs.graph, SEED)
    return all(torch.equal(value, one) for value, one in zip(inputs.values, made, strict=True))


KINDS = {
    "floats": [PLAIN],
    "bool": [meta("bool", 5)],
    "a byte": [meta("uint8", 1)],
    "an odd number of halves": [meta("bfloat16", 7)],
    "complex": [meta("complex64", 3)],
    "doubles": [meta("float64", 2, 2)],
    "scalar": [meta("float32")],
    "expanded": [meta("float32", 3, 64, stride=(1, 0))],
    "overlapping": [meta("float32", 6, 3, stride=(1, 1))],
    "with gaps": [meta("float32", 4, 3, stride=(7, 2))],
    "beside one of no elements": [PLAIN, meta("float32", 0, 3)],
}


@pytest.mark.parametrize("name", KINDS)
def test_who_writes_an_input_that_the_graph_reads_is_wrong_whatever_he_returns(name: str) -> None:
    inputs = checked(*KINDS[name])
    assert inputs.deviation(right) == 0
    assert inputs.deviation(spoiling(0)) == math.inf
    assert unchanged(inputs)
    assert inputs.deviation(right) == 0, "the next is not blamed"
    assert inputs.deviation(spoiling(0)) == math.inf, "and the next who does it is found out too"


@pytest.mark.parametrize(
    ("dtype", "offset"), [("float32", 4), ("uint8", 1), ("bool", 3)], ids=["half a word on", "a byte on", "bools, three bytes on"]
)
def test_inputs_that_share_memory_off_the_words_boundaries_are_watched_too(dtype: str, offset: int) -> None:
    shares = InputData(0, 1, shares=(0, offset))
    inputs = checked(meta(dtype, 21), meta(dtype, 18), data=(UNSEEN, shares))
    assert inputs.values[0].untyped_storage().data_ptr() == inputs.values[1].untyped_storage().data_ptr()
    assert inputs.deviation(right) == 0
    for position in (0, 1):
        assert inputs.deviation(spoiling(position)) == math.inf
        assert unchanged(inputs)
    assert inputs.deviation(right) == 0


def test_what_the_graph_itself_writes_may_be_written() -> None:
    inputs = checked(PLAIN, PLAIN, writes=True)
    assert inputs.deviation(right_and_writing) == 0
    assert unchanged(inputs), "and is put back"
    assert inputs.deviation(spoiling(1, right_and_writing)) == math.inf
    assert inputs.deviation(right) > 1, "it has to be"
    assert unchanged(inputs)
    assert inputs.deviation(right_and_writing) == 0


def test_who_fails_after_he_wrote_spoils_nothing_for_the_next() -> None:
    inputs = checked(PLAIN)

    def failing(values: list[Tensor]) -> list[Tensor]:
        values[0].zero_()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        inputs.deviation(failing)
    assert unchanged(inputs)
    assert inputs.deviation(right) == 0


def test_inputs_of_no_elements_at_all_are_checked() -> None:
    assert checked(meta("float32", 0, 3)).deviation(right) == 0
