"""What reaches a compiler is declared: every other plan is refused, whoever wrote it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tuner.errors import PlanError
from tuner.plan import MAX_LEAVES, MAX_NAMES, Plan
from tuner.search_spaces.inductor_knobs import KNOBS
from tuner.search_spaces.native import NATIVE_OPS
from tuner.search_spaces.parameters import Choice, Flag, Integer
from tuner.search_spaces.validate import check_plan, validate_plan

LEAVES = ("1:4x4|:ComputedBuffer.Pointwise:0", "2:4|4:ComputedBuffer.Reduction:0", "12:4x4|:ComputedBuffer.Pointwise:0")
CUTS = ("12:aten.where.self", "3:aten.mul.Tensor")
GOOD = {
    "schema": 1,
    "compiler": "inductor",
    "native": ["aten.gelu.default"],
    "config": {"realize_reads_threshold": 2},
    "cuts": [],
    "groups": [list(LEAVES[:2]), [LEAVES[2]]],
    "kernels": [],
}


@pytest.mark.parametrize(
    "plan",
    [
        Plan(),
        Plan(native=("aten.gelu.default", "aten.silu.default")),
        Plan(config=(("realize_opcount_threshold", 1), ("realize_reads_threshold", 64))),
        Plan(groups=((LEAVES[0], LEAVES[2]), (LEAVES[1],))),
        Plan(compiler="eager", native=("aten.gelu.default",)),
        Plan(native=("aten.gelu.default#0", "aten.gelu.default#12", "aten.silu.default")),
        Plan(native=("aten.gelu.default",), config=(("realize_acc_reads_threshold", 4),), groups=(LEAVES,)),
        Plan(cuts=("0:prims.convert_element_type.default", "12:aten.where.self")),
        Plan(native=("aten.gelu.default",), config=(("realize_acc_reads_threshold", 4),), cuts=CUTS, groups=(LEAVES,)),
    ],
)
def test_a_plan_comes_back_from_json_as_it_was(plan):
    back = validate_plan(json.loads(json.dumps(plan.to_json())))
    assert back == plan
    assert (back.key, back.text, hash(back)) == (plan.key, plan.text, hash(plan))
    assert json.loads(plan.text) == plan.to_json()


def test_a_good_plan_is_accepted():
    assert validate_plan(GOOD).to_json() == GOOD


def test_what_is_left_out_is_the_default():
    assert validate_plan({"schema": 1}) == Plan()
    assert Plan().is_default
    assert not validate_plan(GOOD).is_default


def test_only_a_plan_of_groups_alone_leaves_numerics():
    assert Plan().leaves_numerics
    assert Plan(groups=(LEAVES,)).leaves_numerics
    for other in (
        Plan(native=("aten.gelu.default",)),
        Plan(config=(("realize_opcount_threshold", 1),)),
        Plan(compiler="eager"),
        Plan(cuts=CUTS),
    ):
        assert not replace(other, groups=(LEAVES,)).leaves_numerics


def changed(**fields):
    return {**GOOD, **fields}


MALFORMED = {
    "nothing": None,
    "a list": [],
    "a string": "{}",
    "a number": 1,
    "an empty object": {},
    "unknown field": changed(code="import os"),
    "unknown field beside nothing else": {"schema": 1, "Native": []},
    "field that is no string": {**GOOD, 1: 2},
    "no schema": {name: value for name, value in GOOD.items() if name != "schema"},
    "older schema": changed(schema=0),
    "newer schema": changed(schema=2),
    "schema as text": changed(schema="1"),
    "schema as a list": changed(schema=[1]),
    "unknown compiler": changed(compiler="gcc"),
    "no compiler": changed(compiler=None),
    "compiler as a list": changed(compiler=["inductor"]),
    "undeclared knob": changed(config={"cpp.cxx": "/tmp/evil"}),
    "a hook as a knob": changed(config={"post_grad_custom_post_pass": "os.system"}),
    "a knob in other letters": changed(config={"Realize_Reads_Threshold": 2}),
    "a boolean for an integer": changed(config={"realize_reads_threshold": True}),
    "a float for an integer": changed(config={"realize_reads_threshold": 2.0}),
    "a text for an integer": changed(config={"realize_reads_threshold": "2"}),
    "null for an integer": changed(config={"realize_reads_threshold": None}),
    "a list for an integer": changed(config={"realize_reads_threshold": [2]}),
    "an object for an integer": changed(config={"realize_reads_threshold": {"a": 2}}),
    "NaN for an integer": changed(config={"realize_reads_threshold": float("nan")}),
    "below its range": changed(config={"realize_reads_threshold": 0}),
    "negative": changed(config={"realize_reads_threshold": -1}),
    "above its range": changed(config={"realize_reads_threshold": 65}),
    "far above its range": changed(config={"realize_reads_threshold": 10**100}),
    "config as a list": changed(config=[["realize_reads_threshold", 2]]),
    "no config": changed(config=None),
    "undeclared op": changed(native=["aten.mm.default"]),
    "op without its overload": changed(native=["aten.gelu"]),
    "an occurrence of an undeclared op": changed(native=["aten.mm.default#0"]),
    "an occurrence without a number": changed(native=["aten.gelu.default#"]),
    "an occurrence of a negative number": changed(native=["aten.gelu.default#-1"]),
    "an occurrence in other digits": changed(native=["aten.gelu.default#٣"]),
    "an occurrence with a leading zero": changed(native=["aten.gelu.default#01"]),
    "an occurrence of a huge number": changed(native=["aten.gelu.default#" + "9" * 20]),
    "an occurrence beside all of them": changed(native=["aten.gelu.default", "aten.gelu.default#1"]),
    "not an op": changed(native=["os.system"]),
    "an op twice": changed(native=["aten.gelu.default", "aten.gelu.default"]),
    "too many occurrences": changed(native=[f"aten.gelu.default#{i}" for i in range(MAX_NAMES + 1)]),
    "native as a text": changed(native="aten.gelu.default"),
    "native as an object": changed(native={"aten.gelu.default": True}),
    "an op that is a number": changed(native=[1]),
    "an op that is a list": changed(native=[["aten.gelu.default"]]),
    "no native": changed(native=None),
    "a cut by a leaf": changed(cuts=[LEAVES[0]]),
    "a cut without a place": changed(cuts=["aten.where.self"]),
    "a cut without an op": changed(cuts=["12:"]),
    "a cut at a negative place": changed(cuts=["-1:aten.where.self"]),
    "a cut in other digits": changed(cuts=["٣:aten.where.self"]),
    "a cut with code in it": changed(cuts=["1:__import__('os')"]),
    "a cut with a line break": changed(cuts=["1:aten.where.self\n"]),
    "a very long cut": changed(cuts=["1:" + "a" * 300]),
    "a cut at a huge place": changed(cuts=["9" * 20 + ":aten.where.self"]),
    "a cut that is a number": changed(cuts=[12]),
    "a cut twice": changed(cuts=[CUTS[0], CUTS[0]]),
    "too many cuts": changed(cuts=[f"{i}:aten.where.self" for i in range(MAX_NAMES + 1)]),
    "a cut of what is left to eager": changed(compiler="eager", config={}, cuts=[CUTS[0]]),
    "a kernel": changed(kernels=["triton_poi_0"]),
    "cuts as an object": changed(cuts={}),
    "a leaf twice in one group": changed(groups=[[LEAVES[0], LEAVES[0]]]),
    "a leaf in two groups": changed(groups=[[LEAVES[0]], [LEAVES[0], LEAVES[1]]]),
    "no group": changed(groups=[]),
    "an empty group": changed(groups=[[LEAVES[0]], []]),
    "groups as a text": changed(groups="all"),
    "groups as an object": changed(groups={"0": [LEAVES[0]]}),
    "a group as a text": changed(groups=[LEAVES[0]]),
    "a group as an object": changed(groups=[{LEAVES[0]: 1}]),
    "a leaf that is a number": changed(groups=[[3]]),
    "a leaf that is a list": changed(groups=[[[LEAVES[0]]]]),
    "a deeply nested leaf": changed(groups=[[json.loads("[" * 400 + "]" * 400)]]),
    "a leaf by the compiler's name": changed(groups=[["op0"]]),
    "an empty leaf": changed(groups=[[""]]),
    "a leaf without an ordinal": changed(groups=[["1:4x4:ComputedBuffer.Pointwise"]]),
    "a leaf with a negative place": changed(groups=[["-1:4x4:ComputedBuffer.Pointwise:0"]]),
    "a leaf with code in it": changed(groups=[["1:4x4:__import__('os').system('id'):0"]]),
    "a leaf with a line break": changed(groups=[[LEAVES[0] + "\n"]]),
    "a leaf with a space": changed(groups=[["1:4 x4|:ComputedBuffer.Pointwise:0"]]),
    "a leaf with a huge place": changed(groups=[["9" * 20 + ":4x4|:ComputedBuffer.Pointwise:0"]]),
    "a very long leaf": changed(groups=[["1:" + "4x" * 300 + "4|:ComputedBuffer.Pointwise:0"]]),
    "too many leaves": changed(groups=[[f"{i}:4:Extern:0"] for i in range(MAX_LEAVES + 1)]),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_plan_is_refused(name):
    with pytest.raises(PlanError) as caught:
        validate_plan(MALFORMED[name])
    assert str(caught.value)
    assert len(str(caught.value)) < 500


def test_most_leaves_that_a_plan_may_hold_are_accepted():
    groups = [[f"{i}:4:Extern:0"] for i in range(MAX_LEAVES)]
    assert len(validate_plan(changed(groups=groups)).groups) == MAX_LEAVES


def test_a_plan_made_in_python_is_checked_as_well():
    for plan in (
        Plan(compiler="gcc"),
        Plan(native=("aten.mm.default",)),
        Plan(native=("aten.mm.default#0",)),
        Plan(native=("aten.gelu.default", "aten.gelu.default#0")),
        Plan(config=(("cpp.cxx", "/tmp/evil"),)),
        Plan(config=(("realize_reads_threshold", True),)),
        Plan(cuts=("a",)),
        Plan(cuts=CUTS, compiler="eager"),
        Plan(cuts=tuple(f"{i}:aten.where.self" for i in range(MAX_NAMES + 1))),
        Plan(kernels=("a",)),
        Plan(groups=()),
    ):
        with pytest.raises(PlanError):
            check_plan(plan)
    assert check_plan(Plan()) == Plan()


def test_groups_are_stored_in_one_order():
    shuffled = [[LEAVES[2]], [LEAVES[1], LEAVES[0]]]
    assert validate_plan(changed(groups=shuffled)) == validate_plan(GOOD)
    assert validate_plan(changed(groups=shuffled)).groups == (LEAVES[:2], LEAVES[2:])


def test_leaves_are_ordered_by_their_place_and_not_as_texts():
    groups = validate_plan(changed(groups=[["10:4:Extern:0"], ["9:4:Extern:0"], ["9:4:Extern:1", "2:4:Extern:0"]])).groups
    assert groups == (("2:4:Extern:0", "9:4:Extern:1"), ("9:4:Extern:0",), ("10:4:Extern:0",))


def test_names_are_stored_in_one_order():
    config = {name: knob.trials[0] for name, knob in sorted(KNOBS.items())}
    one = changed(native=["aten.silu.default", "aten.gelu.default"], config=config)
    other = changed(native=["aten.gelu.default", "aten.silu.default"], config=dict(reversed(config.items())))
    assert validate_plan(one).key == validate_plan(other).key


@pytest.mark.parametrize("name", sorted(KNOBS))
def test_a_knob_takes_every_value_of_its_range_and_none_beside_it(name):
    knob = KNOBS[name]
    match knob:
        case Integer():
            inside, outside = [knob.low, knob.high], [knob.low - 1, knob.high + 1, float(knob.low), str(knob.low), True]
        case Choice():
            inside, outside = list(knob.values), [True, "", max(knob.values) * 2, -1]
        case Flag():
            inside, outside = [True, False], [0, 1, "True"]
    for value in (*inside, *knob.trials):
        assert validate_plan(changed(config={name: value})).config == ((name, value),)
    for value in (*outside, None, [], {}):
        with pytest.raises(PlanError):
            validate_plan(changed(config={name: value}))


@pytest.mark.parametrize("op", sorted(NATIVE_OPS))
def test_every_declared_op_may_stay_native(op):
    assert validate_plan(changed(native=[op])).native == (op,)


def test_a_choice_takes_its_own_values_by_type():
    choice = Choice("simdlen", (None, 0, 1, True, "auto"), default=0)  # type: ignore[arg-type]
    assert choice.contains(1)
    assert choice.contains(True)
    assert choice.contains("auto")
    assert not choice.contains(1.0)
    assert not choice.contains("1")
    assert not Choice("flag", (0, 1), default=0).contains(True)
    assert Choice("flag", (0, 1, 2), default=1).trials == (0, 2)


def test_cuts_are_told_by_op_in_the_order_of_their_places():
    cuts = ("12:aten.where.self", "3:aten.mul.Tensor", "9:aten.mul.Tensor", *(f"{i}:aten.add.Tensor" for i in range(20, 28)))
    told = Plan(config=(("realize_reads_threshold", 2),), cuts=cuts).describe()
    assert told == (
        "realize_reads_threshold=2; cut after aten.mul.Tensor at 3, 9, aten.where.self at 12, aten.add.Tensor at 8 places"
    )


def test_cuts_at_equal_places_make_a_plan_no_less_simple():
    deep = Plan(cuts=tuple(f"{i}:aten.where.self" for i in range(3, 90, 7)))
    assert Plan().complexity < deep.complexity == Plan(cuts=CUTS[:1]).complexity < Plan(cuts=CUTS).complexity
