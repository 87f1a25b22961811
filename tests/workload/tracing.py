"""Graphs to test with: what Inductor is given for a function, and functions worth giving it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._inductor.compile_fx import compile_fx

from tuner.compilers.inductor.capture import form_of
from tuner.compilers.inductor.program import program_key, program_ranges
from tuner.workload.fx import from_fx
from tuner.workload.graph import Graph

Tensors = list[torch.Tensor]


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32).to(dtype)


def copied(value: Any) -> Any:
    """A copy of a tensor with the same strides, also where elements share memory; other values as they are."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty(0, dtype=value.dtype).set_(
        value.detach().untyped_storage().clone(), value.storage_offset(), value.shape, value.stride()
    )


def traced(function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> tuple[fx.GraphModule, Tensors]:
    """The first graph that Inductor is given for `function`, with copies of the tensors that it is called with."""
    found: list[fx.GraphModule] = []
    called: list[Tensors] = []

    def keep(gm: fx.GraphModule, _: Sequence[Any], **kwargs: Any) -> Callable[[Tensors], Any]:
        found.append(gm)

        def run(values: Tensors) -> Any:
            called.append([copied(value) for value in values])
            return gm(*values)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=lambda gm, args: compile_fx(gm, args, inner_compile=keep), dynamic=dynamic)(*inputs)
    torch._dynamo.reset()
    return found[0], called[0]


def forms_of(
    function: Callable[..., Any],
    *calls: Sequence[Any],
    dynamic: bool | None = None,
    training: bool = False,
    after_each: Callable[[Sequence[Any]], object] = lambda inputs: None,
) -> tuple[str, list[Graph]]:
    """The program's key, and the graphs, that the last compilation gives when the function is called with each of `calls`.

    after_each: is called with a graph's example inputs when its form was taken, as a lowering would be.
    """
    program: list[str] = []
    graphs: list[Graph] = []

    def backend(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        graphs.clear()
        program.append(program_key(gm, inputs))
        ranges = program_ranges(gm, inputs)

        def inner(made: fx.GraphModule, inputs_like: Sequence[Any], **kwargs: Any) -> Any:
            graphs.append(form_of(made, kwargs, inputs_like, ranges))
            after_each(inputs_like)

            def run(values: Tensors) -> Any:
                return made(*values)

            run._boxed_call = True  # type: ignore[attr-defined]
            return run

        return compile_fx(gm, inputs, inner_compile=inner)

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    for inputs in calls:
        with torch.set_grad_enabled(training):
            outputs = compiled(*inputs)
        if training:
            sum(output.sum() for output in ([outputs] if isinstance(outputs, torch.Tensor) else outputs)).backward()
    torch._dynamo.reset()
    return program[-1], list(graphs)


def graph_of(function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> Graph:
    return from_fx(traced(function, *inputs, dynamic=dynamic)[0])


def key_of(function: Callable[..., Any], *inputs: Any) -> str:
    return graph_of(function, *inputs).key


BINARY = ("{} + {}", "{} - {}", "{} * {}", "torch.maximum({}, {})", "torch.where({} > 0, {}, 0.25)", "torch.cat([{}, {}])[::2]")
UNARY = (
    "{} * 1.5",
    "{}.exp()",
    "{}.relu()",
    "{} - {}.mean(-1, keepdim=True)",
    "torch.softmax({}, -1)",
    "{}.flip(0)",
    "{}.t().t()",
)
INPUTS = ("a", "b", "c")


def random_program(seed: int, order: int, literal: str = "1.5") -> Callable[..., Any]:
    """A function of three square matrices, equal for equal seeds up to the names and the order of its statements.

    order: 0 leaves the statements as they were drawn; any other number shuffles independent ones and renames the variables.
    literal: what stands for the number 1.5.
    """
    draw = random.Random(seed)
    steps: list[tuple[str, list[int]]] = [("{} * 1.5", [0])]
    for number in range(len(INPUTS) + 1, len(INPUTS) + 9):
        form = draw.choice(BINARY if draw.random() < 0.6 else UNARY)
        needed = [draw.randrange(number) for _ in range(2)]
        # one value used twice by a unary form with two places
        steps.append((form, needed if form in BINARY else [needed[0]] * form.count("{}")))
    results = [len(INPUTS), *draw.sample(range(len(INPUTS) + 1, len(INPUTS) + len(steps)), 2)]
    shuffled = random.Random(f"{seed} {order}")
    names = list(INPUTS) + [f"v{shuffled.randrange(10**9) if order else i}" for i in range(len(steps))]
    done, waiting, lines = set(range(len(INPUTS))), list(range(len(steps))), []
    while waiting:
        ready = [i for i in waiting if done.issuperset(steps[i][1])]
        i = shuffled.choice(ready) if order else ready[0]
        form, needed = steps[i]
        lines.append(f"    {names[len(INPUTS) + i]} = {form.replace('1.5', literal).format(*(names[n] for n in needed))}")
        waiting.remove(i)
        done.add(len(INPUTS) + i)
    source = f"def program({', '.join(INPUTS)}):\n" + "\n".join(lines) + f"\n    return {', '.join(names[i] for i in results)}\n"
    scope: dict[str, Any] = {"torch": torch}
    exec(source, scope)
    return scope["program"]


def random_program_inputs() -> Tensors:
    return [numbers(6, 6, seed=seed) for seed in range(len(INPUTS))]
