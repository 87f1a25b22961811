"""Keys are stable: they name fields, leave out defaults, and change exactly when something that counts does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
import torch._inductor.config as inductor_config
from stored import AMBIENT, TARGET, TOOLCHAIN, query

from tuner.canonical import canonical_json, differing_fields, digest, named_fields
from tuner.compilers.inductor.ambient import ambient, cpu_target, cpu_toolchain
from tuner.errors import UnsupportedGraph
from tuner.measurement import Policy
from tuner.plan import Plan
from tuner.target import Query, Target


def test_the_key_of_known_fields_is_the_one_that_stores_hold():
    # A change here makes every stored row unreachable: raise KEY_SCHEMA on purpose, not by accident.
    assert digest("target", {"arch": "sm_90", "cores": 132}) == "9ac06a8e18bfe4bf7e3123eace879cc63cbdfe36e933bafa8394c6fc3a34377d"
    assert query().exact_key == "39c132717b2d8149d266d85c5233cfd907dd44752dbd7711fbc4ed714e0b7f54"
    assert Plan().key == "b40351f314360d9888cae40e60834e20608ba6bc16cd09a8a7ec8971e7f01573"
    assert Policy("thread", threads=1).key == "1cca5f329a23211d1de6fd7878a59be5c5921c7343bf53911c4e1474fcb701bd"


def test_fields_left_at_their_default_are_not_in_a_key():
    key = digest("target", {"arch": "sm_90"})
    for default in (None, "", (), [], {}):
        assert digest("target", {"arch": "sm_90", "new": default}) == key
    assert named_fields({"a": None, "b": "", "c": [], "d": {}, "e": ()}) == {}


@pytest.mark.parametrize("value", [0, 0.0, False, [0], [None], "0", {"a": None}])
def test_values_that_are_false_but_no_default_are_in_a_key(value):
    assert digest("target", {"new": value}) != digest("target", {})


def test_the_kind_is_in_a_key():
    assert digest("target", {"a": 1}) != digest("toolchain", {"a": 1})


def test_the_order_of_fields_is_not_in_a_key():
    assert digest("x", {"a": 1, "b": {"c": 2, "d": 3}}) == digest("x", {"b": {"d": 3, "c": 2}, "a": 1})


def test_neighbouring_values_do_not_run_together():
    assert (
        len(
            {digest("x", fields) for fields in ({"a": "bc"}, {"ab": "c"}, {"a": ["b", "c"]}, {"a": ["bc"]}, {"a": 1}, {"a": "1"})}
        )
        == 6
    )


def test_what_json_cannot_hold_has_no_key():
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON"):
            canonical_json({"a": value})
    with pytest.raises(TypeError):
        canonical_json({"a": {1, 2}})


def test_differing_fields_names_nested_ones_with_both_values():
    asked = {"ambient": {"threads": 2, "inductor": {"max_fusion_size": 8}}, "target": {"arch": "avx2"}}
    stored = {"ambient": {"threads": 1, "inductor": {"max_fusion_size": 64, "cpp.simdlen": 8}}, "target": {"arch": "avx2"}}
    assert differing_fields(asked, stored) == [
        "ambient.inductor.cpp.simdlen (stored 8, asked None)",
        "ambient.inductor.max_fusion_size (stored 64, asked 8)",
        "ambient.threads (stored 1, asked 2)",
    ]


def test_equal_fields_do_not_differ():
    assert differing_fields(query().fields(), query().fields()) == []
    assert differing_fields({"a": None}, {}) == []


def test_a_field_that_one_side_lacks_differs():
    assert differing_fields({"ambient": {"x": 1}}, {}) == ["ambient (stored None, asked {'x': 1})"]


@pytest.mark.parametrize("part", ["target", "toolchain", "ambient"])
def test_every_part_of_a_query_is_in_its_exact_key(part):
    changed = query(**{part: {**getattr(query(), part), "new": 1}})
    assert changed.exact_key != query().exact_key
    assert differing_fields(changed.fields(), query().fields()) == [f"{part}.new (stored None, asked 1)"]


def test_workload_and_kind_are_in_the_exact_key():
    assert query("a").exact_key != query("b").exact_key
    assert Query("program", query().workload_key, TARGET, TOOLCHAIN, AMBIENT).exact_key != query().exact_key


def test_a_new_field_at_its_default_leaves_stored_winners_reachable():
    newer = query(ambient={**AMBIENT, "precision": None, "inductor": {}})
    assert newer.exact_key == query().exact_key
    assert newer.fields() == query().fields()


def test_a_query_comes_back_from_json_with_the_same_key():
    assert Query.from_json(query().to_json()).exact_key == query().exact_key
    for broken in ({}, {**query().to_json(), "target": None}, {**query().to_json(), "kind": 1}):
        with pytest.raises(ValueError, match="query"):
            Query.from_json(broken)


def test_a_target_is_named_by_what_users_know():
    assert Target("cpu", "x86_64-avx2", "made up", 2).name == "cpu/x86_64-avx2/2"
    assert Target("cuda", "sm_90", "h100-sxm", 132).name == "cuda/sm_90/h100-sxm"


def test_every_field_of_a_policy_is_in_its_key():
    policies = [
        Policy("wall", 1),
        Policy("thread", 1),
        Policy("wall", 2),
        Policy("wall", 1, mode="cuda_graph"),
        Policy("wall", 1, cache="cold"),
        Policy("wall", 1, statistic="mean"),
        Policy("wall", 1, warm_up="stable"),
        Policy("wall", 1, sample_ms=2.0),
        Policy("wall", 1, sample_ms=0.0),
        Policy("wall", 1, sizes=((1,), (8,))),
        Policy("wall", 1, sizes=((8,), (1,))),
        Policy("wall", 1, sizes=((1, 8),)),
    ]
    assert len({policy.key for policy in policies}) == len(policies)
    assert Policy("wall", 1).key == Policy(clock="wall", threads=1).key


def test_what_the_first_version_stored_of_a_policy_is_still_one():
    stored = {"clock": "thread", "threads": 1, "mode": "eager", "cache": "warm", "statistic": "median"}
    assert Policy(**stored).key == Policy("thread", 1).key
    assert Policy(**stored).describe() == "median of interleaved samples, thread clock, 1 thread, warm cache, eager"
    now = Policy.for_cpu(1)
    assert Policy(**now.fields()) == now
    assert now.describe().endswith(", eager, samples of 2 ms, warmed up until stable")
    assert "cold cache, eager, samples of one call," in Policy.for_cpu(1, cache="cold").describe()
    assert "cuda_event clock, 1 thread, cold cache, cuda_graph," in Policy.for_cuda("cuda_graph", "cold").describe()


def test_a_policy_with_sizes_comes_back_from_json_and_one_without_has_no_word_of_them():
    policy = Policy("wall", 1, sizes=((1, 8), (64, 8)))
    assert Policy(**json.loads(json.dumps(policy.fields()))) == policy
    assert policy.size_count == 2
    assert policy.describe().endswith("at s0=1, s1=8; s0=64, s1=8")
    assert "sizes" not in Policy("wall", 1).fields()
    assert Policy("wall", 1).size_count == 1


def test_one_thread_is_timed_by_its_own_clock_and_several_by_the_wall():
    assert (Policy.for_cpu(1).clock, Policy.for_cpu(2).clock) == ("thread", "wall")


def test_every_field_of_a_plan_is_in_its_key():
    leaf = "1:4:Extern:0"
    plans = [
        Plan(),
        Plan(compiler="eager"),
        Plan(native=("aten.gelu.default",)),
        Plan(config=(("realize_reads_threshold", 2),)),
        Plan(config=(("realize_reads_threshold", 3),)),
        Plan(cuts=("a",)),
        Plan(kernels=("a",)),
        Plan(groups=((leaf,),)),
    ]
    assert len({plan.key for plan in plans}) == len(plans)


def asked_here() -> Query:
    return Query("graph", "ab" * 32, cpu_target().fields(), cpu_toolchain(), ambient())


def differences() -> Iterator[str]:
    """What a look-up under the present settings would say of the winner that was stored under those of a moment ago."""
    before = asked_here()
    yield ""
    now = asked_here()
    found = differing_fields(now.fields(), before.fields())
    assert (now.exact_key == before.exact_key) == (not found), "the key changes where a field does, and only there"
    yield "; ".join(found)


@pytest.fixture
def difference() -> Iterator[object]:
    both = differences()
    next(both)
    return lambda: next(both)


def test_the_same_settings_ask_for_the_same_key(difference):
    assert difference() == ""


def test_the_number_of_threads_is_in_the_exact_key(difference):
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert difference() == f"ambient.threads (stored {threads}, asked {threads + 1})"
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_fusion_size", 7),
        ("cpp.simdlen", 0),
        ("cpp.threads", 1),
        ("realize_reads_threshold", 5),
        ("freezing", True),
        ("cpp_wrapper", True),
        ("fallback_random", True),
        ("triton.cudagraphs", True),
        ("size_asserts", False),
    ],
)
def test_a_changed_inductor_setting_is_in_the_exact_key(difference, name, value):
    with inductor_config.patch({name: value}):
        assert "ambient.inductor" in difference()


def test_the_changed_setting_is_named(difference):
    with inductor_config.patch(max_fusion_size=7):
        assert "{'max_fusion_size': 7}" in difference()


def test_a_variable_that_inductor_reads_when_it_is_imported_is_in_the_exact_key(difference, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    assert "TORCHINDUCTOR_MAX_AUTOTUNE" in difference()


def test_the_vector_instructions_that_aten_is_held_to_are_in_the_exact_key(difference, monkeypatch):
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert "ATEN_CPU_CAPABILITY" in difference()


def test_deterministic_algorithms_are_in_the_exact_key(difference):
    torch.use_deterministic_algorithms(True)
    try:
        assert "ambient.deterministic" in difference()
    finally:
        torch.use_deterministic_algorithms(False)


def test_matmul_precision_is_in_the_exact_key(difference):
    torch.set_float32_matmul_precision("high")
    try:
        assert "ambient.matmul_precision" in difference()
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(
    "name", ["TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_COMPILE_THREADS", "HOME", "TUNER_STORE"]
)
def test_where_caches_lie_and_how_many_compile_is_not_in_the_exact_key(difference, monkeypatch, name):
    monkeypatch.setenv(name, "/tmp/elsewhere")
    assert difference() == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [("compile_threads", 3), ("fx_graph_cache", False), ("force_disable_caches", True), ("trace.enabled", True)],
)
def test_settings_that_do_not_change_the_code_are_not_in_the_exact_key(difference, name, value):
    with inductor_config.patch({name: value}):
        assert difference() == ""


def test_a_pass_of_the_users_is_in_the_exact_key_by_its_uuid(difference):
    class Pass:
        def __call__(self, graph):
            pass

        def uuid(self):
            return "a pass, version 3"

    with inductor_config.patch(post_grad_custom_post_pass=Pass()):
        assert "a pass, version 3" in difference()


def test_a_pass_of_the_users_that_has_no_uuid_cannot_be_keyed():
    with (
        inductor_config.patch(post_grad_custom_post_pass=lambda graph: None),
        pytest.raises(UnsupportedGraph, match="post_grad_custom_post_pass"),
    ):
        ambient()


def test_a_process_that_changed_nothing_has_no_changed_settings():
    lines = (
        "import torch, torch._inductor.config; from tuner.compilers.inductor.ambient import ambient; print(ambient()['inductor'])"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH", "INDUCTOR"))}
    printed = subprocess.run([sys.executable, "-c", lines], env=environment, capture_output=True, text=True, check=True, cwd="/")
    assert printed.stdout.strip() == "{}"
