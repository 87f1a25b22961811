"""Under TUNER_RANDOM_PLANS every graph is compiled under a plan drawn at random: right, the same every time, and loud."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from serving import Bench, Example, gelu_of_norm, pointwise_then_sum
from torch._dynamo.utils import counters

import tuner
from tuner.compilers.inductor import random_plans
from tuner.compilers.inductor.random_plans import Dealt
from tuner.errors import RandomPlanFailed, find_cause


@pytest.fixture
def drawn(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Callable[[Example, int], tuple[Any, list[Any]]]:
    """What an example returns when compiled under the plans of a seed, as in a new process, and what was drawn."""

    def run(example: Example, seed: int, **options: Any) -> tuple[Any, list[Any]]:
        monkeypatch.setenv("TUNER_RANDOM_PLANS", str(seed))
        outputs, report = bench.run(example, **options)
        return outputs, report["served"]

    return run


def close(found: Any, wanted: Any) -> None:
    for one, other in zip(*map(torch.utils._pytree.tree_leaves, (found, wanted)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [pointwise_then_sum, gelu_of_norm])
def test_other_seeds_give_other_plans_and_the_same_outputs(drawn: Any, make: Callable[[], Example]) -> None:
    function, inputs = make()
    wanted, told = function(*inputs), set()
    for seed in range(3):
        outputs, served = drawn((function, inputs), seed)
        close(outputs, wanted)
        assert [one.outcome for one in served] == ["random"]
        told.add(served[0].reason)
    assert len(told) == 3


def test_the_same_seed_gives_the_same_plan_and_the_caches_keep_it(drawn: Any) -> None:
    example = gelu_of_norm()
    ((first, told), (second, again)) = (drawn(example, 3) for _ in range(2))
    assert len(told) == 1
    assert again == []
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1
    assert torch.equal(first, second)
    with torch._functorch.config.patch(enable_autograd_cache=False), torch._inductor.config.patch(fx_graph_cache=False):
        (anew,) = drawn(example, 3)[1]
    assert (anew.reason, anew.realised) == (told[0].reason, told[0].realised)


def test_another_seed_is_no_stale_hit(drawn: Any) -> None:
    example = gelu_of_norm()
    assert len(drawn(example, 3)[1]) == 1
    assert len(drawn(example, 4)[1]) == 1


@pytest.mark.parametrize("seed", range(3))
def test_a_training_step_has_right_gradients(bench: Bench, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setenv("TUNER_RANDOM_PLANS", str(seed))
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Dropout(0.0))
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    gradients = []
    for called in (model, torch.compile(model, backend="tuner")):
        called(x).square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
        model.zero_grad()
    close(*gradients)
    assert [one.outcome for one in tuner.report()["served"]] == ["random", "random"]


def test_a_graph_that_has_no_key_gets_a_plan_all_the_same(drawn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise random_plans.UnsupportedGraph("opaque", "no key")

    monkeypatch.setattr(random_plans, "form_of", refuse)
    function, inputs = pointwise_then_sum()
    outputs, served = drawn((function, inputs), 5)
    close(outputs, function(*inputs))
    assert [one.outcome for one in served] == ["random"]


@pytest.mark.parametrize("setting", [("TUNER_RANDOM_PLANS", "4"), ("TUNER_READ_BACK", "1")], ids=lambda setting: setting[0])
def test_where_dynamo_is_told_to_trace_again_it_does(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, setting: tuple[str, str]
) -> None:
    """A float that cannot stay a symbol is found while the back end compiles, which is no failure."""

    def function(x: torch.Tensor, scale: float) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (16,), eps=scale) + 1

    monkeypatch.setenv(*setting)
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        close(torch.compile(function, backend="tuner", dynamic=True)(x, 0.25), function(x, 0.25))
    counts = tuner.report()["counts"]
    assert counts["program"] == 2, "or nothing was traced again"
    assert not [outcome for outcome in counts if "error" in outcome or "failed" in outcome]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_plan_that_fails_is_an_error_that_says_how_to_see_it_again(
    drawn: Any, monkeypatch: pytest.MonkeyPatch, dynamic: bool
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("drawn badly")

    monkeypatch.setattr(random_plans, "_drawn", broken)
    with pytest.raises(Exception, match="drawn badly") as caught:
        drawn(pointwise_then_sum(), 77, dynamic=dynamic)
    assert find_cause(caught.value, RandomPlanFailed)
    assert "TUNER_RANDOM_PLANS=77" in str(caught.value)
    assert tuner.report()["counts"]["random plan failed"] == 1


def test_an_error_that_the_default_has_too_stays_the_users(drawn: Any) -> None:
    def unsupported(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.add.Tensor(x, x).view(3, 3)

    with pytest.raises(Exception, match=r"shape|size|view") as caught:
        drawn((unsupported, (torch.randn(4, 4),)), 1)
    assert not find_cause(caught.value, RandomPlanFailed)


def test_where_tuner_is_switched_off_nothing_is_drawn(drawn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_DISABLE", "1")
    assert drawn(gelu_of_norm(), 3)[1] == []


def test_a_leaf_is_dealt_into_the_same_group_every_time() -> None:
    leaves = [f"{i}:16x16|:ComputedBuffer.Pointwise:0" for i in range(40)]
    deal = Dealt("a", 3)
    assert {deal(leaf) for leaf in leaves} == {0, 1, 2}
    assert [deal(leaf) for leaf in leaves] == [Dealt("a", 3)(leaf) for leaf in leaves]
    assert [deal(leaf) for leaf in leaves] != [Dealt("b", 3)(leaf) for leaf in leaves]
    assert {Dealt("a", 1)(leaf) for leaf in leaves} == {0}
