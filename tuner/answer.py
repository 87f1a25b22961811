"""What a look-up returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tuner.canonical import digest
from tuner.plan import Groups, Plan, canonical_groups

Tier = Literal["exact", "near_shape", "other_toolchain", "default"]
TIERS: tuple[Tier, ...] = ("exact", "near_shape", "other_toolchain", "default")


@dataclass(frozen=True)
class Answer:
    """A plan for one graph, and why.

    tier: "exact" for a stored winner of the same exact-match key, the default as settled winner included; "default" when nothing
    is known. groups: as realised when the winner was measured. generation: the store's counter that was read. reason: one line.
    """

    plan: Plan
    tier: Tier
    generation: int
    reason: str
    groups: Groups | None = None
    speedup: float = 1.0
    speedup_low: float = 1.0
    speedup_high: float = 1.0

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
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Answer:
        """The answer that `to_json` wrote, its plan checked for structure only. Raises PlanError, ValueError or TypeError."""
        plan, groups, tier = data["plan"], data.get("groups"), data["tier"]
        if tier not in TIERS:
            raise ValueError(f"unknown tier {tier!r}")
        return Answer(
            plan=Plan() if plan is None else Plan.from_json(plan),
            tier=tier,
            generation=int(data["generation"]),
            reason=str(data["reason"]),
            groups=None if groups is None else canonical_groups(groups),
            speedup=float(data["speedup"]),
            speedup_low=float(data["speedup_low"]),
            speedup_high=float(data["speedup_high"]),
        )


@dataclass(frozen=True)
class ProgramAnswer:
    """Everything a program needs, pinned at one generation.

    known: whether the store has a record of the program's graphs under this target, toolchain and ambient. answers: by the
    exact-match key of each of its graphs, in order. plans_generation: when a plan for this target, toolchain and ambient last
    came, changed or went. wanted: the daemon that answers would tune the program, were it given the graphs.
    """

    known: bool
    generation: int
    answers: Mapping[str, Answer] = field(default_factory=dict, hash=False)
    plans_generation: int = 0
    wanted: bool = False

    @property
    def settled(self) -> bool:
        """Whether there is a winner, be it the default, for each of the program's graphs."""
        return self.known and all(answer.tier != "default" for answer in self.answers.values())

    @property
    def native(self) -> tuple[str, ...]:
        """Op kinds that some graph's plan keeps native."""
        return tuple(sorted({kind for answer in self.answers.values() for kind in answer.plan.native_kinds}))

    @property
    def cache_tag(self) -> str:
        """What goes into the compile caches' key: the plans in use; empty where the default is used throughout.

        An unknown program may meet any stored plan, so its tag says how new the newest is.
        """
        if not self.known:
            return f"plans-of-{self.plans_generation}" if self.plans_generation else ""
        return self.plans_digest

    @property
    def plans_digest(self) -> str:
        """Digest of the plans that are answered, see `digest_of_plans`."""
        return digest_of_plans({key: (answer.plan, answer.groups) for key, answer in self.answers.items()})

    def to_json(self) -> dict[str, Any]:
        return {
            "known": self.known,
            "generation": self.generation,
            "plans_generation": self.plans_generation,
            "answers": {key: answer.to_json() for key, answer in self.answers.items()},
            "wanted": self.wanted,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ProgramAnswer:
        """The program answer that `to_json` wrote. Raises PlanError, KeyError, ValueError or TypeError."""
        answers = {str(key): Answer.from_json(value) for key, value in data["answers"].items()}
        wanted = data.get("wanted") is True
        return ProgramAnswer(bool(data["known"]), int(data["generation"]), answers, int(data["plans_generation"]), wanted)


def digest_of_plans(plans: Mapping[str, tuple[Plan, Groups | None]]) -> str:
    """Which plans, with their realised groups, are in force for which graph, by exact-match key.

    Empty where all are default. Groups are in canonical order, as the store gives them.
    """
    chosen = {key: [plan.key, groups] for key, (plan, groups) in plans.items() if not plan.is_default}
    return digest("plans", chosen) if chosen else ""
