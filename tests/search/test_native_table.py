"""Which op kind a training program leaves undecomposed throughout: what is tried, what confirms it, what is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted import CONDITIONS, EFFORT, GELU, POLICY, SILU, A, Script, Told, noisy, resolved
from stored import program, query, winner

from tuner.cache.sqlite import SqliteStore
from tuner.errors import DeviceBusy, UnsupportedGraph, WorkerDied
from tuner.lookup.reader import StoreReader
from tuner.plan import Plan
from tuner.search.native_table import TableSearch, choose_table, wants_table, withdraw_choices
from tuner.search.whole import plans_of
from tuner.search.workloads import Resolved
from tuner.workload.graph import Graph, Node, Symbol

NORM = "aten.native_layer_norm.default"
SPEC = "made.py:step"
UNDER = Graph("forward", (Node("call", NORM, [], {}, None),), [], (0,), ())


def graphs() -> list[Resolved]:
    made = []
    for phase in ("forward", "backward"):
        one = resolved((), phase, SPEC, made_by=SPEC)
        made.append(replace(one, graph=replace(one.graph, phase=phase)))
    return made


class Processes:
    """All measuring processes of a test. kinds: those that the step holds, with the time of a step, where all else takes 1 ms.

    verdicts: what differs in the answer to trying a kind; "raise when timed": what is raised when it is timed. later: time of the
    choice in a final's process, by its number.
    """

    def __init__(
        self,
        kinds: Mapping[str, float],
        verdicts: Mapping[str, Told] | None = None,
        later: Callable[[int], float] | None = None,
        chosen: Told | None = None,
        busy: str | None = None,
    ):
        self.kinds, self.verdicts, self.chosen, self.busy = kinds, verdicts or {}, chosen or {}, busy
        self.later = later or (lambda number: min(kinds.values()))
        self.requests: list[Told] = []
        self.compile_s, self.limits_s = 0.0, dict[str, float]()
        self.started = self.finals = 0

    def __call__(self, threads: int, device: str, environment: Mapping[str, str]) -> TableWorker:
        self.started += 1
        return TableWorker(self, environment)

    def asked(self, do: str) -> list[Told]:
        return [request for request in self.requests if request["do"] == do]


class TableWorker:
    def __init__(self, processes: Processes, environment: Mapping[str, str]):
        self.processes, self.environment = processes, environment
        self.alive = True

    def ask(self, timeout_s: float, **request: Any) -> Any:
        assert self.alive
        self.processes.requests.append(request)
        self.processes.limits_s[request["do"]] = timeout_s
        match request["do"]:
            case "open tables":
                return self._open(request)
            case "table":
                told = self.processes.verdicts.get(request["kind"], {})
                if "raise" in told:
                    self.alive = False
                    raise told["raise"]
                return {"status": "ok", "error": 0.1, "peak_bytes": 1000, **told}
            case "table graphs":
                return [[program(SPEC).workload_key, [UNDER.to_json()]]]
            case _:
                return self._time(request)

    def _open(self, request: Told) -> Told:
        told: Told = {
            "default_ms": 1.0,
            "repetitions": 1,
            "compile_s": self.processes.compile_s,
            "check_s": 0.0,
            "call_s": 0.001,
            "error": 0.0,
        }
        told |= {"kinds": list(self.processes.kinds), "peak_bytes": {"default": 1000, "planned": 1000}, "chosen": {}}
        if "chosen" in request:
            with SqliteStore(Path(request["chosen"]), read_only=True) as store:
                choice = store.program_choice(program(SPEC).exact_key)
                assert choice is not None
                assert choice[0].native_table
            verdict = {"status": "ok", "error": 0.1, "peak_bytes": 1000, "outcomes": [[UNDER.key, "default"]]}
            told["chosen"] = {**verdict, **self.processes.chosen}
        return told

    def _time(self, request: Told) -> Told:
        for kind in request["keys"]:
            if error := self.processes.verdicts.get(kind, {}).get("raise when timed"):
                self.alive = False
                raise error
        times = {"default": 1.0, "planned": 1.0, **self.processes.kinds, "chosen": self.processes.later(self.processes.finals)}
        self.processes.finals += "chosen" in request["keys"]
        samples = {name: noisy(times[name], request["samples"]) for name in ("default", *request["keys"])}
        return {**CONDITIONS, "times": samples, "busy": self.processes.busy}

    def __enter__(self) -> TableWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.alive = False


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(tmp_path / "store.db") as opened:
        for graph in graphs():
            opened.add_graph(graph.query.workload_key, graph.graph.to_json())
        opened.add_program(program(SPEC), [graph.query for graph in graphs()], SPEC)
        yield opened


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch, store: SqliteStore) -> Callable[..., TableSearch]:
    def chosen(processes: Processes, *winners: Any, patience: int = 1) -> TableSearch:
        monkeypatch.setattr("tuner.search.native_table.Worker", processes)
        for won in winners:
            store.record_winner(won)
        effort = replace(EFFORT, patience=patience)
        return choose_table(SPEC, graphs(), {won.query.exact_key: won for won in winners}, store, POLICY, effort)

    return chosen


def answered(store: SqliteStore) -> Any:
    return StoreReader(store.path).program(program(SPEC))


def test_the_best_kind_is_confirmed_in_fresh_processes_and_served(choose, store: SqliteStore) -> None:
    processes = Processes({GELU: 0.95, NORM: 0.8})
    found = choose(processes)
    assert found.won
    assert processes.started == 1 + EFFORT.looks[0]
    assert [request["kind"] for request in processes.asked("table")] == [GELU, NORM], "both are tried in one process"
    answer = answered(store)
    assert answer.native_table == (NORM,)
    assert set(answer.graph_keys) == {*(graph.query.workload_key for graph in graphs()), UNDER.key}
    assert store.graph(UNDER.key) == UNDER.to_json()


def test_what_is_served_has_been_judged_as_such(choose, store: SqliteStore) -> None:
    won = winner(query("forward"), A)
    choose(Processes({NORM: 0.8}), won)
    found = store.program_final(program(SPEC).exact_key, plans_of(graphs(), {won.query.exact_key: won}, (NORM,)))
    assert found is not None
    assert (found[0].verdict, found[0].speedup) == ("confirmed", pytest.approx(1 / 0.8))
    evidence = found[0].evidence
    assert (evidence["native_table"], evidence["processes"]) == ([NORM], EFFORT.looks[0])
    assert (evidence["samples_per_process"], evidence["conditions"][0]) == (EFFORT.final_samples, CONDITIONS["conditions"])
    assert evidence["speedup_by_process"] == [pytest.approx(1 / 0.8)] * EFFORT.looks[0]


@pytest.mark.parametrize(
    ("processes", "reason"),
    [
        (Processes({}), ""),
        (Processes({NORM: 1.0}), ""),
        (Processes({NORM: 0.8}, {NORM: {"error": None}}), "wrong"),
        (Processes({NORM: 0.8}, {NORM: {"status": "compile_error", "message": "no such lowering"}}), "no such lowering"),
        (Processes({NORM: 0.8}, {NORM: {"peak_bytes": 1100}}), "peak memory 1.10"),
    ],
    ids=["none in it", "no faster", "wrong", "compile error", "memory"],
)
def test_what_does_not_pay_is_settled_as_such(choose, store: SqliteStore, processes: Processes, reason: str) -> None:
    found = choose(processes)
    assert not found.won
    assert reason in found.failed.get(NORM, "")
    choice = store.program_choice(program(SPEC).exact_key)
    assert choice is not None
    assert choice[0].native_table == ()
    assert not wants_table(graphs(), False, store, 1), "it is not searched again"
    assert wants_table(graphs(), True, store, 1)


def test_luck_in_the_screen_is_not_confirmed(choose, store: SqliteStore) -> None:
    found = choose(Processes({NORM: 0.8}, later=lambda number: 1.0))
    assert found.kind == NORM
    assert not found.won
    assert answered(store).native_table == ()


@pytest.mark.parametrize(
    "chosen", [{"error": 1e6}, {"peak_bytes": 1100}, {"outcomes": [["another graph", "default"]]}, {"outcomes": []}]
)
def test_a_choice_that_is_off_in_a_process_of_its_own_is_none(choose, store: SqliteStore, chosen: Told) -> None:
    found = choose(Processes({NORM: 0.8}, chosen=chosen))
    assert not found.won
    assert found.reason
    assert answered(store).native_table == ()


def test_a_kind_has_time_to_compile_by_what_the_default_took(choose) -> None:
    quick, slow = Processes({NORM: 1.0}), Processes({NORM: 1.0})
    slow.compile_s = 100.0
    choose(quick)
    choose(slow)
    assert slow.limits_s["table"] > quick.limits_s["table"] > 0


def test_a_kind_over_which_the_process_dies_costs_that_kind(choose) -> None:
    processes = Processes({GELU: 0.8, NORM: 0.9}, {NORM: {"raise": WorkerDied("SIGSEGV")}})
    found = choose(processes)
    assert found.failed == {NORM: "SIGSEGV"}
    assert (found.kind, found.won) == (GELU, True)


def test_a_kind_over_which_the_process_dies_when_all_are_timed_costs_that_kind(choose) -> None:
    verdicts: dict[str, Told] = {NORM: {"raise when timed": WorkerDied("SIGSEGV")}}
    processes = Processes({SILU: 0.9, GELU: 0.8, NORM: 0.7}, verdicts, later=lambda number: 0.8)
    found = choose(processes)
    assert found.failed == {NORM: "SIGSEGV"}
    assert found.screened == {SILU: pytest.approx(1 / 0.9), GELU: pytest.approx(1 / 0.8)}
    assert (found.kind, found.won) == (GELU, True)


def test_what_was_found_on_a_busy_machine_settles_nothing_for_those_who_ask_for_a_quiet_one(choose, store: SqliteStore) -> None:
    won = choose(Processes({NORM: 0.8}, busy="load 9"), patience=0)
    assert won.won
    assert not wants_table(graphs(), False, store, 0)
    assert wants_table(graphs(), False, store, 1)
    final = store.program_final(program(SPEC).exact_key, plans_of(graphs(), {}, (NORM,)))
    assert final is not None
    assert final[0].evidence["busy"] == "load 9"


def test_a_busy_machine_settles_nothing(choose, store: SqliteStore) -> None:
    with pytest.raises(DeviceBusy, match="load 9"):
        choose(Processes({NORM: 0.8}, busy="load 9"))
    assert wants_table(graphs(), False, store, 1)


def test_beside_new_winners_a_choice_is_withdrawn(choose, store: SqliteStore) -> None:
    choose(Processes({NORM: 0.8}))
    withdraw_choices(graphs(), SPEC, store)
    assert answered(store).native_table == ()
    assert answered(store).graph_keys == tuple(graph.query.workload_key for graph in graphs()), "those it made go with it"
    before = store.generation()
    withdraw_choices(graphs(), SPEC, store)
    assert store.generation() == before


def test_inference_has_no_table(store: SqliteStore) -> None:
    assert not wants_table([replace(one, graph=replace(one.graph, phase="inference")) for one in graphs()], True, store, 1)
    assert not wants_table([replace(one, program_query=None) for one in graphs()], True, store, 1)


def test_the_default_with_its_plans_is_what_a_choice_has_to_beat(choose) -> None:
    processes = Processes({NORM: 0.8})
    choose(processes, winner(query("forward"), A))
    assert [request["keys"] for request in processes.asked("time")] == [["planned", NORM]] + [["planned", "chosen"]] * 3
    assert all(request["phase"] == "training" for request in processes.asked("open tables"))
    assert Plan() != A


def test_a_sweep_looks_for_it_after_the_winners_and_not_again_when_settled(
    sweep, store: SqliteStore, devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = Processes({NORM: 0.8})
    monkeypatch.setattr("tuner.search.native_table.Worker", processes)
    made = sweep(Script(lambda plan: 1.0), *graphs())
    assert made.tables[SPEC].won
    assert answered(store).native_table == (NORM,)
    devices.clear()
    settled = sweep(Script(), *graphs())
    assert (settled.tables, devices) == ({}, [])
    assert answered(store).native_table == (NORM,)
    assert UNDER.key in answered(store).graph_keys, "what the table makes stays on record"


def test_a_settled_program_that_was_never_searched_is_searched_on_the_device(
    sweep, store: SqliteStore, devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.search.sweep.wants_table", lambda *_: False)
    sweep(Script(lambda plan: 1.0), *graphs())
    monkeypatch.setattr("tuner.search.sweep.wants_table", wants_table)
    monkeypatch.setattr("tuner.search.native_table.Worker", Processes({}))
    devices.clear()
    assert sweep(Script(), *graphs()).tables[SPEC].kind == ""
    assert devices == ["cpu"]


def test_where_none_is_searched_it_is_said_why(sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.search.native_table.Worker", Processes({NORM: 0.8}))
    forward, backward = graphs()
    varying = replace(forward, graph=replace(forward.graph, symbols=(Symbol(2, None, 8),)))
    assert "sizes vary" in sweep(Script(lambda plan: 1.0), varying, backward).tables[SPEC].reason
    refused: Told = {"raise": UnsupportedGraph("unchecked", "nothing can be checked")}
    script = Script(opening=lambda name: refused if name == "backward" else {})
    reason = sweep(script, forward, backward, again=True).tables[SPEC].reason
    assert reason == f"graph {backward.query.workload_key[:12]} could not be tuned"


def test_a_default_that_fails_over_it_leaves_the_winners_and_is_told(
    sweep, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.search.native_table.Worker", Processes({NORM: 0.8}, busy="load 9"))
    made = sweep(Script(lambda plan: 1.0), *graphs())
    assert made.tables[SPEC].reason == "load 9"
    assert all(outcome.generation is not None for outcome in made.outcomes)
    assert wants_table(graphs(), False, store, 1), "it is searched the next time"
