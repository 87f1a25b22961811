"""Kernel by kernel, what default and winner do: told with every winner, and never the reason for which a sweep fails."""

from __future__ import annotations

from typing import Any

import pytest
from scripted import EFFORT, GELU, LEAVES, A, Script, bench, resolved

from tuner.anatomy import Anatomy, KernelTimes
from tuner.cache.sqlite import SqliteStore
from tuner.errors import UnsupportedGraph, WorkerDied
from tuner.search import kernels
from tuner.search.bench import DEFAULT
from tuner.search.kernels import FINAL_S, LITTLE_S, kernels_of, kernels_of_loss


def told_of(script: Script, sweep: Any) -> dict[str, Any]:
    (outcome,) = sweep(script, resolved((GELU,))).outcomes
    assert outcome.progress.phase == "done"
    return outcome.winner.evidence.get("kernels", {})


def test_the_kernels_of_default_and_winner_are_told_as_the_last_process_has_them(sweep, store: SqliteStore) -> None:
    script = Script(lambda plan: 0.8)
    told = told_of(script, sweep)
    assert set(told) == {"default", "winner"}
    assert Anatomy.from_json(told["winner"]["anatomy"]).groups == (LEAVES,)
    assert KernelTimes.from_json(told["winner"]["times"]) == KernelTimes(((LEAVES, 0.8),), 0.0, 0.8)
    assert KernelTimes.from_json(told["default"]["times"]).total_ms == 1.0
    ((winner, _),) = store.winners()
    assert winner.evidence["kernels"] == told
    (asked,) = script.asked("profile")
    assert asked["process"] == 1 + EFFORT.looks[0]


@pytest.mark.parametrize(
    ("script", "process"),
    [
        pytest.param(Script(lambda plan: 1.5), 0, id="screened out"),
        pytest.param(Script(odd=lambda plan, process: 0.6 if process == 0 else 1.0), 1, id="lost the race"),
        pytest.param(Script(odd=lambda plan, process: 0.6 if process < 2 else 1.0), 1 + EFFORT.looks[0], id="lost the final"),
    ],
)
def test_where_the_default_wins_its_kernels_are_told_by_the_process_that_decided(sweep, script: Script, process: int) -> None:
    assert set(told_of(script, sweep)) == {"default"}
    (asked,) = script.asked("profile")
    assert (asked["process"], asked["plans"]) == (process, [])


@pytest.mark.parametrize(
    "fault",
    [
        {"anatomy": lambda plan: {"raise": WorkerDied("ended")} if plan == A else {}},
        {"anatomy": lambda plan: {"status": "refused"}},
        {"profiled": lambda plan: {"raise": UnsupportedGraph("settings", "no")}},
    ],
)
def test_a_sweep_that_cannot_tell_kernels_has_its_winner_all_the_same(sweep, fault: dict[str, Any]) -> None:
    assert told_of(Script(lambda plan: 0.8, **fault), sweep) == {}


@pytest.mark.parametrize("fault", [{"status": "refused", "message": "on the CPU only yet"}, {"raise": WorkerDied("ended")}])
def test_where_kernels_cannot_be_timed_one_by_one_the_anatomies_are_told(sweep, fault: dict[str, Any]) -> None:
    told = told_of(Script(lambda plan: 0.8, profiled=lambda plan: fault), sweep)
    assert {name: set(one) for name, one in told.items()} == {"default": {"anatomy"}, "winner": {"anatomy"}}


def test_of_too_many_leaves_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script().play(monkeypatch)
    with bench() as on:
        on.open(resolved())
        assert set(kernels_of(on, DEFAULT)) == {"default"}
        monkeypatch.setattr(kernels, "MAX_LEAVES", len(LEAVES) - 1)
        assert kernels_of(on, DEFAULT) == {}
    assert len(script.asked("profile")) == 1


def test_where_nothing_came_near_the_default_its_kernels_are_worth_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script().play(monkeypatch)
    with bench() as on:
        on.open(resolved())
        assert kernels_of_loss(on, 10.0) == {}, "the seconds are as good as used up"
        assert not script.asked("anatomy")
        assert set(kernels_of_loss(on, 25.0)) == {"default"}
        assert set(kernels_of_loss(on, 1000.0)) == {"default"}
        monkeypatch.setattr(kernels, "FEW_KERNELS", 0)
        assert kernels_of_loss(on, 1000.0) == {}, "there are too many"
        on.close()
        monkeypatch.undo()
        assert kernels_of_loss(on, 1000.0) == {}, "the graph is not open any more"
    short, long = script.asked("profile")
    assert short["limit_s"] <= 25.0
    assert 25.0 < long["limit_s"] <= LITTLE_S


def test_kernels_that_take_too_long_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("tuner.search.bench.time.monotonic", lambda: now[0])

    def slowly(plan: Any) -> dict[str, Any]:
        now[0] += 0.6 * FINAL_S
        return {}

    script = Script(anatomy=slowly).play(monkeypatch)
    with bench() as on:
        on.open(resolved())
        assert {name: set(one) for name, one in kernels_of(on, A).items()} == {"default": {"anatomy"}, "winner": {"anatomy"}}
    assert [request["limit_s"] <= FINAL_S for request in script.asked("anatomy")] == [True, True]
    assert not script.asked("profile")


def test_a_sweep_whose_seconds_are_used_up_times_no_kernels_of_a_default_that_won(sweep, monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr("tuner.search.bench.time.monotonic", lambda: now[0])

    def tried(plan: Any) -> dict[str, Any]:
        now[0] += EFFORT.seconds + 1
        return {}

    script = Script(lambda plan: 1.5, tried)
    assert told_of(script, sweep) == {}
    assert not script.asked("profile")
