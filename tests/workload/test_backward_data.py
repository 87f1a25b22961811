"""Inputs of a backward that nobody saw are made like what its forward keeps for it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from tuner.compilers.inductor.capture import capture, with_data
from tuner.workload.backward import fill_backward_data, with_backward_data
from tuner.workload.fx import UNSEEN
from tuner.workload.graph import Graph
from tuner.workload.inputs import make_inputs


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Looked(nn.Module):
    """Its backward takes indices, which have to be valid, a mask, and statistics far from normal numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(50, 32), nn.LayerNorm(32)

    def forward(self, index: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, self.norm(self.table(index) * 100), 0.0)


def captured() -> list[Graph]:
    torch.manual_seed(0)
    inputs = (torch.arange(24).reshape(4, 6) * 2, numbers(4, 6, 1) > 0)
    (program,) = capture(Looked(), inputs, phase="training")
    return program.graphs


def unseen(graph: Graph) -> Graph:
    return with_data(graph, (UNSEEN,) * len(graph.inputs))


def test_they_are_like_what_was_seen_there() -> None:
    forward, backward = captured()
    _, filled = with_backward_data([forward, unseen(backward)], fill_backward_data)
    for name, made, seen in zip(filled.names, filled.data, backward.data, strict=True):
        if name.startswith("tangents"):
            assert (made.mean, made.std) == (0.0, 1.0)
        elif seen.runs is not None:
            assert made.runs == seen.runs, "indices, masks and constants are the same"
        else:
            assert abs(made.mean - seen.mean) <= 0.5 * seen.std, name
            assert 0.5 * seen.std <= made.std <= 2 * seen.std, name
    index = make_inputs(filled, 3)[[node.value[0] for node in filled.inputs].index("int64")]
    assert int(index.max()) < 50


def test_what_was_seen_is_left_as_it_is() -> None:
    graphs = captured()
    assert with_backward_data(graphs, fill_backward_data) == graphs


def test_a_backward_whose_forward_is_not_there_has_gradients_at_least() -> None:
    forward, backward = captured()
    (filled,) = with_backward_data([unseen(backward)], fill_backward_data)
    stranger = replace(forward, yields=tuple(f"other_{i}" for i in range(len(forward.yields))))
    assert with_backward_data([stranger, unseen(backward)], fill_backward_data)[1] == filled
    assert {name: made for name, made in zip(filled.names, filled.data, strict=True) if made != UNSEEN}.keys() == {"tangents_1"}
