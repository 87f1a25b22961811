"""What a screening may spend, and has spent."""

from __future__ import annotations

import time

# One bad candidate costs one candidate: what hung is not counted against the seconds, up to so many times as many.
FORGIVEN = 3


class Budget:
    """Trials and seconds, which count from now on. trials: used so far. hung_s: lost to candidates that hung."""

    def __init__(self, trials: int, seconds: float):
        self.limit, self.seconds = trials, seconds
        self.trials, self.hung_s = 0, 0.0
        self._started = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Since the start, what hung included."""
        return time.monotonic() - self._started

    @property
    def left_s(self) -> float:
        return self.seconds - (self.elapsed_s - min(self.hung_s, FORGIVEN * self.seconds))

    @property
    def in_time(self) -> bool:
        return self.left_s > 0

    def left(self, share: float = 1.0) -> int:
        """Trials that are left until this share of all is used; none where this share of the seconds is."""
        if self.left_s <= (1 - share) * self.seconds:
            return 0
        return max(0, max(1, round(share * self.limit)) - self.trials)
