"""What tuner.cache.contract.Store promises, for every back end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from stored import (
    EVIL,
    GROUP_TIMES,
    GROUPS,
    KNOB,
    LEAVES,
    NATIVE,
    POLICY,
    SPLIT,
    TARGET,
    TOOLCHAIN,
    failed,
    measurement,
    program,
    program_final,
    query,
    settled,
    winner,
)

from tuner.answer import Bucket, ProgramChoice
from tuner.cache.contract import GROUP_TIMES_KEPT, Store
from tuner.cache.sqlite import SqliteStore
from tuner.errors import PlanError, StoreError
from tuner.measurement import GroupTime, Policy
from tuner.plan import Plan


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with SqliteStore(tmp_path / "store.db" if request.param == "file" else ":memory:") as opened:
        yield opened


def test_a_new_store_is_empty(store):
    assert store.counts() == {"graphs": 0, "programs": 0, "measurements": 0, "winners": 0, "generation": 0}
    assert store.generation() == 0
    assert store.winner(query().exact_key) is None
    assert store.winners() == []
    assert store.measurements(query().exact_key) == []
    assert store.graph(query().workload_key) is None


def test_a_graph_comes_back_as_it_was(store):
    form = {"nodes": [{"op": "aten.add", "args": [1, 2.5, None, "é"]}]}
    store.add_graph("ab12", form)
    assert store.graph("ab12") == form


def test_a_graph_added_twice_stays_as_it_was_first(store):
    store.add_graph("ab12", {"nodes": [1]})
    store.add_graph("ab12", {"nodes": [2]})
    assert store.graph("ab12") == {"nodes": [1]}
    assert store.counts()["graphs"] == 1


def test_a_graph_that_is_given_anew_is_replaced(store):
    store.add_graph("ab12", {"nodes": [1]})
    store.add_graph("ab12", {"nodes": [2]}, anew=True)
    store.add_graph("cd34", {"nodes": [3]}, anew=True)
    assert (store.graph("ab12"), store.graph("cd34")) == ({"nodes": [2]}, {"nodes": [3]})
    assert store.counts()["graphs"] == 2


def test_graphs_are_found_by_the_start_of_their_key(store):
    for key in ("abc1", "abd2", "xabc"):
        store.add_graph(key, {})
    assert store.find_graphs("ab") == ["abc1", "abd2"]
    assert store.find_graphs("abc1") == ["abc1"]
    assert store.find_graphs("a%") == []
    assert store.find_graphs("") == ["abc1", "abd2", "xabc"]


def test_a_programs_graphs_are_recorded_in_order(store):
    store.add_program(program(), [query("b"), query("a")], "m:f")
    (first,), (second,) = store.programs_of(query("b").workload_key), store.programs_of(query("a").workload_key)
    assert (first.position, second.position) == (0, 1)
    assert first.spec == "m:f"
    assert first.graph_exact_key == query("b").exact_key
    assert first.program_key == program().workload_key
    assert first.exact_key == program().exact_key


def test_a_program_recorded_again_replaces_its_graphs(store):
    store.add_program(program(), [query("a"), query("b")], "m:f")
    store.add_program(program(), [query("c")], "m:g")
    assert store.programs_of(query("a").workload_key) == []
    assert [one.spec for one in store.programs_of(query("c").workload_key)] == ["m:g"]
    assert store.counts()["programs"] == 1


def test_the_same_program_for_another_thread_count_is_another_record(store):
    store.add_program(program(), [query("a")], "m:f")
    store.add_program(program(ambient={"threads": 2}), [query("a", ambient={"threads": 2})], "m:f")
    assert len(store.programs_of(query("a").workload_key)) == 2


def test_programs_are_found_by_the_first_digits_of_their_key_with_their_graphs_in_order(store):
    two = {"threads": 2}
    store.add_program(program(ambient=two), [query("a", ambient=two)], "m:f")
    store.add_program(program(), [query("b"), query("a")], "m:f")
    store.add_program(program("q"), [query("c")], "m:g")
    found = store.find_programs(program().workload_key[:6])
    assert [(one.query, one.graphs, one.spec) for one in found] == [
        (program(ambient=two), (query("a", ambient=two),), "m:f"),
        (program(), (query("b"), query("a")), "m:f"),
    ]
    assert store.find_programs("%") == []


def test_a_program_takes_queries_of_the_right_kind_only(store):
    with pytest.raises(ValueError, match="kind program"):
        store.add_program(query("a"), [query("b")], "m:f")
    with pytest.raises(ValueError, match="kind graph"):
        store.add_program(program("a"), [program("b")], "m:f")
    assert store.counts()["programs"] == 0


def test_a_measurement_comes_back_as_it_was(store):
    full = measurement(
        plan=SPLIT,
        stage="final",
        label="split",
        realised=GROUPS,
        code_key="c0de",
        error=0.25,
        peak_bytes=2**40,
        default_peak_bytes=7,
        message="two\nlines",
        process="3",
        program_key=program().workload_key,
        region_key="beef",
        provenance={"host": "h", "load": 0.5, "versions": {"torch": "2.13.0"}},
    )
    failed = measurement(status="compile_error", samples_ms=(), default_samples_ms=(), message="no such header")
    numbers = [store.add_measurement(full), store.add_measurement(failed)]
    assert numbers == sorted(set(numbers))
    assert store.measurements(query().exact_key) == [full, failed]


def test_an_infinite_error_is_kept_and_one_that_is_no_number_is_unknown(store):
    store.add_measurement(measurement(status="wrong", error=float("inf")))
    store.add_measurement(measurement(status="wrong", error=float("nan")))
    assert [one.error for one in store.measurements(query().exact_key)] == [float("inf"), None]


def test_empty_fields_of_a_query_mean_the_same_as_absent_ones(store):
    asked = query(ambient={"threads": 1, "inductor": {}})
    store.add_measurement(measurement(asked))
    (back,) = store.measurements(asked.exact_key)
    assert back.query.ambient == {"threads": 1}
    assert back.query.exact_key == asked.exact_key == query().exact_key


def test_measurements_come_in_the_order_of_adding_and_can_be_asked_by_stage_and_policy(store):
    wall = replace(measurement(), policy=Policy(clock="wall", threads=2))
    final = measurement(stage="final")
    other = measurement(query("other"))
    for one in (final, wall, other, measurement(plan=KNOB)):
        store.add_measurement(one)
    key = query().exact_key
    assert store.measurements(key) == [final, wall, measurement(plan=KNOB)]
    assert store.measurements(key, stage="final") == [final]
    assert store.measurements(key, policy_key=wall.policy.key) == [wall]
    assert store.measurements(key, stage="screen", policy_key=POLICY.key) == [measurement(plan=KNOB)]


def test_a_winner_comes_back_as_it_was_with_its_generation(store):
    full = winner(program_key="p", region_key="r", evidence={"processes": 3}, provenance={"host": "h"})
    assert store.record_winner(full) == 1
    assert store.winner(query().exact_key) == (full, 1)


def test_a_settled_default_is_a_winner(store):
    store.record_winner(settled())
    assert store.winner(query().exact_key) == (settled(), 1)


def test_every_winner_counts_one_generation_of_the_whole_store(store):
    assert [store.record_winner(winner(query(name))) for name in "abca"] == [1, 2, 3, 4]
    assert store.generation() == 4
    assert store.counts()["winners"] == 3


def test_the_latest_winner_of_each_exact_match_is_given(store):
    store.record_winner(winner(query("a"), plan=NATIVE))
    store.record_winner(winner(query("b"), plan=KNOB))
    store.record_winner(winner(query("a"), plan=SPLIT))
    assert store.winner(query("a").exact_key) == (winner(query("a"), plan=SPLIT), 3)
    assert [(one.plan, generation) for one, generation in store.winners()] == [(KNOB, 2), (SPLIT, 3)]


def test_the_exact_matches_of_a_workload_are_those_measured_or_won(store):
    two, four = query(ambient={"threads": 2}), query(ambient={"threads": 4})
    store.add_measurement(measurement(two))
    store.record_winner(winner(four))
    store.record_winner(winner(query("other")))
    assert set(store.exact_keys(two.workload_key)) == {two.exact_key, four.exact_key}
    assert store.exact_keys("none") == []


@pytest.mark.parametrize(
    "plan",
    [
        EVIL,
        Plan(config=(("realize_reads_threshold", 10**9),)),
        Plan(native=("aten.made_up.default",)),
        Plan(compiler="sh"),
        Plan(groups=(("__import__('os')",),)),
        Plan(groups=((LEAVES[2],), LEAVES[:2])),
    ],
    ids=["undeclared knob", "out of range", "undeclared op", "unknown compiler", "no leaf id", "not in canonical order"],
)
def test_a_plan_that_is_not_declared_is_refused_and_nothing_is_written(store, plan):
    with pytest.raises(PlanError):
        store.add_measurement(measurement(plan=plan))
    with pytest.raises(PlanError):
        store.record_winner(winner(plan=plan))
    assert store.counts() == {"graphs": 0, "programs": 0, "measurements": 0, "winners": 0, "generation": 0}


@pytest.mark.parametrize("wrong", [replace(winner(), kind="default"), replace(settled(), kind="plan")])
def test_a_winner_whose_kind_does_not_fit_its_plan_is_refused(store, wrong):
    with pytest.raises(ValueError, match="kind"):
        store.record_winner(wrong)
    assert store.generation() == 0


@pytest.mark.parametrize(
    "wrong", [winner(evidence={"x": float("nan")}), winner(provenance={"x": object()}), winner(speedup=float("nan"))]
)
def test_what_cannot_be_kept_is_a_store_error_and_nothing_is_written(store, wrong):
    with pytest.raises(StoreError):
        store.record_winner(wrong)
    assert store.generation() == 0
    assert store.record_winner(winner()) == 1


@pytest.mark.parametrize("field", [{"status": "fine"}, {"stage": "guess"}])
def test_a_status_or_stage_that_does_not_exist_is_a_store_error(store, field):
    with pytest.raises(StoreError):
        store.add_measurement(measurement(**field))
    assert store.counts()["measurements"] == 0


@pytest.mark.parametrize("status", ["wrong", "crash", "timeout"])
@pytest.mark.parametrize("stage", ["screen", "race", "final"])
def test_a_candidate_that_was_wrong_crashed_or_hung_is_in_quarantine(store, status, stage):
    verdict = failed(status, stage=stage, message="seen")
    store.add_measurement(measurement())
    store.add_measurement(verdict)
    assert store.quarantined(query()) == {NATIVE.key: verdict}
    assert store.quarantine() == [verdict]


@pytest.mark.parametrize("status", ["ok", "compile_error", "out_of_resources", "busy"])
def test_other_verdicts_are_no_quarantine(store, status):
    store.add_measurement(measurement(status=status))
    assert store.quarantined(query()) == {}
    assert store.quarantine() == []


def test_quarantine_holds_under_every_policy_and_ambient_but_for_one_toolchain_target_and_workload(store):
    verdict = replace(failed("crash"), policy=Policy(clock="wall", threads=2))
    store.add_measurement(verdict)
    assert store.quarantined(query(ambient={"threads": 7})) == {NATIVE.key: verdict}
    assert store.quarantined(query(toolchain={**TOOLCHAIN, "torch": "2.14.0"})) == {}
    assert store.quarantined(query(target={"backend": "cuda"})) == {}
    assert store.quarantined(query("other")) == {}


def test_the_latest_verdict_on_each_candidate_is_given(store):
    verdicts = [failed("timeout"), failed("wrong", KNOB), failed("wrong", error=3.0), failed("crash", asked=query("b"))]
    for verdict in verdicts:
        store.add_measurement(verdict)
    assert store.quarantined(query()) == {KNOB.key: verdicts[1], NATIVE.key: verdicts[2]}
    assert store.quarantine() == verdicts[1:]


@pytest.mark.parametrize(
    ("later", "lifted"),
    [
        (measurement(), True),
        (measurement(query(ambient={"threads": 2})), True),
        (measurement(stage="final"), False),
        (measurement(status="compile_error"), False),
        (measurement(plan=KNOB), False),
        (measurement(query("b")), False),
        (measurement(query(toolchain={"torch": "2.14.0"})), False),
    ],
    ids=["screened", "elsewhere", "final", "not compiled", "another candidate", "another workload", "another toolchain"],
)
def test_only_a_later_screening_that_went_well_ends_a_quarantine(store, later, lifted):
    store.add_measurement(failed("timeout"))
    store.add_measurement(later)
    assert (store.quarantined(query()) == {}) == lifted
    store.add_measurement(failed("crash"))
    assert store.quarantined(query()) == {NATIVE.key: failed("crash")}


def test_a_verdict_that_takes_a_winner_out_of_service_or_back_is_a_generation(store):
    store.record_winner(winner(query("a"), KNOB))
    store.record_winner(winner(query("a", ambient={"threads": 2}), NATIVE))
    store.add_measurement(failed("wrong", SPLIT))
    store.add_measurement(failed("wrong", NATIVE, asked=query("b")))
    store.add_measurement(failed("wrong", NATIVE, asked=query("a", toolchain={"torch": "2.14.0"})))
    assert store.generation() == 2
    store.add_measurement(failed("wrong", NATIVE))
    assert store.generation() == 3
    store.add_measurement(failed("timeout", NATIVE))
    assert store.generation() == 3
    store.add_measurement(measurement(plan=NATIVE))
    assert store.generation() == 4
    store.record_winner(settled(query("a", ambient={"threads": 2})))
    store.add_measurement(failed("wrong", NATIVE))
    assert store.generation() == 5


def test_a_final_of_a_program_comes_back_as_it_was_with_its_generation(store):
    full = program_final(winner(), evidence={"processes": 3}, provenance={"host": "h"})
    assert store.program_final(program().exact_key) is None
    generation = store.record_program_final(full)
    assert store.program_final(program().exact_key) == (full, generation)
    assert store.program_final(program(ambient={"threads": 2}).exact_key) is None


def test_the_latest_final_of_a_program_is_given_and_of_some_plans_where_asked(store):
    first, second = program_final(winner(plan=KNOB)), program_final(winner(plan=SPLIT), verdict="confirmed")
    for final in (first, second):
        store.record_program_final(final)
    key = program().exact_key
    assert store.program_final(key) == (second, 1)
    assert store.program_final(key, first.plans) == (first, 1)
    assert store.program_final(key, "none") is None


def test_a_veto_that_comes_or_goes_is_a_generation_and_nothing_else_that_a_final_says(store):
    vetoed, confirmed = program_final(winner()), program_final(winner(), verdict="confirmed", speedup=1.1)
    others = program_final(winner(plan=KNOB), verdict="confirmed")
    finals = [confirmed, vetoed, replace(vetoed, speedup=0.9), others, confirmed, confirmed, vetoed]
    assert [store.record_program_final(final) for final in finals] == [0, 1, 1, 1, 2, 2, 3]
    assert store.generation() == 3
    assert store.record_winner(winner()) == 4


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (program_final(query=query()), ValueError),
        (program_final(verdict="unsure"), StoreError),
        (program_final(speedup=float("nan")), StoreError),
        (program_final(evidence={"x": object()}), StoreError),
    ],
)
def test_a_final_of_a_program_that_cannot_be_kept_changes_nothing(store, wrong, error):
    with pytest.raises(error):
        store.record_program_final(wrong)
    assert store.generation() == 0
    assert store.program_final(wrong.query.exact_key) is None


BUCKETS = (Bucket("s0", 8, ((query("a").exact_key, KNOB, GROUPS),)), Bucket("s0", None))


def test_a_choice_for_a_program_comes_back_as_it_was_with_its_generation_and_replaces_the_one_before(store):
    assert store.program_choice(program().exact_key) is None
    assert store.record_program_choice(program(), NATIVE.native, evidence={"processes": 3}, provenance={"host": "h"}) == 1
    assert store.program_choice(program().exact_key) == (ProgramChoice(NATIVE.native), 1)
    assert store.choice_evidence(program().exact_key) == {"processes": 3}
    assert store.record_program_choice(program(), dispatch=BUCKETS) == 2
    assert store.program_choice(program().exact_key) == (ProgramChoice(dispatch=BUCKETS), 2)
    assert store.choice_evidence(program().exact_key) == {}, "of the latest"
    assert store.record_program_choice(program()) == 3
    assert store.program_choice(program().exact_key) == (ProgramChoice(), 3)
    assert store.program_choice(program(ambient={"threads": 2}).exact_key) is None


@pytest.mark.parametrize(
    ("asked", "choice", "error"),
    [
        (query(), {}, ValueError),
        (program(), {"native_table": ["aten.made_up.default"]}, PlanError),
        (program(), {"native_table": NATIVE.native * 2}, PlanError),
        (program(), {"dispatch": [Bucket("s0", None, ((query("a").exact_key, EVIL, None),))]}, PlanError),
        (program(), {"dispatch": [Bucket("s0", None, (("a", KNOB, None),))]}, ValueError),
        (program(), {"dispatch": [Bucket("os", None)]}, ValueError),
        (program(), {"dispatch": BUCKETS[::-1]}, ValueError),
        (program(), {"dispatch": BUCKETS[:1]}, ValueError),
        (program(), {"evidence": {"x": object()}}, StoreError),
    ],
)
def test_a_choice_that_readers_would_refuse_is_refused_and_changes_nothing(store, asked, choice, error):
    with pytest.raises(error):
        store.record_program_choice(asked, **choice)
    assert store.generation() == 0
    assert store.program_choice(program().exact_key) is None


def test_times_of_groups_come_back_whatever_the_graph_in_the_order_in_which_they_were_added(store):
    first, second = GROUP_TIMES
    later = replace(first, ms=0.0, process="2")
    store.add_group_times(query("a"), POLICY, GROUP_TIMES)
    store.add_group_times(query("b"), POLICY, [later])
    assert store.group_times(query("c"), POLICY, [first.key]) == [first, later]
    assert store.group_times(query("c"), POLICY, {second.key, first.key, "unknown"}) == [first, second, later]
    assert store.group_times(query("c"), POLICY, []) == []
    assert store.generation() == 0, "no answer changes"


@pytest.mark.parametrize(
    ("asked", "policy"),
    [
        (query(target={**TARGET, "cores": 4}), POLICY),
        (query(toolchain={**TOOLCHAIN, "torch": "2.14.0"}), POLICY),
        (query(ambient={"threads": 2}), POLICY),
        (query(), Policy.for_cpu(threads=1, cache="cold")),
    ],
)
def test_times_of_groups_under_other_conditions_are_not_given(store, asked, policy):
    store.add_group_times(query(), POLICY, GROUP_TIMES)
    assert store.group_times(asked, policy, [GROUP_TIMES[0].key]) == []
    store.add_group_times(asked, policy, GROUP_TIMES[1:])
    assert store.group_times(query(), POLICY, [time.key for time in GROUP_TIMES]) == list(GROUP_TIMES)


def test_of_times_of_a_group_the_newest_are_kept(store):
    seen = [replace(GROUP_TIMES[0], process=str(number)) for number in range(GROUP_TIMES_KEPT + 3)]
    store.add_group_times(query("a"), POLICY, [*seen[:5], GROUP_TIMES[1]])
    store.add_group_times(query("b"), POLICY, seen[5:])
    assert store.group_times(query(), POLICY, [seen[0].key]) == seen[3:]
    assert store.group_times(query(), POLICY, [GROUP_TIMES[1].key]) == [GROUP_TIMES[1]]


@pytest.mark.parametrize("ms", [-0.1, float("nan"), float("inf")])
def test_a_time_of_a_group_that_is_no_time_is_refused_with_all_that_came_with_it(store, ms):
    with pytest.raises(ValueError, match="a group's time of"):
        store.add_group_times(query(), POLICY, [GROUP_TIMES[0], replace(GROUP_TIMES[1], ms=ms)])
    with pytest.raises(ValueError, match="without its key"):
        store.add_group_times(query(), POLICY, [GROUP_TIMES[0], GroupTime("", 1.0, "1")])
    assert store.group_times(query(), POLICY, [GROUP_TIMES[0].key]) == []


def test_a_closed_store_says_so(store):
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.generation()
