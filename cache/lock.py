"""One holder at a time: an advisory lock on a small file that names the process which holds it.

The kernel drops the lock when its holder dies, however it dies, so there are no stale locks. The file itself stays: removing it
would let two processes hold locks on two files of the same name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path


class LockTaken(Exception):
    """Another open file holds the lock. `pid` is its process, None where the file does not say."""

    def __init__(self, pid: int | None):
        super().__init__(f"locked by process {pid or 'unknown'}")
        self.pid = pid

    @property
    def holder(self) -> str:
        return f"process {self.pid}" if self.pid else "another process"


@dataclass
class Lock:
    """A lock that is held until `release`."""

    descriptor: int | None

    def release(self) -> None:
        """Give the lock up; a second call does nothing."""
        if self.descriptor is not None:
            descriptor, self.descriptor = self.descriptor, None
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)


def take_lock(path: Path, mode: int = 0o600) -> Lock:
    """Hold the lock file `path`, made if missing; does not wait. mode: who may hold it, whatever the umask; 0o666 for all users.

    Raises LockTaken; OSError where it cannot be made or locked.
    """
    descriptor = _open(path, mode)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = _pid_in(descriptor)
        os.close(descriptor)
        raise LockTaken(pid) from None
    except BaseException:
        os.close(descriptor)
        raise
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return Lock(descriptor)


def _open(path: Path, mode: int) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    # without O_CREAT first: Linux refuses it for another user's file in a folder like /tmp (fs.protected_regular)
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, flags)
    descriptor = os.open(path, flags | os.O_CREAT, mode)
    with contextlib.suppress(OSError):  # not ours after all: made by another user meanwhile
        os.fchmod(descriptor, mode)
    return descriptor


def _pid_in(descriptor: int) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(os.pread(descriptor, 32, 0))
    return None
