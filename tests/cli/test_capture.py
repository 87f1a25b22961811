"""`tuner capture`: scripts are run unchanged, and what they compile is kept, whatever becomes of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from stored import settled

from tuner.cache.sqlite import SqliteStore
from tuner.cli.main import main
from tuner.target import Query

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

NORM = """
import torch
torch.set_num_threads(1)
norm = torch.nn.LayerNorm(64).eval()
def function(tokens, x):
    return torch.nn.functional.gelu(norm(x)) + tokens
"""


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Result, dict[str, Any]]]:
    """Runs the command on a script, or on another command; gives the result and its JSON."""
    # The entry points as pyproject.toml has them, in force without installing anything.
    folder = tmp_path / "entries" / "fusion_tuner-0.dist-info"
    folder.mkdir(parents=True)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [line for group, names in declared.items() for line in (f"[{group}]", *(f"{a} = {b}" for a, b in names.items()))]
    (folder / "entry_points.txt").write_text("\n".join(lines))
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: fusion-tuner\nVersion: 0\n")
    monkeypatch.setenv("PYTHONPATH", f"{folder.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("TUNER_STORE", str(tmp_path / "store.db"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))

    def run(script: str | tuple[str, ...], *options: str) -> tuple[Result, dict[str, Any]]:
        if isinstance(script, str):
            (tmp_path / "script.py").write_text(script)
            script = (sys.executable, str(tmp_path / "script.py"))
        result = CliRunner().invoke(main, ["capture", "--json", *options, "--", *script])
        return result, json.loads(result.stdout) if result.stdout else {}

    return run


def graphs(told: dict[str, Any]) -> list[dict[str, Any]]:
    return [graph for program in told["programs"] for graph in program["graphs"]]


def test_every_program_of_a_script_is_kept_whatever_back_end_it_names_and_without_cpp(capture, tmp_path):
    script = (
        NORM
        + """
import subprocess, sys
with torch.no_grad():
    compiled = torch.compile(function, backend="aot_eager", dynamic=False)
    for high in (10, 1000):
        compiled(torch.randint(0, high, (8, 1)), torch.randn(8, 64))
    compiled(torch.randint(0, 5, (4, 1)), torch.randn(4, 64))
    varying = torch.compile(lambda x: x.exp() + 1, dynamic=True)
    for rows in (5, 7, 7):
        varying(torch.randn(rows, 8))
    torch.compile(lambda x: x.softmax(-1), backend=lambda gm, inputs: gm.forward)(torch.randn(4, 8))
    torch.compile(lambda x: x.cumsum(-1) * 2, mode="max-autotune-no-cudagraphs")(torch.randn(4, 8))
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "child"], check=True)
"""
    )
    result, told = capture(script)
    assert result.exit_code == 0, result.stderr
    assert told["processes"] == 2
    assert [len(program["graphs"]) for program in told["programs"]] == [1, 1, 1, 1, 1]
    # both processes called it, the first shape twice
    assert [graph["calls"] for graph in graphs(told)] == [4, 2, 6, 2, 2]
    seen = [(sorted(at["sizes"]), at["calls"]) for at in graphs(told)[2]["sizes"]]
    assert seen == [([5, 8], 2), ([7, 8], 4)]
    assert told["programs"][0]["ambient"]["threads"] == 1
    assert "max_autotune" in told["programs"][4]["ambient"]["inductor"]
    assert not list((tmp_path / "inductor").rglob("*.so"))
    with SqliteStore(tmp_path / "store.db", read_only=True) as store:
        form = store.graph(graphs(told)[0]["workload_key"])
        assert form is not None
        tokens = next(row for node, row in zip(form["nodes"], form["data"], strict=False) if node[4][0] == "int64")
        assert tokens[1] > 100, "the range of integers is that of all calls"


TRAINED = """
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
# Inductor lays out what convolutions yield in another way than they were traced with.
net = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(2),
    torch.nn.Conv2d(8, 8, 3),
    torch.nn.ReLU(),
    torch.nn.Flatten(),
    torch.nn.Linear(32, 16),
)
x = torch.randn(4, 3, 8, 8)
"""
STEPS = """
def gradients(call):
    call(x).square().mean().backward()
    found = [parameter.grad for parameter in net.parameters()]
    net.zero_grad()
    return found
compiled = torch.compile(net, backend="aot_eager")
for _ in range(3):
    for one, other in zip(gradients(compiled), gradients(net), strict=True):
        torch.testing.assert_close(one, other)
