"""Regions: what belongs together, what stands between, and what is built alike."""

from __future__ import annotations

import pytest
from drawn import Drawing, random_anatomy, shuffled

from tuner.anatomy import Anatomy, Buffer, Leaf
from tuner.search_spaces.fusion import groups_within, lifted, regions, regrouped


def islands(drawing: Drawing, *groups: str) -> set[str]:
    """The leaves of each region's occurrence, by their names."""
    names = [*drawing.names]
    return {
        " ".join(sorted(names[leaf] for leaf in occurrence))
        for region in regions(drawing.anatomy(*groups))
        for occurrence in region.occurrences
    }


def drawing(*given: str) -> Drawing:
    found = Drawing()
    found.given(*given or ["x"])
    return found


def test_what_is_made_and_what_it_is_made_into_belong_together():
    graph = drawing()
    graph.leaf("mean", ["x"], bytes=64)
    graph.leaf("centre", ["x", "mean"])
    graph.leaf("gelu", ["centre"])
    assert islands(graph) == {"centre gelu mean"}


def test_a_library_call_stands_between_and_is_in_no_region():
    graph = drawing()
    graph.leaf("gelu", ["x"])
    graph.leaf("mm", ["gelu"], library=True)
    graph.leaf("bias", ["mm"])
    assert islands(graph) == {"gelu", "bias"}


def test_what_is_used_again_after_a_library_call_does_not_join_both_sides():
    """A residual: the sum after the call reads what was made before it."""
    graph = drawing()
    graph.leaf("norm", ["x"])
    graph.leaf("mm", ["norm"], library=True)
    graph.leaf("add", ["mm", "norm"])
    assert islands(graph) == {"norm", "add"}


def test_those_that_read_one_large_value_belong_together():
    graph = drawing()
    graph.leaf("columns", ["x"], bytes=64, escapes=True)
    graph.leaf("rows", ["x"], bytes=64, escapes=True)
    graph.leaf("qkv", ["x"], library=True)
    graph.leaf("q", ["qkv"])
    graph.leaf("k", ["qkv"])
    graph.leaf("v", ["qkv"])
    assert islands(graph) == {"columns rows", "k q v"}


def test_a_small_value_that_many_read_joins_none_of_them():
    graph = drawing("a", "b")
    graph.given("rate", bytes=4)
    graph.leaf("step1", ["a", "rate"])
    graph.leaf("step2", ["b", "rate"])
    assert islands(graph) == {"step1", "step2"}
    assert islands(graph, "step1 step2") == {"step1 step2"}, "unless the compiler groups them itself"


def layers(count: int, *, mask: str, first: str = "") -> Drawing:
    """Layers of attention in short: masked scores between two library calls. mask: "given", or "made" by a leaf."""
    graph = drawing("x", "ids" if mask == "made" else "mask")
    if mask == "made":
        graph.leaf("mask", ["ids"])
    now = "x"
    for i in range(count):
        graph.leaf(f"mm{i}", [now], library=True)
        graph.leaf(f"max{i}", [f"mm{i}", "mask"], bytes=64)
        graph.leaf(f"exp{i}", [f"mm{i}", "mask", f"max{i}"])
        graph.leaf(f"bmm{i}", [f"exp{i}"], library=True)
        graph.leaf(f"add{i}", [f"bmm{i}", now], content=first if first and not i else "add")
        now = f"add{i}"
    return graph


def test_a_mask_that_all_layers_read_does_not_join_them():
    graph = layers(3, mask="given")
    assert islands(graph) == {f"exp{i} max{i}" for i in range(3)} | {f"add{i}" for i in range(3)}


def test_a_mask_that_is_made_belongs_to_the_first_layer_that_reads_it():
    graph = layers(3, mask="made")
    assert islands(graph) == {"exp0 mask max0", *(f"exp{i} max{i}" for i in (1, 2)), *(f"add{i}" for i in range(3))}


def test_what_could_run_first_of_all_belongs_to_what_needs_it():
    graph = drawing("x", "weight")
    graph.leaf("mm", ["x"], library=True)
    graph.leaf("half", ["weight"])
    graph.leaf("shift", ["half"])
    graph.leaf("add", ["mm", "shift"])
    graph.leaf("dequantised", ["weight"], bytes=1 << 20)
    graph.leaf("mm1", ["add", "dequantised"], library=True)
    assert islands(graph) == {"add half shift", "dequantised"}


@pytest.mark.parametrize("count", [2, 4, 16])
def test_equal_layers_are_one_region_each_place_in_the_same_order(count):
    anatomy = layers(count, mask="given").anatomy()
    found = regions(anatomy)
    assert [len(region.occurrences) for region in found] == [count, count - 1, 1], "what the last layer makes, nobody reads"
    for region in found:
        for occurrence in region.occurrences:
            contents = [anatomy.leaves[leaf].content for leaf in occurrence]
            assert contents == [anatomy.leaves[leaf].content for leaf in region.occurrences[0]]


