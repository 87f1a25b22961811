"""benchmarks/fusion_suite.py: the list that it is about, and what it says of times."""

from __future__ import annotations

import argparse
import importlib
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return importlib.import_module("fusion_suite")


def told_of(eager: float, default: float, tuned: float) -> dict[str, Any]:
    """What a process tells whose samples are all alike."""
    times = {"eager": eager, "default": default, "max_autotune": 2 * default, "tuned": tuned}
    of_all = {name: [ms] * 20 for name, ms in times.items()}
    return {"times": of_all, "deviation": dict.fromkeys(times, 0.5), "outcomes": [], "busy": None}


def test_the_list_has_the_graphs_that_were_named_forward_and_backward(suite):
    listed = [(one.name, one.kind, one.group) for one in suite.GRAPHS]
    assert len(set(listed)) == len(listed) == 20
    assert [group for _, _, group in listed].count("model") == 7
    backward = {name for name, kind, _ in listed if kind == "backward"}
    assert backward == {"layer_norm_residual_gelu", "cross_entropy", "bert", "llama"}
    assert {(name, "forward") for name in backward} <= {(name, kind) for name, kind, _ in listed}


def test_every_memory_graph_runs_as_what_it_is_listed_as(suite):
    from tuner.workload.spec import load_spec
    from tuner.workload.step import phase_of

    for listed in suite.GRAPHS:
        if listed.group == "memory":
            assert phase_of(*load_spec(listed.spec)) == listed.phase


def test_a_row_holds_the_tuned_against_the_default_and_against_the_best_of_all_others(suite):
    listed = suite.GRAPHS[0]
    row = suite.row_of(listed, [told_of(1.0, 2.0, 0.8)] * 3, {"candidates": 7, "seconds": 3.0})
    assert (row["name"], row["kind"], row["class"]) == ("masked_biased_softmax", "forward", "memory")
    assert (row["eager_ms"], row["default_ms"], row["max_autotune_ms"], row["tuned_ms"]) == (1.0, 2.0, 4.0, 0.8)
    assert row["speedup_vs_default"] == pytest.approx(2.5)
    assert row["speedup_low"] <= row["speedup_vs_default"] <= row["speedup_high"]
    assert (row["best_peer"], row["speedup_vs_best_peer"]) == ("eager", pytest.approx(1.25))
    assert (row["candidates"], row["seconds"], row["processes"]) == (7, 3.0, 3)


def test_what_is_said_of_all_is_geometric_means_by_class_and_the_worst(suite):
    memory, model = (next(one for one in suite.GRAPHS if one.group == group) for group in ("memory", "model"))
    rows = [suite.row_of(memory, [told_of(1.0, 2.0, 1.0)], {}), suite.row_of(model, [told_of(2.0, 1.0, 2.0)], {})]
    failed = {"name": "x", "kind": "forward", "class": "model", "error": "it could not be timed"}
    told = suite.summary([*rows, failed])
    assert told["graphs"][-1] == failed
    assert (told["geomean_memory"], told["geomean_model"]) == (pytest.approx(2.0), pytest.approx(0.5))
    assert told["geomean_vs_default"] == pytest.approx(1.0)
    assert told["geomean_vs_best_peer"] == pytest.approx(math.sqrt(0.5))
    assert (told["worst"], told["worst_graph"]) == (pytest.approx(0.5), "bert forward")
    assert suite.summary([failed])["worst"] is None


def test_profiles_and_failures_are_evaluations_too(suite):
    measured = {"candidates_measured": 5, "candidates_failed": {"wrong": 1, "timeout": 2}}
    assert suite.evaluations({"results": [measured, {**measured, "candidates_profiled": 4}]}) == 8 + 12
    assert suite.evaluations({"results": []}) == 0


def test_what_sweeps_took_is_there_for_the_next_run(suite, tmp_path):
    suite.Notes(tmp_path / "store.db").keep("a", {"candidates": 3})
    suite.Notes(tmp_path / "store.db").keep("b", {"candidates": 4})
    assert suite.Notes(tmp_path / "store.db").rows == {"a": {"candidates": 3}, "b": {"candidates": 4}}
    assert not suite.Notes(tmp_path / "other.db").rows


@pytest.mark.parametrize(
    ("stdout", "stderr", "code", "error"),
    [
        ("", "Traceback\nMemoryError\n", 1, "MemoryError"),
        ("", "", -9, "no answer, exit code -9"),
        ('{"results": [', "", 0, "no answer, exit code 0"),
        ("[]", "a warning", 0, "a warning"),
    ],
)
def test_a_sweep_that_gives_no_answer_has_failed(suite, stdout, stderr, code, error):
    assert suite.told_by(stdout, stderr, code) == {"results": [], "seconds": None, "error": error}


def test_a_sweep_that_ended_well_has_no_error_whatever_it_warned_of(suite):
    assert suite.told_by('{"results": [], "seconds": 3.0}', "a warning", 0) == {"results": [], "seconds": 3.0}
    assert suite.told_by('{"results": [], "seconds": 3.0}', "one failed", 3)["error"] == "one failed"


def test_a_graph_whose_sweep_failed_is_a_row_with_an_error_and_is_not_timed(suite, monkeypatch, tmp_path):
    monkeypatch.setattr(suite, "swept", lambda *told: {"results": [], "seconds": None, "error": "no memory"})
    monkeypatch.setattr(suite, "timed", lambda *told: pytest.fail("what was not tuned is not timed"))
    told = argparse.Namespace(sweep=True, store=tmp_path / "store.db", threads=1, effort="quick", when_busy="wait", processes=1)
    row = suite.measured(suite.GRAPHS[0], told, suite.Notes(told.store))
    assert row["error"] == "the sweep failed: no memory"
    assert suite.summary([row])["geomean_vs_default"] is None
    assert not suite.Notes(told.store).rows, "the next run sweeps it again"
