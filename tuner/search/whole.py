"""The whole callable's own final: all plans of its graphs together, in processes like a user's; a losing set is vetoed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tuner.answer import Bucket, digest_of_plans
from tuner.cache.sqlite import SqliteStore
from tuner.canonical import named_fields
from tuner.errors import DeviceBusy, WorkerDied, WorkerError, WorkerTimeout
from tuner.measure.promises import FALSE_WINNERS, MAX_LOSS
from tuner.measure.statistics import Pair, Speedup, median_of, median_ratio, speedup_of, speedups_by_size
from tuner.measurement import Policy, ProgramFinal, Winner
from tuner.search.effort import Effort
from tuner.search.provenance import provenance
from tuner.search.workloads import Resolved
from tuner.target import Query
from tuner.workers.limits import OPEN_S, limits
from tuner.workers.process import START_S, Worker
from tuner.workload.graph import SpecPhase
from tuner.workload.shapes import STATIC, Shapes

# In units of the tolerance of whole graphs: two compilations are compared here, and each may be off by as much as was allowed.
MAX_ERROR = 10.0

# Milliseconds for the look-ups of such a process: a loaded machine is no reason to judge the default in place of the plans.
DEADLINE_MS = "30000"


def has_callable(spec: str) -> bool:
    """Whether `spec` is file.py:function or model.pt2, and not the key of a stored graph or the name of a reported program."""
    return ":" in spec or spec.endswith(".pt2")


def hold_whole_final(
    spec: str, graphs: Sequence[Resolved], winners: Mapping[str, Winner], policy: Policy, effort: Effort
) -> list[ProgramFinal]:
    """Times the callable of `spec` with its winners against the default, and says for each of its programs what came of it.

    graphs: all of the callable's; winners: by exact-match key, none where the default is in force. In as many fresh processes as
    `effort.looks` asks for until the verdict is clear; each compiles from a store that holds nothing but these winners, as a
    user's process would. Plans with which the outputs are others, or the process dies, are vetoed at once, and their
    speed-up is told as 0. Raises WorkerError for what else goes wrong, also where a process was not served them; DeviceBusy.
    """
    programs, shapes = programs_of(graphs), graphs[0].shapes
    policy = replace(policy, sizes=shapes.whole_sizes)
    with store_of(spec, programs, winners) as environment:
        request = {**whole_request(spec, graphs, policy), "do": "open whole"}
        planned = {graph.query.workload_key for graph in graphs if has_plan(graph, winners)}
        one = Process(request, graphs[0].device, planned, MAX_ERROR, policy, effort, environment)
        digests = {program: plans_of(made, winners) for program, made in programs.items()}
        return judged(digests, policy, effort, lambda process: one_that_lives(one, process), shapes)


def whole_request(spec: str, graphs: Sequence[Resolved], policy: Policy) -> dict[str, Any]:
    """What a worker is told to open a callable. policy: with the sizes of the whole."""
    phase: SpecPhase = "inference" if all(graph.graph.phase == "inference" for graph in graphs) else "training"
    ambient = named_fields(graphs[0].query.ambient)
    shapes = graphs[0].shapes.to_json()
    return {"spec": spec, "ambient": ambient, "policy": policy.fields(), "phase": phase, "shapes": shapes}


def judged(
    programs: Mapping[Query, str],
    policy: Policy,
    effort: Effort,
    one_process: Callable[[int], dict[str, Any]],
    shapes: Shapes = STATIC,
) -> list[ProgramFinal]:
    """What as many processes say of the programs' plans as it takes to be clear; each program that has any.

    programs: each with the digest of its plans, empty where it has none. one_process: given its number, the "times" of "default"
    and "planned", the "conditions", why it was "busy", and what was "wrong", if anything.
    """
    pairs: list[Pair] = []
    stretches: list[dict[str, Any]] = []
    wrong = ""
    for process in range(effort.looks[-1]):
        if process in effort.looks and clear_verdict(pairs, effort, policy) is not None:
            break
        timed = one_process(process)
        if wrong := timed["wrong"]:
            break
        pairs.append((timed["times"]["default"], timed["times"]["planned"]))
        stretches.append(timed)
    speedup = Speedup(0.0, 0.0, 0.0) if wrong else interval(pairs, effort, policy.size_count)
    at_sizes = [] if wrong else at_each_size(pairs, effort, policy)
    does_harm = speedup.value < 1.0 or any(one.value < MAX_LOSS for one in at_sizes)
    verdict = "vetoed" if wrong else clear_verdict(pairs, effort, policy) or ("vetoed" if does_harm else "confirmed")
    evidence = {
        **evidence_of(pairs, stretches, effort, policy),
        **(_by_size(shapes, policy, at_sizes) if at_sizes else {}),
        **({"error": wrong} if wrong else {}),
    }
    return [final_of(program, plans, verdict, speedup, pairs, policy, evidence) for program, plans in programs.items() if plans]


def evidence_of(pairs: Sequence[Pair], stretches: Sequence[Mapping[str, Any]], effort: Effort, policy: Policy) -> dict[str, Any]:
    """What a final's processes measured, and under which conditions; "busy" where one was noisy, and measured all the same."""
    busy = [why for timed in stretches if (why := timed["busy"])]
    return {
        "processes": len(pairs),
        "samples_per_process": effort.final_samples,
        "speedup_by_process": [median_ratio(*pair, policy.size_count) for pair in pairs],
        "conditions": [timed["conditions"] for timed in stretches],
        **({"busy": busy[0]} if busy else {}),
    }


