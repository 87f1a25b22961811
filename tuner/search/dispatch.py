"""A plan for each bucket of a size that varies, where that is better than one for all: chosen from what was screened at each.

Searched after the graphs' own winners. At each size the best as screened there race and have a final of their own; then the whole
callable has its final with all of them in force.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import isqrt
from pathlib import Path
from typing import Any

from tuner.answer import Bucket
from tuner.cache.contract import Store
from tuner.cache.sqlite import SqliteStore
from tuner.errors import WorkerError
from tuner.measure.statistics import median_ratio
from tuner.measurement import Measurement, Policy, ProgramFinal, Winner
from tuner.plan import Plan
from tuner.search.bench import Bench
from tuner.search.effort import RANKS, Effort
from tuner.search.final import conclude, run_finals
from tuner.search.heats import race
from tuner.search.progress import Progress
from tuner.search.provenance import provenance
from tuner.search.rules import NUMERICS_ALLOWED, SEED, Rules
from tuner.search.screened import Finalist, Screening
from tuner.search.whole import MAX_ERROR, Process, judged, one_that_lives, plans_of, programs_of, store_of, whole_request
from tuner.search.workloads import Resolved
from tuner.search_spaces.space import Candidate
from tuner.target import Query

# Distance of the seeds of the inputs at two sizes from each other, and from those of the sweep's own processes.
SEEDS_APART = 1009


@dataclass
class DispatchSearch:
    """What came of it for one callable. winners: by size, then by exact-match key. buckets: by program key, if it has several.

    finals: what the whole callable's said of them, which took whole_seconds; won: they are in force. reason: why not. effort: of
    the search, "" where there was none; numerics: whether knobs might change how values are computed. settled: what an earlier
    one left, where that is in force.
    """

    winners: dict[int, dict[str, Winner]] = field(default_factory=dict)
    buckets: dict[str, tuple[Bucket, ...]] = field(default_factory=dict)
    finals: list[ProgramFinal] = field(default_factory=list)
    reason: str = ""
    whole_seconds: float = 0.0
    effort: str = ""
    numerics: bool = False
    settled: Mapping[str, Any] = field(default_factory=dict)

    @property
    def won(self) -> bool:
        return bool(self.settled.get("won") if self.settled else self.finals) and not self.reason

    def evidence(self) -> dict[str, Any]:
        """JSON: at each size the plan of each graph, and the buckets as they are in force."""
        if self.settled:
            return {**self.settled, "settled": True}
        sizes = {
            str(size): {key[:12]: {"plan": one.plan.describe(), "speedup": one.speedup} for key, one in winners.items()}
            for size, winners in self.winners.items()
        }
        limits = {program[:12]: [bucket.up_to for bucket in buckets] for program, buckets in self.buckets.items()}
        whole = [{"verdict": one.verdict, "speedup": one.speedup, "evidence": dict(one.evidence)} for one in self.finals[:1]]
        more = {name: value for name, value in (("reason", self.reason), ("effort", self.effort), ("busy", self._busy)) if value}
        allowed = {NUMERICS_ALLOWED: True} if self.numerics else {}
        return {**allowed, "sizes": sizes, "buckets_up_to": limits, "whole": whole[0] if whole else None, "won": self.won, **more}

    @property
    def _busy(self) -> str:
        """Why it is not to be trusted, where it was held on a noisy machine all the same."""
        told = [one.evidence for made in self.winners.values() for one in made.values()] + [one.evidence for one in self.finals]
        return next((str(evidence["busy"]) for evidence in told if "busy" in evidence), "")


def wants_dispatch(graphs: Sequence[Resolved], store: Store, effort: Effort, rules: Rules) -> bool:
    """Whether a plan for each size is to be searched: where it was not at these sizes, with this effort, beside these winners.

    What was found on a busy machine settles nothing where there is patience for a quiet one.
    """
    symbolic = _symbolic(graphs)
    sizes = {str(size) for graph in symbolic for size in graph.dim_sizes}
    found = [store.choice_evidence(program.exact_key) or {} for program in programs_of(symbolic)]
    settled = bool(found) and all(_settles(evidence, sizes, effort) for evidence in found)
    plans = [plan for _, plan in _in_buckets(symbolic, store)]
    allowed = all(rules.settled_by(evidence, plans) for evidence in found)
    return not settled or not allowed or _out_of_service(symbolic, store)


def _out_of_service(graphs: Sequence[Resolved], store: Store) -> bool:
    """Whether a plan of the buckets in force has come into quarantine, so that they are not served."""
    plans = {(key, plan.key) for key, plan in _in_buckets(graphs, store)}
    return any((graph.query.exact_key, plan) in plans for graph in graphs for plan in store.quarantined(graph.query))


def _in_buckets(graphs: Sequence[Resolved], store: Store) -> list[tuple[str, Plan]]:
    """The plans of the buckets in force, with the exact-match keys of their graphs."""
    choices = [store.program_choice(program.exact_key) for program in programs_of(graphs)]
    return [(key, plan) for one in choices if one for bucket in one[0].dispatch for key, plan, _ in bucket.plans]


def _symbolic(graphs: Sequence[Resolved]) -> list[Resolved]:
    """Those that have the dim, and can be tuned."""
    return [graph for graph in graphs if graph.symbol and graph.sizes and not graph.graph.opaque]


def settled_dispatch(graphs: Sequence[Resolved], store: Store) -> DispatchSearch:
    """What the store says of a search that is not wanted again."""
    found = DispatchSearch()
    for program in programs_of(_symbolic(graphs)):
        if (choice := store.program_choice(program.exact_key)) is not None:
            found.settled = store.choice_evidence(program.exact_key) or {}
            found.buckets |= {program.workload_key: choice[0].dispatch} if choice[0].dispatch else {}
    found.reason = found.settled.get("reason", "")
    return found


def _settles(evidence: Mapping[str, Any], sizes: set[str], effort: Effort) -> bool:
    ranks = [RANKS.index(name) if name in RANKS else -1 for name in (evidence.get("effort"), effort.name)]
    busy = effort.patience > 0 and "busy" in evidence
    return not busy and set(evidence.get("sizes", ())) == sizes and ranks[0] >= ranks[1] >= 0


def choose_dispatch(
    spec: str,
    graphs: Sequence[Resolved],
    winners: Mapping[str, Winner],
    store: Store,
    policy: Policy,
    effort: Effort,
    progress: Mapping[str, Progress],
    rules: Rules,
) -> DispatchSearch:
    """Searches a plan for each size of the callable's one dim; records, for each program, buckets that the final confirms.

    graphs, winners: as for `hold_whole_final`. progress: by exact-match key. Raises WorkerError, UnsupportedGraph, DeviceBusy.
    """
    found = DispatchSearch(effort=effort.name, numerics=rules.numerics)
    symbolic = {graph.query.exact_key: graph for graph in _symbolic(graphs)}
    if not symbolic:
        found.reason = "no graph has a size that varies"
        return found
    sizes = sorted({size for graph in symbolic.values() for size in graph.dim_sizes})
    # A winner is looked for at each: all of them together may err as often as one search.
    shared = replace(effort, searches=len(sizes))
    for size in sizes:
        at = {key: at_size(graph, size) for key, graph in symbolic.items() if size in graph.dim_sizes}
        found.winners[size] = _winners_at(at, winners, store, policy, shared, progress, size, rules)
    for program, made in programs_of(graphs).items():
        buckets = merged(buckets_of(found.winners, [graph.query.exact_key for graph in made], made[0].symbol))
        if len(buckets) > 1:
            found.buckets[program.workload_key] = buckets
    if not found.buckets:
        found.reason = "one plan is the best at every size"
    else:
        started = time.monotonic()
        _final(found, spec, graphs, winners, store, policy, effort)
        found.whole_seconds = time.monotonic() - started
    for program in programs_of(list(symbolic.values())):
        _record(found, program, store)
    return found


def _native(program: Query, store: Store) -> tuple[str, ...]:
    """The program's table."""
    choice = store.program_choice(program.exact_key)
    return () if choice is None else choice[0].native_table


