"""For tests only: every graph is compiled under a legal plan drawn at random, and a failure is one, never the default.

Whatever the compiler makes of a plan that validates must compute what the default computes. Here the plans come from a seed in
place of a store, so that any test that compiles anything checks it. The draw depends on the seed and the graph alone: a failure
comes back with the seed that it names, and the compile caches may keep what was drawn.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tuner.canonical import digest
from tuner.compilers.inductor import events
from tuner.compilers.inductor.ambient import ambient
from tuner.compilers.inductor.apply import APPLY_VERSION, Realised, applied
from tuner.compilers.inductor.capture import form_of
from tuner.compilers.inductor.decompose import TableWithout, late_decompose, register_native
from tuner.compilers.inductor.doors import Run
from tuner.compilers.inductor.eager import SETTINGS, check_left_to_eager, eager_settings
from tuner.compilers.inductor.hooks import DYNAMO_SIGNALS, compiler_config
from tuner.compilers.inductor.knobs import unrunnable
from tuner.compilers.inductor.program import copied, is_training
from tuner.compilers.inductor.users import option_names
from tuner.errors import PlanRefused, RandomPlanFailed, UnsupportedGraph, one_line
from tuner.plan import ConfigValue, Plan
from tuner.search_spaces.inductor_knobs import fixed_by_user, knobs_for
from tuner.search_spaces.native import NATIVE_OPS
from tuner.search_spaces.parameters import Parameter, grid
from tuner.search_spaces.validate import check_plan

# Changes when other plans come of the same seed: it is in the compile caches' key.
DRAW_VERSION = 4
# How often a graph is left to eager, one of its ops kept native, a knob turned, its leaves grouped at random, its values cut.
EAGER, NATIVE, KNOB, GROUPED, CUT = 0.1, 0.3, 0.15, 0.85, 0.5
# How many of the values are cut that may be.
SHARES = (0.1, 0.3, 1.0)
# Into how many groups leaves are dealt: one fuses all that may be fused, many next to nothing.
DEALT = (1, 1, 2, 2, 3, 5, 10**6)
Inner = Callable[..., Any]


@dataclass(frozen=True)
class Dealt:
    """Gives the group of each leaf, by its id: dealt out as leaves appear, the same every time. count: number of groups."""

    seed: str
    count: int

    def __call__(self, leaf: str) -> int:
        return random.Random(f"{self.seed}/{leaf}").randrange(self.count)


@dataclass(frozen=True)
class DrawnCuts:
    """Says whether a value is cut, by the cut's id: the same every time. share: of the values that may be cut."""

    seed: str
    share: float

    def __call__(self, cut: str) -> bool:
        return random.Random(f"{self.seed}/{cut}").random() < self.share


@dataclass(frozen=True)
class Draw:
    """A plan, in place of its groups how leaves are dealt into groups, and of its cuts which values are cut; None: as by default.

    Leaves and cuts are known once the graph is lowered.
    """

    plan: Plan
    dealt: Dealt | None = None
    cuts: DrawnCuts | None = None

    def describe(self) -> str:
        groups = f"leaves dealt into {self.dealt.count} groups" if self.dealt else ""
        cuts = f"{self.cuts.share:.0%} of values cut" if self.cuts else ""
        return "; ".join(filter(None, [self.plan.describe(), cuts, groups]))


def compile_at_random(gm: fx.GraphModule, example_inputs: Sequence[Any], inner: Inner, run: Run, seed: str) -> Any:
    """The program, each of its graphs under a plan drawn from `seed`.

    Raises RandomPlanFailed where that fails and the default does not, else what the default raises.
    """
    untouched = copied(gm) if isinstance(gm, fx.GraphModule) else None
    if untouched is None:
        return run(gm, example_inputs, inner, None)
    program = _outline(gm)
    draw = random.Random(f"{seed}/{program}")
    training = is_training(gm, example_inputs)
    left = tuple(op for op in sorted(NATIVE_OPS) if not training or draw.random() < NATIVE) if draw.random() < 0.5 else ()
    tag = "-".join(filter(None, [compiler_config.cache_key_tag, f"tuner-{APPLY_VERSION}-random-{DRAW_VERSION}-{seed}"]))
    randomly = _Randomly(seed, program, left, tag, inner)
    try:
        with compiler_config.patch(cache_key_tag=tag):
            return run(gm, example_inputs, randomly.inner_compile, TableWithout(left) if left else None)
    except DYNAMO_SIGNALS:
        raise
    except Exception as error:
        # The border of this mode: what the default raises too is the user's own.
        if randomly.failed is None and not left:
            raise
        compiled = run(untouched, example_inputs, inner, None)
        del compiled
        raise randomly.failed or RandomPlanFailed(seed, program, f"traced without {len(left)} ops: {one_line(error)}") from error


