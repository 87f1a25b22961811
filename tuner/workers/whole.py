"""A whole callable in the measuring process: compiled by default, and with the plans of the store that the environment names.

Runs in the child only, as a user's process would: the callable's own inputs, torch.compile, the look-up, the compile caches. What
trains is run as training steps, see tuner/workload/step.py; what these leave in parameters and inputs is compared as outputs are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tuner.compilers.inductor.events import report
from tuner.measure.correctness import deviation
from tuner.measure.device import Device
from tuner.measure.timing import measure_stretch, repetitions_for
from tuner.measurement import Policy
from tuner.workload.graph import SpecPhase
from tuner.workload.spec import load_spec
from tuner.workload.step import Step

WARM_UP_CALLS = 3


class Whole:
    """Raises SpecError, and what compiling or running the callable raises."""

    def __init__(self, spec: str, policy: Policy, device: Device, phase: SpecPhase = "inference"):
        self.policy, self.device = policy, device
        self.function, self.inputs = load_spec(spec)
        torch.set_num_threads(policy.threads)
        self.step = Step(self.inputs) if phase == "training" else None
        self.calls = {
            name: self._runs(torch.compile(self.function, backend=backend, dynamic=False))
            for name, backend in (("default", "inductor"), ("planned", "tuner"))
        }
        self.tensors = [leaf for leaf in pytree.tree_leaves(self.inputs) if isinstance(leaf, Tensor)]
        self.originals = [value.detach().clone() for value in self.tensors]
        self.writes = False
        self.expected = self.outcome(self.calls["default"])
        self.error = deviation(self.outcome(self.calls["planned"]), self.expected)
        self.served = report()["served"]

    def _runs(self, compiled: Callable[..., Any]) -> Callable[[], Any]:
        """One call of it, or one training step."""
        if (step := self.step) is not None:
            return lambda: step(compiled)
        return lambda: compiled(*self.inputs)

    def outcome(self, call: Callable[[], Any]) -> list[Any]:
        """What one call makes: outputs, inputs as it leaves them, and the gradients of a step; all copied."""
        torch.manual_seed(0)
        values = [*pytree.tree_leaves(call()), *self.tensors, *(self.step.gradients if self.step is not None else ())]
        made = [value.detach().clone() if isinstance(value, Tensor) else value for value in values]
        self.writes |= any(not torch.equal(a, b) for a, b in zip(self.tensors, self.originals, strict=True))
        self._put_back()
        return made

    def _put_back(self) -> None:
        for value, original in zip(self.tensors, self.originals, strict=True):
            value.detach().copy_(original)
        if self.step is not None:
            self.step.forget()

    @property
    def restore(self) -> Callable[[], None] | None:
        """What is to be done before each call, outside the clock."""
        if self.writes:
            return self._put_back
        return None if self.step is None else self.step.forget

    def describe_default(self) -> dict[str, Any]:
        """error: how far the two differ, in units of the tolerance, None for infinity. outcomes: (key, outcome) of each graph."""
        started = time.perf_counter()
        self.calls["default"]()
        call_s = time.perf_counter() - started
        clock = self.policy.clock
        default_ms = min(self.device.time_ms(self.calls["default"], 1, clock, self.restore) for _ in range(WARM_UP_CALLS))
        self._put_back()
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
        """Samples of "default" and of `keys`, "planned" if none, milliseconds for one call of the whole; see measure_stretch."""
        names = ["default", *(keys or ["planned"])]
        with torch.compiler.set_stance("fail_on_recompile"):
            stretch = measure_stretch(
                self.device,
                [self.calls[name] for name in names],
                self.policy,
                samples=samples,
                repetitions=self.repetitions,
                restore=self.restore,
                seed=seed,
                patience=patience,
            )
        times = dict(zip(names, stretch.times_ms, strict=True))
        return {"times": times, "conditions": stretch.conditions, "busy": stretch.busy}
