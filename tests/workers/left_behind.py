"""What /proc says about processes: for tests that nothing is left behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tuner.workers.guard import children_of
from tuner.workers.process import Worker


def until(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Whether `condition` came true before the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def measuring(worker: Worker) -> int:
    """The process id of the one that measures, the guard's child."""
    (pid,) = children_of(worker.pid)
    return pid
