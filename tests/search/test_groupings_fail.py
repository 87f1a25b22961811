"""The search for a grouping goes on, or ends with a word, whatever fails on its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from fused import Built, Fused, FusedWorker, Truth, greedy, layered
from scripted import EFFORT, POLICY, Script, resolved

from tuner.anatomy import Anatomy
from tuner.cache.sqlite import SqliteStore
from tuner.errors import WorkerTimeout
from tuner.plan import Groups, Plan
from tuner.search.bench import DEFAULT, LEAST_PROFILE_S
from tuner.search.groupings import GroupSearch
from tuner.search.progress import Progress
from tuner.search.proposals import Result
from tuner.search.rules import Rules
from tuner.search.screened import Screening
from tuner.search_spaces.fusion import no_fusion, regions
from tuner.search_spaces.space import Candidate

NORMAL = replace(EFFORT, trials=60)
Run = Callable[..., tuple[Screening, Progress]]
Told = dict[str, object]


@pytest.fixture
def search(run: Run) -> Run:
    """Screens by a search, not by a list, into a store of its own."""

    def searched(script: Script, **how: object) -> tuple[Screening, Progress]:
        how.setdefault("into", SqliteStore(":memory:"))
        return run(script, resolved(), how.pop("effort", NORMAL), Rules(), **how)

    return searched


def regret(truth: Truth, screening: Screening) -> float:
    tried = [one.candidate.plan.groups for one in screening.passed if one.candidate.plan.groups is not None]
    return min(map(truth.ms, [truth.anatomy.groups, *tried])) / truth.best()[1] - 1


class Judged(Fused):
    """judge: what differs in the verdict on a plan that is realised, {} for nothing."""

    judge: Callable[[Plan], Told] = staticmethod(lambda plan: {})

    def _verdict(self, plan: Plan) -> Told:
        told = super()._verdict(plan)
        return told if "status" in told else {**told, **self.judge(plan)}


@pytest.mark.parametrize("profiles", [True, False])
@pytest.mark.parametrize("became", [{"status": "wrong", "message": ""}, {"peak_bytes": 5000}])
def test_no_fusion_that_cannot_win_ends_nothing(search: Run, became: Told, profiles: bool) -> None:
    truth = Truth(layered(1), seed=0)
    script = Judged({DEFAULT: truth}, profiles=profiles)
    alone = no_fusion(truth.anatomy.groups)
    script.judge = lambda plan: became if plan.groups == alone else {}
    screening, _ = search(script)
    assert regret(truth, screening) < 0.1


@pytest.mark.parametrize("profiles", [True, False])
def test_a_grouping_whose_code_failed_under_another_plan_ends_nothing(search: Run, profiles: bool) -> None:
    truth = Truth(layered(1), seed=3)
    bad = max((group for group in truth.numbers(truth.best()[0]) if len(group) > 1), key=len)
    script = Judged({DEFAULT: truth}, profiles=profiles)

    def judge(plan: Plan) -> Told:
        if plan.compiler == "eager":
            return {"status": "wrong", "message": "", "code_key": "wrong"}
        return {"code_key": "wrong"} if bad in truth.numbers(plan.groups or ()) else {}

    script.judge = judge
    screening, seen = search(script, effort=replace(NORMAL, trials=120))
    assert seen.failed["wrong"] == 1
    assert script.evaluations > 10
    rest = replace(truth, failing=lambda key: key == truth.anatomy.group_key(bad))
    assert regret(rest, screening) < 0.1


@pytest.mark.parametrize("profiles", [True, False])
def test_a_grouping_over_the_memory_limit_is_left_for_another(search: Run, profiles: bool) -> None:
    truth = Truth(layered(1), seed=3)
    large = max((group for group in truth.numbers(truth.best()[0]) if len(group) > 1), key=len)
    script = Judged({DEFAULT: truth}, profiles=profiles)
    script.judge = lambda plan: {"peak_bytes": 5000} if large in truth.numbers(plan.groups or ()) else {}
    screening, seen = search(script, effort=replace(NORMAL, trials=120))
    assert seen.over_memory is not None
    rest = replace(truth, failing=lambda key: key == truth.anatomy.group_key(large))
    assert regret(rest, screening) < 0.1
    assert script.evaluations > 10


def two_chains() -> Anatomy:
    """Two runs of pointwise leaves of different sizes, a library call between them: two regions."""
    made = Built()
    value = made.buffer(400)
    for name, wide in (("a", 400), ("b", 200)):
        for number in range(5):
            value = made.leaf(f"{name}{number}", [value], wide)
        value = made.leaf("mm", [value, made.buffer(64)], wide, fusable=False, escapes=True)
    anatomy = made.anatomy()
    return replace(anatomy, groups=greedy(anatomy))


@dataclass
class Unsplit(Truth):
    """Leaf 8 makes no code alone: it is of the second region."""

    def fails(self, groups: Groups) -> bool:
        return super().fails(groups) or frozenset({8}) in self.numbers(groups)


def test_a_leaf_that_fails_alone_costs_its_region_and_no_other(search: Run) -> None:
    truth = Unsplit(two_chains(), seed=0, crowded=0.6)
    screening, _ = search(Fused({DEFAULT: truth}))
    first, second = regions(truth.anatomy)
    cheapest = min(truth.partitions(first), key=lambda groups: sum(map(truth.cost, groups)))
    assert len(cheapest) > 1
    (best,) = sorted((one.candidate.plan.groups for one in screening.passed if one.candidate.plan.groups), key=truth.ms)[:1]
    assert {*cheapest, frozenset(second.occurrences[0])} <= set(truth.numbers(best)), "the second stays as it is"


def test_a_profile_that_the_end_of_the_seconds_cut_short_is_not_forgiven(search: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("tuner.search.budget.time.monotonic", lambda: now[0])

    class Long(Fused):
        def _start(self, *given: object, **named: object) -> object:  # type: ignore[override]
            worker = super()._start(*given, **named)  # type: ignore[arg-type]
            ask = worker.ask

            def slowly(timeout_s: float, **request: object) -> object:
                if request["do"] == "profile" and request["plans"]:
                    now[0] += timeout_s
                    worker.alive = False
                    raise WorkerTimeout("too long")
                now[0] += 0.1
                return ask(timeout_s, **request)

            worker.ask = slowly  # type: ignore[method-assign,assignment]
            return worker

    script = Long({DEFAULT: Truth(two_chains())})
    search(script, effort=replace(NORMAL, seconds=30.0))
    assert now[0] < 30.0 + 2 * LEAST_PROFILE_S


@pytest.mark.parametrize("error", [RuntimeError("no convergence"), np.linalg.LinAlgError("singular"), ValueError("circle")])
def test_an_error_in_numbers_ends_the_groups_with_a_note_and_not_the_sweep(
    search: Run, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> object:
        raise error

    monkeypatch.setattr("tuner.search.costs.nnls", fail)
    truth = Truth(layered(1))
    screening, seen = search(Fused({DEFAULT: truth}))
    assert screening.passed
    assert [note for note in seen.notes if str(error) in note] == seen.notes != []


class Crowded(Fused):
    """Profiles that were taken beside others' work."""

    def worker(self, number: int, environment: Told) -> FusedWorker:
        worker = super().worker(number, environment)
        profile = worker._profile
        worker._profile = lambda *given, **named: profile(*given, **named) | {"conditions": {"busy": "others"}}  # type: ignore[method-assign]
        return worker