def final_of(
    program: Query,
    plans: str,
    verdict: Literal["confirmed", "vetoed"],
    speedup: Speedup,
    pairs: Sequence[Pair],
    policy: Policy,
    evidence: Mapping[str, Any],
) -> ProgramFinal:
    """The row that the final of a program leaves in the store."""
    return ProgramFinal(
        query=program,
        plans=plans,
        verdict=verdict,
        speedup=speedup.value,
        speedup_low=speedup.low,
        speedup_high=speedup.high,
        default_ms=median_of([ms for pair in pairs for ms in pair[0]], policy.size_count) if pairs else 0.0,
        planned_ms=median_of([ms for pair in pairs for ms in pair[1]], policy.size_count) if pairs else 0.0,
        policy=policy,
        evidence=evidence,
        provenance=provenance(),
    )


def clear_verdict(pairs: Sequence[Pair], effort: Effort, policy: Policy) -> Literal["confirmed", "vetoed"] | None:
    """ "confirmed" where the set costs no more than MAX_LOSS, "vetoed" where it loses, both beyond noise; else None.

    Where sizes vary it has to cost no more at any of them, and is vetoed where it costs more at one.
    """
    speedup, at_sizes = interval(pairs, effort, policy.size_count), at_each_size(pairs, effort, policy)
    if speedup.low > MAX_LOSS and all(one.low > MAX_LOSS for one in at_sizes):
        return "confirmed"
    return "vetoed" if speedup.high < 1.0 or any(one.high < MAX_LOSS for one in at_sizes) else None


def interval(pairs: Sequence[Pair], effort: Effort, sizes: int = 1) -> Speedup:
    """The speed-up with bounds that hold for all looks together."""
    return speedup_of(pairs, FALSE_WINNERS / len(effort.looks), sizes=sizes)


def at_each_size(pairs: Sequence[Pair], effort: Effort, policy: Policy) -> list[Speedup]:
    """The same at each of the policy's sizes; none where it has none."""
    return speedups_by_size(pairs, FALSE_WINNERS / len(effort.looks), len(policy.sizes))


def _by_size(shapes: Shapes, policy: Policy, at_sizes: Sequence[Speedup]) -> dict[str, Any]:
    told = [
        {"size": list(size), "speedup": one.value, "speedup_low": one.low, "speedup_high": one.high}
        for size, one in zip(policy.sizes, at_sizes, strict=True)
    ]
    return {"dims": [dim.name for dim in shapes.dims], "by_size": told}


