"""Reports of programs that a daemon does not know."""

from __future__ import annotations

from typing import Any

from stored import program

from tuner.workload.graph import Graph, InputData, Node
from tuner.workload.miss_report import MissReport

META = ["float32", [4, 8], [8, 1], "cpu"]


def graph(op: str = "aten.sin.default", native: bool = False) -> Graph:
    nodes = (Node("input", "", [], {}, META), Node("call", op, [{"node": 0}], {}, META))
    form = graph("aten.gelu.default") if native else None
    return Graph("inference", nodes, [{"node": 1}], (0, 1), (InputData(-1.0, 1.0),), native_form=form)


def report(name: str = "p", *graphs: Graph, **parts: Any) -> MissReport:
    return MissReport(program(name, **parts), graphs or (graph(native=True),))
