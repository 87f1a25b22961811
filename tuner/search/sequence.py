"""The joint final of a program without a callable, reported or captured: its graphs in sequence, with all their plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from tuner.canonical import named_fields
from tuner.measurement import Policy, ProgramFinal, Winner
from tuner.plan import Plan
from tuner.search.effort import Effort
from tuner.search.rules import SEED
from tuner.search.whole import Process, has_plan, judged, one_that_lives, plans_of, programs_of
from tuner.search.workloads import Resolved
from tuner.target import Query

# Distance of the seeds of the inputs from those of the graphs' own finals.
SEEDS_APART = 100_003

Sizes = tuple[tuple[int, ...], ...]


def sequences_of(graphs: Sequence[Resolved]) -> dict[Query, list[Resolved]]:
    """The programs with the graphs of them that can be rebuilt, where these are more than one.

    Of one graph its own final has said all there is to say; one that cannot be rebuilt has no plan of its own.
    """
    rebuilt = programs_of([graph for graph in graphs if not graph.graph.opaque])
    return {program: made for program, made in rebuilt.items() if len(made) > 1}


def hold_sequence_finals(
    graphs: Sequence[Resolved], winners: Mapping[str, Winner], policy: Policy, effort: Effort
) -> list[ProgramFinal]:
    """`hold_whole_final` for each program of several graphs by itself, on inputs made for each graph.

    How one graph's plan affects another's time shows here, as through what it leaves in the caches; how one lays out what another
    reads does not. Raises as `hold_whole_final`.
    """
    finals: list[ProgramFinal] = []
    for program, made in sequences_of(graphs).items():
        if any(has_plan(graph, winners) for graph in made):
            finals += _hold(made, winners, policy, effort, {program: made})
    return finals


def _hold(
    made: Sequence[Resolved], winners: Mapping[str, Winner], policy: Policy, effort: Effort, programs: Mapping[Any, Any]
) -> list[ProgramFinal]:
    sizes = sizes_together(made)
    policy = replace(policy, sizes=next(filter(None, sizes), ()))

    def one_process(process: int) -> dict[str, Any]:
        request = {
            "do": "open sequence",
            "rows": [_row(graph, winners, own) for graph, own in zip(made, sizes, strict=True)],
            "ambient": named_fields(made[0].query.ambient),
            "policy": policy.fields(),
            "seed": SEED + SEEDS_APART + process,
        }
        planned = {graph.query.workload_key for graph in made if has_plan(graph, winners)}
        return one_that_lives(Process(request, made[0].device, planned, 1.0, policy, effort), process)

    return judged({program: plans_of(graphs, winners) for program, graphs in programs.items()}, policy, effort, one_process)


def sizes_together(graphs: Sequence[Resolved]) -> list[Sizes]:
    """The sizes at which each of a program's graphs is run after the others; as many for each whose sizes vary.

    Those belong together that are as many times what the graphs were made for: half, as they were, or double, of which a graph
    may lack some. Of sizes that somebody named for all of them the first belongs to the first.
    """
    varying = [graph for graph in graphs if graph.sizes]
    times = [{_times(graph, size): size for size in graph.sizes} for graph in varying]
    shared = [one for one in times[0] if one is not None and all(one in own for own in times)] if times else []
    if not shared or len({graph.sizes for graph in varying}) == 1:
        count = min((len(graph.sizes) for graph in varying), default=0)
        return [graph.sizes[:count] for graph in graphs]
    found = iter(times)
    return [tuple(map(next(found).__getitem__, shared)) if graph.sizes else () for graph in graphs]


def _times(graph: Resolved, size: Sequence[int]) -> Fraction | None:
    """How many times the sizes that the graph was made for these are; None where there is no one such number."""
    hints = graph.graph.hints
    if len(hints) != len(size) or not all(hints):
        return None
    found = {Fraction(now, then) for now, then in zip(size, hints, strict=True)}
    return found.pop() if len(found) == 1 else None


def _row(graph: Resolved, winners: Mapping[str, Winner], sizes: Sizes) -> dict[str, Any]:
    winner = winners.get(graph.query.exact_key)
    return {
        "graph": graph.graph.to_json(),
        "plan": (Plan() if winner is None else winner.plan).to_json(),
        "groups": None if winner is None else winner.groups,
        "sizes": [list(size) for size in sizes],
    }
