"""Outputs agree with a reference within the tolerance of their dtype, or they do not."""

from __future__ import annotations

import math

import pytest
import torch

from tuner.measure.correctness import TOLERANCES, deviation

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
EXACT = [torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.complex64]
NAN, INF = float("nan"), float("inf")


def drawn(dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(40, 30, generator=generator) < 0.5
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(40, 30, generator=generator).to(dtype)
    return torch.randint(0, 100, (40, 30), generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, *EXACT])
def test_equal_outputs_do_not_deviate(dtype):
    assert deviation([drawn(dtype)], [drawn(dtype)]) == 0.0


def test_the_limit_is_one():
    assert all(0 < atol < rtol < 0.1 for rtol, atol in TOLERANCES.values())
    reference = torch.full((10,), 2.0)
    rtol, atol = TOLERANCES[torch.float32]
    just = 2.0 * (rtol + atol)
    assert deviation([reference + 0.9 * just], [reference]) < 1 < deviation([reference + 1.1 * just], [reference])
    assert deviation([reference + 3 * just], [reference]) == pytest.approx(3, rel=0.01)


@pytest.mark.parametrize("dtype", FLOATS)
def test_rounding_at_another_place_is_within_the_tolerance(dtype):
    reference = drawn(dtype)
    for nudged in (
        reference * (1 + torch.finfo(dtype).eps),
        torch.nextafter(reference.double(), torch.tensor(INF).double()).to(dtype),
    ):
        assert deviation([nudged], [reference]) <= 1


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("place", [0, 599, 1199])
def test_one_wrong_element_among_many_is_noticed(dtype, place):
    wrong = drawn(dtype)
    wrong.view(-1)[place] += 0.5
    assert deviation([wrong], [drawn(dtype)]) > 1
    assert deviation([drawn(dtype), wrong], [drawn(dtype), drawn(dtype)]) > 1


@pytest.mark.parametrize("dtype", EXACT)
def test_integers_and_booleans_agree_exactly_or_not_at_all(dtype):
    wrong = drawn(dtype)
    wrong[3, 4] = wrong[3, 4] == 0 if dtype == torch.bool else wrong[3, 4] + 1
    assert deviation([wrong], [drawn(dtype)]) == INF


def test_large_integers_are_not_compared_as_floats():
    assert deviation([torch.tensor([2**62 + 1])], [torch.tensor([2**62])]) == INF


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_agrees_with_nan_and_infinity_with_itself(dtype):
    odd = torch.tensor([NAN, INF, -INF, 1.0], dtype=dtype)
    assert deviation([odd], [odd.clone()]) == 0.0


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("output", "reference"),
    [(NAN, 1.0), (1.0, NAN), (INF, 1.0), (1.0, INF), (INF, -INF), (-INF, INF), (NAN, INF), (INF, NAN), (NAN, 0.0)],
)
def test_other_values_that_are_not_finite_never_agree(dtype, output, reference):
    assert deviation([torch.tensor([1.0, output], dtype=dtype)], [torch.tensor([1.0, reference], dtype=dtype)]) == INF


def test_values_beside_an_infinity_are_still_compared():
    reference = torch.tensor([INF, NAN, 1.0, 2.0])
    assert deviation([torch.tensor([INF, NAN, 1.0, 2.0 + 1e-6])], [reference]) < 1
    assert 1 < deviation([torch.tensor([INF, NAN, 1.0, 2.1])], [reference]) < INF


def test_small_values_are_judged_by_the_largest_of_their_tensor():
    reference = torch.tensor([1000.0, 0.0])
    assert deviation([torch.tensor([1000.0, 1e-3])], [reference]) <= 1
    assert deviation([torch.tensor([1000.0, 1.0])], [reference]) > 1


def test_a_reference_of_zeros_asks_for_zeros():
    zeros = torch.zeros(5)
    assert deviation([zeros.clone()], [zeros]) == 0.0
    assert deviation([-zeros], [zeros]) == 0.0
    assert deviation([zeros + 1e-3], [zeros]) > 1


@pytest.mark.parametrize(
    "output",
    [
        pytest.param(torch.ones(3, dtype=torch.float64), id="dtype"),
        pytest.param(torch.ones(4), id="shape"),
        pytest.param(torch.ones(3, 1), id="dimensions"),
        pytest.param(torch.ones(1), id="broadcastable"),
        pytest.param(torch.tensor(1.0), id="scalar"),
        pytest.param(torch.ones(0), id="nothing"),
        pytest.param(None, id="None"),
        pytest.param(1.0, id="number"),
    ],
)
def test_outputs_of_another_kind_never_agree(output):
    assert deviation([output], [torch.ones(3)]) == INF
    assert deviation([torch.ones(3)], [output]) == INF


def test_strides_do_not_count():
    assert deviation([drawn(torch.float32).t().contiguous().t()], [drawn(torch.float32)]) == 0.0


def test_the_number_of_outputs_counts():
    one = torch.ones(3)
    assert deviation([one], [one, one]) == INF
    assert deviation([], [one]) == INF
    assert deviation([], []) == 0.0


def test_tensors_without_elements_agree():
    assert deviation([torch.ones(0, 3)], [torch.ones(0, 3)]) == 0.0
    assert deviation([torch.ones(0, 3)], [torch.ones(3, 0)]) == INF


def test_outputs_that_are_no_tensors_are_compared_as_they_are():
    assert deviation([None, 3, True], [None, 3, True]) == 0.0
    assert deviation([3], [4]) == INF
    assert deviation([1], [True]) == INF


def test_the_largest_deviation_is_the_one_that_is_told():
    reference = [torch.full((4,), 1.0), torch.full((4,), 1.0)]
    small, large = torch.full((4,), 1.0 + 1e-6), torch.full((4,), 1.0 + 1e-3)
    told = deviation([small, large], reference)
    assert told == deviation([large, small], reference) == deviation([large], reference[:1])
    assert math.isfinite(told)
    assert told > deviation([small], reference[:1])
