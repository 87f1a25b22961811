"""The measuring process: reads one JSON request a line from standard input, answers one JSON line each.

Requests, by "do":
    open: graph, ambient, seed, policy, compile_only   the default compiled, checked and timed; see Session.describe_default
    try: plan, expected, seen_codes, own_copy          a verdict; see Session.try_plan
    compile: the same                                  a verdict without a run
    time: keys, samples, seed, patience                {times, conditions, busy}; see Session.time_plans
    forget: keys                                       compiled candidates dropped
    close                                              the session dropped
An answer is {"ok": value} or {"error": {refused, reason, message, traceback}}. Ends when its input does, or its parent.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from typing import Any, TextIO

from tuner.errors import UnsupportedGraph
from tuner.workers.guard import fork_guarded
from tuner.workers.verdicts import failure


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

    torch.set_num_threads(told.threads)
    with torch.no_grad():
        serve(sys.stdin, answers, Handler(told.device))


def serve(requests: TextIO, answers: TextIO, handle: Handler) -> None:
    for line in requests:
        try:
            answer = {"ok": handle(json.loads(line))}
        # The worker loop is a border: whatever a request does becomes an answer, also what is no Exception.
        except BaseException as error:
            refused = isinstance(error, UnsupportedGraph)
            answer = {"error": {**failure(error), "refused": refused, "reason": getattr(error, "reason", "")}}
            if refused:
                answer["error"]["message"] = str(error)
            print(answer["error"]["traceback"], file=sys.stderr, flush=True)
        answers.write(json.dumps(answer) + "\n")


class Handler:
    """Carries out requests on the one open session."""

    def __init__(self, device: str):
        self.device = device
        self.session: Any = None
        self.settings = contextlib.ExitStack()

    def __call__(self, request: dict[str, Any]) -> Any:
        match request["do"]:
            case "open":
                return self.open(request)
            case "try" | "compile":
                return self.attempt(request)
            case "time":
                return self.session.time_plans(request["keys"], request["samples"], request["seed"])
            case "forget":
                return self.session.forget(request["keys"])
            case "close":
                return self.close()
            case other:
                raise ValueError(f"unknown request {other!r}")

    def open(self, request: dict[str, Any]) -> Any:
        from tuner.compilers.inductor.ambient import as_keyed
        from tuner.workers.session import Session
        from tuner.workload.graph import Graph

        self.close()
        self.settings.enter_context(as_keyed(request["ambient"]))
        graph = Graph.from_json(request["graph"])
        self.session = Session(graph, request["seed"], request["clock"] if "clock" in request else request["policy"]["clock"])
        return self.session.describe_default()

    def attempt(self, request: dict[str, Any]) -> Any:
        from tuner.plan import Plan

        plan = Plan.from_json(request["plan"])
        return self.session.try_plan(plan, request["expected"], request["seen_codes"])

    def close(self) -> None:
        self.session = None
        self.settings.close()


if __name__ == "__main__":
    main()
