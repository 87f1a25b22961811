"""`torch.compile(model, backend="tuner")`: Inductor, with a stored winner's plan for each graph that has one."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from tuner.answer import Answer, ProgramAnswer
from tuner.compilers.inductor import events
from tuner.compilers.inductor.ambient import ambient, cpu_target, cpu_toolchain
from tuner.compilers.inductor.apply import Realised, applied, own_error
from tuner.compilers.inductor.decompose import TableWithout, late_decompose, native_table
from tuner.compilers.inductor.hooks import compile_fx, compile_fx_inner, compiler_config, inductor_config, missing_hooks
from tuner.compilers.inductor.program import is_training, program_key
from tuner.errors import PlanNotRealised, UnsupportedGraph
from tuner.lookup.client import Client
from tuner.plan import Plan
from tuner.settings import Settings
from tuner.target import Query
from tuner.workload.fx import from_fx

log = logging.getLogger("tuner")
_warned = threading.Event()


@functools.cache
def client() -> Client:
    """This process's door to the answers; settings are read when the first graph is compiled."""
    return Client(Settings.from_environment())


def tuner_backend(gm: fx.GraphModule, example_inputs: Sequence[Any], mode: str | None = None, options: Any = None) -> Any:
    """A Dynamo back end. mode, options: what they mean to Inductor; a setting that changes code makes another exact-match key.

    Never fails where Inductor would not: whatever goes wrong on our side is counted, warned of once, and compiled by default.
    """
    patches = torch._TorchCompileInductorWrapper(mode, options, None).config
    compile_by_default = functools.partial(compile_fx, config_patches=patches)
    events.count_program()
    # The client's border: what fails here on our account must not fail the user's build.
    try:
        pinned = _pin(gm, example_inputs, patches)
    except UnsupportedGraph as error:
        events.count(error.reason)
        return compile_by_default(gm, example_inputs)
    except Exception as error:
        _swallowed("look-up", error)
        return compile_by_default(gm, example_inputs)
    if pinned is None:
        return compile_by_default(gm, example_inputs)
    untouched = copy.deepcopy(gm) if pinned.may_fail else None
    try:
        return pinned.compile(gm, example_inputs, patches)
    except Exception as error:
        if untouched is None:
            raise
        _swallowed("plan", error)
        return compile_by_default(untouched, example_inputs)


def _swallowed(what: str, error: Exception) -> None:
    events.count(f"{what}_error")
    level = logging.DEBUG if _warned.is_set() else logging.WARNING
    _warned.set()
    log.log(level, "tuner: %s failed, compiling by default: %s: %s", what, type(error).__name__, error)


def _pin(gm: fx.GraphModule, example_inputs: Sequence[Any], patches: dict[str, Any]) -> Pinned | None:
    """Asks for the program's plans, once. None where nothing of ours applies."""
    door = client()
    if door.settings.disabled:
        events.count("disabled")
        return None
    if missing := missing_hooks():
        raise UnsupportedGraph("missing_hooks", f"this torch lacks {', '.join(missing)}")
    if is_training(example_inputs):
        raise UnsupportedGraph("training", "training graphs are not supported yet")
    if any(isinstance(value, torch.Tensor) and value.device.type != "cpu" for value in example_inputs):
        raise UnsupportedGraph("device", "only the CPU is supported yet")
    key = program_key(gm, example_inputs)
    with inductor_config.patch(patches):
        where = (cpu_target().fields(), cpu_toolchain(), ambient())
    answer = door.program(Query("program", key, *where))
    return Pinned(key, answer, where, door, door.source)