def at_size(graph: Resolved, size: int) -> Resolved:
    """The graph where the dim has one of its sizes."""
    place = graph.dim_sizes.index(size)
    return replace(graph, sizes=(graph.sizes[place],), dim_sizes=(size,), data=graph.data[place : place + 1])


def row_at(row: Measurement, size: tuple[int, ...]) -> Measurement:
    """What a measurement at several sizes says of one of them."""
    i, count = row.policy.sizes.index(size), row.policy.size_count
    return replace(
        row,
        policy=replace(row.policy, sizes=(size,)),
        samples_ms=row.samples_ms[i::count],
        default_samples_ms=row.default_samples_ms[i::count],
    )


def _winners_at(
    graphs: Mapping[str, Resolved],
    winners: Mapping[str, Winner],
    store: Store,
    policy: Policy,
    effort: Effort,
    progress: Mapping[str, Progress],
    size: int,
    rules: Rules,
) -> dict[str, Winner]:
    screenings = [_screening(graph, winners.get(key), store, policy, effort, rules) for key, graph in graphs.items()]
    seconds = {key: progress[key].seconds_spent for key in graphs}
    with Bench(policy, SEED + 1 + SEEDS_APART * size, effort.patience) as bench:
        for screening in screenings:
            key = screening.resolved.query.exact_key
            bench.seconds = seconds[key]
            screening.finalists = race(bench, screening, store, effort, progress[key])
    evidence = run_finals(screenings, store, policy, effort, lambda _: None, seconds, kernels=False)
    made: dict[str, Winner] = {}
    for screening in screenings:
        key = screening.resolved.query.exact_key
        final = evidence.get(key)
        if final is not None and final.error is not None:
            raise final.error
        made[key] = conclude(screening, final, policy, effort, seconds[key])
    return made


