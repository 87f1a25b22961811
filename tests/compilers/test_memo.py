"""Programs of which the store has no record, and what is remembered of their graphs beside the compile caches."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from serving import Bench, Example, gelu_of_norm, pointwise_then_sum, realise
from steps import used_codes
from torch._dynamo.utils import counters
from torch._inductor.runtime.runtime_utils import cache_dir

from tuner.compilers.inductor import memo, pinned
from tuner.compilers.inductor.hooks import dynamo_config, inductor_config
from tuner.plan import Plan
from tuner.search_spaces.fusion import no_fusion

pytestmark = pytest.mark.slow
KEY, OTHER = "a" * 64, "b" * 64


def stranger() -> Example:
    """Another program with the graph of `pointwise_then_sum`."""
    function, inputs = pointwise_then_sum()
    return (lambda x, y: function(x.view(64, 128), y)), inputs


def settle_known(bench: Bench, plan: Plan | None = None) -> Plan:
    """A winner for the graph, by a sweep of the program that is not the stranger."""
    plan = plan or Plan(groups=no_fusion(realise(bench.resolve(pointwise_then_sum()).graph, Plan())[1]))
    bench.settle(pointwise_then_sum(), plan)
    return plan


def test_autograd_hit_a_new_winner_reaches_a_program_without_a_record(bench: Bench) -> None:
    bench.settle(gelu_of_norm(), Plan())
    assert [graph.outcome for graph in bench.run(stranger())[1]["served"]] == ["default"]
    (warm,) = bench.run(stranger())[1]["served"]
    assert (warm.outcome, len(warm.workload_key)) == ("default from cache", 64)
    plan = settle_known(bench)
    (served,) = bench.run(stranger())[1]["served"]
    assert (served.outcome, served.realised) == ("served", plan.groups)
    (warm,) = bench.run(stranger())[1]["served"]
    assert (warm.outcome, warm.winner) == ("served from cache", "plan")


def test_autograd_hit_without_the_memo(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "remembered", lambda exact_key: ())
    monkeypatch.setattr(pinned.Pinned, "_may_be_nameless", lambda self: False)
    bench.settle(gelu_of_norm(), Plan())
    bench.run(stranger())
    settle_known(bench)
    (warm,) = bench.run(stranger())[1]["served"]
    assert (warm.outcome, warm.workload_key) == ("default from cache", ""), "the new winner is not asked for"


def test_autograd_hit_what_inductor_alone_has_compiled_is_asked_for_once(bench: Bench) -> None:
    function, inputs = stranger()
    with torch.no_grad():
        torch.compile(function, backend="inductor")(*inputs)
    bench.settle(gelu_of_norm(), Plan())
    assert [graph.outcome for graph in bench.run(stranger())[1]["served"]] == ["default"]
    assert counters["inductor"]["fxgraph_cache_miss"] == 0, "nothing is compiled anew"
    (warm,) = bench.run(stranger())[1]["served"]
    assert (warm.outcome, len(warm.workload_key)) == ("default from cache", 64)
    plan = settle_known(bench)
    (served,) = bench.run(stranger())[1]["served"]
    assert (served.outcome, served.realised) == ("served", plan.groups)


def test_poisoned_key_where_everything_is_bundled_an_untagged_program_has_no_plan(bench: Bench) -> None:
    with dynamo_config.patch(caching_precompile=True):
        bench.run(stranger())
        (Path(cache_dir()) / "tuner").rename(Path(cache_dir()) / "kept aside")
        settle_known(bench)
        (Path(cache_dir()) / "aotautograd").rename(Path(cache_dir()) / "old")
        (graph,) = bench.run(stranger())[1]["served"]
        assert (graph.outcome, "does not name the plan" in graph.reason) == ("default", True)
        assert bench.run(stranger())[1]["served"][0].outcome == "served", "now the key names it"


@pytest.mark.parametrize("remedy", [True, False], ids=["with the remedy", "without the remedy"])
def test_poisoned_key_a_plan_met_by_an_untagged_program_is_not_saved_for_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, remedy: bool
) -> None:
    if not remedy:
        monkeypatch.setattr(pinned, "_unsaved", lambda compiled: compiled)
    with used_codes() as default:
        bench.run(stranger())
    (Path(cache_dir()) / "tuner").rename(Path(cache_dir()) / "kept aside")
    plan = settle_known(bench)
    with used_codes() as planned:
        for folder in ("aotautograd", "fxgraph"):
            (Path(cache_dir()) / folder).rename(Path(cache_dir()) / f"old {folder}")
        (served,) = bench.run(stranger())[1]["served"]
    assert (served.outcome, served.realised) == ("served", plan.groups)
    assert counters["aot_autograd"]["autograd_cache_saved"] == (0 if remedy else 1)
    # A process that is told of no plan has the default.
    bench.store.unlink()
    with used_codes() as codes:
        bench.run(stranger())
    assert codes == (default if remedy else planned)
    assert default != planned


def test_native_ops_are_served_to_a_program_that_is_remembered(bench: Bench) -> None:
    function, inputs = gelu_of_norm()
    example = (lambda x: function(x.view(32, 128))), inputs
    bench.settle(pointwise_then_sum(), Plan())
    bench.run(example)
    bench.settle(gelu_of_norm(), Plan(native=("aten.gelu.default",)))
    (served,) = bench.run(example)[1]["served"]
    assert (served.outcome, served.winner) == ("served", "plan")


def test_what_is_remembered_comes_back(bench: Bench) -> None:
    memo.remember(KEY, [OTHER, KEY])
    assert memo.remembered(KEY) == (OTHER, KEY)
    assert memo.remembered(OTHER) == ()
    memo.remember(KEY, [OTHER])
    assert memo.remembered(KEY) == (OTHER, KEY), "so far nothing else is known"
    memo.remember(KEY, [KEY])
    assert memo.remembered(KEY) == (KEY,)
    assert os.listdir(Path(cache_dir()) / "tuner") == [f"{KEY}.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "[" * 50_000,
        json.dumps({"schema": 1, "graphs": [3]}),
        json.dumps({"schema": 1, "graphs": ["../../etc/passwd"]}),
        json.dumps({"schema": 1, "graphs": {KEY: 1}}),
        json.dumps({"schema": 2, "graphs": [KEY]}),
        json.dumps({"schema": 1, "graphs": [KEY] * 1000}),
    ],
)
def test_a_memo_that_does_not_validate_says_nothing(bench: Bench, text: str) -> None:
    memo.remember(KEY, [OTHER])
    (Path(cache_dir()) / "tuner" / f"{KEY}.json").write_text(text)
    assert memo.remembered(KEY) == ()


def test_without_caches_nothing_is_remembered(bench: Bench) -> None:
    with inductor_config.patch(force_disable_caches=True):
        memo.remember(KEY, [OTHER])
    assert memo.remembered(KEY) == ()
    (Path(cache_dir()) / "tuner").write_text("no folder")
    memo.remember(KEY, [OTHER])
    assert memo.remembered(KEY) == ()
