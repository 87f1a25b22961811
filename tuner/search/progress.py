"""What a sweep tells those who watch it."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

# What screening is made of: a list of candidates from outside; or what changes lowering, the best of that together, knobs on top
# of it, groups.
SCREENING = ("screening", "lowering", "combining", "knobs", "groups")


@dataclass
class Progress:
    """State of one workload; changed in place, then `notify` is called.

    phase: "waiting", one of SCREENING, "race", "final", "whole", "native ops", "dispatch", "done", "settled", "failed",
    "not tuned". best: speed-up of the best candidate so far as screened, or of the winner when done. over_memory: the best
    speed-up that the memory limit kept out, with its peak memory relative to the default's. seconds_spent: wall time "compiling"
    (checks included) and "measuring", final included; final_s: of "measuring", the final. anatomies: how often the compiler was
    asked what it schedules; profiled: plans of which each kernel was timed. notes: what was left out of the search, and why.
    """

    spec: str
    workload_key: str
    trials: int
    seconds: float
    notify: Callable[[], None] = lambda: None
    phase: str = "waiting"
    default_ms: float | None = None
    best: float = 1.0
    best_plan: str = "default"
    measured: int = 0
    duplicates: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    over_memory: tuple[float, float, str] | None = None
    seconds_spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    started: float | None = None
    spent_s: float = 0.0
    final_s: float = 0.0
    anatomies: int = 0
    profiled: int = 0
    notes: list[str] = field(default_factory=list)

    def enter(self, phase: str) -> None:
        self.phase = phase
        if phase in SCREENING and self.started is None:
            self.started = time.monotonic()
        self.notify()

    @property
    def elapsed_s(self) -> float:
        """Seconds of screening so far."""
        return self.spent_s or (time.monotonic() - self.started if self.started is not None else 0.0)
