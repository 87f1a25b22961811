"""The final: the best few against the default on fresh data, in fresh processes; and what it concludes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tuner.cache.contract import Store
from tuner.errors import DeviceBusy, TunerError, UnsupportedGraph, WorkerError
from tuner.measure.promises import MAX_LOSS, MIN_SPEEDUP
from tuner.measure.statistics import Pair, Speedup, median_of, median_ratio, speedup_of, speedups_by_size
from tuner.measurement import Measurement, Policy, Winner
from tuner.plan import Groups, Plan
from tuner.search.bench import DEFAULT, Bench, Timed
from tuner.search.effort import Effort
from tuner.search.heats import preference
from tuner.search.kernels import kernels_of
from tuner.search.provenance import provenance
from tuner.search.race import ALIKE
from tuner.search.rules import NUMERICS_ALLOWED, SEED, Rules
from tuner.search.screened import Finalist, Screening, measured, status_of
from tuner.search_spaces.space import SPACE_VERSION

# An interval that is narrower, relative to its value, is as good as it gets: a true gain of 1% and a little is given up.
NARROW = 0.01


@dataclass
class Evidence:
    """Final measurements of one workload, by candidate key; one per process. error: why its final could not be held."""

    screening: Screening
    measurements: dict[str, list[Measurement]] = field(default_factory=dict)
    error: TunerError | None = None

    def rows(self, finalist: Finalist) -> list[Measurement]:
        return self.measurements.get(finalist.candidate.plan.key, [])

    def in_the_running(self, finalist: Finalist, effort: Effort) -> bool:
        """Whether nothing that was measured so far keeps it from being the winner."""
        return all(row.status == "ok" and row.memory_ratio <= effort.memory_limit for row in self.rows(finalist))

    def decided(self, effort: Effort) -> bool:
        """Whether more processes would change nothing, at a look: every finalist has won or is without hope."""
        return all(self._decided(finalist, effort) for finalist in self.screening.finalists)

    def ends(self, processes: int, effort: Effort) -> bool:
        """Whether so many processes are all that the final takes."""
        return processes == effort.looks[-1] or (processes in effort.looks and self.decided(effort))

    def _decided(self, finalist: Finalist, effort: Effort) -> bool:
        if not self.in_the_running(finalist, effort):
            return True
        speedup, at_sizes = interval(self.rows(finalist), effort), intervals_by_size(self.rows(finalist), effort)
        if all(one.low > MAX_LOSS or one.width < NARROW for one in at_sizes) and (
            speedup.low > MIN_SPEEDUP or speedup.width < NARROW
        ):
            return True
        # Giving up needs no caution: the default wins. The typical process decides, not an odd one.
        return median(map(ratio_of, self.rows(finalist))) < MIN_SPEEDUP or any(one.value < MAX_LOSS for one in at_sizes)


def interval(rows: Sequence[Measurement], effort: Effort) -> Speedup:
    """The speed-up with bounds that hold for all finalists and looks of a sweep together."""
    return speedup_of(_pairs(rows), effort.final_error, sizes=rows[0].policy.size_count)


def intervals_by_size(rows: Sequence[Measurement], effort: Effort) -> list[Speedup]:
    """The same at each of the policy's sizes; none where it has none. All have to do no harm, so none needs wider bounds."""
    return speedups_by_size(_pairs(rows), effort.final_error, len(rows[0].policy.sizes))


def _pairs(rows: Sequence[Measurement]) -> list[Pair]:
    return [(row.default_samples_ms, row.samples_ms) for row in rows]


def ratio_of(row: Measurement) -> float:
    return median_ratio(row.default_samples_ms, row.samples_ms, row.policy.size_count)


