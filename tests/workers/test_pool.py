"""Candidates are compiled ahead, several at once, so that the measuring worker finds them compiled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from left_behind import is_running
from sessions import softmax_graph

from tuner.measurement import Policy
from tuner.plan import Plan, canonical_groups
from tuner.search_spaces.fusion import no_fusion
from tuner.workers.pool import CompilePool
from tuner.workers.process import Worker

pytestmark = pytest.mark.slow

NATIVE = Plan(native=("aten._softmax.default",))
KNOB = Plan(config=(("realize_opcount_threshold", 1),))
LIMIT_S = 300.0
DEFAULT_TIMES = {"compile_s": 5.0, "check_s": 0.1, "call_s": 1e-4}


def request(graph):
    return {"graph": graph.to_json(), "ambient": {"threads": 1}, "seed": 0, "policy": Policy.for_cpu(1).fields()}


@pytest.fixture(scope="module", autouse=True)
def own_compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("inductor")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture(scope="module")
def pool(own_compile_cache: Path) -> Iterator[CompilePool]:
    with CompilePool(threads=1, size=2) as started:
        started.open(request(softmax_graph()))
        yield started


def binaries(folder: Path) -> set[Path]:
    return set(folder.rglob("*.so"))


def test_what_the_pool_compiled_is_not_compiled_again_by_who_measures(pool, own_compile_cache):
    with Worker(threads=1) as measuring:
        default = measuring.ask(LIMIT_S, do="open", **request(softmax_graph()))
        groups = no_fusion(canonical_groups(default["realised"]))
        alone = Plan(groups=groups)
        jobs = [(plan, plan.groups, "") for plan in (alone, NATIVE, Plan())]
        verdicts = dict(pool.compile(jobs, [default["code_key"]], default))
        found = {plan: verdict["status"] for plan, verdict in verdicts.items()}
        assert found == {alone: "ok", NATIVE: "ok", Plan(): "duplicate"}
        assert canonical_groups(verdicts[alone]["realised"]) == groups
        compiled = binaries(own_compile_cache)
        measured = measuring.ask(LIMIT_S, do="try", plan=alone.to_json(), expected=groups, seen_codes=[])
        assert measured["status"] == "ok"
        assert measured["code_key"] == verdicts[alone]["code_key"], "compiled without real inputs, it is the same code"
        assert binaries(own_compile_cache) == compiled


def test_equal_code_of_two_jobs_is_a_duplicate_unless_copies_are_asked_for(pool, own_compile_cache):
    (_, first), (_, second) = [next(pool.compile([(KNOB, None, copy)], [], DEFAULT_TIMES)) for copy in ("one", "two")]
    assert first["status"] == second["status"] == "ok"
    assert first["code_key"] != second["code_key"]
    ((_, again),) = pool.compile([(KNOB, None, "two")], [second["code_key"]], DEFAULT_TIMES)
    assert again["status"] == "duplicate"


def test_a_graph_that_cannot_be_opened_leaves_its_plans_to_the_measuring_worker(pool):
    graph = softmax_graph()
    pool.open({**request(graph), "ambient": {"threads": 7}})
    assert list(pool.compile([(NATIVE, None, "")], [], DEFAULT_TIMES)) == [(NATIVE, None)]
    pool.open(request(graph))
    ((plan, verdict),) = pool.compile([(NATIVE, None, "")], [], DEFAULT_TIMES)
    assert (plan, verdict["status"]) == (NATIVE, "ok")
    assert pool.seconds > 0


def test_a_pool_that_is_closed_while_it_compiles_leaves_nothing_behind():
    with CompilePool(threads=1, size=1) as pool:
        pool.open(request(softmax_graph()))
        jobs = [(KNOB, None, str(i)) for i in range(50)]
        made = pool.compile(jobs, [], DEFAULT_TIMES)
        next(made)
        guards = [slot._worker.pid for slot in pool._slots]
    assert guards
    assert not any(map(is_running, guards))
