"""What a look-up returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tuner.canonical import digest
from tuner.json_fields import field_of, items_of, number_of, object_of, points_of, text_of, whole_number_of
from tuner.plan import Groups, Plan, groups_from_json

Tier = Literal["exact", "near_shape", "other_toolchain", "default"]
TIERS: tuple[Tier, ...] = ("exact", "near_shape", "other_toolchain", "default")


@dataclass(frozen=True)
class Answer:
    """A plan for one graph, and why.

    tier: "exact" for a stored winner of the same exact-match key, the default as settled winner included; "default" when nothing
    is known. groups: as realised when the winner was measured. generation: the store's counter that was read. reason: one line.
    sizes: of a graph with symbols, values of them at which the winner was measured (`tuner.measurement.Policy.sizes`).
    """

    plan: Plan
    tier: Tier
    generation: int
    reason: str
    groups: Groups | None = None
    speedup: float = 1.0
    speedup_low: float = 1.0
    speedup_high: float = 1.0
    sizes: tuple[tuple[int, ...], ...] = ()

    @property
    def winner(self) -> str:
        return "default" if self.plan.is_default else "plan"

    def to_json(self) -> dict[str, Any]:
        return {
            "winner": self.winner,
            "plan": None if self.plan.is_default else self.plan.to_json(),
            "groups": None if self.groups is None else [list(group) for group in self.groups],
            "tier": self.tier,
            "generation": self.generation,
            "reason": self.reason,
            "speedup": self.speedup,
            "speedup_low": self.speedup_low,
            "speedup_high": self.speedup_high,
            **({"sizes": [list(point) for point in self.sizes]} if self.sizes else {}),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Answer:
        """The answer that `to_json` wrote, its plan checked for structure only. Raises PlanError, ValueError."""
        data = object_of(data)
        plan, groups, tier = field_of(data, "plan"), data.get("groups"), field_of(data, "tier")
        if tier not in TIERS:
            raise ValueError(f"unknown tier {str(tier)[:40]!r}")
        return Answer(
            plan=Plan() if plan is None else Plan.from_json(plan),
            tier=tier,
            generation=whole_number_of(field_of(data, "generation")),
            reason=text_of(field_of(data, "reason")),
            groups=None if groups is None else groups_from_json(groups),
            speedup=number_of(field_of(data, "speedup")),
            speedup_low=number_of(field_of(data, "speedup_low")),
            speedup_high=number_of(field_of(data, "speedup_high")),
            sizes=points_of(data.get("sizes", ())),
        )


@dataclass(frozen=True)
class Bucket:
    """The plans of a program's graphs for sizes of its `symbol` ("s0") up to `up_to` that no bucket before it takes.

    up_to: None for all that are left. plans: (exact-match key, plan, groups as realised), by key; a graph that is not named has
    the default.
    """

    symbol: str
    up_to: int | None
    plans: tuple[tuple[str, Plan, Groups | None], ...] = ()

    def to_json(self) -> dict[str, Any]:
        plans = {
            key: {"plan": plan.to_json(), "groups": None if groups is None else [list(group) for group in groups]}
            for key, plan, groups in self.plans
        }
        return {"symbol": self.symbol, "up_to": self.up_to, "plans": plans}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Bucket:
        """The bucket that `to_json` wrote, checked for structure only. Raises PlanError, ValueError."""
        data = object_of(data)
        plans = []
        for key, one in sorted(object_of(field_of(data, "plans")).items()):
            plan, groups = field_of(object_of(one), "plan"), field_of(one, "groups")
            plans.append((key, Plan.from_json(plan), None if groups is None else groups_from_json(groups)))
        up_to = field_of(data, "up_to")
        return Bucket(text_of(field_of(data, "symbol")), None if up_to is None else whole_number_of(up_to), tuple(plans))


@dataclass(frozen=True)
class ProgramChoice:
    """What is chosen for a program as a whole, beside the plans of its graphs; see `ProgramAnswer` for the fields."""

    native_table: tuple[str, ...] = ()
    dispatch: tuple[Bucket, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"native_table": list(self.native_table), "dispatch": [bucket.to_json() for bucket in self.dispatch]}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ProgramChoice:
        """The choice that `to_json` wrote, checked for structure only. Raises PlanError, ValueError."""
        data = object_of(data)
        native, dispatch = items_of(data.get("native_table", [])), items_of(data.get("dispatch", []))
        return ProgramChoice(tuple(sorted(map(text_of, native))), tuple(map(Bucket.from_json, dispatch)))


@dataclass(frozen=True)
class ProgramAnswer:
    """Everything a program needs, pinned at one generation.

    known: whether the store has a record of the program's graphs under this target, toolchain and ambient. answers: by the
    exact-match key of each of its graphs, in order. graph_keys: the same graphs' own keys, where the answer says them.
    native_table: op kinds that are left out of AOTAutograd's decomposition table for the whole of a training program.
    dispatch: where it is not empty, the program is compiled for each bucket with that bucket's plans, instead of once with
    `answers`. wanted: the daemon that answers would tune the program, were it given the graphs. reason: why nobody could be
    asked; of the asking process, so never on the wire.
    """

    known: bool
    generation: int
    answers: Mapping[str, Answer] = field(default_factory=dict, hash=False)
    wanted: bool = False
    graph_keys: tuple[str, ...] = ()
    native_table: tuple[str, ...] = ()
    dispatch: tuple[Bucket, ...] = ()
    reason: str = field(default="", compare=False)

    @property
    def settled(self) -> bool:
        """Whether there is a winner, be it the default, for each of the program's graphs."""
        return self.known and all(answer.tier != "default" for answer in self.answers.values())

    @property
    def native(self) -> tuple[str, ...]:
        """Op kinds that some graph's plan keeps native."""
        return tuple(sorted({kind for answer in self.answers.values() for kind in answer.plan.native_kinds}))

    @property
    def plans_digest(self) -> str:
        """What goes into the compile caches' key of the program, see `digest_of_plans`; empty for an unknown one.

        It names the plans of this program's graphs and nothing else: what is stored of other programs leaves its entries valid.
        """
        plans = {key: (answer.plan, answer.groups) for key, answer in self.answers.items()}
        return digest_of_plans(plans, self.native_table, self.dispatch)

    def of_bucket(self, bucket: Bucket) -> ProgramAnswer:
        """The answers for sizes in one of the buckets of `dispatch`."""
        plans = {key: (plan, groups) for key, plan, groups in bucket.plans}
        limit = "any other size" if bucket.up_to is None else f"{bucket.symbol} up to {bucket.up_to}"
        answers = {}
        for key in {**self.answers, **plans}:
            plan, groups = plans.get(key, (Plan(), None))
            answers[key] = Answer(plan, "exact", self.generation, f"the program's choice for {limit}", groups)
        return replace(self, answers=answers, dispatch=())

    def to_json(self) -> dict[str, Any]:
        more = {"graph_keys": list(self.graph_keys), **ProgramChoice(self.native_table, self.dispatch).to_json()}
        return {
            "known": self.known,
            "generation": self.generation,
            "answers": {key: answer.to_json() for key, answer in self.answers.items()},
            "wanted": self.wanted,
            **{name: value for name, value in more.items() if value},
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ProgramAnswer:
        """The program answer that `to_json` wrote. Raises PlanError, ValueError."""
        choice = ProgramChoice.from_json(data)
        return ProgramAnswer(
            known=field_of(data, "known") is True,
            generation=whole_number_of(field_of(data, "generation")),
            answers={key: Answer.from_json(value) for key, value in object_of(field_of(data, "answers")).items()},
            wanted=data.get("wanted") is True,
            graph_keys=tuple(map(text_of, items_of(data.get("graph_keys", ())))),
            native_table=choice.native_table,
            dispatch=choice.dispatch,
        )


def digest_of_plans(
    plans: Mapping[str, tuple[Plan, Groups | None]], native_table: tuple[str, ...] = (), dispatch: tuple[Bucket, ...] = ()
) -> str:
    """Which plans, with their realised groups, are in force for which graph, by exact-match key; and the program's own choice.

    Empty where all are default. Groups are in canonical order, as the store gives them.
    """
    chosen: dict[str, Any] = {key: [plan.key, groups] for key, (plan, groups) in plans.items() if not plan.is_default}
    if native_table:
        chosen["native_table"] = sorted(native_table)
    if dispatch:
        chosen["dispatch"] = [
            [bucket.symbol, bucket.up_to, [[key, plan.key, groups] for key, plan, groups in bucket.plans]] for bucket in dispatch
        ]
    return digest("plans", chosen) if chosen else ""
