"""What the back end did in this process: for tests, for the demo, for a user who wonders."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tuner.errors import one_line
from tuner.lookup.client import warn_once
from tuner.plan import Groups


@dataclass(frozen=True)
class Served:
    """One graph of a program that passed. realised: groups read back; None where Inductor's own cache answered, or nothing of
    ours was applied.

    outcome: "served" (a plan was applied), "default" (the default was the answer) or "fallback" (a plan could not be applied;
    `reason` says why, and the default was compiled); "served from cache" and "default from cache" where AOTAutograd's cache
    answered for the whole program: what it holds was compiled under the same plan, in this process or another. Then `phase` is
    empty, and the keys are empty too where nobody knows which graphs the program gives, also where "default" is that of a whole
    program, which nobody was asked for: its settings or the user's hooks cannot be named. "random": under TUNER_RANDOM_PLANS;
    `reason` is what was drawn.
    """

    program_key: str
    workload_key: str
    tier: str
    winner: str
    generation: int
    outcome: str
    reason: str
    source: str
    phase: str = ""
    realised: Groups | None = None
    expected: Groups | None = None


_lock = threading.Lock()
_served: list[Served] = []
_counts: Counter[str] = Counter()


def record(served: Served) -> None:
    with _lock:
        _served.append(served)
        _counts[served.outcome] += 1


def count(outcome: str) -> None:
    """Counts an outcome: "program" for each program asked for, "default: <reason>" where it was compiled by default.

    "miss reported", "miss not reported: <reason>": whether a daemon that wanted an unknown program was given it.
    """
    with _lock:
        _counts[outcome] += 1


def swallowed(what: str, error: Exception) -> None:
    """Counts an error of ours that a compile goes on after; the first is logged as a warning."""
    count(f"default: {what}")
    warn_once("%s, compiling by default: %s", what, one_line(error))


def report() -> dict[str, Any]:
    """`served`: a list of `Served`, one for each graph that this process compiled or took from a cache; `counts`: by outcome."""
    with _lock:
        return {"served": list(_served), "counts": dict(_counts)}


def reset_report() -> None:
    """Forgets what was reported so far."""
    with _lock:
        _served.clear()
        _counts.clear()
