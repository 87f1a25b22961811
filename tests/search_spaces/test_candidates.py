"""What is tried first of a graph: in order of promise, each once, all of it valid."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import pytest

from tuner.plan import Groups, canonical_groups
from tuner.search_spaces.fusion import no_fusion
from tuner.search_spaces.inductor_knobs import KNOBS, knobs_for
from tuner.search_spaces.lowering import first_choices
from tuner.search_spaces.native import NATIVE_OPS
from tuner.search_spaces.parameters import Parameter
from tuner.search_spaces.space import Candidate, knob_candidates
from tuner.search_spaces.validate import check_plan, validate_plan

ON_CPU = knobs_for("cpu")


def candidates(groups: Groups, native: Iterable[str], knobs: Mapping[str, Parameter] = ON_CPU) -> Iterator[Candidate]:
    """All that is tried first but for cuts."""
    return first_choices(groups, native, [], knob_candidates(knobs))


def leaves(count: int) -> list[str]:
    return [f"{i}:16x{i + 1}|:ComputedBuffer.Pointwise:0" for i in range(count)]


def partition(count: int, seed: int) -> Groups:
    """A random partition of `count` leaves."""
    draw = random.Random(seed)
    groups: dict[int, list[str]] = {}
    for leaf in leaves(count):
        groups.setdefault(draw.randrange(count), []).append(leaf)
    return canonical_groups(groups.values())


PARTITIONS = [
    (),
    canonical_groups([leaves(1)]),
    canonical_groups([leaf] for leaf in leaves(3)),
    canonical_groups([leaves(2)]),
    canonical_groups([leaves(7)]),
    canonical_groups([leaves(4)[:2], leaves(4)[2:]]),
    *(partition(count, seed) for seed, count in enumerate((3, 5, 8, 13, 40))),
]


@pytest.mark.parametrize("groups", PARTITIONS, ids=lambda groups: f"{len(groups)} groups")
class TestGroupings:
    def test_no_fusion_leaves_every_leaf_alone(self, groups):
        alone = no_fusion(groups)
        assert all(len(group) == 1 for group in alone)
        assert sorted(leaf for (leaf,) in alone) == sorted(leaf for group in groups for leaf in group)


@pytest.mark.parametrize("groups", PARTITIONS, ids=lambda groups: f"{len(groups)} groups")
@pytest.mark.parametrize("native", [(), ("aten.silu.default", "aten.gelu.default"), tuple(NATIVE_OPS)], ids=len)
class TestCandidates:
    def test_none_comes_twice_and_none_is_the_default(self, groups, native):
        plans = [candidate.plan for candidate in candidates(groups, native)]
        assert len({plan.key for plan in plans}) == len(plans)
        assert not any(plan.is_default or plan.groups == groups for plan in plans)

    def test_all_of_them_are_valid(self, groups, native):
        for candidate in candidates(groups, native):
            assert check_plan(candidate.plan) is candidate.plan
            assert validate_plan(candidate.plan.to_json()) == candidate.plan
            assert candidate.label

    def test_every_native_op_comes_once(self, groups, native):
        found = [candidate.plan for candidate in candidates(groups, native) if candidate.plan.compiler == "inductor"]
        assert [plan.native for plan in found if plan.native] == [(op,) for op in sorted(native)]

    def test_eager_comes_once_and_decomposes_nothing(self, groups, native):
        (eager,) = [candidate.plan for candidate in candidates(groups, native) if candidate.plan.compiler == "eager"]
        assert eager.native == tuple(sorted(native))

    def test_every_trial_of_every_knob_comes_once_alone(self, groups, native):
        alone = [candidate.plan.config[0] for candidate in candidates(groups, native, KNOBS) if len(candidate.plan.config) == 1]
        assert Counter(alone) == Counter((name, value) for name, knob in KNOBS.items() for value in knob.trials)

    def test_of_groupings_no_fusion_comes_alone(self, groups, native):
        tried = [candidate.plan.groups for candidate in candidates(groups, native) if candidate.plan.groups is not None]
        assert tried == ([] if no_fusion(groups) == groups else [no_fusion(groups)])

    def test_they_come_in_the_same_order_every_time(self, groups, native):
        assert list(candidates(groups, native)) == list(candidates(groups, reversed(native)))


def test_broad_changes_come_before_narrow_ones():
    labels = [candidate.label for candidate in candidates(canonical_groups([leaves(4)]), ["aten.gelu.default"])]
    assert labels[:4] == ["no fusion", "eager", "native aten.gelu.default", "realize all"]
    assert labels[4 : 4 + len(ON_CPU)] == list(ON_CPU), "one value of each knob before the second of any"


def test_a_graph_in_which_nothing_is_fused_still_has_knobs_to_try():
    assert {candidate.label for candidate in candidates((), ())} == {"eager", "realize all", *ON_CPU}


def test_single_occurrences_of_an_op_come_after_its_kind():
    ops = ["aten.gelu.default", "aten.silu.default", "aten.gelu.default"]
    kept = [candidate.plan.native for candidate in candidates((), ops) if candidate.plan.compiler == "inductor"]
    wanted = ["aten.gelu.default", "aten.silu.default", "aten.gelu.default#0", "aten.gelu.default#1"]
    assert [native for native in kept if native] == [(name,) for name in wanted]


@pytest.mark.parametrize(("count", "single"), [(1, 0), (2, 2), (8, 8), (9, 0)])
def test_single_occurrences_are_tried_where_an_op_occurs_neither_once_nor_often(count, single):
    found = [candidate.plan.native for candidate in candidates((), ["aten.gelu.default"] * count)]
    assert sum("#" in name for native in found for name in native) == single


def test_however_many_kinds_occur_twice_few_single_occurrences_are_tried():
    found = [candidate.plan.native for candidate in candidates((), [*NATIVE_OPS, *NATIVE_OPS])]
    single = [name for native in found for name in native if "#" in name]
    assert len(single) == 12
    assert len({name.partition("#")[0] for name in single}) == min(12, len(NATIVE_OPS)), "no kind waits for all of another"
