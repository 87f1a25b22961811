"""Profiling candidates kernel by kernel: one over which the worker is lost costs itself only."""

from __future__ import annotations

from typing import Any

import pytest
from scripted import GELU, SILU, Script, bench, resolved

from tuner.errors import WorkerDied, WorkerTimeout
from tuner.plan import Plan
from tuner.search.bench import DEFAULT

A, B = Plan(native=(GELU,)), Plan(native=(SILU,))


def profiled(script: Script, monkeypatch: pytest.MonkeyPatch) -> Any:
    script.play(monkeypatch)
    with bench() as on:
        on.open(resolved())
        return on.profile([A, B], 3)


def test_kernels_of_the_default_and_each_plan_are_timed_in_one_request(monkeypatch):
    script = Script(lambda plan: 0.5 if plan == A else 2.0)
    told = profiled(script, monkeypatch)
    assert {key: times.total_ms for key, times in told.times.items()} == {DEFAULT.key: 1.0, A.key: 0.5, B.key: 2.0}
    assert len(script.asked("profile")) == 1
    assert (told.failed, told.conditions) == ({}, {"clock_mhz": 3000})


def test_a_plan_that_cannot_be_timed_has_a_verdict(monkeypatch):
    told = profiled(Script(profiled=lambda plan: {"status": "compile_error"} if plan == A else {}), monkeypatch)
    assert set(told.times) == {DEFAULT.key, B.key}
    assert told.failed == {A.key: {"status": "compile_error"}}


@pytest.mark.parametrize(("error", "status"), [(WorkerDied("ended"), "crash"), (WorkerTimeout("hangs"), "timeout")])
def test_one_over_which_the_worker_is_lost_costs_itself_only(monkeypatch, error, status):
    script = Script(profiled=lambda plan: {"raise": error} if plan == A else {})
    told = profiled(script, monkeypatch)
    assert set(told.times) == {DEFAULT.key, B.key}
    assert {key: verdict["status"] for key, verdict in told.failed.items()} == {A.key: status}
    assert len(script.workers) == 3


def test_a_worker_that_is_lost_over_the_default_is_no_plans_fault(monkeypatch):
    script = Script(profiled=lambda plan: {"raise": WorkerDied("ended")} if plan == DEFAULT else {})
    script.play(monkeypatch)
    with bench() as on:
        on.open(resolved())
        with pytest.raises(WorkerDied):
            on.profile([], 3)


def test_a_lost_device_replaces_the_worker(monkeypatch):
    script = Script(profiled=lambda plan: {"status": "crash", "sticky": True} if plan == A else {})
    script.play(monkeypatch)
    with bench() as on:
        on.open(resolved())
        assert on.profile([A], 1).failed[A.key]["status"] == "crash"
        assert on.try_plan(B, None, ())["status"] == "ok"
    assert len(script.workers) == 2


def test_what_of_a_profile_was_compiling_is_booked_as_that(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("tuner.search.bench.time.monotonic", lambda: now[0])

    def taking(plan: Plan) -> dict[str, Any]:
        # Compiled, then called.
        now[0] += 5.0 + 0.5
        return {"compile_s": 5.0}

    Script(profiled=taking).play(monkeypatch)
    with bench() as on:
        on.open(resolved())
        on.profile([A, B], 3)
        assert on.seconds == {"compiling": pytest.approx(15.0), "measuring": pytest.approx(1.5)}


def test_a_profile_over_which_the_worker_is_lost_was_compiling(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("tuner.search.bench.time.monotonic", lambda: now[0])

    def hanging(plan: Plan) -> dict[str, Any]:
        now[0] += 7.0
        return {"raise": WorkerTimeout("hangs")}

    Script(profiled=hanging).play(monkeypatch)
    with bench() as on:
        on.open(resolved())
        with pytest.raises(WorkerTimeout):
            on.profile([], 3)
        assert (on.seconds["compiling"], on.seconds["measuring"]) == (7.0, 0.0)
