"""Typed parameters: what may vary, in which bounds, where it means anything, and what is worth trying."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

BACKENDS = frozenset({"cpu", "cuda", "hip"})
GPUS = frozenset({"cuda", "hip"})

Value = bool | int | float | str


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where a parameter means anything; elsewhere it changes nothing, and is not proposed.

    backends: of the target. ops: beginnings of names of operations, "aten.cat.", of which the graph has at least one; none: any
    graph. threaded: only with more than one thread. numerics: whether values are computed by another formula or under weaker
    rules, and not just in another order or place: for those who allow it. variable: of the environment, which sets the default.
    """

    backends: frozenset[str] = BACKENDS
    ops: tuple[str, ...] = ()
    threaded: bool = False
    numerics: bool = False
    variable: str = ""


@dataclass(frozen=True)
class Integer(Where):
    """An integer knob in [low, high]. default: None where the compiler decides. trials: values worth trying, in order."""

    name: str
    low: int
    high: int
    default: int | None
    trials: tuple[int, ...]

    def contains(self, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high


@dataclass(frozen=True)
class Choice(Where):
    """One of a few values of the same type. default: None where the compiler decides."""

    name: str
    values: tuple[Value, ...]
    default: Value | None

    @property
    def trials(self) -> tuple[Value, ...]:
        return tuple(value for value in self.values if value != self.default)

    def contains(self, value: object) -> bool:
        return any(type(value) is type(allowed) and value == allowed for allowed in self.values)


@dataclass(frozen=True)
class Flag(Where):
    """On or off."""

    name: str
    default: bool

    @property
    def trials(self) -> tuple[bool, ...]:
        return (not self.default,)

    def contains(self, value: object) -> bool:
        return isinstance(value, bool)


Parameter = Integer | Choice | Flag


def grid(parameter: Parameter) -> tuple[Value | None, ...]:
    """The values among which a search chooses, the default among them; of numbers in ascending order.

    Of an integer: its trials, and in the geometric middle between each two. Where the compiler decides by default, it does so in
    place of a large number.
    """
    if isinstance(parameter, Flag):
        return (False, True)
    known = [*parameter.trials, *([] if parameter.default is None else [parameter.default])]
    if isinstance(parameter, Integer):
        ends = sorted(value for value in known if isinstance(value, int))
        middles = [math.isqrt(low * high) for low, high in itertools.pairwise(ends) if low > 0]
        known = sorted({*ends, *middles})
    elif not any(isinstance(value, str) for value in known):
        known.sort()
    return (*known, None) if parameter.default is None else tuple(known)
