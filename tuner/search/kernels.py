"""Kernel by kernel, what the default and the winner of a graph do: evidence for people, measured when a winner is concluded."""

from __future__ import annotations

import time
from typing import Any

from tuner.anatomy import Anatomy
from tuner.errors import UnsupportedGraph, WorkerError
from tuner.plan import Plan
from tuner.search.bench import DEFAULT, LEAST_PROFILE_S, Bench

# Enough for shares of the time; what is claimed of the whole comes of the final.
ROUNDS = 10
# What is told of more leaves nobody reads, and takes the store more room than all else of the winner.
MAX_LEAVES = 2000
# Where the default has won without a final, its kernels are worth little: up to so many of them, and seconds.
FEW_KERNELS, LITTLE_S = 36, 30.0
# What a final has decided is worth more, and most of it was compiled for the search.
FINAL_S = 180.0
# Seconds that reading an anatomy is given, however few are left.
LEAST_S = 1.0


def kernels_of_loss(bench: Bench, left_s: float) -> dict[str, Any]:
    """The default's kernels, as `kernels_of`, where nothing came near it.

    None where there are many, hardly any seconds are left, or the process that had the graph open has ended.
    """
    if left_s < LEAST_PROFILE_S or not bench.process or len(bench.default.get("realised") or ()) > FEW_KERNELS:
        return {}
    return kernels_of(bench, DEFAULT, min(left_s, LITTLE_S))


def kernels_of(bench: Bench, plan: Plan, most_s: float = FINAL_S) -> dict[str, Any]:
    """{"default": {"anatomy", "times"}, "winner": the same} of the graph that is open, as JSON; without "winner" where `plan` is
    the default. Takes `most_s` seconds at most, a graph that has to be opened again not counted.

    Anatomy and KernelTimes; "times" is missing where kernels cannot be timed one by one. Empty where the worker is lost over it,
    where the graph has no anatomy, or more than MAX_LEAVES leaves: that is nobody's fault, and fails nothing.
    """
    ends = time.monotonic() + most_s
    named = {"default": DEFAULT} if plan.is_default else {"default": DEFAULT, "winner": plan}
    if len(bench.default.get("realised") or ()) > MAX_LEAVES:
        return {}
    try:
        anatomies = {name: bench.anatomy(one, max(LEAST_S, ends - time.monotonic())) for name, one in named.items()}
        if any(not isinstance(read, Anatomy) or not 0 < len(read.leaves) <= MAX_LEAVES for read in anatomies.values()):
            return {}
        if ends - time.monotonic() < LEAST_PROFILE_S:
            return {name: {"anatomy": read.to_json()} for name, read in anatomies.items() if isinstance(read, Anatomy)}
        profiled = bench.profile([plan], ROUNDS, ends - time.monotonic())
    except (WorkerError, UnsupportedGraph):
        return {}
    told: dict[str, Any] = {}
    for name, one in named.items():
        read, times = anatomies[name], profiled.times.get(one.key)
        assert isinstance(read, Anatomy)
        told[name] = {"anatomy": read.to_json(), **({} if times is None else {"times": times.to_json()})}
    return told
