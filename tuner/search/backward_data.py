"""Data for backward graphs of which none was seen, made in a measuring process: it runs forwards that came from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tuner.search.workloads import Resolved
from tuner.workers.limits import OPEN_S
from tuner.workers.process import START_S, Worker
from tuner.workload.graph import Graph


def filled(workloads: Sequence[Resolved]) -> list[Resolved]:
    """The workloads, those that are backwards of which nothing was seen with data; see `with_backward_data`.

    A forward over which its process hangs or dies leaves the data unknown.
    """
    from tuner.workload.backward import with_backward_data

    made = list(workloads)
    programs: dict[tuple[str, str], list[int]] = {}
    for i, workload in enumerate(workloads):
        if (program := workload.program_query) is not None:
            programs.setdefault((workload.spec, program.exact_key), []).append(i)
    for places in programs.values():
        threads = int(workloads[places[0]].query.ambient.get("threads", 1))
        graphs = with_backward_data([workloads[i].graph for i in places], partial(_run, threads))
        for i, graph in zip(places, graphs, strict=True):
            made[i] = replace(made[i], graph=graph)
    return made


def _run(threads: int, forward: Graph, backward: Graph) -> Graph:
    """`fill_backward_data` in a process of its own. Raises WorkerError, UnsupportedGraph."""
    with Worker(threads) as worker:
        told = worker.ask(START_S + OPEN_S, do="backward data", forward=forward.to_json(), backward=backward.to_json())
    return Graph.from_json(told)
