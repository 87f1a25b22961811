"""Interleaved samples of several functions."""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Sequence

CLOCKS: dict[str, Callable[[], int]] = {"thread": time.thread_time_ns, "wall": time.perf_counter_ns}
# A sample is made of as many calls as the default needs for this long: the clock costs about a microsecond.
SAMPLE_MS = 2.0
MAX_REPETITIONS = 200

Restore = Callable[[], None] | None


def time_calls(function: Callable[[], object], repetitions: int, clock: str, restore: Restore) -> float:
    """Milliseconds for one call, mean over `repetitions`; with `restore`, it runs before each call, outside the clock."""
    now = CLOCKS[clock]
    if restore is None:
        start = now()
        for _ in range(repetitions):
            function()
        return (now() - start) / repetitions / 1e6
    spent = 0
    for _ in range(repetitions):
        restore()
        start = now()
        function()
        spent += now() - start
    return spent / repetitions / 1e6


def repetitions_for(default_ms: float) -> int:
    """How many calls make one sample, the same for every candidate: unequal numbers bias a comparison."""
    return max(1, min(MAX_REPETITIONS, math.ceil(SAMPLE_MS / max(default_ms, 1e-6))))


def interleaved(
    functions: Sequence[Callable[[], object]], samples: int, repetitions: int, clock: str, restore: Restore, seed: int
) -> list[list[float]]:
    """`samples` times in milliseconds for each function: in every round each runs once, in random order."""
    order, shuffle = list(range(len(functions))), random.Random(seed).shuffle
    times: list[list[float]] = [[] for _ in functions]
    for function in functions:
        time_calls(function, repetitions, clock, restore)
    gc_was_on = gc.isenabled()
    gc.disable()
    try:
        for _ in range(samples):
            shuffle(order)
            for i in order:
                times[i].append(time_calls(functions[i], repetitions, clock, restore))
    finally:
        if gc_was_on:
            gc.enable()
    return times