def run_finals(
    screenings: Sequence[Screening],
    store: Store,
    policy: Policy,
    effort: Effort,
    watch: Callable[[Screening], None],
    seconds: Mapping[str, dict[str, float]],
    rules: Rules | None = None,
    kernels: bool = True,
) -> dict[str, Evidence]:
    """Measures the finalists of all workloads, in fresh processes which they share, on fresh inputs, until each is decided.

    Each measurement is stored when it ends. kernels: time those of default and winner one by one in the last process.
    watch: called before each workload in each process. seconds: by exact-match key, what is spent on each workload. By
    exact-match key.
    """
    evidence = {s.resolved.query.exact_key: Evidence(s) for s in screenings if s.finalists}
    open_ = list(evidence.values())
    for process in range(effort.looks[-1]):
        look = process in effort.looks
        open_ = [item for item in open_ if item.error is None and not (look and item.decided(effort))]
        if not open_:
            break
        with Bench(policy, SEED + 2 + process, effort.patience, own_copies=bool(rules and rules.own_copies)) as bench:
            for item in open_:
                watch(item.screening)
                bench.seconds = seconds[item.screening.resolved.query.exact_key]
                try:
                    for measurement in _one_process(bench, item, effort):
                        store.add_measurement(measurement)
                        item.measurements.setdefault(measurement.plan.key, []).append(measurement)
                    if kernels and item.ends(process + 1, effort):
                        best = best_of(item, effort)
                        item.screening.kernels = kernels_of(bench, DEFAULT if best is None else best.plan)
                # The default is at fault, or the machine, and no candidate: there is nothing to conclude from.
                except (WorkerError, UnsupportedGraph, DeviceBusy) as error:
                    item.error = error
    return evidence


def _one_process(bench: Bench, item: Evidence, effort: Effort) -> Iterator[Measurement]:
    """One measurement for each finalist that is still in, with samples or with the verdict that puts it out."""
    resolved = item.screening.resolved
    bench.open(resolved)
    candidates = {f.candidate.plan.key: f for f in item.screening.finalists if item.in_the_running(f, effort)}
    wanted = {key: (finalist.candidate.plan, finalist.screened.realised) for key, finalist in candidates.items()}
    verdicts = bench.prepare(list(wanted.values()))
    live = [wanted[key] for key in wanted if key in bench.live]
    times = bench.time_each(live, effort.final_samples) if live else {}
    for key, finalist in candidates.items():
        verdict, timed = verdicts[key], times.get(key, Timed({}))
        if not isinstance(timed, Timed):
            verdict, timed = {**verdict, **timed}, Timed({})
        yield measured(bench, resolved, finalist.candidate, "final", status_of(verdict), verdict, timed)


@dataclass(frozen=True)
class Confirmed:
    """A finalist that beat the default beyond noise."""

    plan: Plan
    speedup: Speedup
    rows: list[Measurement]


def conclude(
    screening: Screening, evidence: Evidence | None, policy: Policy, effort: Effort, seconds: Mapping[str, float]
) -> Winner:
    """The winner by promise 1: the fastest finalist whose lower bound exceeds 1.01; else the default, settled.

    Of a graph that is measured at several sizes: over all of them together, and at each the lower bound exceeds 0.99.

    Of finalists that are alike, the incumbent wins, then the simpler one, so that repeated sweeps agree.
    """
    best = best_of(evidence, effort) if evidence is not None else None
    rows = [row for rows in (evidence.measurements.values() if evidence else ()) for row in rows if row.status == "ok"]
    default_ms = _median_ms([row.default_samples_ms for row in rows], rows[0].policy.size_count) if rows else screening.default_ms
    told: dict[str, Any] = {
        "finalists": [finalist.candidate.plan.describe() for finalist in screening.finalists],
        "seconds": {name: round(spent, 3) for name, spent in seconds.items()},
    }
    # Measured all the same, because the user said so: for those who ask later for a quiet machine, it settles nothing.
    used = [*rows, *(finalist.screened for finalist in screening.passed)]
    if noisy := [why for row in used if (why := row.provenance.get("conditions", {}).get("busy"))]:
        told["busy"] = noisy[0]
    if screening.numerics:
        told[NUMERICS_ALLOWED] = True
    if screening.kernels:
        told["kernels"] = screening.kernels
    if best is None:
        plain = Speedup(1.0, 1.0, 1.0)
        return _winner(screening, DEFAULT, screening.default_groups, default_ms, default_ms, plain, policy, effort, told)
    default_ms = _median_ms([row.default_samples_ms for row in best.rows], best.rows[0].policy.size_count)
    winner_ms = _median_ms([row.samples_ms for row in best.rows], best.rows[0].policy.size_count)
    told |= _evidence(best.rows, effort)
    return _winner(screening, best.plan, best.rows[0].realised, default_ms, winner_ms, best.speedup, policy, effort, told)


