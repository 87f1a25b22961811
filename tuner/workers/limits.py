"""How long a candidate may take, derived from what the default took. Counted by who holds the device, from when he holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.plan import Groups

# The default's own compilation and check, before anything is known of it: a large graph on a slow machine.
OPEN_S = 420.0
# A candidate's compilation against the default's: other groups are other kernels, of which g++ now and then takes many times as
# long; beside others in a pool it takes longer still. The floor is for small graphs, where starting g++ is all there is.
COMPILE_FLOOR_S, COMPILE_FACTOR = 60.0, 10.0
# For each kernel of the default: its own compilation may have found what g++ made before, and a pool runs one g++ a worker.
KERNEL_S = 15.0
# A candidate's calls against the default's: one that is 50 times as slow is not worth more. Once timed, it is known better.
RUN_FLOOR_S, RUN_FACTOR, KNOWN_FACTOR = 20.0, 50.0, 5.0
# Calls of warm-up beside those of a stretch, and seconds that a stretch may wait for quiet, all its attempts together.
WARM_UP_SAMPLES, WAITS_S = 25, 30.0
# A candidate's check against the default's: most of it compares, which takes as long for any candidate; and the calls in it.
CHECK_FLOOR_S, CHECK_FACTOR, CHECK_CALLS = 10.0, 5.0, 4


@dataclass(frozen=True)
class Limits:
    """compile_s: for compiling one candidate. try_s: for compiling and checking one. call_s: what the default's call takes."""

    compile_s: float
    try_s: float
    call_s: float

    def split_s(self, groups: Groups | None) -> float:
        """Seconds for compiling a candidate of so many groups, each a function of its own; None: the default's own groups."""
        return max(self.compile_s, KERNEL_S * len(groups or ()))

    def stretch_s(self, candidates: int, samples: int, repetitions: int, patience: int, known: bool) -> float:
        """Seconds for a stretch of the default and so many candidates, with its repetitions where it is noisy.

        known: whether the candidates were timed before, and are not much slower than the default.
        """
        sweep_s = (samples + WARM_UP_SAMPLES) * repetitions * self.call_s
        slow = KNOWN_FACTOR if known else RUN_FACTOR
        return RUN_FLOOR_S + WAITS_S + sweep_s * (candidates * slow + 2 * (candidates + 1) * (1 + patience))


def limits(default: Mapping[str, Any]) -> Limits:
    """The limits beside a default of which `default` tells, the worker's answer to "open": its compile_s, check_s and call_s."""
    kernels = len(default.get("realised") or ())
    compile_s = max(COMPILE_FLOOR_S, COMPILE_FACTOR * default["compile_s"], KERNEL_S * kernels)
    check_s = CHECK_FLOOR_S + CHECK_FACTOR * default["check_s"] + CHECK_CALLS * RUN_FACTOR * default["call_s"]
    return Limits(compile_s=compile_s, try_s=compile_s + check_s, call_s=default["call_s"])
