"""What the inputs of a backward graph are like where nobody saw them: what its forward makes, for it, of inputs like those seen.

A compile that reports a program sees the program's inputs, and so its forward's; the backward is compiled later, if ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tuner.errors import TunerError, one_line
from tuner.workload.fx import UNSEEN, to_fx
from tuner.workload.graph import Graph, InputData
from tuner.workload.inputs import make_inputs
from tuner.workload.seen import seen_in_all

log = logging.getLogger("tuner")
SEED = 20262
# Gradients of the program's outputs.
TANGENTS = "tangents_"
GRADIENT = InputData(-4, 4, 0.0, 1.0)


def with_backward_data(graphs: Sequence[Graph], run: Callable[[Graph, Graph], Graph]) -> list[Graph]:
    """The graphs of one program, in order, a backward of which nothing was seen with data of what its forward keeps for it.

    Gradients that come in are normal numbers. run: does what `fill_backward_data` does, where no harm comes of it, since it runs
    the forward; where it raises a TunerError, nothing more is known.
    """
    filled = list(graphs)
    for i, graph in enumerate(graphs):
        if graph.phase == "backward" and all(seen == UNSEEN for seen in graph.data):
            forward = _forward_of(graph, graphs[:i])
            try:
                filled[i] = fill_backward_data(None, graph) if forward is None else run(forward, graph)
            except TunerError as error:
                log.warning("tuner: nothing is known of what a backward takes of its forward: %s", one_line(error))
                filled[i] = fill_backward_data(None, graph)
    return filled


def _forward_of(backward: Graph, graphs: Sequence[Graph]) -> Graph | None:
    """The forward that yields what the backward takes, the last of several."""
    wanted = {name for name in backward.names if not name.startswith(TANGENTS)}
    return next((one for one in reversed(graphs) if one.phase == "forward" and wanted <= {*one.yields}), None)


def fill_backward_data(forward: Graph | None, backward: Graph) -> Graph:
    """`backward` with data of its inputs as `forward` makes them, which runs eagerly; without a forward, gradients only.

    Raises UnsupportedGraph where the forward cannot be rebuilt, and what eager raises.
    """
    kept: dict[str, Any] = {}
    parameters: set[str] = set()
    if forward is not None:
        with torch.no_grad():
            torch.manual_seed(SEED)
            outputs = to_fx(forward)(*make_inputs(forward, SEED))
        kept = dict(zip(forward.yields, outputs, strict=True))
        parameters = {forward.names[i] for i in forward.static_inputs}
    values = {i: kept[name] for i, name in enumerate(backward.names) if isinstance(kept.get(name), Tensor)}
    seen = seen_in_all(list(values.values()), {i for i, place in enumerate(values) if backward.names[place] in parameters})
    data = [GRADIENT if name.startswith(TANGENTS) else UNSEEN for name in backward.names]
    for place, one in zip(values, seen, strict=True):
        # Shared memory is told by positions among those that were looked at.
        data[place] = one if one.shares is None else replace(one, shares=None)
    return replace(backward, data=tuple(data))
