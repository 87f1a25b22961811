"""The fixed list of graphs on which fusion search is judged. Every entry of GRAPHS is a SPEC, `benchmarks/fusion_graphs.py:NAME`.

Memory: what is bound by memory, and what Inductor fuses. Model: models of `transformers` with random weights, two layers each.
What ends in `_training` is run as training steps, forward and backward. `depth_N`: one model with N layers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Workload = tuple[Callable[..., Any], tuple[Any, ...]]
TRAINING = "_training"


@dataclass(frozen=True)
class Listed:
    """function: of this file. kind: "backward" is of a whole training step, forward and backward."""

    function: str
    group: Literal["memory", "model"]

    @property
    def kind(self) -> Literal["forward", "backward"]:
        return "backward" if self.function.endswith(TRAINING) else "forward"

    @property
    def name(self) -> str:
        return self.function.removesuffix(TRAINING)

    @property
    def phase(self) -> Literal["inference", "training"]:
        return "training" if self.kind == "backward" else "inference"

    @property
    def spec(self) -> str:
        return f"{__file__}:{self.function}"


def numbers(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    """Normal float32 numbers that are the same in every process."""
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def integers(high: int, *shape: int, seed: int) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def made(build: Callable[[], nn.Module]) -> nn.Module:
    """The module with the same parameters in every process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build()


def for_inference(build: Callable[[], nn.Module]) -> nn.Module:
    return made(build).eval().requires_grad_(False)


