"""Compile examples in a process of its own with backend="tuner", and time what was served against Inductor's default.

Usage: served.py SPEC... ; prints one JSON object a SPEC. Times are medians of interleaved samples, thread clock, one thread.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from typing import Any

import torch

import tuner
from tuner.measure.device import Device, open_device
from tuner.measure.statistics import speedup_of
from tuner.measure.timing import measure_stretch, repetitions_for
from tuner.measurement import Policy
from tuner.workload.spec import load_spec
from tuner.workload.step import Step, phase_of

SAMPLES = 60
PATIENCE = 2


def main() -> None:
    torch.set_num_threads(1)
    device, policy = open_device("cpu"), Policy.for_cpu(threads=1)
    for spec in sys.argv[1:]:
        print(json.dumps(row(spec, device, policy)), flush=True)


def row(spec: str, device: Device, policy: Policy) -> dict[str, Any]:
    """What one SPEC was served, and its speed-up."""
    function, inputs = load_spec(spec)
    step = Step(inputs) if phase_of(function, inputs) == "training" else None

    def call(compiled: Callable[..., Any]) -> None:
        """One inference call, or one training step."""
        if step is None:
            with torch.no_grad():
                compiled(*inputs)
        else:
            step(compiled)
            step.forget()

    default = torch.compile(function, backend="inductor", dynamic=False)
    served = torch.compile(function, backend="tuner", dynamic=False)
    call(default)
    tuner.reset_report()
    call(served)
    graphs = tuner.report()["served"]
    originals = [value.detach().clone() for value in inputs]
    call(served)
    writes = any(not torch.equal(*pair) for pair in zip(inputs, originals, strict=True))

    def restore() -> None:
        for value, original in zip(inputs, originals, strict=True):
            value.copy_(original)

    calls = [functools.partial(call, compiled) for compiled in (default, served)]
    repetitions = repetitions_for(min(device.time_ms(calls[0], 3, policy.clock, None) for _ in range(3)), policy)
    with torch.compiler.set_stance("fail_on_recompile"):
        stretch = measure_stretch(
            device,
            calls,
            policy,
            samples=SAMPLES,
            repetitions=repetitions,
            restore=restore if writes else None,
            seed=0,
            patience=PATIENCE,
        )
    speedup = speedup_of([(stretch.times_ms[0], stretch.times_ms[1])])
    return {
        "spec": spec,
        "tiers": sorted({graph.tier for graph in graphs}),
        "winners": [graph.winner for graph in graphs],
        "outcomes": [graph.outcome for graph in graphs],
        "sources": sorted({graph.source for graph in graphs}),
        "groups_as_stored": bool(graphs) and all(g.realised and g.expected in (g.realised, None) for g in graphs),
        "speedup": speedup.value,
        "speedup_low": speedup.low,
        "speedup_high": speedup.high,
    }


if __name__ == "__main__":
    main()
