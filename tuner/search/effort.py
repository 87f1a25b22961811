"""How much a sweep does: one word instead of many knobs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """trials: candidates compiled per workload; seconds: spent on screening one workload, the final not counted.

    screen_samples, race_samples, final_samples: interleaved samples of each function in one process. finalists: candidates that
    enter the final. processes: fresh processes of the final. memory_limit: peak memory allowed, relative to the default's.
    """

    name: str
    trials: int
    seconds: float
    screen_samples: int = 9
    race_samples: int = 30
    final_samples: int = 60
    racers: int = 4
    finalists: int = 2
    processes: int = 3
    memory_limit: float = 1.02


EFFORTS: dict[str, Effort] = {
    "quick": Effort("quick", trials=24, seconds=60.0),
    "normal": Effort("normal", trials=60, seconds=300.0, final_samples=100),
    "full": Effort("full", trials=10_000, seconds=3600.0, final_samples=150, racers=6, finalists=3, processes=5),
}
RANKS = list(EFFORTS)
