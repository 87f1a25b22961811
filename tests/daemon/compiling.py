"""A process that compiles a small model with backend="tuner", as a user's would; what it says of it goes to standard output."""

from __future__ import annotations

import json

import torch

import tuner


def main() -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(64, generator=generator), requires_grad=False)

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x * weight).sum(-1)

    x = torch.randn(32, 64, generator=generator)
    compiled = torch.compile(model, backend="tuner", dynamic=False)
    with torch.no_grad():
        calls = [compiled(x) for _ in range(3)]
        agree = all(torch.allclose(made, model(x), atol=1e-5) for made in calls)
    report = tuner.report()
    served = [
        {name: getattr(one, name) for name in ("tier", "winner", "outcome", "source", "reason")} for one in report["served"]
    ]
    print(json.dumps({"agree": agree, "served": served, "counts": report["counts"]}))


if __name__ == "__main__":
    main()
