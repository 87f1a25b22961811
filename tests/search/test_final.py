"""The final: how many processes it takes, and what it concludes from its measurements: promise 1."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from scripted import EFFORT, GELU, ONE_GROUP, POLICY, SILU, Script, Told, resolved
from stored import query

from tuner.cache.sqlite import SqliteStore
from tuner.errors import DeviceBusy, UnsupportedGraph, WorkerDied, WorkerTimeout
from tuner.measure.statistics import speedup_of
from tuner.measurement import Measurement, Winner
from tuner.plan import Plan
from tuner.search.bench import DEFAULT
from tuner.search.effort import EFFORTS, Effort
from tuner.search.final import Evidence, conclude, interval, run_finals
from tuner.search.race import ALIKE
from tuner.search.rules import SEED, Rules
from tuner.search.screened import Finalist, Screening
from tuner.search_spaces.space import Candidate

A, B, BOTH = Plan(native=(GELU,)), Plan(native=(SILU,)), Plan(native=(GELU, SILU))
LOOKS = EFFORT.looks


def rows(plan: Plan, ratios: Sequence[float], noise: float = 0.005, peak: int = 1000, seed: int = 0) -> list[Measurement]:
    """One final measurement per process, the candidate `ratio` times as fast in it."""
    generator = random.Random(seed)
    made = []
    for process, ratio in enumerate(ratios):
        default = tuple(2.0 * generator.gauss(1, noise) for _ in range(40))
        mine = tuple(2.0 / ratio * generator.gauss(1, noise) for _ in range(40))
        row = Measurement(query(), POLICY, plan, "final", "ok", samples_ms=mine, default_samples_ms=default, realised=ONE_GROUP)
        made.append(replace(row, peak_bytes=peak, default_peak_bytes=1000, process=str(process)))
    return made


def evidence_of(*finals: list[Measurement], incumbent: Plan = DEFAULT) -> Evidence:
    screening = Screening(resolved(), 2.0, ONE_GROUP, incumbent=incumbent)
    evidence = Evidence(screening)
    for measurements in finals:
        plan = measurements[0].plan
        screening.finalists.append(Finalist(Candidate("made up", plan), measurements[0], 1.5))
        evidence.measurements[plan.key] = measurements
    return evidence


def winner_of(*finals: list[Measurement], incumbent: Plan = DEFAULT, effort: Effort = EFFORT) -> Winner:
    evidence = evidence_of(*finals, incumbent=incumbent)
    return conclude(evidence.screening, evidence, POLICY, effort, {"measuring": 1.23456})


def test_a_clear_winner_is_named_with_its_interval() -> None:
    won = winner_of(rows(A, (1.2, 1.201, 1.199)))
    assert (won.kind, won.plan, won.groups) == ("plan", A, ONE_GROUP)
    assert 1.01 < won.speedup_low < won.speedup < won.speedup_high
    assert won.speedup == pytest.approx(1.2, rel=0.01)
    assert won.default_ms / won.winner_ms == pytest.approx(1.2, rel=0.02)


@pytest.mark.parametrize(
    "ratios",
    [(1.0, 1.0, 1.0), (1.005, 1.006, 1.004), (1.6, 1.0, 1.0), (1.3, 1.3, 0.97), (0.8, 0.8, 0.8), (1.06, 1.03, 1.02), (1.0,) * 8],
)
def test_what_is_not_faster_beyond_noise_is_no_winner(ratios: tuple[float, ...]) -> None:
    won = winner_of(rows(A, ratios))
    assert (won.kind, won.plan) == ("default", Plan())
    assert (won.speedup, won.speedup_low, won.speedup_high) == (1.0, 1.0, 1.0)
    assert won.winner_ms == won.default_ms


def test_identical_code_that_ran_at_1_61_in_one_process_of_eight_is_no_winner() -> None:
    assert winner_of(rows(A, (1.61, *[1.0] * 7))).kind == "default"


def test_a_real_gain_outlives_one_odd_process_of_eight() -> None:
    assert winner_of(rows(A, (*[1.05] * 7, 0.45))).plan == A


def test_one_that_was_measured_in_fewer_processes_than_a_look_takes_is_no_winner() -> None:
    assert winner_of(rows(A, (1.5, 1.5))).kind == "default"
    assert winner_of(rows(A, (1.5,) * 4)).kind == "default"


def test_one_that_failed_in_one_process_is_no_winner() -> None:
    good = rows(A, (1.5, 1.5, 1.5))
    bad = replace(good[2], status="wrong", samples_ms=(), default_samples_ms=())
    assert winner_of([*good[:2], bad]).kind == "default"


def test_a_candidate_that_needs_more_memory_is_no_winner() -> None:
    assert winner_of(rows(A, (1.5, 1.5, 1.5), peak=1021)).kind == "default"
    assert winner_of(rows(A, (1.5, 1.5, 1.5), peak=1019)).kind == "plan"
    assert winner_of(rows(A, (1.5, 1.5, 1.5), peak=1999), effort=replace(EFFORT, memory_limit=2.0)).kind == "plan"


def test_of_two_the_faster_wins_if_it_is_sure() -> None:
    slow, fast, erratic = rows(A, (1.2, 1.2, 1.2)), rows(B, (1.3, 1.3, 1.3)), rows(B, (1.9, 1.2, 1.2))
    for finals in ((slow, fast), (fast, slow)):
        assert winner_of(*finals).plan == B
    assert winner_of(slow, erratic).plan == A


def test_of_those_that_are_alike_the_incumbent_wins_then_the_simpler_then_the_key_decides() -> None:
    step = 1 + ALIKE / 3
    rich, simple = rows(BOTH, (1.2 * step,) * 3, seed=1), rows(A, (1.2,) * 3, seed=2)
    same = rows(B, (1.2,) * 3, seed=3)
    assert winner_of(rich, simple).plan == A
    assert winner_of(rich, simple, incumbent=BOTH).plan == BOTH
    assert winner_of(simple, same).plan == winner_of(same, simple).plan == min((A, B), key=lambda plan: plan.key)
    much = rows(BOTH, (1.3,) * 3, seed=1)
    assert winner_of(much, simple, incumbent=A).plan == BOTH, "no incumbent wins that is slower"


def test_each_bound_may_fail_as_rarely_as_all_finalists_and_looks_together_demand() -> None:
    assert EFFORT.final_error == pytest.approx(0.025 / (EFFORT.finalists * len(LOOKS)))
    for effort in EFFORTS.values():
        assert effort.final_error * effort.finalists * len(effort.looks) == pytest.approx(0.025)
        assert effort.looks[0] >= 3, "promise 1: at least three processes"
    made = rows(A, (1.2, 1.21, 1.19))
    pairs = [(row.default_samples_ms, row.samples_ms) for row in made]
    assert interval(made, EFFORT) == speedup_of(pairs, EFFORT.final_error)
    assert interval(made, EFFORT).low < speedup_of(pairs).low


def test_without_finalists_the_default_is_settled() -> None:
    won = conclude(Screening(resolved(), 3.0, ONE_GROUP), None, POLICY, EFFORT, {})
    assert (won.kind, won.default_ms, won.winner_ms, won.effort) == ("default", 3.0, 3.0, "quick")


def test_the_evidence_tells_each_process_apart_and_what_was_spent() -> None:
    won = winner_of(rows(A, (1.2, 1.21, 1.19)), rows(B, (1.1,) * 3))
    assert won.evidence["processes"] == 3
    assert [round(value, 2) for value in won.evidence["speedup_by_process"]] == pytest.approx([1.2, 1.21, 1.19], abs=0.011)
    assert won.evidence["finalists"] == [A.describe(), B.describe()]
    assert won.evidence["seconds"] == {"measuring": 1.235}


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch, store: SqliteStore) -> Callable[..., dict[str, Evidence]]:
    """Holds the final of A and B over each graph that is named, by a script."""

    def held(
        script: Script, *names: str, plans: Sequence[Plan] = (A, B), effort: Effort = EFFORT, rules: Rules | None = None
    ) -> dict[str, Evidence]:
        script.play(monkeypatch)
        screenings = []
        for name in names or ("a",):
            made = Screening(resolved(name=name), 2.0, ONE_GROUP)
            made.finalists = [Finalist(Candidate("made up", plan), rows(plan, (1.5,))[0], 1.5) for plan in plans]
            screenings.append(made)
        seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        by_key = run_finals(screenings, store, POLICY, effort, lambda _: None, seconds, rules)
        assert {script.workers.index(worker) for worker in script.workers if worker.alive} == set()
        return {name: by_key[query(name).exact_key] for name in names or ("a",)}

    return held


def statuses(item: Evidence, plan: Plan) -> list[str]:
    return [row.status for row in item.measurements.get(plan.key, [])]


def test_a_final_that_is_clear_ends_at_the_first_look(hold, store: SqliteStore) -> None:
    item = hold(Script(lambda plan: 0.7))["a"]
    assert statuses(item, A) == statuses(item, B) == ["ok"] * LOOKS[0]
    kept = store.measurements(query().exact_key, "final")
    assert len(kept) == 2 * LOOKS[0]
    assert len({row.process for row in kept}) == LOOKS[0]
    assert {len(row.samples_ms) for row in kept} == {len(row.default_samples_ms) for row in kept} == {EFFORT.final_samples}


@pytest.mark.parametrize("ms", [1.0, 1.3, 0.995])
def test_what_is_without_hope_ends_at_the_first_look(hold, ms: float) -> None:
    item = hold(Script(lambda plan: ms))["a"]
    assert statuses(item, A) == ["ok"] * LOOKS[0]
    assert conclude(item.screening, item, POLICY, EFFORT, {}).kind == "default"


def test_a_real_winner_that_processes_disagree_on_gets_more_of_them(hold) -> None:
    item = hold(Script(lambda plan: 1 / 1.06, odd=lambda plan, process: 1 + 0.02 * (-1) ** process), plans=[A])["a"]
    taken = len(statuses(item, A))
    assert taken in LOOKS[1:]
    assert conclude(item.screening, item, POLICY, EFFORT, {}).plan == A


def test_what_is_known_closely_enough_to_be_no_winner_gets_no_more_processes(hold) -> None:
    item = hold(Script(lambda plan: 1 / 1.0105, odd=lambda plan, process: 1 + 0.0003 * (-1) ** process), plans=[A])["a"]
    assert statuses(item, A) == ["ok"] * LOOKS[0]
    assert conclude(item.screening, item, POLICY, EFFORT, {}).kind == "default"


def test_one_odd_process_does_not_cost_a_real_winner_its_place(hold) -> None:
    item = hold(Script(lambda plan: 0.9, odd=lambda plan, process: 2.2 if process == 1 else 1.0), plans=[A])["a"]
    assert statuses(item, A) == ["ok"] * LOOKS[-1]
    assert conclude(item.screening, item, POLICY, EFFORT, {}).plan == A


def test_what_stays_unclear_ends_with_the_last_look(hold) -> None:
    item = hold(Script(lambda plan: 1 / 1.03, odd=lambda plan, process: 1 - 0.1 * (-1) ** process), plans=[A])["a"]
    assert statuses(item, A) == ["ok"] * LOOKS[-1]
    assert conclude(item.screening, item, POLICY, EFFORT, {}).kind == "default"


def test_one_that_is_undecided_takes_the_decided_of_its_workload_along_and_no_other_workload(hold) -> None:
    def odd(plan: Plan, process: int) -> float:
        return 2.2 if (plan, process, script.workers[-1].graph) == (B, 1, "a") else 1.0

    script = Script(lambda plan: 0.9, odd=odd)
    items = hold(script, "a", "b")
    assert statuses(items["a"], A) == statuses(items["a"], B) == ["ok"] * LOOKS[-1]
    assert statuses(items["b"], A) == statuses(items["b"], B) == ["ok"] * LOOKS[0]
    opened = [request["process"] for request in script.asked("open")]
    assert opened == [*(process for process in range(LOOKS[0]) for _ in "ab"), *range(LOOKS[0], LOOKS[-1])], (
        "they share processes"
    )


def test_each_process_of_the_final_has_inputs_of_its_own(hold) -> None:
    script = Script(lambda plan: 0.7, odd=lambda plan, process: 2.2 if process == 1 else 1.0)
    hold(script)
    seeds = [request["seed"] for request in script.asked("open")]
    assert len({SEED, SEED + 1, *seeds}) == len(seeds) + 2 == LOOKS[-1] + 2, "neither those of the screening nor of the race"


def test_finalists_and_the_default_are_timed_side_by_side(hold) -> None:
    script = Script(lambda plan: 0.7)
    hold(script)
    assert script.timed == [(A.key, B.key)] * LOOKS[0]


def test_own_copies_are_asked_for_where_the_rules_say_so(hold) -> None:
    script = Script(lambda plan: 0.7)
    hold(script, rules=Rules(own_copies=True))
    assert {request["own_copy"] for request in script.asked("try")} == {A.key, B.key}


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ({"raise": WorkerDied("SIGSEGV")}, "crash"),
        ({"raise when timed": WorkerDied("SIGSEGV")}, "crash"),
        ({"raise when timed": WorkerTimeout("hangs")}, "timeout"),
        ({"status": "wrong", "message": "differs"}, "wrong"),
        ({"status": "not_realised", "message": "", "realised": ONE_GROUP}, "compile_error"),
    ],
)
@pytest.mark.parametrize("bad", [A, B])
def test_a_finalist_that_fails_costs_only_itself(hold, store: SqliteStore, told: Told, status: str, bad: Plan) -> None:
    item = hold(Script(lambda _: 0.7, lambda plan: told if plan == bad else {}))["a"]
    assert item.error is None
    good = A if bad == B else B
    assert statuses(item, good) == ["ok"] * LOOKS[0]
    assert statuses(item, bad) == [status], "once out, it is not tried in the next process"
    assert conclude(item.screening, item, POLICY, EFFORT, {}).plan == good
    assert set(store.quarantined(query())) == ({bad.key} if status != "compile_error" else set())
    (row,) = item.measurements[bad.key]
    assert row.message == str(told.get("raise") or told.get("raise when timed") or told["message"])


def test_where_every_finalist_fails_no_more_processes_are_started(hold) -> None:
    script = Script(verdict=lambda plan: {"status": "wrong", "message": ""})
    item = hold(script)["a"]
    assert statuses(item, A) == statuses(item, B) == ["wrong"]
    assert len(script.asked("try")) == 2
    assert conclude(item.screening, item, POLICY, EFFORT, {}).kind == "default"


def test_more_memory_in_the_final_puts_a_finalist_out(hold) -> None:
    item = hold(Script(lambda _: 0.7, lambda plan: {"peak_bytes": 1100} if plan == A else {}))["a"]
    assert statuses(item, A) == ["ok"]
    assert conclude(item.screening, item, POLICY, EFFORT, {}).plan == B


@pytest.mark.parametrize("error", [WorkerTimeout("no answer"), UnsupportedGraph("unchecked", "the default differs")])
def test_a_final_whose_default_fails_settles_nothing_and_leaves_the_other_workloads_alone(hold, error: Exception) -> None:
    script = Script(lambda _: 0.7, opening=lambda graph: {"raise": error} if graph == "a" else {})
    items = hold(script, "a", "b")
    assert items["a"].error is error
    assert items["a"].measurements == {}
    assert items["b"].error is None
    assert statuses(items["b"], A) == ["ok"] * LOOKS[0]
    assert len(script.asked("open")) == 1 + LOOKS[0], "it is not tried again in each process"


def test_a_noisy_final_settles_nothing(hold) -> None:
    script = Script(lambda _: 0.7, busy=lambda plans: "load 9.0" if len(plans) == 2 else None)
    item = hold(script)["a"]
    assert isinstance(item.error, DeviceBusy)
    assert len(script.asked("time")) == 1
    measured = hold(Script(lambda _: 0.7, busy=lambda plans: "load 9.0"), effort=replace(EFFORT, patience=0))["a"]
    assert measured.error is None
    assert conclude(measured.screening, measured, POLICY, EFFORT, {}).kind == "plan"
