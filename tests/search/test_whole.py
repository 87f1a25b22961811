"""The final of the whole callable: when it is held, what it says, and that nothing is served before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted import EFFORT, GELU, ONE_CANDIDATE, ONE_GROUP, POLICY, A, Script, Told, resolved
from stored import program, query, winner

from tuner.cache.sqlite import SqliteStore
from tuner.errors import DeviceBusy, TunerError, UnsupportedGraph, WorkerDied, WorkerError, WorkerTimeout
from tuner.lookup.reader import StoreReader
from tuner.measure.statistics import speedup_of
from tuner.measurement import Winner
from tuner.plan import Plan
from tuner.search.sweep import plan_sweep, run_sweep
from tuner.search.whole import interval
from tuner.search.workloads import Resolved
from tuner.search_spaces.space import SPACE_VERSION

UP, DOWN = "made.py:up", "made.py:down"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(tmp_path / "store.db") as opened:
        yield opened


def faster(*, whole: Callable[[str, int], Told] = lambda spec, process: {}, **others: Any) -> Script:
    return Script(lambda plan: 0.8, whole=whole, **others)


def up(name: str = "a", spec: str = UP) -> Resolved:
    return resolved((GELU,), name, spec, made_by=spec)


def winners(store: SqliteStore) -> dict[str, str]:
    """Kinds of the stored winners, by exact-match key."""
    return {one.query.exact_key: one.kind for one, _ in store.winners()}


def served(store: SqliteStore | Path, spec: str = UP) -> list[Plan]:
    """What a look-up of the program of `spec` is answered."""
    answer = StoreReader(store if isinstance(store, Path) else store.path).program(program(spec))
    assert answer.known
    return [one.plan for one in answer.answers.values()]


def test_plans_that_pay_together_are_confirmed_and_served(sweep, store: SqliteStore) -> None:
    script = faster()
    (outcome,) = sweep(script, up()).outcomes
    assert outcome.winner is not None
    assert (outcome.winner.plan, outcome.error) == (A, None)
    assert outcome.whole is not None
    assert (outcome.whole.verdict, outcome.whole.query) == ("confirmed", program(UP))
    assert outcome.whole.speedup == pytest.approx(1 / 0.9)
    assert (outcome.whole.default_ms, outcome.whole.planned_ms) == (pytest.approx(1.0, rel=0.01), pytest.approx(0.9, rel=0.01))
    assert served(store) == [A]
    assert len(script.asked("open whole")) == EFFORT.looks[0]
    assert outcome.progress.phase == "done"


def test_plans_that_lose_together_are_vetoed_and_not_served(sweep, store: SqliteStore) -> None:
    (outcome,) = sweep(faster(whole=lambda spec, process: {"ms": (1.0, 1.08)}), up()).outcomes
    assert outcome.whole is not None
    assert outcome.whole.verdict == "vetoed"
    assert winners(store) == {query().exact_key: "plan"}, "it is the graph's winner all the same"
    assert served(store) == [Plan()]


def test_a_veto_is_in_the_store_before_the_winner_that_it_holds_back(sweep, store: SqliteStore, monkeypatch: Any) -> None:
    answers = []
    record = store.record_winner

    def recording(won: Winner) -> int:
        generation = record(won)
        answers.append(served(store))
        return generation

    monkeypatch.setattr(store, "record_winner", recording)
    sweep(faster(whole=lambda spec, process: {"ms": (1.0, 1.08)}), up("a"), up("b"))
    # With one of two recorded it is another set, of which nothing is known: but the two are never served together.
    assert answers[-1] == [Plan(), Plan()]


def test_each_process_finds_the_winners_and_nothing_else_in_its_store(sweep, store: SqliteStore) -> None:
    found: list[list[Plan]] = []
    script = faster()
    start = script._start

    def starting(threads: int, device: str = "cpu", module: str = "", environment: Told | None = None) -> Any:
        if environment:
            found.append(served(Path(environment["TUNER_STORE"])))
            assert not Path(environment["TUNER_SOCKET"]).exists()
        return start(threads, device, module, environment)

    script._start = starting  # type: ignore[assignment]
    sweep(script, up("a"), up("b"))
    assert found == [[A, A]] * EFFORT.looks[0]


UNCLEAR = [0.97, 1.03, 1.0]


@pytest.mark.parametrize(("last", "verdict"), [(0.9, "confirmed"), (1.1, "vetoed")])
def test_what_stays_unclear_takes_all_processes_and_goes_by_its_value(sweep, last: float, verdict: str) -> None:
    times = [*UNCLEAR, *UNCLEAR, last, last]
    script = faster(whole=lambda spec, process: {"ms": (1.0, times[process])})
    (outcome,) = sweep(script, up()).outcomes
    assert len(script.asked("open whole")) == EFFORT.looks[-1]
    assert outcome.whole is not None
    assert outcome.whole.verdict == verdict
    assert outcome.whole.evidence["processes"] == EFFORT.looks[-1]
    assert (outcome.whole.speedup > 1) == (verdict == "confirmed")


def test_its_bounds_hold_for_all_looks_together() -> None:
    pairs = [([1.0, 1.1, 1.2], [1.0, 1.0, 1.1]), ([1.0, 1.1, 1.0], [0.9, 1.0, 1.0]), ([1.2, 1.1, 1.2], [1.0, 1.1, 1.1])]
    assert interval(pairs, EFFORT) == speedup_of(pairs, 0.025 / len(EFFORT.looks))


def test_a_set_that_costs_next_to_nothing_is_in_order(sweep) -> None:
    (outcome,) = sweep(faster(whole=lambda spec, process: {"ms": (1.0, 1.004)}), up()).outcomes
    assert outcome.whole is not None
    assert outcome.whole.verdict == "confirmed"


@pytest.mark.parametrize(
    ("script", "asked"),
    [
        (Script(lambda plan: 1.0), up()),
        (faster(), replace(up(spec="ab" * 32), program_query=None)),
        (faster(), up(spec="program abcdef012345")),
    ],
    ids=["the default won", "a stored key", "a program that a compile reported"],
)
def test_without_plans_or_callable_there_is_no_final_of_the_whole(sweep, script: Script, asked: Resolved) -> None:
    (outcome,) = sweep(script, asked).outcomes
    assert script.asked("open whole") == []
    assert outcome.whole is None
    assert outcome.generation is not None


def test_what_was_judged_before_is_not_judged_again(sweep, store: SqliteStore, devices: list[str]) -> None:
    first = sweep(faster(), up())
    devices.clear()
    script = faster()
    (outcome,) = sweep(script, up()).outcomes
    assert script.workers == []
    assert devices == [], "nothing is measured"
    assert outcome.progress.phase == "settled"
    assert outcome.whole == first.outcomes[0].whole


def test_two_programs_of_which_one_has_plans_are_judged_once(sweep, store: SqliteStore) -> None:
    """A graph break: the first half keeps the default."""
    second = replace(up("b"), program_query=program("the second half"))

    def slower(graph: str) -> Callable[[Plan], float]:
        return lambda plan: 1.2 if script.workers[-1].graph == graph else 0.8

    script = Script()
    script.ms = slower("a")
    outcomes = sweep(script, up("a"), second).outcomes
    assert [one.winner.kind for one in outcomes] == ["default", "plan"]
    assert outcomes[0].whole is None
    assert outcomes[1].whole.verdict == "confirmed"
    again = faster()
    sweep(again, up("a"), second)
    assert again.workers == []


def test_again_means_the_whole_too(sweep) -> None:
    sweep(faster(), up())
    script = faster(whole=lambda spec, process: {"ms": (1.0, 1.2)})
    (outcome,) = sweep(script, up(), again=True).outcomes
    assert outcome.whole is not None
    assert outcome.whole.verdict == "vetoed"


def test_winners_that_were_settled_apart_are_judged_together(sweep, store: SqliteStore, devices: list[str]) -> None:
    for name in ("a", "b"):
        store.record_winner(replace(winner(query(name), A, groups=ONE_GROUP), space_version=SPACE_VERSION))
    script = faster()
    outcomes = sweep(script, up("a"), up("b")).outcomes
    assert [one.progress.phase for one in outcomes] == ["settled", "settled"]
    assert [one.whole.verdict for one in outcomes] == ["confirmed", "confirmed"]
    assert script.asked("open") == []
    assert devices == ["cpu"], "it is held also where only the whole is measured"


FAILURES: list[tuple[Told, type[TunerError], str]] = [
    ({"raise": WorkerError("ValueError: no")}, WorkerError, "ValueError"),
    ({"outcomes": [("a", "fallback")]}, WorkerError, "was not served"),
    ({"outcomes": []}, WorkerError, "was not served"),
    ({"busy": "load 9.0"}, DeviceBusy, "load 9.0"),
]


@pytest.mark.parametrize(("told", "error", "text"), FAILURES)
def test_a_final_of_the_whole_that_cannot_be_held_records_no_winner_of_its_spec_and_leaves_others_alone(
    sweep, store: SqliteStore, told: Told, error: type[TunerError], text: str
) -> None:
    script = faster(whole=lambda spec, process: told if spec == UP else {})
    bad, good = sweep(script, up("a"), up("b", DOWN)).outcomes
    assert (bad.winner, bad.generation, bad.progress.phase) == (None, None, "failed")
    assert isinstance(bad.error, error)
    assert "the final of the whole could not be held" in str(bad.error)
    assert text in str(bad.error)
    assert (good.error, good.whole.verdict) == (None, "confirmed")
    assert winners(store) == {query("b").exact_key: "plan"}
    assert served(store) == [Plan()]
    assert store.program_final(program(UP).exact_key) is None
    # What was measured of the graph is not lost: the next sweep screens nothing again.
    again = faster()
    (retried,) = sweep(again, up("a")).outcomes
    assert retried.whole.verdict == "confirmed"
    assert {request["process"] for request in again.asked("try")} & {0} == set(), "the screening process had nothing to try"


@pytest.mark.parametrize(
    ("told", "text", "processes"),
    [
        ({"error": None}, "differ", 1),
        ({"error": 11.0}, "differ", 1),
        ({"raise": WorkerDied("SIGSEGV")}, "SIGSEGV", 2),
        ({"raise": WorkerTimeout("hangs")}, "hangs", 2),
    ],
)
def test_plans_with_which_the_whole_is_wrong_or_dies_twice_are_vetoed(
    sweep, store: SqliteStore, told: Told, text: str, processes: int
) -> None:
    script = faster(whole=lambda spec, process: told)
    (outcome,) = sweep(script, up()).outcomes
    assert len(script.asked("open whole")) == processes
    assert (outcome.whole.verdict, outcome.whole.speedup) == ("vetoed", 0.0)
    assert text in outcome.whole.evidence["error"]
    assert served(store) == [Plan()]
    (again,) = sweep(faster(), up()).outcomes
    assert (again.progress.phase, again.whole.verdict) == ("settled", "vetoed"), "it is not judged anew"


def test_a_whole_that_dies_later_on_is_vetoed_too_whatever_was_measured_before(sweep, store: SqliteStore) -> None:
    dying = {"raise when timed": WorkerDied("SIGSEGV")}
    script = faster(whole=lambda spec, process: dying if process in (1, 2) else {})
    (outcome,) = sweep(script, up()).outcomes
    final = outcome.whole
    assert (final.verdict, final.speedup, final.speedup_low, final.speedup_high) == ("vetoed", 0.0, 0.0, 0.0)
    assert (final.evidence["processes"], final.evidence["error"]) == (1, "SIGSEGV")
    assert final.default_ms == pytest.approx(1.0, rel=0.01), "of the process that lived"
    assert winners(store) == {query().exact_key: "plan"}
    assert served(store) == [Plan()]


def test_one_process_of_the_whole_that_is_killed_from_outside_is_made_up_for(sweep) -> None:
    script = faster(whole=lambda spec, process: {"raise when timed": WorkerDied("SIGKILL")} if process == 1 else {})
    (outcome,) = sweep(script, up()).outcomes
    assert (outcome.whole.verdict, outcome.whole.evidence["processes"]) == ("confirmed", EFFORT.looks[0])


def test_without_patience_a_noisy_whole_is_measured_all_the_same(sweep) -> None:
    script = faster(whole=lambda spec, process: {"busy": "load 9.0"})
    (outcome,) = sweep(script, up(), effort=replace(EFFORT, patience=0)).outcomes
    assert (outcome.whole.verdict, outcome.whole.evidence["busy"]) == ("confirmed", "load 9.0")
    settled = faster()
    sweep(settled, up(), effort=replace(EFFORT, patience=0))
    assert settled.requests == []
    (outcome,) = sweep(settled, up()).outcomes
    assert len(settled.asked("open whole")) == EFFORT.looks[0], "for those who ask for a quiet machine it settles nothing"
    assert "busy" not in outcome.whole.evidence


def test_an_interrupted_final_of_the_whole_records_and_shows_no_winner(
    sweep, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def whole(spec: str, process: int) -> Told:
        return {"raise": KeyboardInterrupt()} if spec == UP else {}

    script = faster(whole=whole).play(monkeypatch)
    plan = plan_sweep([up("b", DOWN), up("a")], EFFORT, lambda: None)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(plan, store, POLICY, EFFORT, False, ONE_CANDIDATE)
    assert not any(worker.alive for worker in script.workers)
    assert winners(store) == {query("b").exact_key: "plan"}, "what was judged is kept"
    assert [one.winner is None for one in plan.outcomes] == [False, True]


def test_two_specs_that_share_a_graph_tune_it_once_and_are_judged_apart(sweep, store: SqliteStore) -> None:
    script = faster(whole=lambda spec, process: {"ms": (1.0, 1.1)} if spec == DOWN else {})
    outcomes = sweep(script, up("shared"), up("shared", DOWN), up("b", DOWN)).outcomes
    assert len({id(one.progress) for one in outcomes}) == 2
    assert [one.whole.verdict for one in outcomes] == ["confirmed", "vetoed", "vetoed"]
    assert served(store, UP) == [A]
    assert served(store, DOWN) == [Plan(), Plan()]
    assert [one.resolved.query.exact_key for one in outcomes[:2]] == [query("shared").exact_key] * 2


def test_a_shared_graph_whose_first_spec_fails_is_not_recorded_by_the_second(sweep, store: SqliteStore) -> None:
    script = faster(whole=lambda spec, process: {"raise": WorkerError("no")} if spec == UP else {})
    outcomes = sweep(script, up("shared"), up("shared", DOWN), up("b", DOWN)).outcomes
    assert [one.winner is not None for one in outcomes] == [False, False, True]
    assert winners(store) == {query("b").exact_key: "plan"}
    assert served(store, UP) == [Plan()]
    assert served(store, DOWN) == [Plan(), A]
    assert outcomes[2].whole.verdict == "confirmed", "of what is in force: of the graph that is its own"


def test_a_graph_that_cannot_be_tuned_does_not_let_the_others_go_unjudged(sweep, store: SqliteStore) -> None:
    def opening(graph: str) -> Told:
        return {"raise": UnsupportedGraph("unchecked", "differs from eager")} if graph == "odd" else {}

    script = faster(opening=opening, whole=lambda spec, process: {"ms": (1.0, 1.1)})
    odd, good = sweep(script, up("odd"), up("good")).outcomes
    assert (odd.winner, type(odd.error), odd.progress.phase) == (None, UnsupportedGraph, "failed")
    assert good.whole.verdict == "vetoed"
    assert served(store) == [Plan(), Plan()]
    again = faster(opening=opening)
    sweep(again, up("odd"), up("good"))
    assert again.asked("open whole") == [], "though the odd one is tried again and again"


def test_a_stored_winner_of_a_graph_that_cannot_be_tuned_now_is_judged_with_the_rest(sweep, store: SqliteStore) -> None:
    store.record_winner(replace(winner(query("old"), A, groups=ONE_GROUP), space_version=SPACE_VERSION - 1))

    def opening(graph: str) -> Told:
        return {"raise": WorkerError("no")} if graph == "old" else {}

    script = faster(opening=opening, whole=lambda spec, process: {"ms": (1.0, 1.1)})
    old, new = sweep(script, up("old"), up("new")).outcomes
    assert (old.winner, new.whole.verdict) == (None, "vetoed")
    assert served(store) == [Plan(), Plan()]


def test_the_seconds_of_the_whole_are_measuring(sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def whole(spec: str, process: int) -> Told:
        now[0] += 7.0
        return {}

    monkeypatch.setattr("tuner.search.sweep.time.monotonic", lambda: now[0])
    swept = sweep(faster(whole=whole), up())
    swept.started = 0.0
    assert swept.spent["measuring"] == pytest.approx(7.0 * EFFORT.looks[0], abs=1.0)
    assert sum(swept.spent.values()) == pytest.approx(swept.seconds)
