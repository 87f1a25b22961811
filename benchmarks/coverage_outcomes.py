"""What a model of the coverage benchmark comes to under a back end, and how two such outcomes compare."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from coverage_models import Made
from torch import Tensor, nn

from tuner.cache.sqlite import SqliteStore
from tuner.compilers.inductor.ambient import ambient, cpu_target, cpu_toolchain
from tuner.compilers.inductor.events import Served
from tuner.compilers.inductor.hooks import dynamo_config, functorch_config, inductor_config
from tuner.measure.correctness import deviation_of, expect
from tuner.measurement import Policy, Winner
from tuner.plan import Plan
from tuner.settings import Settings
from tuner.target import Query

# The second makes Dynamo see that the size of a batch varies.
BATCHES = (2, 3)
# What cancels to less than this share of the largest of an outcome's tensors, by root mean square, is rounding.
CANCELLED = 1e-6


def outcomes(make: Callable[[], Made], seed: int, phase: str, backend: str, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Outputs of a call with each batch size; of a training step also gradients and buffers, by name. backend: "eager" too.

    With no compile cache but that of machine code, so that every graph comes by.
    """
    torch._dynamo.reset()
    torch.manual_seed(seed)
    net, inputs = make()
    net = net.to(dtype).train(phase == "training")
    found: dict[str, Any] = {}
    with (
        functorch_config.patch(enable_autograd_cache=False),
        inductor_config.patch(fx_graph_cache=False),
        dynamo_config.patch(allow_rnn=True, capture_dynamic_output_shape_ops=True),
        contextlib.nullcontext() if phase == "training" else torch.no_grad(),
    ):
        run = net if backend == "eager" else torch.compile(net, backend=backend)
        for batch in BATCHES:
            torch.manual_seed(seed + batch)
            values = [value.to(dtype) if value.is_floating_point() else value for value in inputs(batch)]
            torch.manual_seed(seed)
            if phase == "training":
                values = [value.requires_grad_() if value.is_floating_point() else value for value in values]
            output = run(*values)
            found[f"{batch}: output"] = output.detach().clone()
            if phase == "training":
                _loss(output).backward()
                found |= _left_behind(net, values, batch)
    torch._dynamo.reset()
    return found


def _loss(output: Tensor) -> Tensor:
    """Not the plain sum: after a normalisation that is constant, and its gradients are rounding."""
    return (output * torch.cos(torch.arange(output.numel(), dtype=output.dtype)).reshape(output.shape)).sum()


def _left_behind(net: nn.Module, inputs: Sequence[Tensor], batch: int) -> dict[str, Any]:
    """Gradients, which are taken away, and buffers."""
    named = [*net.named_parameters(), *((f"input {i}", value) for i, value in enumerate(inputs))]
    found = {f"{batch}: gradient of {name}": value.grad for name, value in named}
    for _, value in named:
        value.grad = None
    return found | {f"{batch}: {name}": value.detach().clone() for name, value in net.named_buffers()}


def what_differs(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Which values are not bit for bit the same; empty where all are."""
    names = [name for name in wanted if name not in found or not _same(found[name], wanted[name])]
    names += [name for name in found if name not in wanted]
    return f"{len(names)} of {len(wanted)} values differ, the first is {names[0]}" if names else ""


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return a is None and b is None
    if (a.dtype, a.shape, a.stride()) != (b.dtype, b.shape, b.stride()):
        return False
    return torch.equal(a, b) or torch.equal(*(value.contiguous().flatten().view(torch.uint8) for value in (a, b)))


def worst_deviation(found: dict[str, Any], wanted: dict[str, Any], make: Callable[[], Made], seed: int, phase: str) -> float:
    """How far the values are from right, in tolerances; Inductor's own errors, and what cancels to nothing, are allowed for.

    What is right is told by an eager run in float64; where the model draws random numbers or cannot run so, by Inductor's values.
    """
    exact = _exact(make, seed, phase, wanted)
    scale = max((_size(value) for value in wanted.values()), default=0.0)
    # A gradient is a sum over the batch and the places, a value over what a row of a matrix has: small here, all of them.
    terms = 256
    worst = 0.0
    for name, like in wanted.items():
        if not isinstance(like, Tensor):
            worst = max(worst, 0.0 if found.get(name) is None else float("inf"))
            continue
        expected = expect(like, like if exact is None else exact[name], flat=exact is None, inputs=terms * like.numel())
        expected = replace(expected, atol=expected.atol + CANCELLED * scale)
        worst = max(worst, deviation_of(found.get(name), expected))
    return worst


def _size(value: Any) -> float:
    if not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
        return 0.0
    return float(value.double().square().mean().sqrt())


def _exact(make: Callable[[], Made], seed: int, phase: str, wanted: dict[str, Any]) -> dict[str, Any] | None:
    try:
        exact = outcomes(make, seed, phase, "eager", torch.float64)
    except RuntimeError:  # a model with a dtype of its own
        return None
    for name, like in wanted.items():
        if isinstance(like, Tensor) != isinstance(exact[name], Tensor):
            return None
        if isinstance(like, Tensor) and _size(like - exact[name]) > 1e-2 * (_size(exact[name]) + CANCELLED):
            return None
    return exact


def settle_all(graphs: Sequence[Served]) -> None:
    """Makes the default the stored winner of all these graphs, each known as one of its program's."""
    where = cpu_target().fields(), cpu_toolchain(), ambient()
    queries = {graph.workload_key: Query("graph", graph.workload_key, *where) for graph in graphs if graph.workload_key}
    programs = {
        graph.program_key: [one.workload_key for one in graphs if one.program_key == graph.program_key] for graph in graphs
    }
    with SqliteStore(Settings.from_environment().store) as store:
        for query in queries.values():
            store.record_winner(Winner(query, "default", Plan(), None, 1.0, 1.0, 1.0, 1.0, 1.0, Policy.for_cpu(1), "quick", 1))
        for program, keys in programs.items():
            if all(keys):
                store.add_program(Query("program", program, *where), [queries[key] for key in keys], "coverage")
