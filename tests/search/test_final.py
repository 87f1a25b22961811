"""What a final concludes from its measurements: promise 1."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from scripted import EFFORT, GELU, ONE_GROUP, POLICY, SILU, ScriptedBench, resolved

from tuner.cache.sqlite import SqliteStore
from tuner.errors import WorkerDied, WorkerTimeout
from tuner.measurement import Measurement, Policy, Winner
from tuner.plan import Plan
from tuner.search.final import Evidence, conclude, run_finals
from tuner.search.screen import SEED, Finalist, Screening
from tuner.search.workloads import Resolved
from tuner.search_spaces.space import Candidate

A, B = Plan(native=(GELU,)), Plan(native=(SILU,))


def rows(plan: Plan, ratios: Sequence[float], noise: float = 0.005, peak: int = 1000) -> list[Measurement]:
    """One final measurement per process, the candidate `ratio` times as fast in it."""
    generator = random.Random(0)
    made = []
    for process, ratio in enumerate(ratios):
        default = [2.0 * generator.gauss(1, noise) for _ in range(40)]
        mine = [2.0 / ratio * generator.gauss(1, noise) for _ in range(40)]
        made.append(
            Measurement(
                resolved().query,
                POLICY,
                plan,
                "final",
                "ok",
                samples_ms=tuple(mine),
                default_samples_ms=tuple(default),
                realised=ONE_GROUP,
                peak_bytes=peak,
                default_peak_bytes=1000,
                process=str(process),
            )
        )
    return made


def winner_of(*finals: list[Measurement]) -> Winner:
    screening = Screening(resolved(), 2.0, ONE_GROUP)
    evidence = Evidence(screening)
    for measurements in finals:
        plan = measurements[0].plan
        screening.finalists.append(Finalist(Candidate("made up", plan), measurements[0], 1.5))
        evidence.measurements[plan.key] = measurements
    return conclude(screening, evidence, POLICY, EFFORT)


def test_a_clear_winner_is_named_with_its_interval() -> None:
    won = winner_of(rows(A, (1.2, 1.21, 1.19)))
    assert (won.kind, won.plan, won.groups) == ("plan", A, ONE_GROUP)
    assert won.speedup_low < won.speedup < won.speedup_high
    assert won.speedup == pytest.approx(1.2, rel=0.01)
    assert won.default_ms / won.winner_ms == pytest.approx(1.2, rel=0.02)


@pytest.mark.parametrize("ratios", [(1.0, 1.0, 1.0), (1.005, 1.006, 1.004), (1.6, 1.0, 1.0), (1.3, 1.3, 0.97), (0.8, 0.8, 0.8)])
def test_what_is_not_faster_in_every_process_is_no_winner(ratios: tuple[float, ...]) -> None:
    won = winner_of(rows(A, ratios))
    assert (won.kind, won.plan) == ("default", Plan())
    assert (won.speedup, won.speedup_low, won.speedup_high) == (1.0, 1.0, 1.0)
    assert won.winner_ms == won.default_ms


def test_a_candidate_that_failed_in_one_process_is_no_winner() -> None:
    assert winner_of(rows(A, (1.5, 1.5))).kind == "default"


def test_a_candidate_that_needs_more_memory_is_no_winner() -> None:
    assert winner_of(rows(A, (1.5, 1.5, 1.5), peak=1021)).kind == "default"
    assert winner_of(rows(A, (1.5, 1.5, 1.5), peak=1019)).kind == "plan"


def test_of_two_the_one_with_the_higher_lower_bound_wins() -> None:
    steady, erratic = rows(A, (1.3, 1.3, 1.3)), rows(B, (1.9, 1.2, 1.2))
    assert winner_of(erratic, steady).plan == A
    assert winner_of(steady, erratic).plan == A


def test_without_finalists_the_default_is_settled() -> None:
    won = conclude(Screening(resolved(), 3.0, ONE_GROUP), None, POLICY, EFFORT)
    assert (won.kind, won.default_ms, won.winner_ms, won.effort) == ("default", 3.0, 3.0, "quick")


def test_the_evidence_tells_each_process_apart() -> None:
    won = winner_of(rows(A, (1.2, 1.4, 1.3)))
    assert won.evidence["processes"] == 3
    assert [round(value, 1) for value in won.evidence["speedup_by_process"]] == [1.2, 1.4, 1.3]


def held(monkeypatch: pytest.MonkeyPatch, bench: type[ScriptedBench] | Callable[..., ScriptedBench]) -> dict[str, Evidence]:
    """The final of A and B, each 1.5 times as fast as the default, on the given bench."""
    screening = Screening(resolved(), 2.0, ONE_GROUP)
    screening.finalists = [Finalist(Candidate("made up", plan), rows(plan, (1.5,))[0], 1.5) for plan in (A, B)]
    monkeypatch.setattr("tuner.search.final.Bench", bench)
    return run_finals([screening], SqliteStore(":memory:"), POLICY, EFFORT, lambda _: None)


@pytest.mark.parametrize("when", ["raise", "raise when timed"])
@pytest.mark.parametrize("bad", [A, B])
def test_a_finalist_that_kills_the_worker_costs_only_itself(monkeypatch: pytest.MonkeyPatch, when: str, bad: Plan) -> None:
    told = {bad: {when: WorkerDied("SIGSEGV")}}
    (item,) = held(monkeypatch, lambda *_: ScriptedBench(lambda _: 0.7, lambda plan: told.get(plan, {}))).values()
    assert item.error is None
    good = A if bad == B else B
    assert [row.status for row in item.measurements[good.key]] == ["ok"] * EFFORT.processes
    assert [row.status for row in item.measurements[bad.key]] == ["crash"], "once out, it is not tried in the next process"
    assert conclude(item.screening, item, POLICY, EFFORT).plan == good


def test_a_final_that_cannot_be_held_settles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy(ScriptedBench):
        def open(self, resolved: Resolved) -> dict[str, Any]:
            raise WorkerTimeout("no answer within 420 s")

    (item,) = held(monkeypatch, lambda *_: Busy(lambda _: 0.7)).values()
    assert item.error is not None
    assert item.measurements == {}


def test_each_process_of_the_final_has_inputs_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def bench(policy: Policy, seed: int) -> ScriptedBench:
        seeds.append(seed)
        return ScriptedBench(lambda _: 0.7)

    held(monkeypatch, bench)
    assert len({SEED, *seeds}) == EFFORT.processes + 1
