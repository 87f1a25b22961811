"""Typed parameters: what may vary, in which bounds, and what is worth trying."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Integer:
    """An integer knob in [low, high]. default: None where the compiler decides. trials: values worth trying, in order."""

    name: str
    low: int
    high: int
    default: int | None
    trials: tuple[int, ...]

    def contains(self, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high


@dataclass(frozen=True)
class Choice:
    """One of a few values of the same type."""

    name: str
    values: tuple[bool | int | float | str, ...]
    default: bool | int | float | str | None

    @property
    def trials(self) -> tuple[bool | int | float | str, ...]:
        return tuple(value for value in self.values if value != self.default)

    def contains(self, value: object) -> bool:
        return any(type(value) is type(allowed) and value == allowed for allowed in self.values)


Parameter = Integer | Choice
