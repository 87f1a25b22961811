"""What a sweep tells those who watch it."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Progress:
    """State of one workload; changed in place, then `notify` is called.

    phase: "waiting", "screening", "race", "final", "whole", "native ops", "dispatch", "done", "settled", "failed",
    "not tuned". best: speed-up of the best candidate so far as screened, or of the winner when done. over_memory: the best
    speed-up that the memory limit kept out, with its peak memory relative to the default's. seconds_spent: wall time "compiling"
    (checks included) and "measuring", final included; final_s: of "measuring", the final.
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

    def enter(self, phase: str) -> None:
        self.phase = phase
        if phase == "screening":
            self.started = time.monotonic()
        self.notify()

    @property
    def elapsed_s(self) -> float:
        """Seconds of screening so far."""
        return self.spent_s or (time.monotonic() - self.started if self.started is not None else 0.0)
