"""Who says what is tried next, and hears what became of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from tuner.measurement import Measurement
from tuner.plan import Groups
from tuner.search_spaces.space import Candidate


@dataclass(frozen=True)
class Result:
    """What became of a candidate.

    status: a measurement's, or "duplicate" (its code or grouping was there before), "not_realised", "refused", "quarantined".
    measurement: its row, where it has one. ratio: its speed-up, of a duplicate its twin's; None where none is known.
    noise: standard error of that, relative. instead: the grouping that the compiler made, where nobody has tried that.
    admissible: whether it may win, fast as it may be: not where it needs too much memory, or is slower at a size.
    """

    status: str
    measurement: Measurement | None = None
    ratio: float | None = None
    noise: float = 0.0
    instead: Groups | None = None
    admissible: bool = True


class Proposer(Protocol):
    """Proposes candidates of one kind, the best known by then first.

    phase: what a sweep shows. share: of the budget that is used up when it has to end, by trials or by seconds. ahead: whether it
    proposes so many at a time that a compile pool is of use.
    """

    phase: str
    share: float
    ahead: bool

    def next(self, count: int) -> list[Candidate]:
        """At most `count` candidates; none where there is nothing left, or nothing until `told` has been called for all."""
        ...

    def told(self, candidate: Candidate, result: Result) -> None:
        """Called once for each candidate that `next` gave."""
        ...


class FixedList:
    """Candidates in a given order; after one that the compiler groups otherwise, what it made instead."""

    def __init__(self, found: Iterable[Candidate], phase: str = "screening", share: float = 1.0):
        self.phase, self.share, self.ahead = phase, share, True
        self._queue = deque(found)

    def __bool__(self) -> bool:
        return bool(self._queue)

    def next(self, count: int) -> list[Candidate]:
        return [self._queue.popleft() for _ in range(min(count, len(self._queue)))]

    def told(self, candidate: Candidate, result: Result) -> None:
        if result.instead is not None:
            self._queue.appendleft(replace(candidate, plan=replace(candidate.plan, groups=result.instead)))
