"""Screening: what is tried, counted, kept, and put forward."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scripted import EFFORT, GELU, LEAVES, ONE_GROUP, POLICY, SILU, ScriptedBench, progress, resolved

from tuner.cache.sqlite import SqliteStore
from tuner.errors import WorkerDied, WorkerTimeout
from tuner.plan import Plan
from tuner.search.screen import screen
from tuner.search_spaces.fusion import no_fusion, single_splits
from tuner.search_spaces.inductor_knobs import KNOBS


@pytest.fixture
def store() -> SqliteStore:
    return SqliteStore(":memory:")


def test_the_whole_space_is_tried_once(store: SqliteStore) -> None:
    bench, seen = ScriptedBench(lambda plan: 1.0), progress()
    screen(bench, resolved((GELU, SILU)), store, EFFORT, seen)
    keys = [plan.key for plan in bench.tried]
    assert len(keys) == len(set(keys))
    assert Plan(groups=no_fusion(ONE_GROUP)) in bench.tried
    assert {Plan(native=(GELU,)), Plan(native=(SILU,))} <= set(bench.tried)
    assert {Plan(groups=groups) for groups in single_splits(ONE_GROUP)} <= set(bench.tried)
    assert {name for plan in bench.tried for name, _ in plan.config} == set(KNOBS)
    assert seen.measured == len(keys)


def test_the_fastest_goes_to_the_final_first(store: SqliteStore) -> None:
    times = {Plan(native=(GELU,)): 0.5, Plan(native=(SILU,)): 0.7}
    result = screen(ScriptedBench(lambda plan: times.get(plan, 1.2)), resolved((GELU, SILU)), store, EFFORT, progress())
    assert [finalist.candidate.plan for finalist in result.finalists] == [Plan(native=(GELU,)), Plan(native=(SILU,))]


def test_where_nothing_is_faster_nothing_goes_to_the_final(store: SqliteStore) -> None:
    assert screen(ScriptedBench(lambda plan: 1.3), resolved(), store, EFFORT, progress()).finalists == []


def test_equal_code_is_a_duplicate_and_is_not_measured(store: SqliteStore) -> None:
    bench = ScriptedBench(lambda plan: 1.0, lambda plan: {"code_key": "same"} if plan.config else {})
    seen = progress()
    screen(bench, resolved(), store, EFFORT, seen)
    configs = [plan for plan in bench.tried if plan.config]
    assert seen.duplicates == len(configs) - 1
    rows = store.measurements(resolved().query.exact_key)
    assert sum(bool(row.plan.config) for row in rows) == 1


def test_code_equal_to_the_defaults_is_a_duplicate(store: SqliteStore) -> None:
    seen = progress()
    screen(ScriptedBench(lambda plan: 0.1, lambda plan: {"code_key": "default"}), resolved(), store, EFFORT, seen)
    assert seen.measured == 0
    assert store.measurements(resolved().query.exact_key) == []


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ({"status": "wrong", "message": "differs"}, "wrong"),
        ({"status": "compile_error", "message": "g++ says no"}, "compile_error"),
        ({"raise": WorkerTimeout("too slow")}, "timeout"),
        ({"raise": WorkerDied("SIGSEGV")}, "crash"),
    ],
)
def test_a_bad_candidate_costs_one_candidate_and_leaves_its_verdict(store: SqliteStore, told: dict, status: str) -> None:
    bad = Plan(native=(GELU,))
    seen = progress()
    bench = ScriptedBench(lambda plan: 0.5 if plan == bad else 0.8, lambda plan: told if plan == bad else {})
    result = screen(bench, resolved((GELU,)), store, EFFORT, seen)
    assert seen.failed == {status: 1}
    (row,) = [row for row in store.measurements(resolved().query.exact_key) if row.plan == bad]
    assert (row.status, row.samples_ms) == (status, ())
    assert result.finalists
    assert bad not in [finalist.candidate.plan for finalist in result.finalists]


def test_a_verdict_is_not_asked_for_twice(store: SqliteStore) -> None:
    bad = Plan(native=(GELU,))
    told = {"status": "compile_error", "message": "no"}
    first = ScriptedBench(lambda plan: 0.9, lambda plan: told if plan == bad else {})
    screen(first, resolved((GELU,)), store, EFFORT, progress())
    rows = len(store.measurements(resolved().query.exact_key, "screen"))
    again, seen = ScriptedBench(lambda plan: 0.9), progress()
    result = screen(again, resolved((GELU,)), store, EFFORT, seen)
    assert bad not in again.tried
    assert len(store.measurements(resolved().query.exact_key, "screen")) == rows
    assert seen.failed == {"compile_error": 1}
    assert result.finalists, "what was measured before still counts"


def test_a_grouping_that_comes_out_otherwise_is_refused_and_the_real_one_tried(store: SqliteStore) -> None:
    asked = next(iter(single_splits(ONE_GROUP)))
    real = ((LEAVES[0],), (LEAVES[1],), LEAVES[2:])

    def verdict(plan: Plan) -> dict:
        return {"status": "not_realised", "message": "", "realised": real} if plan.groups == asked else {}

    bench, seen = ScriptedBench(lambda plan: 1.0, verdict), progress()
    screen(bench, resolved(), store, EFFORT, seen)
    assert seen.refused == {"unreachable grouping": 1}
    assert bench.tried.count(Plan(groups=real)) == 1
    assert asked not in [row.plan.groups for row in store.measurements(resolved().query.exact_key)]


@pytest.mark.parametrize("limit", [1, 3])
def test_trials_are_the_budget(store: SqliteStore, limit: int) -> None:
    bench = ScriptedBench(lambda plan: 1.0)
    screen(bench, resolved((GELU,)), store, replace(EFFORT, trials=limit), progress())
    assert len(bench.tried) == limit


def test_seconds_are_the_budget(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("tuner.search.screen.time.monotonic", lambda: now[0])

    def verdict(plan: Plan) -> dict:
        now[0] += 4.0
        return {}

    bench = ScriptedBench(lambda plan: 1.0, verdict)
    screen(bench, resolved((GELU,)), store, replace(EFFORT, seconds=10.0), progress())
    assert len(bench.tried) == 3


def test_more_memory_than_the_default_keeps_a_candidate_out_but_is_reported(store: SqliteStore) -> None:
    greedy = Plan(native=(GELU,))
    seen = progress()
    peaks = {greedy: {"peak_bytes": 1021}}
    bench = ScriptedBench(lambda plan: 0.5 if plan == greedy else 0.9, lambda plan: peaks.get(plan, {}))
    result = screen(bench, resolved((GELU,)), store, EFFORT, seen)
    assert greedy not in [finalist.candidate.plan for finalist in result.finalists]
    assert seen.over_memory is not None
    assert seen.over_memory[0] == pytest.approx(2.0, rel=0.01)
    allowed = screen(bench, resolved((GELU,)), store, replace(EFFORT, memory_limit=1.1), progress())
    assert allowed.finalists[0].candidate.plan == greedy


def test_each_measurement_says_how_it_was_got(store: SqliteStore) -> None:
    screen(ScriptedBench(lambda plan: 0.9), resolved((GELU,)), store, EFFORT, progress())
    for row in store.measurements(resolved().query.exact_key, "screen"):
        assert len(row.samples_ms) == len(row.default_samples_ms) == EFFORT.screen_samples
        assert row.policy == POLICY
        assert row.process
        assert {"date", "host", "load_1min", "tuner"} <= set(row.provenance)
        assert row.realised
        assert row.code_key


def test_a_racer_that_kills_the_worker_costs_only_itself(store: SqliteStore) -> None:
    good, bad = Plan(native=(GELU,)), Plan(native=(SILU,))
    first = ScriptedBench(lambda plan: {good: 0.6, bad: 0.5}.get(plan, 1.2))
    screen(first, resolved((GELU, SILU)), store, EFFORT, progress())
    told = {bad: {"raise": WorkerDied("SIGSEGV")}}
    later = ScriptedBench(lambda plan: {good: 0.6}.get(plan, 1.2), lambda plan: told.get(plan, {}))
    result = screen(later, resolved((GELU, SILU)), store, EFFORT, progress())
    assert [finalist.candidate.plan for finalist in result.finalists] == [good]


def test_with_again_what_hung_or_crashed_gets_another_chance(store: SqliteStore) -> None:
    plan = Plan(native=(GELU,))
    told = {plan: {"raise": WorkerTimeout("slow machine")}}
    screen(ScriptedBench(lambda plan: 0.9, lambda plan: told.get(plan, {})), resolved((GELU,)), store, EFFORT, progress())
    settled, again = ScriptedBench(lambda plan: 0.9), ScriptedBench(lambda plan: 0.9)
    screen(settled, resolved((GELU,)), store, EFFORT, progress())
    assert plan not in settled.tried
    screen(again, resolved((GELU,)), store, EFFORT, progress(), again=True)
    assert plan in again.tried


def test_a_smaller_budget_does_not_forget_what_was_found(store: SqliteStore) -> None:
    best = Plan(groups=list(single_splits(ONE_GROUP))[-1])
    screen(ScriptedBench(lambda plan: 0.5 if plan == best else 1.1), resolved(), store, EFFORT, progress())
    bench = ScriptedBench(lambda plan: 0.5 if plan == best else 1.1)
    result = screen(bench, resolved(), store, replace(EFFORT, trials=1), progress())
    assert [finalist.candidate.plan for finalist in result.finalists] == [best]
