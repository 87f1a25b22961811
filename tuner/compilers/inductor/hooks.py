"""Every name of Inductor that is used here, in one place, so that a torch in which one is missing is noticed at once.

Read in torch 2.13.0: torch/_inductor/compile_fx.py, scheduler.py, choices.py, graph.py, custom_graph_pass.py.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch._dynamo.config as dynamo_config
import torch._dynamo.exc as dynamo_exc
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
import torch.compiler.config as compiler_config
from torch._inductor import virtualized
from torch._inductor.choices import InductorChoices
from torch._inductor.compile_fx import _recursive_joint_graph_passes as joint_graph_passes
from torch._inductor.compile_fx import compile_fx as _compile_fx
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering, SubgraphLowering
from torch._inductor.lowering import fallbacks, get_layout_constraint_tag, lowerings, make_fallback, tag_to_layout_constraint
from torch._inductor.runtime.runtime_utils import cache_dir
from torch._inductor.virtualized import V
from torch._logging import trace_structured

from tuner.compilers.inductor import doors

try:
    from torch._inductor.custom_graph_pass import CustomSchedulerPass
except ImportError:  # torch < 2.13: without it the compile caches' key cannot carry a plan, and `missing_hooks` says so
    CustomSchedulerPass = object  # type: ignore[assignment, misc]

try:
    from torch._inductor.custom_graph_pass import CustomGraphPass as GraphPass
except ImportError:  # without it the compile caches' key cannot carry a plan's cuts, and `missing_hooks` says so
    GraphPass = object  # type: ignore[assignment, misc]

try:
    from torch._inductor.custom_graph_pass import CustomInferenceAwareGraphPass as InferenceAwareGraphPass
except ImportError:  # older torch, where no pass is told
    InferenceAwareGraphPass = GraphPass  # type: ignore[assignment, misc]

try:
    from torch._functorch._aot_autograd.autograd_cache import should_bundle_autograd_cache
except ImportError:  # without it nobody knows whether an entry may be kept from AOTAutograd's cache, and `missing_hooks` says so
    should_bundle_autograd_cache = None  # type: ignore[assignment]

__all__ = [
    "DYNAMO_SIGNALS",
    "CustomSchedulerPass",
    "GraphLowering",
    "GraphPass",
    "InductorChoices",
    "InferenceAwareGraphPass",
    "SubgraphLowering",
    "V",
    "cache_dir",
    "compile_fx",
    "compile_fx_inner",
    "compiler_config",
    "dynamo_config",
    "fallbacks",
    "functorch_config",
    "get_layout_constraint_tag",
    "inductor_config",
    "joint_graph_passes",
    "lowerings",
    "make_fallback",
    "missing_hooks",
    "own_choices_handler",
    "select_decomp_table",
    "should_bundle_autograd_cache",
    "tag_to_layout_constraint",
    "trace_structured",
]


# Plans are applied behind these doors, also where a process compiles its own candidates. `missing_hooks` tells where they failed.
doors.install(sys.modules[doors.MODULE])


@functools.wraps(_compile_fx)
def compile_fx(*args: Any, **kwargs: Any) -> Any:
    """Inductor's own for our own use: what is compiled with it is not served, whoever is."""
    with doors.served(False):
        return _compile_fx(*args, **kwargs)


def own_choices_handler() -> Any:
    """This thread's choices handler; None where none was set or made yet. (Reading `V.choices` would make one, and keep it.)"""
    return getattr(virtualized.threadlocal, virtualized._choices._key, None)


# By these a compile tells Dynamo to trace again, or not at all: no errors, and to be passed on.
DYNAMO_SIGNALS = (dynamo_exc.RestartAnalysis, dynamo_exc.SkipFrame)


def missing_hooks() -> list[str]:
    """Hooks that plans need and this torch lacks; where there is one, everything compiles by default."""
    found = {
        "torch._inductor.custom_graph_pass.CustomSchedulerPass": CustomSchedulerPass is not object,
        "torch._inductor.custom_graph_pass.CustomGraphPass": GraphPass is not object,
        "InductorChoices.can_fuse": hasattr(InductorChoices, "can_fuse"),
        "InductorChoices.can_fuse_horizontal": hasattr(InductorChoices, "can_fuse_horizontal"),
        "GraphLowering.save_output_code": hasattr(GraphLowering, "save_output_code"),
        "config.inductor_choices_class": hasattr(inductor_config, "inductor_choices_class"),
        "config.post_grad_custom_post_pass": hasattr(inductor_config, "post_grad_custom_post_pass"),
        "config._pre_fusion_custom_pass": hasattr(inductor_config, "_pre_fusion_custom_pass"),
        "config._post_fusion_custom_pass": hasattr(inductor_config, "_post_fusion_custom_pass"),
        "torch.compiler.config.cache_key_tag": hasattr(compiler_config, "cache_key_tag"),
        "torch._functorch.config.bundled_autograd_cache": hasattr(functorch_config, "bundled_autograd_cache"),
        "torch._functorch.config.force_non_lazy_backward_lowering": hasattr(functorch_config, "force_non_lazy_backward_lowering"),
        "should_bundle_autograd_cache": callable(should_bundle_autograd_cache),
        "torch._inductor.virtualized.threadlocal": hasattr(virtualized, "threadlocal"),
        "torch._inductor.virtualized._choices": hasattr(getattr(virtualized, "_choices", None), "_key"),
    }
    missing = [name for name, there in found.items() if not there]
    return [*missing, trouble] if (trouble := doors.install(sys.modules[doors.MODULE])) else missing
