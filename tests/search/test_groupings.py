"""The search for a grouping, held against graphs of which the truth is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import mean

import pytest
from fused import Fused, Truth, alone, calls_only, layered, luck, random_best
from scripted import EFFORT, Script, resolved

from tuner.cache.sqlite import SqliteStore
from tuner.errors import WorkerDied
from tuner.plan import Groups, Plan
from tuner.search.bench import DEFAULT
from tuner.search.progress import Progress
from tuner.search.rules import Rules
from tuner.search.screened import Screening
from tuner.search_spaces.fusion import no_fusion, regions

NORMAL = replace(EFFORT, trials=60)
Run = Callable[..., tuple[Screening, Progress]]


@pytest.fixture
def search(run: Run) -> Run:
    """Screens by a search, not by a list; into a store of its own, unless one is given."""

    def searched(script: Script, **how: object) -> tuple[Screening, Progress]:
        how.setdefault("into", SqliteStore(":memory:"))
        return run(script, how.pop("asked", resolved()), how.pop("effort", NORMAL), Rules(), **how)

    return searched


def found(truth: Truth, screening: Screening) -> float:
    """Milliseconds of the best grouping that was found."""
    tried = [one.candidate.plan.groups for one in screening.passed if one.candidate.plan.groups is not None]
    return min(map(truth.ms, [truth.anatomy.groups, *tried]))


def regret(truth: Truth, screening: Screening) -> float:
    return found(truth, screening) / truth.best()[1] - 1


def test_the_best_of_a_thousand_groupings_is_found_with_a_few_evaluations_and_not_by_chance(search: Run) -> None:
    regrets, chance, evaluations = [], [], []
    for seed in range(4):
        truth = Truth(layered(1), seed)
        assert sum(1 for _ in truth.partitions(regions(truth.anatomy)[0])) > 1000
        script = Fused({DEFAULT: truth}, noise=0.01, seed=seed)
        screening, _ = search(script)
        regrets.append(regret(truth, screening))
        evaluations.append(script.evaluations)
        chance.append(random_best(truth, script.evaluations, seed) / truth.best()[1] - 1)
    assert mean(regrets) < 0.04
    assert mean(chance) > 2 * mean(regrets)
    assert max(evaluations) < 30


def test_a_deep_graph_takes_no_more_evaluations_than_a_shallow_one(search: Run) -> None:
    evaluations = {}
    for layers in (2, 4, 8, 16):
        truth = Truth(layered(layers), seed=3)
        script = Fused({DEFAULT: truth}, noise=0.01)
        screening, _ = search(script)
        assert regret(truth, screening) < 0.01
        evaluations[layers] = script.evaluations
    assert max(evaluations.values()) <= 1.3 * evaluations[2]


def test_what_the_compiler_does_not_make_is_counted_and_the_best_of_the_rest_is_found(search: Run) -> None:
    truth = Truth(layered(2), seed=1, unreachable=lambda key: luck(f"unreachable {key}", 0, 1) < 0.4)
    script = Fused({DEFAULT: truth})
    screening, seen = search(script)
    assert regret(truth, screening) < 0.03
    assert seen.refused["unreachable grouping"] > 0
    assert all(truth.realised(row.candidate.plan.groups) == row.candidate.plan.groups for row in screening.passed)


def test_groups_that_fail_are_told_from_those_that_were_tried_beside_them(search: Run) -> None:
    truth = Truth(layered(2), seed=4, failing=lambda key: luck(f"failing {key}", 0, 1) < 0.2)
    script = Fused({DEFAULT: truth})
    screening, seen = search(script)
    assert regret(truth, screening) < 0.07
    assert seen.failed["compile_error"] > 0


@pytest.mark.parametrize("profiles", [True, False])
def test_a_group_that_makes_whole_graphs_wrong_costs_itself_and_not_the_search(search: Run, profiles: bool) -> None:
    truth = Truth(layered(1), seed=4)
    anatomy = truth.anatomy
    bad = max((group for group in truth.numbers(truth.best()[0]) if len(group) > 1), key=len)

    class Wrong(Fused):
        def _verdict(self, plan: Plan) -> dict[str, object]:
            told = super()._verdict(plan)
            return {**told, "status": "wrong"} if bad in truth.numbers(plan.groups or ()) and "status" not in told else told

    script = Wrong({DEFAULT: truth}, profiles=profiles)
    screening, seen = search(script, effort=replace(NORMAL, trials=120))
    assert seen.failed["wrong"] > 0
    rest = replace(truth, failing=lambda key: key == anatomy.group_key(bad))
    assert regret(rest, screening) < 0.1
    assert script.evaluations > 10


def test_without_a_clock_for_kernels_whole_graphs_have_to_do(search: Run) -> None:
    for seed in range(3):
        truth = Truth(layered(1), seed=seed)
        script = Fused({DEFAULT: truth}, profiles=False)
        screening, seen = search(script)
        assert script.kernels_timed == []
        assert seen.notes == ["kernels are not timed one by one: no clock"]
        assert regret(truth, screening) < 0.1


def test_where_the_compiler_fuses_nothing_groups_are_sought_too(search: Run) -> None:
    truth = Truth(layered(1), seed=2)
    truth = replace(truth, anatomy=replace(truth.anatomy, groups=no_fusion(truth.anatomy.groups)))
    screening, _ = search(Fused({DEFAULT: truth}))
    assert regret(truth, screening) < 0.05


def test_no_fusion_and_the_best_predicted_are_measured_whole_even_where_nothing_gains(search: Run) -> None:
    truth = Truth(layered(1), odd=0.0, crowded=0.0)
    assert truth.best()[0] == truth.anatomy.groups
    script = Fused({DEFAULT: truth})
    screening, _ = search(script)
    assert Plan(groups=alone(truth)) in script.tried
    assert found(truth, screening) == truth.ms(truth.anatomy.groups)


@pytest.mark.parametrize("trials", [1, 2, 3, 8])
def test_profiles_count_as_trials(search: Run, trials: int) -> None:
    script = Fused({DEFAULT: Truth(layered(2))})
    search(script, effort=replace(NORMAL, trials=trials))
    assert trials <= script.evaluations <= trials + 1, "what is begun is finished"


def test_the_seconds_end_the_search_wherever_they_are_spent(search: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("tuner.search.budget.time.monotonic", lambda: now[0])

    class Slow(Fused):
        def _start(self, *given: object, **named: object) -> object:  # type: ignore[override]
            worker = super()._start(*given, **named)  # type: ignore[arg-type]
            ask = worker.ask

            def slowly(timeout_s: float, **request: object) -> object:
                now[0] += 4.0
                return ask(timeout_s, **request)

            worker.ask = slowly  # type: ignore[method-assign,assignment]
            return worker

    script = Slow({DEFAULT: Truth(layered(2))})
    search(script, effort=replace(NORMAL, seconds=20.0))
    assert len(script.requests) <= 20.0 / 4.0 + 3, "the graph is opened before the seconds run, and what is begun is finished"


def test_a_second_search_starts_from_what_the_first_learnt(search: Run, store: SqliteStore) -> None:
    truth = Truth(layered(2), seed=3)
    first, second = Fused({DEFAULT: truth}, noise=0.01), Fused({DEFAULT: truth}, noise=0.01, seed=1)
    search(first, into=store)
    screening, _ = search(second, into=store)
    assert regret(truth, screening) < 0.01
    assert second.evaluations < 0.7 * first.evaluations


def test_another_graph_with_the_same_regions_starts_from_what_this_one_taught(search: Run, store: SqliteStore) -> None:
    shallow, deep = Truth(layered(2), seed=3), Truth(layered(4), seed=3)
    first, second = Fused({DEFAULT: shallow}, noise=0.01), Fused({DEFAULT: deep}, noise=0.01, seed=1)
    search(first, into=store)
    screening, _ = search(second, asked=resolved(name="b"), into=store)
    assert regret(deep, screening) < 0.01
    assert second.evaluations < first.evaluations


@pytest.mark.parametrize(("knob", "wide"), [(("realize_reads_threshold", 1), 200), (("pick_loop_orders", False), 400)])
def test_groups_are_sought_under_the_best_lowering_choice(search: Run, knob: tuple[str, int | bool], wide: int) -> None:
    """Whether it gives other leaves, or other code for the same."""
    plain, other = Truth(layered(1), seed=0), Truth(layered(1, wide=wide), seed=5, library_ms=0.02)
    base = Plan(config=(knob,))
    script = Fused({DEFAULT: plain, base: other})
    screening, _ = search(script, effort=replace(NORMAL, trials=150))
    best = min(screening.passed, key=lambda one: script.ms(one.candidate.plan)).candidate.plan
    assert replace(best, groups=None) == base
    assert best.groups is not None
    assert other.ms(best.groups) / other.best()[1] < 1.07


class Dying(Fused):
    """Its process dies over the profiles of these numbers."""

    dies_over: Callable[[int], bool] = staticmethod(lambda number: True)
    deaths = 0

    def _start(self, *given: object, **named: object) -> object:  # type: ignore[override]
        worker = super()._start(*given, **named)  # type: ignore[arg-type]
        ask = worker.ask

        def dying(timeout_s: float, **request: object) -> object:
            if request["do"] == "profile":
                self.deaths += 1
                if self.dies_over(self.deaths):
                    worker.alive = False
                    raise WorkerDied("killed")
            return ask(timeout_s, **request)

        worker.ask = dying  # type: ignore[method-assign,assignment]
        return worker


def test_a_process_that_dies_over_the_kernels_costs_the_groups_and_not_the_rest(search: Run) -> None:
    truth = Truth(layered(1))
    screening, seen = search(Dying({DEFAULT: truth}))
    assert screening.passed
    assert seen.notes == ["kernels are not timed one by one: killed"]


def test_a_process_that_dies_once_costs_one_candidate(search: Run) -> None:
    truth = Truth(layered(1), seed=0)
    script = Dying({DEFAULT: truth})
    script.dies_over = lambda number: number == 3
    screening, seen = search(script)
    assert script.deaths > 3
    assert seen.notes == []
    assert regret(truth, screening) < 0.05


def test_a_graph_without_kernels_to_group_is_left_alone(search: Run) -> None:
    script = Fused({DEFAULT: Truth(calls_only())})
    search(script)
    assert script.asked("profile") == []


def test_where_outputs_cannot_be_checked_groups_are_searched_and_nothing_else(search: Run) -> None:
    truth = Truth(layered(1), seed=0)
    script = Fused({DEFAULT: truth})
    script.opening = lambda _: {"checkable": False}
    screening, _ = search(script)
    assert regret(truth, screening) < 0.05
    assert all(plan.leaves_numerics for plan in script.tried)


def test_what_is_too_large_is_said(search: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.search.groupings.MAX_LEAVES", 10)
    _, seen = search(Fused({DEFAULT: Truth(layered(1))}))
    assert seen.notes == ["no groups are sought: 12 leaves are more than 10"]


def groups_of(screening: Screening) -> list[Groups]:
    return [one.candidate.plan.groups for one in screening.passed if one.candidate.plan.groups is not None]


def test_a_region_is_grouped_alike_wherever_it_occurs(search: Run) -> None:
    truth = Truth(layered(3), seed=3)
    screening, _ = search(Fused({DEFAULT: truth}))
    best = min(groups_of(screening), key=truth.ms)
    assert best not in (truth.anatomy.groups, no_fusion(truth.anatomy.groups))
    (region, *_) = sorted(regions(truth.anatomy), key=lambda one: -len(one.occurrences))
    sizes = [sorted(len(group) for group in truth.numbers(best) if group <= set(occurrence)) for occurrence in region.occurrences]
    assert sizes[0] == sizes[1] == sizes[2]