"""


def test_a_training_step_is_kept_as_the_graphs_that_a_sweep_of_it_tunes(capture, tmp_path):
    from tuner.compilers.inductor.capture import capture as capture_callable

    result, told = capture(TRAINED + STEPS)
    assert result.exit_code == 0, result.stderr
    (program,) = told["programs"]
    assert [(graph["phase"], graph["calls"]) for graph in program["graphs"]] == [("forward", 3), ("backward", 3)]
    namespace: dict[str, Any] = {}
    exec(TRAINED, namespace)
    (swept,) = capture_callable(namespace["net"], [namespace["x"]], phase="training")
    assert program["program_key"] == swept.key
    assert [graph["workload_key"] for graph in program["graphs"]] == [graph.key for graph in swept.graphs]


SERVED = (
    NORM
    + """
import json, sys, tuner
# whose import is what loads Inductor
import tuner.compilers.inductor.ambient
x = torch.randint(0, 9, (8, 1)), torch.randn(8, 64)
with torch.no_grad():
    torch.compile(function, backend="tuner", options={"max_fusion_size": 8})(*x)
print(json.dumps([[one.workload_key, one.tier, one.outcome] for one in tuner.report()["served"]]), file=sys.stderr)
"""
)


def test_the_unchanged_script_is_an_exact_hit_for_what_was_captured(capture, tmp_path):
    from tuner.compilers.inductor.ambient import cpu_target, cpu_toolchain

    result, told = capture(SERVED)
    assert result.exit_code == 0, result.stderr
    (captured,) = told["programs"]
    (graph,) = captured["graphs"]
    assert captured["ambient"]["inductor"] == {"max_fusion_size": 8}
    asked = Query("graph", graph["workload_key"], cpu_target().fields(), cpu_toolchain(), captured["ambient"])
    with SqliteStore(tmp_path / "store.db") as store:
        assert [made.graph_exact_key for made in store.programs_of(asked.workload_key)] == [asked.exact_key]
        store.record_winner(settled(asked))
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=True)
    assert json.loads(done.stderr.splitlines()[-1]) == [[graph["workload_key"], "exact", "default"]]


def test_what_a_script_and_its_forks_had_compiled_is_kept_though_they_are_killed(capture, tmp_path):
    script = (
        NORM
        + """
import os, signal
compiled, inputs = torch.compile(function), (torch.zeros(8, 1, dtype=torch.int64), torch.randn(8, 64))
with torch.no_grad():
    compiled(*inputs)
    if os.fork() == 0:
        compiled(*inputs)
        os._exit(0)
    os.wait()
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    result, told = capture(script)
    assert result.exit_code == 1
    assert "was ended by signal 9; what it had compiled is kept: 1 program" in result.stderr
    assert [graph["calls"] for graph in graphs(told)] == [2], "one call of each process"
    with SqliteStore(tmp_path / "store.db", read_only=True) as store:
        assert store.counts()["programs"] == 1


def test_a_script_that_compiles_nothing_is_told_so(capture):
    result, _ = capture("import torch\ntorch.ones(3).sum()\n")
    assert result.exit_code == 3
    assert "called no function that torch.compile compiles" in result.stderr


def test_a_python_without_tuner_is_told_so(capture, tmp_path):
    bare = tmp_path / "python-bare"
    bare.write_text(f'#!/bin/sh\nexec env -u PYTHONPATH {sys.executable} -S "$@"\n')
    bare.chmod(0o700)
    result, _ = capture((str(bare), "-c", "pass"))
    assert result.exit_code == 3
    assert "has no tuner installed" in result.stderr


@pytest.mark.parametrize(("command", "told"), [("no-such-command", "cannot be run"), ("train.py", "capture -- python train.py")])
def test_a_command_that_cannot_be_run_is_told_so(capture, command, told):
    result, _ = capture((command,))
    assert result.exit_code == 3
    assert told in result.stderr


@pytest.mark.parametrize(("caught", "code"), [("Exception", 3), ("KeyError", 1)])
def test_a_script_whose_only_compile_fails_is_told_what_failed(capture, caught, code):
    script = f"""
import torch
def noisy(x):
    print("not to be traced")
    return x.exp()
try:
    torch.compile(noisy, fullgraph=True)(torch.ones(3))
except {caught}:
    pass
"""
    result, _ = capture(script)
    assert result.exit_code == code
    assert "torch.compile failed on noisy (" in result.stderr
    assert "script.py:4): Unsupported: Failed to trace builtin operator" in result.stderr
