"""A graph that was lowered, and is scheduled under other groups as often as asked: a tenth of the work of lowering it anew.

Read in torch 2.13.0: torch/_inductor/compile_fx.py (what stands around a lowering), scheduler.py (a scheduler makes its nodes of
the graph's operations, which stay as they are).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import fx

from tuner.anatomy import Anatomy
from tuner.compilers.inductor import events
from tuner.compilers.inductor.anatomy import NEVER, Reader
from tuner.compilers.inductor.apply import Realised, compile_candidate, plan_in_force
from tuner.compilers.inductor.hooks import V, inductor_config
from tuner.errors import PlanNotRealised
from tuner.plan import Groups, Plan


def lower(gm: fx.GraphModule, inputs: Sequence[Any], plan: Plan, **kwargs: Any) -> Lowered:
    """Lowers a post-AOTAutograd graph under `plan`.

    The graph must already hold the native ops that the plan keeps. kwargs: as compile_candidate's. Raises PlanRefused, and
    whatever the compiler raises while it lowers.
    """
    reader = Reader()
    groups: Groups = ()
    try:
        # A graph without operations is not lowered, and then nothing is raised.
        compile_candidate(gm, inputs, plan, expected=NEVER, inspect=reader, **kwargs)
    except PlanNotRealised as error:
        groups = error.groups
    return Lowered(plan, reader.anatomy(groups), reader.graph, reader.fake_mode, reader.ids, kwargs)


@dataclass(frozen=True)
class Lowered:
    """anatomy: under `plan`. graph: the compiler's, with its `fake_mode`; ids: of its leaves, by the compiler's own names.

    told: what Inductor's inner step was told of the graph.
    """

    plan: Plan
    anatomy: Anatomy
    graph: Any
    fake_mode: Any
    ids: dict[str, str]
    told: Mapping[str, Any]

    def under(self, plan: Plan) -> Anatomy | None:
        """The anatomy under a plan that differs by its groups; None under another, or where the graph must be lowered for it."""
        if replace(plan, groups=None) != replace(self.plan, groups=None) or not self._may_be_scheduled_again:
            return None
        groups = self._scheduled(plan)
        return None if groups is None else replace(self.anatomy, groups=groups)

    @cached_property
    def _may_be_scheduled_again(self) -> bool:
        """Whether that gives what it gave. On GPUs a scheduler rewrites loops; a wrapper in C++ and a search for the best kernel
        have settings and state of their own."""
        settings = inductor_config.cpp_wrapper or inductor_config.max_autotune or inductor_config.max_autotune_gemm
        if settings or not self.anatomy.leaves or set(self.graph.device_types) - {"cpu"}:
            return False
        return self._scheduled(self.plan) == self.anatomy.groups

    def _scheduled(self, plan: Plan) -> Groups | None:
        """The groups that come of the plan's; None where that cannot be told: the graph is to be lowered anew."""
        from torch._inductor.debug import DebugContext
        from torch._inductor.scheduler import Scheduler

        realised = Realised({})
        try:
            with (
                plan_in_force(plan, realised, NEVER, None, None, self.graph.module, self.told),
                DebugContext(),
                V.set_fake_mode(self.fake_mode),
                V.set_graph_handler(self.graph),
                V.set_extern_kernel_nodes([]),
            ):
                Scheduler(self.graph.operations)
        except PlanNotRealised as error:
            return error.groups if realised.ids == self.ids else None
        # A short cut of ours, which the compiler does not know: what goes wrong on it says nothing of the plan.
        except Exception as error:
            events.count(f"not scheduled again: {type(error).__name__}")
        return None
