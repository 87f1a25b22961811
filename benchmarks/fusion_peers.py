"""Times a SPEC run eagerly, compiled by default, by max-autotune with freezing, and with the stored winners: interleaved.

    fusion_peers.py SPEC --threads N --phase inference|training --samples N --seed N --patience N

For `fusion_suite.py`, which says by the environment which store to look in; nothing is searched here. Prints one line of JSON:
times: by name, milliseconds of one call or training step, paired by round. deviation: of each from eager, in units of the
tolerance. outcomes: what became of each graph of the tuned one. busy: why the times are not to be trusted, or null.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import torch

import tuner
from tuner.measure.device import open_device
from tuner.measurement import Policy
from tuner.workers.timed import times_of
from tuner.workers.whole import Run
from tuner.workload.spec import load_spec

# Eager is what the others are compared with; freezing is for inference, and nothing to a training step.
NAMES = ("eager", "default", "max_autotune", "tuned")
MAX_AUTOTUNE = {"max_autotune": True, "freezing": True}


def measured(spec: str, threads: int, phase: Any, samples: int, seed: int, patience: int) -> dict[str, Any]:
    function, inputs = load_spec(spec)
    # A SPEC may set a number of its own.
    torch.set_num_threads(threads)
    policy = Policy.for_cpu(threads)
    run = Run(inputs, False, policy, open_device("cpu"), phase)
    compiled = {
        "eager": function,
        "default": torch.compile(function, backend="inductor", dynamic=False),
        "max_autotune": torch.compile(function, backend="inductor", dynamic=False, options=MAX_AUTOTUNE),
        "tuned": torch.compile(function, backend="tuner", dynamic=False),
    }
    deviation = {name: min(run.add(name, compiled[name]), sys.float_info.max) for name in NAMES}
    served = tuner.report()["served"]
    run.time_default(run.calls["default"])
    # The first is what the device is woken with.
    names = ["default", *(name for name in NAMES if name != "default")]
    told = times_of(names, [run], [[run.calls[name] for name in names]], samples, seed, patience, ((),))
    outcomes = [[graph.workload_key, graph.phase, graph.outcome, graph.winner] for graph in served]
    return {**told, "deviation": deviation, "outcomes": outcomes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec")
    parser.add_argument("--phase", choices=("inference", "training"), required=True)
    for name in ("threads", "samples", "seed", "patience"):
        parser.add_argument(f"--{name}", type=int, required=True)
    with torch.no_grad():
        print(json.dumps(measured(**vars(parser.parse_args()))), flush=True)


if __name__ == "__main__":
    main()