def programs_of(graphs: Sequence[Resolved]) -> dict[Query, list[Resolved]]:
    """The graphs by the program that makes them, in order; those of no known program left out."""
    programs: dict[Query, list[Resolved]] = {}
    for graph in graphs:
        if graph.program_query is not None:
            programs.setdefault(graph.program_query, []).append(graph)
    return programs


def plans_of(
    graphs: Sequence[Resolved],
    winners: Mapping[str, Winner],
    native_table: tuple[str, ...] = (),
    dispatch: tuple[Bucket, ...] = (),
) -> str:
    """Which plans these winners give the graphs of a program, see `digest_of_plans`; one without a winner has the default."""
    keys = [graph.query.exact_key for graph in graphs if graph.query.exact_key in winners]
    return digest_of_plans({key: (winners[key].plan, winners[key].groups) for key in keys}, native_table, dispatch)


def has_plan(graph: Resolved, winners: Mapping[str, Winner]) -> bool:
    winner = winners.get(graph.query.exact_key)
    return winner is not None and not winner.plan.is_default


@contextmanager
def store_of(spec: str, programs: Mapping[Query, Sequence[Resolved]], winners: Mapping[str, Winner]) -> Iterator[dict[str, str]]:
    """The environment of a process that finds these winners and nothing else."""
    with tempfile.TemporaryDirectory(prefix="tuner-") as folder:
        path = Path(folder) / "store.db"
        with SqliteStore(path) as store:
            for program, made in programs.items():
                store.add_program(program, [graph.query for graph in made], spec)
            for winner in winners.values():
                store.record_winner(winner)
        yield {
            "TUNER_STORE": str(path),
            "TUNER_SOCKET": str(Path(folder) / "none.sock"),
            "TUNER_DISABLE": "",
            "TUNER_DEADLINE_MS": DEADLINE_MS,
            # Where a compile cache answers, nobody sees what is served.
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
            "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
        }


@dataclass(frozen=True)
class Process:
    """How one process of a final is run. request: what opens it; planned: keys of the graphs that have to be served a plan.

    max_error: how far its outputs may differ from the default's, as the process tells it.
    """

    request: Mapping[str, Any]
    device: str
    planned: Set[str]
    max_error: float
    policy: Policy
    effort: Effort
    environment: Mapping[str, str] | None = None

    def run(self, process: int) -> dict[str, Any]:
        """Samples of it; wrong: how the outputs differ, "" where they do not. Raises WorkerError, DeviceBusy."""
        effort = self.effort
        with Worker(self.policy.threads, self.device, environment=self.environment) as worker:
            told = worker.ask(START_S + OPEN_S * self.policy.size_count, **self.request)
            served = {key for key, outcome in told["outcomes"] if outcome == "served"}
            if missing := sorted(self.planned - served):
                raise WorkerError(
                    f"the plan of graph {missing[0][:12]} was not served to a process of its own: {told['outcomes']}"
                )
            if told["error"] is None or told["error"] > self.max_error:
                apart = "beyond measure" if told["error"] is None else f"by {told['error']:.3g} tolerances"
                return {"wrong": f"its outputs differ from the default's, {apart}"}
            once_s = limits(told).stretch_s(1, effort.final_samples, told["repetitions"], effort.patience, known=True)
            limit_s = self.policy.size_count * once_s
            timed = worker.ask(limit_s, do="time", keys=[], samples=effort.final_samples, seed=process, patience=effort.patience)
        if timed["busy"] and effort.patience:
            raise DeviceBusy(timed["busy"])
        return {**timed, "wrong": ""}


def one_that_lives(one: Process, process: int) -> dict[str, Any]:
    """One process, once more where it died, for it may have been killed from outside; twice is the fault of the plans."""
    for _ in range(2):
        try:
            return one.run(process)
        except (WorkerTimeout, WorkerDied) as error:
            died = str(error)
    return {"wrong": died}
