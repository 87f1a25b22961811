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
from tuner.measure.statistics import median_of
from tuner.measure.timing import Stretch, measure_stretch, repetitions_for
from tuner.measurement import Policy
from tuner.workers.sized import ORDERS_APART, busy_of, conditions_of, interleaved
from tuner.workload.dims import resized
from tuner.workload.graph import SpecPhase
from tuner.workload.shapes import STATIC, Shapes
from tuner.workload.spec import load_spec
from tuner.workload.step import Step

WARM_UP_CALLS = 3


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

        repetitions, call_s: of the size whose samples take longest. compile_s: wall time of compiling it, its first calls and
        their outcomes included: there is no check apart.
        """
        for run in self.runs:
            run.time_default()
        longest = max(self.runs, key=lambda run: run.repetitions * run.call_s)
        outcomes = [[graph.workload_key, graph.outcome] for graph in self.served]
        error = self.error if self.error != float("inf") else None
        return {
            "default_ms": median_of([run.default_ms for run in self.runs], len(self.runs)),
            "repetitions": longest.repetitions,
            "error": error,
            "outcomes": outcomes,
            "call_s": longest.call_s,
            "compile_s": self.compile_s,
            "check_s": 0.0,
        }

    def time_plans(self, keys: list[str], samples: int, seed: int, patience: int) -> dict[str, Any]:
        """Samples of "default" and of `keys`, "planned" if none, milliseconds for one call of the whole; see measure_stretch.

        Where sizes vary, one of each in a round.
        """
        names = ["default", *(keys or ["planned"])]
        with torch.compiler.set_stance("fail_on_recompile"):
            stretches = [run.stretch(names, samples, seed + ORDERS_APART * i, patience) for i, run in enumerate(self.runs)]
        times = dict(zip(names, interleaved(stretches), strict=True))
        busy = busy_of(stretches, self.policy.sizes or ((),))
        return {"times": times, "conditions": conditions_of(stretches), "busy": busy}


class Run:
    """Calls of compilations of one callable on its inputs of one size, by name. dynamic: how they are compiled."""

    def __init__(self, inputs: Sequence[Any], dynamic: bool | None, policy: Policy, device: Device, phase: SpecPhase):
        self.inputs, self.dynamic, self.policy, self.device = inputs, dynamic, policy, device
        self.step = Step(inputs) if phase == "training" else None
        self.tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
        self.originals = [value.detach().clone() for value in self.tensors]
        self.writes = False
        self.calls: dict[str, Callable[[], Any]] = {}
        self.expected: list[Any] = []
        self.default_ms = self.call_s = 0.0
        self.repetitions = 1

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
        """What is to be done before each call, outside the clock."""
        if self.writes:
            return self.put_back
        return None if self.step is None else self.step.forget

    def peak_bytes(self, name: str) -> int:
        """See Device.peak_bytes."""
        self.put_back()
        peak = self.device.peak_bytes(self.calls[name])
        self.put_back()
        return peak

    def time_default(self) -> None:
        call = self.calls["default"]
        started = time.perf_counter()
        call()
        self.call_s = time.perf_counter() - started
        clock = self.policy.clock
        self.default_ms = min(self.device.time_ms(call, 1, clock, self.restore) for _ in range(WARM_UP_CALLS))
        self.put_back()
        self.repetitions = repetitions_for(self.default_ms, self.policy)

    def stretch(self, names: Sequence[str], samples: int, seed: int, patience: int) -> Stretch:
        return measure_stretch(
            self.device,
            [self.calls[name] for name in names],
            self.policy,
            samples=samples,
            repetitions=self.repetitions,
            restore=self.restore,
            seed=seed,
            patience=patience,
        )
