"""Knobs are searched together on top of the best that is known: those alone that changed something, until nothing is gained."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from scripted import EFFORT, GELU, Script, resolved

from tuner.plan import Plan
from tuner.search.knob_search import LABEL, KnobSearch
from tuner.search.proposals import Result
from tuner.search.rules import Rules

READS, OPCOUNT, SIZE, TILING = (
    "realize_reads_threshold",
    "realize_opcount_threshold",
    "max_fusion_size",
    "cpp.enable_tiling_heuristics",
)
# Milliseconds by which a value shortens one call of the default's 1.
GAINS = {(READS, 1): 0.2, (OPCOUNT, 4): 0.2, (OPCOUNT, 1): -0.1, (SIZE, 4): 0.1, (SIZE, 8): 0.15}
ALONE = [*GAINS, (READS, 2), (SIZE, 16)]


def ratio(plan: Plan) -> float:
    gained = sum(GAINS.get(one, 0.0) for one in plan.config) + (0.1 if plan.native else 0.0)
    return 1.0 / (1.0 - gained)


def trials(*plans: Plan) -> Any:
    """What was measured by then."""
    passed = [SimpleNamespace(candidate=SimpleNamespace(plan=plan), ratio=ratio(plan)) for plan in plans]
    return SimpleNamespace(passed=passed, resolved=resolved((GELU,)), rules=Rules())


def exhaust(search: KnobSearch, count: int = 2, result: Callable[[Plan], Result] | None = None) -> list[Plan]:
    """Everything that it proposes, each told."""
    proposed: list[Plan] = []
    while batch := search.next(count):
        for candidate in batch:
            proposed.append(candidate.plan)
            search.told(candidate, result(candidate.plan) if result else Result("ok", ratio=ratio(candidate.plan)))
    return proposed


SINGLE = [Plan(config=(one,)) for one in ALONE if one != (SIZE, 8)]
BEST = max(SINGLE, key=ratio)


def test_the_best_of_several_knobs_are_put_together() -> None:
    search = KnobSearch(trials(*SINGLE), BEST, ratio(BEST), share=1.0, dry=12)
    proposed = exhaust(search)
    assert search.best_ratio == max(map(ratio, proposed))
    assert set(search.best.config) >= {(READS, 1), (OPCOUNT, 4)}
    assert len(set(proposed)) == len(proposed)
    assert not set(proposed) & set(SINGLE), "what is known is not asked again"


def test_knobs_that_changed_nothing_alone_are_left_alone() -> None:
    proposed = exhaust(KnobSearch(trials(*SINGLE), BEST, ratio(BEST), share=1.0, dry=12))
    assert {name for plan in proposed for name, _ in plan.config} == {READS, OPCOUNT, SIZE}


def test_it_ends_when_so_many_in_a_row_gain_nothing() -> None:
    search = KnobSearch(trials(*SINGLE), BEST, ratio(BEST), share=1.0, dry=5)
    assert len(exhaust(search, result=lambda plan: Result("ok", ratio=1.0))) == 5
    assert search.best == BEST


@pytest.mark.parametrize("became", [Result("crash"), Result("refused"), Result("duplicate"), Result("duplicate", ratio=1.2)])
def test_whatever_becomes_of_a_proposal_it_goes_on(became: Result) -> None:
    search = KnobSearch(trials(*SINGLE), BEST, ratio(BEST), share=1.0, dry=7)
    assert len(exhaust(search, result=lambda plan: became)) == 7


def test_native_ops_and_cuts_of_the_base_stay_and_what_knobs_gave_without_them_is_a_start() -> None:
    base = Plan(native=(GELU,))
    search = KnobSearch(trials(*SINGLE, base), base, ratio(base), share=1.0, dry=12)
    proposed = exhaust(search)
    assert all(plan.native == base.native for plan in proposed)
    assert search.best_ratio > ratio(base)
    assert math.isclose(search.best_ratio, ratio(search.best))


def test_where_no_knob_changed_anything_there_is_nothing_to_search() -> None:
    assert exhaust(KnobSearch(trials(Plan(native=(GELU,))), Plan(native=(GELU,)), 1.1, share=1.0, dry=12)) == []


def test_a_screening_turns_knobs_together_after_the_best_choices_are_combined(run: Any) -> None:
    found, _ = run(Script(lambda plan: 1 / ratio(plan)), rules=Rules(), effort=replace(EFFORT, trials=200))
    labels = [finalist.candidate.label for finalist in found.passed]
    first, last = labels.index(LABEL), len(labels) - labels[::-1].index(LABEL)
    assert set(labels[first:last]) == {LABEL}
    assert "combined" in labels[:first]
    tried = [finalist.candidate.plan for finalist in found.passed[first:last]]
    assert all(plan.native == (GELU,) for plan in tried), "on top of what is best"
    assert not set(tried) & {finalist.candidate.plan for finalist in found.passed[:first]}
