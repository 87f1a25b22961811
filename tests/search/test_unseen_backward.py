"""A forward that was reported is run in a measuring process: whatever it does there, the backward is tuned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scripted import resolved

from tuner.errors import WorkerDied
from tuner.search import backward_data
from tuner.search.backward_data import filled
from tuner.workload.backward import GRADIENT
from tuner.workload.graph import Graph, Node
from tuner.workload.inputs import UNSEEN

META = ["float32", [4], [1], "cpu"]
ROW = Node("input", "", [], {}, META)
CALL = Node("call", "aten.mul.Tensor", [{"node": 0}, {"node": 1}], {}, META)
BACKWARD = Graph("backward", (ROW, ROW, CALL), [{"node": 2}], (0, 1, 2), (UNSEEN, UNSEEN), names=("kept", "tangents_1"))
TANH = Node("call", "aten.tanh.default", [{"node": 0}], {}, META)


def of(*graphs: Graph) -> list[Any]:
    return [replace(resolved(made_by="p"), graph=graph) for graph in graphs]


def forward(*nodes: Node) -> Graph:
    return Graph("forward", (ROW, *nodes), [{"node": 1}], (0, 1), (UNSEEN,), names=("x",), yields=("kept",))


def test_a_process_that_dies_over_the_forward_leaves_the_data_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Dying:
        def __init__(self, threads: int):
            pass

        def __enter__(self) -> Dying:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def ask(self, timeout_s: float, do: str, **_: Any) -> Any:
            asked.append(do)
            raise WorkerDied("a native crash")

    monkeypatch.setattr(backward_data, "Worker", Dying)
    first, second = filled(of(forward(TANH), BACKWARD))
    assert asked == ["backward data"]
    assert first.graph == forward(TANH)
    assert second.graph.data == (UNSEEN, GRADIENT)
    assert second.graph.key == BACKWARD.key


def test_without_a_backward_that_nobody_saw_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(backward_data, "Worker")
    seen = of(forward(TANH), replace(BACKWARD, data=(GRADIENT, GRADIENT)))
    assert filled(seen) == seen
