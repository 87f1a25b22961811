"""tuner.enable(): whoever compiles with Inductor is served, as with backend="tuner"; and nobody after tuner.disable()."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch._inductor
import torch._inductor.compile_fx as compile_fx_module
from lowering import lower
from serving import Bench, pointwise_then_sum, realise
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch.fx.experimental.proxy_tensor import make_fx

import tuner
from tuner.compilers.inductor import doors, pinned
from tuner.compilers.inductor.hooks import functorch_config, inductor_config
from tuner.plan import Groups, Plan
from tuner.search_spaces.fusion import no_fusion

ENTRY_POINT = "[torch.backends]\ntuner = tuner.compilers.autoload:main\n"


@pytest.fixture
def enabled() -> Iterator[None]:
    tuner.enable()
    yield
    tuner.disable()


@pytest.fixture
def groups(bench: Bench) -> Groups:
    """Of the stored winner: each leaf for itself."""
    return bench.settle(
        pointwise_then_sum(), Plan(groups=no_fusion(realise(bench.resolve(pointwise_then_sum()).graph, Plan())[1]))
    )


def traced() -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    function, inputs = pointwise_then_sum()
    return make_fx(function)(*inputs), list(inputs)


def served() -> list[tuple[str, str, Groups | None]]:
    return [(graph.outcome, graph.tier, graph.realised) for graph in tuner.report()["served"]]


def check(compiled: Callable[..., Any]) -> None:
    function, inputs = pointwise_then_sum()
    torch.testing.assert_close(tuple(compiled(*inputs)), function(*inputs))


def by_torch_compile() -> None:
    check(torch.compile(pointwise_then_sum()[0], dynamic=False))


def by_compile_fx() -> None:
    check(compile_fx(*traced()))


def by_standalone_compile(aot: bool = False) -> None:
    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        options = {"config_patches": {"trace.enabled": False}}
        return torch._inductor.standalone_compile(gm, list(inputs), dynamic_shapes="from_graph", options=options, aot=aot)

    check(torch.compile(pointwise_then_sum()[0], backend=backend, dynamic=False))


def by_standalone_compile_ahead_of_time() -> None:
    by_standalone_compile(aot=True)


@pytest.mark.slow
@pytest.mark.parametrize("door", [by_torch_compile, by_compile_fx, by_standalone_compile, by_standalone_compile_ahead_of_time])
def test_each_way_of_calling_inductor_is_served(bench: Bench, enabled: None, groups: Groups, door: Callable[[], None]) -> None:
    with torch.no_grad():
        door()
    assert served() == [("served", "exact", groups)]


@pytest.mark.slow
def test_an_inner_step_of_the_callers_runs_and_compiles_under_the_plan(bench: Bench, enabled: None, groups: Groups) -> None:
    keys = []

    def hijacked(*args: Any, **kwargs: Any) -> Any:
        compiled = compile_fx_inner(*args, **kwargs)
        keys.append(compiled._fx_graph_cache_key)
        return compiled

    def compile_with(patches: dict[str, Any]) -> None:
        def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
            return compile_fx(gm, inputs, inner_compile=hijacked, config_patches={"fx_graph_cache": True, **patches})

        bench.new_process()
        with torch.no_grad(), functorch_config.patch(enable_autograd_cache=False):
            check(torch.compile(pointwise_then_sum()[0], backend=backend, dynamic=False))

    compile_with({})
    assert served() == [("served", "exact", groups)]
    compile_with({"size_asserts": False})
    assert served() == [("default", "default", None)], "a setting of the caller's makes another exact match"
    assert len({*keys} - {None}) == 2, "each was to be in Inductor's cache, under a key of its own"


@pytest.mark.slow
def test_an_inner_step_that_leaves_inductor_out_is_not_said_to_be_served(bench: Bench, enabled: None, groups: Groups) -> None:
    def eagerly(gm: torch.fx.GraphModule, *_: Any, **more: Any) -> Any:
        return make_boxed_func(gm.forward)

    with torch.no_grad():
        check(compile_fx(*traced(), inner_compile=eagerly))
    (graph,) = tuner.report()["served"]
    assert (graph.outcome, graph.reason) == ("default", pinned.NOT_INDUCTORS_STEP)


@pytest.mark.slow
def test_enabling_is_idempotent_and_reversible(bench: Bench, groups: Groups) -> None:
    tuner.enable()
    door = compile_fx_module._compile_fx_main
    tuner.enable()
    assert compile_fx_module._compile_fx_main is door
    tuner.disable()
    with torch.no_grad():
        by_torch_compile()
        assert tuner.report() == {"served": [], "counts": {}}
        torch._dynamo.reset()
        check(torch.compile(pointwise_then_sum()[0], backend="tuner", dynamic=False))
    assert served() == [("served", "exact", groups)]


@pytest.mark.slow
def test_a_program_within_a_program_has_a_door_of_its_own(bench: Bench, groups: Groups) -> None:
    def inner(gm: torch.fx.GraphModule, inputs: Sequence[Any], *rest: Any, **more: Any) -> Any:
        with torch.utils._python_dispatch._disable_current_modes():
            by_torch_compile()
        return compile_fx_inner(gm, inputs, *rest, **more)

    with torch.no_grad(), doors.served():
        compile_fx(make_fx(torch.sin)(torch.ones(3)), [torch.ones(3)], inner_compile=inner)
    assert tuner.report()["counts"]["program"] == 1, "only the outer one was to be served"


@pytest.mark.slow
def test_our_own_captures_are_not_served(bench: Bench, enabled: None) -> None:
    bench.resolve(pointwise_then_sum())
    assert tuner.report()["counts"] == {}


def check_untouched(path: str) -> None:
    with zipfile.ZipFile(path) as package:
        names = [name for name in package.namelist() if b"tuner" in package.read(name).lower()]
    assert names == [], "no trace of the look-up was to be in the package"


class Layer(torch.nn.Module):
    """With parameters, which AOTInductor makes constants of."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(64, 64), torch.nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.tanh(self.norm(self.linear(x)))
        return y, torch.softmax(y, -1) + 1


