"""One user of a device at a time on this host, whichever user, sweep or daemon he is: a lock file for each device.

Locks are advisory, and the kernel drops them when their holder dies. Where the folder cannot be used, a device is used without
one: a sweep is worth more than the certainty of being alone, and what disturbs it shows in its measurements.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tuner.cache.lock import Lock, LockTaken, take_lock

log = logging.getLogger(__name__)

# The same for all users, whatever their TMPDIR.
FOLDER = Path("/tmp/tuner-devices")
# Of one who waits, in seconds; the first look and the slowest.
FIRST_LOOK_S, LOOK_S = 0.05, 0.5


@contextlib.contextmanager
def hold_device(name: str, wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Holds the device meanwhile; waits until it is free, and can be interrupted.

    name: "cpu", or the UUID of a GPU. wait: called once with "device ... is held by ...", where there is something to wait for.
    """
    look_s = FIRST_LOOK_S
    while isinstance(held := _take(name), LockTaken):
        if wait is not None:
            wait(f"device {name} is held by {held.holder}")
            wait = None
        time.sleep(look_s)
        look_s = min(2 * look_s, LOOK_S)
    try:
        yield
    finally:
        held.release()


def try_hold_device(name: str) -> Lock | None:
    """Holds the device until the lock is released; None where another holds it."""
    held = _take(name)
    return None if isinstance(held, LockTaken) else held


def lock_name(device: str) -> str:
    """What `hold_device` wants for "cpu" or "cuda:N". A GPU goes by its UUID: its number differs between processes."""
    if not device.startswith("cuda"):
        return device
    import torch

    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def _take(name: str) -> Lock | LockTaken:
    try:
        return take_lock(_folder() / (re.sub(r"[^\w.-]", "_", name) + ".lock"), mode=0o666)
    except LockTaken as taken:
        return taken
    except OSError as error:
        log.warning("device %s is used without a lock: %s", name, error)
        return Lock(None)


def _folder() -> Path:
    """The folder of the locks, made where missing, writable for all. Raises OSError where it is anything else than a folder."""
    with contextlib.suppress(FileExistsError):
        FOLDER.mkdir()
        FOLDER.chmod(0o1777)
    if not stat.S_ISDIR(os.lstat(FOLDER).st_mode):
        raise NotADirectoryError(f"{FOLDER} is not a folder")
    return FOLDER
