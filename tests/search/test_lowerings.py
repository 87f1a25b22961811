"""What changes lowering: the best choices together, then the knobs' values; and what other places taught."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scripted import EFFORT, GELU, ONE_GROUP, SILU, Script, resolved
from stored import query, winner

from tuner.cache.sqlite import SqliteStore
from tuner.plan import Plan
from tuner.search.rules import Rules
from tuner.search.transfer import MAX_SEEDS, seeds
from tuner.search_spaces.fusion import no_fusion

WIDE = replace(EFFORT, trials=200)
ASKED = resolved((GELU, SILU))
READS = "realize_reads_threshold"


def gaining(parts: dict[str, float]) -> Any:
    """Milliseconds of a plan of which each native op, and each knob at a value ("name=value"), takes off this share."""

    def ms(plan: Plan) -> float:
        names = [*plan.native, *(f"{name}={value}" for name, value in plan.config)]
        left = 1.0 if plan.compiler == "inductor" else 2.0
        for name in names:
            left *= 1 - parts.get(name, 0.0)
        return left * (1.0 if plan.groups is None else 1.5)

    return ms


def test_choices_that_gain_alone_are_tried_together(run) -> None:
    script = Script(gaining({GELU: 0.1, SILU: 0.05, f"{READS}=1": 0.02}))
    found, seen = run(script, ASKED, effort=WIDE, rules=Rules())
    best = max(found.passed, key=lambda one: one.ratio).candidate.plan
    assert best.native == (GELU, SILU)
    assert dict(best.config)[READS] == 1
    assert seen.best == pytest.approx(1 / (0.9 * 0.95 * 0.98), rel=0.01)


def test_a_choice_that_spoils_another_is_not_kept_beside_it(run) -> None:
    alone = gaining({GELU: 0.1, SILU: 0.09})
    script = Script(lambda plan: 1.2 if set(plan.native) >= {GELU, SILU} else alone(plan))
    found, _ = run(script, ASKED, effort=WIDE, rules=Rules())
    assert Plan(native=(GELU, SILU)) in script.tried
    assert max(found.passed, key=lambda one: one.ratio).candidate.plan.native == (GELU,)


def test_values_of_knobs_beyond_the_first_are_found_on_top_of_the_best(run) -> None:
    script = Script(gaining({GELU: 0.1, f"{READS}=16": 0.3}))
    found, _ = run(script, ASKED, effort=replace(WIDE, dry=60), rules=Rules())
    best = max(found.passed, key=lambda one: one.ratio).candidate.plan
    assert (best.native, dict(best.config)[READS]) == ((GELU,), 16)


def test_what_the_user_set_is_left_alone_by_whatever_proposes(run) -> None:
    fixed = replace(ASKED, query=query(ambient={"threads": 1, "inductor": {READS: 8}}))
    script = Script(gaining({GELU: 0.1}))
    run(script, fixed, effort=WIDE, rules=Rules())
    assert script.tried
    assert not any(READS in dict(plan.config) for plan in script.tried)


def test_lowering_does_not_use_up_what_is_for_groups(run) -> None:
    script = Script(gaining({}))
    run(script, ASKED, effort=replace(WIDE, trials=10), rules=Rules())
    listed = [plan for plan in script.tried if plan.groups is None]
    assert len(listed) <= 6


def test_winners_of_other_settings_are_tried_first_the_nearest_before_all(run, store: SqliteStore) -> None:
    far, near = Plan(native=(SILU,)), Plan(native=(GELU,))
    store.record_winner(winner(query(target={"backend": "cpu", "arch": "other"}), far))
    store.record_winner(winner(query(ambient={"threads": 2}), near))
    script = Script()
    run(script, ASKED, effort=replace(WIDE, trials=4), rules=Rules())
    assert script.tried[:2] == [near, far]


def test_what_a_seed_and_the_list_have_in_common_is_tried_once(run, store: SqliteStore) -> None:
    store.record_winner(winner(query(ambient={"threads": 2}), Plan(native=(GELU,))))
    script = Script(verdict=lambda plan: {"status": "compile_error", "message": ""} if plan.native == (GELU,) else {})
    run(script, ASKED, effort=WIDE, rules=Rules())
    assert script.tried.count(Plan(native=(GELU,))) == 1
    assert script.tried[0] == Plan(native=(GELU,))


def test_seeds_are_few_and_each_once_and_none_is_a_default_or_of_this_very_place(store: SqliteStore) -> None:
    store.record_winner(winner(query(), Plan(native=(SILU,))))
    for threads in range(2, 12):
        store.record_winner(winner(query(ambient={"threads": threads}), Plan(native=(GELU,))))
    assert [one.plan for one in seeds(store, ASKED)] == [Plan(native=(GELU,))]
    for value in range(1, 20):
        store.record_winner(winner(query(ambient={"threads": 100 + value}), Plan(config=((READS, value),))))
    found = seeds(store, ASKED)
    assert len(found) == MAX_SEEDS
    assert dict(found[0].plan.config)[READS] == 19, "the latest first"


def test_groups_of_the_default_are_sought_where_one_of_its_groupings_is_best(run) -> None:
    plain = gaining({GELU: 0.3})
    script = Script(lambda plan: 0.5 if plan.groups is not None and not plan.native else plain(plan))
    _, seen = run(script, ASKED, effort=WIDE, rules=Rules())
    asked = [Plan.from_json(request["plan"]) for request in script.asked("anatomy")]
    assert Plan() in asked
    assert not any(plan.native for plan in asked), "they are too far behind"
    assert seen.best_plan == Plan(groups=no_fusion(ONE_GROUP)).describe()
