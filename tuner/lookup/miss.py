"""Why a look-up missed: which fields keep it from the nearest stored winner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.canonical import differing_fields
from tuner.target import Query

PARTS = ("target", "toolchain", "ambient")


@dataclass(frozen=True)
class Miss:
    """outcome: a word for counters. reason: one line for people."""

    outcome: str
    reason: str


NO_STORE = Miss("no_store", "no store yet")
UNKNOWN_GRAPH = Miss("unknown_graph", "no winner for this graph under any target, toolchain or settings")


def explain(query: Query, stored: Iterable[Mapping[str, Mapping[str, Any]]]) -> Miss:
    """The miss of `query`, given the fields of every stored winner of the same workload (as `Query.fields` gives them).

    Outcomes: "unknown_graph"; "threads" where nothing but the thread count differs; else the first part that differs:
    "other_target", "other_toolchain", "other_ambient".
    """
    asked = query.fields()
    nearest = min((differing_fields(asked, fields) for fields in stored), key=len, default=None)
    if nearest is None:
        return UNKNOWN_GRAPH
    if len(nearest) == 1 and nearest[0].startswith("ambient.threads "):
        return Miss("threads", f"no winner for this thread count; one differs only in {nearest[0]}")
    part = next((part for part in PARTS if any(name.startswith(f"{part}.") for name in nearest)), "ambient")
    return Miss(f"other_{part}", f"no winner; the nearest differs in {', '.join(nearest)}")
