"""The final: the best few against the default on fresh data, in fresh processes; and what it concludes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal

from tuner.cache.contract import Store
from tuner.errors import UnsupportedGraph, WorkerError
from tuner.measure.statistics import MIN_SPEEDUP, Speedup, speedup_of
from tuner.measurement import Measurement, Policy, Status, Winner
from tuner.plan import Groups, Plan
from tuner.search.bench import DEFAULT, Bench
from tuner.search.effort import Effort
from tuner.search.provenance import provenance
from tuner.search.screen import SEED, Screening, measured
from tuner.search_spaces.space import SPACE_VERSION, Candidate


@dataclass
class Evidence:
    """Final measurements of one workload, by candidate key; one per process. error: why its final could not be held."""

    screening: Screening
    measurements: dict[str, list[Measurement]] = field(default_factory=dict)
    error: str | None = None


def run_finals(
    screenings: Sequence[Screening], store: Store, policy: Policy, effort: Effort, watch: Callable[[Screening], None]
) -> dict[str, Evidence]:
    """Measures the finalists of all workloads in `effort.processes` fresh processes, which all workloads share, on fresh inputs.

    Each measurement is stored when it ends. watch: called before each workload in each process. By exact-match key.
    """
    evidence = {s.resolved.query.exact_key: Evidence(s) for s in screenings if s.finalists}
    for process in range(effort.processes if evidence else 0):
        with Bench(policy, SEED + 1 + process) as bench:
            for item in evidence.values():
                if item.error is not None:
                    continue
                watch(item.screening)
                try:
                    for measurement in _one_process(bench, item, effort):
                        store.add_measurement(measurement)
                        item.measurements.setdefault(measurement.plan.key, []).append(measurement)
                # The default is at fault, or the machine, and no candidate: there is nothing to conclude from.
                except (WorkerError, UnsupportedGraph) as error:
                    item.error = f"the final could not be held: {error}"
    return evidence


def _one_process(bench: Bench, item: Evidence, effort: Effort) -> Iterator[Measurement]:
    """One measurement for each finalist that is still in, with samples or with the verdict that puts it out."""
    resolved = item.screening.resolved
    bench.open(resolved)
    candidates = {
        finalist.candidate.plan.key: finalist
        for finalist in item.screening.finalists
        if all(row.status == "ok" for row in item.measurements.get(finalist.candidate.plan.key, ()))
    }
    wanted = {key: (finalist.candidate.plan, finalist.screened.realised) for key, finalist in candidates.items()}
    verdicts = bench.prepare(list(wanted.values()))
    live = [wanted[key] for key in wanted if key in bench.live]
    times = bench.time_each(live, effort.final_samples) if live else {}
    for key, finalist in candidates.items():
        verdict, samples = verdicts[key], times.get(key, {})
        status: Status = "compile_error" if verdict["status"] == "not_realised" else verdict["status"]
        if isinstance(samples, str):
            status, samples = samples, {}
        yield measured(bench, resolved, finalist.candidate, "final", status, verdict, samples)


def conclude(screening: Screening, evidence: Evidence | None, policy: Policy, effort: Effort) -> Winner:
    """The winner by promise 1: the finalist whose lower bound is highest, if that exceeds 1.01; else the default, settled."""
    confirmed: list[tuple[Speedup, Candidate, list[Measurement]]] = []
    for finalist in screening.finalists:
        rows = evidence.measurements.get(finalist.candidate.plan.key, []) if evidence else []
        if len(rows) < effort.processes or any(row.status != "ok" for row in rows):
            continue
        speedup = speedup_of([(row.default_samples_ms, row.samples_ms) for row in rows])
        if speedup.low > MIN_SPEEDUP and all(row.memory_ratio <= effort.memory_limit for row in rows):
            confirmed.append((speedup, finalist.candidate, rows))
    if confirmed:
        speedup, candidate, rows = max(confirmed, key=lambda found: found[0].low)
        realised = rows[0].realised
        samples = {
            "default_ms": median(ms for row in rows for ms in row.default_samples_ms),
            "winner_ms": median(ms for row in rows for ms in row.samples_ms),
        }
        plan_winner = _winner(screening, "plan", candidate.plan, realised, speedup, policy, effort, samples)
        return replace(plan_winner, evidence={**plan_winner.evidence, **_evidence(rows)})
    finals = [row for rows in (evidence.measurements.values() if evidence else ()) for row in rows if row.status == "ok"]
    default_ms = median(ms for row in finals for ms in row.default_samples_ms) if finals else screening.default_ms
    samples = {"default_ms": default_ms, "winner_ms": default_ms}
    return _winner(screening, "default", DEFAULT, screening.default_groups, Speedup(1.0, 1.0, 1.0), policy, effort, samples)


def _winner(
    screening: Screening,
    kind: Literal["plan", "default"],
    plan: Plan,
    groups: Groups | None,
    speedup: Speedup,
    policy: Policy,
    effort: Effort,
    samples_ms: dict[str, float],
) -> Winner:
    resolved = screening.resolved
    return Winner(
        query=resolved.query,
        kind=kind,
        plan=plan,
        groups=groups,
        default_ms=samples_ms["default_ms"],
        winner_ms=samples_ms["winner_ms"],
        speedup=speedup.value,
        speedup_low=speedup.low,
        speedup_high=speedup.high,
        policy=policy,
        effort=effort.name,
        space_version=SPACE_VERSION,
        program_key=resolved.program_key,
        evidence={"finalists": [finalist.candidate.plan.describe() for finalist in screening.finalists]},
        provenance=provenance(),
    )


def _evidence(rows: Sequence[Measurement]) -> dict[str, object]:
    return {
        "processes": len(rows),
        "samples_per_process": len(rows[0].samples_ms),
        "speedup_by_process": [median(row.default_samples_ms) / median(row.samples_ms) for row in rows],
        "error": max(row.error or 0.0 for row in rows),
        "peak_bytes": max(row.peak_bytes or 0 for row in rows),
        "default_peak_bytes": max(row.default_peak_bytes or 0 for row in rows),
    }
