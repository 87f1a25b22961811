"""Knobs that change how values are computed: proposed to those alone who allow it, and never kept from them behind their back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scripted import GELU, ONE_CANDIDATE, Script, resolved, taking
from stored import measurement, query, winner

from tuner.cache.sqlite import SqliteStore
from tuner.plan import Plan
from tuner.search.rules import NUMERICS_ALLOWED, Rules
from tuner.search_spaces.inductor_knobs import KNOBS, changes_numerics, knobs_for
from tuner.search_spaces.space import SPACE_VERSION, Candidate
from tuner.workload.graph import Node

UNSAFE = Plan(config=(("cpp.use_decompose_tanh", True),))
SAFE = Plan(config=(("realize_reads_threshold", 1),))
BOTH = replace(ONE_CANDIDATE, space=lambda *_: [Candidate("safe", SAFE), Candidate("unsafe", UNSAFE)])
SAFE_ONLY = replace(ONE_CANDIDATE, space=lambda *_: [Candidate("safe", SAFE)])
ALLOWED = replace(BOTH, numerics=True)


def faster() -> Script:
    return Script(taking({SAFE: 0.8, UNSAFE: 0.5}))


def test_they_are_those_that_give_up_a_formula_or_a_rule() -> None:
    found = {name for name, knob in KNOBS.items() if knob.numerics}
    assert {"cpp.use_decompose_tanh", "use_fast_math"} <= found
    assert found & set(knobs_for("cpu", 2)) == set()
    assert found & set(knobs_for("cpu", 2, numerics=True)) == {name for name in found if "cpu" in KNOBS[name].backends}
    assert changes_numerics(UNSAFE)
    assert not changes_numerics(SAFE)
    assert not changes_numerics(Plan(native=(GELU,)))


@pytest.mark.parametrize("allowed", [False, True])
def test_they_are_proposed_to_those_alone_who_allow_it(run, allowed: bool) -> None:
    script, graph = Script(), resolved()
    with_tanh = replace(graph.graph, nodes=(Node("call", "aten.tanh.default", [], {}, None),))
    run(script, replace(graph, graph=with_tanh), rules=Rules(numerics=allowed))
    assert any(changes_numerics(plan) for plan in script.tried) == allowed


def test_the_winner_says_that_they_were_allowed(sweep, store: SqliteStore) -> None:
    (outcome,) = sweep(faster(), resolved((GELU,)), rules=ALLOWED).outcomes
    assert outcome.winner.plan == UNSAFE
    found = store.winner(query().exact_key)
    assert found is not None
    assert found[0].evidence[NUMERICS_ALLOWED] is True
    (outcome,) = sweep(faster(), resolved((GELU,), "b"), rules=SAFE_ONLY).outcomes
    assert NUMERICS_ALLOWED not in outcome.winner.evidence


def test_what_was_allowed_once_is_served_until_it_is_swept_again_without(sweep, store: SqliteStore) -> None:
    sweep(faster(), resolved((GELU,)), rules=ALLOWED)
    for rules, searches in ((ALLOWED, False), (replace(SAFE_ONLY, keeps_numerics=True), False), (SAFE_ONLY, True)):
        assert store.winner(query().exact_key)[0].plan == UNSAFE  # type: ignore[index]
        script = faster()
        (outcome,) = sweep(script, resolved((GELU,)), rules=rules).outcomes
        assert bool(script.workers) == searches
        assert UNSAFE not in script.tried
    assert outcome.winner.plan == SAFE


def test_neither_the_incumbent_nor_a_stored_trial_brings_them_back(run, store: SqliteStore) -> None:
    store.record_winner(replace(winner(query(), UNSAFE), space_version=SPACE_VERSION))
    store.add_measurement(measurement(query(), UNSAFE, default_samples_ms=(9.0,), samples_ms=(1.0,)))
    script = Script()
    found, _ = run(script)
    assert found.incumbent == Plan()
    assert UNSAFE not in script.tried
    assert UNSAFE not in [finalist.candidate.plan for finalist in found.passed]
    found, _ = run(Script(), rules=Rules(numerics=True))
    assert found.incumbent == UNSAFE


def test_a_search_without_them_settles_nothing_for_those_who_allow_them(sweep) -> None:
    sweep(faster(), resolved((GELU,)), rules=SAFE_ONLY)
    script = faster()
    (outcome,) = sweep(script, resolved((GELU,)), rules=ALLOWED).outcomes
    assert UNSAFE in script.tried
    assert outcome.winner.plan == UNSAFE


def test_a_search_with_them_that_chose_none_settles_it_for_all(sweep) -> None:
    sweep(Script(taking({SAFE: 0.5, UNSAFE: 0.8})), resolved((GELU,)), rules=ALLOWED)
    script = faster()
    (outcome,) = sweep(script, resolved((GELU,)), rules=SAFE_ONLY).outcomes
    assert (outcome.winner.plan, script.workers) == (SAFE, [])
