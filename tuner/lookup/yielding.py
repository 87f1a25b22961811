"""What a sweep asks of a daemon that tunes: to let it go first."""

from __future__ import annotations

import os
from pathlib import Path

from tuner.errors import DaemonError
from tuner.lookup.unix_http import request, socket_trouble
from tuner.settings import PROTOCOL

# A daemon first ends what it has running: that takes the guards of its processes a moment.
TIMEOUT_S = 20.0


def ask_to_yield(socket: Path) -> bool:
    """Asks the daemon at `socket`, if there is one, to start no job until this process has ended; gives whether one was stopped.

    When this returns, the daemon has let go of store and device. Never raises: whoever holds them still is found by the locks.
    """
    if socket_trouble(socket) is not None:
        return False
    try:
        answer = request(socket, "POST", f"/v{PROTOCOL}/yield", {"pid": os.getpid()}, TIMEOUT_S)
    except (DaemonError, OSError):
        # one that does not tune refuses; one that does not answer cannot be asked
        return False
    return isinstance(answer, dict) and answer.get("stopped") is True