def keys_of(truth: Truth) -> list[str]:
    return [truth.anatomy.group_key(group) for region in regions(truth.anatomy) for group in truth.allowed(region)]


def test_what_was_timed_beside_others_work_guides_this_search_and_no_other(search: Run, store: SqliteStore) -> None:
    truth = Truth(layered(1), seed=0)
    screening, _ = search(Crowded({DEFAULT: truth}), into=store)
    assert regret(truth, screening) < 0.1
    assert store.group_times(resolved().query, POLICY, keys_of(truth)) == []


def test_a_kernel_is_stored_once_for_each_process_however_often_it_is_timed(search: Run, store: SqliteStore) -> None:
    truth = Truth(layered(1), seed=0)
    script = Fused({DEFAULT: truth}, noise=0.01)
    search(script, into=store)
    assert len(script.asked("profile")) > 2
    rows = store.group_times(resolved().query, POLICY, keys_of(truth))
    assert len({(row.key, row.process) for row in rows}) == len(rows) > 0


def test_no_fusion_that_was_measured_among_the_lowerings_is_known_to_the_search_for_groups(search: Run) -> None:
    truth = Truth(layered(1), seed=0)
    script = Fused({DEFAULT: truth}, profiles=False)
    alone = no_fusion(truth.anatomy.groups)
    told: list[Result] = []

    class Listening(GroupSearch):
        def told(self, candidate: Candidate, result: Result) -> None:
            if candidate.plan.groups == alone:
                told.append(result)
            super().told(candidate, result)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tuner.search.screen.GroupSearch", Listening)
        search(script)
    assert script.tried.count(Plan(groups=alone)) == 1
    (result,) = told
    assert result.ratio == pytest.approx(truth.ms(truth.anatomy.groups) / truth.ms(alone), rel=0.01)
