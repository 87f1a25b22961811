"""Screening of one workload: propose, compile, check, time with few samples."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.cache.contract import Store
from tuner.errors import DeviceBusy, WorkerError
from tuner.measure.promises import MAX_LOSS
from tuner.measure.statistics import median_of, median_ratio, speedups_by_size
from tuner.measurement import Measurement, Stage, Status
from tuner.plan import Groups, Plan, canonical_groups
from tuner.search.bench import DEFAULT, Bench, Timed, open_request
from tuner.search.effort import Effort
from tuner.search.progress import Progress
from tuner.search.provenance import provenance
from tuner.search.workloads import Resolved
from tuner.search_spaces.native import NATIVE_OPS
from tuner.search_spaces.space import Candidate, candidates, without_knobs
from tuner.workers.pool import CompilePool
from tuner.workers.verdicts import lost

SEED = 20260
# Candidates handed to each process of the compile pool at a time: enough to even out, few enough to look at the clock in between.
BATCH = 2
# One bad candidate costs one candidate: what hung is not counted against the seconds, up to so many times as many.
FORGIVEN = 3
# More processes than this want more memory than they save time.
MAX_JOBS = 16


@dataclass(frozen=True)
class Rules:
    """How to search, beside how much.

    retry: try also what is in quarantine. dispatch: choose a plan for each size of a dim. jobs: processes that compile ahead, if
    more than one; None: one for each core. own_copies: see Bench. space: the candidates of a graph, given the default's groups
    and its ops that may stay native, each as often as it occurs.
    """

    retry: bool = False
    dispatch: bool = False
    jobs: int | None = None
    own_copies: bool = False
    space: Callable[[Groups, Iterable[str]], Iterable[Candidate]] = candidates


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
    """

    resolved: Resolved
    default_ms: float = 0.0
    default_groups: Groups = ()
    passed: list[Finalist] = field(default_factory=list)
    finalists: list[Finalist] = field(default_factory=list)
    incumbent: Plan = DEFAULT


def screen(
    bench: Bench, pool: CompilePool | None, resolved: Resolved, store: Store, effort: Effort, progress: Progress, rules: Rules
) -> Screening:
    """Tries candidates until the space, the trials or the seconds are used up.

    Each trial is stored when it ends. Candidates that the store has a verdict on are not compiled again. pool: compiles ahead;
    without one the measuring process compiles. Raises UnsupportedGraph, WorkerError where the default itself fails, DeviceBusy.
    """
    progress.enter("screening")
    default = bench.open(resolved)
    # From here on: opening a large graph may take longer than a small effort allows, and is nothing tried.
    started = time.monotonic()
    stored = store.winner(resolved.query.exact_key)
    run = _Run(bench, resolved, store, effort, progress, rules)
    result = Screening(resolved, default["default_ms"], canonical_groups(default["realised"] or []))
    result.incumbent = DEFAULT if stored is None else stored[0].plan
    progress.default_ms = result.default_ms
    run.seen_codes.add(default["code_key"] or "")
    run.seen_groups.add(result.default_groups)
    queue = run.proposals(result.default_groups, result.incumbent, default.get("checkable", True))
    if queue and pool is not None:
        pool.open(open_request(resolved, bench.policy, bench.seed))
    size = 1 if pool is None else BATCH * pool.size

    def in_time() -> bool:
        return time.monotonic() - started - min(run.hung_s, FORGIVEN * effort.seconds) < effort.seconds

    while queue and run.trials < effort.trials and in_time():
        batch = run.admitted(queue, min(size, effort.trials - run.trials))
        for candidate, verdict in run.compiled(pool, batch):
            reached = run.trial(candidate, verdict)
            if reached is not None:
                queue.appendleft(reached)
            bench.replace_if_leaking()
            progress.notify()
            if not in_time():
                break
    if run.default_samples:
        result.default_ms = median_of(run.default_samples, bench.policy.size_count)
    result.passed = run.passed
    progress.spent_s = time.monotonic() - started
    return result


