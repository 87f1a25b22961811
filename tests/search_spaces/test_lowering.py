"""Choices that change lowering: which cuts come first, and how two choices become one."""

from __future__ import annotations

import pytest

from tuner.anatomy import Anatomy, Leaf, Op
from tuner.plan import Plan
from tuner.search_spaces.lowering import MAX_UNSHARED, first_choices, joined, moved_cuts, ranked_cuts
from tuner.search_spaces.space import Candidate

GELU, SILU = "aten.gelu.default", "aten.silu.default"


def anatomy(*leaves: tuple[int, ...], ops: int = 3) -> Anatomy:
    """Leaves made of these operations, of which each takes the one before it."""
    made = [Leaf(f"{i}:8|:ComputedBuffer.Pointwise:0", "", True, "", (), (), (), numbers) for i, numbers in enumerate(leaves)]
    return Anatomy(tuple(made), (), tuple(Op("aten.x", (i - 1,) if i else (), f"{i}:aten.x") for i in range(ops)), ())


def test_values_that_several_leaves_compute_are_cut_first_then_those_of_which_most_is_computed() -> None:
    told = anatomy((0, 1), (0, 1), (2,))
    found = ranked_cuts(told, [("2:aten.x",), ("0:aten.x",), ("1:aten.x",), ("9:aten.gone",)])
    assert [one.plan.cuts for one in found] == [("1:aten.x",), ("0:aten.x",), ("2:aten.x",)]


def test_of_values_that_one_leaf_computes_only_some_are_cut() -> None:
    told = anatomy(tuple(range(30)), ops=30)
    assert len(ranked_cuts(told, [(f"{i}:aten.x",) for i in range(30)])) == MAX_UNSHARED


def test_equal_places_are_cut_together() -> None:
    (one,) = ranked_cuts(anatomy((0,), (1,)), [("0:aten.x", "1:aten.x")])
    assert one.plan.cuts == ("0:aten.x", "1:aten.x")
    assert one.label == "cut 0:aten.x and 1 like it"


CUT, OTHER = Plan(cuts=("3:aten.where.self",)), Plan(cuts=("7:aten.exp.default",))
KNOB, LOWER = Plan(config=(("realize_reads_threshold", 1),)), Plan(config=(("realize_reads_threshold", 2),))


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        (CUT, OTHER, Plan(cuts=("3:aten.where.self", "7:aten.exp.default"))),
        (CUT, KNOB, Plan(cuts=CUT.cuts, config=KNOB.config)),
        (Plan(native=(GELU,)), Plan(native=(SILU,)), Plan(native=(GELU, SILU))),
        (Plan(native=(GELU,)), Plan(native=(f"{GELU}#1", SILU)), Plan(native=(GELU, SILU))),
        (Plan(native=(GELU,)), CUT, None),
        (
            Plan(native=(GELU,), cuts=("2:aten.exp.default",)),
            KNOB,
            Plan(("inductor"), (GELU,), KNOB.config, ("2:aten.exp.default",)),
        ),
        (KNOB, LOWER, None),
        (CUT, Plan(compiler="eager"), None),
        (CUT, Plan(groups=(("1:8|:ComputedBuffer.Pointwise:0",),)), None),
    ],
)
def test_two_choices_become_one_that_has_what_both_have(first: Plan, second: Plan, both: Plan | None) -> None:
    assert joined(first, second) == both


def test_a_cut_is_found_again_by_its_operation_where_that_is_unmistakable() -> None:
    sites = [
        ("4:aten.where.self",),
        ("5:aten.exp.default",),
        ("8:aten.exp.default",),
        ("9:aten.mul.Tensor", "10:aten.mul.Tensor"),
    ]
    assert moved_cuts(("3:aten.where.self",), sites) == ("4:aten.where.self",)
    assert moved_cuts(("4:aten.exp.default",), sites) == ()
    assert moved_cuts(("1:aten.mul.Tensor",), sites) == ()
    assert moved_cuts(("1:aten.mul.Tensor", "2:aten.mul.Tensor"), sites) == ("10:aten.mul.Tensor", "9:aten.mul.Tensor")


def test_broad_changes_come_before_narrow_ones_and_each_dimension_has_its_turn() -> None:
    cuts = ranked_cuts(anatomy((0,), (1,), (2,)), [("0:aten.x",), ("1:aten.x",), ("2:aten.x",)])
    found = list(first_choices((("1:8|:A:0", "2:8|:A:0"),), [GELU, GELU, SILU], cuts, [Candidate("knob", KNOB)]))
    labels = [one.label for one in found]
    assert labels[:6] == ["no fusion", "eager", f"native {GELU}", f"native {SILU}", "knob", cuts[0].label]
    assert labels[-2:] == [f"native {GELU}#0", f"native {GELU}#1"]
