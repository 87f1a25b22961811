"""What is timed at one size, and what the times at several sizes say together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tuner.measure.device import Device
from tuner.measure.statistics import median_of
from tuner.measure.timing import Stretch, measure_stretch, repetitions_for
from tuner.measurement import Policy

Call = Callable[[], Any]

WARM_UP_CALLS = 3
# Distance between the seeds of the orders of two sizes.
ORDERS_APART = 7919


class Timed:
    """default_ms, call_s, repetitions: once `time_default` ran.

    default_ms: rough, of one call by the policy's clock; call_s: wall seconds of one with what comes before it.
    """

    def __init__(self, policy: Policy, device: Device):
        self.policy, self.device = policy, device
        self.default_ms = self.call_s = 0.0
        self.repetitions = 1

    @property
    def restore(self) -> Call | None:
        """What is to be done before each call, outside the clock."""
        raise NotImplementedError

    def put_back(self) -> None:
        """Undoes what calls leave in their inputs."""
        raise NotImplementedError

    def time_default(self, call: Call) -> None:
        started = time.perf_counter()
        call()
        self.call_s = time.perf_counter() - started
        self.default_ms = min(self.device.time_ms(call, 1, self.policy.clock, self.restore) for _ in range(WARM_UP_CALLS))
        self.put_back()
        self.repetitions = repetitions_for(self.default_ms, self.policy)

    def stretch(self, calls: Sequence[Call], samples: int, seed: int, patience: int) -> Stretch:
        return measure_stretch(
            self.device,
            calls,
            self.policy,
            samples=samples,
            repetitions=self.repetitions,
            restore=self.restore,
            seed=seed,
            patience=patience,
        )


def described(timed: Sequence[Timed]) -> dict[str, Any]:
    """default_ms: rough, at all sizes. repetitions, call_s: of the size whose samples take longest."""
    longest = max(timed, key=lambda one: one.repetitions * one.call_s)
    return {
        "default_ms": median_of([one.default_ms for one in timed], len(timed)),
        "repetitions": longest.repetitions,
        "call_s": longest.call_s,
    }


def times_of(
    names: Sequence[str],
    timed: Sequence[Timed],
    calls: Sequence[Sequence[Call]],
    samples: int,
    seed: int,
    patience: int,
    sizes: Sequence[Sequence[int]],
) -> dict[str, Any]:
    """Interleaved samples of the calls that each of `timed` has by these names, none compiled anew.

    times: by name, milliseconds for one call; of several sizes one of each in a round. conditions, busy: see Stretch.
    """
    with torch.compiler.set_stance("fail_on_recompile"):
        stretches = [
            one.stretch(own, samples, seed + ORDERS_APART * i, patience)
            for i, (one, own) in enumerate(zip(timed, calls, strict=True))
        ]
    return {
        "times": dict(zip(names, _interleaved(stretches), strict=True)),
        "conditions": _conditions_of(stretches),
        "busy": _busy_of(stretches, sizes),
    }


def _interleaved(stretches: Sequence[Stretch]) -> list[list[float]]:
    """The samples of each call at all sizes: in each round one of each size, in their order."""
    return [
        [ms for one_round in zip(*of_call, strict=True) for ms in one_round]
        for of_call in zip(*(stretch.times_ms for stretch in stretches), strict=True)
    ]


def _conditions_of(stretches: Sequence[Stretch]) -> dict[str, Any]:
    """What was read while they were measured: of several sizes, that of the first, and all under "at_sizes"."""
    first = stretches[0].conditions
    return first if len(stretches) == 1 else {**first, "at_sizes": [stretch.conditions for stretch in stretches]}


def _busy_of(stretches: Sequence[Stretch], sizes: Sequence[Sequence[int]]) -> str | None:
    """Why the times of one of them are not to be trusted, or None."""
    told = ((stretch.busy, size) for stretch, size in zip(stretches, sizes, strict=True) if stretch.busy is not None)
    return next((f"{busy} (at {list(size)})" if size else busy for busy, size in told), None)
