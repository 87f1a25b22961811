"""Which knobs are proposed for a target and a graph: those that may change something there, and that nobody has set."""

from __future__ import annotations

import pytest

from tuner.search_spaces.inductor_knobs import KNOBS, REALIZE, fixed_by_user, knobs_for
from tuner.search_spaces.space import knob_candidates

CAT, VARIANCE, SCATTER = "aten.cat.default", "aten.var_mean.correction", "aten.scatter_add.default"


def test_every_knob_is_for_some_target() -> None:
    assert set(KNOBS) == {name for backend in ("cpu", "cuda", "hip") for name in knobs_for(backend, 2, numerics=True)}


def test_a_cpu_has_none_of_a_gpu_and_the_reverse() -> None:
    assert not [name for name in knobs_for("cpu", 2) if name.startswith(("triton.", "combo_"))]
    assert not [name for name in knobs_for("cuda") if name.startswith("cpp.")]


def test_what_deals_out_work_among_threads_needs_several() -> None:
    more = set(knobs_for("cpu", 2)) - set(knobs_for("cpu", 1))
    assert more == {"cpp.min_chunk_size", "cpp.fallback_scatter_reduce_sum"}


@pytest.mark.parametrize(
    ("calls", "name"),
    [
        ((CAT,), "force_pointwise_cat"),
        ((VARIANCE,), "cpp.use_two_step_variance_threshold"),
        (("aten.sum.dim_IntList",), "unroll_reductions_threshold"),
        (("aten.convolution.default",), "layout_optimization"),
        ((SCATTER,), "cpp.fallback_scatter_reduce_sum"),
    ],
)
def test_what_concerns_some_operations_needs_one_of_them(calls: tuple[str, ...], name: str) -> None:
    assert name in knobs_for("cpu", 2, calls)
    assert name not in knobs_for("cpu", 2, ["aten.add.Tensor", "aten.catalogue.default"])
    assert name in knobs_for("cpu", 2), "of a graph of which nothing is known"
    assert name in knobs_for("cpu", 2, ["higher_order.cond"]), "of one that holds others"


def test_what_a_user_has_set_is_his_by_config_or_variable() -> None:
    ambient = {"inductor": {"max_fusion_size": 8}, "environment": {"TORCHINDUCTOR_CPP_MIN_CHUNK_SIZE": "64"}}
    assert fixed_by_user(ambient) == {"max_fusion_size", "cpp.min_chunk_size"}
    assert fixed_by_user({"threads": 1, "inductor": {}, "environment": {}}) == frozenset()


def test_realising_everything_is_proposed_first_then_each_knob_alone() -> None:
    first, *rest = knob_candidates(knobs_for("cpu", 2))
    assert first.label == "realize all"
    assert [name for name, _ in first.plan.config] == sorted(knob.name for knob in REALIZE)
    assert all(len(one.plan.config) == 1 for one in rest)
    assert [one.label for one in knob_candidates({REALIZE[0].name: REALIZE[0]})] == [REALIZE[0].name] * 3
    assert list(knob_candidates({})) == []
