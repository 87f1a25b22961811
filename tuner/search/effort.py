"""How much a sweep does: one word instead of many knobs."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.measure.promises import FALSE_WINNERS


@dataclass(frozen=True)
class Effort:
    """trials: candidates compiled per workload; seconds: spent on screening one workload, the final not counted.

    screen_samples, final_samples: interleaved samples of each function in one process; race_samples: at most, in heats of
    `heat_samples`. racers: candidates that enter the race; finalists: the final. looks: after how many fresh processes the final
    may end. memory_limit: peak memory allowed, relative to the default's. patience: how often a noisy stretch is repeated before
    it is refused as busy; 0 measures whatever the machine does. searches: of one workload, one at each size say, which may err
    together as often as one. dry: proposals of one kind in a row without gain after which there are no more of it.
    bases: lowering choices under which groups are sought, the default's among them.
    """

    name: str
    trials: int
    seconds: float
    screen_samples: int = 5
    heat_samples: int = 10
    race_samples: int = 60
    final_samples: int = 60
    racers: int = 6
    finalists: int = 2
    looks: tuple[int, ...] = (3, 5, 8)
    memory_limit: float = 1.02
    patience: int = 5
    searches: int = 1
    dry: int = 12
    bases: int = 2

    @property
    def final_error(self) -> float:
        """How often one bound of one finalist may fail at one look: FALSE_WINNERS of a workload's search, shared among all."""
        return FALSE_WINNERS / (self.finalists * len(self.looks) * self.searches)


EFFORTS: dict[str, Effort] = {
    "quick": Effort("quick", trials=24, seconds=60.0, dry=6),
    "normal": Effort("normal", trials=60, seconds=300.0, final_samples=100, racers=8),
    "full": Effort(
        "full",
        trials=10_000,
        seconds=3600.0,
        race_samples=120,
        final_samples=150,
        racers=16,
        finalists=3,
        looks=(3, 5, 8, 12),
        dry=60,
        bases=3,
    ),
}
RANKS = list(EFFORTS)