def best_of(evidence: Evidence, effort: Effort) -> Confirmed | None:
    """The finalist that wins; None where the default does."""
    confirmed = list(_confirmed(evidence, effort))
    if not confirmed:
        return None
    fastest = max(found.speedup.value for found in confirmed)
    alike = [found for found in confirmed if found.speedup.value >= fastest * (1 - ALIKE)]
    return min(alike, key=lambda found: preference(found.plan, evidence.screening.incumbent))


def _confirmed(evidence: Evidence, effort: Effort) -> Iterator[Confirmed]:
    for finalist in evidence.screening.finalists:
        rows = evidence.rows(finalist)
        if len(rows) not in effort.looks or not evidence.in_the_running(finalist, effort):
            continue
        speedup = interval(rows, effort)
        if speedup.low > MIN_SPEEDUP and all(one.low > MAX_LOSS for one in intervals_by_size(rows, effort)):
            yield Confirmed(finalist.candidate.plan, speedup, rows)


def _winner(
    screening: Screening,
    plan: Plan,
    groups: Groups | None,
    default_ms: float,
    winner_ms: float,
    speedup: Speedup,
    policy: Policy,
    effort: Effort,
    evidence: Mapping[str, Any],
) -> Winner:
    resolved = screening.resolved
    return Winner(
        query=resolved.query,
        kind="default" if plan.is_default else "plan",
        plan=plan,
        groups=groups,
        default_ms=default_ms,
        winner_ms=winner_ms,
        speedup=speedup.value,
        speedup_low=speedup.low,
        speedup_high=speedup.high,
        policy=resolved.policy(policy),
        effort=effort.name,
        space_version=SPACE_VERSION,
        program_key=resolved.program_key,
        evidence=evidence,
        provenance=provenance(),
    )


def _median_ms(samples: Iterable[Sequence[float]], sizes: int = 1) -> float:
    """Of all processes together; each has whole rounds, so sample i of them all is of size i % sizes."""
    return median_of([ms for one in samples for ms in one], sizes)


def _evidence(rows: Sequence[Measurement], effort: Effort) -> dict[str, object]:
    policy, at_sizes = rows[0].policy, intervals_by_size(rows, effort)
    by_size = [
        {
            "size": list(size),
            "default_ms": _median_ms([row.default_samples_ms[i :: policy.size_count] for row in rows]),
            "winner_ms": _median_ms([row.samples_ms[i :: policy.size_count] for row in rows]),
            "speedup": one.value,
            "speedup_low": one.low,
            "speedup_high": one.high,
        }
        for i, (size, one) in enumerate(zip(policy.sizes, at_sizes, strict=True))
    ]
    return {
        "processes": len(rows),
        "samples_per_process": len(rows[0].samples_ms),
        "speedup_by_process": [ratio_of(row) for row in rows],
        **({"by_size": by_size} if by_size else {}),
        "error": max(row.error or 0.0 for row in rows),
        "peak_bytes": max(row.peak_bytes or 0 for row in rows),
        "default_peak_bytes": max(row.default_peak_bytes or 0 for row in rows),
    }