@pytest.mark.slow
def test_parameters_that_aotinductor_binds_make_no_other_graph(bench: Bench, enabled: None, tmp_path: Path) -> None:
    layer, inputs = Layer().eval().requires_grad_(False), (torch.randn(8, 64),)
    with inductor_config.patch(cpp_wrapper=True):
        graph = bench.resolve((layer, inputs)).graph
        cuts = lower(graph, Plan()).sites[:1]
        alone = no_fusion(lower(graph, Plan(cuts=cuts)).groups)
        groups = bench.settle((layer, inputs), Plan(cuts=cuts, groups=alone), groups=alone)
    assert cuts
    with torch.no_grad():
        program = torch.export.export(layer, inputs)
        path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
        assert served() == [("served", "exact", groups)]
        check_untouched(path)
        outputs = torch._inductor.aoti_load_package(path)(*inputs)
        torch.testing.assert_close(tuple(outputs), layer(*inputs))


@pytest.mark.slow
def test_a_package_of_aotinductor_is_compiled_under_the_plan_of_cpp_wrapper(bench: Bench, enabled: None, tmp_path: Path) -> None:
    with inductor_config.patch(cpp_wrapper=True):
        graph = bench.resolve(pointwise_then_sum()).graph
        groups = bench.settle(pointwise_then_sum(), Plan(groups=no_fusion(realise(graph, Plan())[1])))

    function, inputs = pointwise_then_sum()

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return function(x, y)

    with torch.no_grad():
        program = torch.export.export(Module(), inputs)
        path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
        assert served() == [("served", "exact", groups)]
        check(torch._inductor.aoti_load_package(path))
    check_untouched(path)


def module_with(**functions: Any) -> ModuleType:
    module = ModuleType("torch_of_another_day")
    module.__dict__.update(functions)
    return module


def test_a_torch_whose_seam_is_another_is_left_alone() -> None:
    def _compile_fx_main(model: Any, example_inputs: Any) -> None:
        pass

    module = module_with(_compile_fx_main=_compile_fx_main, _compile_fx_inner=compile_fx_module._compile_fx_inner)
    assert doors.install(module) == "torch._inductor.compile_fx._compile_fx_main takes other arguments"
    assert module._compile_fx_main is _compile_fx_main
    assert "is missing" in doors.install(module_with())


