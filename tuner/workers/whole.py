"""A whole callable in the measuring process: compiled by default, and with the plans of the store that the environment names.

Runs in the child only, as a user's process would: the callable's own inputs, torch.compile, the look-up, the compile caches.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tuner.compilers.inductor.events import report
from tuner.measure.correctness import deviation
from tuner.measure.device import Device
from tuner.measure.timing import measure_stretch, repetitions_for
from tuner.measurement import Policy
from tuner.workload.spec import load_spec

WARM_UP_CALLS = 3


class Whole:
    """Raises SpecError, and what compiling or running the callable raises."""

    def __init__(self, spec: str, policy: Policy, device: Device):
        self.policy, self.device = policy, device
        function, self.inputs = load_spec(spec)
        torch.set_num_threads(policy.threads)
        self.default = torch.compile(function, backend="inductor", dynamic=False)
        self.planned = torch.compile(function, backend="tuner", dynamic=False)
        self.tensors = [leaf for leaf in pytree.tree_leaves(self.inputs) if isinstance(leaf, Tensor)]
        originals = [value.clone() for value in self.tensors]
        outcomes, mutates = [], False
        for call in (self.default, self.planned):
            torch.manual_seed(0)
            outcomes.append(self._outcome(call))
            mutates = mutates or any(not torch.equal(a, b) for a, b in zip(self.tensors, originals, strict=True))
            self._put_back(originals)
        self.originals = originals if mutates else None
        self.served = report()["served"]
        self.error = deviation(outcomes[1], outcomes[0])

    def _outcome(self, call: Any) -> list[Any]:
        values = [*pytree.tree_leaves(call(*self.inputs)), *self.tensors]
        return [value.detach().clone() if isinstance(value, Tensor) else value for value in values]

    def _put_back(self, originals: list[Tensor]) -> None:
        for value, original in zip(self.tensors, originals, strict=True):
            value.copy_(original)

    def describe_default(self) -> dict[str, Any]:
        """error: how far the two differ, in units of the tolerance, None for infinity. outcomes: (key, outcome) of each graph."""
        started = time.perf_counter()
        self.default(*self.inputs)
        call_s = time.perf_counter() - started
        clock = self.policy.clock
        default_ms = min(self.device.time_ms(lambda: self.default(*self.inputs), 1, clock, None) for _ in range(WARM_UP_CALLS))
        if self.originals is not None:
            self._put_back(self.originals)
        self.repetitions = repetitions_for(default_ms, self.policy)
        outcomes = [[graph.workload_key, graph.outcome] for graph in self.served]
        error = self.error if self.error != float("inf") else None
        return {
            "default_ms": default_ms,
            "repetitions": self.repetitions,
            "error": error,
            "outcomes": outcomes,
            "call_s": call_s,
            "compile_s": 0.0,
            "check_s": 0.0,
        }

    def time_plans(self, keys: list[str], samples: int, seed: int, patience: int) -> dict[str, Any]:
        """Samples of "default" and "planned", milliseconds for one call of the whole, whatever the keys; see measure_stretch."""
        with torch.compiler.set_stance("fail_on_recompile"):
            stretch = measure_stretch(
                self.device,
                [lambda: self.default(*self.inputs), lambda: self.planned(*self.inputs)],
                self.policy,
                samples=samples,
                repetitions=self.repetitions,
                restore=None if self.originals is None else functools.partial(self._put_back, self.originals),
                seed=seed,
                patience=patience,
            )
        times = dict(zip(("default", "planned"), stretch.times_ms, strict=True))
        return {"times": times, "conditions": stretch.conditions, "busy": stretch.busy}
