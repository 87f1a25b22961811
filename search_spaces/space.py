"""What a candidate is; those that set one knob, or keep one occurrence of an op native."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tuner.plan import Plan
from tuner.search_spaces.inductor_knobs import REALIZE
from tuner.search_spaces.parameters import Parameter

SPACE_VERSION = 4
# Op kinds of which single occurrences are tried occur so often, and of all kinds together so many occurrences are.
OCCURRENCES = range(2, 9)
MAX_SINGLE = 12


@dataclass(frozen=True)
class Candidate:
    """A plan with the place it has in the space: "no fusion", "eager", "split", "native aten.gelu.default", of it one occurrence,
    "native aten.gelu.default#2", "realize_reads_threshold".
    """

    label: str
    plan: Plan


def knob_candidates(knobs: Mapping[str, Parameter]) -> Iterator[Candidate]:
    """All values in memory as early as may be; then each knob alone, in their order, one value of each before any second one."""
    lowest = tuple(sorted((knob.name, knob.trials[0]) for knob in REALIZE if knob.name in knobs))
    if len(lowest) > 1:
        yield Candidate("realize all", Plan(config=lowest))
    for rank in range(max((len(knob.trials) for knob in knobs.values()), default=0)):
        for name, knob in knobs.items():
            if rank < len(knob.trials):
                yield Candidate(name, Plan(config=((name, knob.trials[rank]),)))


def single_natives(occurrences: Mapping[str, int]) -> Iterator[Candidate]:
    """Single occurrences of op kinds, of those that occur neither once nor very often; MAX_SINGLE at most."""
    few = {op: count for op, count in sorted(occurrences.items()) if count in OCCURRENCES}
    single = (f"{op}#{i}" for i in range(OCCURRENCES[-1]) for op, count in few.items() if i < count)
    for name in itertools.islice(single, MAX_SINGLE):
        yield Candidate(f"native {name}", Plan(native=(name,)))


def without_knobs(found: Iterable[Candidate], names: Iterable[str]) -> list[Candidate]:
    """`found` but for the knobs in `names`, which somebody has set: what chooses other things as well is left with these."""
    names, kept = frozenset(names), list[Candidate]()
    for candidate in found:
        config = tuple((name, value) for name, value in candidate.plan.config if name not in names)
        plan = replace(candidate.plan, config=config)
        if plan == candidate.plan or not (plan.is_default or any(plan == other.plan for other in kept)):
            kept.append(replace(candidate, plan=plan))
    return kept
