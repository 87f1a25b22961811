"""Screening with a compile pool: its verdicts are used, and on a CPU it rests while anything is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from scripted import EFFORT, GELU, LEAVES, ONE_GROUP, Script, Told, resolved, taking, telling
from splits import single_splits
from stored import query

from tuner.cache.sqlite import SqliteStore
from tuner.errors import WorkerTimeout
from tuner.plan import Plan
from tuner.search.screen import BATCH
from tuner.workload.graph import Node

NATIVE = Plan(native=(GELU,))
SPLIT = Plan(groups=next(iter(single_splits(ONE_GROUP))))


class Pool:
    """A compile pool that is a script; its requests stand between those of the measuring process."""

    def __init__(self, script: Script, verdict: Callable[[Plan], Told | None]):
        self.size, self.script, self.verdict = 2, script, verdict

    def open(self, request: Told) -> None:
        self.script.requests.append({"do": "pool open", **request})

    def compile(self, jobs: Sequence[Any], seen_codes: Sequence[str], default: Told) -> Iterator[tuple[Plan, Told | None]]:
        assert {"compile_s", "check_s", "call_s"} <= set(default), "what its limits are derived from"
        for plan, groups, own_copy in jobs:
            self.script.requests.append({"do": "pool compile", "plan": plan.to_json(), "own_copy": own_copy})
            told = self.verdict(plan)
            if told is None:
                yield plan, None
            else:
                yield plan, {"status": "ok", "realised": groups or ONE_GROUP, "code_key": plan.key, "resident_bytes": 1, **told}


def test_what_does_not_compile_in_the_pool_is_kept_without_asking_the_measuring_process(run, store: SqliteStore) -> None:
    script = Script(taking({}, 0.9))
    told = {"status": "compile_error", "message": "g++ says no", "traceback": ""}
    _, seen = run(script, pool=Pool(script, telling({NATIVE: told})))
    assert NATIVE not in script.tried
    assert seen.failed == {"compile_error": 1}
    (row,) = [row for row in store.measurements(query().exact_key, "screen") if row.plan == NATIVE]
    assert (row.status, row.message) == ("compile_error", "g++ says no")


@pytest.mark.parametrize("status", ["timeout", "crash", "out_of_resources"])
def test_what_a_crowd_may_be_to_blame_for_gets_its_verdict_alone(run, store: SqliteStore, status: str) -> None:
    script = Script()
    _, seen = run(script, pool=Pool(script, telling({NATIVE: {"status": status, "message": ""}})))
    assert NATIVE in script.tried
    assert seen.failed == {}
    assert store.quarantined(query()) == {}


def test_what_fails_alone_too_has_the_verdict_of_the_process_that_measures(run, store: SqliteStore) -> None:
    script = Script(verdict=telling({NATIVE: {"raise": WorkerTimeout("endless, alone")}}))
    _, seen = run(script, pool=Pool(script, telling({NATIVE: {"status": "timeout", "message": "in a crowd"}})))
    assert seen.failed == {"timeout": 1}
    assert [row.message for row in store.quarantined(query()).values()] == ["endless, alone"]


def test_the_clock_is_looked_at_between_the_candidates_of_a_batch(run, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("tuner.search.budget.time.monotonic", lambda: now[0])

    def verdict(plan: Plan) -> Told:
        now[0] += 5.0
        return {}

    script = Script(verdict=verdict)
    pool = Pool(script, lambda plan: {})
    run(script, pool=pool, effort=replace(EFFORT, seconds=5.0 * (BATCH * pool.size - 1)))
    assert len(script.asked("pool compile")) == BATCH * pool.size
    assert len(script.tried) == BATCH * pool.size - 1


def test_what_the_pool_finds_equal_or_unreachable_is_counted_without_asking(run) -> None:
    real = ((LEAVES[0],), (LEAVES[1],), LEAVES[2:])
    script = Script()
    told = {NATIVE: {"status": "duplicate"}, SPLIT: {"status": "not_realised", "realised": real}}
    _, seen = run(script, pool=Pool(script, telling(told)))
    assert not {NATIVE, SPLIT} & set(script.tried)
    assert (seen.duplicates, seen.refused, seen.failed) == (1, {"unreachable grouping": 1}, {})
    assert script.tried.count(Plan(groups=real)) == 1, "and that one went to the pool like any other"
    compiled = [Plan.from_json(request["plan"]) for request in script.asked("pool compile")]
    assert compiled.count(Plan(groups=real)) == 1


def test_what_the_pool_gave_no_verdict_on_is_compiled_where_it_is_measured(run) -> None:
    script = Script()
    _, seen = run(script, pool=Pool(script, lambda plan: None))
    assert seen.measured == len(script.tried) == len(script.asked("pool compile"))


def test_equal_code_that_the_pool_compiled_at_once_is_measured_once(run) -> None:
    script = Script(verdict=lambda plan: {"code_key": "same"})
    _, seen = run(script, pool=Pool(script, lambda plan: {"code_key": "same"}))
    assert seen.measured == 1
    assert seen.duplicates == len(script.tried) - 1


def kinds(script: Script) -> list[str]:
    return [request["do"] for request in script.requests]


def test_on_a_cpu_nothing_is_compiled_in_the_pool_while_the_process_measures(run) -> None:
    script = Script()
    pool = Pool(script, lambda plan: {})
    batch = BATCH * pool.size
    run(script, pool=pool, effort=replace(EFFORT, trials=batch + 1))
    trial = ["try", "time"]
    assert kinds(script) == ["open", "pool open", *["pool compile"] * batch, *trial * batch, "pool compile", *trial]


def test_on_another_device_the_pool_compiles_meanwhile(run) -> None:
    asked = resolved((GELU,))
    on_gpu = Node("input", "", [], {}, ["float32", [4], [1], "cuda"])
    asked = replace(asked, graph=replace(asked.graph, nodes=(on_gpu,), order=(0,)))
    script = Script()
    run(script, asked, pool=Pool(script, lambda plan: {}), effort=replace(EFFORT, trials=3))
    assert kinds(script)[2:] == ["pool compile", "try", "time"] * 3


def test_the_pool_opens_the_graph_as_the_measuring_process_does(run) -> None:
    script = Script()
    run(script, pool=Pool(script, lambda plan: {}))
    (opened,), (asked,) = script.asked("pool open"), script.asked("open")
    assert {name: value for name, value in asked.items() if name not in ("do", "process", "limit_s")} == {
        name: value for name, value in opened.items() if name != "do"
    }


def test_where_there_is_nothing_to_choose_nothing_is_compiled_ahead(run) -> None:
    script = Script(opening=lambda _: {"realised": []})
    found, _ = run(script, pool=Pool(script, lambda plan: {}))
    assert kinds(script) == ["open"]
    assert (found.passed, found.default_ms) == ([], 1.0)
