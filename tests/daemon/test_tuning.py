"""The tuning process: what it refuses, and how it tells the daemon; without compiling anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
from tuner.compilers.inductor.capture import capture
from tuner.compilers.marks import marked
from tuner.daemon.tuning import NICENESS, tune
from tuner.errors import DeviceBusy, SpecError, StoreError, TunerError, WorkerDied
from tuner.workers import device_lock, guard
from tuner.workload.fx import UNSEEN
from tuner.workload.graph import Graph
from tuner.workload.miss_report import MissReport
from tuner.workload.shapes import Dim

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
        told.given = SimpleNamespace(sweep=sweep, policy=policy, effort=effort, rules=more["rules"])
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


def trained() -> list[Graph]:
    """A forward and a backward graph of which a compile saw the forward's inputs."""
    inputs = (torch.full((4, 8), 3.0, requires_grad=True),)
    (program,) = capture(lambda x: torch.tanh(x) * x, inputs, phase="training")
    forward, backward = program.graphs
    return [forward, replace(backward, data=(UNSEEN,) * len(backward.data))]


def test_the_inputs_of_a_backward_are_like_what_its_forward_makes(tmp_path, sweeping):
    sweeping.ends = [settled(query()), settled(query())]
    told = from_here(*trained())
    assert outcome(tmp_path, told)[0] == "done"
    forward, backward = (one.resolved.graph for one in sweeping.given.sweep.outcomes)
    assert forward == told.graphs[0]
    assert (backward.key, UNSEEN in backward.data) == (told.graphs[1].key, False)
    assert (backward.data[0].low, backward.data[0].high) == (3.0, 3.0)


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
        ([settled(query()), WorkerDied("it died")], "crash", "it died"),
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


def test_it_neither_changes_numerics_nor_undoes_what_a_user_allowed(tmp_path, sweeping):
    sweeping.ends = [settled(query())]
    outcome(tmp_path, from_here())
    assert (sweeping.given.rules.numerics, sweeping.given.rules.keeps_numerics) == (False, True)


def test_what_a_sweep_raises_is_told(tmp_path, monkeypatch):
    raised: list[Exception] = [StoreError("disk full"), WorkerDied("gone"), DeviceBusy("loud"), TunerError("odd"), OSError("io")]

    def run(*_: Any, **__: Any) -> None:
        raise raised[0]

    monkeypatch.setattr(tuner.search.sweep, "run_sweep", run)
    ends = []
    while raised:
        ends.append(outcome(tmp_path, from_here())[:2])
        raised.pop(0)
    assert ends == [
        ("store", "disk full"),
        ("crash", "WorkerDied: gone"),
        ("busy", "loud"),
        ("failed", "TunerError: odd"),
        ("failed", "OSError: io"),
    ]


def test_a_fault_of_ours_in_a_sweep_is_not_blamed_on_the_report(tmp_path, monkeypatch):
    def run(*_: Any, **__: Any) -> None:
        raise ValueError("ours")

    monkeypatch.setattr(tuner.search.sweep, "run_sweep", run)
    with pytest.raises(ValueError, match="ours"):
        outcome(tmp_path, from_here())


def test_where_another_process_measures_it_does_not_wait_in_silence(tmp_path, monkeypatch):
    monkeypatch.setattr(device_lock, "FOLDER", tmp_path / "devices")
    with device_lock.hold_device("cpu"):
        ended, reason, _ = outcome(tmp_path, from_here())
    assert (ended, reason) == ("busy", f"device cpu is held by process {os.getpid()}")


NICE = """
import os, sys
from pathlib import Path
from tuner.daemon import tuning
from tuner.workers import guard

def tune(*_):
    return "done", f"{os.nice(0)} {guard.AUTOGROUP.exists() and guard.AUTOGROUP.read_text().split()[-1]}"

tuning.tune = tune
sys.argv[1:] = ["--store", "s", "--report", "r", "--effort", "quick", "--when-busy", "wait", "--parent", str(os.getppid())]
tuning.main()
"""


def test_it_goes_behind_what_the_user_runs():
    done = subprocess.run([sys.executable, "-c", NICE], start_new_session=True, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    niceness, of_its_session = json.loads(done.stdout)["reason"].split()
    expected = str(min(os.nice(0) + NICENESS, 19))
    assert (niceness, of_its_session) == (expected, expected if guard.AUTOGROUP.exists() else "False")


def test_the_report_of_a_program_survives_the_file(tmp_path):
    told = replace(from_here(), graphs=(graph(native=True),))
    assert MissReport.from_json(json.loads(json.dumps(told.to_json()))) == told


def test_a_program_whose_sizes_vary_is_tuned_at_half_and_double_of_what_was_seen_too(tmp_path, monkeypatch):
    x = marked((torch.ones(8, 4),), [Dim("n", (8,), ((0, 0),))])
    ((varying,),) = [program.graphs for program in capture(lambda x: torch.relu(x).sum(-1), x, None)]
    swept = []
    monkeypatch.setattr(tuner.search.sweep, "run_sweep", lambda sweep, *_, **__: swept.extend(sweep.outcomes))
    outcome(tmp_path, from_here(varying))
    assert [one.resolved.sizes for one in swept] == [((4,), (8,), (16,))]
