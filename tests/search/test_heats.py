"""The race of one workload: who enters, in which process, what it leaves in the store, what becomes of those that fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from scripted import EFFORT, GELU, ONE_GROUP, POLICY, SILU, Script, Told, bench, progress, resolved
from stored import query

from tuner.cache.sqlite import SqliteStore
from tuner.errors import DeviceBusy, WorkerDied, WorkerTimeout
from tuner.measurement import Measurement
from tuner.plan import Plan
from tuner.search.bench import DEFAULT
from tuner.search.heats import preference, race, racers_of
from tuner.search.screened import Finalist, Screening
from tuner.search_spaces.space import Candidate

A, B, C = Plan(native=(GELU,)), Plan(native=(SILU,)), Plan(config=(("realize_reads_threshold", 2),))
BOTH = Plan(native=(GELU, SILU))


def finalist(plan: Plan, ratio: float) -> Finalist:
    times = {"samples_ms": (1.0 / ratio,) * 5, "default_samples_ms": (1.0,) * 5, "process": "the one that screened"}
    screened = Measurement(query(), POLICY, plan, "screen", "ok", realised=ONE_GROUP, peak_bytes=7, code_key=plan.key, **times)
    return Finalist(Candidate("made up", plan), screened, ratio)


def screening(*passed: Finalist, incumbent: Plan = DEFAULT) -> Screening:
    return Screening(resolved(), 1.0, ONE_GROUP, list(passed), incumbent=incumbent)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, store: SqliteStore) -> Callable[..., list[Finalist]]:
    def raced(script: Script, given: Screening, patience: int = EFFORT.patience) -> list[Finalist]:
        script.play(monkeypatch)
        with bench(1, patience) as measuring:
            return race(measuring, given, store, EFFORT, progress())

    return raced


def plans(found: Sequence[Finalist]) -> list[Plan]:
    return [one.candidate.plan for one in found]


def test_the_best_as_screened_enter_and_the_incumbent_however_slow_it_seemed() -> None:
    many = [finalist(Plan(config=(("realize_opcount_threshold", i),)), 1 + i / 100) for i in range(10)]
    given = screening(*many, finalist(A, 0.9), finalist(B, 0.9), incumbent=A)
    entered = plans(racers_of(given, replace(EFFORT, racers=4)))
    assert entered[0] == A, "of those that are alike it is preferred"
    assert set(entered[1:]) == {one.candidate.plan for one in many[-4:]}
    assert plans(racers_of(replace(given, incumbent=many[-1].candidate.plan), replace(EFFORT, racers=4))).count(A) == 0


def test_of_those_that_are_alike_the_simpler_is_preferred_then_the_key_decides() -> None:
    order = sorted([BOTH, A, B], key=lambda plan: preference(plan, Plan()))
    assert order == [*sorted([A, B], key=lambda plan: plan.key), BOTH]
    assert min([BOTH, A, B], key=lambda plan: preference(plan, BOTH)) == BOTH


def test_without_hope_there_is_no_race(run) -> None:
    script = Script()
    assert run(script, screening()) == []
    assert run(script, screening(finalist(A, 0.98), finalist(B, 0.5))) == []
    assert script.workers == []


def test_the_best_go_to_the_final_with_what_the_race_found(run) -> None:
    script = Script(lambda plan: {A: 0.8, B: 0.9, C: 0.7}[plan])
    found = run(script, screening(finalist(A, 1.5), finalist(B, 1.5), finalist(C, 1.01)))
    assert plans(found) == [C, A]
    assert [one.ratio for one in found] == [pytest.approx(1 / 0.7), pytest.approx(1 / 0.8)]


def test_what_seemed_fast_in_the_process_that_screened_has_to_be_so_in_another(run) -> None:
    assert run(Script(), screening(finalist(A, 1.6), finalist(B, 1.2))) == []


def test_all_run_side_by_side_on_data_of_their_own(run) -> None:
    script = Script(lambda plan: 0.9)
    run(script, screening(finalist(A, 1.2), finalist(B, 1.1)))
    assert {frozenset(keys) for keys in script.timed} == {frozenset((A.key, B.key))}
    assert {request["seed"] for request in script.asked("open")} == {bench(1).seed}
    orders = [request["seed"] for request in script.asked("time")]
    assert len(orders) == len(set(orders)) > 1, "each heat has an order of its own"
    assert sum(request["samples"] for request in script.asked("time")) == EFFORT.race_samples


def test_each_racer_leaves_a_measurement_with_the_defaults_samples_beside_its_own(run, store: SqliteStore) -> None:
    run(Script(lambda plan: {A: 0.8, B: 3.0}[plan]), screening(finalist(A, 1.2), finalist(B, 1.1)))
    rows = store.measurements(query().exact_key, "race")
    assert {row.plan for row in rows} == {A, B}
    for row in rows:
        assert len(row.samples_ms) == len(row.default_samples_ms) > 0
        assert (row.status, row.process, row.peak_bytes) == ("ok", "scripted 0", 7)
        assert row.provenance["conditions"] == {"clock_mhz": 3000}
        assert row.provenance["seed"] == bench(1).seed


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ({"status": "wrong", "message": "differs"}, "wrong"),
        ({"raise": WorkerDied("SIGSEGV")}, "crash"),
        ({"raise": WorkerTimeout("endless")}, "timeout"),
    ],
)
def test_one_that_fails_on_other_data_is_out_and_its_verdict_kept(run, store: SqliteStore, told: Told, status: str) -> None:
    script = Script(lambda plan: 0.8, lambda plan: told if plan == A else {})
    assert plans(run(script, screening(finalist(A, 1.5), finalist(B, 1.2)))) == [B]
    verdicts = {row.plan: row.status for row in store.measurements(query().exact_key, "race")}
    assert verdicts == {A: status, B: "ok"}
    assert set(store.quarantined(query())) == {A.key}


def test_where_all_fail_there_are_no_finalists(run, store: SqliteStore) -> None:
    script = Script(verdict=lambda plan: {"raise": WorkerDied("SIGSEGV")})
    assert run(script, screening(finalist(A, 1.5), finalist(B, 1.2))) == []
    assert script.timed == []


def test_many_that_kill_the_process_take_no_other_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    good = [Plan(config=(("realize_opcount_threshold", i),)) for i in range(4)]
    bad = [Plan(config=(("realize_opcount_threshold", i),)) for i in range(4, 8)]
    script = Script(verdict=lambda plan: {"raise": WorkerDied("SIGSEGV")} if plan in bad else {}).play(monkeypatch)
    with bench() as measuring:
        measuring.open(resolved())
        verdicts = measuring.prepare([(plan, None) for plan in (*good, *bad)])
        assert {key: verdict["status"] for key, verdict in verdicts.items()} == {
            **{plan.key: "ok" for plan in good},
            **{plan.key: "crash" for plan in bad},
        }
        assert measuring.live >= {plan.key for plan in good}
    assert [script.tried.count(plan) for plan in bad] == [1] * 4


def test_a_process_lost_in_the_race_leaves_the_order_of_the_screening(run, store: SqliteStore) -> None:
    told: dict[Plan, Told] = {A: {"raise when timed": WorkerDied("SIGSEGV")}, C: {"status": "wrong"}}
    script = Script(lambda plan: 0.8, lambda plan: told.get(plan, {}))
    found = run(script, screening(finalist(A, 1.1), finalist(B, 1.3), finalist(C, 1.5), finalist(BOTH, 1.001)))
    assert plans(found) == [B, A], "each was timed alone before; one that was wrong meanwhile is out"


def test_a_noisy_race_is_no_race(run, store: SqliteStore) -> None:
    with pytest.raises(DeviceBusy, match="load"):
        run(Script(lambda plan: 0.8, busy=lambda plans: "load 9.0"), screening(finalist(A, 1.2)))
    assert store.measurements(query().exact_key, "race") == []
    assert plans(run(Script(lambda plan: 0.8, busy=lambda plans: "load 9.0"), screening(finalist(A, 1.2)), patience=0)) == [A]
