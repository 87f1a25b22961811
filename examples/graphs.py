"""Workloads to tune, each small enough for a laptop's CPU.

Every public function is a SPEC, `examples/graphs.py:NAME`: it returns a callable or a module, and its example inputs. All but
`layer_norm_step` are inference graphs: modules are in eval mode, nothing requires a gradient. No shape depends on data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Workload = tuple[Callable[..., Any], tuple[Any, ...]]


def random_numbers(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    """Normal float32 numbers that are the same in every process, whatever was drawn before."""
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def random_int8(*shape: int, seed: int) -> Tensor:
    """Uniform int8 numbers from -127 to 127, the range of symmetric quantisation."""
    return torch.randint(-127, 128, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int8)


def made(build: Callable[[], nn.Module]) -> nn.Module:
    """The module with the same parameters in every process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build()


def for_inference(build: Callable[[], nn.Module]) -> nn.Module:
    """The module in eval mode, without gradients, with the same parameters in every process."""
    return made(build).eval().requires_grad_(False)


def encoder_layer() -> Workload:
    """A transformer encoder layer: 64 tokens, width 256, 4 heads, feed-forward 1024, GELU."""

    class EncoderLayer(nn.Module):
        def __init__(self, width: int = 256, heads: int = 4, hidden: int = 1024) -> None:
            super().__init__()
            self.heads = heads
            self.qkv = nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width)
            self.norm1 = nn.LayerNorm(width)
            self.norm2 = nn.LayerNorm(width)
            self.feed_forward = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

        def forward(self, x: Tensor) -> Tensor:
            batch, tokens, width = x.shape
            qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
            query, key, value = qkv.permute(2, 0, 3, 1, 4)
            attended = functional.scaled_dot_product_attention(query, key, value)
            x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
            return x + self.feed_forward(self.norm2(x))

    return for_inference(EncoderLayer), (random_numbers(1, 64, 256, seed=1),)


def layer_norm_residual_gelu() -> Workload:
    """Layer norm of a sum, then GELU, then the residual again: 256 rows of 1024."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(1024)

        def forward(self, x: Tensor, residual: Tensor) -> Tensor:
            summed = x + residual
            return summed + functional.gelu(self.norm(summed))

    return for_inference(Block), (random_numbers(256, 1024, seed=1), random_numbers(256, 1024, seed=2))


def masked_softmax() -> Workload:
    """Attention weights of 8 heads, 256 x 256, with an additive bias per head and a causal mask."""

    def attention_weights(scores: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
        masked = torch.where(mask, scores * 0.125 + bias, -1e9)
        return torch.softmax(masked, dim=-1)

    mask = torch.ones(256, 256, dtype=torch.bool).tril()
    return attention_weights, (random_numbers(1, 8, 256, 256, seed=1, scale=8.0), random_numbers(8, 256, 256, seed=2), mask)


def int8_dequantise_gelu() -> Workload:
    """Dequantise int8 activations with one scale a channel, add the bias, GELU: 512 rows of 1024."""

    def dequantise(quantised: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        return functional.gelu(quantised.to(torch.float32) * scale + bias)

    scale = 0.02 + 0.01 * random_numbers(1024, seed=2).abs()
    return dequantise, (random_int8(512, 1024, seed=1), scale, random_numbers(1024, seed=3, scale=0.1))


def adamw_step() -> Workload:
    """One AdamW step on a 512 x 512 parameter; updates the parameter and both moments in place."""
    rate, decay, beta1, beta2, eps, step = 1e-3, 1e-2, 0.9, 0.999, 1e-8, 100

    def update(param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor) -> None:
        param.mul_(1 - rate * decay)
        exp_avg.lerp_(grad, 1 - beta1)
        exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        denominator = (exp_avg_sq.sqrt() / (1 - beta2**step) ** 0.5).add_(eps)
        param.addcdiv_(exp_avg, denominator, value=-rate / (1 - beta1**step))

    param, grad, exp_avg = (random_numbers(512, 512, seed=seed, scale=0.02) for seed in (1, 2, 3))
    return update, (param, grad, exp_avg, random_numbers(512, 512, seed=4, scale=0.02).square())


def rms_norm_swiglu() -> Workload:
    """RMS norm, then the gate of SwiGLU on the two halves: 256 rows of 2048."""

    def gated(x: Tensor, weight: Tensor) -> Tensor:
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
        gate, value = normed.chunk(2, dim=-1)
        return functional.silu(gate) * value

    return gated, (random_numbers(256, 2048, seed=1), 1.0 + random_numbers(2048, seed=2, scale=0.1))


def group_norm_silu() -> Workload:
    """Group norm in 8 groups, then SiLU: two images of 64 channels, 64 x 64."""
    block = for_inference(lambda: nn.Sequential(nn.GroupNorm(8, 64), nn.SiLU()))
    return block, (random_numbers(2, 64, 64, 64, seed=1),)


def row_statistics() -> Workload:
    """Mean, standard deviation, largest magnitude and share of positive values of each row: 512 rows of 1024."""

    def statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return x.mean(-1), x.std(-1), x.abs().amax(-1), (x > 0).to(torch.float32).mean(-1)

    return statistics, (random_numbers(512, 1024, seed=1),)


def layer_norm_step() -> Workload:
    """A training step of a linear layer, layer norm of its sum with a residual, and GELU: 256 rows of 512."""

    class Block(nn.Module):
        def __init__(self, width: int = 512) -> None:
            super().__init__()
            self.linear = nn.Linear(width, width)
            self.norm = nn.LayerNorm(width)

        def forward(self, x: Tensor, residual: Tensor) -> Tensor:
            summed = self.linear(x) + residual
            return summed + functional.gelu(self.norm(summed))

    return made(Block), (random_numbers(256, 512, seed=1), random_numbers(256, 512, seed=2))
