"""Prints the keys of a few graphs, one JSON object. Run in processes of their own by test_graph_key.py."""

from __future__ import annotations

import json

import torch
from torch.nn import functional
from tracing import key_of, numbers, random_program, random_program_inputs

from tuner.compilers.inductor.capture import capture


def attention(query: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scores = torch.softmax(query @ query.transpose(-1, -2) * 0.5 + bias, dim=-1)
    best, where = torch.topk(scores, 2)
    return functional.gelu(best), where


def keys() -> dict[str, str]:
    inputs = numbers(2, 8, 4), numbers(8, 8, seed=1)
    return {
        "attention": key_of(attention, *inputs),
        "attention, captured": capture(attention, inputs)[0].graphs[0].key,
        "in place": key_of(lambda x, y: x.mul_(2).add_(y), numbers(3, 4), numbers(3, 4)),
        **{f"program {seed}": key_of(random_program(seed, 0), *random_program_inputs()) for seed in range(3)},
    }


if __name__ == "__main__":
    print(json.dumps(keys()))
