"""mode=, options= and dynamic= of torch.compile mean to backend="tuner" what they mean to Inductor."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._inductor.compile_fx as compile_fx_module
from serving import Bench, pointwise_then_sum, realise
from torch._inductor import list_mode_options

import tuner
from tuner.compilers import dynamo
from tuner.compilers.inductor.hooks import functorch_config, inductor_config
from tuner.compilers.inductor.options import compile_options
from tuner.errors import UsageError
from tuner.plan import Plan

KNOB = ("realize_reads_threshold", 2)
GIVEN: list[dict[str, Any]] = [
    {},
    *({"mode": mode} for mode in list_mode_options()),
    {"options": {"epilogue_fusion": False, "cpp.threads": 1}},
    {"options": {"triton.cudagraphs": True, "max-autotune": True}},
    {"options": {"cpp_wrapper": True}},
    {"options": {"keep_output_stride": False}, "dynamic": False},
]


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The whole portable config that each graph is compiled under, in order, with its phase; nothing is compiled."""
    seen: list[Any] = []

    def record(gm: torch.fx.GraphModule, example_inputs: Any, *_: Any, **kwargs: Any) -> Any:
        config = inductor_config.save_config_portable(ignore_private_configs=False)
        seen.append((bool(kwargs.get("is_backward")), config))

        def run(inputs: list[Any]) -> Any:
            return gm.forward(*inputs)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    monkeypatch.setattr(compile_fx_module, "_compile_fx_inner", record)
    with functorch_config.patch(enable_autograd_cache=False):
        yield seen


@pytest.mark.slow
@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_every_graph_is_compiled_under_the_config_that_inductor_gives_it(
    bench: Bench, configs: list[Any], given: dict[str, Any]
) -> None:
    for backend in ("inductor", "tuner"):
        torch._dynamo.reset()
        x = torch.randn(4, 8, requires_grad=True)
        torch.compile(lambda x: torch.tanh(x).sum(), backend=backend, **given)(x).backward()
    assert [backward for backward, _ in configs] == [False, True] * 2
    assert configs[2:] == configs[:2]
    assert tuner.report()["counts"]["program"] == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [({"mode": "fastest"}, "Unrecognized mode=fastest"), ({"options": {"no_such_option": 1}}, "no_such_option"),
     ({"options": {"max_autotune": "yes"}}, "Unexpected type of attr max_autotune")],
)  # fmt: skip
def test_a_wrong_mode_or_option_fails_where_torch_compile_is_called(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        torch.compile(torch.sin, backend="tuner", **given)


@pytest.mark.slow
def test_it_fails_there_also_as_the_first_call_of_a_process_and_not_for_long() -> None:
    text = """
import torch
try:
    torch.compile(torch.sin, backend="tuner", mode="fastest")
except RuntimeError as error:
    print(str(error)[:22])
torch.compile(torch.sin, backend="tuner", mode="reduce-overhead")
torch.compile(torch.sin, backend="eager", mode="fastest")
try:
    torch.compile(torch.sin, backend="tuner", options={"no_such_option": 1})
except RuntimeError as error:
    print("no_such_option" in str(error))
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("Unrecognized mode=fast\nTrue\n", "")


@pytest.mark.slow
def test_a_reset_of_the_compiler_drops_cuda_graphs_where_there_may_be_some(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    drops = []
    monkeypatch.setattr("torch._inductor.cudagraph_trees.reset_cudagraph_trees", lambda: drops.append(1))
    for mode in ("default", "reduce-overhead"):
        with torch.no_grad():
            torch.compile(lambda x: x + 1, backend="tuner", mode=mode)(torch.ones(2))
        dynamo.reset()
        assert len(drops) == (mode == "reduce-overhead")
    dynamo.reset()
    assert len(drops) == 1
    with inductor_config.patch({"triton.cudagraphs": True}), torch.no_grad():
        torch.compile(lambda x: x + 1, backend="tuner")(torch.ones(2))
    dynamo.reset()
    assert len(drops) == 2, "also where they were asked for in no option"


@pytest.mark.slow
def test_an_option_that_the_user_has_set_outranks_a_plan_even_to_the_defaults_value(bench: Bench) -> None:
    example, plan = pointwise_then_sum(), Plan(config=(KNOB,))
    bench.settle(example, plan)
    name, _ = KNOB
    default = getattr(inductor_config, name)
    (graph,) = bench.run(example)[1]["served"]
    assert graph.outcome == "served"
    (graph,) = bench.run(example, options={name: default})[1]["served"]
    assert (graph.outcome, graph.reason) == ("default", f"option set by the user: {name}")
    with inductor_config.patch({name: 3}):
        assert bench.run(example)[1]["served"][0].outcome == "default"


def test_settings_for_a_sweep_are_those_of_torch_compile() -> None:
    with compile_options(None, ["cpp_wrapper=true", "epilogue-fusion=false", "cpp.simdlen=256"]):
        assert (inductor_config.cpp_wrapper, inductor_config.epilogue_fusion, inductor_config.cpp.simdlen) == (True, False, 256)
    with compile_options("max-autotune-no-cudagraphs", []):
        assert inductor_config.max_autotune
    assert not inductor_config.cpp_wrapper


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [("fastest", [], "Unrecognized mode"), (None, ["nothing=1"], "Unexpected optimization option nothing$"),
     (None, ["max_autotune"], "NAME=VALUE"), ("default", ["max_autotune=true"], "not both")],
)  # fmt: skip
def test_a_wrong_setting_for_a_sweep_is_told_in_a_line(mode: str | None, options: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message), compile_options(mode, options):
        pass


@pytest.mark.slow
def test_cpp_wrapper_makes_the_kernels_that_were_measured_without_a_torch_compile(bench: Bench) -> None:
    with compile_options(None, ["cpp_wrapper=true"]):
        graph = bench.resolve(pointwise_then_sum()).graph
        _, groups, _ = realise(graph, Plan())
        bench.settle(pointwise_then_sum(), Plan(config=(("realize_opcount_threshold", 1),)))
    outputs, report = bench.run(pointwise_then_sum(), options={"cpp_wrapper": True})
    (served,) = report["served"]
    assert (served.outcome, served.tier) == ("served", "exact")
    assert served.realised != groups
    function, inputs = pointwise_then_sum()
    torch.testing.assert_close(outputs, function(*inputs))
