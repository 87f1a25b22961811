"""Screening of one workload: propose, compile, check, time with few samples, race the best; the final is elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tuner.cache.contract import Store
from tuner.errors import WorkerError
from tuner.measure.statistics import median_ratio
from tuner.measurement import Measurement, Stage, Status
from tuner.plan import Groups, Plan, canonical_groups
from tuner.search.bench import DEFAULT, Bench, fault
from tuner.search.effort import Effort
from tuner.search.progress import Progress
from tuner.search.provenance import provenance
from tuner.search.workloads import Resolved
from tuner.search_spaces.native import NATIVE_OPS
from tuner.search_spaces.space import Candidate, candidates

SEED = 20260


@dataclass
class Finalist:
    """A candidate that screening puts forward, with its measurement; ratio: its speed-up there, or in the race."""

    candidate: Candidate
    screened: Measurement
    ratio: float


@dataclass
class Screening:
    """What screening of one workload found. default_ms: median time of the default, milliseconds."""

    resolved: Resolved
    default_ms: float = 0.0
    default_groups: Groups = ()
    finalists: list[Finalist] = field(default_factory=list)


def screen(bench: Bench, resolved: Resolved, store: Store, effort: Effort, progress: Progress, again: bool = False) -> Screening:
    """Tries candidates until the space, the trials or the seconds are used up.

    Each trial is stored when it ends. Candidates that the store has a verdict on are not compiled again, but with `again` those
    that hung or crashed. Raises UnsupportedGraph, or WorkerError where the default itself fails.
    """
    progress.enter("screening")
    started = time.monotonic()
    default = bench.open(resolved)
    run = _Run(bench, resolved, store, effort, progress, again)
    result = Screening(resolved, default["default_ms"], canonical_groups(default["realised"] or []))
    progress.default_ms = result.default_ms
    native = resolved.graph.native_form
    kinds = NATIVE_OPS.intersection(native.calls) if native is not None else frozenset()
    # Where the compiler generates no kernels, there is nothing to choose.
    queue = deque(candidates(result.default_groups, kinds) if result.default_groups else ())
    run.seen_codes.add(default["code_key"] or "")
    run.seen_groups.add(result.default_groups)
    while queue and run.trials < effort.trials and time.monotonic() - started < effort.seconds:
        reached = run.trial(queue.popleft())
        if reached is not None:
            queue.appendleft(reached)
        progress.notify()
    if run.default_samples:
        result.default_ms = sorted(run.default_samples)[len(run.default_samples) // 2]
    progress.enter("race")
    result.finalists = list(run.race())
    progress.spent_s = time.monotonic() - started
    return result


class _Run:
    """The state of one screening."""

    def __init__(self, bench: Bench, resolved: Resolved, store: Store, effort: Effort, progress: Progress, again: bool):
        self.bench, self.resolved, self.store, self.effort, self.progress = bench, resolved, store, effort, progress
        known = store.measurements(resolved.query.exact_key, "screen", bench.policy.key)
        passing = ("busy", "timeout", "crash") if again else ("busy",)
        self.known = {measurement.plan.key: measurement for measurement in known if measurement.status not in passing}
        self.seen_codes: set[str] = set()
        self.seen_groups: set[Groups] = set()
        self.passed: list[Finalist] = []
        self.default_samples: list[float] = []
        self.trials = 0
        for measurement in self.known.values():
            self._count(Candidate(measurement.label, measurement.plan), measurement)

    def trial(self, candidate: Candidate) -> Candidate | None:
        """Tries one candidate. The answer, if any, is the grouping that the compiler made instead, to be tried next."""
        plan = candidate.plan
        if plan.groups is not None and not plan.config and not plan.native:
            if plan.groups in self.seen_groups:
                self.progress.duplicates += 1
                return None
            self.seen_groups.add(plan.groups)
        if plan.key in self.known:
            return None
        verdict = self.bench.try_plan(plan, plan.groups, sorted(self.seen_codes))
        if verdict["status"] == "duplicate":
            self.progress.duplicates += 1
            return None
        if verdict["status"] == "not_realised":
            self.progress.refused["unreachable grouping"] += 1
            groups = canonical_groups(verdict["realised"])
            return None if groups in self.seen_groups else Candidate(candidate.label, Plan(groups=groups))
        self.trials += 1
        if verdict["status"] != "ok":
            self._keep(candidate, verdict["status"], verdict)
            return None
        try:
            times = self.bench.time([plan], self.effort.screen_samples)
        except WorkerError as error:
            self._keep(candidate, fault(error), verdict, message=str(error))
            return None
        self._keep(candidate, "ok", verdict, times)
        return None

    def _keep(
        self,
        candidate: Candidate,
        status: Status,
        verdict: dict[str, Any] | None = None,
        times: dict[str, list[float]] | None = None,
        message: str = "",
    ) -> None:
        measurement = measured(self.bench, self.resolved, candidate, "screen", status, verdict or {}, times or {}, message)
        self.store.add_measurement(measurement)
        self._count(candidate, measurement)

    def _count(self, candidate: Candidate, measurement: Measurement) -> None:
        progress = self.progress
        if measurement.code_key:
            self.seen_codes.add(measurement.code_key)
        if measurement.status != "ok":
            progress.failed[measurement.status] += 1
            return
        progress.measured += 1
        self.default_samples += measurement.default_samples_ms
        ratio = median_ratio(measurement.default_samples_ms, measurement.samples_ms)
        if (memory := measurement.memory_ratio) > self.effort.memory_limit:
            if ratio > (progress.over_memory[0] if progress.over_memory else 1.0):
                progress.over_memory = (ratio, memory, candidate.plan.describe())
            return
        self.passed.append(Finalist(candidate, measurement, ratio))
        if ratio > progress.best:
            progress.best, progress.best_plan = ratio, candidate.plan.describe()

    def race(self) -> Iterator[Finalist]:
        """The best few, compared with each other and the default in one interleaved run; those that stay ahead, best first."""
        racers = sorted((f for f in self.passed if f.ratio > 1.0), key=lambda f: -f.ratio)[: self.effort.racers]
        self.bench.prepare([(racer.candidate.plan, racer.screened.realised) for racer in racers])
        racers = [racer for racer in racers if racer.candidate.plan.key in self.bench.live]
        if not racers:
            return
        try:
            times = self.bench.time([racer.candidate.plan for racer in racers], self.effort.race_samples)
        # Each was timed alone before: then that has to do.
        except WorkerError:
            yield from racers[: self.effort.finalists]
            return
        for racer in racers:
            key = racer.candidate.plan.key
            screened = racer.screened
            self.store.add_measurement(
                replace(
                    screened,
                    stage="race",
                    samples_ms=tuple(times[key]),
                    default_samples_ms=tuple(times[DEFAULT.key]),
                    process=self.bench.process,
                    provenance=provenance(),
                )
            )
            racer.ratio = median_ratio(times[DEFAULT.key], times[key])
        # A candidate behind by a hair here may still be ahead in truth, but not by what promise 1 asks for.
        ahead = sorted((r for r in racers if r.ratio > 1.0), key=lambda r: -r.ratio)
        yield from ahead[: self.effort.finalists]


def measured(
    bench: Bench,
    resolved: Resolved,
    candidate: Candidate,
    stage: Stage,
    status: Status,
    verdict: dict[str, Any],
    times: dict[str, list[float]],
    message: str = "",
) -> Measurement:
    """The row that a trial leaves in the store."""
    realised = verdict.get("realised")
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
        peak_bytes=verdict.get("peak_bytes"),
        default_peak_bytes=bench.default.get("peak_bytes"),
        message=message or verdict.get("message", ""),
        process=bench.process,
        program_key=resolved.program_key,
        provenance=provenance(),
    )
