"""The trials of one screening: compile, check, time, store, count; what is known already is not tried again."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tuner.cache.contract import Store
from tuner.errors import DeviceBusy, WorkerError
from tuner.measure.statistics import median_of, median_ratio, relative_error
from tuner.measurement import Measurement, Status
from tuner.plan import Groups, Plan, canonical_groups
from tuner.search.bench import DEFAULT, Bench, Timed
from tuner.search.budget import Budget
from tuner.search.effort import Effort
from tuner.search.progress import Progress
from tuner.search.proposals import Proposer, Result
from tuner.search.rules import Rules
from tuner.search.screened import Finalist, measured, slower_at
from tuner.search.workloads import Resolved
from tuner.search_spaces.space import Candidate
from tuner.workers.pool import CompilePool
from tuner.workers.verdicts import lost


class Trials:
    """passed: candidates that were right, timed and within the memory limit. default_samples: of all trials, milliseconds.

    judged: candidates that there is anything to say of, by a trial now or earlier, or without one.
    """

    def __init__(
        self, bench: Bench, resolved: Resolved, store: Store, effort: Effort, progress: Progress, rules: Rules, budget: Budget
    ):
        self.bench, self.resolved, self.store, self.effort = bench, resolved, store, effort
        self.progress, self.rules, self.budget = progress, rules, budget
        quarantined = set(store.quarantined(resolved.query))
        self.quarantined = set[str]() if rules.retry else quarantined
        known = store.measurements(resolved.query.exact_key, "screen", bench.policy.key)
        self.known = {measurement.plan.key: measurement for measurement in known if _counts(measurement, effort, rules)}
        # What was right when screened can have failed since, in a final or elsewhere: then that verdict counts.
        for key in quarantined & set(self.known):
            if rules.retry or self.known[key].status == "ok":
                del self.known[key]
        self.seen_groups: set[tuple[Plan, Groups]] = set()
        self.passed: list[Finalist] = []
        self.default_samples: list[float] = []
        self.judged = len(self.known)
        self._opened_ms = 0.0
        # By code: what became of it.
        self._codes: dict[str, Result] = {}
        for measurement in self.known.values():
            self._count(Candidate(measurement.label, measurement.plan), measurement)

    def open(self, default: dict[str, Any]) -> None:
        """Told what the measuring process says of the default."""
        self._opened_ms = default["default_ms"]
        self._codes[default["code_key"] or ""] = Result("ok", ratio=1.0)
        self.seen_groups.add((DEFAULT, canonical_groups(default["realised"] or [])))

    @property
    def default_ms(self) -> float:
        """Median time of the default in all trials so far; before any, as the measuring process found it."""
        return median_of(self.default_samples, self.bench.policy.size_count) if self.default_samples else self._opened_ms

    def admitted(self, proposer: Proposer, count: int) -> list[Candidate]:
        """The next candidates, at most `count`, that are neither known nor in quarantine nor proposed before."""
        batch: list[Candidate] = []
        while len(batch) < count and (proposed := proposer.next(count - len(batch))):
            for candidate in proposed:
                if (result := self._known(candidate.plan)) is None:
                    batch.append(candidate)
                else:
                    self.judged += 1
                    proposer.told(candidate, result)
            if not self.budget.in_time:
                break
        return batch

    def _known(self, plan: Plan) -> Result | None:
        if plan.is_default:
            return Result("duplicate", ratio=1.0)
        if plan.groups is not None:
            grouping = (replace(plan, groups=None), plan.groups)
            # Of what an earlier sweep measured the row tells more.
            if grouping in self.seen_groups and plan.key not in self.known:
                self.progress.duplicates += 1
                return Result("duplicate")
            self.seen_groups.add(grouping)
        if (measurement := self.known.get(plan.key)) is not None:
            return self._result(measurement)
        if plan.key in self.quarantined:
            self.progress.refused["quarantined"] += 1
            return Result("quarantined")
        return None

    def compiled(self, pool: CompilePool | None, batch: Sequence[Candidate]) -> Iterator[tuple[Candidate, dict[str, Any] | None]]:
        """The candidates with the compile pool's verdict, as they come; None where nobody has compiled it yet.

        On a CPU all are compiled before the first is measured: the pool would take the measuring process's time.
        """
        if pool is None:
            yield from ((candidate, None) for candidate in batch)
            return
        by_key = {candidate.plan.key: candidate for candidate in batch}
        copies = self.rules.own_copies
        jobs = [(candidate.plan, candidate.plan.groups, candidate.plan.key if copies else "") for candidate in batch]
        made = pool.compile(jobs, sorted(self._seen_codes()), self.bench.default)
        if self.resolved.device == "cpu":
            before = time.monotonic()
            told = list(made)
            elapsed_s = time.monotonic() - before
            self.bench.seconds["compiling"] += elapsed_s
            if any(verdict is not None and verdict["status"] == "timeout" for _, verdict in told):
                self.budget.hung_s += elapsed_s
            made = iter(told)
        for plan, verdict in made:
            # In a crowd memory and time run short: what failed so gets its verdict from the measuring process, alone.
            alone = verdict is not None and verdict["status"] in ("timeout", "crash", "out_of_resources")
            yield by_key[plan.key], None if alone else verdict

    def _seen_codes(self) -> Iterable[str]:
        return () if self.rules.own_copies else self._codes

    def trial(self, candidate: Candidate, compiled: dict[str, Any] | None) -> Result:
        """Tries one candidate. Raises DeviceBusy."""
        timeouts, before = self.progress.failed["timeout"], time.monotonic()
        self.judged += 1
        try:
            return self._trial(candidate, compiled)
        finally:
            if self.progress.failed["timeout"] > timeouts:
                self.budget.hung_s += time.monotonic() - before

    def _trial(self, candidate: Candidate, compiled: dict[str, Any] | None) -> Result:
        plan = candidate.plan
        verdict = compiled
        if verdict is None or verdict["status"] == "ok":
            verdict = self.bench.try_plan(plan, plan.groups, sorted(self._seen_codes()))
        match verdict["status"]:
            case "duplicate":
                self.progress.duplicates += 1
                twin = self._codes.get(verdict.get("code_key") or "")
                return Result("duplicate") if twin is None else replace(twin, status="duplicate", measurement=None)
            case "not_realised":
                self.progress.refused["unreachable grouping"] += 1
                groups = canonical_groups(verdict["realised"])
                seen = (replace(plan, groups=None), groups) in self.seen_groups
                return Result("not_realised", instead=None if seen else groups)
            case "refused":
                self.progress.refused[verdict.get("why", "not checkable")] += 1
                return Result("refused")
        self.budget.trials += 1
        if verdict["status"] != "ok":
            return self._keep(candidate, verdict["status"], verdict)
        try:
            timed = self.bench.time([plan], self.effort.screen_samples)
        except WorkerError as error:
            return self._keep(candidate, lost(error)["status"], {**verdict, **lost(error)})
        except DeviceBusy as error:
            self._keep(candidate, "busy", {**verdict, "message": str(error)})
            raise
        return self._keep(candidate, "ok", verdict, timed)

    def _keep(self, candidate: Candidate, status: Status, verdict: dict[str, Any], timed: Timed | None = None) -> Result:
        measurement = measured(self.bench, self.resolved, candidate, "screen", status, verdict, timed)
        self.store.add_measurement(measurement)
        self.known[candidate.plan.key] = measurement
        self._count(candidate, measurement)
        return self._result(measurement)

    def noise(self, finalist: Finalist) -> float:
        """Standard error of a finalist's ratio as screened, relative."""
        return self._result(finalist.screened).noise

    def _result(self, measurement: Measurement) -> Result:
        if measurement.status != "ok":
            return Result(measurement.status, measurement)
        samples = measurement.default_samples_ms, measurement.samples_ms, measurement.policy.size_count
        admissible = measurement.memory_ratio <= self.effort.memory_limit and not slower_at(measurement)
        return Result("ok", measurement, median_ratio(*samples), relative_error(*samples), admissible=admissible)

    def _count(self, candidate: Candidate, measurement: Measurement) -> None:
        progress, result = self.progress, self._result(measurement)
        if measurement.code_key:
            self._codes[measurement.code_key] = result
        if result.ratio is None:
            progress.failed[measurement.status] += 1
            return
        progress.measured += 1
        self.default_samples += measurement.default_samples_ms
        if (memory := measurement.memory_ratio) > self.effort.memory_limit:
            if result.ratio > (progress.over_memory[0] if progress.over_memory else 1.0):
                progress.over_memory = (result.ratio, memory, candidate.plan.describe())
            return
        if slower_at(measurement):
            progress.refused["slower at a size"] += 1
            return
        self.passed.append(Finalist(candidate, measurement, result.ratio))
        if result.ratio > progress.best:
            progress.best, progress.best_plan = result.ratio, candidate.plan.describe()


def _counts(measurement: Measurement, effort: Effort, rules: Rules) -> bool:
    """Whether a stored trial spares another one: not where the machine was busy, unless that is nothing to this sweep; nor one of
    what is not allowed now, whoever allowed it before.
    """
    if not rules.allows(measurement.plan):
        return False
    if measurement.status != "ok":
        return measurement.status != "busy" and not rules.retry
    return not effort.patience or not measurement.provenance.get("conditions", {}).get("busy")
