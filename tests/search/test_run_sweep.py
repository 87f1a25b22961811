"""A whole sweep by a script: which process does what, what is held, what one failing workload costs, what is recorded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from numpy.linalg import LinAlgError
from scripted import EFFORT, GELU, ONE_CANDIDATE, POLICY, A, Script, Told, listed, resolved
from stored import query, winner

from tuner.cache.sqlite import SqliteStore
from tuner.errors import DeviceBusy, UnsupportedGraph, WorkerDied, WorkerTimeout, one_line
from tuner.measurement import Policy
from tuner.plan import Plan
from tuner.search.rules import MAX_JOBS
from tuner.search.screen import screen
from tuner.search.sweep import plan_sweep, run_sweep
from tuner.search_spaces.space import Candidate
from tuner.workers.limits import WARM_UP_SAMPLES
from tuner.workers.process import CHILD
from tuner.workload.graph import Node


def faster(**others: Any) -> Script:
    return Script(lambda plan: 0.8, **others)


def test_screening_race_and_final_are_in_different_processes_on_different_data(sweep, store: SqliteStore) -> None:
    script = faster()
    (outcome,) = sweep(script, resolved((GELU,))).outcomes
    assert (outcome.winner.plan, outcome.generation, outcome.progress.phase) == (A, 1, "done")
    by_stage = {
        stage: {(row.process, row.provenance["seed"]) for row in store.measurements(query().exact_key, stage)}
        for stage in ("screen", "race", "final")
    }
    assert [len(found) for found in by_stage.values()] == [1, 1, EFFORT.looks[0]]
    processes, seeds = zip(*(pair for found in by_stage.values() for pair in found), strict=True)
    assert len(set(processes)) == len(set(seeds)) == 2 + EFFORT.looks[0]


def test_the_speed_up_that_is_told_comes_of_the_final_alone(sweep) -> None:
    script = Script(lambda plan: 0.8, odd=lambda plan, process: 1.0 if process > 1 else 0.5)
    (outcome,) = sweep(script, resolved((GELU,))).outcomes
    assert outcome.winner.speedup == outcome.progress.best == pytest.approx(1.25)


def test_what_is_fast_in_the_first_process_only_wins_nothing(sweep) -> None:
    script = Script(odd=lambda plan, process: 0.6 if process == 0 else 1.0)
    (outcome,) = sweep(script, resolved((GELU,))).outcomes
    assert outcome.winner.kind == "default"
    assert outcome.progress.best == 1.0
    assert len(script.workers) == 2, "and costs no final"


def test_the_device_is_held_while_anything_is_measured(monkeypatch: pytest.MonkeyPatch, store: SqliteStore) -> None:
    events: list[str] = []
    script = faster().play(monkeypatch)
    told: list[str] = []

    @contextmanager
    def hold(name: str, wait: Callable[[str], None]) -> Any:
        wait("device cpu is held by 1")
        events.append(f"hold {name}")
        yield
        assert not any(worker.alive for worker in script.workers)
        events.append("release")

    monkeypatch.setattr("tuner.search.sweep.hold_device", hold)
    start = script._start

    def starting(*args: Any, **kwargs: Any) -> Any:
        events.append("start")
        return start(*args, **kwargs)

    monkeypatch.setattr("tuner.search.bench.Worker", starting)
    asked = [resolved((GELU,))]
    run_sweep(plan_sweep(asked, EFFORT, lambda: None), store, POLICY, EFFORT, False, ONE_CANDIDATE, told.append)
    assert events == ["hold cpu", *["start"] * 5, "release"]
    assert told == ["device cpu is held by 1"]


def test_what_is_settled_is_neither_measured_nor_waited_for(sweep, devices: list[str]) -> None:
    won = sweep(faster(), resolved((GELU,))).outcomes[0].winner
    devices.clear()
    script = faster()
    (outcome,) = sweep(script, resolved((GELU,))).outcomes
    assert (script.workers, devices) == ([], [])
    assert (outcome.winner, outcome.generation, outcome.progress.phase) == (won, 1, "settled")
    again = faster()
    assert sweep(again, resolved((GELU,)), again=True).outcomes[0].generation == 2
    assert again.workers


def test_a_larger_effort_than_the_settled_one_searches_again(sweep) -> None:
    sweep(faster(), resolved((GELU,)), effort=replace(EFFORT, name="normal"))
    for name, searches in (("quick", False), ("normal", False), ("full", True), ("custom", True)):
        script = faster()
        sweep(script, resolved((GELU,)), effort=replace(EFFORT, name=name))
        assert bool(script.workers) == searches


def test_a_winner_under_another_policy_settles_nothing(sweep) -> None:
    sweep(faster(), resolved((GELU,)))
    script = faster()
    (outcome,) = sweep(script, resolved((GELU,)), policy=Policy.for_cpu(1, "cold")).outcomes
    assert script.tried
    assert outcome.winner.policy.cache == "cold"


def test_what_was_measured_on_a_busy_machine_settles_nothing_for_those_who_want_a_quiet_one(sweep) -> None:
    careless = replace(EFFORT, patience=0)
    first = sweep(faster(busy=lambda plans: "load 9.0"), resolved((GELU,)), effort=careless).outcomes[0].winner
    assert (first.plan, first.evidence["busy"]) == (A, "load 9.0")
    script = faster()
    assert sweep(script, resolved((GELU,)), effort=careless).outcomes[0].progress.phase == "settled"
    assert script.workers == []
    (outcome,) = sweep(script, resolved((GELU,))).outcomes
    assert script.workers
    assert "busy" not in outcome.winner.evidence


def test_a_default_that_was_settled_in_noise_settles_nothing_either(sweep) -> None:
    noisy = Script(busy=lambda plans: "load 9.0")
    (outcome,) = sweep(noisy, resolved((GELU,)), effort=replace(EFFORT, patience=0)).outcomes
    assert (outcome.winner.kind, outcome.winner.evidence["busy"]) == ("default", "load 9.0")
    (outcome,) = sweep(faster(), resolved((GELU,))).outcomes
    assert (outcome.winner.plan, "busy" in outcome.winner.evidence) == (A, False)


def test_who_wants_the_quarantined_tried_again_wants_the_settled_searched_again(sweep) -> None:
    rules = replace(ONE_CANDIDATE, retry=True)
    sweep(faster(verdict=lambda plan: {"raise": WorkerDied("SIGSEGV")}), resolved((GELU,)))
    script = faster()
    assert sweep(script, resolved((GELU,)), rules=rules).outcomes[0].winner.plan == A


def test_equal_graphs_are_tuned_once_and_all_told(sweep) -> None:
    script = faster()
    outcomes = sweep(script, resolved((GELU,)), resolved((GELU,), spec="made.py:other")).outcomes
    assert len(script.asked("open")) == 2 + EFFORT.looks[0]
    assert outcomes[0].winner == outcomes[1].winner
    assert outcomes[0].generation == outcomes[1].generation == 1


@pytest.mark.parametrize("stage", ["screening", "race", "final"])
def test_a_machine_that_gets_busy_fails_the_workload_without_settling_it(sweep, store: SqliteStore, stage: str) -> None:
    process = ["screening", "race", "final"].index(stage)

    def busy(plans: Any) -> str | None:
        return "load 9.0" if (script.workers[-1].number, script.workers[-1].graph) == (process, "loud") else None

    script = faster(busy=busy)
    loud, quiet = sweep(script, resolved((GELU,), "loud"), resolved((GELU,), "quiet")).outcomes
    assert isinstance(loud.error, DeviceBusy)
    assert "load 9.0" in str(loud.error)
    assert (loud.winner, loud.progress.phase) == (None, "failed")
    assert store.winner(query("loud").exact_key) is None
    assert (quiet.error, quiet.winner.plan) == (None, A)
    again = faster()
    (retried,) = sweep(again, resolved((GELU,), "loud")).outcomes
    assert retried.winner.plan == A
    screened_again = [request for request in again.asked("time") if request["samples"] == EFFORT.screen_samples]
    assert len(screened_again) == (stage == "screening"), "what was measured in quiet is not measured again"


@pytest.mark.parametrize("error", [WorkerTimeout("no answer"), UnsupportedGraph("unchecked", "differs from eager")])
@pytest.mark.parametrize("process", [0, 1, 2])
def test_a_graph_whose_default_fails_fails_alone(sweep, store: SqliteStore, error: Exception, process: int) -> None:
    def opening(graph: str) -> Told:
        return {"raise": error} if graph == "odd" and script.workers[-1].number >= process else {}

    script = faster(opening=opening)
    odd, good = sweep(script, resolved((GELU,), "odd"), resolved((GELU,), "good")).outcomes
    assert odd.error is error
    assert (odd.winner, good.winner.plan) == (None, A)
    assert store.winner(query("odd").exact_key) is None


@pytest.mark.parametrize("error", [LinAlgError("Singular matrix"), ZeroDivisionError("division by zero")])
def test_a_search_that_cannot_compute_costs_the_other_workloads_nothing(
    sweep, store: SqliteStore, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def screening(bench: Any, pool: Any, graph: Any, *more: Any) -> Any:
        found = screen(bench, pool, graph, *more)
        if graph.query == query("b"):
            raise error
        return found

    monkeypatch.setattr("tuner.search.sweep.screen", screening)
    good, bad = sweep(faster(), resolved((GELU,), "a"), resolved((GELU,), "b")).outcomes
    assert (good.winner.plan, good.progress.phase, good.error) == (A, "done", None)
    assert (bad.winner, bad.progress.phase) == (None, "failed")
    assert str(bad.error) == f"the search could not compute what to try next: {one_line(error)}"
    assert store.measurements(query("b").exact_key, "screen"), "what was measured is there for the next sweep"


def test_an_interrupted_sweep_leaves_no_process_and_keeps_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, store: SqliteStore, devices: list[str]
) -> None:
    def busy(plans: Any) -> str | None:
        if len(script.asked("time")) == 3:
            raise KeyboardInterrupt
        return None

    script = faster(busy=busy).play(monkeypatch)
    plan = plan_sweep([resolved((GELU,))], EFFORT, lambda: None)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(plan, store, POLICY, EFFORT, False, replace(ONE_CANDIDATE, space=listed))
    assert not any(worker.alive for worker in script.workers)
    assert len(store.measurements(query().exact_key, "screen")) == 2
    assert plan.outcomes[0].winner is None


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The compile pools that were made, each as (threads, size, device, module); they leave all to the measuring process."""
    made: list[Any] = []

    class Pool:
        def __init__(self, threads: int, size: int, device: str = "cpu", module: str = ""):
            made.append((threads, size, device, module))
            self.size = size

        def open(self, request: Told) -> None: ...

        def compile(self, wanted: Any, seen_codes: Any, default: Any) -> Any:
            return ((plan, None) for plan, _, _ in wanted)

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr("tuner.search.sweep.CompilePool", Pool)
    return made


