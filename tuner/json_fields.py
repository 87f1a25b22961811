"""Parts of JSON that somebody else wrote: each is what it has to be, or a ValueError says that it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def object_of(value: Any) -> Mapping[str, Any]:
    """`value`, if it is an object. Raises ValueError."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"an object, not {_told(value)}")
    return value


def field_of(data: Mapping[str, Any], name: str) -> Any:
    """What stands in the field of an object. Raises ValueError where there is none."""
    if name not in data:
        raise ValueError(f"it has no field {name!r}")
    return data[name]


def items_of(value: Any) -> Sequence[Any]:
    """`value`, if it is a list. Raises ValueError."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"a list, not {_told(value)}")
    return value


def text_of(value: Any) -> str:
    """`value`, if it is a text. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"a text, not {_told(value)}")
    return value


def whole_number_of(value: Any) -> int:
    """`value`, if it is a whole number. Raises ValueError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"a whole number, not {_told(value)}")
    return value


def number_of(value: Any) -> float:
    """`value`, if it is a number that a float can hold; it may be infinite, or none. Raises ValueError."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"a number, not {_told(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError("a number that is too large") from None


def points_of(value: Any) -> tuple[tuple[int, ...], ...]:
    """`value`, if it is a list of lists of whole numbers. Raises ValueError."""
    return tuple(tuple(map(whole_number_of, items_of(point))) for point in items_of(value))


def _told(value: Any) -> str:
    return type(value).__name__ if value is None or isinstance(value, str | list | tuple | Mapping) else str(value)[:40]
