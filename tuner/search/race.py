"""The race: who of a few is fastest, with as few samples as that takes.

In every heat each racer still in runs beside the others and the default, interleaved: pairing with samples taken at another time
would put true winners out when the machine drifts. A racer is out when another leads it, or the default is not behind it, with
evidence that holds however often one looks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tuner.measure.statistics import lead, median_ratio

Key = TypeVar("Key", bound=Hashable)
# Paired samples, milliseconds, of each of the keys, one for each round.
Heat = Callable[[Sequence[Key], int], Mapping[Key, Sequence[float]]]

ERROR = 0.05
# Within this, relative, two are alike: the simpler one is taken, and nobody is put out by less.
ALIKE = 0.005


@dataclass(frozen=True)
class Place(Generic[Key]):
    """One racer at the end: its median speed-up over the default in the rounds that it ran, and whether it was still in."""

    key: Key
    ratio: float
    finished: bool


def run_race(
    racers: Sequence[Key], default: Key, heat: Heat[Key], *, rounds: int, rounds_per_heat: int, sizes: int = 1
) -> list[Place[Key]]:
    """All racers, those that finished first, each part by speed-up; alike ones in the order of `racers`.

    racers: without the default, the incumbent and simpler ones first. heat: measures those that are still in. sizes: each round
    has a sample of so many sizes. Ends when one or none is in, or after `rounds`.
    """
    samples: dict[Key, list[float]] = {key: [] for key in (default, *racers)}
    running, out = list(racers), list[Key]()
    ran = 0
    # One chance of an error for the race, shared by all pairs that are ever compared.
    bar = len(racers) * (len(racers) + 1) / ERROR
    while running and ran < rounds:
        step = min(rounds_per_heat, rounds - ran)
        for key, times in heat([default, *running], step).items():
            samples[key] += times
        ran += step

        out += (lost := [key for key in running if _beaten(key, running, default, samples, bar)])
        running = [key for key in running if key not in lost]
        if len(running) == 1 and lead(samples[running[0]], samples[default]) > bar:
            break
    ratios = {key: median_ratio(samples[default][: len(samples[key])], samples[key], sizes) for key in racers if samples[key]}
    places = [Place(key, ratios[key], key in running) for key in (*running, *out)]
    return by_speed([place for place in places if place.finished]) + by_speed([p for p in places if not p.finished])


def _beaten(key: Key, running: Sequence[Key], default: Key, samples: Mapping[Key, Sequence[float]], bar: float) -> bool:
    """Whether the default is not behind `key`, or another that runs is ahead of it by more than what is alike."""
    return lead(samples[default], samples[key]) > bar or any(
        lead(samples[other], samples[key], ALIKE) > bar for other in running if other != key
    )


def by_speed(places: Sequence[Place[Key]]) -> list[Place[Key]]:
    """Fastest first; one that is alike to the fastest left comes before it if it stands earlier in `places`."""
    left, order = list(places), list[Place[Key]]()
    while left:
        best = max(place.ratio for place in left)
        order.append(next(place for place in left if place.ratio >= best * (1 - ALIKE)))
        left.remove(order[-1])
    return order
