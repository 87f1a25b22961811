"""What the search is told of the leaves of a graph, and what becomes of a plan over which nobody can tell."""

from __future__ import annotations

import pytest
from scripted import ONE_GROUP, A, Script, bench, resolved, telling

from tuner.anatomy import Anatomy
from tuner.errors import WorkerDied, WorkerTimeout
from tuner.plan import Plan


def test_an_anatomy_is_told_of_each_plan(monkeypatch):
    script = Script().play(monkeypatch)
    alone = Plan(groups=tuple((leaf,) for leaf in ONE_GROUP[0]))
    with bench() as measuring:
        measuring.open(resolved())
        told = [measuring.anatomy(plan) for plan in (Plan(), alone)]
    assert [anatomy.groups for anatomy in told if isinstance(anatomy, Anatomy)] == [ONE_GROUP, alone.groups]
    assert [Plan.from_json(request["plan"]) for request in script.asked("anatomy")] == [Plan(), alone]
    assert measuring.seconds["compiling"] > 0


@pytest.mark.parametrize(
    ("error", "status"),
    [(WorkerDied("it ended"), "crash"), (WorkerTimeout("no answer"), "timeout"), (WorkerDied("bad_alloc"), "out_of_resources")],
)
def test_a_plan_over_which_the_worker_is_lost_gets_a_verdict_and_the_next_a_new_worker(monkeypatch, error, status):
    script = Script(anatomy=telling({A: {"raise": error}})).play(monkeypatch)
    with bench() as measuring:
        measuring.open(resolved())
        verdict = measuring.anatomy(A)
        assert isinstance(verdict, dict)
        assert verdict["status"] == status
        assert isinstance(measuring.anatomy(Plan()), Anatomy)
    assert len(script.workers) == 2
    assert len(script.asked("open")) == 2


def test_a_plan_that_cannot_be_lowered_gets_the_workers_verdict(monkeypatch):
    script = Script(anatomy=telling({A: {"status": "compile_error", "message": "no lowering"}})).play(monkeypatch)
    with bench() as measuring:
        measuring.open(resolved())
        verdict = measuring.anatomy(A)
    assert isinstance(verdict, dict)
    assert (verdict["status"], verdict["message"]) == ("compile_error", "no lowering")
    assert len(script.workers) == 1
