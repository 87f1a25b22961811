"""Native ops of training programs: which op kind, if any, is left undecomposed throughout.

Searched after the graphs' own winners, since the choice makes other graphs: each declared kind that the step holds is tried, all
in one process, beside the default with its plans; the best is confirmed like a winner, in fresh ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.cache.contract import Store
from tuner.cache.sqlite import SqliteStore
from tuner.errors import DeviceBusy, WorkerError
from tuner.measure.promises import MIN_SPEEDUP
from tuner.measure.statistics import Speedup, median_ratio, speedup_of
from tuner.measurement import Policy, Winner
from tuner.search.effort import Effort
from tuner.search.provenance import provenance
from tuner.search.race import ALIKE
from tuner.search.whole import MAX_ERROR, evidence_of, final_of, interval, plans_of, programs_of, store_of, whole_request
from tuner.search.workloads import Resolved
from tuner.target import Query
from tuner.workers.limits import COMPILE_FACTOR, OPEN_S, limits
from tuner.workers.process import START_S, Worker
from tuner.workload.graph import Graph

CHOSEN = "chosen"
# Samples of each kind in the screen, against the effort's own of a graph's candidates: all have to fit into one process.
SCREEN_FACTOR = 4
UNKNOWN = Speedup(1.0, 1.0, 1.0)
# Of a choice that was taken back.
WITHDRAWN = {"reason": "other plans won"}


@dataclass
class TableSearch:
    """What was tried for one callable. screened: speed-up of each kind over the default with its plans, as screened.

    failed: verdicts on the others. kind: the best as screened, "" if none is ahead. graphs: by program key, those that come of
    it. stretches: of the final's processes; speedup: of the choice over the default with its plans there; won: it was confirmed.
    busy: why the screen is not to be trusted, where it was held all the same.
    """

    screened: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    kind: str = ""
    graphs: dict[str, list[Graph]] = field(default_factory=dict)
    stretches: list[dict[str, Any]] = field(default_factory=list)
    busy: str = ""
    speedup: Speedup = UNKNOWN
    won: bool = False
    reason: str = ""

    @property
    def pairs(self) -> list[tuple[list[float], list[float]]]:
        """Of the default with its plans and of the choice."""
        return [(timed["times"]["planned"], timed["times"][CHOSEN]) for timed in self.stretches]

    def evidence(self) -> dict[str, Any]:
        busy = next(filter(None, [self.busy, *(timed["busy"] for timed in self.stretches)]), "")
        return {
            "screened": {kind: round(ratio, 4) for kind, ratio in self.screened.items()},
            **{name: value for name, value in (("failed", self.failed), ("tried", self.kind), ("reason", self.reason)) if value},
            **({"speedup_by_process": [median_ratio(*pair) for pair in self.pairs]} if self.stretches else {}),
            **({"busy": busy} if busy else {}),
            "won": self.won,
        }


def wants_table(graphs: Sequence[Resolved], anew: bool, store: Store, patience: int) -> bool:
    """Whether the training programs among these graphs are to be searched: anew, or because they never were.

    What was found on a busy machine settles nothing where there is patience for a quiet one. Where sizes vary, or nothing is
    known of the program, none is.
    """
    programs = _trained(graphs)
    if not programs or sizes_vary(graphs):
        return False
    found = [store.choice_evidence(program.exact_key) for program in programs]
    return anew or any(evidence is None or (patience > 0 and "busy" in evidence) for evidence in found)


def sizes_vary(graphs: Sequence[Resolved]) -> bool:
    """Whether these are of a callable that trains and has no table because its sizes vary."""
    return bool(_trained(graphs)) and any(graph.graph.symbols for graph in graphs)


def _trained(graphs: Sequence[Resolved]) -> dict[Query, list[Resolved]]:
    return programs_of([graph for graph in graphs if graph.graph.phase == "forward"])


def withdraw_choices(graphs: Sequence[Resolved], spec: str, store: Store) -> None:
    """Takes back what was chosen for these programs, table and buckets: beside new winners it was not judged.

    graphs: all of the callable's. Those that a table made are the program's no more.
    """
    for program, made in programs_of(graphs).items():
        choice = store.program_choice(program.exact_key)
        if choice is None or store.choice_evidence(program.exact_key) == WITHDRAWN:
            continue
        store.record_program_choice(program, evidence=WITHDRAWN, provenance=provenance())
        if choice[0].native_table:
            store.add_program(program, [graph.query for graph in made], spec)


def choose_table(
    spec: str, graphs: Sequence[Resolved], winners: Mapping[str, Winner], store: Store, policy: Policy, effort: Effort
) -> TableSearch:
    """Searches the callable's table, and records the choice for each of its programs: a kind that won, or none.

    graphs, winners: as for `hold_whole_final`; those plans are in force that its final has not vetoed. Raises WorkerError where
    the default itself fails, DeviceBusy.
    """
    programs = programs_of(graphs)
    in_force = {} if _vetoed(programs, winners, store) else dict(winners)
    with store_of(spec, programs, in_force) as environment:
        found = _screen(spec, graphs, policy, effort, environment)
        if found.kind:
            with _chosen_store(spec, programs, winners, found) as chosen:
                _final(found, spec, graphs, policy, effort, environment, chosen)
    for program, made in programs.items():
        _record(found, program, made, winners, spec, store, policy, effort)
    return found


def _vetoed(programs: Mapping[Query, Sequence[Resolved]], winners: Mapping[str, Winner], store: Store) -> bool:
    finals = [store.program_final(program.exact_key, plans_of(made, winners)) for program, made in programs.items()]
    return any(final is not None and final[0].verdict == "vetoed" for final in finals)


def _screen(spec: str, graphs: Sequence[Resolved], policy: Policy, effort: Effort, environment: Mapping[str, str]) -> TableSearch:
    found = TableSearch()
    request = {**whole_request(spec, graphs, policy), "do": "open tables"}
    apart: list[list[str] | None] = [None]
    while apart:
        with Worker(policy.threads, graphs[0].device, environment=environment) as worker:
            apart = _screen_together(found, apart[0], worker, request, effort) + apart[1:]
    return found


def _screen_together(
    found: TableSearch, kinds: list[str] | None, worker: Worker, request: Mapping[str, Any], effort: Effort
) -> list[list[str] | None]:
    """Screens these kinds in one process, None for all that the step holds; what is left to be tried in others.

    A kind over which the process is lost costs that one. Where it is lost over several, each is tried in a process of its own.
    """
    told = worker.ask(START_S + 2 * OPEN_S, **request)
    kinds, right = told["kinds"] if kinds is None else kinds, list[str]()
    trying: list[str] = []
    try:
        for kind in kinds:
            trying = [kind]
            # What g++ makes of the default it may have made before, and a kind's kernels are others.
            verdict = worker.ask(limits(told).compile_s * COMPILE_FACTOR, do="table", kind=kind)
            if why := _refused(verdict, told, effort):
                found.failed[kind] = why
            else:
                right.append(kind)
        if not right:
            return []
        trying, samples = list(right), SCREEN_FACTOR * effort.screen_samples
        limit_s = limits(told).stretch_s(len(right) + 1, samples, told["repetitions"], effort.patience, known=False)
        timed = worker.ask(limit_s, do="time", keys=["planned", *right], samples=samples, seed=0, patience=effort.patience)
        _raise_if_busy(timed, effort)
        ratios = {kind: median_ratio(timed["times"]["planned"], timed["times"][kind]) for kind in right}
        best = max(ratios, key=ratios.__getitem__)
        if ratios[best] > max(1 + ALIKE, found.screened.get(found.kind, 0.0)):
            trying = [best]
            under = worker.ask(OPEN_S, do="table graphs", kind=best)
            found.kind, found.graphs = best, {key: [Graph.from_json(form) for form in forms] for key, forms in under}
        found.screened |= ratios
        found.busy = found.busy or timed["busy"] or ""
        return []
    except WorkerError as error:
        if len(trying) > 1:
            return [[kind] for kind in trying]
        found.failed[trying[0]] = str(error)
        left = [kind for kind in kinds if kind not in found.failed]
        return [left] if left else []


def _refused(verdict: Mapping[str, Any], told: Mapping[str, Any], effort: Effort) -> str:
    """Why a kind is not timed; "" where it is."""
    if verdict["status"] != "ok":
        return f"{verdict['status']}: {verdict.get('message', '')}"
    if verdict["error"] is None or verdict["error"] > MAX_ERROR:
        return "wrong: outputs or gradients differ from the default's"
    if verdict["peak_bytes"] > effort.memory_limit * told["peak_bytes"]["default"]:
        return f"peak memory {verdict['peak_bytes'] / told['peak_bytes']['default']:.2f} times the default's"
    return ""


def _raise_if_busy(timed: Mapping[str, Any], effort: Effort) -> None:
    if timed["busy"] and effort.patience:
        raise DeviceBusy(timed["busy"])


@contextmanager
def _chosen_store(
    spec: str, programs: Mapping[Query, Sequence[Resolved]], winners: Mapping[str, Winner], found: TableSearch
) -> Iterator[str]:
    """Path of a store in which the choice is in force beside the winners, as it will be in the real one."""
    with store_of(spec, programs, winners) as environment:
        path = environment["TUNER_STORE"]
        with SqliteStore(Path(path)) as store:
            for program, made in programs.items():
                store.add_program(program, _queries(found, program, made), spec)
                store.record_program_choice(program, native_table=(found.kind,))
        yield path


def _queries(found: TableSearch, program: Query, made: Sequence[Resolved]) -> list[Query]:
    """The graphs of a program by default, then those under the choice."""
    under = [Query("graph", graph.key, program.target, program.toolchain, program.ambient) for graph in _under(found, program)]
    return list(dict.fromkeys([*(graph.query for graph in made), *under]))


def _under(found: TableSearch, program: Query) -> list[Graph]:
    return found.graphs.get(program.workload_key, [])


def _final(
    found: TableSearch,
    spec: str,
    graphs: Sequence[Resolved],
    policy: Policy,
    effort: Effort,
    environment: Mapping[str, str],
    chosen: str,
) -> None:
    request = {**whole_request(spec, graphs, policy), "do": "open tables", "chosen": chosen}
    expected = {graph.key for made in found.graphs.values() for graph in made}
    for process in range(effort.looks[-1]):
        if process in effort.looks and _decided(found, effort):
            break
        with Worker(policy.threads, graphs[0].device, environment=environment) as worker:
            try:
                told = worker.ask(START_S + 2 * OPEN_S, **request)
                verdict = told["chosen"]
                found.reason = _refused(verdict, told, effort)
                if not found.reason and {key for key, _ in verdict["outcomes"]} != expected:
                    found.reason = "another process made other graphs of it"
                if found.reason:
                    return
                limit_s = limits(told).stretch_s(2, effort.final_samples, told["repetitions"], effort.patience, known=True)
                timed = worker.ask(
                    limit_s,
                    do="time",
                    keys=["planned", CHOSEN],
                    samples=effort.final_samples,
                    seed=process,
                    patience=effort.patience,
                )
            # That the default works, the screen has shown.
            except WorkerError as error:
                found.reason = str(error)
                return
        _raise_if_busy(timed, effort)
        found.stretches.append(timed)
    found.speedup = speedup_of(found.pairs, effort.final_error)
    found.won = bool(found.speedup.low > MIN_SPEEDUP)


def _decided(found: TableSearch, effort: Effort) -> bool:
    speedup = speedup_of(found.pairs, effort.final_error)
    return speedup.low > MIN_SPEEDUP or speedup.value < MIN_SPEEDUP


def _record(
    found: TableSearch,
    program: Query,
    made: Sequence[Resolved],
    winners: Mapping[str, Winner],
    spec: str,
    store: Store,
    policy: Policy,
    effort: Effort,
) -> None:
    native = (found.kind,) if found.won else ()
    if native:
        for graph in _under(found, program):
            store.add_graph(graph.key, graph.to_json())
        store.add_program(program, _queries(found, program, made), spec)
        # Before the choice: no moment in which it is in force and was not judged.
        pairs = [(timed["times"]["default"], timed["times"][CHOSEN]) for timed in found.stretches]
        plans = plans_of(made, winners, native)
        evidence = {"native_table": list(native), **evidence_of(pairs, found.stretches, effort, policy)}
        store.record_program_final(final_of(program, plans, "confirmed", interval(pairs, effort), pairs, policy, evidence))
    # Buckets there are none: where sizes vary no table is searched.
    store.record_program_choice(program, native, (), found.evidence(), provenance())
