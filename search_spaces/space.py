"""The candidates of one graph, in the order in which they are worth trying."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tuner.plan import Groups, Plan
from tuner.search_spaces.fusion import no_fusion, single_splits
from tuner.search_spaces.inductor_knobs import KNOBS

SPACE_VERSION = 1


@dataclass(frozen=True)
class Candidate:
    """A plan with the place it has in the space: "no fusion", "split", "native aten.gelu.default", "realize_reads_threshold"."""

    label: str
    plan: Plan


def candidates(default_groups: Groups, native_kinds: Iterable[str]) -> Iterator[Candidate]:
    """All candidates but the default: no fusion, each native op kind, the knobs' trials in turn, each single split.

    default_groups: as the default realises them. native_kinds: ops of the graph that NATIVE_OPS declares. Broad changes come
    before narrow ones, one value of each knob before the second of any, so that a short budget sees every dimension.
    """
    grouped = any(len(group) > 1 for group in default_groups)
    if grouped:
        yield Candidate("no fusion", Plan(groups=no_fusion(default_groups)))
    for op in sorted(native_kinds):
        yield Candidate(f"native {op}", Plan(native=(op,)))
    lowest = tuple(sorted((name, knob.trials[0]) for name, knob in KNOBS.items()))
    yield Candidate("realize all", Plan(config=lowest))
    for rank in range(max(len(knob.trials) for knob in KNOBS.values())):
        for name, knob in sorted(KNOBS.items()):
            if rank < len(knob.trials):
                yield Candidate(name, Plan(config=((name, knob.trials[rank]),)))
    if grouped:
        for groups in single_splits(default_groups):
            if any(len(group) > 1 for group in groups):
                yield Candidate("split", Plan(groups=groups))
