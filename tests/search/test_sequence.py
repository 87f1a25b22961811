"""Programs without a callable: the final of all their graphs in sequence, and that a losing set is not served."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted import EFFORT, GELU, A, Script, resolved
from stored import program

from tuner.cache.sqlite import SqliteStore
from tuner.errors import WorkerDied
from tuner.lookup.reader import StoreReader
from tuner.plan import Plan
from tuner.search.sequence import sizes_together
from tuner.search.workloads import Resolved
from tuner.workload.graph import Node, Symbol

REPORTED = "program abcdef012345"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(tmp_path / "store.db") as opened:
        yield opened


def faster(**others: Any) -> Script:
    return Script(lambda plan: 0.8, **others)


def graphs(*names: str) -> list[Resolved]:
    return [resolved((GELU,), name, REPORTED, made_by=REPORTED) for name in names]


def served(store: SqliteStore) -> list[Plan]:
    return [one.plan for one in StoreReader(store.path).program(program(REPORTED)).answers.values()]


def test_the_graphs_of_a_program_are_judged_together(sweep, store: SqliteStore) -> None:
    script = faster()
    outcomes = sweep(script, *graphs("a", "b")).outcomes
    asked = script.asked("open sequence")
    assert len(asked) == EFFORT.looks[0]
    assert [[row["plan"] for row in request["rows"]] for request in asked] == [[A.to_json()] * 2] * len(asked)
    assert len({request["seed"] for request in asked}) == len(asked), "each process has other inputs"
    assert {one.whole.verdict for one in outcomes if one.whole is not None} == {"confirmed"}
    assert served(store) == [A, A]


def test_plans_that_lose_in_sequence_are_vetoed(sweep, store: SqliteStore) -> None:
    outcomes = sweep(faster(whole=lambda spec, process: {"ms": (1.0, 1.08)}), *graphs("a", "b")).outcomes
    assert [one.whole.verdict for one in outcomes if one.whole is not None] == ["vetoed"] * 2
    assert served(store) == [Plan(), Plan()]


def test_a_process_that_dies_over_the_plans_twice_is_a_veto(sweep, store: SqliteStore) -> None:
    outcomes = sweep(faster(whole=lambda spec, process: {"raise": WorkerDied("SIGSEGV")}), *graphs("a", "b")).outcomes
    assert all(one.whole is not None and one.whole.evidence["error"] == "SIGSEGV" for one in outcomes)
    assert served(store) == [Plan(), Plan()]


def test_a_graph_that_is_off_with_its_plan_is_a_veto(sweep, store: SqliteStore) -> None:
    sweep(faster(whole=lambda spec, process: {"error": 1.2}), *graphs("a", "b"))
    assert served(store) == [Plan(), Plan()]


def test_one_graph_has_had_its_final(sweep) -> None:
    script = faster()
    (outcome,) = sweep(script, *graphs("a")).outcomes
    assert script.asked("open sequence") == []
    assert outcome.generation is not None


def test_a_graph_that_cannot_be_rebuilt_does_not_keep_the_others_from_their_winners(sweep, store: SqliteStore) -> None:
    barrier = Node("opaque", "custom.op", [], {}, None)
    made = graphs("a", "b", "c")
    made[2] = replace(made[2], graph=replace(made[2].graph, nodes=(barrier,), order=(0,)))
    script = faster()
    outcomes = sweep(script, *made).outcomes
    assert [len(request["rows"]) for request in script.asked("open sequence")] == [2] * EFFORT.looks[0]
    assert [outcome.winner is not None for outcome in outcomes] == [True, True, False]
    assert served(store) == [A, A, Plan()]
    assert len(script.asked("open")) == 2 * (2 + EFFORT.looks[0]), "no process is asked to rebuild it"
    assert [(outcome.error, outcome.not_tuned, outcome.progress.phase) for outcome in outcomes] == [
        (None, "", "done"),
        (None, "", "done"),
        (None, "custom.op cannot be rebuilt elsewhere", "not tuned"),
    ]


def test_sizes_belong_together_that_are_as_many_times_what_the_graphs_were_made_for() -> None:
    def sized(hint: int, *sizes: int) -> Resolved:
        (graph,) = graphs("a")
        made = replace(graph.graph, symbols=(Symbol(2, None, hint),))
        return replace(graph, graph=made, sizes=tuple((size,) for size in sizes))

    (fixed,) = graphs("b")
    odd, even = sized(7, 7, 14), sized(8, 4, 8, 16)
    assert sizes_together([fixed, even, odd]) == [(), ((8,), (16,)), ((7,), (14,))]
    assert sizes_together([odd, even]) == [((7,), (14,)), ((8,), (16,))]
    named = [sized(8, 4, 8), sized(4, 4, 8)]
    assert sizes_together(named) == [((4,), (8,)), ((4,), (8,))]
    assert sizes_together([sized(8, 3, 5), sized(4, 3, 6, 9)]) == [((3,), (5,)), ((3,), (6,))]
    assert sizes_together([fixed]) == [()]


def test_graphs_whose_sizes_vary_are_run_at_each_together(sweep, store: SqliteStore) -> None:
    script, (one, other, fixed) = faster(), graphs("a", "b", "c")
    sizes = ((4, 2), (8, 4), (16, 8)), ((2,), (4,), (8,))
    varying = [replace(graph, sizes=own) for graph, own in zip((one, other), sizes, strict=True)]
    outcomes = sweep(script, *varying, fixed).outcomes
    asked = script.asked("open sequence")
    assert {request["policy"]["sizes"] for request in asked} == {sizes[0]}
    assert [row["sizes"] for row in asked[0]["rows"]] == [[[4, 2], [8, 4], [16, 8]], [[2], [4], [8]], []]
    whole = outcomes[0].whole
    assert whole is not None
    assert whole.verdict == "confirmed"
    assert [told["size"] for told in whole.evidence["by_size"]] == [[4, 2], [8, 4], [16, 8]]
