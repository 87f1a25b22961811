"""How Inductor lays out in memory what a forward graph keeps for its backward: a lowering says it, no C++ is compiled.

The compiled forward may give other strides than the traced one did (of convolutions, say), and AOTAutograd compiles the backward
for those: a backward graph is only known with them. Read in torch 2.13.0: _functorch/_aot_autograd/graph_compile.py
(_aot_stage2b_bw_compile), _inductor/compile_fx.py (codegen_and_compile).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from tuner.compilers.inductor.hooks import GraphLowering, V, compile_fx_inner, inductor_config
from tuner.compilers.inductor.program import copied
from tuner.errors import find_cause

Strides = tuple[int, ...] | None


class _Lowered(Exception):
    """Ends a compilation of which only the layout of the outputs is wanted."""

    def __init__(self, strides: list[Strides]):
        super().__init__("lowered")
        self.strides = strides


def output_strides(gm: fx.GraphModule, example_inputs: Sequence[Any], kwargs: dict[str, Any]) -> list[Strides]:
    """Strides of the outputs of a forward graph as Inductor's inner step, given `kwargs`, would make them; None for no tensor.

    Raises what Inductor raises.
    """

    def read(code: str) -> None:
        raise _Lowered([_strides_of(output) for output in V.graph.graph_outputs or ()])

    before = GraphLowering.save_output_code
    GraphLowering.save_output_code = staticmethod(read)
    try:
        with inductor_config.patch(fx_graph_cache=False, fx_graph_remote_cache=False):
            compile_fx_inner(copied(gm), example_inputs, **kwargs)
    except Exception as error:
        if lowered := find_cause(error, _Lowered):
            return lowered.strides
        raise
    finally:
        GraphLowering.save_output_code = before
    # A graph without operations is not lowered: its outputs are what they are.
    return []


def _strides_of(output: Any) -> Strides:
    if not getattr(output, "has_tensor_output", lambda: False)():
        return None
    # Of sizes that are symbols: as the example inputs have them.
    return tuple(V.graph.sizevars.optimization_hint(stride) for stride in output.get_layout().stride)


def as_compiled(gm: fx.GraphModule, example_inputs: Sequence[Any], kwargs: dict[str, Any]) -> Callable[[Any], Any]:
    """What gives the outputs of a forward graph that runs eagerly the layout that Inductor's would have.

    AOTAutograd, which is compiling, is told of that layout as Inductor tells it. Raises what Inductor raises.
    """
    strides = output_strides(gm, example_inputs, kwargs)
    context = torch._guards.TracingContext.try_get()
    if context is not None and context.output_strides is not None:
        context.output_strides.extend(strides)

    def as_strided(outputs: Any) -> Any:
        return [_laid_out(*pair) for pair in zip(outputs, strides, strict=True)] if strides else outputs

    return as_strided


def whatever_layout(gm: fx.GraphModule) -> fx.GraphModule:
    """A backward graph that also runs eagerly on inputs in another layout than it was traced for, where a view needs a copy."""
    made = copied(gm)
    for node in made.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        node.target = torch.ops.aten.reshape.default
    made.recompile()
    return made


def _laid_out(value: Any, strides: Strides) -> Any:
    """`value` in that layout, where it is a tensor in another."""
    if strides is None or not isinstance(value, Tensor):
        return value
    if value.stride() == strides or not value.numel() or 0 in strides:
        return value
    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device).copy_(value)
