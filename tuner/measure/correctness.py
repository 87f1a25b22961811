"""Whether outputs agree with a reference."""

from __future__ import annotations

from collections.abc import Sequence

import torch

# Relative and absolute tolerance by dtype; the absolute one is relative to the reference's largest magnitude. Wider than
# torch.testing's, which compares single operations: a graph is a chain of them, and fused code rounds at other places.
TOLERANCES = {
    torch.float64: (1e-7, 1e-9),
    torch.float32: (1e-4, 1e-5),
    torch.float16: (1e-2, 1e-3),
    torch.bfloat16: (4e-2, 4e-3),
}


def deviation(outputs: Sequence[object], reference: Sequence[object]) -> float:
    """Largest deviation of `outputs` from `reference` in units of the tolerance: up to 1 they agree. Infinite if they cannot.

    Tensors must agree in dtype and shape; integers and booleans exactly; NaN agrees with NaN, infinities with themselves.
    """
    if len(outputs) != len(reference):
        return float("inf")
    return max((_tensor_deviation(a, b) for a, b in zip(outputs, reference, strict=True)), default=0.0)


def _tensor_deviation(output: object, reference: object) -> float:
    if not isinstance(output, torch.Tensor) or not isinstance(reference, torch.Tensor):
        return 0.0 if type(output) is type(reference) and output == reference else float("inf")
    if output.dtype != reference.dtype or output.shape != reference.shape:
        return float("inf")
    if output.numel() == 0:
        return 0.0
    if output.dtype not in TOLERANCES:
        return 0.0 if torch.equal(output, reference) else float("inf")
    rtol, atol = TOLERANCES[output.dtype]
    a, b = output.double(), reference.double()
    same = (a == b) | (a.isnan() & b.isnan())
    if not bool((a.isfinite() & b.isfinite() | same).all()):
        return float("inf")
    finite = b[b.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    allowed = atol * scale + rtol * b.abs()
    excess = torch.where(same, 0.0, (a - b).abs() / allowed.clamp_min(torch.finfo(torch.float64).tiny))
    return float(excess.max())
