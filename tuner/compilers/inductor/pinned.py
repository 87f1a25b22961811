"""One program with the answers for it, pinned: its graphs are compiled under them, and the compile caches' key names them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import fx

from tuner.answer import Answer, ProgramAnswer
from tuner.compilers.inductor import events
from tuner.compilers.inductor.apply import APPLY_VERSION, Realised, applied
from tuner.compilers.inductor.capture import form_of
from tuner.compilers.inductor.decompose import TableWithout, late_decompose, native_table
from tuner.compilers.inductor.doors import Run
from tuner.compilers.inductor.hooks import compiler_config, inductor_config
from tuner.compilers.inductor.program import copied
from tuner.errors import PlanNotRealised, PlanRefused, UnsupportedGraph, find_cause
from tuner.lookup.client import Client
from tuner.plan import Plan
from tuner.target import Query
from tuner.workload.graph import Graph


class NotPinned(Exception):
    """A graph that was traced for native ops is not one of the program's record; the program is compiled again, by default."""


@dataclass(frozen=True)
class Found:
    """What is known of one graph. lasting: whether the next process would be told the same; else it must not be cached."""

    key: str
    answer: Answer | None
    reason: str
    lasting: bool = True


class Pinned:
    """The answers for one program at one generation, and how its graphs are compiled with them.

    The store may change before the graphs are compiled: these answers hold all the same. user_tag: the user's own addition to the
    compile caches' key. inner: the inner step of whoever compiles, Inductor's own or one around it. graphs: what was compiled,
    where a daemon wants it; nothing where a compile cache answered.
    """

    def __init__(
        self,
        key: str,
        answer: ProgramAnswer,
        where: tuple[Mapping[str, Any], ...],
        door: Client,
        source: str,
        user_tag: str,
        inner: Callable[..., Any],
    ):
        self.key, self.answer, self.where = key, answer, where
        self.door, self.source, self.user_tag, self.inner = door, source, user_tag, inner
        self.read_back = door.settings.read_back
        self.graphs: list[Graph] = []

    @property
    def query(self) -> Query:
        """The query of the program."""
        return Query("program", self.key, *self.where)

    @cached_property
    def tag(self) -> str:
        """Addition to the compile caches' key: the user's, and the plans in use with the version of how they are applied."""
        ours = [self.answer.cache_tag] if self.answer.cache_tag else []
        ours += ["read-back"] if self.read_back else []
        return "-".join([*filter(None, [self.user_tag]), f"tuner-{APPLY_VERSION}", *ours]) if ours else self.user_tag

    @property
    def may_fail(self) -> bool:
        """Whether compiling could fail on our account."""
        return self.tag != self.user_tag

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any], run: Run) -> Any:
        # Where a plan keeps ops native, AOTAutograd leaves all ops undecomposed that may stay native, and the inner step
        # decomposes those that this plan does not keep: what is compiled is what was measured, and has the key it should have.
        with compiler_config.patch(cache_key_tag=self.tag):
            return run(gm, example_inputs, self._inner_compile, native_table if self.answer.native else None)

    def _inner_compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        found = self._find(gm, kwargs)
        if self.answer.native and (found.answer is None or not found.lasting):
            raise NotPinned(found.reason)
        plan = found.answer.plan if found.answer is not None else Plan()
        if plan.is_default and not self.read_back:
            compiled = self._default(gm, example_inputs, kwargs, cached=found.lasting)
            self._record(found, "default", found.reason)
            return compiled
        realised, expected = Realised({}), found.answer.groups if found.answer is not None and not plan.is_default else None
        try:
            attempt = copied(gm)
            with compiler_config.patch(cache_key_tag=self.tag), applied(plan, realised, expected):
                compiled = self._keeping(attempt, example_inputs, plan.native, kwargs)
        except Exception as error:
            if find_cause(error, PlanNotRealised):
                reason = "not realised"
            else:
                refused = find_cause(error, PlanRefused)
                reason = str(refused) if refused else f"{type(error).__name__} under the plan"
            events.swallowed(reason, error)
            compiled = self._default(gm, example_inputs, kwargs, cached=False)
            self._record(found, "fallback", reason)
            return compiled
        self._record(found, "default" if plan.is_default else "served", found.reason, realised)
        return compiled

    def _default(self, gm: fx.GraphModule, example_inputs: Sequence[Any], kwargs: dict[str, Any], cached: bool) -> Any:
        """The graph by default, under the user's own key, as if we were not there.

        Not `cached`: in no cache, so that the next process asks again. (AOTAutograd saves no entry for an inner one unsaved.)
        """
        quiet = contextlib.nullcontext() if cached else inductor_config.patch(fx_graph_cache=False, fx_graph_remote_cache=False)
        with compiler_config.patch(cache_key_tag=self.user_tag), quiet:
            return self._keeping(gm, example_inputs, (), kwargs)

    def _keeping(self, gm: fx.GraphModule, example_inputs: Sequence[Any], native: Sequence[str], kwargs: dict[str, Any]) -> Any:
        """Inductor's inner step with only `native` left undecomposed."""
        if self.answer.native:
            gm = late_decompose(gm, native)
            kwargs = {**kwargs, "get_decomp_fn": TableWithout(tuple(native))}
        return self.inner(gm, example_inputs, **kwargs)

    def _find(self, gm: fx.GraphModule, kwargs: dict[str, Any]) -> Found:
        """The graph's key, taken as the default would decompose it, and the answer."""
        try:
            graph = form_of(late_decompose(gm, ()) if self.answer.native else gm, kwargs)
            key = graph.key
            query = Query("graph", key, *self.where)
            if self.answer.wanted and not self.answer.native:
                self.graphs.append(graph)
        except UnsupportedGraph as error:
            return Found("", None, error.reason)
        except Exception as error:
            events.swallowed("graph key error", error)
            return Found("", None, "graph key error", lasting=False)
        if self.answer.known:
            answer = self.answer.answers.get(query.exact_key)
            return Found(key, answer, answer.reason if answer is not None else "the program's record does not name this graph")
        if self.answer.generation == 0:
            return Found(key, None, "no store, or an empty one")
        answer = self.door.lookup(query)
        if answer.generation != self.answer.generation:
            reason = answer.reason if self.door.source == "none" else "the store changed since the program's look-up"
            return Found(key, None, reason, lasting=False)
        if answer.plan.native:
            return Found(key, None, "the winner keeps ops native, which needs the program's record: sweep this program")
        return Found(key, answer, answer.reason)

    def _record(self, found: Found, outcome: str, reason: str, realised: Realised | None = None) -> None:
        answer = found.answer
        events.record(
            events.Served(
                program_key=self.key,
                workload_key=found.key,
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
