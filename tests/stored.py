"""Values to put into a store, shared by the tests of the store and of all that reads it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tuner.answer import digest_of_plans
from tuner.measurement import GroupTime, Measurement, Policy, ProgramFinal, Winner
from tuner.plan import Plan
from tuner.target import Query

TARGET = {"backend": "cpu", "arch": "x86_64-avx2", "sku": "made up", "cores": 2}
TOOLCHAIN = {"torch": "2.13.0", "cxx": "g++ 12"}
AMBIENT = {"threads": 1}
POLICY = Policy.for_cpu(threads=1)
LEAVES = ("1:4:Pointwise:0", "2:4:Pointwise:0", "3:4x8:Reduction:0")
GROUPS = (LEAVES[:2], LEAVES[2:])
NATIVE = Plan(native=("aten.gelu.default",))
SPLIT = Plan(groups=GROUPS)
KNOB = Plan(config=(("realize_reads_threshold", 2),))
GROUP_TIMES = (GroupTime("6b" * 32, 0.25, "1"), GroupTime("7c" * 32, 0.5, "1"))
EVIL = Plan(config=(("cpp.cxx", "/tmp/evil"),))


def query(name: str = "a", **parts: Any) -> Query:
    """The query of a graph, one graph for each `name`; `parts` replaces target, toolchain or ambient."""
    return Query(
        "graph", (name.encode().hex() * 64)[:64], **{"target": TARGET, "toolchain": TOOLCHAIN, "ambient": AMBIENT, **parts}
    )


def program(name: str = "p", **parts: Any) -> Query:
    return replace(query(name, **parts), kind="program")


def measurement(asked: Query | None = None, plan: Plan = NATIVE, **fields: Any) -> Measurement:
    given = {"stage": "screen", "status": "ok", "samples_ms": (1.0, 1.5), "default_samples_ms": (2.0, 2.5), **fields}
    return Measurement(asked or query(), POLICY, plan, **given)


def failed(status: str, plan: Plan = NATIVE, asked: Query | None = None, **fields: Any) -> Measurement:
    return measurement(asked, plan, status=status, **{"samples_ms": (), "default_samples_ms": (), **fields})


def winner(asked: Query | None = None, plan: Plan = NATIVE, **fields: Any) -> Winner:
    """A winner twice as fast as the default."""
    given = {"default_ms": 2.0, "winner_ms": 1.0, "speedup": 2.0, "speedup_low": 1.9, "speedup_high": 2.1, **fields}
    return Winner(asked or query(), "plan", plan, policy=POLICY, effort="quick", space_version=1, **{"groups": GROUPS, **given})


def settled(asked: Query | None = None) -> Winner:
    """The default, settled."""
    return replace(winner(asked), kind="default", plan=Plan(), winner_ms=2.0, speedup=1.0, speedup_low=1.0, speedup_high=1.0)


def program_final(*winners: Winner, **fields: Any) -> ProgramFinal:
    """The veto of these winners' plans, together; `fields` replaces any field."""
    plans = digest_of_plans({one.query.exact_key: (one.plan, one.groups) for one in winners})
    given = {"verdict": "vetoed", "speedup": 0.93, "speedup_low": 0.91, "speedup_high": 0.95, **fields}
    return ProgramFinal(**{"query": program(), "plans": plans, "default_ms": 2.0, "planned_ms": 2.15, "policy": POLICY, **given})
