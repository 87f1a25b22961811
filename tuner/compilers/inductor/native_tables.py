"""Native ops of training programs: AOTAutograd with a table that leaves an op kind out, for the whole program.

A training graph cannot be decomposed late, as those of inference are: the partitioner, which decides what the forward keeps for
the backward, sees the ops that are there. So the choice is the program's, and makes other graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from tuner.compilers.inductor.decompose import native_table, register_native, table_without
from tuner.compilers.inductor.hooks import compile_fx, functorch_config, inductor_config
from tuner.compilers.inductor.program import copied
from tuner.errors import find_cause
from tuner.search_spaces.native import NATIVE_OPS


class _Stop(Exception):
    """Ends a trace of which only the graphs are wanted."""


def native_kinds(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> frozenset[str]:
    """The declared op kinds that this training program, given to a back end, would hold undecomposed; compiles nothing.

    Raises what AOTAutograd raises.
    """
    found: set[str] = set()

    def record(made: fx.GraphModule, _: Sequence[Any], **kwargs: Any) -> Any:
        found.update(str(node.target) for node in made.graph.nodes if node.op == "call_function")
        if not kwargs.get("is_inference") and not kwargs.get("is_backward"):
            return _never_called
        raise _Stop

    try:
        with functorch_config.patch(enable_autograd_cache=False, force_non_lazy_backward_lowering=True):
            compile_fx(copied(gm), example_inputs, inner_compile=record, decompositions=native_table())
    except Exception as error:
        if not find_cause(error, _Stop):
            raise
    return NATIVE_OPS & found


def _never_called(inputs: list[Any]) -> Any:
    """Stands for a compiled forward while its backward is traced."""
    raise _Stop


_never_called._boxed_call = True  # type: ignore[attr-defined]


def backend_without(ops: Sequence[str]) -> Callable[[fx.GraphModule, Sequence[Any]], Any]:
    """A back end for torch.compile: Inductor with `ops` left out of AOTAutograd's table, no plans and no compile caches."""

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        register_native(ops)
        # The table is in no cache's key.
        with functorch_config.patch(enable_autograd_cache=False), inductor_config.patch(fx_graph_cache=False):
            return compile_fx(gm, example_inputs, decompositions=table_without(ops), config_patches={"fx_graph_cache": False})

    return backend