def test_a_region_keeps_its_key_when_its_neighbours_change():
    kept = {region.key for region in regions(layers(3, mask="given").anatomy())}
    changed = {region.key for region in regions(layers(5, mask="given", first="other").anatomy())}
    assert len(kept) == 3
    assert kept < changed
    assert len(changed) == 4


def test_what_one_group_holds_is_in_one_region_even_across_levels():
    graph = drawing("x", "y")
    graph.leaf("mm", ["x"], library=True)
    graph.leaf("early", ["y"], escapes=True)
    graph.leaf("late", ["mm"])
    assert islands(graph) == {"early", "late"}
    assert islands(graph, "early late") == {"early late"}


def test_a_group_with_a_library_call_in_it_is_in_no_region():
    """A template with its epilogue."""
    graph = drawing()
    graph.leaf("mm", ["x"], library=True)
    graph.leaf("relu", ["mm"])
    graph.leaf("gelu", ["relu"])
    assert islands(graph, "mm relu") == {"gelu"}


def test_groups_that_no_scheduler_could_have_made_are_not_believed():
    graph = drawing()
    graph.leaf("a", ["x"])
    graph.leaf("mm", ["a"], library=True)
    graph.leaf("b", ["mm"])
    assert islands(graph, "a b") == {"a", "b"}


@pytest.mark.parametrize("seed", range(40))
def test_no_way_between_leaves_of_a_region_leads_through_a_barrier(seed):
    anatomy = random_anatomy(seed, count=20)
    barriers = [number for number, leaf in enumerate(anatomy.leaves) if not leaf.fusable]
    for region in regions(anatomy):
        for occurrence in region.occurrences:
            above = [b for b in barriers if reaches(anatomy, {*occurrence}, {b})]
            assert not any(reaches(anatomy, {b}, {*occurrence}) for b in above)


def reaches(anatomy: Anatomy, start: set[int], end: set[int]) -> bool:
    todo, seen = [*start], set()
    while todo:
        for following in anatomy.followers[todo.pop()]:
            if following not in seen:
                seen.add(following)
                todo.append(following)
    return bool(seen & end)


@pytest.mark.parametrize("seed", range(40))
def test_each_leaf_that_is_fusable_is_in_one_region(seed):
    anatomy = random_anatomy(seed, count=20)
    found = [leaf for region in regions(anatomy) for occurrence in region.occurrences for leaf in occurrence]
    assert sorted(found) == [number for number, leaf in enumerate(anatomy.leaves) if leaf.fusable]


@pytest.mark.parametrize("seed", range(20))
def test_regions_are_the_same_however_leaves_are_numbered(seed):
    anatomy = random_anatomy(seed, count=20)
    other, new = shuffled(anatomy, seed)
    for region, again in zip(*(sorted(regions(one), key=lambda region: region.key) for one in (anatomy, other)), strict=True):
        assert region.key == again.key
        assert {frozenset(new[leaf] for leaf in one) for one in region.occurrences} == {
            frozenset(one) for one in again.occurrences
        }


def test_groups_are_lifted_to_all_occurrences():
    graph = layers(3, mask="given")
    anatomy, names = graph.anatomy(), [*graph.names]
    (region,) = [region for region in regions(anatomy) if len(region.occurrences[0]) == 2]
    groups = lifted(anatomy, region, [frozenset(region.occurrences[0])])
    assert {" ".join(sorted(names[leaf] for leaf in group)) for group in groups} == {f"exp{i} max{i}" for i in range(3)}


def test_a_grouping_is_changed_where_groups_are_given_and_nowhere_else():
    graph = drawing()
    for name, reads in [("a", "x"), ("b", "a"), ("c", "b"), ("d", "c")]:
        graph.leaf(name, [reads])
    anatomy = graph.anatomy("a b", "c d")
    ids = [leaf.id for leaf in anatomy.leaves]
    assert regrouped(anatomy, []) == anatomy.groups
    assert regrouped(anatomy, [frozenset({1, 2})]) == ((ids[0],), (ids[1], ids[2]), (ids[3],))
    assert groups_within(anatomy, [1, 2, 3]) == [{1}, {2, 3}]


def test_ten_thousand_leaves_are_divided_into_regions():
    """Once, this took minutes when something was quadratic: the test would not end."""
    count, leaves = 10_000, []
    buffers = [Buffer("float32[1024]{1}", 4096, "input")] + [Buffer("float32[1024]{1}", 4096, "leaf")] * count
    for i in range(count):
        library = i % 10 == 9
        reads = (0, i) if i % 3 and not library else (i,)
        leaves.append(Leaf(f"{i}:8|:X:0", "X", not library, f"{i % 10}", reads, (i + 1,), (i - 1,) if i else (), ()))
    anatomy = Anatomy(tuple(leaves), tuple(buffers), (), tuple((leaf.id,) for leaf in leaves))
    found = regions(anatomy)
    assert sum(len(region.occurrences) for region in found) == 1000
    assert len(found) <= 5
