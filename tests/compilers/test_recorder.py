"""The recorder in the place of Inductor's main step: what it notes, and that a script's numbers stay what they were."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tuner.compilers.inductor import recorder

Recorded = Callable[..., Callable[..., Any]]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recorded:
    """torch.compile with every program recorded."""
    monkeypatch.setattr(recorder, "_recordings", [])
    inductor: Any = importlib.import_module("torch._inductor.compile_fx")
    door = functools.partial(recorder.record, tmp_path, inductor._compile_fx_main)
    monkeypatch.setattr(inductor, "_compile_fx_main", door)
    torch._dynamo.reset()
    return torch.compile


def graded(function: Callable[..., Tensor], x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    out = function(x)
    out.square().sum().backward()
    assert x.grad is not None
    return [out.detach(), x.grad]


def test_a_training_step_whose_sizes_grow_keeps_its_numbers(recorded: Recorded) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))
    function = recorded(net, dynamic=True)
    for length in (4, 6, 3):
        x = torch.randn(2, length, 8)
        for found, expected in zip(graded(function, x), graded(net, x), strict=True):
            torch.testing.assert_close(found, expected)
    (one,) = recorder._recordings
    assert [(graph.graph.phase, graph.calls) for graph in one.graphs] == [("forward", 3), ("backward", 3)]
    assert not one.left_out


def fail(*_: object) -> None:
    raise TypeError("cannot be copied")


@pytest.mark.parametrize("part", ["copied", "program_ranges"])
def test_a_script_goes_on_where_its_program_cannot_be_read(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(recorder, part, fail)
    with torch.no_grad():
        torch.testing.assert_close(recorded(torch.tanh)(torch.ones(3)), torch.ones(3).tanh())
    (one,) = recorder._recordings
    assert one.left_out == {"TypeError": "TypeError: cannot be copied"}


def test_a_back_end_of_the_users_own_is_asked_where_its_program_cannot_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "copied", fail)
    gm = torch.fx.symbolic_trace(lambda x: x.tanh())
    assert recorder.compile_for(lambda given, _: ("theirs", given), "theirs", {}, gm, []) == ("theirs", gm)


def test_of_sizes_without_end_those_are_kept_that_come_most_often() -> None:
    sizes: dict[tuple[int, ...], int] = {}
    for length in range(3 * recorder.MAX_SIZES):
        for at in ((length,), (7,)):
            sizes = recorder._counted(sizes, at)
    assert len(sizes) == recorder.MAX_SIZES
    assert sizes[7,] == 3 * recorder.MAX_SIZES + 1
    assert recorder._counted(sizes, ()) == sizes
