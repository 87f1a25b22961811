"""One bad candidate costs one candidate, and nothing of it is left behind: real processes, real signals, a real compiler."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from left_behind import is_running, measuring, until
from sessions import softmax_graph

from tuner.errors import WorkerDied, WorkerError
from tuner.measurement import Policy
from tuner.plan import Plan
from tuner.workers.limits import limits
from tuner.workers.pool import CompilePool
from tuner.workers.process import Worker
from tuner.workers.verdicts import lost

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import faults  # noqa: E402
import faulty_child  # noqa: E402

pytestmark = pytest.mark.slow

LIMIT_S = 300.0
# Of requests that are not to be answered.
HANG_S = 8.0
BAD, GOOD = faults.bad_plan(), Plan(config=(("realize_opcount_threshold", 1),))
SURVIVED = ("exception that does not pickle", "SystemExit", "memory bomb", "wrong by 1%", "wrong in one element", "NaN")


def opening() -> dict[str, Any]:
    return {"graph": softmax_graph().to_json(), "ambient": {"threads": 1}, "seed": 0, "policy": Policy.for_cpu(1).fields()}


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What distinguishes the processes of one test."""
    mark = f"test-{os.getpid()}-{tmp_path.name}"
    monkeypatch.setenv("TUNER_FAULT_RUN", mark)
    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS))
    return mark


def with_fault(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_FAULT", f"{name} {BAD.key} {folder}")


def attempt(worker: Worker, plan: Plan, seconds: float = LIMIT_S) -> dict[str, Any]:
    try:
        return worker.ask(seconds, do="try", plan=plan.to_json(), expected=None, seen_codes=[])
    except WorkerError as error:
        return lost(error)


@pytest.mark.parametrize("name", [name for name in faults.EXPECTED if name != faults.PARENT_KILLED])
def test_a_fault_is_found_as_what_it_is_and_leaves_nothing_behind(name, mark, tmp_path, monkeypatch):
    with_fault(name, tmp_path, monkeypatch)
    with Worker(threads=1, module="faulty_child") as worker:
        assert worker.ask(LIMIT_S, do="open", **opening())["status"] == "ok"
        if name == faults.KILLED_FROM_OUTSIDE:
            pid, struck = measuring(worker), tmp_path / "struck"
            threading.Thread(target=lambda: until(struck.exists) and os.kill(pid, signal.SIGKILL)).start()
        hangs = faults.EXPECTED[name] == ("timeout",)
        verdict = attempt(worker, BAD, HANG_S if hangs else LIMIT_S)
        assert verdict["status"] in faults.EXPECTED[name]
        assert verdict["message"]
        assert (tmp_path / "struck").exists()
        if name in SURVIVED:
            assert attempt(worker, GOOD)["status"] == "ok"
    assert faults.left_behind(mark) == 0


def test_a_sweep_goes_on_after_a_crash_and_ends():
    row = faults.row_of("SIGSEGV", floor_s=60.0)
    assert row.as_expected
    assert row.others["ok"] >= 1


def compilers_of(mark: str) -> list[int]:
    """C++ compilers that run."""
    return [pid for pid in faults.marked(mark) if Path(f"/proc/{pid}/comm").read_text().strip() == "cc1plus"]


PARENT = """
import json, os, sys
from tuner.workers.guard import children_of
from tuner.workers.process import Worker

asked = json.loads(sys.stdin.readline())
with Worker(threads=1, module="faulty_child") as worker:
    worker.ask(300, do="open", **asked["open"])
    print(worker.pid, *children_of(worker.pid), flush=True)
    try:
        worker.ask(300, do="try", plan=asked["plan"], expected=None, seen_codes=[])
    finally:
        print("told", flush=True)
"""


@pytest.mark.parametrize("killed", ["parent", "worker", "guard", "parent and worker"])
def test_a_compiler_that_never_ends_is_ended_whoever_is_killed(killed, mark, tmp_path, monkeypatch):
    with_fault(faulty_child.ENDLESS, tmp_path, monkeypatch)
    command = [sys.executable, "-c", PARENT]
    asked = json.dumps({"open": opening(), "plan": BAD.to_json()})
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write(asked + "\n")
        parent.stdin.flush()
        guard, worker = map(int, parent.stdout.readline().split())
        assert until(lambda: bool(compilers_of(mark)), 120)
        pids = {"parent": parent.pid, "worker": worker, "guard": guard}
        # stopped first, so that neither acts on the other's end
        for name in killed.split(" and "):
            os.kill(pids[name], signal.SIGSTOP)
        for name in killed.split(" and "):
            os.kill(pids[name], signal.SIGKILL)
        if "parent" not in killed:
            assert parent.stdout.readline() == "told\n"
        parent.wait()
    assert faults.left_behind(mark) == 0


def test_a_compiler_that_never_ends_costs_the_pool_one_job(mark, tmp_path, monkeypatch):
    with_fault(faulty_child.ENDLESS, tmp_path, monkeypatch)
    monkeypatch.setattr("tuner.workers.limits.COMPILE_FLOOR_S", HANG_S)
    default = {"compile_s": 0.0, "check_s": 0.0, "call_s": 0.0}
    assert limits(default).compile_s == HANG_S
    with CompilePool(threads=1, size=1, module="faulty_child") as pool:
        pool.open(opening())
        # compiled already, so that the limit is for the endless one
        list(pool.compile([(GOOD, None, "")], [], {**default, "compile_s": 30.0}))
        verdicts = dict(pool.compile([(BAD, None, ""), (GOOD, None, "")], [], default))
    assert {plan: verdict["status"] for plan, verdict in verdicts.items()} == {BAD: "timeout", GOOD: "ok"}
    assert faults.left_behind(mark) == 0


def test_a_stopped_guard_is_ended_all_the_same(mark, monkeypatch):
    monkeypatch.setattr("tuner.workers.process.END_S", 0.5)
    with Worker(threads=1) as worker:
        worker.ask(LIMIT_S, do="close")
        child = measuring(worker)
        os.kill(worker.pid, signal.SIGSTOP)
    assert until(lambda: not is_running(child))
    assert faults.left_behind(mark) == 0


def test_a_worker_outlives_the_thread_that_started_it():
    started: list[Worker] = []
    thread = threading.Thread(target=lambda: started.append(Worker(threads=1)))
    thread.start()
    thread.join()
    with started[0] as worker:
        assert worker.ask(LIMIT_S, do="close") is None


ESCAPED = """
import os, subprocess
from tuner.workers import child

class Starting(child.Handler):
    def __call__(self, request):
        process = subprocess.Popen(["sleep", "600"], start_new_session=True)
        return process.pid

child.Handler = Starting
child.main()
"""


@pytest.mark.parametrize("how", ["closed", "worker killed"])
def test_what_left_the_session_of_its_worker_is_ended_too(how, mark, tmp_path, monkeypatch):
    (tmp_path / "starting_child.py").write_text(ESCAPED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Worker(threads=1, module="starting_child") as worker:
        escaped = worker.ask(LIMIT_S, do="start")
        assert is_running(escaped)
        if how == "worker killed":
            os.kill(measuring(worker), signal.SIGKILL)
            with pytest.raises(WorkerDied, match="SIGKILL"):
                worker.ask(LIMIT_S, do="start")
    assert faults.left_behind(mark) == 0
