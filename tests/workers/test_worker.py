"""The measuring process answers, and whatever happens to it is told; it can always be killed, and never outlives its parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from left_behind import is_running, measuring, until
from sessions import softmax_graph, update_graph

from tuner.anatomy import Anatomy
from tuner.errors import UnsupportedGraph, WorkerDied, WorkerError, WorkerTimeout
from tuner.measurement import Policy
from tuner.plan import Plan
from tuner.workers.process import Worker

pytestmark = pytest.mark.slow

NATIVE = Plan(native=("aten._softmax.default",))
POLICY = Policy.for_cpu(1).fields()
LIMIT_S = 120.0


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker(threads=1) as started:
        yield started
    assert not is_running(started.pid)


@pytest.fixture(scope="module")
def opened() -> Iterator[Worker]:
    """A worker that holds the softmax graph."""
    with Worker(threads=1) as started:
        started.ask(LIMIT_S, do="open", graph=softmax_graph().to_json(), ambient={"threads": 1}, seed=0, policy=POLICY)
        yield started


def test_a_worker_opens_tries_and_times(opened):
    told = opened.ask(LIMIT_S, do="open", graph=softmax_graph().to_json(), ambient={"threads": 1}, seed=0, policy=POLICY)
    assert told["status"] == "ok"
    verdict = opened.ask(LIMIT_S, do="try", plan=NATIVE.to_json(), expected=None, seen_codes=[told["code_key"]])
    assert verdict["status"] == "ok"
    assert verdict["error"] <= 1
    times = opened.ask(LIMIT_S, do="time", keys=[NATIVE.key], samples=4, seed=0)["times"]
    assert {key: len(samples) for key, samples in times.items()} == {Plan().key: 4, NATIVE.key: 4}


def test_a_worker_tells_the_anatomy_of_its_graph_under_a_plan(opened):
    default, native = (opened.ask(LIMIT_S, do="anatomy", plan=plan.to_json()) for plan in (Plan(), NATIVE))
    assert (default["status"], native["status"]) == ("ok", "ok")
    kinds = [{leaf.kind for leaf in Anatomy.from_json(told["anatomy"]).leaves} for told in (default, native)]
    assert "ComputedBuffer.Reduction" in kinds[0]
    assert "FallbackKernel" in kinds[1]


def test_a_worker_tells_where_the_time_goes_kernel_by_kernel(opened):
    told = opened.ask(LIMIT_S, do="open", graph=softmax_graph().to_json(), ambient={"threads": 1}, seed=0, policy=POLICY)
    never = Plan(native=("aten._softmax.default#1",))
    profiled = opened.ask(LIMIT_S, do="profile", plans=[NATIVE.to_json(), never.to_json()], rounds=2, seed=0)
    groups = [set(group) for group in told["realised"]]
    assert [set(leaves) for leaves, _ in profiled["times"][Plan().key]["kernels"]] == groups
    assert profiled["times"][NATIVE.key]["library_ms"] > 0
    assert profiled["failed"][never.key]["status"] == "refused"
    verdict = opened.ask(LIMIT_S, do="try", plan=NATIVE.to_json(), expected=None, seen_codes=[told["code_key"]])
    assert verdict["status"] == "ok", "and goes on as before"


def test_a_request_that_fails_leaves_the_worker_alive(opened):
    for broken in ({"do": "nonsense"}, {"do": "time", "keys": ["unknown"], "samples": 1, "seed": 0}, {}):
        with pytest.raises(WorkerError):
            opened.ask(LIMIT_S, **broken)
    told = opened.ask(LIMIT_S, do="open", graph=softmax_graph().to_json(), ambient={"threads": 1}, seed=0, policy=POLICY)
    assert told["status"] == "ok"


def test_a_graph_that_cannot_be_tuned_is_refused_with_its_reason(opened):
    graph = softmax_graph().to_json()
    with pytest.raises(UnsupportedGraph, match="threads") as caught:
        opened.ask(LIMIT_S, do="open", graph=graph, ambient={"threads": 7}, seed=0, policy=POLICY)
    assert caught.value.reason == "settings"


def test_before_a_graph_is_open_nothing_can_be_tried(worker):
    with pytest.raises(WorkerError):
        worker.ask(LIMIT_S, do="try", plan=NATIVE.to_json(), expected=None, seen_codes=[])
    assert worker.ask(LIMIT_S, do="close") is None


def test_a_graph_that_writes_its_inputs_is_timed_again_and_again(opened):
    told = opened.ask(LIMIT_S, do="open", graph=update_graph().to_json(), ambient={"threads": 1}, seed=0, policy=POLICY)
    opened.ask(LIMIT_S, do="time", keys=[], samples=20, seed=0)
    again = opened.ask(
        LIMIT_S, do="try", plan=Plan(config=(("realize_opcount_threshold", 1),)).to_json(), expected=None, seen_codes=[]
    )
    assert told["status"] == again["status"] == "ok"


def test_a_worker_that_hangs_is_killed_at_its_deadline(worker):
    worker.ask(LIMIT_S, do="close")
    os.kill(measuring(worker), signal.SIGSTOP)
    child = measuring(worker)
    with pytest.raises(WorkerTimeout, match="killed"):
        worker.ask(0.2, do="close")
    assert not is_running(child)


def test_a_worker_that_does_not_even_read_is_killed_at_its_deadline(worker):
    worker.ask(LIMIT_S, do="close")
    os.kill(measuring(worker), signal.SIGSTOP)
    with pytest.raises(WorkerTimeout, match="killed"):
        worker.ask(0.2, do="close", padding="x" * 4_000_000)
    assert not is_running(worker.pid)


def test_a_request_larger_than_a_pipe_arrives_whole(worker):
    assert worker.ask(LIMIT_S, do="close", padding="x" * 4_000_000) is None


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL", "SIGABRT"])
def test_a_worker_that_dies_is_told_by_its_signal(worker, name):
    worker.ask(LIMIT_S, do="close")
    os.kill(measuring(worker), getattr(signal, name))
    for _ in range(2):
        with pytest.raises(WorkerDied, match=name):
            worker.ask(LIMIT_S, do="close")


def test_a_worker_that_dies_while_it_is_asked_is_told_before_the_deadline(worker):
    worker.ask(LIMIT_S, do="close")
    os.kill(measuring(worker), signal.SIGSTOP)
    killer = subprocess.Popen([sys.executable, "-c", f"import os; os.kill({measuring(worker)}, 9)"])
    with pytest.raises(WorkerDied, match="SIGKILL"):
        worker.ask(LIMIT_S, do="close")
    killer.wait()


def test_a_worker_that_cannot_start_is_told_with_its_last_words(monkeypatch):
    monkeypatch.setenv("PYTHONHOME", "/nonexistent")
    with Worker(threads=1) as broken, pytest.raises(WorkerDied, match=r"exit code \d+.*"):
        broken.ask(LIMIT_S, do="close")


def test_an_interrupt_from_the_keyboard_does_not_reach_a_worker(worker):
    worker.ask(LIMIT_S, do="close")
    os.kill(measuring(worker), signal.SIGINT)
    assert worker.ask(LIMIT_S, do="close") is None
    assert os.getpgid(measuring(worker)) != os.getpgid(0), "a terminal's Ctrl-C goes to another group"


NOISY = """
import ctypes, os
from tuner.workers import child

