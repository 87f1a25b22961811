"""Giving a daemon that wants it the program that it did not know: its graphs, and what its first call saw in their inputs.

The default was compiled before, as if nobody had asked. What a parameter holds is never told, of an input no more than a sweep
keeps of it (`tuner.workload.seen`).
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import fx

from tuner.compilers.inductor import events, memo
from tuner.compilers.inductor.capture import graph_forms
from tuner.compilers.inductor.pinned import Pinned
from tuner.errors import UnsupportedGraph, one_line
from tuner.lookup.client import warn_once
from tuner.workload.captured import with_data
from tuner.workload.fx import UNSEEN, tensor_meta
from tuner.workload.graph import Graph, InputData, TensorMeta
from tuner.workload.miss_report import NODES_LIMIT, MissReport
from tuner.workload.seen import seen_in_all

# Seconds that a process may spend on reports, all together: a trace or two of each program, a look at its inputs, the sending.
# Past them nothing is begun; what is under way then comes to its end.
BUDGET_S = 2.0
# Nodes of a training program that is traced again, forward and backward, at a warm start: a trace cannot be cut short.
TRAINING_NODES_LIMIT = 400

_spent_s = 0.0
_lock = threading.Lock()


def reporting(compiled: Any, gm: fx.GraphModule, example_inputs: Sequence[Any], patches: dict[str, Any], pinned: Pinned) -> Any:
    """`compiled`, made to report its program at its first call; after that it costs a look at an empty list.

    A training program whose backward is not compiled by then is reported when it is. gm: a copy of the program's graph, as the
    back end was given it. Never raises; where nothing can be reported it counts why, and gives `compiled` itself.
    """
    if not pinned.door.settings.report_misses:
        return compiled
    pending = _bounded("trace", functools.partial(_pending, gm, example_inputs, patches, pinned))
    if pending is None:
        return compiled
    waiting: list[Callable[[Sequence[Any]], None]] = [pending.first_call]
    pinned.graph_compiled = pending.send_if_complete

    @functools.wraps(compiled)
    def call(*args: Any) -> Any:
        if waiting:
            with suppress(IndexError):  # another thread may be first
                waiting.pop()(args)
        return compiled(*args)

    return call


def _bounded(what: str, work: Callable[[], Any]) -> Any:
    """What `work` gives; None where it fails or the process has spent enough, which is counted."""
    global _spent_s
    if _spent_s > BUDGET_S:
        events.count("miss not reported: time")
        return None
    started = time.monotonic()
    # The client's border: the program is compiled, whatever becomes of the report.
    try:
        return work()
    except UnsupportedGraph as error:
        events.count(f"miss not reported: {error.reason}")
    except Exception as error:
        events.count(f"miss not reported: {what} error")
        warn_once("cannot report a program to the daemon: %s", one_line(error))
    finally:
        with _lock:
            _spent_s += time.monotonic() - started
    return None


def _pending(gm: fx.GraphModule, example_inputs: Sequence[Any], patches: dict[str, Any], pinned: Pinned) -> _Pending:
    if len(gm.graph.nodes) > NODES_LIMIT:
        raise UnsupportedGraph("too_large", f"the program has more than {NODES_LIMIT} nodes")
    if pinned.training and pinned.graphs:
        return _Pending(pinned, pinned.graphs)
    if pinned.training and len(gm.graph.nodes) > TRAINING_NODES_LIMIT:
        raise UnsupportedGraph("too_large", "the program was answered by the compile caches, and would take long to trace again")
    graphs = graph_forms(gm, example_inputs, patches, pinned.graphs)
    if pinned.cached:
        memo.remember(pinned.query.exact_key, [graph.key for graph in graphs])
    return _Pending(pinned, graphs)


class _Pending:
    """A report that is sent once: when the first call was seen and all graphs are known. graphs: may still grow."""

    def __init__(self, pinned: Pinned, graphs: list[Graph]):
        self.pinned, self.graphs = pinned, graphs
        self._seen: tuple[InputData, ...] | None = None
        self._sent = False

    def first_call(self, args: Sequence[Any]) -> None:
        def look() -> None:
            inputs = args[0] if len(args) == 1 and isinstance(args[0], list) else args
            first = next(graph for graph in self.graphs if graph.phase != "backward")
            self._seen = _seen(first, inputs)

        _bounded("first call", look)
        self.send_if_complete()

    def send_if_complete(self) -> None:
        phases = {graph.phase for graph in self.graphs}
        with _lock:
            if self._sent or self._seen is None or phases == {"forward"}:
                return
            self._sent = True
        _bounded("first call", self._send)

    def _send(self) -> None:
        assert self._seen is not None
        if opaque := [name for graph in self.graphs for name in graph.opaque]:
            raise UnsupportedGraph("opaque", f"{opaque[0]} cannot be rebuilt elsewhere")
        told = []
        # What a backward is given besides the outputs of its forward, nobody sees from here.
        for graph in sorted(self.graphs, key=lambda graph: graph.phase == "backward"):
            unseen = graph.phase == "backward" or len(graph.inputs) != len(self._seen)
            told.append(with_data(graph, (UNSEEN,) * len(graph.inputs) if unseen else self._seen))
        outcome = self.pinned.door.report(MissReport(self.pinned.query, tuple(told)))
        events.count("miss reported" if outcome == "" else f"miss not reported: {outcome}")


def _seen(graph: Graph, inputs: Sequence[Any]) -> tuple[InputData, ...]:
    """What is in the graph's inputs, which are the program's where they are as many and of the same kinds; else nothing."""
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    wanted = [TensorMeta.from_json(node.value).at(graph.hints).to_json() for node in graph.inputs]
    with torch.no_grad():
        if [tensor_meta(value) for value in tensors] != wanted:
            return (UNSEEN,) * len(graph.inputs)
        parameters = {i for i, value in enumerate(tensors) if isinstance(value, torch.nn.Parameter)} | {*graph.static_inputs}
        return seen_in_all(tensors, parameters)
