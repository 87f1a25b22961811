"""A plan for each size of a dim: chosen from what was screened, judged as a whole, in force only where it does no harm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from scripted import EFFORT, GELU, SILU, A, Script, resolved
from stored import failed, program, winner

from tuner.answer import Bucket, digest_of_plans
from tuner.cache.sqlite import SqliteStore
from tuner.errors import UnsupportedGraph
from tuner.plan import Plan
from tuner.search.dispatch import buckets_of, merged
from tuner.search.final import run_finals
from tuner.search.rules import Rules
from tuner.search_spaces.space import Candidate
from tuner.workload.shapes import Dim, Shapes

B = Plan(native=(SILU,))
SHAPES = Shapes((Dim("batch", (4, 64), ((0, 0),)),))
SYMBOLIC = replace(resolved((GELU,), made_by="p"), sizes=((4,), (64,)), shapes=SHAPES, dim_sizes=(4, 64), symbol="s0")
RULES = Rules(jobs=1, dispatch=True, space=lambda groups, native: [Candidate("a", A), Candidate("b", B)])
# A gains at every size, B more than A at the small one, and loses at the large one.
SPEEDS = {(A, (4,)): 1.2, (A, (64,)): 1.5, (B, (4,)): 2.0, (B, (64,)): 0.9}


def speeds(found: dict[tuple[Plan, tuple[int, ...]], float]) -> Callable[[Plan, tuple[int, ...]], float]:
    return lambda plan, size: size[0] / found.get((plan, size), 1.0)


def buckets_in_force(store: SqliteStore) -> tuple[Bucket, ...]:
    choice = store.program_choice(program("p").exact_key)
    return () if choice is None else choice[0].dispatch


def test_each_bucket_gets_the_plan_that_is_best_at_its_size(sweep: Callable[..., Any], store: SqliteStore) -> None:
    done = sweep(Script(at=speeds(SPEEDS)), SYMBOLIC, rules=RULES)
    (outcome,) = done.outcomes
    assert outcome.winner.plan == A, "of one plan for all sizes"
    choice = store.program_choice(program("p").exact_key)
    assert choice is not None
    small, large = choice[0].dispatch
    assert [(bucket.symbol, bucket.up_to) for bucket in (small, large)] == [("s0", 16), ("s0", None)]
    assert [[(key, plan) for key, plan, _ in bucket.plans] for bucket in (small, large)] == [
        [(SYMBOLIC.query.exact_key, B)],
        [(SYMBOLIC.query.exact_key, A)],
    ]
    plans = {SYMBOLIC.query.exact_key: (A, outcome.winner.groups)}
    final = store.program_final(program("p").exact_key, digest_of_plans(plans, (), (small, large)))
    assert final is not None
    assert final[0].verdict == "confirmed"
    assert final[0].policy.sizes == ((4,), (64,))
    assert outcome.whole == final[0], "what is told of the whole is of what is in force"
    told = done.dispatches["made.py:up"].evidence()
    assert told["won"] is True
    assert {size: [one["plan"] for one in made.values()] for size, made in told["sizes"].items()} == {
        "4": [B.describe()],
        "64": [A.describe()],
    }


def test_what_wins_at_one_size_was_measured_at_that_size_alone(sweep: Callable[..., Any], store: SqliteStore) -> None:
    script = Script(at=speeds(SPEEDS))
    sweep(script, SYMBOLIC, rules=RULES)
    sizes = [request["policy"].get("sizes") for request in script.asked("open")]
    assert set(sizes) == {((4,), (64,)), ((4,),), ((64,),)}
    finals = [row for row in store.measurements(SYMBOLIC.query.exact_key, "final") if row.policy.sizes == ((4,),)]
    assert {row.plan for row in finals} == {A, B}


@pytest.mark.parametrize(
    ("found", "whole", "reason"),
    [
        ({(A, (4,)): 1.5, (A, (64,)): 1.5}, (1.0, 0.9), "one plan is the best at every size"),
        (SPEEDS, (1.0, 1.1), "the whole callable lost with a plan for each bucket"),
    ],
)
def test_without_a_gain_there_are_no_buckets(
    sweep: Callable[..., Any], store: SqliteStore, found: Any, whole: tuple[float, float], reason: str
) -> None:
    script = Script(at=speeds(found))
    # The first finals are of one plan for all sizes; what comes after them is of the buckets.
    script.whole = lambda spec, process: {"ms": (1.0, 0.9) if process < 3 else whole}
    done = sweep(script, SYMBOLIC, rules=RULES)
    assert buckets_in_force(store) == ()
    assert done.dispatches["made.py:up"].reason == reason
    assert done.outcomes[0].winner.plan == A


def test_beside_a_new_winner_buckets_are_withdrawn(sweep: Callable[..., Any], store: SqliteStore) -> None:
    before = {(A, (4,)): 1.2, (A, (64,)): 1.6, (B, (4,)): 2.0, (B, (64,)): 1.1}
    (outcome,) = sweep(Script(at=speeds(before)), SYMBOLIC, rules=RULES).outcomes
    assert (outcome.winner.plan, len(buckets_in_force(store))) == (B, 2)
    after, plain = speeds({(A, (4,)): 1.5, (A, (64,)): 1.5}), replace(RULES, dispatch=False)
    (outcome,) = sweep(Script(at=after), SYMBOLIC, rules=plain, again=True).outcomes
    assert outcome.winner.plan == A
    assert buckets_in_force(store) == ()
    assert outcome.whole.plans == digest_of_plans({SYMBOLIC.query.exact_key: (A, outcome.winner.groups)})


@pytest.mark.parametrize("found", [SPEEDS, {(A, (4,)): 1.5, (A, (64,)): 1.5}], ids=["buckets", "none"])
def test_what_was_searched_is_settled_at_these_sizes(
    sweep: Callable[..., Any], store: SqliteStore, devices: list[str], found: Any
) -> None:
    first = sweep(Script(at=speeds(found)), SYMBOLIC, rules=RULES).dispatches["made.py:up"]
    before = buckets_in_force(store)
    devices.clear()
    script = Script(at=speeds(found))
    again = sweep(script, SYMBOLIC, rules=RULES).dispatches["made.py:up"]
    assert (script.requests, devices, buckets_in_force(store)) == ([], [], before)
    assert (again.won, again.reason) == (first.won, first.reason)
    assert again.evidence() == {**first.evidence(), "settled": True}
    more = replace(SYMBOLIC, sizes=((4,), (64,), (256,)), dim_sizes=(4, 64, 256))
    sweep(script, more, rules=RULES)
    assert script.requests, "at another size it was not"


def test_buckets_with_a_plan_in_quarantine_are_searched_anew(sweep: Callable[..., Any], store: SqliteStore) -> None:
    sweep(Script(at=speeds(SPEEDS)), SYMBOLIC, rules=RULES)
    store.add_measurement(failed("wrong", B, SYMBOLIC.query))
    found = sweep(Script(at=speeds(SPEEDS)), SYMBOLIC, rules=RULES).dispatches["made.py:up"]
    assert (found.settled, buckets_in_force(store)) == ({}, ())


def test_all_sizes_together_may_err_as_often_as_one_search(sweep: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[float] = []

    def spied(screenings: Any, store: Any, policy: Any, effort: Any, *rest: Any, **more: Any) -> Any:
        errors.append(effort.final_error)
        return run_finals(screenings, store, policy, effort, *rest, **more)

    monkeypatch.setattr("tuner.search.dispatch.run_finals", spied)
    sweep(Script(at=speeds(SPEEDS)), SYMBOLIC, rules=RULES)
    assert errors == [EFFORT.final_error / 2] * 2


def test_where_a_graph_could_not_be_tuned_it_is_said(sweep: Callable[..., Any]) -> None:
    refused = {"raise": UnsupportedGraph("unchecked", "nothing can be checked")}
    done = sweep(Script(opening=lambda name: refused), SYMBOLIC, rules=RULES)
    assert done.dispatches["made.py:up"].reason == f"graph {SYMBOLIC.query.workload_key[:12]} could not be tuned"


def test_buckets_that_were_in_force_go_where_they_win_no_more(sweep: Callable[..., Any], store: SqliteStore) -> None:
    sweep(Script(at=speeds(SPEEDS)), SYMBOLIC, rules=RULES)
    sweep(Script(at=speeds({(A, (4,)): 1.5, (A, (64,)): 1.5})), SYMBOLIC, rules=replace(RULES, retry=True), again=True)
    choice = store.program_choice(program("p").exact_key)
    assert choice is not None
    assert choice[0].dispatch == ()


def test_limits_lie_at_geometric_midpoints_and_equal_neighbours_are_one() -> None:
    one, other = (("k", A, None),), (("k", B, None),)
    assert buckets_of({}, ["k"], "s0") == []
    made = {size: {"k": winner(plan=plan)} for size, plan in ((8, A), (9, B), (100, A))}
    assert [(bucket.up_to, bucket.plans[0][1]) for bucket in buckets_of(made, ["k"], "s0")] == [(8, A), (30, B), (None, A)]
    assert buckets_of(made, ["another"], "s0") == []
    kept = merged([Bucket("s0", 4, one), Bucket("s0", 22, one), Bucket("s0", 90, other), Bucket("s0", None, one)])
    assert [(bucket.up_to, bucket.plans) for bucket in kept] == [(22, one), (90, other), (None, one)]


def test_the_winners_at_single_sizes_have_no_kernels_timed(sweep: Callable[..., Any]) -> None:
    script = Script(at=speeds(SPEEDS))
    found = sweep(script, SYMBOLIC, rules=RULES).dispatches["made.py:up"]
    assert found.winners
    assert not any("kernels" in one.evidence for made in found.winners.values() for one in made.values())
    assert len(script.asked("profile")) <= 1, "of the graph itself alone"
