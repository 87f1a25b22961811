"""Where a graph may be cut: one entry for each distinct place, however often it occurs."""

from __future__ import annotations

import pytest
from drawn import Drawing

from tuner.anatomy import Anatomy, Op
from tuner.search_spaces.cut_sites import cut_sites


def softmaxes(count: int, *, mask_first: bool = False, shared: bool = False) -> Anatomy:
    """Masked scores, each within two leaves. mask_first: the first one's mask is computed before its score, not after."""
    graph = Drawing()
    graph.given(*(f"x{i}" for i in range(count)))
    for i in range(count):
        start = len(graph.ops)
        if shared and i:
            ops = [Op("mul", ()), Op("where", (0, start))]
            numbers = [0, start, start + 1]
        elif mask_first and not i:
            ops = [Op("less", ()), Op("mul", ()), Op("where", (start, start + 1))]
            numbers = list(range(start, start + 3))
        else:
            ops = [Op("mul", ()), Op("less", ()), Op("where", (start, start + 1))]
            numbers = list(range(start, start + 3))
        for op in ops:
            graph.ops.append(Op(op.target, op.inputs, f"{len(graph.ops)}:{op.target}"))
        last = len(graph.ops) - 1
        graph.ops += [Op("amax", (last,)), Op("exp", (last, last + 1), f"{last + 2}:exp")]
        graph.leaf(f"highest{i}", [f"x{i}"], bytes=64, ops=[*numbers, last + 1])
        graph.leaf(f"exponential{i}", [f"x{i}", f"highest{i}"], ops=[*numbers, last + 2])
    return graph.anatomy()


def names(sites: list[tuple[str, ...]]) -> list[str]:
    """Each site by its ops, "where where"."""
    return [" ".join(cut.split(":")[1] for cut in cuts) for cuts in sites]


@pytest.mark.parametrize("count", [1, 2, 12])
def test_equal_places_of_equal_leaves_are_cut_together(count):
    sites = cut_sites(softmaxes(count))
    assert names(sites) == [" ".join([op] * count) for op in ("mul", "less", "where", "exp")]


def test_each_cut_is_in_one_entry():
    anatomy = softmaxes(3)
    assert sorted(cut for cuts in cut_sites(anatomy) for cut in cuts) == sorted(op.cut for op in anatomy.ops if op.cut)


def test_the_order_in_which_independent_operations_are_numbered_makes_no_other_place():
    assert sorted(names(cut_sites(softmaxes(2, mask_first=True)))) == ["exp exp", "less less", "mul mul", "where where"]


def test_a_value_that_several_layers_compute_is_a_place_of_its_own():
    """The first mask, in four leaves, is one value; the scores are two."""
    assert names(cut_sites(softmaxes(2, shared=True, mask_first=True))) == ["less", "mul mul", "where where", "exp exp"]


def test_the_same_operation_at_two_places_of_a_leaf_is_cut_by_itself():
    graph = Drawing()
    graph.given("x")
    graph.ops = [
        Op("mul", (), "0:mul"),
        Op("mul", (0,), "1:mul"),
        Op("neg", (), "2:neg"),
        Op("neg", (), "3:neg"),
        Op("add", (1, 2, 3)),
    ]
    graph.leaf("a", ["x"], ops=range(5))
    assert cut_sites(graph.anatomy()) == [("0:mul",), ("1:mul",), ("2:neg",), ("3:neg",)]


def test_leaves_that_compute_something_else_are_cut_by_themselves():
    graph = Drawing()
    graph.given("x")
    graph.ops = [Op("mul", (), "0:mul"), Op("exp", (0,)), Op("mul", (), "2:mul"), Op("exp", (2,))]
    graph.leaf("a", ["x"], ops=[0, 1])
    graph.leaf("b", ["x"], ops=[2, 3])
    assert cut_sites(graph.anatomy()) == [("0:mul",), ("2:mul",)]


def test_where_nothing_can_be_cut_there_are_no_places():
    graph = Drawing()
    graph.given("x")
    graph.ops = [Op("mul", ()), Op("exp", (0,))]
    graph.leaf("a", ["x"], ops=[0, 1])
    assert cut_sites(graph.anatomy()) == []
