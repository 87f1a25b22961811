"""The fault table: what one bad candidate costs a sweep, by real processes, real signals and a real compiler.

    python benchmarks/faults.py [--json] [--only NAME]... [--floor-s S]

For each fault, a sweep over one small graph in which one candidate has it: the verdict that is stored, the seconds that it cost
(the candidate's own, and those of opening the graph again in a new worker), whether the sweep came to its end, how many of its
processes were left. --floor-s: floor of the time limits, which is what a hang costs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import faulty_child

from tuner.workers import limits

HERE = Path(__file__).parent
# One sweep, with a worker that hangs for the floor of its limits twice.
SWEEP_S = 600.0
# After the end of a sweep's process, for the guards to do their work.
END_S = 15.0
PARENT_KILLED, KILLED_FROM_OUTSIDE = "parent killed", "worker killed from outside"
# What each fault is to be found as; "parent killed": by the sweep that goes on after the killed one.
EXPECTED: dict[str, tuple[str, ...]] = {
    "hang": ("timeout",),
    "SIGSEGV": ("crash",),
    "os._exit": ("crash",),
    "memory bomb": ("out_of_resources",),
    "memory bomb in C++": ("out_of_resources",),
    "exception that does not pickle": ("crash",),
    "SystemExit": ("crash",),
    KILLED_FROM_OUTSIDE: ("crash",),
    PARENT_KILLED: ("ok",),
    "wrong by 1%": ("wrong",),
    "wrong in one element": ("wrong",),
    "NaN": ("wrong",),
    faulty_child.ENDLESS: ("timeout",),
}


@dataclass(frozen=True)
class Row:
    """verdict: the status stored for the candidate with the fault, None where none is; others: of the other candidates.

    seconds_lost: by the sweep. left_behind: processes of the sweep that were still there after its end.
    """

    fault: str
    verdict: str | None
    message: str
    as_expected: bool
    seconds_lost: float
    sweep_finished: bool
    others: dict[str, int]
    left_behind: int


def softmax() -> tuple[Any, tuple[Any, ...]]:
    """The graph that is swept."""
    import torch

    torch.manual_seed(0)
    return lambda x, y: torch.softmax(x * 2 + y, -1), (
        torch.randn(64, 256),
        torch.randn(64, 256),
    )


def bad_plan() -> Any:
    from tuner.plan import Plan

    return Plan(native=("aten._softmax.default",))


def candidates(groups: Any, native: Any) -> list[Any]:
    """What the sweep tries: the faulty one among others."""
    from tuner.plan import Plan
    from tuner.search_spaces.fusion import no_fusion
    from tuner.search_spaces.space import Candidate

    realised = [Plan(config=(("realize_reads_threshold", value),)) for value in (1, 2)]
    plans = [Plan(groups=no_fusion(groups)), bad_plan(), *realised]
    return [Candidate(plan.describe(), plan) for plan in plans]


def sweep(store: Path, told: Path, floor_s: float, jobs: int) -> None:
    """In a process of its own: the sweep. Writes to `told` what it cost, and how it ended."""
    from tuner.cache.sqlite import SqliteStore
    from tuner.measurement import Policy
    from tuner.search.bench import Bench
    from tuner.search.effort import EFFORTS
    from tuner.search.rules import Rules
    from tuner.search.sweep import plan_sweep, run_sweep
    from tuner.search.workloads import resolve
    from tuner.workers import pool

    limits.COMPILE_FLOOR_S = floor_s
    limits.RUN_FLOOR_S = min(limits.RUN_FLOOR_S, floor_s)
    limits.KERNEL_S = min(limits.KERNEL_S, floor_s / 4)
    if "TUNER_FAULT" in os.environ:
        Bench.module = "faulty_child"
    lost = Clock()
    Bench.try_plan = lost.around(Bench.try_plan, lambda bench, plan, *_: plan == bad_plan())  # type: ignore[method-assign]
    Bench.open = lost.around(Bench.open, lambda bench, resolved: bench._resolved is resolved)  # type: ignore[method-assign]
    compile_ahead = lost.around(pool._Slot.compile, lambda slot, job, *_: job[0] == bad_plan())
    pool._Slot.compile = compile_ahead  # type: ignore[method-assign]

    effort = replace(
        EFFORTS["quick"],
        name="custom",
        trials=4,
        racers=1,
        finalists=1,
        looks=(1,),
        final_samples=10,
        patience=0,
    )
    workloads = resolve(f"{__file__}:softmax", threads=1, forms=lambda _: None, find=lambda _: [])
    with SqliteStore(store) as opened:
        planned = plan_sweep(workloads, effort, lambda: None)
        run_sweep(planned, opened, Policy.for_cpu(1), effort, True, Rules(jobs=jobs, space=candidates))
    (outcome,) = planned.outcomes
    told.write_text(
        json.dumps(
            {
                "seconds": lost.seconds,
                "finished": outcome.winner is not None,
                "error": str(outcome.error),
            }
        )
    )


class Clock:
    """Wall time spent in the calls that count; a call within one that counts is counted once."""

    def __init__(self) -> None:
        self.seconds, self.running = 0.0, False

    def around(self, function: Callable[..., Any], counts: Callable[..., bool]) -> Callable[..., Any]:
        def timed(*args: Any, **more: Any) -> Any:
            if self.running or not counts(*args):
                return function(*args, **more)
            started, self.running = time.monotonic(), True
            try:
                return function(*args, **more)
            finally:
                self.seconds, self.running = (
                    self.seconds + time.monotonic() - started,
                    False,
                )

        return timed


def row_of(name: str, floor_s: float, jobs: int = 1) -> Row:
    """Runs the sweep with this fault, and says what became of it. jobs: processes that compile ahead, if more than 1."""
    with tempfile.TemporaryDirectory(prefix="tuner-faults-") as made:
        folder = Path(made)
        mark = f"{folder.name}-{os.getpid()}"
        environment = {
            **os.environ,
            "TUNER_FAULT": f"{name} {bad_plan().key} {folder}",
            "TUNER_FAULT_RUN": mark,
            "PYTHONPATH": str(HERE),
        }
        seconds, process = 0.0, started(folder, floor_s, jobs, environment)
        if name in (PARENT_KILLED, KILLED_FROM_OUTSIDE):
            struck = pid_in(folder / "struck", process)
            before = time.monotonic()
            os.kill(process.pid if name == PARENT_KILLED else struck, signal.SIGKILL)
            if name == PARENT_KILLED:
                process.wait()
                left = left_behind(mark)
                seconds = time.monotonic() - before
                del environment["TUNER_FAULT"]
                process = started(folder, floor_s, jobs, environment)
        output = process.communicate(timeout=SWEEP_S)[0]
        left = left_behind(mark) + (left if name == PARENT_KILLED else 0)
        told = json.loads((folder / "told").read_text()) if (folder / "told").exists() else {}
        if not told:
            print(output, file=sys.stderr)
        verdict, message, others = stored(folder / "store.db")
        return Row(
            fault=name if jobs == 1 else f"{name} in the compile pool",
            verdict=verdict,
            message=message,
            as_expected=verdict in EXPECTED[name] and left == 0 and told.get("finished", False),
            seconds_lost=round(told.get("seconds", 0.0) if name != PARENT_KILLED else seconds, 1),
            sweep_finished=told.get("finished", False),
            others=others,
            left_behind=left,
        )


def started(folder: Path, floor_s: float, jobs: int, environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        __file__,
        "--sweep",
        str(folder),
        "--floor-s",
        str(floor_s),
        "--jobs",
        str(jobs),
    ]
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def pid_in(path: Path, process: subprocess.Popen[str]) -> int:
    """What the faulty process wrote when its fault struck. Raises RuntimeError where the sweep ends before."""
    while not path.exists():
        if process.poll() is not None:
            raise RuntimeError(f"the sweep ended early: {process.communicate()[0]}")
        time.sleep(0.05)
    return int(path.read_text())


def left_behind(mark: str) -> int:
    """How many processes of a run are there still, after a moment for the guards."""
    deadline = time.monotonic() + END_S
    while (there := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in there:
        os.kill(pid, signal.SIGKILL)
    return len(there)


def marked(mark: str) -> list[int]:
    """Processes that run and have this mark from whom they were started by: whatever their group, session or parent."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                there = f"TUNER_FAULT_RUN={mark}".encode() in (folder / "environ").read_bytes()
            except OSError:
                continue
            if there and state != "Z":
                found.append(int(folder.name))
    return found


