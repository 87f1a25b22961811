"""Whether the values of an outcome agree with what they should be."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

# One unit is what rounding alone explains: this many units in the last place of the value, and as much of SCALE_SHARE of its
# tensor's root mean square, where small values come of large ones. Measured on compiled graphs: tests/measure/test_reference.py.
ULPS = 2.0
SCALE_SHARE = 0.25
# Inside, compiled code computes in float32 or wider, and its functions are good to a few units too. Adding n terms in another
# order changes about sqrt(n) units in the last place of that, of which one eager number may show nothing by chance. (Higham and
# Mary, A new approach to probabilistic rounding error analysis, 2019.)
INNER_EPS = torch.finfo(torch.float32).eps
# How much worse than eager's own error a candidate's may be. Float32 differs by the algorithm of sums, which compilers choose;
# narrower dtypes by the places where values are rounded to them, of which no candidate has more than eager.
EAGER_FACTORS = {torch.float32: 8.0}
EAGER_FACTOR = 3.0
# Half of the elements, where they are many, are off by less than this share of a unit, for chance spares them.
BULK_SHARE = 0.25
MANY = 64
# An error may be found in so many times more elements than eager shows one of that size in.
SPREAD = 4
# Where eager itself is all there is to compare with: relative, and absolute in root mean squares of the tensor. Wider than
# torch.testing's, which compares single operations: a graph is a chain of them, and fused code rounds at other places.
FLAT = {torch.float64: (1e-7, 1e-9), torch.float32: (1e-4, 1e-5), torch.float16: (1e-2, 1e-3), torch.bfloat16: (4e-2, 4e-3)}
FLAT_EPS = (8.0, 1.0)
# Elements that are compared at a time: bounds the memory of wide copies.
CHUNK = 1 << 20
# Errors are kept in float32.
LARGEST_ERROR = 1e38


@dataclass(frozen=True, eq=False)
class Expected:
    """What one value of an outcome should be: what eager made of it, and the same without eager's rounding.

    eager: a tensor, or another value, which is to be met exactly. exact: a tensor of that shape, in float64 unless eager's is of
    integers or booleans. rtol, atol: what is allowed whatever eager's error is, relative to the element and absolute.
    errors: eager's errors in units of that (of integers: as they are), float32, the largest 1/SPREAD of them, the largest first.
    """

    eager: object
    exact: Tensor | None = None
    rtol: float = 0.0
    atol: float = 0.0
    errors: Tensor | None = None


def expect(eager: object, exact: object, flat: bool, inputs: int = 0) -> Expected:
    """What is expected of a value of which eager made `eager`, and the reference run `exact`.

    inputs: elements of the largest input of the graph, for how many an element of a smaller output is a sum at most.
    flat: the reference is no better than eager, whose error is therefore unknown: the tolerance is that of the dtype.
    """
    if not isinstance(eager, Tensor) or not isinstance(exact, Tensor):
        return Expected(eager)
    eager, exact = _real(eager), _real(exact)
    rtol = atol = 0.0
    if eager.is_floating_point():
        eps = torch.finfo(eager.dtype).eps
        terms = max(1, inputs // max(1, eager.numel()))
        rtol = ULPS * (eps + INNER_EPS) + INNER_EPS * math.sqrt(terms)
        share = rtol * SCALE_SHARE
        if flat or eager.dtype == torch.float64:
            rtol, share = FLAT.get(eager.dtype, (FLAT_EPS[0] * eps, FLAT_EPS[1] * eps))
        # Small numbers are rounded to multiples of the smallest, or to zero.
        smallest = max(ULPS * eps * torch.finfo(eager.dtype).tiny, torch.finfo(torch.float32).tiny)
        atol = share * _root_mean_square(exact) + smallest
    expected = Expected(eager, exact, rtol, atol)
    errors = _errors(eager, expected, own=True)
    return Expected(eager, exact, rtol, atol, errors.topk(-(-len(errors) // SPREAD)).values)


def excusing(expected: Expected, other: Expected) -> Expected:
    """`expected`, with the errors of another eager run of the same allowed for as well."""
    if expected.errors is None or other.errors is None or expected.errors.shape != other.errors.shape:
        return expected
    return replace(expected, errors=torch.maximum(expected.errors, other.errors))


def deviation_of(value: object, expected: Expected) -> float:
    """How far `value` is from what is expected, in units of the tolerance: up to 1 it agrees. Infinite where it cannot.

    The errors of all elements are ranked, and the k-th largest is held against the k/SPREAD-th largest of eager's: eager's few
    worst elements (of a division by nearly nothing, of a comparison that falls the other way) excuse as few, not all. Integers
    and booleans that are neither eager's nor the exact ones are excused likewise, and only where eager's are not exact. NaN and
    infinities must be where eager or the exact values have them. Strides do not count; what is no tensor must be eager's own.
    """
    eager = expected.eager
    if not isinstance(eager, Tensor) or not isinstance(value, Tensor):
        return 0.0 if type(value) is type(eager) and value == eager else math.inf
    value = _real(value)
    if value.dtype != eager.dtype or value.shape != eager.shape:
        return math.inf
    if value.numel() == 0:
        return 0.0
    assert expected.errors is not None
    errors = _errors(value, expected)
    if not bool(errors.isfinite().all()):
        return math.inf
    # Smaller errors are allowed at any rank, and are most of them.
    ranked = errors[errors > BULK_SHARE].sort(descending=True).values
    excused = expected.errors[: -(-len(ranked) // SPREAD)].repeat_interleave(SPREAD)[: len(ranked)]
    if not eager.is_floating_point():
        return 0.0 if bool((ranked <= excused).all()) else math.inf
    if len(ranked) == 0:
        return float(errors.max())
    allowed = 1.0 + EAGER_FACTORS.get(eager.dtype, EAGER_FACTOR) * excused
    if len(errors) >= MANY:
        allowed[len(errors) // 2 :] -= 1.0 - BULK_SHARE
    return float((ranked / allowed).max())


def deviation(values: Sequence[object], wanted: Sequence[object]) -> float:
    """The same for values of which only others are known that should be like them, as of another compilation."""
    if len(values) != len(wanted):
        return math.inf
    return max(
        (deviation_of(value, expect(like, like, flat=True)) for value, like in zip(values, wanted, strict=True)), default=0.0
    )


def _real(value: Tensor) -> Tensor:
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    flat = [tensor.reshape(-1) for tensor in tensors]
    for start in range(0, flat[0].numel(), CHUNK):
        yield tuple(tensor[start : start + CHUNK] for tensor in flat)


def _root_mean_square(exact: Tensor) -> float:
    total, count = 0.0, 0
    for (part,) in _chunks(exact):
        finite = part.double()
        finite = finite[finite.isfinite()]
        total, count = total + float(finite.square().sum()), count + finite.numel()
    return math.sqrt(total / count) if count and math.isfinite(total) else 0.0


def _errors(value: Tensor, expected: Expected, own: bool = False) -> Tensor:
    """Each element's error, flat, float32, of floats in units of rtol and atol. own: `value` is eager's, no excuse for itself."""
    assert isinstance(expected.eager, Tensor)
    assert expected.exact is not None
    errors = torch.empty(value.numel(), dtype=torch.float32, device=value.device)
    compare = functools.partial(_float_errors, expected) if value.is_floating_point() else _integer_errors
    place = 0
    for v, eager, exact in _chunks(value, expected.eager, expected.exact):
        errors[place : place + len(v)] = compare(v, eager, exact, own)
        place += len(v)
    return errors


def _float_errors(expected: Expected, value: Tensor, eager: Tensor, exact: Tensor, own: bool) -> Tensor:
    value, eager, dtype = value.double(), eager.double(), value.dtype
    exact = exact.double()
    # Past the largest number of its dtype a right value is infinite.
    rounded = exact.to(dtype).double()
    target = torch.where(exact.isfinite() | ~eager.isfinite(), exact, eager)
    errors = (value - target).abs() / (expected.rtol * target.abs() + expected.atol)
    errors = torch.where(value.isfinite() & target.isfinite(), errors.clamp_max(LARGEST_ERROR), math.inf)
    if own:
        return torch.where(errors.isfinite(), errors, 0.0)
    return torch.where(~value.isfinite() & (_same(value, eager) | _same(value, rounded)), 0.0, errors)


def _same(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | (a.isnan() & b.isnan())


def _integer_errors(value: Tensor, eager: Tensor, exact: Tensor, own: bool) -> Tensor:
    wrong = (value != exact) & ((value != eager) | own)
    # Not below 1 where the doubles of two different large integers are equal.
    return torch.where(wrong, (value.double() - exact.double()).abs().clamp_min(1.0), 0.0)
