"""benchmarks/fusion_oracle.py: that every grouping is enumerated, and what it says of those that were chosen."""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
HERE = {"torch": "2.13.0", "cpu": "made up"}


@pytest.fixture(autouse=True)
def found_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])


@pytest.fixture
def oracle() -> ModuleType:
    return importlib.import_module("fusion_oracle")


@pytest.fixture
def space() -> ModuleType:
    return importlib.import_module("fusion_oracle_space")


def test_groupings_of_a_chain_are_the_places_where_it_is_cut(space):
    chain = [frozenset(range(a, b)) for a, b in itertools.combinations(range(6), 2)]
    found = list(space.partitions(range(5), chain, [(i, i + 1) for i in range(4)]))
    assert len(found) == len({frozenset(one) for one in found}) == 2**4
    assert all(sorted(leaf for group in one for leaf in group) == list(range(5)) for one in found)


def test_groups_that_wait_for_each_other_are_no_grouping(space):
    groups = [frozenset(one) for size in (1, 2) for one in itertools.combinations(range(4), size)]
    crossing = [(0, 2), (3, 1)]
    assert not space.has_circle([frozenset((0, 1)), frozenset((2,)), frozenset((3,))], crossing)
    assert space.has_circle([frozenset((0, 1)), frozenset((2, 3))], crossing)
    found = {frozenset(one) for one in space.partitions(range(4), groups, crossing)}
    assert frozenset((frozenset((0, 1)), frozenset((2, 3)))) not in found
    assert len(found) == 9, "ten ways to have at most pairs, less the circle"


def test_what_the_compiler_makes_of_several_requests_counts_once(space):
    made = {"a": "x", "b": "x", "c": None, "d": "y"}
    assert space.realised(list(made), made.get) == ["x", "y"]


def test_the_first_process_says_which_is_the_best_and_the_others_by_how_much(oracle):
    assert oracle.regret_of([[2.0, 1.0, 3.0], [1.1, 1.0, 0.5], [1.3, 1.0, 0.5]]) == pytest.approx(0.2)
    assert oracle.regret_of([[1.0, 2.0], [1.0, 0.9]]) == pytest.approx(0.0), "what was chosen is the best"


def test_a_random_choice_is_measured_anew_like_what_was_chosen(oracle):
    times_ms = [[2.0, 1.0, 3.0], [1.1, 1.0, 1.5], [1.3, 1.0, 2.5]]
    assert oracle.regret_of(times_ms, 2) == pytest.approx(1.0)


def test_a_random_choice_is_the_best_of_what_was_drawn(oracle):
    ratios = {((f"{i}:a",),): ratio for i, ratio in enumerate([1.0, 1.1, 1.25, 0.5, 0.8, 2.0])}
    best = max(ratios, key=ratios.get)
    assert oracle.random_choices(ratios, len(ratios)) == [best] * oracle.RANDOM_CHOICES
    assert oracle.random_choices(ratios, 100) == [best] * oracle.RANDOM_CHOICES, "more than there are"
    few = oracle.random_choices(ratios, 2)
    assert few == oracle.random_choices(ratios, 2)
    assert len(set(few)) > 1
    assert min(ratios.values()) not in {ratios[one] for one in few}, "one of two is never the worst"


@pytest.mark.parametrize(("evaluations", "parts"), [(50, (42, 8)), (20, (15, 5)), (2, (1, 1))])
def test_those_that_race_are_evaluations_too(oracle, evaluations, parts):
    assert oracle.shared(evaluations, 8) == parts


def test_what_was_measured_is_there_for_the_next_run(oracle, tmp_path):
    table = oracle.Table.at(tmp_path / "table.json", HERE)
    apart, together = (("0:a",), ("1:b",)), (("0:a", "1:b"),)
    table.keep("a", {apart: 1.5, together: None})
    assert oracle.Table.at(tmp_path / "table.json", HERE).of("a") == {apart: 1.5, together: None}
    assert not table.of("b")


@pytest.mark.parametrize("there", [{**HERE, "torch": "2.12.0"}, {**HERE, "cpu": "another"}])
def test_what_was_measured_elsewhere_is_refused(oracle, tmp_path, there):
    oracle.Table.at(tmp_path / "table.json", there).keep("a", {(("0:a",),): 1.5})
    with pytest.raises(ValueError, match="was made on"):
        oracle.Table.at(tmp_path / "table.json", HERE)


def test_a_table_that_does_not_say_where_it_was_made_is_refused(oracle, tmp_path):
    (tmp_path / "table.json").write_text('{"a": {}}')
    with pytest.raises(ValueError, match="nobody knows"):
        oracle.Table.at(tmp_path / "table.json", HERE)
