"""Choices that change lowering, so that they come before groups: what is worth trying first, and how two become one."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tuner.anatomy import Anatomy
from tuner.plan import OCCURRENCE, ConfigValue, Groups, Plan
from tuner.search_spaces.fusion import no_fusion
from tuner.search_spaces.space import Candidate, single_natives

# Places of which the value is computed in one leaf only: writing it rarely pays, and there are many.
MAX_UNSHARED = 8


def ranked_cuts(anatomy: Anatomy, sites: Iterable[tuple[str, ...]]) -> list[Candidate]:
    """The cuts at each of `sites`, ids at equal places of the graph; values that most leaves compute again come first.

    Of values that only one leaf computes, those of which it computes most, MAX_UNSHARED at most.
    """
    number = {op.cut: i for i, op in enumerate(anatomy.ops) if op.cut}
    leaves = [0] * len(anatomy.ops)
    for leaf in anatomy.leaves:
        for op in leaf.ops:
            leaves[op] += 1
    depths = [0] * len(anatomy.ops)
    for i, made in enumerate(anatomy.ops):
        depths[i] = 1 + max((depths[j] for j in made.inputs if j < i and anatomy.ops[j].cut), default=0)
    ranked = []
    for site in sites:
        if any(cut not in number for cut in site):
            continue
        place = number[site[0]]
        ranked.append((-leaves[place], -depths[place], place, site))
    ranked.sort()
    shared = [one for one in ranked if one[0] < -1]
    alone = [one for one in ranked if one[0] >= -1][:MAX_UNSHARED]
    return [Candidate(f"cut {described(site)}", Plan(cuts=tuple(sorted(site)))) for *_, site in (*shared, *alone)]


def first_choices(
    default_groups: Groups, native_ops: Iterable[str], cuts: Sequence[Candidate], knobs: Iterable[Candidate] = ()
) -> Iterator[Candidate]:
    """What is tried alone, in this order: no fusion, eager, each native op kind, the first of `knobs` and of `cuts` in turn, the
    rest of both, single occurrences of native op kinds.

    Broad changes come before narrow ones, so that a short budget sees every dimension.
    """
    occurrences = Counter(native_ops)
    if any(len(group) > 1 for group in default_groups):
        yield Candidate("no fusion", Plan(groups=no_fusion(default_groups)))
    # Nothing is decomposed for it that may stay whole: what eager itself would run.
    yield Candidate("eager", Plan(compiler="eager", native=tuple(sorted(occurrences))))
    for op in sorted(occurrences):
        yield Candidate(f"native {op}", Plan(native=(op,)))
    for both in itertools.zip_longest(knobs, cuts):
        yield from filter(None, both)
    yield from single_natives(occurrences)


def described(site: Sequence[str]) -> str:
    """A place for people: "12:aten.where.self", with how many others are like it."""
    return site[0] if len(site) == 1 else f"{site[0]} and {len(site) - 1} like it"


def joined(first: Plan, second: Plan) -> Plan | None:
    """Both plans' lowering choices in one, the first's where they contradict one another; None where that is nothing new.

    Cuts are named by places in the graph that the native ops leave: plans whose native ops differ are joined without the cuts
    of the second, see `moved_cuts`.
    """
    if not {first.compiler, second.compiler} <= {"inductor"} or first.groups is not None or second.groups is not None:
        return None
    native = _without_doubles({*first.native, *second.native})
    config: dict[str, ConfigValue] = {**dict(second.config), **dict(first.config)}
    cuts = {*first.cuts, *second.cuts} if first.native == second.native else set(first.cuts) if native == first.native else set()
    plan = Plan(native=native, config=tuple(sorted(config.items())), cuts=tuple(sorted(cuts)))
    return None if plan in (first, second) else plan


def moved_cuts(cuts: Iterable[str], sites: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Cuts of one graph at the places of another, each by its operation where that is unmistakable; else none."""
    sites = [*sites]
    found: set[str] = set()
    for target in {cut.split(":", 1)[1] for cut in cuts}:
        count = sum(cut.split(":", 1)[1] == target for cut in cuts)
        alike = [site for site in sites if site[0].split(":", 1)[1] == target and len(site) == count]
        if len(alike) == 1:
            found |= set(alike[0])
    return tuple(sorted(found))


def _without_doubles(native: set[str]) -> tuple[str, ...]:
    """Without occurrences of op kinds that are there as a whole."""
    return tuple(sorted(name for name in native if not ((one := OCCURRENCE.fullmatch(name)) and one[1] in native)))
