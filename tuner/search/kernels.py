"""Kernel by kernel, what the default and the winner of a graph do: evidence for people, measured when a winner is concluded."""

from __future__ import annotations

from typing import Any

from tuner.anatomy import Anatomy
from tuner.errors import UnsupportedGraph, WorkerError
from tuner.plan import Plan
from tuner.search.bench import DEFAULT, Bench

# Enough for shares of the time; what is claimed of the whole comes of the final.
ROUNDS = 10
# What is told of more leaves nobody reads, and takes the store more room than all else of the winner.
MAX_LEAVES = 2000


def kernels_of(bench: Bench, plan: Plan) -> dict[str, Any]:
    """{"default": {"anatomy", "times"}, "winner": the same} of the graph that is open, as JSON; without "winner" where `plan` is
    the default.

    Anatomy and KernelTimes; "times" is missing where kernels cannot be timed one by one. Empty where the worker is lost over it,
    where the graph has no anatomy, or more than MAX_LEAVES leaves: that is nobody's fault, and fails nothing.
    """
    named = {"default": DEFAULT} if plan.is_default else {"default": DEFAULT, "winner": plan}
    if len(bench.default.get("realised") or ()) > MAX_LEAVES:
        return {}
    try:
        anatomies = {name: bench.anatomy(one) for name, one in named.items()}
        if any(not isinstance(read, Anatomy) or not 0 < len(read.leaves) <= MAX_LEAVES for read in anatomies.values()):
            return {}
        profiled = bench.profile([plan], ROUNDS)
    except (WorkerError, UnsupportedGraph):
        return {}
    told: dict[str, Any] = {}
    for name, one in named.items():
        read, times = anatomies[name], profiled.times.get(one.key)
        assert isinstance(read, Anatomy)
        told[name] = {"anatomy": read.to_json(), **({} if times is None else {"times": times.to_json()})}
    return told
