"""Graphs with symbolic sizes: one plan that does no harm at any size at which it was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from scripted import EFFORT, GELU, ONE_CANDIDATE, POLICY, A, Script, resolved, taking

from tuner.cache.sqlite import SqliteStore
from tuner.measurement import Measurement
from tuner.plan import Plan
from tuner.search.final import interval, intervals_by_size
from tuner.search.screened import slower_at
from tuner.workers.limits import OPEN_S
from tuner.workers.process import START_S

SIZES = ((1,), (8,), (64,))
SYMBOLIC = replace(resolved((GELU,)), sizes=SIZES)
# Larger sizes take longer, whatever is done.
GROWING = {(1,): 1.0, (8,): 8.0, (64,): 64.0}


def at(ratios: dict[tuple[int, ...], float]) -> Callable[[Plan, tuple[int, ...]], float]:
    """Every plan is this many times as fast as the default at each size."""
    return lambda plan, size: GROWING[size] if plan.is_default else GROWING[size] / ratios[size]


def test_the_winner_is_measured_at_each_size_and_says_so(sweep: Callable[..., Any], store: SqliteStore) -> None:
    script = Script(at=at({(1,): 1.2, (8,): 1.0, (64,): 1.5}))
    (outcome,) = sweep(script, SYMBOLIC).outcomes
    winner = outcome.winner
    assert (winner.plan, winner.policy.sizes) == (A, SIZES)
    assert winner.speedup == pytest.approx((1.2 * 1.0 * 1.5) ** (1 / 3), rel=0.001)
    assert winner.default_ms == pytest.approx(8.0, rel=0.01)
    assert winner.default_ms / winner.winner_ms == pytest.approx(winner.speedup)
    by_size = winner.evidence["by_size"]
    assert [tuple(one["size"]) for one in by_size] == list(SIZES)
    assert [one["speedup"] for one in by_size] == pytest.approx([1.2, 1.0, 1.5], rel=0.001)
    assert [one["default_ms"] for one in by_size] == pytest.approx([1.0, 8.0, 64.0], rel=0.01)
    for one in by_size:
        assert one["speedup_low"] <= one["speedup"] <= one["speedup_high"]
    assert {request["policy"].get("sizes") for request in script.asked("open")} == {SIZES}


def test_each_stage_leaves_one_sample_of_each_size_for_each_round(sweep: Callable[..., Any], store: SqliteStore) -> None:
    sweep(Script(at=at({(1,): 1.2, (8,): 1.2, (64,): 1.2})), SYMBOLIC)
    rows = store.measurements(SYMBOLIC.query.exact_key)
    assert {row.stage for row in rows} == {"screen", "race", "final"}
    for row in rows:
        assert row.policy == replace(POLICY, sizes=SIZES)
        assert len(row.samples_ms) == len(row.default_samples_ms)
        for i, size in enumerate(SIZES):
            assert row.default_samples_ms[i::3] == pytest.approx([GROWING[size]] * (len(row.samples_ms) // 3), rel=0.01)
    assert {len(row.samples_ms) for row in rows if row.stage == "final"} == {3 * EFFORT.final_samples}


def test_a_plan_that_is_slower_at_one_size_is_out_when_screened_however_fast_it_is_at_others(
    run: Callable[..., Any], store: SqliteStore
) -> None:
    found, seen = run(Script(at=at({(1,): 2.0, (8,): 2.0, (64,): 0.95})), SYMBOLIC, rules=ONE_CANDIDATE)
    assert found.passed == []
    assert seen.refused["slower at a size"] == 1
    (row,) = store.measurements(SYMBOLIC.query.exact_key)
    assert slower_at(row) == (64,)
    assert found.default_ms == pytest.approx(8.0, rel=0.01), "the geometric mean"


def test_one_that_costs_less_than_noise_at_one_size_stays_in(run: Callable[..., Any]) -> None:
    found, seen = run(Script(at=at({(1,): 2.0, (8,): 2.0, (64,): 0.995})), SYMBOLIC, rules=ONE_CANDIDATE)
    assert [finalist.candidate.plan for finalist in found.passed] == [A]
    assert not seen.refused


def test_harm_at_one_size_that_only_the_final_sees_leaves_the_default(sweep: Callable[..., Any], store: SqliteStore) -> None:
    script = Script(at=at(dict.fromkeys(SIZES, 1.5)))

    def slower_in_finals(plan: Plan, size: tuple[int, ...]) -> float:
        final = len(script.workers) > 2
        return GROWING[size] / (1.0 if plan.is_default else 0.9 if final and size == (8,) else 1.5)

    script.at = slower_in_finals
    (outcome,) = sweep(script, SYMBOLIC).outcomes
    assert outcome.winner.kind == "default"
    assert outcome.winner.policy.sizes == SIZES
    finals = store.measurements(SYMBOLIC.query.exact_key, "final")
    assert len(finals) == EFFORT.looks[0], "a clear loss at one size needs no more processes"
    assert interval(finals, EFFORT).low > 1.01, "over all sizes it gains"
    assert [one.high < 0.99 for one in intervals_by_size(finals, EFFORT)] == [False, True, False]


@pytest.mark.parametrize(("peaks", "wins"), [([1000, 1000, 1019], True), ([1000, 1100, 500], False)])
def test_memory_counts_at_each_size(sweep: Callable[..., Any], store: SqliteStore, peaks: list[int], wins: bool) -> None:
    script = Script(lambda plan: 0.5, lambda plan: {"peak_bytes": peaks})
    (outcome,) = sweep(script, SYMBOLIC).outcomes
    assert (outcome.winner.kind == "plan") is wins
    row: Measurement = store.measurements(SYMBOLIC.query.exact_key)[0]
    assert (row.peak_bytes, row.default_peak_bytes) == (max(peaks), 1000)


def test_what_was_settled_at_other_sizes_is_searched_again(sweep: Callable[..., Any]) -> None:
    script = Script(taking({A: 0.5}))
    sweep(script, SYMBOLIC)
    trials = len(script.tried)
    sweep(script, SYMBOLIC)
    assert len(script.tried) == trials
    sweep(script, replace(SYMBOLIC, sizes=((2,), (4,))))
    assert len(script.tried) > trials


def test_a_stretch_at_three_sizes_may_take_three_times_as_long(sweep: Callable[..., Any]) -> None:
    alone, three = Script(taking({A: 0.5})), Script(taking({A: 0.5}))
    sweep(alone, resolved((GELU,), name="b"))
    sweep(three, SYMBOLIC)
    assert three.limits_s == pytest.approx([3 * limit for limit in alone.limits_s])
    assert set(alone.opening_limits_s) == {START_S + OPEN_S}
    assert set(three.opening_limits_s) == {START_S + 3 * OPEN_S}
