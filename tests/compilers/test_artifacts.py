"""Artifacts that a caller keeps, as vLLM does: they can be saved whatever became of the plans, under a key that is true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor
from serving import Bench, pointwise_then_sum, realise

import tuner
from tuner.compilers.inductor import pinned
from tuner.plan import Plan
from tuner.search_spaces.fusion import no_fusion

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def enabled() -> Any:
    tuner.enable()
    yield
    tuner.disable()


def alone(bench: Bench) -> Plan:
    return Plan(groups=no_fusion(realise(bench.resolve(pointwise_then_sum()).graph, Plan())[1]))


def kept(bench: Bench, path: Path, function: Callable[..., Any], aot: bool) -> tuple[str, str]:
    """Makes, saves and loads an artifact as in a new process; the outcome of its graph, and the reason."""
    inputs = pointwise_then_sum()[1]

    def backend(gm: torch.fx.GraphModule, given: Sequence[Any]) -> Any:
        made = torch._inductor.standalone_compile(gm, list(given), dynamic_shapes="from_graph", aot=aot)
        made.save(path=str(path))
        return torch._inductor.CompiledArtifact.load(path=str(path))

    bench.new_process()
    with torch.no_grad():
        compiled = torch.compile(function, backend=backend, dynamic=False)
        torch.testing.assert_close(tuple(compiled(*inputs)), function(*inputs))
    (graph,) = tuner.report()["served"]
    return graph.outcome, graph.reason


def stranger(x: torch.Tensor, y: torch.Tensor) -> Any:
    return pointwise_then_sum()[0](x.view(64, 128), y)


@pytest.mark.parametrize("aot", [False, True])
def test_a_plan_that_the_key_does_not_name_is_served_to_the_next_artifact(bench: Bench, tmp_path: Path, aot: bool) -> None:
    bench.settle(pointwise_then_sum(), alone(bench))
    outcome, reason = kept(bench, tmp_path / "first", stranger, aot)
    assert (outcome, "does not name the plan" in reason) == ("default", True)
    assert kept(bench, tmp_path / "second", stranger, aot)[0] == "served"


def test_a_plan_that_cannot_be_realised_leaves_an_artifact_of_the_default(bench: Bench, tmp_path: Path) -> None:
    (first, second, *rest) = alone(bench).groups or ()
    knob = Plan(config=(("realize_opcount_threshold", 1),))
    bench.settle(pointwise_then_sum(), knob, groups=((*first, *second), *rest))
    function = pointwise_then_sum()[0]
    assert kept(bench, tmp_path / "first", function, aot=False) == ("fallback", "not realised")
    assert tuner.report()["counts"]["default: not pinned"] == 1
    assert kept(bench, tmp_path / "second", function, aot=False) == ("fallback", "not realised")


def test_without_the_remedy_such_an_artifact_cannot_be_saved(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinned, "is_kept", lambda: False)
    bench.settle(pointwise_then_sum(), alone(bench))
    with pytest.raises(Exception, match="no aot_autograd artifacts"):
        kept(bench, tmp_path / "first", stranger, aot=False)
