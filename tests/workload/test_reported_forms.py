"""Reports of training and symbolic programs are taken; whatever else stands in a report is refused, executed never."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from typing import Any

import pytest
from missed import report

from tuner.errors import SpecError
from tuner.workload.graph import Graph, InputData, Node, Symbol
from tuner.workload.miss_report import MissReport

META = ["float32", ["s0", 8], [8, 1], "cpu"]
FLAT = ["float32", ["8*s0"], [1], "cpu"]


def symbolic(phase: str = "forward") -> Graph:
    nodes = (
        Node("input", "", [], {}, META),
        Node("call", "aten.mul.Tensor", [{"node": 0}, {"sym": "2*s0"}], {}, META),
        Node("call", "aten.view.default", [{"node": 1}, [{"sym": "8*s0"}]], {}, FLAT),
    )
    return Graph(
        phase,
        nodes,
        [{"node": 2}, {"node": 1}, {"sym": "s0"}],
        (0, 1, 2),
        (InputData(-1.0, 1.0),),
        user_visible=(0,),
        names=("primals_2",),
        yields=("view", "mul", "primals_1"),
        symbols=(Symbol(2, None, 6),),
    )


def taken(*graphs: Graph) -> MissReport:
    return MissReport.from_json(json.loads(json.dumps(report("p", *graphs).to_json())))


def test_forward_backward_and_symbolic_graphs_are_taken_as_they_were():
    graphs = symbolic(), symbolic("backward"), replace(symbolic("inference"), user_visible=None, names=(), yields=())
    assert taken(*graphs).graphs == graphs
    assert len({graph.key for graph in graphs}) == 3


def test_a_graph_that_cannot_be_rebuilt_is_refused():
    opaque = Node("opaque", "higher_order.cond", [{"node": 0}], {}, META)
    graph = symbolic()
    with pytest.raises((ValueError, SpecError)):
        taken(replace(graph, nodes=(graph.nodes[0], opaque, graph.nodes[2])))


@pytest.mark.parametrize("to", [1, 2], ids=["itself", "a later node"])
def test_a_node_that_needs_what_is_not_made_yet_is_refused(to):
    graph = symbolic()
    needing = Node("call", "aten.mul.Tensor", [{"node": to}, 2], {}, META)
    with pytest.raises((ValueError, SpecError)):
        taken(replace(graph, nodes=(graph.nodes[0], needing, graph.nodes[2])))


HOSTILE = [
    "__import__('os').system('true')",
    "s0.__class__",
    "Pow(Pow(s0,63),63)",
    "Pow(9,Pow(9,Pow(9,9)))",
    "s1",
    "s0*s0*s0*s0*s0*s0*s0*s0*s0*s0*s0*s0*s0*s0*s0*s0*s0*s0*s0*s0*s0*s0*s0*s0*s0*s0*s0*s0*s0",
    "FloorDiv(s0,0)",
    "-1*s0",
    "(" * 2000,
    "Max(" * 500 + "1" + ")" * 500,
    "s0+" * 100_000 + "s0",
    "1.5*" + "*".join(["9000000000000000000"] * 40),
    "1e999",
    "",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_size_that_is_none_is_refused_wherever_it_stands(text):
    graph = symbolic()
    in_meta = replace(graph, nodes=(Node("input", "", [], {}, ["float32", [text, 8], [8, 1], "cpu"]), *graph.nodes[1:]))
    with pytest.raises((ValueError, SpecError)):
        taken(in_meta)
    if text != "-1*s0":
        with pytest.raises((ValueError, SpecError)):
            taken(replace(graph, outputs=[{"sym": text}], user_visible=None, yields=()))


@pytest.mark.parametrize(
    "symbol",
    [Symbol(2, None, 1), Symbol(2, 4, 5), Symbol(-(2**70), None, 3), Symbol(2, 2**70, 3)],
    ids=["below", "above", "too low", "too high"],
)
def test_a_symbol_out_of_its_bounds_is_refused(symbol):
    with pytest.raises((ValueError, SpecError)):
        taken(replace(symbolic(), symbols=(symbol,)))


JUNK: list[Any] = [
    None,
    -1,
    2**80,
    1.5,
    "s9",
    "Pow(s0,64)",
    "x" * 5000,
    [],
    {},
    [[]],
    {"sym": "s0+"},
    {"node": 99},
    True,
    "\x00",
    float("inf"),
]


def test_a_report_with_anything_replaced_is_taken_or_refused_and_nothing_else():
    draw = random.Random(0)
    good = report("p", symbolic()).to_json()
    refused = 0
    for _ in range(600):
        data = copy.deepcopy(good)
        at: Any = data["graphs"][0]["form"]
        while isinstance(at, dict | list) and at:
            place = draw.choice(list(at) if isinstance(at, dict) else range(len(at)))
            if not isinstance(at[place], dict | list) or not at[place] or draw.random() < 0.25:
                at[place] = draw.choice(JUNK)
                break
            at = at[place]
        try:
            MissReport.from_json(data)
        except (ValueError, SpecError):
            refused += 1
    assert refused > 500, "most have another key than they claim"
