"""How Inductor lays out in memory what a forward graph keeps for its backward: a lowering says it, no C++ is compiled.

The compiled forward may give other strides than the traced one did (of convolutions, say), and AOTAutograd compiles the backward
for those: a backward graph is only known with them. Read in torch 2.13.0: _functorch/_aot_autograd/graph_compile.py
(_aot_stage2b_bw_compile), _inductor/compile_fx.py (codegen_and_compile).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sympy import Integer
from torch import Tensor, fx

from tuner.compilers.inductor.hooks import GraphLowering, V, compile_fx_inner, inductor_config
from tuner.compilers.inductor.program import copied
from tuner.errors import find_cause


@dataclass(frozen=True)
class Layout:
    """Strides of an output. order: its dims from the outermost to the innermost, where strides vary with the sizes, else ()."""

    strides: tuple[int, ...]
    order: tuple[int, ...] = ()


class _Lowered(Exception):
    """Ends a compilation of which only the layout of the outputs is wanted."""

    def __init__(self, layouts: list[Layout | None]):
        super().__init__("lowered")
        self.layouts = layouts


def output_layouts(gm: fx.GraphModule, example_inputs: Sequence[Any], kwargs: dict[str, Any]) -> list[Layout | None]:
    """The layout of each output of a forward graph as Inductor's inner step, given `kwargs`, would make it; None for no tensor.

    Raises what Inductor raises.
    """

    def read(code: str) -> None:
        raise _Lowered([_layout_of(output) for output in V.graph.graph_outputs or ()])

    before = GraphLowering.save_output_code
    GraphLowering.save_output_code = staticmethod(read)
    try:
        with inductor_config.patch(fx_graph_cache=False, fx_graph_remote_cache=False):
            compile_fx_inner(copied(gm), example_inputs, **kwargs)
    except Exception as error:
        if lowered := find_cause(error, _Lowered):
            return lowered.layouts
        raise
    finally:
        GraphLowering.save_output_code = before
    # A graph without operations is not lowered: its outputs are what they are.
    return []


def _layout_of(output: Any) -> Layout | None:
    if not getattr(output, "has_tensor_output", lambda: False)():
        return None
    layout = output.get_layout()
    # Of sizes that are symbols: as the example inputs have them.
    strides = tuple(V.graph.sizevars.optimization_hint(stride) for stride in layout.stride)
    if all(isinstance(stride, (int, Integer)) for stride in layout.stride):
        return Layout(strides)
    return Layout(strides, tuple(sorted(range(len(strides)), key=lambda dim: -strides[dim])))


def as_compiled(gm: fx.GraphModule, example_inputs: Sequence[Any], kwargs: dict[str, Any]) -> Callable[[Any], Any]:
    """What gives the outputs of a forward graph that runs eagerly the layout that Inductor's would have.

    AOTAutograd, which is compiling, is told of that layout as Inductor tells it. Raises what Inductor raises.
    """
    layouts = output_layouts(gm, example_inputs, kwargs)
    context = torch._guards.TracingContext.try_get()
    if context is not None and context.output_strides is not None:
        context.output_strides.extend(None if layout is None else layout.strides for layout in layouts)

    def as_strided(outputs: Any) -> Any:
        return [_laid_out(*pair) for pair in zip(outputs, layouts, strict=True)] if layouts else outputs

    return as_strided


def whatever_layout(gm: fx.GraphModule) -> fx.GraphModule:
    """A backward graph that also runs eagerly on inputs in another layout than it was traced for, where a view needs a copy."""
    made = copied(gm)
    for node in made.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        node.target = torch.ops.aten.reshape.default
    made.recompile()
    return made


def _laid_out(value: Any, layout: Layout | None) -> Any:
    """`value` in that layout, where it is a tensor in another."""
    if layout is None or not isinstance(value, Tensor) or not value.numel() or 0 in layout.strides:
        return value
    strides = _strides_at(layout, value)
    if value.stride() == strides:
        return value
    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device).copy_(value)


def _strides_at(layout: Layout, value: Tensor) -> tuple[int, ...]:
    """Its strides in a call that made `value`: where they vary, those it has, or dense ones where its dims lie otherwise.

    Those of the first call would let rows of a larger one overlap.
    """
    if not layout.order:
        return layout.strides
    along = [value.stride(dim) for dim in layout.order if value.shape[dim] > 1]
    if along == sorted(along, reverse=True):
        return value.stride()
    strides, stride = [0] * value.dim(), 1
    for dim in reversed(layout.order):
        strides[dim] = stride
        stride *= value.shape[dim]
    return tuple(strides)
