"""The measuring process: reads one JSON request a line from standard input, answers one JSON line each.

Requests, by "do":
    open: graph, ambient, seed, policy, compile_only,
          data                                         the default compiled, checked and timed; see Session.describe_default
    open whole: spec, ambient, policy, phase, shapes   a SPEC's callable, by default and with its plans; see Whole
    open tables: the same, chosen                      the same for tables of decompositions; see Tables
    open sequence: rows, ambient, policy, seed         a program's graphs without a callable; see GraphSequence
    table: kind                                        a verdict; see Tables.try_table
    table graphs: kind                                 the graphs that come of it; see Tables.graphs_under
    backward data: forward, backward                   the backward with data; see fill_backward_data
    try: plan, expected, seen_codes, own_copy          a verdict; see Session.try_plan
    compile: the same                                  a verdict without a run
    anatomy: plan                                      the leaves of the graph, lowered only; see CompileSession.anatomy
    time: keys, samples, seed, patience                {times, conditions, busy}; see Session.time_plans
    profile: plans, rounds, seed                       {times, failed, conditions}, kernel by kernel; see profiled.profile
    forget: keys                                       compiled candidates dropped
    close                                              the session dropped
An answer is {"ok": value} or {"error": {refused, reason, sticky, message, traceback}}. Ends when its input does, or its parent.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

from tuner.errors import UnsupportedGraph
from tuner.workers.guard import fork_guarded
from tuner.workers.verdicts import failure

if TYPE_CHECKING:
    from tuner.measure.device import Device


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--parent", type=int, default=os.getppid())
    told = parser.parse_args()
    fork_guarded(told.parent)
    # What compilers print must not get between the answers: standard output becomes standard error, answers keep a copy of it.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    import torch

    from tuner.measure.device import open_device

    torch.set_num_threads(told.threads)
    with torch.no_grad():
        serve(sys.stdin, answers, Handler(open_device(told.device)))


def serve(requests: TextIO, answers: TextIO, handle: Handler) -> None:
    for line in requests:
        try:
            answer = {"ok": handle(json.loads(line))}
        # The worker loop is a border: whatever a request does becomes an answer, also what is no Exception.
        except BaseException as error:
            refused = isinstance(error, UnsupportedGraph)
            reason, sticky = getattr(error, "reason", ""), handle.device.is_sticky(error)
            answer = {"error": {**failure(error), "refused": refused, "reason": reason, "sticky": sticky}}
            if refused:
                answer["error"]["message"] = str(error)
            print(answer["error"]["traceback"], file=sys.stderr, flush=True)
        answers.write(json.dumps(answer) + "\n")


class Handler:
    """Carries out requests on the one open session."""

    def __init__(self, device: Device):
        self.device = device
        self.session: Any = None
        self.settings = contextlib.ExitStack()

    def __call__(self, request: dict[str, Any]) -> Any:
        match request["do"]:
            case "open":
                return self.open(request)
            case "open whole":
                return self.open_whole(request)
            case "open sequence":
                return self.open_sequence(request)
            case "open tables":
                return self.open_tables(request)
            case "table":
                return self.session.try_table(request["kind"])
            case "table graphs":
                return self.session.graphs_under(request["kind"])
            case "backward data":
                return self.backward_data(request)
            case "try" | "compile":
                return self.attempt(request)
            case "anatomy":
                return self.anatomy(request)
            case "time":
                return self.session.time_plans(request["keys"], request["samples"], request["seed"], request.get("patience", 0))
            case "profile":
                return self.profile(request)
            case "forget":
                return self.session.forget(request["keys"])
            case "close":
                return self.close()
            case other:
                raise ValueError(f"unknown request {other!r}")

    def open(self, request: dict[str, Any]) -> Any:
        from tuner.measurement import Policy
        from tuner.workers.builder import Builder, fake_inputs
        from tuner.workers.memory import cap_memory
        from tuner.workers.session import CompileSession, Session
        from tuner.workload.graph import Graph, InputData

        graph = Graph.from_json(request["graph"])
        on_cpu = all(node.value[3] == "cpu" for node in graph.inputs)
        self.start_anew(request["ambient"], on_cpu)
        if request.get("compile_only", False):
            self.session = CompileSession(Builder(graph, fake_inputs(graph)))
        else:
            data = [[InputData.from_json(seen) for seen in at] for at in request.get("data", ())]
            self.session = Session(graph, request["seed"], Policy(**request["policy"]), self.device, data)
        default = self.session.describe_default()
        if on_cpu:
            peak = default.get("peak_bytes", 0)
            cap_memory(max(peak) if isinstance(peak, list) else peak)
        return default

    def open_whole(self, request: dict[str, Any]) -> Any:
        from tuner.measurement import Policy
        from tuner.workers.whole import Whole
        from tuner.workload.shapes import Shapes

        self.start_anew(request["ambient"], on_cpu=self.device.name == "cpu")
        policy, shapes = Policy(**request["policy"]), Shapes.from_json(request["shapes"])
        self.session = Whole(request["spec"], policy, self.device, request["phase"], shapes)
        return self.session.describe_default()

    def open_sequence(self, request: dict[str, Any]) -> Any:
        from tuner.measurement import Policy
        from tuner.workers.sequence import GraphSequence

        self.start_anew(request["ambient"], on_cpu=self.device.name == "cpu")
        self.session = GraphSequence(request["rows"], request["seed"], Policy(**request["policy"]), self.device)
        return self.session.describe_default()

    def open_tables(self, request: dict[str, Any]) -> Any:
        from tuner.measurement import Policy
        from tuner.workers.tables import Tables
        from tuner.workload.shapes import Shapes

        self.start_anew(request["ambient"], on_cpu=self.device.name == "cpu")
        policy, shapes = Policy(**request["policy"]), Shapes.from_json(request["shapes"])
        self.session = Tables(request["spec"], policy, self.device, request["phase"], shapes, request.get("chosen"))
        return self.session.describe_default()

    def backward_data(self, request: dict[str, Any]) -> Any:
        from tuner.workers.memory import cap_memory
        from tuner.workload.backward import fill_backward_data
        from tuner.workload.graph import Graph

        self.close()
        cap_memory(None)
        return fill_backward_data(Graph.from_json(request["forward"]), Graph.from_json(request["backward"])).to_json()

    def start_anew(self, ambient: dict[str, Any], on_cpu: bool) -> None:
        """Without a session, under these settings. Raises UnsupportedGraph where they cannot be taken over."""
        from tuner.compilers.inductor.ambient import as_keyed
        from tuner.compilers.inductor.whole_files import write_whole_files
        from tuner.workers.memory import cap_memory

        self.close()
        # This process may be killed over a candidate at any time, and shares the compile cache with its user's.
        write_whole_files()
        # The default's own need is not known yet. On a GPU address space says nothing: its driver maps far more than there is.
        if on_cpu:
            cap_memory(None)
        self.settings.enter_context(as_keyed(ambient))

    def attempt(self, request: dict[str, Any]) -> Any:
        from tuner.plan import Plan

        plan = Plan.from_json(request["plan"])
        act = self.session.try_plan if request["do"] == "try" else self.session.compile_plan
        return act(plan, request["expected"], request["seen_codes"], request.get("own_copy", ""))

    def anatomy(self, request: dict[str, Any]) -> Any:
        from tuner.plan import Plan

        return self.session.anatomy(Plan.from_json(request["plan"]))

    def profile(self, request: dict[str, Any]) -> Any:
        from tuner.plan import Plan
        from tuner.workers.memory import resident_bytes_now
        from tuner.workers.profiled import profile

        plans = [Plan.from_json(plan) for plan in request["plans"]]
        told = profile(self.session, plans, request["rounds"], request["seed"])
        return {**told, "resident_bytes": resident_bytes_now()}

    def close(self) -> None:
        self.session = None
        self.settings.close()


if __name__ == "__main__":
    main()
