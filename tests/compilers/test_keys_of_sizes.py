"""A sweep over sizes gives the keys that a user's compile asks for, however his sizes came to vary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tuner.compilers.inductor.capture import form_of
from tuner.compilers.inductor.hooks import compile_fx
from tuner.compilers.inductor.program import program_key
from tuner.search.workloads import Resolved, resolve

Keys = list[tuple[str, str]]
SPEC = """
import torch
def rows():
    return lambda x: torch.softmax(x * 2 + 1, -1).sum(0), (torch.ones(8, 16),), {"batch": [(0, 0)]}
def flat():
    return lambda x: torch.relu(x * 2 + 1) + x.shape[0], (torch.ones(8),)
"""


def rows(x: Tensor) -> Tensor:
    return torch.softmax(x * 2 + 1, -1).sum(0)


def flat(x: Tensor) -> Tensor:
    return torch.relu(x * 2 + 1) + x.shape[0]


@pytest.fixture
def swept(tmp_path: Path) -> Callable[..., list[Resolved]]:
    """What a sweep of one of SPEC's functions would tune."""
    (tmp_path / "specs.py").write_text(SPEC)

    def resolved(name: str, **sizes: Any) -> list[Resolved]:
        return resolve(f"{tmp_path / 'specs.py'}:{name}", threads=1, forms=lambda _: None, find=lambda _: [], **sizes)

    return resolved


def asked(function: Callable[[Tensor], Tensor], inputs: Sequence[Tensor], dynamic: bool | None = None) -> Keys:
    """Keys of program and graph of each compile that these calls, in turn, need."""
    keys: Keys = []

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        program = program_key(gm, example_inputs)

        def inner(made: torch.fx.GraphModule, _: Sequence[Any], **kwargs: Any) -> Any:
            keys.append((program, form_of(made, kwargs).key))

            def run(values: list[Any]) -> Any:
                return made.forward(*values)

            run._boxed_call = True  # type: ignore[attr-defined]
            return run

        return compile_fx(gm, example_inputs, inner_compile=inner)

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    with torch.no_grad():
        for value in inputs:
            compiled(value)
    torch._dynamo.reset()
    return keys


def of(graphs: Sequence[Resolved]) -> Keys:
    return [(str(graph.program_key), graph.graph.key) for graph in graphs]


def marked_dynamic(tensor: Tensor) -> Tensor:
    torch._dynamo.mark_dynamic(tensor, 0)
    return tensor


def test_automatic_dynamic_and_marks_ask_for_what_a_sweep_over_sizes_tuned(swept) -> None:
    static, symbolic = swept("rows", dims={"batch": (1, 8, 64)})
    assert (static.sizes, symbolic.sizes) == ((), ((8,), (64,)))
    assert not static.graph.symbols
    first, second = asked(rows, [torch.ones(8, 16), torch.ones(32, 16)])
    assert second == of([symbolic])[0], "torch found by itself that the batch varies"
    assert first != second
    assert asked(rows, [marked_dynamic(torch.ones(5, 16)), torch.ones(77, 16)]) == of([symbolic])
    assert asked(rows, [torch.ones(1, 16)]) == of([static]), "a size of 1 is a program of its own"


def test_where_all_that_varies_is_named_dynamic_true_is_the_same(swept) -> None:
    (named,), (every,) = swept("flat", dims={"x.0": (4, 8)}), swept("flat", dynamic=True)
    assert of([named]) == of([every])
    assert named.sizes == ((4,), (8,))
    assert every.sizes == ((4,), (8,), (16,)), "half of what was seen, that, and double"
    assert asked(flat, [torch.ones(8), torch.ones(9)], dynamic=True) == of([named])
    assert asked(flat, [torch.ones(8), torch.ones(9)])[1:] == of([named])


def test_both_ways_of_compiling_are_tuned_where_they_differ(swept) -> None:
    graphs = swept("rows", dims={"batch": (4, 8)}, dynamic=True)
    assert [[set(size) for size in graph.sizes] for graph in graphs] == [[{4}, {8}], [{4, 16}, {8, 16}]]
    assert asked(rows, [torch.ones(8, 16)], dynamic=True) == of(graphs[1:])


def test_sizes_that_nobody_named_are_such_as_the_graph_can_have(swept, tmp_path: Path) -> None:
    paired = "import torch\ndef paired():\n    return lambda x: x.view(2, -1).softmax(-1) * 2, (torch.ones(6),)\n"
    (tmp_path / "specs.py").write_text(paired)
    (graph,) = swept("paired", dynamic=True)
    assert graph.sizes == ((6,), (12,)), "half of it is odd"
