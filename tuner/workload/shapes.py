"""Which sizes vary, as values: what a user says of them, and at which sizes a graph is tuned. No torch here."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.errors import UsageError

# (position among all leaves of the flattened example inputs, also those that are no tensors; axis)
Place = tuple[int, int]
# Each is one capture of the callable, and each of its graphs is timed at each.
MAX_SIZES = 16


@dataclass(frozen=True)
class Dim:
    """A size that varies, the values at which it is to be tuned, and where in the example inputs it stands."""

    name: str
    sizes: tuple[int, ...]
    places: tuple[Place, ...]

    def to_json(self) -> list[Any]:
        return [self.name, list(self.sizes), [list(place) for place in self.places]]

    @staticmethod
    def from_json(data: Any) -> Dim:
        name, sizes, places = data
        return Dim(str(name), tuple(map(int, sizes)), tuple((int(position), int(axis)) for position, axis in places))


@dataclass(frozen=True)
class Shapes:
    """Which sizes of a callable vary. dynamic: all that can, as with `torch.compile(dynamic=True)`; dims: these, at their sizes.

    False where none does.
    """

    dims: tuple[Dim, ...] = ()
    dynamic: bool = False

    def __bool__(self) -> bool:
        return bool(self.dims) or self.dynamic

    @property
    def points(self) -> list[dict[Dim, int]]:
        """All combinations of the sizes; without dims the one of the example inputs."""
        sizes = itertools.product(*(dim.sizes for dim in self.dims))
        return [dict(zip(self.dims, point, strict=True)) for point in sizes]

    @property
    def compilations(self) -> list[bool | None]:
        """What `torch.compile(dynamic=)` is to be told, for each way in which a user may come by such graphs."""
        return [*([None] if self.dims else []), *([True] if self.dynamic else [])] or [False]

    @property
    def whole_sizes(self) -> tuple[tuple[int, ...], ...]:
        """The sizes at which the whole callable is timed, of the dims in order: all for each of its compilations."""
        return tuple(tuple(point.values()) for _ in self.compilations for point in self.points) if self.dims else ()

    def to_json(self) -> dict[str, Any]:
        return {"dims": [dim.to_json() for dim in self.dims], "dynamic": self.dynamic}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Shapes:
        return Shapes(tuple(map(Dim.from_json, data["dims"])), bool(data["dynamic"]))


STATIC = Shapes()


def parse_dims(options: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The sizes by name of options like "batch=1,8,64". Raises UsageError."""
    asked: dict[str, tuple[int, ...]] = {}
    for option in options:
        name, separator, text = option.partition("=")
        sizes = [size.strip() for size in text.split(",")]
        if not separator or not name or not all(size.isdecimal() and int(size) > 0 for size in sizes):
            raise UsageError(f"--dim {option}: it is NAME=SIZE,SIZE,… with sizes of at least 1")
        if name in asked:
            raise UsageError(f"--dim {name} is given twice")
        asked[name] = tuple(dict.fromkeys(map(int, sizes)))
    return asked


def default_sizes(hints: Sequence[int], bounds: Sequence[tuple[int, int | None]]) -> tuple[tuple[int, ...], ...]:
    """The sizes at which a graph is tuned where nobody says any: as it was seen, half and twice that, where the bounds allow it.

    Half only where all sizes can be halved, so that what is divisible stays so more often.
    """

    def allowed(point: Sequence[int]) -> bool:
        return all(low <= size and (high is None or size <= high) for size, (low, high) in zip(point, bounds, strict=True))

    half = tuple(hint // 2 for hint in hints) if all(hint % 2 == 0 for hint in hints) else tuple(hints)
    double = tuple(2 * hint for hint in hints)
    return tuple(dict.fromkeys(point for point in (half, tuple(hints), double) if allowed(point)))
