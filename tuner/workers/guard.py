"""The guard: a small process between a parent and its worker, which sees to it that nothing of the worker is left behind.

The worker's process forks before it imports anything large. The first process stays as the guard; the fork goes on as the worker,
in a process group of its own. The guard adopts whatever the worker leaves orphaned (it is their subreaper), also what left the
worker's group or session, and kills all of it when the worker ends, when the parent ends, however and whichever thread of it
started the guard, and on SIGTERM. Then it ends as the worker did: by the same exit code or the same signal. The worker dies with
its guard, and the parent then ends what is left in the guard's session. Two things stay uncaught: guard and parent killed at one
stroke leave what the worker had started, and a guard that is killed leaves what had left its session.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
# What wakes the guard: a child that ended, a parent (or a thread of it) that ended, an order to end.
PARENT_ENDED = signal.SIGUSR1
AWAITED = (signal.SIGCHLD, PARENT_ENDED, signal.SIGTERM)
# Left to the guard's own reaction; a terminal's Ctrl-C and the loss of the terminal are the parent's to act on.
BLOCKED = (*AWAITED, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# Seconds after which the guard looks though nothing woke it, should a signal get lost.
LOOK_S = 1.0
# Of all processes of the system, one may write to its own in a tenth of a second; seconds that it is tried for.
AUTOGROUP = Path("/proc/self/autogroup")
AUTOGROUP_S = 2.0


def fork_guarded(parent: int) -> None:
    """Returns in the worker only, a child of the guard; must come before any thread is started. Does nothing but on Linux.

    parent: process id of who started this process, and whose end is the end of all.
    """
    if sys.platform != "linux":
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_PDEATHSIG, PARENT_ENDED)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    guard = os.getpid()
    worker = os.fork()
    if worker:
        # The worker's end must be the end of these: the parent reads it from them.
        os.close(0)
        os.close(1)
        _own_group(worker)
        _guard(worker, parent)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(1)
    _own_group(os.getpid())
    _pass_niceness_on(guard)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _own_group(worker: int) -> None:
    # By both, so that it is done before either goes on.
    try:
        os.setpgid(worker, worker)
    except OSError:
        pass


def _pass_niceness_on(guard: int) -> None:
    """Makes the guard's session as nice as this process, if it leads one.

    Where Linux shares the processor out between sessions (its autogroups, see sched(7)), niceness counts within one only.
    """
    niceness, end = os.nice(0), time.monotonic() + AUTOGROUP_S
    while niceness > 0 and os.getsid(0) == guard and time.monotonic() < end:
        try:
            AUTOGROUP.write_text(str(niceness))
            return
        except BlockingIOError:  # another process was first
            time.sleep(0.05)
        except OSError:
            return


def _guard(worker: int, parent: int) -> NoReturn:
    status, told = None, False
    while status is None:
        # Asked after each wake-up and never kept: the signal of a thread that ended says nothing about its process.
        if told or os.getppid() != parent:
            kill_group(worker)
        for pid, ended in _ended():
            status = ended if pid == worker else status
        if status is None:
            woken = signal.sigtimedwait(AWAITED, LOOK_S)
            told = told or (woken is not None and woken.si_signo == signal.SIGTERM)
    kill_group(worker)
    while orphans := children_of(os.getpid()):
        for pid in orphans:
            kill(pid)
        for pid in orphans:
            _wait(pid)
    _end_as(status)


def _ended() -> Iterator[tuple[int, int]]:
    """Process id and status of the children that ended since."""
    try:
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            yield ended
    except ChildProcessError:
        return


def _end_as(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        _prctl(PR_SET_DUMPABLE, 0)
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def kill_group(group: int) -> None:
    """SIGKILL to all of a process group, if there is one."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def kill(pid: int) -> None:
    """SIGKILL to a process, if it is there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _wait(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        pass


def children_of(pid: int) -> list[int]:
    """Process ids of the children of a process, those included that ended and were not waited for."""
    return [other for other, parent, _ in processes() if parent == pid]


def session_of(pid: int) -> list[int]:
    """Process ids of those in the session that `pid` leads or led."""
    return [other for other, _, session in processes() if session == pid]


def processes() -> Iterator[tuple[int, int, int]]:
    """(process id, its parent's, its session's) of all processes, from /proc; see proc(5)."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                # The name, in parentheses, may hold anything.
                _, parent, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            except (OSError, ValueError):
                continue
            yield int(folder.name), int(parent), int(session)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
