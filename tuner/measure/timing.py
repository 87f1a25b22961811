"""A stretch: samples of several calls, interleaved, on a machine that was quiet meanwhile."""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tuner.errors import TunerError
from tuner.measure.device import Call, Device
from tuner.measure.quietness import disturbance, observed, unsteady
from tuner.measurement import Policy

# The sample of a policy that says nothing else, and of rows of the first version.
SAMPLE_MS = 2.0
MAX_REPETITIONS = 200
# Two consecutive blocks of warm-up calls that agree this closely are taken for stable.
STABLE_WITHIN = 0.02
# Bounds of one call's warm-up. A call that is longer than WARM_UP_MS is called once.
MAX_WARM_UP_BLOCKS = 40
WARM_UP_MS = 500.0
# The first call of a stretch keeps the device busy this long: clocks that fell while it was idle rise again.
WAKE_MS = 110.0
# First wait before a noisy stretch is repeated; each further one is twice as long.
FIRST_WAIT_S = 0.5


@dataclass(frozen=True)
class Stretch:
    """times_ms: for each call its samples, milliseconds for one call, paired by round.

    conditions: what was read before and after, JSON. busy: why the times are not to be trusted, or None.
    """

    times_ms: list[list[float]]
    conditions: dict[str, Any]
    busy: str | None


def repetitions_for(default_ms: float, policy: Policy | None = None) -> int:
    """How many calls make one sample, the same for every candidate: unequal numbers bias a comparison."""
    sample_ms = SAMPLE_MS if policy is None or policy.sample_ms is None else policy.sample_ms
    return max(1, min(MAX_REPETITIONS, math.ceil(sample_ms / max(default_ms, 1e-6))))


def measure_stretch(
    device: Device,
    calls: Sequence[Call],
    policy: Policy,
    *,
    samples: int,
    repetitions: int,
    restore: Call | None,
    seed: int,
    patience: int,
    wait: Callable[[float], None] = time.sleep,
) -> Stretch:
    """`samples` interleaved samples of each call, the default's first, under `policy`.

    Each call is made ready for the policy's mode and warmed up until stable; then in every round each is sampled once, in random
    order, `repetitions` calls a sample. `restore` puts mutated inputs back before each call, outside the clock. A stretch that
    was disturbed is thrown away whole and repeated, at most `patience` times, after growing waits; then it is returned as busy.
    Raises TunerError where the device has not the policy's clock or mode, and whatever a call raises.
    """
    if policy.clock not in device.clocks:
        raise TunerError(f"{device.name} has the clocks {', '.join(device.clocks)}, not {policy.clock}")
    ready = [device.ready(call, policy.mode) for call in calls]
    before_each = _before_each(device, policy, restore)
    shuffle = random.Random(seed).shuffle

    def sample(call: Call) -> float:
        return device.time_ms(call, repetitions, policy.clock, before_each)

    for attempt in range(patience + 1):
        if attempt:
            wait(FIRST_WAIT_S * 2 ** (attempt - 1))
        with _no_garbage_collection():
            before = device.conditions()
            for i, call in enumerate(ready):
                _warm_up(sample, call, repetitions, WAKE_MS if i == 0 else 0.0)
            # What others do is counted from the warm-up on, or it is too short to judge; clocks count from when they rose.
            warm = device.conditions()
            before = replace(before, mhz=warm.mhz, gpu=warm.gpu)
            times_ms = _rounds(sample, ready, samples, shuffle)
            after = device.conditions()
        busy = disturbance(before, after, policy.threads) or unsteady(times_ms)
        if busy is None:
            break
    return Stretch(times_ms, {**observed(before, after), "attempts": attempt + 1}, busy)


def _before_each(device: Device, policy: Policy, restore: Call | None) -> Call | None:
    if policy.cache != "cold":
        return restore
    if restore is None:
        return device.flush

    def restore_and_flush() -> None:
        restore()
        device.flush()

    return restore_and_flush


def _warm_up(sample: Callable[[Call], float], call: Call, repetitions: int, at_least_ms: float) -> None:
    """Samples, thrown away, until two in a row agree and the device was busy for `at_least_ms`, or until a bound is met."""
    spent_ms, last_ms = 0.0, math.inf
    for block in range(1, MAX_WARM_UP_BLOCKS + 1):
        now_ms = sample(call)
        spent_ms += now_ms * repetitions
        stable = block > 1 and abs(now_ms - last_ms) <= STABLE_WITHIN * last_ms
        if spent_ms >= WARM_UP_MS or (stable and spent_ms >= at_least_ms):
            return
        last_ms = now_ms


def _rounds(
    sample: Callable[[Call], float], calls: Sequence[Call], samples: int, shuffle: Callable[[list[int]], None]
) -> list[list[float]]:
    order = list(range(len(calls)))
    times_ms: list[list[float]] = [[] for _ in calls]
    for _ in range(samples):
        shuffle(order)
        for i in order:
            times_ms[i].append(sample(calls[i]))
    return times_ms


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
