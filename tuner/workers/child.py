"""The measuring process: reads one JSON request a line from standard input, answers one JSON line each.

Requests: {"do": "open", graph, ambient, seed, clock}, {"do": "try", plan, expected, seen_codes}, {"do": "time", keys, samples,
seed}, {"do": "close"}. An answer is {"ok": value} or {"error": {refused, reason, message}}. Ends when its input does, or its
parent.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import sys
import traceback
from typing import Any, TextIO

from tuner.errors import UnsupportedGraph, one_line

PR_SET_PDEATHSIG = 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, required=True)
    threads = parser.parse_args().threads
    # What compilers print must not get between the answers: standard output becomes standard error, answers keep a copy of it.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    import torch

    torch.set_num_threads(threads)
    with torch.no_grad():
        serve(sys.stdin, answers)


def serve(requests: TextIO, answers: TextIO) -> None:
    handle = Handler()
    for line in requests:
        try:
            answer = {"ok": handle(json.loads(line))}
        # The worker loop is a border: whatever a candidate does becomes a verdict, its traceback goes to the log.
        except Exception as error:
            traceback.print_exc()
            refused = isinstance(error, UnsupportedGraph)
            message = str(error) if refused else one_line(error)
            answer = {"error": {"refused": refused, "reason": getattr(error, "reason", ""), "message": message}}
        answers.write(json.dumps(answer) + "\n")


class Handler:
    """Carries out requests on the one open session."""

    def __init__(self) -> None:
        self.session: Any = None
        self.settings = contextlib.ExitStack()

    def __call__(self, request: dict[str, Any]) -> Any:
        from tuner.compilers.inductor.ambient import as_keyed
        from tuner.plan import Plan
        from tuner.workers.session import Session
        from tuner.workload.graph import Graph

        match request["do"]:
            case "open":
                self.close()
                self.settings.enter_context(as_keyed(request["ambient"]))
                self.session = Session(Graph.from_json(request["graph"]), request["seed"], request["clock"])
                return self.session.describe_default()
            case "try":
                return self.session.try_plan(Plan.from_json(request["plan"]), request["expected"], request["seen_codes"])
            case "time":
                return self.session.time_plans(request["keys"], request["samples"], request["seed"])
            case "close":
                self.close()
                return None
            case other:
                raise ValueError(f"unknown request {other!r}")

    def close(self) -> None:
        self.session = None
        self.settings.close()


if __name__ == "__main__":
    main()
