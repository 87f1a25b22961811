"""A whole callable in the measuring process: compiled by default, and with the plans of the store that the environment names.

Runs in the child only, as a user's process would: the callable's own inputs, torch.compile, the look-up, the compile caches. What
trains is run as training steps, see tuner/workload/step.py; what these leave in parameters and inputs is compared as outputs are.
What has sizes that vary is run at each of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tuner.compilers.inductor.events import report
from tuner.compilers.marks import marked
from tuner.measure.correctness import deviation
from tuner.measure.device import Device
from tuner.measurement import Policy
from tuner.workers.timed import Timed, described, times_of
from tuner.workload.dims import resized
from tuner.workload.graph import SpecPhase
from tuner.workload.shapes import STATIC, Shapes
from tuner.workload.spec import load_spec
from tuner.workload.step import Step


class Whole:
    """The callable compiled by default and with the plans, at each of its sizes.

    policy: its sizes are those of `shapes`, see `Shapes.whole_sizes`. error: how far the outcomes of the two are apart, in units
    of the tolerance. Raises SpecError, and what compiling or running the callable raises.
    """

    def __init__(self, spec: str, policy: Policy, device: Device, phase: SpecPhase = "inference", shapes: Shapes = STATIC):
        self.policy, self.shapes = policy, shapes
        self.function, inputs = load_spec(spec)
        torch.set_num_threads(policy.threads)
        self.runs = [
            Run(marked(resized(inputs, point), shapes.dims), dynamic, policy, device, phase)
            for dynamic in shapes.compilations
            for point in shapes.points
        ]
        started = time.perf_counter()
        self.add("default", "inductor")
        self.compile_s = time.perf_counter() - started
        self.error = self.add("planned", "tuner")
        self.served = report()["served"]

    def add(self, name: str, backend: Any) -> float:
        """Compiles the callable with `backend`, for each size; timed as `name` from then on.

        The answer is how far its outcomes are from those of the first that was added, in units of the tolerance.
        """
        compiled = {how: torch.compile(self.function, backend=backend, dynamic=how) for how in self.shapes.compilations}
        return max(run.add(name, compiled[run.dynamic]) for run in self.runs)

    def describe_default(self) -> dict[str, Any]:
        """error: how far the two differ, in units of the tolerance, None for infinity. outcomes: (key, outcome) of each graph.

        compile_s: wall time of compiling it, its first calls and their outcomes included: there is no check apart. The rest is
        what `described` says.
        """
        for run in self.runs:
            run.time_default(run.calls["default"])
        outcomes = [[graph.workload_key, graph.outcome] for graph in self.served]
        error = self.error if self.error != float("inf") else None
        return {
            **described(self.runs),
            "error": error,
            "outcomes": outcomes,
            "compile_s": self.compile_s,
            "check_s": 0.0,
        }

    def time_plans(self, keys: list[str], samples: int, seed: int, patience: int) -> dict[str, Any]:
        """Samples of "default" and of `keys`, "planned" if none, milliseconds for one call of the whole; see `times_of`."""
        names = ["default", *(keys or ["planned"])]
        calls = [[run.calls[name] for name in names] for run in self.runs]
        return times_of(names, self.runs, calls, samples, seed, patience, self.policy.sizes or ((),))


class Run(Timed):
    """Calls of compilations of one callable on its inputs of one size, by name. dynamic: how they are compiled."""

    def __init__(self, inputs: Sequence[Any], dynamic: bool | None, policy: Policy, device: Device, phase: SpecPhase):
        super().__init__(policy, device)
        self.inputs, self.dynamic = inputs, dynamic
        self.step = Step(inputs) if phase == "training" else None
        self.tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
        self.originals = [value.detach().clone() for value in self.tensors]
        self.writes = False
        self.calls: dict[str, Callable[[], Any]] = {}
        self.expected: list[Any] = []

    def add(self, name: str, compiled: Callable[..., Any]) -> float:
        """See Whole.add."""
        call = self.call(compiled)
        made = self.outcome(call)
        if not self.calls:
            self.expected = made
        self.calls[name] = call
        return deviation(made, self.expected)

    def call(self, compiled: Callable[..., Any]) -> Callable[[], Any]:
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
        self.put_back()
        return made

    def put_back(self) -> None:
        for value, original in zip(self.tensors, self.originals, strict=True):
            value.detach().copy_(original)
        if self.step is not None:
            self.step.forget()

    @property
    def restore(self) -> Callable[[], None] | None:
        if self.writes:
            return self.put_back
        return None if self.step is None else self.step.forget

    def peak_bytes(self, name: str) -> int:
        """See Device.peak_bytes."""
        self.put_back()
        peak = self.device.peak_bytes(self.calls[name])
        self.put_back()
        return peak
