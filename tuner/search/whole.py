"""The whole callable's own final: all plans of its graphs together, in processes like a user's; a losing set is vetoed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Literal

from tuner.answer import digest_of_plans
from tuner.cache.sqlite import SqliteStore
from tuner.canonical import named_fields
from tuner.errors import DeviceBusy, WorkerDied, WorkerError, WorkerTimeout
from tuner.measure.promises import FALSE_WINNERS, MAX_LOSS
from tuner.measure.statistics import Speedup, median_ratio, speedup_of
from tuner.measurement import Policy, ProgramFinal, Winner
from tuner.search.effort import Effort
from tuner.search.provenance import provenance
from tuner.search.workloads import Resolved
from tuner.target import Query
from tuner.workers.limits import OPEN_S, limits
from tuner.workers.process import START_S, Worker

# In units of the tolerance of whole graphs: two compilations are compared here, and each may be off by as much as was allowed.
MAX_ERROR = 10.0

# Milliseconds for the look-ups of such a process: a loaded machine is no reason to judge the default in place of the plans.
DEADLINE_MS = "30000"

Pair = tuple[Sequence[float], Sequence[float]]


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
    programs = programs_of(graphs)
    phase = "inference" if all(graph.graph.phase == "inference" for graph in graphs) else "training"
    keys = {graph.query.workload_key for graph in graphs if _has_plan(graph, winners)}
    pairs: list[Pair] = []
    conditions: list[dict[str, Any]] = []
    wrong = ""
    with _store_of(spec, programs, winners) as environment:
        for process in range(effort.looks[-1]):
            if process in effort.looks and clear_verdict(pairs, effort) is not None:
                break
            timed = _one_that_lives(spec, graphs[0], phase, keys, policy, effort, process, environment)
            if wrong := timed["wrong"]:
                break
            pairs.append((timed["times"]["default"], timed["times"]["planned"]))
            conditions.append(timed["conditions"])
    speedup = Speedup(0.0, 0.0, 0.0) if wrong else interval(pairs, effort)
    verdict = "vetoed" if wrong else clear_verdict(pairs, effort) or ("vetoed" if speedup.value < 1.0 else "confirmed")
    evidence = {
        "processes": len(pairs),
        "samples_per_process": effort.final_samples,
        "speedup_by_process": [median_ratio(*pair) for pair in pairs],
        "conditions": conditions,
        **({"error": wrong} if wrong else {}),
    }
    return [
        ProgramFinal(
            query=program,
            plans=plans,
            verdict=verdict,
            speedup=speedup.value,
            speedup_low=speedup.low,
            speedup_high=speedup.high,
            default_ms=median(ms for pair in pairs for ms in pair[0]) if pairs else 0.0,
            planned_ms=median(ms for pair in pairs for ms in pair[1]) if pairs else 0.0,
            policy=policy,
            evidence=evidence,
            provenance=provenance(),
        )
        for program, made in programs.items()
        if (plans := plans_of(made, winners))
    ]


def clear_verdict(pairs: Sequence[Pair], effort: Effort) -> Literal["confirmed", "vetoed"] | None:
    """ "confirmed" where the set costs no more than MAX_LOSS, "vetoed" where it loses, both beyond noise; else None."""
    speedup = interval(pairs, effort)
    if speedup.low > MAX_LOSS:
        return "confirmed"
    return "vetoed" if speedup.high < 1.0 else None


def interval(pairs: Sequence[Pair], effort: Effort) -> Speedup:
    """The speed-up with bounds that hold for all looks together."""
    return speedup_of(pairs, FALSE_WINNERS / len(effort.looks))


def programs_of(graphs: Sequence[Resolved]) -> dict[Query, list[Resolved]]:
    """The graphs by the program that makes them, in order; those of no known program left out."""
    programs: dict[Query, list[Resolved]] = {}
    for graph in graphs:
        if graph.program_query is not None:
            programs.setdefault(graph.program_query, []).append(graph)
    return programs


def plans_of(graphs: Sequence[Resolved], winners: Mapping[str, Winner]) -> str:
    """Which plans these winners give the graphs of a program, see `digest_of_plans`; one without a winner has the default."""
    keys = [graph.query.exact_key for graph in graphs if graph.query.exact_key in winners]
    return digest_of_plans({key: (winners[key].plan, winners[key].groups) for key in keys})


def _has_plan(graph: Resolved, winners: Mapping[str, Winner]) -> bool:
    winner = winners.get(graph.query.exact_key)
    return winner is not None and not winner.plan.is_default


@contextmanager
def _store_of(spec: str, programs: Mapping[Query, Sequence[Resolved]], winners: Mapping[str, Winner]) -> Iterator[dict[str, str]]:
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


def _one_that_lives(*told: Any) -> dict[str, Any]:
    """`_one_process`, once more where it died, for it may have been killed from outside; twice is the fault of the plans."""
    for _ in range(2):
        try:
            return _one_process(*told)
        except (WorkerTimeout, WorkerDied) as error:
            died = str(error)
    return {"wrong": died}


def _one_process(
    spec: str,
    first: Resolved,
    phase: str,
    planned: set[str],
    policy: Policy,
    effort: Effort,
    process: int,
    environment: dict[str, str],
) -> dict[str, Any]:
    """planned: keys of the graphs that have to be served a plan. wrong: how the outputs differ, "" where they do not."""
    with Worker(policy.threads, first.device, environment=environment) as worker:
        ambient = named_fields(first.query.ambient)
        told = worker.ask(START_S + OPEN_S, do="open whole", spec=spec, ambient=ambient, policy=policy.fields(), phase=phase)
        served = {key for key, outcome in told["outcomes"] if outcome == "served"}
        if missing := sorted(planned - served):
            raise WorkerError(
                f"{spec}: the plan of graph {missing[0][:12]} was not served to a process of its own: {told['outcomes']}"
            )
        if told["error"] is None or told["error"] > MAX_ERROR:
            apart = "beyond measure" if told["error"] is None else f"by {told['error']:.3g} tolerances"
            return {"wrong": f"its outputs differ from the default's, {apart}"}
        limit_s = limits(told).stretch_s(1, effort.final_samples, told["repetitions"], effort.patience, known=True)
        timed = worker.ask(limit_s, do="time", keys=[], samples=effort.final_samples, seed=process, patience=effort.patience)
    if timed["busy"] and effort.patience:
        raise DeviceBusy(timed["busy"])
    return {**timed, "wrong": ""}
