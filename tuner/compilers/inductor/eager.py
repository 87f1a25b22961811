"""A graph left to eager: each of its ops runs as a library call, and nothing is fused.

Inductor can itself generate such code ("lite mode"): an artifact like any other, that the compile caches save and load, forward,
backward and inference, with sizes known or not. So a warm start compiles and traces nothing. Read in torch 2.13.0:
torch/_inductor/config.py, graph.py (`should_fallback_by_default`), __init__.py (`lite_mode_options`).
"""

from __future__ import annotations

from typing import Any

import torch

from tuner.compilers.inductor.hooks import fallbacks, inductor_config
from tuner.errors import PlanRefused

# No layout optimisation: it would put copies around convolutions, which eager does not make.
SETTINGS: dict[str, Any] = {"fallback_by_default": True, "layout_optimization": False}
# Where forward and backward draw the same numbers from a saved seed, the library calls would draw others.
DRAWS = ("prims.inductor_seed", "prims.inductor_lookup_seed", "prims.inductor_rand")


def eager_settings() -> dict[str, Any]:
    """What Inductor has to be told. Raises PlanRefused where this torch or its mode cannot leave a graph to eager."""
    if missing := [name for name in SETTINGS if not hasattr(inductor_config, name)]:
        raise PlanRefused(f"this torch has no setting torch._inductor.config.{missing[0]}")
    if inductor_config.triton.cudagraphs:
        raise PlanRefused("a graph is not left to eager where CUDA graphs are asked for")
    if inductor_config.cpp_wrapper:
        raise PlanRefused("a graph is not left to eager under cpp_wrapper, whose library calls fail on scalars")
    return dict(SETTINGS)


def check_left_to_eager(graph: torch.fx.Graph) -> None:
    """Raises PlanRefused, naming the node, for a graph that draws random numbers, of which eager would draw others, or that gives
    a number which is no integer: no library call of Inductor's can.
    """
    for node in graph.nodes:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            continue
        if isinstance(node.meta.get("val"), torch.SymFloat | torch.SymBool | float):
            raise PlanRefused(f"node {node} gives a number that is no integer")
        # What Inductor leaves to the library anyway, as attention with its dropout, draws the same numbers either way.
        drawn = torch.Tag.nondeterministic_seeded in target.tags and target not in fallbacks
        if drawn or str(target).startswith(DRAWS):
            raise PlanRefused(f"node {node} draws random numbers, and eager would draw others")