class Pinned:
    """The answers for one program at one generation, and how its graphs are compiled with them.

    The answers are pinned here: the store may change before the graphs are compiled, and the compile caches' key names these.
    """

    def __init__(self, key: str, answer: ProgramAnswer, where: tuple[Any, Any, Any], door: Client, source: str):
        self.key, self.answer, self.where, self.door, self.source = key, answer, where, door, source

    @property
    def may_fail(self) -> bool:
        """Whether some plan may be applied, so that compiling could fail on its account."""
        return bool(self.answer.cache_tag)

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any], patches: dict[str, Any]) -> Any:
        # Where a plan keeps ops native, AOTAutograd leaves all ops undecomposed that may stay native, and the inner step
        # decomposes those that this plan does not keep: what is compiled is what was measured, and has the key it should have.
        decompositions = native_table() if self.answer.native else None
        with self._tagged():
            return compile_fx(
                gm,
                example_inputs,
                inner_compile=self._inner_compile,
                config_patches=patches,
                decompositions=decompositions,
            )

    def _tagged(self) -> contextlib.AbstractContextManager[Any]:
        """The compile caches' key with our plans in it; both caches are asked under it."""
        tag = self.answer.cache_tag + ("-read-back" if self.door.settings.read_back else "")
        return compiler_config.patch(cache_key_tag=tag) if tag else contextlib.nullcontext()

    def _inner_compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        try:
            key, answer, reason = self._answer_for(gm)
        except UnsupportedGraph as error:
            key, answer, reason = "", None, error.reason
        except Exception as error:
            _swallowed("graph look-up", error)
            key, answer, reason = "", None, "look-up error"
        if answer is None or answer.plan.is_default:
            read = Realised({}) if self.door.settings.read_back else None
            with self._tagged(), applied(Plan(), read) if read is not None else contextlib.nullcontext():
                compiled = self._compile_keeping(gm, example_inputs, (), kwargs)
            self._record(key, answer, "default", answer.reason if answer is not None else reason, read)
            return compiled
        realised = Realised({})
        plan = answer.plan
        attempt = copy.deepcopy(gm)
        try:
            with self._tagged(), applied(Plan(config=plan.config, groups=plan.groups), realised, answer.groups):
                compiled = self._compile_keeping(attempt, example_inputs, plan.native, kwargs)
        except Exception as error:
            own = own_error(error)
            reason = "not_realised" if isinstance(own, PlanNotRealised) else f"plan_error: {type(error).__name__}"
            _swallowed(reason, error)
            # Not under the plan's key in any cache: the next process tries again.
            with inductor_config.patch(fx_graph_cache=False):
                compiled = self._compile_keeping(gm, example_inputs, (), kwargs)
            self._record(key, answer, "fallback", reason)
            return compiled
        self._record(key, answer, "served", answer.reason, realised)
        return compiled

    def _compile_keeping(
        self, gm: fx.GraphModule, example_inputs: Sequence[Any], native: Sequence[str], kwargs: dict[str, Any]
    ) -> Any:
        """The inner step with only `native` left undecomposed."""
        if self.answer.native:
            gm = late_decompose(gm, native)
            kwargs = {**kwargs, "get_decomp_fn": TableWithout(tuple(native))}
        return compile_fx_inner(gm, example_inputs, **kwargs)

    def _answer_for(self, gm: fx.GraphModule) -> tuple[str, Answer | None, str]:
        """The graph's key, taken as the default would decompose it, and the answer."""
        key = from_fx(late_decompose(gm, ()) if self.answer.native else gm).key
        query = Query("graph", key, *self.where)
        if not self.answer.known:
            if self.answer.generation == 0:
                return key, None, "the store is empty"
            answer = self.door.lookup(query)
            # The caches' key names the generation that was read at the program's step, and no other.
            if answer.generation != self.answer.generation:
                return key, None, "the store changed between the program's look-up and the graph's"
            if answer.plan.native:
                return key, None, "the winner keeps ops native, which needs the program's record: sweep this program"
            return key, answer, ""
        found = self.answer.answers.get(query.exact_key)
        return key, found, "" if found is not None else "the program's record does not name this graph"

    def _record(self, key: str, answer: Answer | None, outcome: str, reason: str, realised: Realised | None = None) -> None:
        events.record(
            events.Served(
                program_key=self.key,
                workload_key=key,
                tier=answer.tier if answer is not None else "default",
                winner=answer.winner if answer is not None else "default",
                generation=answer.generation if answer is not None else self.answer.generation,
                outcome=outcome,
                reason=reason,
                source=self.source,
                realised=realised.groups if realised is not None else None,
                expected=answer.groups if answer is not None else None,
            )
        )


def reset() -> None:
    """What torch.compile's own back ends do on `torch.compiler.reset()`; also forgets this process's client."""
    client.cache_clear()


tuner_backend.reset = reset  # type: ignore[attr-defined]
