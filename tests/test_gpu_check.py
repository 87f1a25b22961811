"""benchmarks/gpu_check.py where there is no GPU: it says so, and lays the package out for machines that have one."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu_check.py"


@pytest.fixture
def gpu_check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_a_gpu_nothing_is_checked_and_the_exit_code_says_so(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run(
        [sys.executable, SCRIPT, "--out", tmp_path / "report.json"], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gpu_check: torch sees no GPU here, nothing was checked\n"
    assert not (tmp_path / "report.json").exists()


def test_a_check_runs_in_a_process_that_finds_the_package_and_whose_failure_costs_only_itself(gpu_check, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "script.py").write_text(
        "import json, os, sys, tuner.cache, tuner.cli, tuner.search_spaces.space, tuner.measure.quietness as quietness\n"
        "os._exit(3) if sys.argv[2] == 'dies' else print(json.dumps({'file': quietness.__file__}))\n"
    )
    monkeypatch.setattr(gpu_check, "__file__", str(tmp_path / "script.py"))
    with gpu_check.package_for_children():
        fine, dead = gpu_check.run_apart("fine"), gpu_check.run_apart("dies")
    assert fine["passed"], fine
    assert Path(fine["seen"]["file"]).parts[-3:] == ("tuner", "measure", "quietness.py")
    assert "tuner-gpu-check-" in fine["seen"]["file"], "the folder of links, not what is installed here"
    assert not Path(fine["seen"]["file"]).exists(), "which is gone"
    assert (dead["passed"], dead["error"]) == (False, "exit code 3")
    json.dumps([fine, dead])


def test_every_check_says_what_it_shows_and_fails_with_what_it_saw(gpu_check):
    for check in gpu_check.CHECKS:
        assert check.__name__.startswith("check_")
        assert check.__doc__
    assert set(gpu_check.CHECKS) == {value for name, value in vars(gpu_check).items() if name.startswith("check_")}
    with pytest.raises(AssertionError, match=r'too slow: \{"ms": 3\}'):
        gpu_check.expect(False, "too slow", {"ms": 3})
