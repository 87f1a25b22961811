"""Compile one graph under a plan. The only legality check there is: what the compiler does not make was not legal."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from torch import fx

from tuner.compilers.inductor.cpp_code import cpp_flags, forget_loaded, own_binaries
from tuner.compilers.inductor.cuts import CutPass, check_cut
from tuner.compilers.inductor.doors import within_inner_step
from tuner.compilers.inductor.eager import check_left_to_eager, eager_settings
from tuner.compilers.inductor.hooks import (
    CustomSchedulerPass,
    GraphLowering,
    InductorChoices,
    SubgraphLowering,
    V,
    compile_fx_inner,
    inductor_config,
)
from tuner.compilers.inductor.knobs import check_runnable
from tuner.compilers.inductor.leaves import SizeTexts, local_ids, realised_groups
from tuner.compilers.inductor.users import users_hooks
from tuner.errors import DuplicateCode, PlanNotRealised, PlanRefused, find_cause
from tuner.plan import Groups, Plan
from tuner.workload.fx import canonical_order

# Changes when the way plans are applied changes: it is in the compile caches' key.
APPLY_VERSION = 1
# From a leaf's id to the number of its group; its repr says which function it is.
GroupOf = Callable[[str], int]
# Is given the scheduler's nodes before fusion, the ids of their leaves, the canonical order, and texts of sizes.
Inspect = Callable[[Sequence[Any], dict[str, str], Sequence[fx.Node], SizeTexts], None]
# From a cut's id to whether it is made; its repr says which function it is.
CutsWanted = Callable[[str], bool]
# What fuses with nothing.
NO_GROUP = -1


@dataclass
class Realised:
    """What came out of one compilation; filled while it runs, left empty where a compile cache answered."""

    ids: dict[str, str]
    groups: Groups | None = None
    code_key: str | None = None
    # Whether the plan was in force when a graph was compiled, or answered by Inductor's own cache.
    in_force: bool = False
    # Called once leaves have names; the graph's nodes have numbers and its cuts names by then, see `cuts.cut_id`.
    inspect: Inspect | None = None


def _within_a_graph() -> bool:
    """Whether what is being scheduled is a graph within the one that is compiled: the branch of a condition, a region."""
    return isinstance(V.graph, SubgraphLowering)


class ReadBack(CustomSchedulerPass):
    """Names the leaves before fusion and reads the partition after it; with `expected`, refuses another partition.

    What fusion makes is read between the user's own passes, if he has any: `users` runs before leaves are named, or after groups
    are read. Raising here costs a lowering, but no C++ compilation. In the compile caches' key by its uuid alone. eager: the
    graph is left to eager, which not every graph may be. cuts: those that a pass over the graph must have made. A graph within
    the graph, as of a branch, has a scheduler of its own, after the outer one's: leaves are named and groups read of the
    outermost alone.
    """

    def __init__(
        self,
        realised: Realised,
        expected: Groups | None,
        uuid: str,
        after: bool,
        eager: bool = False,
        users: Any = None,
        cuts: Iterable[str] = (),
    ):
        self.realised, self.expected, self.after, self.eager, self._uuid = realised, expected, after, eager, uuid
        self.users, self.cuts = users, cuts

    def __call__(self, nodes: list[Any]) -> list[Any]:
        if _within_a_graph():
            return nodes if self.users is None else self.users(nodes)
        if not self.after:
            if self.eager:
                check_left_to_eager(V.graph.graph)
            # The user may have switched that pass off.
            check_cut(V.graph.graph, self.cuts)
            nodes = nodes if self.users is None else self.users(nodes)
            lowered = V.graph
            phase = "inference" if lowered.is_inference else "backward" if lowered.is_backward else "forward"
            order = canonical_order(lowered.graph, phase)
            text = SizeTexts(order, lowered.sizevars.inv_precomputed_replacements)
            self.realised.ids.update(local_ids(nodes, order, text))
            if self.realised.inspect is not None:
                self.realised.inspect(nodes, self.realised.ids, order, text)
            return nodes
        self.realised.groups = realised_groups(nodes, self.realised.ids)
        if self.expected is not None and self.realised.groups != self.expected:
            raise PlanNotRealised(self.realised.groups)
        return nodes if self.users is None else self.users(nodes)

    def uuid(self) -> str:
        return self._uuid

    def __reduce__(self) -> tuple[type, tuple[str]]:
        # Inductor pickles this setting into its cache key: let the uuid stand for the object.
        return str, (self._uuid,)


class ForcedGroups(InductorChoices):
    """Fuses two nodes only if all their leaves lie in one wanted group; the compiler's own legality checks stay.

    Of a graph within the graph, whose leaves no plan names, the compiler's or the user's own choice stays.
    Inductor declares these hooks as static methods and calls them on the handler.
    """

    tuner_group_of: GroupOf
    tuner_realised: Realised
    tuner_uuid: str
    # Whether the class after this one, in the order of inheritance, has the method of its own: the user's veto stays a veto.
    tuner_asks_first: Set[str] = frozenset()

    def __init__(self, groups: Groups | GroupOf, realised: Realised, uuid: str):
        self.tuner_group_of, self.tuner_realised, self.tuner_uuid = _group_of(groups), realised, uuid

    def uuid(self) -> str:
        return self.tuner_uuid

    def can_fuse(self, scheduler: Any, node1: Any, node2: Any, shared_data_score: int) -> bool:  # type: ignore[override]
        if _within_a_graph():
            return super().can_fuse(scheduler, node1, node2, shared_data_score)
        leaves = [self.tuner_realised.ids.get(leaf.get_name()) for node in (node1, node2) for leaf in node.get_nodes()]
        wanted = {NO_GROUP if leaf is None else self.tuner_group_of(leaf) for leaf in leaves}
        if len(wanted) != 1 or NO_GROUP in wanted:
            return False
        return "can_fuse" not in self.tuner_asks_first or super().can_fuse(scheduler, node1, node2, shared_data_score)

    def can_fuse_horizontal(  # type: ignore[override]
        self, scheduler: Any, node1: Any, node2: Any, shared_data_score: int
    ) -> bool:
        if "can_fuse_horizontal" not in self.tuner_asks_first and not _within_a_graph():
            return True
        return super().can_fuse_horizontal(scheduler, node1, node2, shared_data_score)


def forced_groups(groups: Groups | GroupOf, realised: Realised, uuid: str, users: InductorChoices) -> ForcedGroups:
    """The handler for `groups`, a partition or the group of each leaf.

    It leaves every other choice to the user's handler, of which it shares the state.
    """
    kind = type(users)
    if kind is InductorChoices:
        return ForcedGroups(groups, realised, uuid)
    own = {name for name in ("can_fuse", "can_fuse_horizontal") if getattr(kind, name) is not getattr(InductorChoices, name)}
    state = {
        # A function in a class would be called as a method.
        "tuner_group_of": staticmethod(_group_of(groups)),
        "tuner_realised": realised,
        "tuner_uuid": uuid,
        "tuner_asks_first": own,
    }
    made: ForcedGroups = object.__new__(type(f"ForcedGroupsOver{kind.__name__}", (ForcedGroups, kind), state))
    made.__dict__ = users.__dict__
    return made


def _group_of(groups: Groups | GroupOf) -> GroupOf:
    if callable(groups):
        return groups
    by_leaf = {leaf: i for i, group in enumerate(groups) for leaf in group}
    return lambda leaf: by_leaf.get(leaf, NO_GROUP)


@contextlib.contextmanager
def applied(
    plan: Plan,
    realised: Realised,
    expected: Groups | None = None,
    dealt: GroupOf | None = None,
    drawn: CutsWanted | None = None,
) -> Iterator[None]:
    """The graph that Inductor compiles in this context and thread is compiled as `plan` wants it, whatever inner step is around.

    Native ops are decided before the graph is made. dealt: the group of each leaf by its id, in place of the plan's groups.
    drawn: whether a value is cut, by the cut's id, in place of the plan's cuts.
    """
    with within_inner_step(lambda gm, kwargs: plan_in_force(plan, realised, expected, dealt, drawn, gm, kwargs)):
        yield


@contextlib.contextmanager
def plan_in_force(
    plan: Plan,
    realised: Realised,
    expected: Groups | None,
    dealt: GroupOf | None,
    drawn: CutsWanted | None,
    gm: fx.GraphModule,
    kwargs: Mapping[str, Any],
) -> Iterator[None]:
    """The plan's settings and hooks, around the user's, for `gm`, which Inductor's inner step is given with `kwargs`.

    Three things go together, for each alone leaves a stale or a poisoned compile cache behind: the choices handler is set both
    as the thread's handler and as the configured class, and the uuid of the passes puts all that the plan changes, and the user's
    hooks within, into the FX cache's key. (AOTAutograd's cache is asked before: `pinned` has its tag.) Raises PlanRefused, here
    or while the graph is compiled, for one that must not be left to eager, and for cuts that the graph does not have.
    """
    check_runnable(plan.config)
    users = users_hooks()
    told = hashlib.sha256(repr((expected, users.uuid, dealt, drawn)).encode()).hexdigest()[:16]
    uuid = f"tuner-{APPLY_VERSION}-{plan.key}-{told}"
    eager = plan.compiler == "eager"
    before = ReadBack(realised, expected, uuid, after=False, eager=eager, users=users.pre_fusion, cuts=plan.cuts)
    config: dict[str, Any] = {
        **dict(plan.config),
        **(eager_settings() if eager else {}),
        "_pre_fusion_custom_pass": before,
        "_post_fusion_custom_pass": ReadBack(realised, expected, uuid, after=True, users=users.post_fusion),
    }
    if plan.cuts or drawn is not None or realised.inspect is not None:
        phase = "inference" if kwargs.get("is_inference") else "backward" if kwargs.get("is_backward") else "forward"
        wanted = drawn or frozenset(plan.cuts).__contains__
        config["post_grad_custom_post_pass"] = CutPass(gm, phase, wanted, uuid, plan.cuts, users.post_grad)
    with contextlib.ExitStack() as stack:
        groups = plan.groups if dealt is None else dealt
        if groups is not None:
            choices = forced_groups(groups, realised, uuid, users.choices)
            config["inductor_choices_class"] = lambda: choices
            stack.enter_context(V.set_choices_handler(choices))
        stack.enter_context(inductor_config.patch(config))
        realised.in_force = True
        yield


_AOT_ID = re.compile(r"^# AOT ID: .*$", re.MULTILINE)


def code_key_of(code: str, how: str = "") -> str:
    """sha256 of generated code, without the line that numbers the graphs of a process, and of `how` it is compiled."""
    return hashlib.sha256("\n".join([_AOT_ID.sub("", code), *([how] if how else [])]).encode()).hexdigest()


@contextlib.contextmanager
def code_read(realised: Realised, seen_codes: Iterable[str], own_copy: str = "") -> Iterator[None]:
    """Reads the hash of generated code and compiler flags; raises DuplicateCode, before g++ runs, for one of `seen_codes`."""
    seen = frozenset(seen_codes)
    before = GraphLowering.save_output_code

    def read(code: str) -> None:
        if before is not None:
            before(code)
        realised.code_key = code_key_of(code, " ".join(filter(None, (cpp_flags(code), own_copy))))
        if realised.code_key in seen:
            raise DuplicateCode(realised.code_key)

    GraphLowering.save_output_code = staticmethod(read)
    try:
        yield
    finally:
        GraphLowering.save_output_code = before


def compile_candidate(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    plan: Plan,
    *,
    expected: Groups | None = None,
    seen_codes: Iterable[str] = (),
    own_copy: str = "",
    inspect: Inspect | None = None,
    **kwargs: Any,
) -> tuple[Callable[[list[Any]], Any], Realised]:
    """Compiles a post-AOTAutograd graph under `plan`, without compile caches, and says what came out.

    The graph must already hold the native ops that the plan keeps. The callable takes a list of inputs, which it empties.
    own_copy: makes its machine code a copy of its own beside that of equal code; for measuring what luck of place does.
    Raises DuplicateCode (before the C++ compiler runs) for code in `seen_codes`, PlanNotRealised where the groups are not the
    `expected` ones, PlanRefused for a graph that must not be left to eager, and whatever the compiler raises.
    """
    realised = Realised({}, inspect=inspect)
    # As compile_fx marks it for inference graphs: the strides of what the user sees are kept.
    (output,) = gm.graph.find_nodes(op="output")
    visible = [i for i, value in enumerate(output.args[0]) if isinstance(value, fx.Node)]
    output.meta.setdefault("user_visible_output_idxs", visible)
    forget_loaded()
    with (
        inductor_config.patch(fx_graph_cache=False, fx_graph_remote_cache=False),
        applied(plan, realised, expected),
        code_read(realised, seen_codes, own_copy),
        own_binaries(own_copy) if own_copy else contextlib.nullcontext(),
    ):
        try:
            return compile_fx_inner(gm, inputs, **kwargs), realised
        except Exception as error:
            own = find_cause(error, DuplicateCode) or find_cause(error, PlanNotRealised) or find_cause(error, PlanRefused)
            if own is not None:
                raise own from None
            raise
