"""What screening leaves: rows in the store, and candidates that have a chance to win."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tuner.measure.promises import MAX_LOSS
from tuner.measure.statistics import speedups_by_size
from tuner.measurement import Measurement, Stage, Status
from tuner.plan import Groups, Plan, canonical_groups
from tuner.search.bench import DEFAULT, Bench, Timed
from tuner.search.provenance import provenance
from tuner.search.workloads import Resolved
from tuner.search_spaces.space import Candidate


@dataclass
class Finalist:
    """A candidate that passed screening, with its measurement; ratio: its speed-up there, or in the race."""

    candidate: Candidate
    screened: Measurement
    ratio: float


@dataclass
class Screening:
    """What screening of one workload found. default_ms: median time of the default. incumbent: the plan that won before.

    passed: candidates that were right, timed and within the memory limit. finalists: what the race makes of them.
    kernels: see `tuner.search.kernels`; told when it is known what wins. numerics: whether knobs might change how values are
    computed. cut_short: the seconds were used up before anything could be said of any candidate: nothing can be concluded.
    """

    resolved: Resolved
    default_ms: float = 0.0
    default_groups: Groups = ()
    passed: list[Finalist] = field(default_factory=list)
    finalists: list[Finalist] = field(default_factory=list)
    incumbent: Plan = DEFAULT
    kernels: dict[str, Any] = field(default_factory=dict)
    numerics: bool = False
    cut_short: bool = False


def slower_at(measurement: Measurement) -> tuple[int, ...] | None:
    """The first of several sizes at which the candidate costs more than MAX_LOSS allows, beyond the noise of its samples."""
    if not measurement.policy.sizes:
        return None
    pair = (measurement.default_samples_ms, measurement.samples_ms)
    speedups = speedups_by_size([pair], sizes=measurement.policy.size_count)
    return next((size for size, one in zip(measurement.policy.sizes, speedups, strict=True) if one.high < MAX_LOSS), None)


def status_of(verdict: dict[str, Any]) -> Status:
    """The status of a candidate that was right once: that it is not realised any more, or refused, is the compiler's failure."""
    return "compile_error" if verdict["status"] in ("not_realised", "refused") else verdict["status"]


def peaks(candidate: Any, default: Any) -> tuple[int | None, int | None]:
    """Peak memory of a candidate and the default; of several sizes, each a list, where the candidate needs most beside it."""
    if not isinstance(default, list):
        return candidate, default
    if not isinstance(candidate, list):
        return None, max(default)
    return max(zip(candidate, default, strict=True), key=lambda pair: pair[0] / max(1, pair[1]))


def measured(
    bench: Bench,
    resolved: Resolved,
    candidate: Candidate,
    stage: Stage,
    status: Status,
    verdict: dict[str, Any],
    timed: Timed | None = None,
) -> Measurement:
    """The row that a trial leaves in the store."""
    realised = verdict.get("realised")
    times = timed.times if timed is not None else {}
    peak, default_peak = peaks(verdict.get("peak_bytes"), bench.default.get("peak_bytes"))
    return Measurement(
        query=resolved.query,
        policy=bench.policy,
        plan=candidate.plan,
        stage=stage,
        status=status,
        label=candidate.label,
        samples_ms=tuple(times.get(candidate.plan.key, ())),
        default_samples_ms=tuple(times.get(DEFAULT.key, ())),
        realised=None if realised is None else canonical_groups(realised),
        code_key=verdict.get("code_key"),
        error=verdict.get("error"),
        peak_bytes=peak,
        default_peak_bytes=default_peak,
        message=verdict.get("message", ""),
        process=bench.process,
        program_key=resolved.program_key,
        provenance=provenance(
            conditions=timed.conditions if timed is not None else {}, traceback=verdict.get("traceback", ""), seed=bench.seed
        ),
    )
