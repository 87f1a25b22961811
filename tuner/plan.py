"""A plan: one candidate for a graph, as data.

Structure is checked here; whether a name or a number is one that the search space declares is checked by
`tuner.search_spaces.validate`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tuner.canonical import canonical_json, digest
from tuner.errors import PlanError

PLAN_SCHEMA = 1
# position in the canonical order : iteration sizes : IR class : ordinal; "12:4096x1024:ComputedBuffer.Reduction:0"
LEAF_ID = re.compile(r"\d{1,7}:[0-9a-zA-Z_*+/(),|-]*:[A-Za-z0-9_.]+:\d{1,5}")
MAX_LEAVES = 20_000
MAX_NAMES = 4_000
# position in the canonical order : op; "12:aten.where.self"
CUT_ID = re.compile(r"\d{1,7}:[A-Za-z0-9_.]{1,200}", re.ASCII)
# op kind "aten.gelu.default", or one occurrence of it, "aten.gelu.default#2"
OCCURRENCE = re.compile(r"([^#]*)#(0|[1-9][0-9]{0,4})")
FIELDS = frozenset({"schema", "compiler", "native", "config", "cuts", "groups", "kernels"})

Groups = tuple[tuple[str, ...], ...]
ConfigValue = bool | int | float | str


def leaf_order(leaf: str) -> tuple[int, str]:
    """Sort key of a leaf id: its position in the canonical order, then its text."""
    return int(leaf.split(":", 1)[0]), leaf


def canonical_groups(groups: Any) -> Groups:
    """Groups of leaf ids in their one order: leaves by position, groups by first leaf."""
    ordered = [tuple(sorted(group, key=leaf_order)) for group in groups]
    return tuple(sorted(ordered, key=lambda group: leaf_order(group[0])))


@dataclass(frozen=True)
class Plan:
    """One frozen, hashable choice for a graph. `Plan()` is the compiler's default.

    compiler: "inductor", or "eager", which runs each op as a library call and fuses nothing.
    native: ATen overloads kept undecomposed, as library calls: all of the graph ("aten.gelu.default"), or one occurrence, counted
    from 0 in the canonical order of the graph's native form, which is the same in every process ("aten.gelu.default#2").
    config: Inductor knobs as (name, value) pairs, sorted by name; names as Inductor writes them.
    groups: the full partition of scheduler leaves as realised, leaves named by local ids; None: the compiler groups.
    cuts: values put into memory that would else be computed within each kernel that reads them: "12:aten.where.self" is what the
    node computes that is at position 12 of the canonical order of the graph as it is lowered, with the plan's native ops in it.
    Leaves are named as they are after the cuts.
    kernels: reserved; always empty in this version.
    """

    compiler: str = "inductor"
    native: tuple[str, ...] = ()
    config: tuple[tuple[str, ConfigValue], ...] = ()
    cuts: tuple[str, ...] = ()
    groups: Groups | None = None
    kernels: tuple[str, ...] = ()

    @property
    def is_default(self) -> bool:
        return self == Plan()

    @property
    def native_kinds(self) -> tuple[str, ...]:
        """Op kinds of which some occurrence is kept native, sorted."""
        return tuple(sorted({kind_of(name) for name in self.native}))

    @property
    def leaves_numerics(self) -> bool:
        """Whether it differs from the default by its groups at most: the same operations, grouped otherwise.

        A cut rounds a value of half precision that is else kept in full, keeps a product and a sum from becoming one rounding,
        and lets loops be vectorised, and thus sums be summed, in another order.
        """
        return Plan(groups=self.groups) == self

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": PLAN_SCHEMA,
            "compiler": self.compiler,
            "native": list(self.native),
            "config": dict(self.config),
            "cuts": list(self.cuts),
            "groups": None if self.groups is None else [list(group) for group in self.groups],
            "kernels": list(self.kernels),
        }

    @property
    def complexity(self) -> int:
        """How many choices it makes: of two plans that are alike, the simpler one is to be preferred.

        Cuts of one op count as one choice, for they are made at all equal places.
        """
        cut_ops = {cut.partition(":")[2] for cut in self.cuts}
        choices = len(self.native) + len(self.config) + len(cut_ops) + len(self.kernels)
        return choices + (self.groups is not None) + (self.compiler != "inductor")

    @cached_property
    def key(self) -> str:
        """Candidate key: equal for equal plans in every process."""
        return digest("plan", self.to_json())

    @cached_property
    def text(self) -> str:
        return canonical_json(self.to_json())

    def describe(self) -> str:
        """The plan in one line for people."""
        parts = []
        if self.compiler != "inductor":
            parts.append(f"compiler={self.compiler}")
        if self.native:
            parts.append("native " + ", ".join(name.replace(".default", "") for name in self.native))
        parts += [f"{name}={value}" for name, value in self.config]
        if self.cuts:
            parts.append(describe_cuts(self.cuts))
        if self.groups is not None:
            parts.append(describe_groups(self.groups))
        return "; ".join(parts) or "default"

    @staticmethod
    def from_json(data: Any) -> Plan:
        """The plan that `to_json` wrote. Raises PlanError on any other structure, unknown fields included."""
        if not isinstance(data, Mapping):
            raise PlanError(f"a plan is a JSON object, not {type(data).__name__}")
        if unknown := sorted(map(str, set(data) - FIELDS)):
            raise PlanError(f"unknown fields in a plan: {', '.join(unknown)}")
        if data.get("schema") != PLAN_SCHEMA:
            raise PlanError(f"plan schema {data.get('schema')!r} is not {PLAN_SCHEMA}")
        compiler, config, groups = data.get("compiler", "inductor"), data.get("config", {}), data.get("groups")
        if not isinstance(compiler, str):
            raise PlanError("a plan's compiler is a string")
        if not isinstance(config, Mapping) or not all(
            isinstance(name, str) and isinstance(value, bool | int | float | str) for name, value in config.items()
        ):
            raise PlanError("a plan's config maps names to numbers, booleans or strings")
        return Plan(
            compiler=compiler,
            native=_strings(data, "native"),
            config=tuple(sorted(config.items())),
            cuts=_strings(data, "cuts"),
            groups=None if groups is None else groups_from_json(groups),
            kernels=_strings(data, "kernels"),
        )


def kind_of(native: str) -> str:
    """The op kind that an entry of a plan's `native` names, or names an occurrence of."""
    occurrence = OCCURRENCE.fullmatch(native)
    return occurrence[1] if occurrence else native


