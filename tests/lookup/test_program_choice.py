"""What is chosen for a program as a whole: how a reader answers it."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest
from stored import GROUPS, KNOB, NATIVE, failed, program, program_final, query, winner

from tuner.answer import Bucket, digest_of_plans
from tuner.cache.sqlite import SqliteStore
from tuner.plan import Plan


def test_a_programs_choice_is_answered_with_the_plans_of_its_graphs(reader, path):
    dispatch = (Bucket("s0", 8, ((query("a").exact_key, KNOB, GROUPS),)), Bucket("s0", None))
    with SqliteStore(path) as store:
        store.add_program(program(), [query("a")], "m:f")
        assert reader.program(program()).graph_keys == (query("a").workload_key,)
        store.record_program_choice(program(), NATIVE.native)
        native = reader.program(program())
        store.record_program_choice(program(), dispatch=dispatch)
        bucketed = reader.program(program())
        store.record_program_choice(program())
        plain = reader.program(program())
    assert (native.native_table, native.dispatch, bucketed.native_table, bucketed.dispatch) == (NATIVE.native, (), (), dispatch)
    assert (plain.native_table, plain.dispatch, plain.plans_digest) == ((), (), "")
    assert len({native.plans_digest, bucketed.plans_digest, ""}) == 3


def test_a_veto_is_of_the_choice_as_well(reader, path):
    won = winner(query("a"), KNOB)
    with SqliteStore(path) as store:
        store.add_program(program(), [query("a")], "m:f")
        store.record_winner(won)
        store.record_program_choice(program(), NATIVE.native)
        plans = digest_of_plans({won.query.exact_key: (won.plan, won.groups)}, NATIVE.native)
        assert reader.plans_in_force(program().exact_key) == plans == reader.program(program()).plans_digest
        # of the plans alone: it says nothing of the choice
        store.record_program_final(program_final(won))
        assert reader.program(program()).native_table == NATIVE.native
        store.record_program_final(program_final(plans=plans))
    found = reader.program(program())
    assert (found.native_table, found.plans_digest, [one.plan for one in found.answers.values()]) == ((), "", [Plan()])


def test_plans_that_are_vetoed_without_the_buckets_are_not_served_to_those_who_cannot_dispatch(reader, path):
    won = winner(query("a"), KNOB)
    dispatch = (Bucket("s0", 8, ((query("a").exact_key, KNOB, GROUPS),)), Bucket("s0", None))
    with SqliteStore(path) as store:
        store.add_program(program(), [query("a")], "m:f")
        store.record_winner(won)
        store.record_program_final(program_final(won))
        store.record_program_choice(program(), dispatch=dispatch)
    found = reader.program(program())
    assert found.dispatch == dispatch
    assert replace(found, dispatch=()).plans_digest == ""
    assert [one.plan for one in found.of_bucket(dispatch[0]).answers.values()] == [KNOB]


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ("""native_table = '["aten.made_up.default"]'""", "invalid_choice"),
        ("native_table = '{'", "invalid_choice"),
        ("native_table = '3'", "invalid_choice"),
        ("""dispatch = '[{"symbol":"s0","up_to":null}]'""", "invalid_choice"),
        ("""dispatch = '[3]'""", "invalid_choice"),
        ("""dispatch = replace(dispatch, '"realize_reads_threshold":2', '"cpp.cxx":"/tmp/evil"')""", "invalid_choice"),
        *(
            (f"""dispatch = replace(dispatch, '"up_to":null', '"up_to":{limit}')""", "invalid_choice")
            for limit in ("-1", "Infinity", "1e999", "true", '"12"', "1.9")
        ),
        ("""dispatch = '[{"symbol":"s0","up_to":null,"plans":[]}]'""", "invalid_choice"),
    ],
)
def test_a_choice_that_does_not_validate_is_not_served_and_the_plans_are(reader, path, change, outcome):
    with SqliteStore(path) as store:
        store.add_program(program(), [query("a")], "m:f")
        store.record_winner(winner(query("a"), KNOB))
        store.record_program_choice(program(), NATIVE.native, [Bucket("s0", None, ((query("a").exact_key, KNOB, None),))])
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"UPDATE program_choices SET {change}")
    connection.close()
    found = reader.program(program())
    assert (found.native_table, found.dispatch, [one.plan for one in found.answers.values()]) == ((), (), [KNOB])
    assert reader.outcomes[outcome] == 1
    with SqliteStore(path, read_only=True) as store:
        assert store.program_choice(program().exact_key) is None
        assert store.invalid_rows == 1


def test_graphs_under_a_native_table_are_settled_with_it(reader, path):
    with SqliteStore(path) as store:
        store.add_program(program(), [query("a"), query("under the table")], "m:f")
        store.record_winner(winner(query("a"), KNOB))
        assert not reader.program(program()).settled
        store.record_program_choice(program(), NATIVE.native)
        found = reader.program(program())
        assert (found.settled, [one.plan for one in found.answers.values()]) == (True, [KNOB, Plan()])
        store.add_measurement(failed("wrong", KNOB))
        assert not reader.program(program()).settled, "a graph whose winner is in quarantine is wanted again"


def test_sizes_of_a_winner_that_are_none_make_it_invalid(reader, path):
    with SqliteStore(path) as store:
        store.record_winner(winner(query("a"), KNOB))
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("""UPDATE fields SET json = replace(json, '{', '{"sizes":[[Infinity]],') WHERE kind = 'policy'""")
    connection.close()
    assert reader.answer(query("a")).plan == Plan()
    assert reader.outcomes["invalid_plan"] == 1
    with SqliteStore(path, read_only=True) as store:
        assert store.winner(query("a").exact_key) is None


def test_buckets_of_a_plan_in_quarantine_are_not_served(reader, path):
    with SqliteStore(path) as store:
        store.add_program(program(), [query("a")], "m:f")
        store.record_program_choice(program(), dispatch=[Bucket("s0", None, ((query("a").exact_key, KNOB, None),))])
        assert reader.program(program()).dispatch
        store.add_measurement(failed("wrong", KNOB))
    assert reader.program(program()).dispatch == ()
