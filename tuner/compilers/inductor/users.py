"""What the user has put into Inductor himself: his choices handler, his passes, his options. Composed with, never replaced."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from tuner.answer import Answer, Bucket, ProgramAnswer
from tuner.compilers.inductor.eager import SETTINGS as EAGER_SETTINGS
from tuner.compilers.inductor.hooks import InductorChoices, inductor_config, own_choices_handler
from tuner.errors import UnsupportedGraph
from tuner.lookup.client import Door, Source
from tuner.plan import Plan
from tuner.settings import Settings
from tuner.target import Query
from tuner.workload.miss_report import MissReport

# Of each thread, the handler of the user's that was made last, and of which class.
_kept = threading.local()
# Wrappers around an inner step that are looked into.
MAX_WRAPPERS = 64


@dataclass(frozen=True)
class UsersHooks:
    """choices: the handler that the user's compile would use. pre_fusion, post_fusion: his scheduler passes. post_grad: his
    passes over the graph that is lowered. uuid: of all."""

    choices: InductorChoices
    pre_fusion: Callable[[Any], Any] | None
    post_fusion: Callable[[Any], Any] | None
    post_grad: tuple[Callable[..., Any], ...] = ()
    uuid: tuple[str, ...] = ()


def users_hooks() -> UsersHooks:
    """The user's hooks into fusion in this thread, under the settings in force. Raises UnsupportedGraph: no uuid()."""
    choices = users_choices()
    pre, post = inductor_config._pre_fusion_custom_pass, inductor_config._post_fusion_custom_pass
    graph = inductor_config.post_grad_custom_post_pass
    graph = tuple(graph) if isinstance(graph, list | tuple) else () if graph is None else (graph,)
    named = [("choices", choices if type(choices) is not InductorChoices else None), ("pre", pre), ("post", post)]
    named += [("graph", one) for one in graph]
    uuid = tuple(f"{name}={uuid_of(name, hook)}" for name, hook in named if hook is not None)
    return UsersHooks(choices, pre, post, graph, uuid)


def users_choices() -> InductorChoices:
    """The choices handler that Inductor would use: this thread's own, if one was set, else one of the configured class."""
    handler = own_choices_handler()
    # Inductor keeps the handler that it made at first; a class that was configured since then is what the user means.
    if handler is not None and type(handler) is not InductorChoices:
        return handler
    made = inductor_config.inductor_choices_class
    if made is None:
        return InductorChoices()
    # As Inductor does, which keeps the first: a handler may hold state from one graph to the next.
    if getattr(_kept, "made", None) is not made:
        _kept.made, _kept.handler = made, made()
    handler = _kept.handler
    return handler


def uuid_of(name: str, hook: Any) -> str:
    """What names a hook of the user's in keys. Raises UnsupportedGraph where nothing does."""
    if not callable(uuid := getattr(hook, "uuid", None)) or not (known := uuid()):
        raise UnsupportedGraph("user_hooks", f"{name} is set to something that has no uuid()")
    return str(known)


def option_names(inner: Any) -> frozenset[str]:
    """Settings that a caller has given to `compile_fx`, also those equal to the default, read off the inner step that it made.

    `compile_fx` wraps the inner step in a patch of the settings that it was given, for the backward.
    """
    names: set[str] = set()
    for _ in range(MAX_WRAPPERS):
        if isinstance(inner, functools.partial):
            inner = inner.func
        elif not isinstance(inner, types.FunctionType):
            break
        else:
            patches = [held for held in map(_content, inner.__closure__ or ()) if type(held).__name__ == "ConfigPatch"]
            names.update(*(patch.changes for patch in patches))
            inner = getattr(inner, "__wrapped__", None)
    return frozenset(names)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None


class Outranking:
    """A client without plans that would change a setting which the user has set himself, be it to the default's value."""

    def __init__(self, client: Door, names: Iterable[str]):
        self.client, self.names = client, frozenset(names)

    @property
    def source(self) -> Source:
        return self.client.source

    @property
    def settings(self) -> Settings:
        return self.client.settings

    def lookup(self, query: Query) -> Answer:
        return self._outranked(self.client.lookup(query))

    def program(self, query: Query) -> ProgramAnswer:
        answer = self.client.program(query)
        answers = {key: self._outranked(one) for key, one in answer.answers.items()}
        dispatch = tuple(self._without(bucket) for bucket in answer.dispatch)
        return replace(answer, answers=answers, dispatch=dispatch)

    def report(self, report: MissReport) -> str:
        return self.client.report(report)

    def _outranked(self, answer: Answer) -> Answer:
        changed = self._changed_by(answer.plan)
        if not changed:
            return answer
        return Answer(Plan(), "default", answer.generation, f"option set by the user: {', '.join(changed)}")

    def _without(self, bucket: Bucket) -> Bucket:
        return replace(
            bucket, plans=tuple((key, plan, groups) for key, plan, groups in bucket.plans if not self._changed_by(plan))
        )

    def _changed_by(self, plan: Plan) -> list[str]:
        config = {**dict(plan.config), **(EAGER_SETTINGS if plan.compiler == "eager" else {})}
        return sorted(self.names & config.keys())