def describe_groups(groups: Groups) -> str:
    """Groups by leaf numbers, `{0 1 2}{3}`; leaves are numbered in canonical order. Long partitions are summed up."""
    leaves = sorted((leaf for group in groups for leaf in group), key=leaf_order)
    number = {leaf: str(i) for i, leaf in enumerate(leaves)}
    if all(len(group) == 1 for group in groups):
        return f"no fusion ({len(groups)} groups)"
    if len(leaves) > 24:
        return f"{len(leaves)} leaves in {len(groups)} groups"
    return "groups " + "".join("{" + " ".join(number[leaf] for leaf in group) + "}" for group in groups)


def describe_cuts(cuts: tuple[str, ...]) -> str:
    """Cuts by op: "cut after aten.mul.Tensor at 3, 9, aten.where.self at 12"; many of one op are counted."""
    places: dict[str, list[int]] = {}
    for cut in sorted(cuts, key=leaf_order):
        position, _, target = cut.partition(":")
        places.setdefault(target, []).append(int(position))
    told = (f"{op} at {', '.join(map(str, at)) if len(at) <= 4 else f'{len(at)} places'}" for op, at in places.items())
    return "cut after " + ", ".join(told)


def _strings(data: Mapping[str, Any], field: str) -> tuple[str, ...]:
    values = data.get(field, [])
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise PlanError(f"a plan's {field} is a list of strings")
    if len(values) > MAX_NAMES:
        raise PlanError(f"a plan's {field} holds more than {MAX_NAMES} names")
    if len(set(values)) != len(values):
        raise PlanError(f"a plan's {field} names something twice")
    return tuple(sorted(values))


def groups_from_json(groups: Any) -> Groups:
    """Groups that JSON holds, in their one order. Raises PlanError on any other structure."""
    if not isinstance(groups, list | tuple) or not all(isinstance(group, list | tuple) and group for group in groups):
        raise PlanError("a plan's groups are lists of leaf ids")
    leaves = [leaf for group in groups for leaf in group]
    if len(leaves) > MAX_LEAVES:
        raise PlanError(f"a plan's groups hold more than {MAX_LEAVES} leaves")
    for leaf in leaves:
        if not isinstance(leaf, str) or len(leaf) > 400 or not LEAF_ID.fullmatch(leaf):
            raise PlanError(f"not a leaf id: {str(leaf)[:80]!r}")
    if len(set(leaves)) != len(leaves):
        raise PlanError("a leaf is in two groups")
    return canonical_groups(groups)
