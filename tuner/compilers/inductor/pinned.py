"""One program with the answers for it, pinned: its graphs are compiled under them, and the compile caches' key names them."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from torch import fx

from tuner.answer import Answer, Bucket, ProgramAnswer
from tuner.compilers.inductor import events, memo
from tuner.compilers.inductor.ambient import settings_in_force
from tuner.compilers.inductor.apply import APPLY_VERSION, Realised, applied
from tuner.compilers.inductor.capture import form_of
from tuner.compilers.inductor.decompose import TableWithout, late_decompose, register_native
from tuner.compilers.inductor.doors import Run
from tuner.compilers.inductor.hooks import (
    compiler_config,
    functorch_config,
    inductor_config,
    should_bundle_autograd_cache,
)
from tuner.compilers.inductor.program import copied
from tuner.compilers.inductor.trace import trace
from tuner.errors import PlanNotRealised, PlanRefused, UnsupportedGraph, find_cause
from tuner.lookup.client import Door
from tuner.plan import Plan
from tuner.search_spaces.native import NATIVE_OPS
from tuner.target import Query
from tuner.workload.graph import Graph
from tuner.workload.symbols import Ranges

# Where the graphs of a program are known from, before it is compiled.
RECORD, MEMO, NOWHERE = "record", "memo", "nowhere"
NO_STORE = "no store, or an empty one"
NOT_INDUCTORS_STEP = "the caller's inner step does not pass Inductor's, so that the plan was not in force"


class NotPinned(Exception):
    """The program is compiled again, by default: a graph that was traced for native ops is not one of the program's record, or
    a plan cannot be applied and what is compiled instead would be kept as the plan."""


@dataclass(frozen=True)
class Found:
    """What is known of one graph.

    lasting: whether AOTAutograd's cache may keep the program for what this graph is compiled to. It may not where the next
    process could be told otherwise under the same key: where a plan is in use that the program's tag does not name, or where
    the look-up of this graph alone failed, or saw another generation of the store than the program's.
    """

    key: str
    phase: str
    answer: Answer | None
    reason: str
    lasting: bool = True


class Pinned:
    """The answers for one program at one generation, and how its graphs are compiled with them.

    The store may change before the graphs are compiled, and a backward may be compiled much later and in another thread: these
    answers hold all the same. user_tag: the user's own addition to the compile caches' key. inner: the inner step of whoever
    called Inductor. training: whether AOTAutograd makes a forward and a backward graph. ranges: those of the program's symbols
    before anything was compiled. graphs: what was compiled, where a daemon wants it; nothing where a compile cache answered.
    """

    def __init__(
        self,
        key: str,
        answer: ProgramAnswer,
        where: tuple[Mapping[str, Any], ...],
        door: Door,
        source: str,
        user_tag: str,
        inner: Callable[..., Any],
        *,
        training: bool = False,
        ranges: Ranges | None = None,
    ):
        self.key, self.where, self.door, self.source, self.user_tag = key, where, door, source, user_tag
        self.inner, self.training, self.ranges = inner, training, ranges
        self.read_back = door.settings.read_back
        self.settings = settings_in_force()
        self.graphs: list[Graph] = []
        self.graph_compiled: Callable[[], None] = lambda: None
        self._compiled: list[str] = []
        self._returned = False
        self._lock = threading.Lock()
        self.answer, self.known_from = self._with_memo(answer)

    @property
    def query(self) -> Query:
        """The query of the program."""
        return Query("program", self.key, *self.where)

    def _with_memo(self, answer: ProgramAnswer) -> tuple[ProgramAnswer, str]:
        """Of a program without a record, the answers for the graphs that it gave before, if they are of one generation."""
        if answer.known:
            return answer, RECORD
        keys = memo.remembered(self.query.exact_key)
        queries = [Query("graph", key, *self.where) for key in keys]
        ask = self.door.lookup if answer.generation else lambda _: _nothing_known(answer)
        answers = {query.exact_key: ask(query) for query in queries}
        if not answers or any(one.generation != answer.generation for one in answers.values()):
            return answer, NOWHERE
        return replace(answer, answers=answers, graph_keys=keys), MEMO

    def of_bucket(self, bucket: Bucket) -> Pinned:
        """The same for sizes in one of the buckets of the program's choice."""
        return self._with(self.answer.of_bucket(bucket))

    def without_dispatch(self) -> Pinned:
        """The same with one plan for all sizes."""
        return self._with(replace(self.answer, dispatch=()))

    def _with(self, answer: ProgramAnswer) -> Pinned:
        made = copy.copy(self)
        made.__dict__.pop("tag", None)
        made.answer, made.graphs, made._compiled, made._lock = answer, [], [], threading.Lock()
        return made

    @cached_property
    def tag(self) -> str:
        """Addition to the compile caches' key: the user's, and the plans in use with the version of how they are applied.

        A program whose graphs have no plan, or are not known, has the user's own key: what Inductor alone has compiled is valid.
        """
        ours = [self.answer.plans_digest] if self.answer.plans_digest else []
        ours += ["read-back"] if self.read_back else []
        return "-".join([*filter(None, [self.user_tag]), f"tuner-{APPLY_VERSION}", *ours]) if ours else self.user_tag

    @property
    def may_fail(self) -> bool:
        """Whether compiling could fail on our account."""
        return self.tag != self.user_tag

    @property
    def _late(self) -> bool:
        """Whether graphs come undecomposed, for the inner step to decompose what their plans do not keep."""
        return bool(self.answer.native) and not self.training

    @property
    def _table(self) -> TableWithout | None:
        """What gives AOTAutograd its decompositions; None for what the caller wants.

        Where an inference graph's plan keeps ops native, AOTAutograd leaves all ops undecomposed that may stay native, and the
        inner step decomposes those that this plan does not keep: what is compiled is what was measured, and has the key it should
        have. The graphs of a training program cannot be decomposed late, for the partitioner sees the ops: there the choice is
        the program's.
        """
        if self._late:
            return TableWithout(tuple(sorted(NATIVE_OPS)))
        return TableWithout(self.answer.native_table) if self.training and self.answer.native_table else None

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any], run: Run) -> Any:
        """Goes on to Inductor under the program's tag. Where its caches answer, no graph is compiled: that is recorded here."""
        if self.training:
            register_native(self.answer.native_table)
        nameless = copied(gm) if self._may_be_nameless() else None
        with compiler_config.patch(cache_key_tag=self.tag):
            compiled = run(gm, example_inputs, self._inner_compile, self._table)
            if nameless is not None and not self._compiled:
                # Inductor alone had compiled it: traced once to ask for its graphs, whose code its own cache still has.
                with functorch_config.patch(enable_autograd_cache=False):
                    compiled = run(nameless, example_inputs, self._inner_compile, self._table)
        if not self._compiled:
            self._record_cached()
        self._returned = True
        trace("tuner_program", self.described())
        return compiled

    def _may_be_nameless(self) -> bool:
        """Whether the compile caches may answer for a program of which nobody knows the graphs, while winners are stored."""
        return self.known_from == NOWHERE and self.answer.generation > 0 and not is_kept()

    def described(self) -> dict[str, Any]:
        """The program and its answers, for the structured trace."""
        graphs = [
            {"exact_key": key, "tier": answer.tier, "plan": answer.plan.describe(), "reason": answer.reason}
            for key, answer in self.answer.answers.items()
        ]
        return {
            "program_key": self.key,
            "exact_key": self.query.exact_key,
            "graphs_known_from": self.known_from,
            "generation": self.answer.generation,
            "source": self.source,
            "cache_key_tag": self.tag,
            "answered_by_compile_caches": self.cached,
            "native_table": list(self.answer.native_table),
            "graphs": graphs,
        }

    @property
    def cached(self) -> bool:
        """Whether the compile caches answered for the whole program."""
        return self._returned and not self._compiled

    def _inner_compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        found = self._find(gm, example_inputs, kwargs)
        with self._lock:
            self._compiled.append(found.key)
            memo.remember(self.query.exact_key, [key for key in self._compiled if key])
        if self._late and (found.answer is None or not found.lasting):
            raise NotPinned(found.reason)
        # Not the tag of this thread: a backward may be compiled outside of the program's, or where another is in force. Plans are
        # in the key of Inductor's own cache by the uuid of their passes.
        with compiler_config.patch(cache_key_tag=self.user_tag):
            compiled = self._compile_found(gm, example_inputs, kwargs, found)
        self.graph_compiled()
        return compiled

    def _compile_found(self, gm: fx.GraphModule, example_inputs: Sequence[Any], kwargs: dict[str, Any], found: Found) -> Any:
        plan = found.answer.plan if found.answer is not None else Plan()
        if plan.is_default and not self.read_back:
            compiled = self._keeping(gm, example_inputs, (), kwargs)
            self._record(found, "default", found.reason)
            return compiled if found.lasting else _unsaved(compiled)
        realised, expected = Realised({}), found.answer.groups if found.answer is not None and not plan.is_default else None
        try:
            attempt = copied(gm)
            with self._settings(), applied(plan, realised, expected):
                compiled = self._keeping(attempt, example_inputs, plan.native, kwargs)
        except Exception as error:
            refused = find_cause(error, PlanRefused)
            reason = "not realised" if find_cause(error, PlanNotRealised) else f"{type(error).__name__} under the plan"
            reason = str(refused) if refused else reason
            events.swallowed(reason, error)
            self._record(found, "fallback", reason)
            self._check_not_kept(reason, error)
            return _unsaved(self._keeping(gm, example_inputs, (), kwargs))
        if not realised.in_force and not plan.is_default:
            self._record(found, "default", NOT_INDUCTORS_STEP)
            self._check_not_kept(NOT_INDUCTORS_STEP)
            return _unsaved(compiled)
        self._record(found, "default" if plan.is_default else "served", found.reason, realised)
        return compiled if found.lasting else _unsaved(compiled)

    def _check_not_kept(self, reason: str, error: Exception | None = None) -> None:
        """Raises NotPinned where what was compiled without the plan would be kept as the plan's, while the program's step lasts.

        A backward that is compiled after it must not fail: nobody could compile the program again. See `kept_lazily`.
        """
        if is_kept() and not self._returned:
            raise NotPinned(reason) from error

    def _settings(self) -> contextlib.AbstractContextManager[Any]:
        """The settings of the program step: torch keeps them by thread, and the plan was looked up under them."""
        here = settings_in_force()
        wanted = {name: value for name, value in self.settings.items() if name not in here or here[name] != value}
        wanted |= {name: inductor_config._config[name].default for name in here if name not in self.settings}
        return inductor_config.patch(wanted) if wanted else contextlib.nullcontext()

    def _keeping(self, gm: fx.GraphModule, example_inputs: Sequence[Any], native: Sequence[str], kwargs: dict[str, Any]) -> Any:
        """Inductor's inner step with only `native` left undecomposed."""
        if self._late:
            gm = late_decompose(gm, native)
            kwargs = {**kwargs, "get_decomp_fn": TableWithout(tuple(native))}
        return self.inner(gm, example_inputs, **kwargs)

    def _find(self, gm: fx.GraphModule, example_inputs: Sequence[Any], kwargs: dict[str, Any]) -> Found:
        """The graph's key, taken as the default would decompose it, and the answer."""
        phase = ""
        try:
            graph = form_of(late_decompose(gm, ()) if self._late else gm, kwargs, example_inputs, self.ranges)
            key, phase = graph.key, graph.phase
            query = Query("graph", key, *self.where)
            if self.answer.wanted and not self._late:
                self.graphs.append(graph)
        except UnsupportedGraph as error:
            return Found("", phase, None, error.reason)
        except Exception as error:
            events.swallowed("graph key error", error)
            return Found("", phase, None, "graph key error", lasting=False)
        answer = self.answer.answers.get(query.exact_key)
        if answer is not None:
            if answer.plan.native and not self._late:
                return Found(key, phase, None, "the winner keeps ops native, which this graph of a training program cannot")
            return Found(key, phase, answer, answer.reason)
        if self.answer.known:
            return Found(key, phase, None, "the program's record does not name this graph")
        if self.answer.generation == 0:
            nothing = _nothing_known(self.answer)
            return Found(key, phase, nothing, nothing.reason)
        return self._look_up(query, phase)

    def _look_up(self, query: Query, phase: str) -> Found:
        """What is known of a graph that was not known to be one of this program."""
        key, answer = query.workload_key, self.door.lookup(query)
        if answer.generation != self.answer.generation:
            reason = answer.reason if self.door.source == "none" else "the store changed since the program's look-up"
            return Found(key, phase, None, reason, lasting=False)
        if answer.plan.native:
            reason = "the winner keeps ops native, which needs the program's record: sweep this program"
            return Found(key, phase, None, reason, lasting=self.training)
        if not answer.plan.is_default and is_kept():
            return Found(
                key, phase, None, "the artifact that is being made would be kept under a key that does not name the plan"
            )
        return Found(key, phase, answer, answer.reason, lasting=answer.plan.is_default)

    def _record_cached(self) -> None:
        answers = list(self.answer.answers.values())
        keys = self.answer.graph_keys
        keys = keys if len(keys) == len(answers) else ("",) * len(answers)
        for key, answer in zip(keys, answers, strict=True):
            outcome = "default from cache" if answer.plan.is_default else "served from cache"
            self._record(Found(key, "", answer, answer.reason), outcome, answer.reason)
        if not answers:
            reason = "the compile caches answered before it was known which graphs the program gives"
            self._record(Found("", "", None, reason), "default from cache", reason)

    def _record(self, found: Found, outcome: str, reason: str, realised: Realised | None = None) -> None:
        answer = found.answer
        served = events.Served(
            program_key=self.key,
            workload_key=found.key,
            tier=answer.tier if answer is not None else "default",
            winner=answer.winner if answer is not None else "default",
            generation=answer.generation if answer is not None else self.answer.generation,
            outcome=outcome,
            reason=reason,
            source=self.source,
            phase=found.phase,
            realised=realised.groups if realised is not None else None,
            expected=answer.groups if answer is not None else None,
        )
        events.record(served)
        trace("tuner_graph", asdict(served))


def _nothing_known(answer: ProgramAnswer) -> Answer:
    """The answer for a graph of a program for which there was nothing to ask."""
    return Answer(Plan(), "default", 0, answer.reason or NO_STORE)


def is_kept() -> bool:
    """Whether somebody keeps the artifact that is being made, `standalone_compile` say: then it has to be in the caches.

    What is bundled AOTAutograd saves whatever the inner step says of it.
    """
    return bool(should_bundle_autograd_cache() or functorch_config.force_non_lazy_backward_lowering)


def kept_lazily() -> bool:
    """Whether a backward would be compiled after its program's step and saved whatever becomes of its plan.

    There nobody could compile the program again by default, nor keep a default from being saved under the plan's key.
    """
    return bool(should_bundle_autograd_cache() and not functorch_config.force_non_lazy_backward_lowering)


def _unsaved(compiled: Any) -> Any:
    """`compiled`, over which AOTAutograd's cache saves no entry: it refers to inner ones by this key. Its own entry stays."""
    if not is_kept() and getattr(compiled, "_fx_graph_cache_key", None) is not None:
        compiled._fx_graph_cache_key = None
    return compiled
