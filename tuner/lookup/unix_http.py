"""One HTTP request over a Unix socket, within a deadline that holds for all of it."""

from __future__ import annotations

import http.client
import json
import os
import socket
import stat
import struct
import time
from pathlib import Path
from typing import Any

from tuner.errors import DaemonError

RESPONSE_LIMIT = 16 * 1024 * 1024


def socket_trouble(path: Path) -> str | None:
    """Why the socket at `path` is not to be trusted; None where it may be used, "" where there is none."""
    try:
        status, folder = os.lstat(path), os.stat(path.parent)
    except OSError:
        return ""
    if not stat.S_ISSOCK(status.st_mode):
        return f"{path} is not a socket"
    if status.st_uid != os.geteuid():
        return f"socket {path} belongs to another user"
    if folder.st_uid not in (os.geteuid(), 0) or folder.st_mode & 0o022:
        return f"socket {path} is in a folder that others can write to"
    return None


def request(path: Path, method: str, target: str, body: Any = None, timeout_s: float = 5.0) -> Any:
    """The JSON value that the daemon at the socket `path` answers with status 200; a body that is bytes is JSON already.

    Raises DaemonError on any other status, with the daemon's own words, and on what does not look like our protocol; OSError
    (TimeoutError included) where it does not answer in `timeout_s` seconds, counted from the call to the last byte.
    """
    end = time.monotonic() + timeout_s
    connection = _Connection(path, end)
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, target, data, {"Content-Type": "application/json", "Connection": "close"})
        response = connection.getresponse()
        payload = response.read(RESPONSE_LIMIT + 1)
        if len(payload) > RESPONSE_LIMIT:
            raise DaemonError(f"the daemon's answer is larger than {RESPONSE_LIMIT} bytes")
        value = json.loads(payload)
        if response.status != 200:
            reason = value.get("error") if isinstance(value, dict) else None
            raise DaemonError(f"the daemon refused {target}: {str(reason or response.status)[:200]}")
        return value
    except (http.client.HTTPException, ValueError, RecursionError) as error:
        raise DaemonError(f"the daemon at {path} does not speak our protocol: {error!r}") from error
    finally:
        connection.close()


class _DeadlineSocket(socket.socket):
    """A socket whose every operation may take what is left until `end`: a timeout per operation would let a slow peer drip."""

    end = 0.0

    def hurry(self) -> None:
        left = self.end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the daemon did not answer in time")
        self.settimeout(left)

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self.hurry()
        return super().recv_into(*args, **kwargs)

    def sendall(self, *args: Any, **kwargs: Any) -> None:
        self.hurry()
        super().sendall(*args, **kwargs)


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, end: float):
        super().__init__("tuner")
        self._path, self._end = path, end

    def connect(self) -> None:
        peer = _DeadlineSocket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.end = self._end
            peer.hurry()
            peer.connect(os.fspath(self._path))
            if hasattr(socket, "SO_PEERCRED"):
                size = struct.calcsize("3i")
                _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
                if uid != os.geteuid():
                    raise DaemonError(f"the daemon at {self._path} runs as another user")
        except BaseException:
            peer.close()
            raise
        self.sock = peer
