"""What a capture leaves in the store beside what is there, and that it is not lost by one Ctrl-C."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.cache.sqlite import SqliteStore
from tuner.cli import capture as capturing
from tuner.errors import StoreBusy
from tuner.workload.captured import Captured, CapturedGraph, CapturedProgram
from tuner.workload.graph import Graph, InputData, Node, Symbol

META = ["int64", ["s0"], [1], "cpu"]
UNSEEN = InputData(0, 1)


def graph(*data: InputData, hint: int = 8) -> Graph:
    nodes = tuple(Node("input", "", [], {}, META) for _ in data)
    return Graph("backward", nodes, [{"node": 0}], tuple(range(len(data))), data, symbols=(Symbol(2, None, hint),))


def kept(*captures: CapturedGraph) -> tuple[InputData, ...]:
    """What is stored of a graph after these captures of it, one after the other."""
    with SqliteStore(":memory:") as store:
        for one in captures:
            capturing._keep(Captured((CapturedProgram(None, (one,)),), {}), store)
        (form,) = [store.graph(key) for key in store.find_graphs("")]
        assert form is not None
        return Graph.from_json(form).data


SMALL, LARGE = InputData(0, 9, 4.0, 2.0), InputData(3, 999, 500.0, 200.0)
MASK, OTHER_MASK = InputData(0, 1, 0.5, 0.5, runs=((0, 4), (1, 4))), InputData(0, 1, 0.5, 0.5, runs=((1, 4), (0, 4)))


def test_a_later_capture_widens_what_is_known_of_a_graphs_inputs() -> None:
    assert kept(CapturedGraph(graph(SMALL, MASK), 2), CapturedGraph(graph(LARGE, OTHER_MASK), 1)) == (
        replace(SMALL, high=999),
        replace(MASK, runs=None),
    )
    assert kept(CapturedGraph(graph(LARGE, MASK), 2), CapturedGraph(graph(SMALL, MASK), 1)) == (replace(LARGE, low=0), MASK)


def test_what_was_seen_replaces_what_was_not_and_not_the_other_way_round() -> None:
    never = CapturedGraph(graph(UNSEEN, UNSEEN))
    seen = CapturedGraph(graph(SMALL, MASK), 1)
    assert kept(never, seen) == kept(seen, never) == (SMALL, MASK)


def test_what_was_seen_at_other_sizes_is_not_mixed_with_what_is_stored() -> None:
    assert kept(CapturedGraph(graph(SMALL), 1), CapturedGraph(graph(LARGE, hint=1000), 1)) == (SMALL,)


def test_a_form_that_cannot_be_read_is_replaced() -> None:
    with SqliteStore(":memory:") as store:
        store.add_graph(graph(SMALL).key, {"phase": "backward"})
        capturing._keep(Captured((CapturedProgram(None, (CapturedGraph(graph(SMALL), 1),)),), {}), store)
        assert store.graph(graph(SMALL).key) == graph(SMALL).to_json()


def test_one_interrupt_does_not_give_up_what_waits_for_a_busy_store(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    presses = [True, False, False]

    def sleep(seconds: float) -> None:
        if presses.pop(0):
            raise KeyboardInterrupt

    def open_store() -> SqliteStore:
        if presses:
            raise StoreBusy("it is being written")
        return SqliteStore(":memory:")

    monkeypatch.setattr(capturing.time, "sleep", sleep)
    with capturing._opened_when_free(open_store) as store:
        assert store.generation() == 0
    told = capsys.readouterr().err
    assert told.count("Waiting") == 1
    assert "press Ctrl-C again to lose it" in told
    presses[:] = [True, True, True]
    with pytest.raises(KeyboardInterrupt), capturing._opened_when_free(open_store):
        pass
