"""What a program's answers put into the compile caches' key, and that answers travel whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from stored import GROUPS, KNOB, NATIVE

from tuner.answer import Answer, ProgramAnswer
from tuner.errors import PlanError
from tuner.plan import Plan

SERVED = Answer(KNOB, "exact", 7, "a winner", groups=GROUPS, speedup=1.5, speedup_low=1.4, speedup_high=1.6)
SETTLED = Answer(Plan(), "exact", 7, "the default won", groups=GROUPS)


def tag(**answers: Answer) -> str:
    return ProgramAnswer(True, 7, answers).cache_tag


def test_programs_that_use_no_plan_share_the_compilers_own_cache_entries() -> None:
    assert tag() == tag(a=SETTLED) == ""
    assert ProgramAnswer(False, 7).cache_tag == ""


def test_the_tag_tells_plans_their_groups_and_their_graphs_apart_and_nothing_else() -> None:
    others = [
        tag(a=replace(SERVED, plan=NATIVE)),
        tag(a=replace(SERVED, groups=GROUPS[:1])),
        tag(b=SERVED),
        tag(a=SERVED, b=SERVED),
    ]
    assert len({tag(a=SERVED), *others}) == 5
    assert tag(a=SERVED) == tag(a=replace(SERVED, generation=9, reason="told otherwise", speedup=2.0), b=SETTLED)


def test_an_unknown_program_is_tagged_by_the_newest_plan_not_by_the_store() -> None:
    seen = {ProgramAnswer(False, generation, plans_generation=3).cache_tag for generation in (3, 4, 5)}
    assert len(seen) == 1
    assert ProgramAnswer(False, 5, plans_generation=5).cache_tag not in {*seen, ""}


def test_answers_travel_whole() -> None:
    sent = ProgramAnswer(True, 7, {"a": SERVED, "b": SETTLED}, plans_generation=6)
    got = ProgramAnswer.from_json(sent.to_json())
    assert (got, got.answers) == (sent, sent.answers)
    assert got.native == ()


@pytest.mark.parametrize("edit", [{"tier": "made up"}, {"plan": {"schema": 99}}, {"plan": 3}])
def test_answers_of_another_shape_are_refused(edit: dict[str, object]) -> None:
    with pytest.raises((PlanError, ValueError)):
        Answer.from_json({**SERVED.to_json(), **edit})
