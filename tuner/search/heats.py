"""The race of one workload on the device: the best as screened, and the incumbent, in a fresh process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tuner.cache.contract import Store
from tuner.errors import WorkerError
from tuner.plan import Plan
from tuner.search.bench import DEFAULT, Bench
from tuner.search.effort import Effort
from tuner.search.progress import Progress
from tuner.search.provenance import provenance
from tuner.search.race import ALIKE, run_race
from tuner.search.screened import Finalist, Screening, measured, status_of


def race(bench: Bench, screening: Screening, store: Store, effort: Effort, progress: Progress) -> list[Finalist]:
    """The candidates that are ahead of the default, best first, `effort.finalists` at most. Raises as `screen`.

    bench: another process than the one that screened, on other inputs: what seemed fast by the luck of one process has to be so
    in another. Each racer leaves a row of the stage "race".
    """
    racers = racers_of(screening, effort)
    if not racers:
        return []
    progress.enter("race")
    bench.open(screening.resolved)
    verdicts = bench.prepare([(racer.candidate.plan, racer.screened.realised) for racer in racers])
    for racer in racers:
        verdict = verdicts.get(racer.candidate.plan.key, {"status": "ok"})
        if (status := status_of(verdict)) != "ok":
            store.add_measurement(measured(bench, screening.resolved, racer.candidate, "race", status, verdict))
    by_key = {racer.candidate.plan.key: racer for racer in racers if racer.candidate.plan.key in bench.live}
    samples: dict[str, list[float]] = {key: [] for key in (DEFAULT.key, *by_key)}
    conditions: dict[str, Any] = {}

    def heat(keys: Sequence[str], rounds: int) -> dict[str, list[float]]:
        timed = bench.time([by_key[key].candidate.plan for key in keys if key != DEFAULT.key], rounds, known=True)
        conditions.update(timed.conditions)
        for key, times in timed.times.items():
            samples[key] += times
        return timed.times

    try:
        places = run_race(
            list(by_key),
            DEFAULT.key,
            heat,
            rounds=effort.race_samples,
            rounds_per_heat=effort.heat_samples,
            sizes=bench.policy.size_count,
        )
    # Each was timed alone before: then that has to do.
    except WorkerError:
        ahead = [racer for racer in by_key.values() if racer.ratio > 1 + ALIKE]
        return sorted(ahead, key=lambda racer: -racer.ratio)[: effort.finalists]
    for place in places:
        racer, times = by_key[place.key], samples[place.key]
        racer.ratio = place.ratio
        row = replace(
            racer.screened,
            stage="race",
            samples_ms=tuple(times),
            default_samples_ms=tuple(samples[DEFAULT.key][: len(times)]),
            process=bench.process,
            provenance=provenance(conditions=conditions, seed=bench.seed),
        )
        store.add_measurement(row)
    # One that is behind here by a hair may still be ahead in truth, but not by what promise 1 asks for.
    return [by_key[place.key] for place in places if place.ratio > 1 + ALIKE][: effort.finalists]


def racers_of(screening: Screening, effort: Effort) -> list[Finalist]:
    """The best as screened, and the incumbent, in the order in which they are preferred where they are alike."""
    hopeful = sorted((f for f in screening.passed if f.ratio > 1 - ALIKE), key=lambda f: -f.ratio)[: effort.racers]
    hopeful += [f for f in screening.passed if f.candidate.plan == screening.incumbent and f not in hopeful]
    return sorted(hopeful, key=lambda f: preference(f.candidate.plan, screening.incumbent))


def preference(plan: Plan, incumbent: Plan) -> tuple[bool, int, str]:
    """Sort key among plans that are alike: the incumbent, then the simpler one, then the one whose key comes first."""
    return plan != incumbent, plan.complexity, plan.key
