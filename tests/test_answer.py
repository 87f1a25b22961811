"""What a program's answers put into the compile caches' key, and that answers travel whole."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from stored import GROUPS, KNOB, NATIVE

from tuner.answer import Answer, Bucket, ProgramAnswer, ProgramChoice
from tuner.errors import PlanError
from tuner.plan import Plan

SERVED = Answer(KNOB, "exact", 7, "a winner", groups=GROUPS, speedup=1.5, speedup_low=1.4, speedup_high=1.6)
SETTLED = Answer(Plan(), "exact", 7, "the default won", groups=GROUPS)


def tag(**answers: Answer) -> str:
    return ProgramAnswer(True, 7, answers).plans_digest


def test_programs_that_use_no_plan_share_the_compilers_own_cache_entries() -> None:
    assert tag() == tag(a=SETTLED) == ""
    assert ProgramAnswer(False, 7).plans_digest == ""


def test_the_tag_tells_plans_their_groups_and_their_graphs_apart_and_nothing_else() -> None:
    others = [
        tag(a=replace(SERVED, plan=NATIVE)),
        tag(a=replace(SERVED, groups=GROUPS[:1])),
        tag(b=SERVED),
        tag(a=SERVED, b=SERVED),
    ]
    assert len({tag(a=SERVED), *others}) == 5
    assert tag(a=SERVED) == tag(a=replace(SERVED, generation=9, reason="told otherwise", speedup=2.0), b=SETTLED)


def test_the_tag_tells_the_programs_own_choice_apart() -> None:
    plain = ProgramAnswer(True, 7, {"a": SERVED})
    small, rest = Bucket("s0", 8, (("a", KNOB, GROUPS),)), Bucket("s0", None)
    chosen = [
        replace(plain, native_table=("aten.gelu.default",)),
        replace(plain, dispatch=(small, rest)),
        replace(plain, dispatch=(replace(small, up_to=9), rest)),
        replace(plain, dispatch=(Bucket("s0", None),)),
    ]
    assert len({plain.plans_digest, *(one.plans_digest for one in chosen)}) == 5


def test_a_bucket_has_its_own_plans_and_the_default_for_the_other_graphs() -> None:
    whole = ProgramAnswer(True, 7, {"a": SERVED, "b": SERVED}, dispatch=(Bucket("s0", 8, (("a", NATIVE, GROUPS),)),))
    one = whole.of_bucket(whole.dispatch[0])
    assert {key: answer.plan for key, answer in one.answers.items()} == {"a": NATIVE, "b": Plan()}
    assert (one.dispatch, one.answers["a"].groups, one.settled) == ((), GROUPS, True)


def test_answers_travel_whole() -> None:
    buckets = (Bucket("s0", 8, (("a", KNOB, GROUPS), ("b", NATIVE, None))), Bucket("s0", None))
    answers = {"a": replace(SERVED, sizes=((1, 64), (8, 64))), "b": SETTLED}
    sent = ProgramAnswer(True, 7, answers, True, ("k", "l"), ("aten.gelu.default",), buckets)
    got = ProgramAnswer.from_json(json.loads(json.dumps(sent.to_json())))
    assert (got, got.answers) == (sent, sent.answers)
    assert got.native == ()


def test_what_an_older_daemon_says_besides_is_ignored() -> None:
    told = {**ProgramAnswer(False, 7).to_json(), "plans_generation": 5}
    assert ProgramAnswer.from_json(told) == ProgramAnswer(False, 7)


INFINITE = float("inf")
NO_ANSWERS = [
    {"tier": "made up"},
    {"tier": []},
    {"plan": {"schema": 99}},
    {"plan": 3},
    {"generation": INFINITE},
    {"generation": True},
    {"speedup": "2"},
    {"speedup": 10**400},
    {"reason": None},
    {"groups": [[3]]},
    {"groups": [[]]},
    {"groups": 3},
    {"sizes": 3},
    {"sizes": [3]},
    {"sizes": [[INFINITE]]},
    {"sizes": [["8"]]},
]


@pytest.mark.parametrize("edit", NO_ANSWERS, ids=str)
def test_answers_of_another_shape_are_refused_by_a_name_that_is_caught(edit: dict[str, object]) -> None:
    whole = ProgramAnswer(True, 7, {"a": SERVED}).to_json()
    for read, told in ((Answer.from_json, SERVED.to_json()), (Answer.from_json, None)):
        with pytest.raises((PlanError, ValueError)):
            read({**told, **edit} if told else edit)
    with pytest.raises((PlanError, ValueError)):
        ProgramAnswer.from_json({**whole, "answers": {"a": {**SERVED.to_json(), **edit}}})


BUCKET = Bucket("s0", 8, (("a", KNOB, GROUPS),)).to_json()
NO_CHOICES = [
    3,
    {"dispatch": {}},
    {"dispatch": [3]},
    {"native_table": 3},
    {"native_table": [3]},
    *(
        {"dispatch": [{**BUCKET, **edit}]}
        for edit in (
            *({"up_to": value} for value in (INFINITE, True, "12", 1.9, [])),
            *({"plans": value} for value in ([], 3, None, {"a": 3}, {"a": {}}, {"a": {"plan": {"schema": 1}}})),
            {"plans": {"a": {"plan": {"schema": 1}, "groups": [[3]]}}},
            {"symbol": 0},
        )
    ),
]


@pytest.mark.parametrize("told", NO_CHOICES, ids=str)
def test_choices_of_another_shape_are_refused_by_a_name_that_is_caught(told: object) -> None:
    with pytest.raises((PlanError, ValueError)):
        ProgramChoice.from_json(told)  # type: ignore[arg-type]
    if isinstance(told, dict):
        with pytest.raises((PlanError, ValueError)):
            ProgramAnswer.from_json({**ProgramAnswer(True, 7).to_json(), **told})
