"""Graphs that are small enough for every grouping to be tried: some ten leaves each, for `fusion_oracle.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fusion_graphs import numbers
from torch import Tensor
from torch.nn import functional

Workload = tuple[Callable[..., Any], tuple[Any, ...]]


def norm_gelu_sums() -> Workload:
    """Layer norm, GELU and the residual; sum and largest magnitude of each row."""

    def function(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        made = functional.gelu(functional.layer_norm(x + residual, (512,), weight, bias)) + residual
        return made, made.sum(-1), made.abs().amax(-1), made.square().mean(-1)

    return function, (numbers(256, 512, seed=1), numbers(256, 512, seed=2), numbers(512, seed=3), numbers(512, seed=4))


def statistics() -> Workload:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return x.mean(-1), x.abs().amax(-1), (x > 0).to(torch.float32).mean(-1), x.mean(0), x.abs().amax(0)

    return function, (numbers(512, 512, seed=1),)


def two_norms() -> Workload:
    """Two RMS norms of a residual stream, each with the gate of SwiGLU after it."""

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight

    def function(x: Tensor, gate: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
        x = x + functional.silu(gate) * norm(x, first)
        y = x + functional.silu(norm(x, second)) * gate
        return x, y, y.sum(-1), y.abs().amax(-1), x.sum(-1), gate.abs().amax(-1)

    return function, (numbers(256, 512, seed=1), numbers(256, 512, seed=2), numbers(512, seed=3), numbers(512, seed=4))


def distances() -> Workload:
    """Six measures of how far the rows of two matrices are apart."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        apart = (x - y).square().sum(-1), (x - y).abs().amax(-1), (x - y).abs().sum(-1)
        return *apart, (x * y).sum(-1), (x.abs() + y.abs()).sum(-1), (x * y > 0).to(torch.float32).sum(-1)

    return function, (numbers(512, 512, seed=1), numbers(512, 512, seed=2))


def smoothed_loss() -> Workload:
    """Cross-entropy with label smoothing and the square of the normaliser, of each row."""

    def function(logits: Tensor, picked: Tensor) -> tuple[Tensor, ...]:
        normaliser = logits.logsumexp(-1)
        right = (logits * picked).sum(-1)
        smoothed = normaliser - 0.9 * right - 0.1 * logits.mean(-1) + 1e-4 * normaliser.square()
        return smoothed, (logits - normaliser[:, None]).exp(), picked.sum(-1)

    picked = functional.one_hot(torch.arange(256) % 1024, 1024).to(torch.float32)
    return function, (numbers(256, 1024, seed=1, scale=3.0), picked)


def int8_scales() -> Workload:
    """Dequantise, GELU, and quantise again by rows; the scales beside it."""

    def function(quantised: Tensor, scale: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        made = functional.gelu(quantised.to(torch.float32) * scale + bias)
        largest = made.abs().amax(-1, keepdim=True) / 127 + 1e-6
        rounded = (made / largest).round().clamp(-127, 127).to(torch.int8)
        return rounded, largest, made.mean(0), made.sum(-1), made.square().mean(-1), made.amax(-1)

    quantised = torch.randint(-127, 128, (256, 512), generator=torch.Generator().manual_seed(1), dtype=torch.int8)
    return function, (quantised, numbers(512, seed=2, scale=0.02), numbers(512, seed=3))


GRAPHS = (norm_gelu_sums, statistics, two_norms, distances, smoothed_loss, int8_scales)
