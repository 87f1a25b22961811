"""Small real graphs for the tests of sessions and workers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from tuner.compilers.inductor.capture import capture
from tuner.measure.device import open_device
from tuner.measurement import Policy
from tuner.workers.session import Session
from tuner.workload.graph import Graph


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def graph_of(function: Callable[..., Any], *inputs: torch.Tensor) -> Graph:
    """The captured graph, as it comes out of a store."""
    ((graph,),) = [program.graphs for program in capture(function, inputs)]
    return Graph.from_json(json.loads(json.dumps(graph.to_json())))


def softmax_graph() -> Graph:
    """Fused by default into one group of several leaves; holds an op that may stay native."""
    return graph_of(lambda x, y: torch.softmax(x * 2 + y, -1), numbers(32, 64), numbers(32, 64, seed=1))


def update(param: torch.Tensor, grad: torch.Tensor, average: torch.Tensor) -> None:
    """Grows what it writes, so that a state which is not restored shows."""
    param.mul_(3.0)
    average.lerp_(grad, 0.5)
    param.add_(average / (grad.abs() + 1))


def update_graph() -> Graph:
    return graph_of(update, *(numbers(32, 32, seed=seed) for seed in range(3)))


def session_on(graph: Graph, seed: int = 0) -> Session:
    """The graph opened in this process, on its CPU."""
    return Session(graph, seed, Policy.for_cpu(1), open_device("cpu"))
