"""What a final concludes from its measurements: promise 1."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from scripted import EFFORT, GELU, ONE_GROUP, POLICY, SILU, resolved

from tuner.measurement import Measurement, Winner
from tuner.plan import Plan
from tuner.search.final import Evidence, conclude
from tuner.search.screen import Finalist, Screening
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