def _screening(graph: Resolved, winner: Winner | None, store: Store, policy: Policy, effort: Effort, rules: Rules) -> Screening:
    """The screening at all sizes, as it looks at this one."""
    result = Screening(graph, numerics=rules.numerics)
    if winner is not None:
        result.incumbent, result.default_ms = winner.plan, winner.default_ms
    latest: dict[str, Measurement] = {}
    for row in store.measurements(graph.query.exact_key, "screen"):
        alike = replace(row.policy, sizes=()) == replace(policy, sizes=()) and graph.sizes[0] in row.policy.sizes
        if alike and rules.allows(row.plan):
            latest[row.plan.key] = row
    quarantined = store.quarantined(graph.query)
    for key, row in latest.items():
        if row.status == "ok" and row.memory_ratio <= effort.memory_limit and key not in quarantined:
            here = row_at(row, graph.sizes[0])
            ratio = median_ratio(here.default_samples_ms, here.samples_ms)
            result.passed.append(Finalist(Candidate(row.label, row.plan), here, ratio))
    return result


def buckets_of(winners: Mapping[int, Mapping[str, Winner]], keys: Sequence[str], symbol: str) -> list[Bucket]:
    """A bucket for each size at which one of these graphs, by exact-match key, was tuned; limits at geometric midpoints."""
    sizes = sorted(size for size, made in winners.items() if set(keys) & set(made))
    limits: list[int | None] = [isqrt(small * large) for small, large in pairwise(sizes)]
    buckets = []
    for size, limit in zip(sizes, [*limits, None][: len(sizes)], strict=True):
        chosen = {key: winners[size][key] for key in sorted(set(keys)) if key in winners[size]}
        plans = tuple((key, one.plan, one.groups) for key, one in chosen.items() if not one.plan.is_default)
        buckets.append(Bucket(symbol, limit, plans))
    return buckets


def merged(buckets: Sequence[Bucket]) -> tuple[Bucket, ...]:
    """Neighbours with equal plans as one."""
    kept: list[Bucket] = []
    for bucket in buckets:
        if kept and kept[-1].plans == bucket.plans:
            kept.pop()
        kept.append(bucket)
    return tuple(kept)


def _final(
    found: DispatchSearch,
    spec: str,
    graphs: Sequence[Resolved],
    winners: Mapping[str, Winner],
    store: Store,
    policy: Policy,
    effort: Effort,
) -> None:
    programs, shapes = programs_of(graphs), graphs[0].shapes
    policy = replace(policy, sizes=shapes.whole_sizes)
    request = {**whole_request(spec, graphs, policy), "do": "open whole"}
    # A graph may be served in one bucket and not in another: that some bucket of it is served is what can be asked for.
    planned = {
        graph.query.workload_key
        for graph in graphs
        for bucket in found.buckets.get(str(graph.program_key), ())
        if graph.query.exact_key in {key for key, *_ in bucket.plans}
    }
    with _store_of(spec, programs, winners, found) as environment:
        one = Process(request, graphs[0].device, planned, MAX_ERROR, policy, effort, environment)
        digests = {
            program: plans_of(made, winners, _native(program, store), found.buckets.get(program.workload_key, ()))
            for program, made in programs.items()
        }
        try:
            finals = judged(digests, policy, effort, lambda process: one_that_lives(one, process), shapes)
        except WorkerError as error:
            found.reason = str(error)
            return
    found.finals = [one for one in finals if one.query.workload_key in found.buckets]
    if any(one.verdict == "vetoed" for one in found.finals):
        found.reason = "the whole callable lost with a plan for each bucket"


@contextmanager
def _store_of(
    spec: str, programs: Mapping[Query, Sequence[Resolved]], winners: Mapping[str, Winner], found: DispatchSearch
) -> Iterator[dict[str, str]]:
    """The environment of a process in which the buckets are in force beside the winners."""
    with store_of(spec, programs, winners) as environment:
        with SqliteStore(Path(environment["TUNER_STORE"])) as store:
            for program in programs:
                if buckets := found.buckets.get(program.workload_key):
                    store.record_program_choice(program, dispatch=buckets)
        yield environment


def _record(found: DispatchSearch, program: Query, store: Store) -> None:
    """Puts the program's buckets in force, or takes those out of force that were; and what was found, so that it is settled."""
    buckets = found.buckets.get(program.workload_key, ()) if found.won else ()
    for final in found.finals:
        if buckets and final.query == program:
            # Before the choice: no moment in which it is in force and was not judged.
            store.record_program_final(final)
    store.record_program_choice(program, _native(program, store), buckets, found.evidence(), provenance())