class Noisy(child.Handler):
    def __call__(self, request):
        print("noise of Python", flush=True)
        os.write(1, b"noise of the system\\n")
        libc = ctypes.CDLL(None)
        libc.puts(b"noise of C++")
        libc.fflush(None)
        return super().__call__(request)

child.Handler = Noisy
child.main()
"""


def test_what_compiled_code_prints_is_not_taken_for_an_answer():
    ran = subprocess.run(
        [sys.executable, "-c", NOISY, "--threads", "1"],
        input='{"do": "close"}\n{"do": "nonsense"}\n',
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = ran.stdout.splitlines()
    assert json.loads(first) == {"ok": None}
    assert json.loads(second)["error"]["message"].startswith("ValueError")
    assert all(f"noise of {source}" in ran.stderr for source in ("Python", "the system", "C++"))


PARENT = """
import subprocess, sys
from tuner.workers.guard import children_of
from tuner.workers.process import Worker

with Worker(threads=1) as worker:
    worker.ask({limit}, do="close")
    print(worker.pid, *children_of(worker.pid), flush=True)
    sys.stdin.readline()
"""


def test_a_worker_does_not_outlive_a_parent_that_is_killed():
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(limit=LIMIT_S)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    guard, child = map(int, parent.stdout.readline().split())
    assert is_running(child)
    # stopped, it cannot notice that its input ended
    os.kill(child, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    assert until(lambda: not is_running(child) and not is_running(guard))
    parent.stdout.close()


def test_what_a_worker_started_is_killed_with_it(tmp_path):
    script = tmp_path / "sitecustomize.py"
    note = tmp_path / "grandchild"
    script.write_text(
        "import subprocess, sys\n"
        f"if not sys.argv[-1:] == ['stop'] and not __import__('os').path.exists({str(note)!r}):\n"
        f"    open({str(note)!r}, 'w').write('')\n"
        f"    open({str(note)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid) + '\\n')\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        worker = Worker(threads=1)
    with worker:
        worker.ask(LIMIT_S, do="close")
        assert until(lambda: note.exists() and note.read_text().endswith("\n"))
        grandchild = int(note.read_text())
        assert is_running(grandchild)
    assert until(lambda: not is_running(grandchild))


def test_settings_that_a_winner_is_keyed_by_are_those_it_is_measured_under(opened: Worker) -> None:
    graph = softmax_graph().to_json()
    asked = {"do": "open", "graph": graph, "seed": 0, "policy": POLICY}
    plain = opened.ask(LIMIT_S, **asked, ambient={"threads": 1})["code_key"]
    scalar = opened.ask(LIMIT_S, **asked, ambient={"threads": 1, "inductor": {"cpp.simdlen": 1}})["code_key"]
    assert scalar != plain
    assert opened.ask(LIMIT_S, **asked, ambient={"threads": 1})["code_key"] == plain
    with pytest.raises(UnsupportedGraph, match=r"threads"):
        opened.ask(LIMIT_S, **asked, ambient={"threads": 7})


def test_a_module_of_the_users_beside_him_does_not_get_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tuner.py").write_text("raise RuntimeError('not this one')")
    (tmp_path / "json.py").write_text("raise RuntimeError('nor this one')")
    monkeypatch.chdir(tmp_path)
    with Worker(threads=1) as worker:
        assert worker.ask(LIMIT_S, do="close") is None