class _Run:
    """The state of one screening."""

    def __init__(self, bench: Bench, resolved: Resolved, store: Store, effort: Effort, progress: Progress, rules: Rules):
        self.bench, self.resolved, self.store, self.effort = bench, resolved, store, effort
        self.progress, self.rules = progress, rules
        quarantined = set(store.quarantined(resolved.query))
        self.quarantined = set[str]() if rules.retry else quarantined
        known = store.measurements(resolved.query.exact_key, "screen", bench.policy.key)
        self.known = {measurement.plan.key: measurement for measurement in known if _counts(measurement, effort, rules)}
        # What was right when screened can have failed since, in a final or elsewhere: then that verdict counts.
        for key in quarantined & set(self.known):
            if rules.retry or self.known[key].status == "ok":
                del self.known[key]
        self.seen_codes: set[str] = set()
        self.seen_groups: set[Groups] = set()
        self.passed: list[Finalist] = []
        self.default_samples: list[float] = []
        self.trials = 0
        self.hung_s = 0.0
        for measurement in self.known.values():
            self._count(Candidate(measurement.label, measurement.plan), measurement)

    def proposals(self, groups: Groups, incumbent: Plan, checkable: bool) -> deque[Candidate]:
        """The space, the stored winner first. Where outputs cannot be checked, only what leaves numerics alone."""
        # Where the compiler generates no kernels, there is nothing to choose.
        if not groups:
            return deque()
        native = self.resolved.graph.native_form
        ops = [call for call in native.calls if call in NATIVE_OPS] if native is not None else []
        everything = list(self.rules.space(groups, ops))
        # What is set for the whole process is the user's choice: a plan that changed it would not be served.
        found = without_knobs(everything, self.resolved.query.ambient.get("inductor", ()))
        if len(found) < len(everything):
            self.progress.refused["set by the user"] += len(everything) - len(found)
        if not incumbent.is_default and all(candidate.plan != incumbent for candidate in found):
            found.append(Candidate("incumbent", incumbent))
        found.sort(key=lambda candidate: candidate.plan != incumbent)
        if not checkable:
            self.progress.refused["not checkable"] += sum(not candidate.plan.leaves_numerics for candidate in found)
            found = [candidate for candidate in found if candidate.plan.leaves_numerics]
        return deque(found)

    def admitted(self, queue: deque[Candidate], count: int) -> list[Candidate]:
        """The next candidates, at most `count`, that are neither known nor in quarantine nor proposed before."""
        batch: list[Candidate] = []
        while queue and len(batch) < count:
            candidate = queue.popleft()
            if self._admits(candidate.plan):
                batch.append(candidate)
        return batch

    def _admits(self, plan: Plan) -> bool:
        if plan.groups is not None and not plan.config and not plan.native:
            if plan.groups in self.seen_groups:
                self.progress.duplicates += 1
                return False
            self.seen_groups.add(plan.groups)
        if plan.key in self.known:
            return False
        if plan.key in self.quarantined:
            self.progress.refused["quarantined"] += 1
            return False
        return True

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
        made = pool.compile(jobs, sorted(self._codes()), self.bench.default)
        if self.resolved.device == "cpu":
            before = time.monotonic()
            told = list(made)
            elapsed_s = time.monotonic() - before
            self.bench.seconds["compiling"] += elapsed_s
            if any(verdict is not None and verdict["status"] == "timeout" for _, verdict in told):
                self.hung_s += elapsed_s
            made = iter(told)
        for plan, verdict in made:
            # In a crowd memory and time run short: what failed so gets its verdict from the measuring process, alone.
            alone = verdict is not None and verdict["status"] in ("timeout", "crash", "out_of_resources")
            yield by_key[plan.key], None if alone else verdict

    def _codes(self) -> Iterable[str]:
        return () if self.rules.own_copies else self.seen_codes

    def trial(self, candidate: Candidate, compiled: dict[str, Any] | None) -> Candidate | None:
        """Tries one candidate. The answer, if any, is the grouping that the compiler made instead, to be tried next."""
        timeouts, before = self.progress.failed["timeout"], time.monotonic()
        try:
            return self._trial(candidate, compiled)
        finally:
            if self.progress.failed["timeout"] > timeouts:
                self.hung_s += time.monotonic() - before

    def _trial(self, candidate: Candidate, compiled: dict[str, Any] | None) -> Candidate | None:
        plan = candidate.plan
        verdict = compiled
        if verdict is None or verdict["status"] == "ok":
            verdict = self.bench.try_plan(plan, plan.groups, sorted(self._codes()))
        match verdict["status"]:
            case "duplicate":
                self.progress.duplicates += 1
                return None
            case "not_realised":
                self.progress.refused["unreachable grouping"] += 1
                groups = canonical_groups(verdict["realised"])
                return None if groups in self.seen_groups else Candidate(candidate.label, Plan(groups=groups))
            case "refused":
                self.progress.refused[verdict.get("why", "not checkable")] += 1
                return None
        self.trials += 1
        if verdict["status"] != "ok":
            self._keep(candidate, verdict["status"], verdict)
            return None
        try:
            timed = self.bench.time([plan], self.effort.screen_samples)
        except WorkerError as error:
            self._keep(candidate, lost(error)["status"], {**verdict, **lost(error)})
        except DeviceBusy as error:
            self._keep(candidate, "busy", {**verdict, "message": str(error)})
            raise
        else:
            self._keep(candidate, "ok", verdict, timed)
        return None

    def _keep(self, candidate: Candidate, status: Status, verdict: dict[str, Any], timed: Timed | None = None) -> None:
        measurement = measured(self.bench, self.resolved, candidate, "screen", status, verdict, timed)
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
        ratio = median_ratio(measurement.default_samples_ms, measurement.samples_ms, measurement.policy.size_count)
        if (memory := measurement.memory_ratio) > self.effort.memory_limit:
            if ratio > (progress.over_memory[0] if progress.over_memory else 1.0):
                progress.over_memory = (ratio, memory, candidate.plan.describe())
            return
        if slower_at(measurement):
            progress.refused["slower at a size"] += 1
            return
        self.passed.append(Finalist(candidate, measurement, ratio))
        if ratio > progress.best:
            progress.best, progress.best_plan = ratio, candidate.plan.describe()


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


def _counts(measurement: Measurement, effort: Effort, rules: Rules) -> bool:
    """Whether a stored trial spares another one: not where the machine was busy, unless that is nothing to this sweep."""
    if measurement.status != "ok":
        return measurement.status != "busy" and not rules.retry
    return not effort.patience or not measurement.provenance.get("conditions", {}).get("busy")


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