@pytest.mark.parametrize(("jobs", "made"), [(1, []), (3, [(POLICY.threads, 3, "cpu", CHILD)])])
def test_a_pool_compiles_ahead_where_there_are_several_jobs(sweep, pools: list[Any], jobs: int, made: list[Any]) -> None:
    (outcome,) = sweep(faster(), resolved((GELU,)), rules=replace(ONE_CANDIDATE, jobs=jobs)).outcomes
    assert pools == made
    assert outcome.winner.plan == A


@pytest.mark.parametrize(("cores", "size"), [(3, 3), (200, MAX_JOBS)])
def test_where_nothing_is_said_there_is_a_job_for_each_core_that_this_process_may_use(
    sweep, pools: list[Any], monkeypatch: pytest.MonkeyPatch, cores: int, size: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)))
    sweep(faster(), resolved((GELU,)), rules=replace(ONE_CANDIDATE, jobs=None))
    assert [made[1] for made in pools] == [size]


def test_the_pool_compiles_for_the_device_that_measures(
    sweep, pools: list[Any], devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.search.sweep.lock_name", lambda device: f"the lock of {device}")
    asked = resolved((GELU,))
    on_gpu = Node("input", "", [], {}, ["float32", [4], [1], "cuda"])
    asked = replace(asked, graph=replace(asked.graph, nodes=(on_gpu,), order=(0,)))
    sweep(faster(), asked, rules=replace(ONE_CANDIDATE, jobs=2))
    assert [made[2] for made in pools] == [asked.device]
    assert asked.device.startswith("cuda")
    assert devices == [f"the lock of {asked.device}"]


def test_the_seconds_of_a_sweep_are_compiling_measuring_and_idle(sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    for module in ("sweep", "bench"):
        monkeypatch.setattr(f"tuner.search.{module}.time.monotonic", lambda: now[0])

    def passing(seconds: float) -> Any:
        now[0] += seconds
        return {}

    script = Script(
        lambda plan: 0.8,
        lambda plan: passing(2.0),
        opening=lambda graph: passing(10.0),
        busy=lambda plans: passing(1.0) or None,
    )
    swept = sweep(script, resolved((GELU,)), resolved((GELU,), spec="made.py:other"))
    swept.started, processes = 1000.0, 2 + EFFORT.looks[0]
    assert swept.spent == {"compiling": 12.0 * processes, "measuring": float(len(script.asked("time"))), "idle": 0.0}
    now[0] += 5.0
    assert swept.spent["idle"] == 5.0, "equal graphs are counted once"
    assert sum(swept.spent.values()) == swept.seconds
    (kept,) = {outcome.winner.evidence["seconds"]["compiling"] for outcome in swept.outcomes}
    assert kept == 12.0 * processes
    assert swept.finals_s == float(EFFORT.looks[0]), "one stretch in each of its processes"


def test_the_incumbent_stays_where_another_is_no_better(sweep, store: SqliteStore) -> None:
    """Repeated sweeps agree: of equals the one that won before wins again."""
    plans = [Plan(config=(("realize_opcount_threshold", value),)) for value in range(1, 6)]
    rules = replace(ONE_CANDIDATE, space=lambda groups, native: [Candidate("equal", plan) for plan in plans])
    first = sweep(faster(), resolved((GELU,)), rules=rules).outcomes[0].winner
    assert first.kind == "plan"
    for turned in (plans[::-1], plans[2:] + plans[:2]):
        other = replace(rules, space=lambda groups, native, turned=turned: [Candidate("equal", plan) for plan in turned])
        assert sweep(faster(), resolved((GELU,)), again=True, rules=other).outcomes[0].winner.plan == first.plan
    store.record_winner(replace(first, plan=plans[-1]))
    assert sweep(faster(), resolved((GELU,)), again=True, rules=rules).outcomes[0].winner.plan == plans[-1]


def test_a_candidate_that_died_costs_itself(sweep) -> None:
    script = faster(verdict=lambda plan: {"raise": WorkerDied("SIGSEGV")})
    (outcome,) = sweep(script, resolved((GELU,))).outcomes
    assert (outcome.winner.kind, outcome.error) == ("default", None)
    assert outcome.progress.failed == {"crash": 1}


def test_who_was_timed_before_is_waited_for_no_longer_than_that_took(sweep) -> None:
    """A hang in the race or in a final costs minutes, not the 50 times that an unknown candidate may take."""

    def opening(graph: str) -> Told:
        return {"call_s": 1.0}

    script = faster(opening=opening)
    sweep(script, resolved((GELU,)))
    asked = zip(script.limits_s, script.asked("time"), strict=True)
    screened, *known = [limit_s / (request["samples"] + WARM_UP_SAMPLES) for limit_s, request in asked]
    assert len(known) > EFFORT.looks[0]
    assert max(known) < screened / 2


def test_seconds_that_end_before_anything_is_tried_settle_nothing(sweep, store: SqliteStore) -> None:
    store.record_winner(winner(query()))
    script = faster()
    (outcome,) = sweep(script, resolved((GELU,)), effort=replace(EFFORT, seconds=-1.0), again=True).outcomes
    assert (script.tried, outcome.winner, outcome.progress.phase) == ([], None, "failed")
    assert "before any candidate was tried: nothing is settled" in str(outcome.error)
    assert store.winner(query().exact_key) == (winner(query()), 1), "what won before still does"


def test_seconds_that_end_before_anything_new_is_tried_settle_what_was_tried_before(sweep, store: SqliteStore) -> None:
    sweep(faster(), resolved((GELU,)))
    (outcome,) = sweep(faster(), resolved((GELU,)), effort=replace(EFFORT, seconds=-1.0), again=True).outcomes
    assert (outcome.error, outcome.winner.plan) == (None, A)