def masked_biased_softmax() -> Workload:
    """Attention weights of 8 heads, 128 x 128, with a bias for each head and a causal mask."""

    def weights(scores: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax(torch.where(mask, scores * 0.125 + bias, -1e9), dim=-1)

    mask = torch.ones(128, 128, dtype=torch.bool).tril()
    return weights, (numbers(8, 128, 128, seed=1, scale=8.0), numbers(8, 128, 128, seed=2), mask)


class NormResidualGelu(nn.Module):
    def __init__(self, width: int = 512):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        summed = x + residual
        return summed + functional.gelu(self.norm(summed))


def layer_norm_residual_gelu() -> Workload:
    return for_inference(NormResidualGelu), (numbers(256, 512, seed=1), numbers(256, 512, seed=2))


def layer_norm_residual_gelu_training() -> Workload:
    return made(NormResidualGelu), (numbers(256, 512, seed=1).requires_grad_(), numbers(256, 512, seed=2).requires_grad_())


def group_norm_silu() -> Workload:
    return for_inference(lambda: nn.Sequential(nn.GroupNorm(8, 64), nn.SiLU())), (numbers(4, 64, 32, 32, seed=1),)


def rms_norm_swiglu() -> Workload:
    """RMS norm of 64 rows of 256, two projections to 512, and the gate."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(1 + 0.1 * torch.randn(256))
            self.gate, self.up = nn.Linear(256, 512, bias=False), nn.Linear(256, 512, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight
            return functional.silu(self.gate(normed)) * self.up(normed)

    return for_inference(Gated), (numbers(64, 256, seed=1),)


def rotary_embedding() -> Workload:
    """Of queries and keys, by the two halves of each head; the angles are computed of the positions."""

    def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin

    def rotary(query: Tensor, key: Tensor, positions: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions[:, None, :, None] * inverse
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return turned(query, cos, sin), turned(key, cos, sin)

    inverse = 10_000.0 ** (-torch.arange(0, 64, 2) / 64)
    positions = torch.arange(128, dtype=torch.float32).expand(2, 128).contiguous()
    return rotary, (numbers(2, 8, 128, 64, seed=1), numbers(2, 8, 128, 64, seed=2), positions, inverse)


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits, labels)


def cross_entropy() -> Workload:
    return loss, (numbers(128, 8000, seed=1, scale=3.0), integers(8000, 128, seed=2))


def cross_entropy_training() -> Workload:
    return loss, (numbers(128, 8000, seed=1, scale=3.0).requires_grad_(), integers(8000, 128, seed=2))


def column_row_statistics() -> Workload:
    def statistics(x: Tensor) -> tuple[Tensor, ...]:
        return x.mean(-1), x.std(-1), x.abs().amax(-1), x.mean(0), x.std(0), x.abs().amax(0)

    return statistics, (numbers(512, 512, seed=1),)


def adamw_step() -> Workload:
    """Updates a parameter and both moments in place."""
    rate, decay, beta1, beta2, eps, step = 1e-3, 1e-2, 0.9, 0.999, 1e-8, 100

    def update(param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor) -> None:
        param.mul_(1 - rate * decay)
        exp_avg.lerp_(grad, 1 - beta1)
        exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        denominator = (exp_avg_sq.sqrt() / (1 - beta2**step) ** 0.5).add_(eps)
        param.addcdiv_(exp_avg, denominator, value=-rate / (1 - beta1**step))

    param, grad, exp_avg = (numbers(512, 512, seed=seed, scale=0.02) for seed in (1, 2, 3))
    return update, (param, grad, exp_avg, numbers(512, 512, seed=4, scale=0.02).square())


def int8_dequantise_bias_gelu() -> Workload:
    """One scale for each channel."""

    def dequantise(quantised: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        return functional.gelu(quantised.to(torch.float32) * scale + bias)

    quantised = (integers(255, 512, 512, seed=1) - 127).to(torch.int8)
    return dequantise, (quantised, 0.02 + 0.01 * numbers(512, seed=2).abs(), numbers(512, seed=3, scale=0.1))


def conv_batch_norm_residual_relu() -> Workload:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)

        def forward(self, x: Tensor) -> Tensor:
            return functional.relu(self.norm(self.conv(x)) + x)

    return for_inference(Block), (numbers(1, 32, 32, 32, seed=1),)


def moe_router() -> Workload:
    """Weights of the best 2 of 8 experts for each of 64 tokens, their places, and the loss that balances the load."""

    def router(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        share = torch.softmax(logits, dim=-1)
        best, chosen = share.topk(2, dim=-1)
        taken = functional.one_hot(chosen, 8).to(torch.float32).sum(1)
        balance = 8 * (taken.mean(0) * share.mean(0)).sum()
        return best / best.sum(-1, keepdim=True), chosen, balance

    return router, (numbers(64, 8, seed=1),)


class First(nn.Module):
    """A model of the library, called by the names of its inputs; gives the first of its outputs: of one with labels, the loss."""

    def __init__(self, model: nn.Module, *names: str):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> Tensor:
        first: Tensor = self.model(**dict(zip(self.names, inputs, strict=True)), return_dict=False)[0]
        return first


TOKENS, VOCABULARY = 64, 1000
TEXT = {"vocab_size": VOCABULARY, "max_position_embeddings": TOKENS, "hidden_size": 256, "num_attention_heads": 4}
TEXT |= {"intermediate_size": 1024, "num_hidden_layers": 2}
LLAMA = {**TEXT, "intermediate_size": 512, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 256, "n_layer": 2, "n_head": 4, "n_positions": TOKENS}
GPT2 |= {"bos_token_id": 1, "eos_token_id": 2}
VIT = {"hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 768}
VIT |= {"image_size": 64, "patch_size": 8}
CONVNEXT = {"num_stages": 2, "hidden_sizes": [128, 256], "depths": [1, 1], "image_size": 64}


def model(family: str, head: str, settings: dict[str, Any], *names: str) -> nn.Module:
    """Needs `transformers`. Without dropout: what is random cannot be compared."""
    import transformers

    config = transformers.AutoConfig.for_model(family, **settings)
    config.use_cache = False
    for setting, value in dict(vars(config)).items():
        if "drop" in setting and isinstance(value, float):
            setattr(config, setting, 0.0)
    return First(getattr(transformers, head).from_config(config), *names)


def words(seed: int = 1) -> Tensor:
    return integers(VOCABULARY - 3, 1, TOKENS, seed=seed) + 3


def bert() -> Workload:
    return for_inference(lambda: model("bert", "AutoModel", TEXT, "input_ids")), (words(),)


def gpt2() -> Workload:
    return for_inference(lambda: model("gpt2", "AutoModelForCausalLM", GPT2, "input_ids")), (words(),)


def llama() -> Workload:
    return for_inference(lambda: model("llama", "AutoModelForCausalLM", LLAMA, "input_ids")), (words(),)


def vit() -> Workload:
    return for_inference(lambda: model("vit", "AutoModel", VIT, "pixel_values")), (numbers(1, 3, 64, 64, seed=1),)


def convnext() -> Workload:
    return for_inference(lambda: model("convnext", "AutoModel", CONVNEXT, "pixel_values")), (numbers(1, 3, 64, 64, seed=1),)


def bert_training() -> Workload:
    return made(lambda: model("bert", "AutoModelForMaskedLM", TEXT, "input_ids", "labels")), (words(), words(2))


def llama_training() -> Workload:
    return made(lambda: model("llama", "AutoModelForCausalLM", LLAMA, "input_ids", "labels")), (words(), words(2))


def deep(layers: int) -> Workload:
    settings = {**TEXT, "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": layers}
    return for_inference(lambda: model("bert", "AutoModel", settings, "input_ids")), (words(),)


depth_2, depth_4, depth_8, depth_16 = (functools.partial(deep, layers) for layers in (2, 4, 8, 16))

_MEMORY = (
    *("masked_biased_softmax", "layer_norm_residual_gelu", "layer_norm_residual_gelu_training", "group_norm_silu"),
    *("rms_norm_swiglu", "rotary_embedding", "cross_entropy", "cross_entropy_training", "column_row_statistics"),
    *("adamw_step", "int8_dequantise_bias_gelu", "conv_batch_norm_residual_relu", "moe_router"),
)
_MODEL = ("bert", "gpt2", "llama", "vit", "convnext", "bert_training", "llama_training")
GRAPHS = (*(Listed(name, "memory") for name in _MEMORY), *(Listed(name, "model") for name in _MODEL))