class _Randomly:
    """The inner step for the graphs of one program. left: op kinds that its trace left undecomposed."""

    def __init__(self, seed: str, program: str, left: tuple[str, ...], tag: str, inner: Inner):
        self.seed, self.program, self.left, self.tag, self.inner = seed, program, left, tag, inner
        self.fixed = option_names(inner) | fixed_by_user(ambient())
        self.failed: RandomPlanFailed | None = None

    def inner_compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        key = _key(gm, kwargs)
        untouched, realised, drawn = copied(gm), Realised({}), None
        try:
            drawn = _drawn(f"{self.seed}/{key}", gm, self.left, self.fixed, inference=kwargs.get("is_inference") is True)
            with (
                compiler_config.patch(cache_key_tag=self.tag),
                applied(drawn.plan, realised, dealt=drawn.dealt, drawn=drawn.cuts),
            ):
                compiled = self._decomposed(gm, example_inputs, drawn.plan.native, kwargs)
        except Exception as error:
            # The border of this mode: fails in the default's way where the default fails.
            if not self.left:
                self.inner(untouched, example_inputs, **kwargs)
            self.failed = RandomPlanFailed(self.seed, key, f"{drawn.describe() if drawn else 'no plan'}: {one_line(error)}")
            events.count("random plan failed")
            raise self.failed from error
        events.record(
            events.Served(
                self.program, key, "default", "plan", 0, "random", drawn.describe(), f"seed {self.seed}", realised=realised.groups
            )
        )
        return compiled

    def _decomposed(self, gm: fx.GraphModule, inputs: Sequence[Any], native: tuple[str, ...], kwargs: dict[str, Any]) -> Any:
        if self.left and kwargs.get("is_inference") is True:
            return self.inner(late_decompose(gm, native), inputs, **{**kwargs, "get_decomp_fn": TableWithout(native)})
        if self.left:
            # A training program is decomposed as a whole, before it is parted in two.
            register_native(self.left)
            return self.inner(gm, inputs, **{**kwargs, "get_decomp_fn": TableWithout(self.left)})
        return self.inner(gm, inputs, **kwargs)


def _drawn(seed: str, gm: fx.GraphModule, left: tuple[str, ...], fixed: frozenset[str], inference: bool) -> Draw:
    """A legal plan for a graph, which was traced without decomposing the ops that are `left`; the user has `fixed` settings."""
    draw = random.Random(seed)
    calls = Counter(str(node.target) for node in gm.graph.nodes if node.op == "call_function")
    kinds = [op for op in left if op in calls]
    if draw.random() < EAGER and not fixed & SETTINGS.keys() and _may_be_left_to_eager(gm):
        return Draw(check_plan(Plan(compiler="eager", native=tuple(kinds))))
    kept: list[str] = []
    for op in kinds:
        if not inference or draw.random() < NATIVE / 2:
            kept.append(op)
        else:
            kept += [f"{op}#{i}" for i in range(calls[op]) if draw.random() < NATIVE]
    knobs = sorted(knobs_for("cpu", torch.get_num_threads()).items())
    config = {name: _value(draw, knob) for name, knob in knobs if name not in fixed and draw.random() < KNOB}
    config = {name: value for name, value in config.items() if not unrunnable([(name, value)])}
    plan = check_plan(Plan(native=tuple(sorted(kept)), config=tuple(sorted(config.items()))))
    dealt = Dealt(seed, draw.choice(DEALT)) if draw.random() < GROUPED else None
    return Draw(plan, dealt, DrawnCuts(seed, draw.choice(SHARES)) if draw.random() < CUT else None)


def _value(draw: random.Random, knob: Parameter) -> ConfigValue:
    """One that a search may choose, but the default."""
    return draw.choice([value for value in grid(knob) if value is not None and value != knob.default])


def _may_be_left_to_eager(gm: fx.GraphModule) -> bool:
    try:
        eager_settings()
        check_left_to_eager(gm.graph)
    except PlanRefused:
        return False
    return True


def _key(gm: fx.GraphModule, kwargs: Mapping[str, Any]) -> str:
    """What a graph's plan is drawn from: its key, or what can be told of a graph that has none."""
    try:
        return form_of(gm, kwargs).key
    except UnsupportedGraph:
        return _outline(gm)


def _outline(gm: fx.GraphModule) -> str:
    """Ops and metadata of a graph in its own order: less than a key, but there is one of every graph."""
    rows = []
    for node in gm.graph.nodes:
        value = node.meta.get("val", node.meta.get("example_value"))
        shape = [str(value.dtype), str(tuple(value.shape))] if isinstance(value, torch.Tensor) else type(value).__name__
        rows.append([node.op, getattr(node.target, "__name__", str(node.target)), shape])
    return digest("outline", {"rows": rows})
