"""Values agree with what is expected of them within the tolerance, or they do not."""

from __future__ import annotations

import math

import pytest
import torch

from tuner.measure.correctness import FLAT, SPREAD, deviation, deviation_of, expect

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
EXACT = [torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint16]
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
    assert all(0 < atol < rtol < 0.1 for rtol, atol in FLAT.values())
    reference = torch.full((10,), 2.0)
    rtol, atol = FLAT[torch.float32]
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
    wrong[3, 4] = wrong[3, 4] == 0 if dtype == torch.bool else 101
    assert deviation([wrong], [drawn(dtype)]) == INF


def test_large_integers_are_not_compared_as_floats():
    for large, dtype in ((2**62, torch.int64), (2**63, torch.uint64)):
        assert deviation([torch.tensor([large + 1], dtype=dtype)], [torch.tensor([large], dtype=dtype)]) == INF


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


def test_small_values_are_judged_by_those_of_their_tensor():
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


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2])
def test_complex_numbers_and_float8_are_compared(dtype):
    value = drawn(torch.complex64) if dtype.is_complex else drawn(torch.float32).to(dtype)
    assert deviation([value], [value.clone()]) == 0.0
    wrong = value.clone()
    wrong[3, 4] = 100.0
    assert deviation([wrong], [value]) > 1
    wrong[3, 4] = NAN
    assert deviation([wrong], [value]) == INF


def exact_and_rounded(dtype: torch.dtype, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    exact = torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return exact, exact.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_tolerance_grows_with_the_error_of_eager(dtype):
    exact, eager = exact_and_rounded(dtype, 5000)
    off = (exact * (1 + 20 * torch.finfo(dtype).eps)).to(dtype)
    assert deviation_of(eager, expect(eager, exact, flat=False)) < 1
    assert deviation_of(off, expect(eager, exact, flat=False)) > 1
    assert deviation_of(off, expect(off, exact, flat=False)) < 1


def test_an_error_of_eager_in_few_elements_excuses_few():
    exact, eager = exact_and_rounded(torch.float32, 5000)
    eager[7] += 50.0
    expected = expect(eager, exact, flat=False)
    assert deviation_of(eager, expected) < 1
    for count in (1, SPREAD, SPREAD + 1, 5000):
        off = exact.to(torch.float32)
        off[-count:] += 40.0
        assert (deviation_of(off, expected) <= 1) == (count <= SPREAD)


@pytest.mark.parametrize("other", [3, 4])
def test_where_eager_itself_is_on_an_edge_either_integer_is_right(other):
    exact = torch.arange(100)
    eager = exact.clone()
    eager[3] = 4
    value = exact.clone()
    value[3] = other
    assert deviation_of(value, expect(eager, exact, flat=False)) == 0.0


def test_integers_on_an_edge_are_excused_in_few_places_and_by_no_more_than_eager_is_off():
    exact = torch.arange(100)
    eager = exact.clone()
    eager[3] = 4
    for step, places, agrees in ((1, [50], True), (2, [50], False), (1, range(50, 50 + SPREAD), True), (1, range(50, 60), False)):
        value = exact.clone()
        value[list(places)] += step
        assert (deviation_of(value, expect(eager, exact, flat=False)) == 0.0) == agrees
        assert deviation_of(value, expect(exact, exact, flat=False)) == INF, "nothing is excused where eager is exact"


@pytest.mark.parametrize(("value", "agrees"), [(INF, True), (60000.0, False), (-INF, False), (NAN, False)])
def test_an_overflow_is_right_where_the_exact_value_overflows(value, agrees):
    exact = torch.tensor([1.0, 1e5], dtype=torch.float64)
    eager = exact.to(torch.float16)
    assert eager[1] == INF
    assert (deviation_of(torch.tensor([1.0, value], dtype=torch.float16), expect(eager, exact, flat=False)) <= 1) == agrees


@pytest.mark.parametrize(("value", "agrees"), [(INF, True), (100.0, True), (-INF, False), (NAN, False), (110.0, False)])
def test_where_only_eager_overflows_its_infinity_and_the_exact_value_are_right(value, agrees):
    exact = torch.full((50,), 100.0, dtype=torch.float64)
    eager = exact.to(torch.float16)
    eager[7] = INF
    given = exact.to(torch.float16)
    given[7] = value
    assert (deviation_of(given, expect(eager, exact, flat=False)) <= 1) == agrees


def test_where_only_the_exact_run_is_not_finite_eager_decides():
    eager = torch.ones(50)
    exact = eager.double()
    exact[7] = NAN
    assert deviation_of(eager, expect(eager, exact, flat=False)) == 0.0
    for wrong in (NAN, INF, 1.1):
        value = eager.clone()
        value[7] = wrong
        assert (deviation_of(value, expect(eager, exact, flat=False)) <= 1) == math.isnan(wrong)


def test_numbers_too_small_for_their_dtype_may_be_zero():
    exact = torch.full((50,), 3e-8, dtype=torch.float64)
    for value in (0.0, 6e-8):
        given = torch.full((50,), value, dtype=torch.float16)
        assert deviation_of(given, expect(exact.to(torch.float16), exact, flat=False)) < 1
