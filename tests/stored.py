"""Values to put into a store, shared by the tests of the store and of all that reads it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tuner.measurement import Measurement, Policy, Winner
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


def winner(asked: Query | None = None, plan: Plan = NATIVE, **fields: Any) -> Winner:
    """A winner twice as fast as the default."""
    given = {"default_ms": 2.0, "winner_ms": 1.0, "speedup": 2.0, "speedup_low": 1.9, "speedup_high": 2.1, **fields}
    return Winner(asked or query(), "plan", plan, policy=POLICY, effort="quick", space_version=1, **{"groups": GROUPS, **given})


def settled(asked: Query | None = None) -> Winner:
    """The default, settled."""
    return replace(winner(asked), kind="default", plan=Plan(), winner_ms=2.0, speedup=1.0, speedup_low=1.0, speedup_high=1.0)
