"""Screening: what is tried, counted, kept, and put forward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scripted import (
    EFFORT,
    GELU,
    KNOBS,
    LEAVES,
    LISTED,
    ONE_GROUP,
    POLICY,
    SILU,
    Script,
    Told,
    bench,
    listed,
    resolved,
    taking,
    telling,
)
from splits import single_splits
from stored import query, winner

from tuner.cache.sqlite import SqliteStore
from tuner.errors import DeviceBusy, UnsupportedGraph, WorkerDied, WorkerTimeout
from tuner.measurement import Measurement, Policy
from tuner.plan import Groups, Plan
from tuner.search.bench import Bench
from tuner.search.rules import Rules
from tuner.search.screened import Screening
from tuner.search_spaces.fusion import no_fusion
from tuner.search_spaces.space import Candidate

# What the graphs here, of no operations, may be compiled with.
NATIVE = Plan(native=(GELU,))
SPLIT = Plan(groups=next(iter(single_splits(ONE_GROUP))))


def plans(screening: Screening) -> list[Plan]:
    return [finalist.candidate.plan for finalist in screening.passed]


def rows(store: SqliteStore, plan: Plan | None = None) -> list[Measurement]:
    found = store.measurements(query().exact_key, "screen")
    return [row for row in found if plan is None or row.plan == plan]


def test_the_whole_space_is_tried_once(run) -> None:
    script = Script()
    _, seen = run(script, resolved((GELU, SILU)))
    keys = [plan.key for plan in script.tried]
    assert len(keys) == len(set(keys))
    assert Plan(groups=no_fusion(ONE_GROUP)) in script.tried
    assert {Plan(native=(GELU,)), Plan(native=(SILU,))} <= set(script.tried)
    assert {Plan(groups=groups) for groups in single_splits(ONE_GROUP)} <= set(script.tried)
    assert {name for plan in script.tried for name, _ in plan.config} == set(KNOBS)
    assert seen.measured == len(keys)


def test_each_candidate_is_timed_beside_the_default_alone(run, store: SqliteStore) -> None:
    script = Script(taking({NATIVE: 0.5}))
    found, seen = run(script)
    assert script.timed == [(plan.key,) for plan in script.tried]
    (best,) = [finalist for finalist in found.passed if finalist.candidate.plan == NATIVE]
    assert best.ratio == pytest.approx(2.0)
    assert (seen.best, seen.best_plan) == (pytest.approx(2.0), NATIVE.describe())


def test_the_default_that_fails_is_no_candidates_fault(run, store: SqliteStore) -> None:
    with pytest.raises(UnsupportedGraph):
        run(Script(opening=lambda _: {"raise": UnsupportedGraph("unchecked", "differs from eager")}))
    assert rows(store) == []


def test_a_process_that_dies_over_the_default_is_replaced_once(run) -> None:
    deaths = iter([{"raise": WorkerDied("killed")}])
    script = Script(opening=lambda _: next(deaths, {}))
    _, seen = run(script)
    assert (len(script.workers), seen.failed.total()) == (2, 0)
    with pytest.raises(WorkerDied):
        run(Script(opening=lambda _: {"raise": WorkerDied("killed")}))


def test_equal_code_is_a_duplicate_and_is_not_measured(run, store: SqliteStore) -> None:
    script = Script(verdict=lambda plan: {"code_key": "same"} if plan.config else {})
    _, seen = run(script)
    configs = [plan for plan in script.tried if plan.config]
    assert seen.duplicates == len(configs) - 1
    assert sum(bool(row.plan.config) for row in rows(store)) == 1


def test_code_equal_to_the_defaults_is_a_duplicate(run, store: SqliteStore) -> None:
    _, seen = run(Script(taking({}, 0.1), lambda plan: {"code_key": "default"}))
    assert seen.measured == 0
    assert rows(store) == []


def test_with_own_copies_no_code_is_equal_to_another(run, store: SqliteStore) -> None:
    script = Script()
    _, seen = run(script, rules=replace(LISTED, own_copies=True), on=Bench(POLICY, 0, own_copies=True))
    assert seen.duplicates == 0
    assert [request["own_copy"] for request in script.asked("try")] == [plan.key for plan in script.tried]
    assert all(request["seen_codes"] == [] for request in script.asked("try"))
    without = Script()
    run(without, resolved((GELU,), name="a"), on=bench(), rules=replace(LISTED, retry=True))
    assert all(request["own_copy"] == "" for request in without.asked("try"))


FAILURES = [
    ({"status": "wrong", "message": "differs"}, "wrong"),
    ({"status": "compile_error", "message": "g++ says no"}, "compile_error"),
    ({"status": "out_of_resources", "message": "no memory", "traceback": "Traceback"}, "out_of_resources"),
    ({"status": "crash", "message": "illegal access", "sticky": True}, "crash"),
    ({"raise": WorkerTimeout("too slow")}, "timeout"),
    ({"raise": WorkerDied("SIGSEGV")}, "crash"),
    ({"raise": WorkerDied("SIGABRT", "terminate called after throwing std::bad_alloc")}, "out_of_resources"),
    ({"raise when timed": WorkerTimeout("too slow")}, "timeout"),
    ({"raise when timed": WorkerDied("SIGSEGV")}, "crash"),
]


@pytest.mark.parametrize(("told", "status"), FAILURES)
def test_a_bad_candidate_costs_one_candidate_and_leaves_its_verdict(run, store: SqliteStore, told: Told, status: str) -> None:
    script = Script(taking({NATIVE: 0.5}, 0.8), telling({NATIVE: told}))
    found, seen = run(script)
    assert seen.failed == {status: 1}
    (row,) = rows(store, NATIVE)
    assert (row.status, row.samples_ms) == (status, ())
    lost = told.get("raise") or told.get("raise when timed")
    assert row.message == (str(lost) if lost else told["message"])
    assert plans(found)
    assert NATIVE not in plans(found)
    assert seen.measured == len(script.tried) - 1


@pytest.mark.parametrize(("told", "status"), FAILURES)
def test_a_process_that_is_lost_or_has_lost_its_device_is_replaced(run, told: Told, status: str) -> None:
    script = Script(verdict=telling({NATIVE: told}))
    run(script)
    lost = any(isinstance(value, WorkerDied | WorkerTimeout) for value in told.values()) or "sticky" in told
    assert len(script.workers) == 1 + lost
    assert [worker.alive for worker in script.workers] == [False] * len(script.workers), "the bench was closed"


def test_a_process_that_has_grown_too_much_is_replaced_and_its_candidate_measured(run, store: SqliteStore) -> None:
    script = Script(verdict=telling({NATIVE: {"resident_bytes": 4001}}))
    _, seen = run(script)
    assert len(script.workers) == 2
    assert seen.failed.total() == 0
    (row,) = rows(store, NATIVE)
    assert (row.status, len(row.samples_ms)) == ("ok", EFFORT.screen_samples)
    by_process = [request["process"] for request in script.asked("try")]
    grown = script.tried.index(NATIVE)
    assert by_process == [0] * (grown + 1) + [1] * (len(by_process) - grown - 1)


def test_a_verdict_is_not_asked_for_twice(run, store: SqliteStore) -> None:
    run(Script(taking({}, 0.9), telling({NATIVE: {"status": "compile_error", "message": "no"}})))
    before = len(rows(store))
    again = Script(taking({}, 0.9))
    found, seen = run(again)
    assert again.tried == []
    assert len(rows(store)) == before
    assert seen.failed == {"compile_error": 1}
    assert plans(found), "what was measured before still counts"


def test_a_verdict_under_another_policy_is_asked_for_again(run, store: SqliteStore) -> None:
    run(Script())
    cold = Script()
    run(cold, on=Bench(Policy.for_cpu(1, "cold"), 0))
    assert NATIVE in cold.tried


@pytest.mark.parametrize("status", ["wrong", "timeout", "crash"])
def test_what_is_in_quarantine_is_skipped_and_counted_unless_it_is_asked_for(run, store: SqliteStore, status: str) -> None:
    # Another ambient: what was seen there counts here, and was not measured here.
    elsewhere = resolved((GELU,))
    elsewhere = replace(elsewhere, query=query(ambient={"threads": 2}))
    run(Script(verdict=telling({NATIVE: {"status": status, "message": "no"}})), elsewhere)
    plain = Script(taking({NATIVE: 0.5}))
    found, seen = run(plain)
    assert NATIVE not in plain.tried
    assert NATIVE not in plans(found)
    assert (seen.refused, seen.failed) == ({"quarantined": 1}, {})
    retried = Script(taking({NATIVE: 0.5}))
    found, seen = run(retried, rules=replace(LISTED, retry=True))
    assert retried.tried == [NATIVE], "all else is known"
    assert NATIVE in plans(found)
    assert store.quarantined(query()) == {}


@pytest.mark.parametrize("told", [{"status": "wrong", "message": ""}, {"raise": WorkerTimeout("")}, {"raise": WorkerDied("")}])
def test_what_failed_here_is_counted_once_and_tried_again_on_request(run, store: SqliteStore, told: Told) -> None:
    run(Script(verdict=telling({NATIVE: told})))
    plain = Script()
    _, seen = run(plain)
    assert plain.tried == []
    assert (seen.failed.total(), seen.refused) == (1, {})
    retried = Script()
    _, seen = run(retried, rules=replace(LISTED, retry=True))
    assert retried.tried == [NATIVE]
    assert (seen.failed, seen.refused) == ({}, {})


@pytest.mark.parametrize("status", ["compile_error", "out_of_resources"])
def test_what_failed_without_harm_is_tried_again_on_the_same_request(run, store: SqliteStore, status: str) -> None:
    run(Script(verdict=telling({NATIVE: {"status": status, "message": "no"}})))
    assert store.quarantined(query()) == {}
    plain, retried = Script(), Script()
    _, seen = run(plain)
    assert (plain.tried, seen.failed) == ([], {status: 1})
    found, seen = run(retried, rules=replace(LISTED, retry=True))
    assert (retried.tried, seen.failed) == ([NATIVE], {})
    assert NATIVE in plans(found)


def test_what_was_measured_in_noise_is_measured_again_for_those_who_want_quiet(run, store: SqliteStore) -> None:
    careless = replace(EFFORT, patience=0)
    noisy = Script(taking({NATIVE: 0.5}), busy=lambda plans: "load 9.0" if NATIVE in plans else None)
    run(noisy, effort=careless, on=bench(patience=0))
    (row,) = rows(store, NATIVE)
    assert (row.status, row.provenance["conditions"]["busy"]) == ("ok", "load 9.0")
    again, careful = Script(), Script(taking({NATIVE: 0.9}))
    found, _ = run(again, effort=careless, on=bench(patience=0))
    assert (again.tried, NATIVE in plans(found)) == ([], True)
    found, seen = run(careful)
    assert careful.tried == [NATIVE]
    (best,) = [finalist for finalist in found.passed if finalist.candidate.plan == NATIVE]
    assert best.ratio == seen.best == pytest.approx(1 / 0.9), "what noise made of it is forgotten"


def test_what_was_right_when_screened_and_crashed_in_a_final_does_not_come_back(run, store: SqliteStore) -> None:
    run(Script(taking({NATIVE: 0.5})))
    (row,) = rows(store, NATIVE)
    store.add_measurement(replace(row, stage="final", status="crash", samples_ms=(), default_samples_ms=()))
    plain = Script()
    found, seen = run(plain)
    assert NATIVE not in plans(found)
    assert seen.refused == {"quarantined": 1}
    retried = Script(taking({NATIVE: 0.5}))
    found, _ = run(retried, rules=replace(LISTED, retry=True))
    assert retried.tried == [NATIVE]
    assert NATIVE in plans(found)


def test_a_grouping_that_comes_out_otherwise_is_refused_and_the_real_one_tried(run, store: SqliteStore) -> None:
    real = ((LEAVES[0],), (LEAVES[1],), LEAVES[2:])
    script = Script(verdict=telling({SPLIT: {"status": "not_realised", "message": "", "realised": real}}))
    _, seen = run(script)
    assert seen.refused == {"unreachable grouping": 1}
    assert script.tried.count(Plan(groups=real)) == 1
    assert SPLIT.groups not in [row.plan.groups for row in rows(store)]


@pytest.mark.parametrize("limit", [1, 3])
def test_trials_are_the_budget(run, limit: int) -> None:
    script = Script()
    run(script, effort=replace(EFFORT, trials=limit))
    assert len(script.tried) == limit


def test_seconds_are_the_budget(run, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("tuner.search.budget.time.monotonic", lambda: now[0])

    def verdict(plan: Plan) -> Told:
        now[0] += 4.0
        return {}

    def opening(graph: str) -> Told:
        now[0] += 1000.0
        return {}

    script = Script(verdict=verdict, opening=opening)
    run(script, effort=replace(EFFORT, seconds=10.0))
    assert len(script.tried) == 3, "opening the graph is nothing tried"


@pytest.mark.parametrize(("hanging", "tried"), [(1, 4), (100, 5)])
def test_a_candidate_that_hangs_does_not_use_up_the_seconds_of_the_others_unless_many_do(
    run, monkeypatch: pytest.MonkeyPatch, hanging: int, tried: int
) -> None:
    now, hung = [0.0], [0]
    monkeypatch.setattr("tuner.search.budget.time.monotonic", lambda: now[0])

    def verdict(plan: Plan) -> Told:
        hung[0] += 1
        now[0] += 9.0 if hung[0] <= hanging else 4.0
        return {"raise": WorkerTimeout("hangs")} if hung[0] <= hanging else {}

    script = Script(verdict=verdict)
    run(script, effort=replace(EFFORT, seconds=10.0))
    assert len(script.tried) == tried


def test_a_smaller_budget_does_not_forget_what_was_found(run) -> None:
    best = Plan(groups=list(single_splits(ONE_GROUP))[-1])
    run(Script(taking({best: 0.5}, 1.1)))
    found, seen = run(Script(), effort=replace(EFFORT, trials=1))
    assert best in plans(found)
    assert seen.best_plan == best.describe()


def test_more_memory_than_the_default_keeps_a_candidate_out_but_is_reported(run) -> None:
    script = Script(taking({NATIVE: 0.5}, 0.9), telling({NATIVE: {"peak_bytes": 1021}}))
    found, seen = run(script)
    assert NATIVE not in plans(found)
    assert seen.over_memory == (pytest.approx(2.0, rel=0.01), pytest.approx(1.021), NATIVE.describe())
    allowed, _ = run(Script(), effort=replace(EFFORT, memory_limit=1.1))
    assert NATIVE in plans(allowed)


def test_each_measurement_says_how_it_was_got(run, store: SqliteStore) -> None:
    script = Script(taking({}, 0.9))
    run(script)
    for row in rows(store):
        assert len(row.samples_ms) == len(row.default_samples_ms) == EFFORT.screen_samples
        assert row.policy == POLICY
        assert row.process == "scripted 0"
        assert {"date", "host", "load_1min", "tuner", "seed"} <= set(row.provenance)
        assert row.provenance["conditions"] == {"clock_mhz": 3000}
        assert row.realised
        assert row.code_key
    assert {request["seed"] for request in script.asked("open")} == {bench().seed}
    orders = [request["seed"] for request in script.asked("time")]
    assert len(set(orders)) == len(orders) > 1, "no stretch repeats another's order"


def test_a_failure_keeps_the_text_that_it_left(run, store: SqliteStore) -> None:
    told = {NATIVE: {"status": "crash", "message": "ValueError: no", "traceback": "Traceback (most recent call last)"}}
    run(Script(verdict=telling(told)))
    (row,) = rows(store, NATIVE)
    assert row.provenance["traceback"].startswith("Traceback")


def test_where_outputs_cannot_be_checked_only_groups_vary(run) -> None:
    script = Script(opening=lambda _: {"checkable": False})
    _, seen = run(script)
    assert script.tried
    assert all(plan == Plan(groups=plan.groups) for plan in script.tried)
    others = [candidate for candidate in listed(ONE_GROUP, (GELU,)) if candidate.plan not in script.tried]
    assert seen.refused == {"not checkable": len(others)}


def test_a_plan_that_the_measuring_process_refuses_is_counted_and_not_kept(run, store: SqliteStore) -> None:
    _, seen = run(Script(verdict=telling({NATIVE: {"status": "refused", "message": "random"}})))
    assert (seen.refused, seen.failed) == ({"not checkable": 1}, {})
    assert rows(store, NATIVE) == []


def test_the_stored_winner_is_tried_first(run, store: SqliteStore) -> None:
    last = Plan(groups=list(single_splits(ONE_GROUP))[-1])
    unknown = Plan(native=(GELU,), groups=SPLIT.groups)
    for incumbent in (last, unknown):
        store.record_winner(winner(query(), incumbent, groups=ONE_GROUP))
        script = Script()
        found, _ = run(script, effort=replace(EFFORT, trials=1), on=Bench(Policy.for_cpu(1, "cold"), 0))
        assert script.tried == [incumbent]
        assert found.incumbent == incumbent


def test_a_stored_winner_in_quarantine_is_not_tried(run, store: SqliteStore) -> None:
    store.record_winner(winner(query(), NATIVE, groups=ONE_GROUP))
    run(Script(verdict=telling({NATIVE: {"status": "wrong", "message": ""}})))
    script = Script()
    found, _ = run(script)
    assert NATIVE not in script.tried
    assert NATIVE not in plans(found)


def test_a_noisy_stretch_ends_the_workload_and_the_next_sweep_tries_the_candidate_again(run, store: SqliteStore) -> None:
    noisy = Script(taking({NATIVE: 0.5}), busy=lambda plans: "load 7.0" if NATIVE in plans else None)
    with pytest.raises(DeviceBusy, match=r"load 7\.0"):
        run(noisy)
    (row,) = rows(store, NATIVE)
    assert (row.status, row.message, row.samples_ms) == ("busy", "load 7.0", ())
    assert noisy.tried[-1] == NATIVE
    quiet = Script(taking({NATIVE: 0.5}))
    found, seen = run(quiet)
    assert quiet.tried[0] == NATIVE
    assert NATIVE in plans(found)
    assert seen.failed == {}


def test_without_patience_a_noisy_stretch_is_measured_all_the_same(run) -> None:
    script = Script(taking({NATIVE: 0.5}), busy=lambda plans: "load 7.0")
    found, seen = run(script, on=bench(patience=0))
    assert NATIVE in plans(found)
    assert seen.failed == {}
    assert {request["patience"] for request in script.asked("time")} == {0}


def test_patience_is_told_to_the_measuring_process(run) -> None:
    script = Script()
    run(script)
    assert {request["patience"] for request in script.asked("time")} == {EFFORT.patience}


def test_the_seconds_are_accounted_for(run, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("tuner.search.bench.time.monotonic", lambda: now[0])

    def passing(seconds: float) -> Told:
        now[0] += seconds
        return {}

    script = Script(
        verdict=lambda plan: passing(2.0) if plan != NATIVE else {**passing(3.0), "raise": WorkerDied("")},
        opening=lambda _: passing(10.0),
        busy=lambda plans: passing(1.0) or None,  # type: ignore[func-returns-value]
    )
    measuring = bench()
    run(script, on=measuring, effort=replace(EFFORT, seconds=10_000.0))
    tried = len(script.tried)
    assert measuring.seconds == {"compiling": 2 * 10.0 + 3.0 + 2.0 * (tried - 1), "measuring": 1.0 * (tried - 1)}


def test_a_space_of_ones_own_is_searched(run) -> None:
    given: list[tuple[Groups, frozenset[str]]] = []

    def space(groups: Groups, native: Any) -> list[Candidate]:
        given.append((groups, frozenset(native)))
        return [Candidate("only one", NATIVE)]

    script = Script()
    run(script, rules=Rules(space=space))
    assert script.tried == [NATIVE]
    assert given == [(ONE_GROUP, frozenset({GELU}))]
