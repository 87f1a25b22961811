"""The candidates of one graph, in the order in which they are worth trying."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tuner.plan import Groups, Plan
from tuner.search_spaces.fusion import no_fusion, single_splits
from tuner.search_spaces.inductor_knobs import REALIZE, knobs_for
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


def candidates(
    default_groups: Groups, native_ops: Iterable[str], knobs: Mapping[str, Parameter] = knobs_for("cpu")
) -> Iterator[Candidate]:
    """All candidates but the default: no fusion, eager, each native op kind, the knobs' trials in turn, single occurrences of
    native op kinds, each single split.

    default_groups: as the default realises them. native_ops: ops of the graph that NATIVE_OPS declares, once for each occurrence.
    knobs: those that may change something, see `knobs_for`.
    Broad changes come before narrow ones, one value of each knob before the second of any, so that a short budget sees every
    dimension.
    """
    occurrences = Counter(native_ops)
    grouped = any(len(group) > 1 for group in default_groups)
    if grouped:
        yield Candidate("no fusion", Plan(groups=no_fusion(default_groups)))
    # Nothing is decomposed for it that may stay whole: what eager itself would run.
    yield Candidate("eager", Plan(compiler="eager", native=tuple(sorted(occurrences))))
    for op in sorted(occurrences):
        yield Candidate(f"native {op}", Plan(native=(op,)))
    yield from knob_candidates(knobs)
    yield from single_natives(occurrences)
    if grouped:
        for groups in single_splits(default_groups):
            if any(len(group) > 1 for group in groups):
                yield Candidate("split", Plan(groups=groups))


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
