"""Native ops of training programs: AOTAutograd with a table that leaves an op kind out, for the whole program.

A training graph cannot be decomposed late, as those of inference are: the partitioner, which decides what the forward keeps for
the backward, sees the ops that are there. So the choice is the program's, and makes other graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from tuner.compilers.inductor.decompose import native_table, register_native, table_without
from tuner.compilers.inductor.graphs_only import Stop, never_called, trace_graphs
from tuner.compilers.inductor.hooks import compile_fx, functorch_config, inductor_config
from tuner.search_spaces.native import NATIVE_OPS


def native_kinds(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> frozenset[str]:
    """The declared op kinds that this training program, given to a back end, would hold undecomposed; compiles nothing.

    Raises what AOTAutograd raises.
    """
    found: set[str] = set()

    def record(made: fx.GraphModule, _: Sequence[Any], **kwargs: Any) -> Any:
        found.update(str(node.target) for node in made.graph.nodes if node.op == "call_function")
        if not kwargs.get("is_inference") and not kwargs.get("is_backward"):
            return never_called
        raise Stop

    with functorch_config.patch(enable_autograd_cache=False, force_non_lazy_backward_lowering=True):
        trace_graphs(gm, example_inputs, record, decompositions=native_table())
    return NATIVE_OPS & found


def backend_without(ops: Sequence[str]) -> Callable[[fx.GraphModule, Sequence[Any]], Any]:
    """A back end for torch.compile: Inductor with `ops` left out of AOTAutograd's table, no plans and no compile caches."""

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        register_native(ops)
        # The table is in no cache's key.
        with functorch_config.patch(enable_autograd_cache=False), inductor_config.patch(fx_graph_cache=False):
            return compile_fx(gm, example_inputs, decompositions=table_without(ops), config_patches={"fx_graph_cache": False})

    return backend