def test_a_seam_that_does_not_say_what_it_takes_is_left_alone() -> None:
    class Silent:
        @property
        def __signature__(self) -> None:
            raise ValueError("no signature")

        def __call__(self, *_: Any) -> None:
            pass

    assert "does not say what it takes" in doors.install(module_with(_compile_fx_main=Silent(), _compile_fx_inner=Silent()))


def test_whatever_goes_wrong_with_the_doors_torch_is_imported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(module: ModuleType) -> str:
        raise LookupError("a torch of another day")

    monkeypatch.setattr(doors, "install", broken)
    doors._install_or_warn(module_with())
    assert "this torch is not supported" in caplog.text


def test_arguments_that_the_seam_is_not_known_to_have_are_passed_on(enabled: None) -> None:
    def takes_whatever_comes(*args: Any, **more: Any) -> Any:
        return args, more

    door = doors._program_door(takes_whatever_comes)
    assert door(1, 2, 3, False, "a fifth", also=4) == ((1, 2, 3, False, "a fifth"), {"also": 4})


def test_what_is_in_force_for_a_graph_is_not_for_a_program_within() -> None:
    entered: list[str] = []

    @contextlib.contextmanager
    def enter(gm: Any, kwargs: Mapping[str, Any]) -> Iterator[None]:
        entered.append(f"in force for {gm} with {sorted(kwargs)}")
        yield

    graph = doors._graph_door(lambda *_, **__: [*entered])
    program = doors._program_door(lambda *_: graph())
    with doors.within_inner_step(enter):
        assert program(None, None, None, False) == []
        assert graph("a graph", [], is_inference=True) == ["in force for a graph with ['is_inference']"]


def test_what_cannot_be_served_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        doors._install_or_warn(module_with())
    assert caplog.text.count("this torch is not supported") == 1


def script(text: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A script that knows nothing of us, in an environment where this package is installed."""
    made = folder / "installed" / "made_up_tuner-1.dist-info"
    made.mkdir(parents=True)
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up-tuner\nVersion: 1\n")
    (made / "entry_points.txt").write_text(ENTRY_POINT)
    path = os.pathsep.join([str(made.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    (folder / "script.py").write_text(text)
    command = [sys.executable, str(folder / "script.py")]
    given = {**os.environ, "PYTHONPATH": path, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=given, check=False)


COMPILES = """
import sys, torch
assert "torch._inductor.compile_fx" not in sys.modules, "it was to be loaded by whoever compiles"
f = torch.compile(lambda x: torch.sin(x) + 1, dynamic=False)
with torch.no_grad():
    f(torch.ones(4))
print(sorted(sys.modules["tuner"].report()["counts"].items()) if "tuner" in sys.modules else "no tuner")
"""


@pytest.mark.slow
def test_tuner_inductor_serves_an_unchanged_script(bench: Bench, tmp_path: Path) -> None:
    done = script(COMPILES, tmp_path, TUNER_INDUCTOR="1")
    assert done.stderr == ""
    assert "('program', 1)" in done.stdout


def test_without_the_variable_torch_is_imported_without_us(tmp_path: Path) -> None:
    text = "import sys, torch; print(sorted(m for m in sys.modules if m.split('.')[0] == 'tuner' and 'compilers.' in m))"
    done = script(text, tmp_path, TUNER_INDUCTOR="")
    assert (done.stdout.strip(), done.stderr) == ("['tuner.compilers.autoload']", "")


def test_enabling_loads_no_torch() -> None:
    text = "import sys, tuner; tuner.enable(); tuner.disable(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_who_only_asks_where_a_module_is_does_not_lose_the_hook() -> None:
    text = """
import importlib.util, sys
from tuner.compilers.after_import import after_import
after_import("colorsys", lambda module: print("first", module.rgb_to_hsv is not None))
after_import("colorsys", lambda module: print("second"))
importlib.util.find_spec("colorsys")
import colorsys
after_import("colorsys", lambda module: print("at once"))
print(len([finder for finder in sys.meta_path if type(finder).__name__ == "_AfterImport"]))
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split("\n")[:4] == ["first True", "second", "at once", "0"]