def stored(path: Path) -> tuple[str | None, str, dict[str, int]]:
    """The bad candidate's verdict and its message; how many of the others have which."""
    from tuner.cache.sqlite import SqliteStore

    with SqliteStore(path) as store:
        keys = [key for workload in store.find_graphs("") for key in store.exact_keys(workload)]
        rows = [row for key in keys for row in store.measurements(key, "screen")]
    bad = [row for row in rows if row.plan == bad_plan()]
    others = Counter(row.status for row in rows if row.plan != bad_plan())
    return (bad[-1].status, bad[-1].message, dict(others)) if bad else (None, "", dict(others))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", action="append", choices=list(EXPECTED))
    parser.add_argument("--floor-s", type=float, default=limits.COMPILE_FLOOR_S)
    parser.add_argument("--sweep", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=1, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.sweep:
        sweep(asked.sweep / "store.db", asked.sweep / "told", asked.floor_s, asked.jobs)
        return
    rows = []
    for name in asked.only or EXPECTED:
        for jobs in (1, 2) if name == faulty_child.ENDLESS else (1,):
            row = row_of(name, asked.floor_s, jobs)
            rows.append(row)
            if not asked.json:
                print(
                    f"{row.fault:<36}{row.verdict or 'none':<18}{row.seconds_lost:>6.1f} s  "
                    f"{'finished' if row.sweep_finished else 'NOT FINISHED'}  {row.left_behind} left  {row.message[:90]}",
                    flush=True,
                )
    if asked.json:
        print(json.dumps({"faults": [asdict(row) for row in rows]}))
    sys.exit(0 if all(row.as_expected for row in rows) else 1)


if __name__ == "__main__":
    main()
