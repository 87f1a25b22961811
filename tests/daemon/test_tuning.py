"""The tuning process: what it refuses, and how it tells the daemon; without compiling anything."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from missed import graph, report
from stored import POLICY, query, settled, winner

import tuner.search.sweep
from tuner.cache.sqlite import SqliteStore
from tuner.canonical import named_fields
from tuner.compilers.inductor.ambient import ambient, cpu_target, cpu_toolchain
from tuner.daemon.tuning import tune
from tuner.errors import DeviceBusy, SpecError, StoreError, TunerError, WorkerDied
from tuner.workload.miss_report import MissReport

HERE = {"target": cpu_target().fields(), "toolchain": dict(cpu_toolchain())}


@pytest.fixture(autouse=True)
def threads() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def from_here(*graphs: Any, **parts: Any) -> MissReport:
    """A report of a process like this one."""
    torch.set_num_threads(1)
    return report("p", *graphs, **{**HERE, "ambient": named_fields(ambient()), **parts})


def outcome(tmp_path: Path, told: MissReport, when_busy: str = "wait") -> tuple[str, str, list[dict[str, Any]]]:
    file, lines = tmp_path / "report", []
    file.write_text(json.dumps(told.to_json()))
    ended, reason = tune(tmp_path / "store.db", file, "quick", when_busy, lines.append)
    return ended, reason, lines


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"toolchain": {**HERE["toolchain"], "torch": "1.0"}}, "the program was compiled for another toolchain: torch (here "),
        ({"target": {**HERE["target"], "sku": "made up"}}, "the program was compiled for another target: sku (here "),
        ({"ambient": {"threads": 4096}}, "the program was compiled for 4096 threads, here are "),
        ({"ambient": {"threads": 1, "environment": {"TORCHINDUCTOR_X": "1"}}}, "TORCHINDUCTOR_X"),
        ({"ambient": {"threads": 1, "deterministic": True}}, "deterministic"),
        ({"ambient": {"threads": 1, "inductor": {"no_such_setting": 1}}}, "no_such_setting"),
    ],
)
def test_what_cannot_be_had_here_is_refused_and_named(tmp_path, parts, why):
    ended, reason, _ = outcome(tmp_path, from_here(**parts))
    assert (ended, why in reason) == ("refused", True), reason
    assert not (tmp_path / "store.db").exists()


def test_a_file_that_is_no_report_is_refused(tmp_path):
    (tmp_path / "report").write_text("{}")
    ended, reason = tune(tmp_path / "store.db", tmp_path / "report", "quick", "wait", print)
    assert (ended, reason) == ("refused", "the report cannot be used: it is malformed: KeyError")


def test_a_store_that_another_process_writes_is_told(tmp_path):
    with SqliteStore(tmp_path / "store.db"):
        ended, reason, _ = outcome(tmp_path, from_here())
    assert (ended, reason) == ("store", f"store {tmp_path / 'store.db'} is being written by process {os.getpid()}")


@pytest.fixture
def sweeping(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Sweeps that do nothing but end as they are told: an error, or a winner, for each graph in turn."""
    told = SimpleNamespace(ends=[], given=None)

    def run(sweep: Any, store: Any, policy: Any, effort: Any, again: bool, **more: Any) -> None:
        told.given = SimpleNamespace(sweep=sweep, policy=policy, effort=effort)
        for one, end in zip(sweep.outcomes, told.ends, strict=True):
            one.progress.best = 1.5
            one.progress.enter("screening")
            if isinstance(end, TunerError):
                one.fail(end)
            else:
                one.winner = end
                one.progress.enter("done")

    monkeypatch.setattr(tuner.search.sweep, "run_sweep", run)
    return told


@pytest.mark.parametrize(
    ("ends", "ended", "reason"),
    [
        ([settled(query()), winner(query())], "done", "1 of 2 graphs have a plan that beats the default"),
        ([SpecError("random"), SpecError("too")], "refused", "random"),
        (
            [SpecError("random"), settled(query())],
            "done",
            "0 of 2 graphs have a plan that beats the default; 1 cannot be tuned: random",
        ),
        ([settled(query()), WorkerDied("it died")], "failed", "it died"),
        ([WorkerDied("it died"), DeviceBusy("loud")], "busy", "loud"),
    ],
)
def test_how_a_sweep_ended_is_told(tmp_path, sweeping, ends, ended, reason):
    sweeping.ends = ends
    graphs = (graph(), graph("aten.cos.default"))
    assert outcome(tmp_path, from_here(*graphs))[:2] == (ended, reason)


def test_how_it_gets_on_is_told(tmp_path, sweeping):
    sweeping.ends = [settled(query())]
    told = from_here()
    assert outcome(tmp_path, told)[2] == [{"phase": "screening", "best": 1.5}, {"phase": "done", "best": 1.5}]
    (only,) = sweeping.given.sweep.outcomes
    assert (only.resolved.graph, only.resolved.query, only.resolved.program_query) == (
        told.graphs[0],
        told.queries[0],
        told.program,
    )
    assert only.resolved.spec == f"program {told.program.workload_key[:12]}"
    assert sweeping.given.policy.threads == POLICY.threads == 1


@pytest.mark.parametrize(("when_busy", "measures"), [("wait", False), ("measure", True)])
def test_on_a_busy_machine_it_waits_or_measures_as_told(tmp_path, sweeping, when_busy, measures):
    sweeping.ends = [settled(query())]
    outcome(tmp_path, from_here(), when_busy)
    assert (sweeping.given.effort.patience == 0) == measures


def test_what_a_sweep_raises_is_told(tmp_path, monkeypatch):
    raised: list[Exception] = [StoreError("disk full"), WorkerDied("gone"), DeviceBusy("loud")]

    def run(*_: Any, **__: Any) -> None:
        raise raised[0]

    monkeypatch.setattr(tuner.search.sweep, "run_sweep", run)
    ends = []
    while raised:
        ends.append(outcome(tmp_path, from_here())[:2])
        raised.pop(0)
    assert ends == [("store", "disk full"), ("failed", "WorkerDied: gone"), ("busy", "loud")]


def test_the_report_of_a_program_survives_the_file(tmp_path):
    told = replace(from_here(), graphs=(graph(native=True),))
    assert MissReport.from_json(json.loads(json.dumps(told.to_json()))) == told
