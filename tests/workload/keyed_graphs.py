"""Prints the keys of a few graphs, one JSON object. Run in processes of their own by test_graph_key.py."""

from __future__ import annotations

import json

import torch
from torch.nn import functional
from tracing import forms_of, key_of, numbers, random_program, random_program_inputs

from tuner.compilers.inductor.capture import capture


def attention(query: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scores = torch.softmax(query @ query.transpose(-1, -2) * 0.5 + bias, dim=-1)
    best, where = torch.topk(scores, 2)
    return functional.gelu(best), where


def step_of(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    left, right = torch.tanh(x @ weight), functional.gelu(x).sum(0) * weight.sum(0)
    return (left * right).sum() * x.shape[0]


def branching(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, torch.sin, lambda y: y.cos() * x.shape[0], (x,))


def keys() -> dict[str, str]:
    inputs = numbers(2, 8, 4), numbers(8, 8, seed=1)
    step = forms_of(step_of, (numbers(6, 4), numbers(4, 4).requires_grad_()), dynamic=True, training=True)
    branch = forms_of(branching, (numbers(6, 4),), dynamic=True)
    return {
        "program of a step": step[0],
        "forward": step[1][0].key,
        "backward": step[1][1].key,
        "program with a branch": branch[0],
        "branch": branch[1][0].key,
        "attention": key_of(attention, *inputs),
        "attention, captured": capture(attention, inputs)[0].graphs[0].key,
        "in place": key_of(lambda x, y: x.mul_(2).add_(y), numbers(3, 4), numbers(3, 4)),
        **{f"program {seed}": key_of(random_program(seed, 0), *random_program_inputs()) for seed in range(3)},
    }


if __name__ == "__main__":
    print(json.dumps(keys()))
