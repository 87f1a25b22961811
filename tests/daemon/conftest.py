"""Daemons in processes of their own, and the application called without any."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tuner.errors import DaemonError
from tuner.lookup.unix_http import request

DEADLINE_S = 60.0
Call = Callable[..., tuple[int, Any]]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short, private folder: the path of a Unix socket holds about 100 bytes."""
    path = Path(tempfile.mkdtemp(prefix="tuner-"))
    yield path
    shutil.rmtree(path)


class Daemons:
    """`tuner serve` as a user starts it; all that are left are killed at the end of the test."""

    def __init__(self, folder: Path):
        self.store, self.socket = folder / "store.db", folder / "run" / "d.sock"
        self.running: list[subprocess.Popen[str]] = []

    def start(self, *options: str, prepare: str = "") -> subprocess.Popen[str]:
        """A daemon with these options, else with its store and socket only; `prepare`: what its process runs first."""
        code = f"{prepare}\nfrom tuner.cli.main import main; main(prog_name='tuner')"
        given = options or ("--store", str(self.store), "--socket", str(self.socket))
        process = subprocess.Popen([sys.executable, "-c", code, "serve", *given], stderr=subprocess.PIPE, text=True)
        self.running.append(process)
        return process

    def started(self) -> subprocess.Popen[str]:
        """A daemon that answers."""
        process = self.start()
        self.hello(process)
        return process

    def hello(self, process: subprocess.Popen[str]) -> Any:
        """The greeting of the daemon, as soon as `process` gives one."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end and process.poll() is None:
            try:
                greeting = request(self.socket, "GET", "/v2/hello")
                if greeting["pid"] == process.pid:
                    return greeting
            except (OSError, DaemonError):
                pass
            time.sleep(0.02)
        raise AssertionError(f"no daemon: {process.communicate()[1] if process.poll() is not None else 'it does not answer'}")

    def ended(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        """Exit code and standard error of a daemon, when it has ended."""
        _, error = process.communicate(timeout=DEADLINE_S)
        return process.returncode, error

    def close(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()


@pytest.fixture
def daemons(folder: Path) -> Iterator[Daemons]:
    made = Daemons(folder)
    yield made
    made.close()


def asgi_call(app: Any, method: str, path: str, body: Any = b"") -> tuple[int, Any]:
    """Status and JSON of one request to an application; a body that is no bytes is sent as JSON, a list of bytes in pieces."""
    pieces = body if isinstance(body, list) else [body if isinstance(body, bytes) else json.dumps(body).encode()]
    queue = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces] + [{"type": "http.request"}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return queue.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [],
    }
    asyncio.run(app(scope, receive, send))
    payload = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], json.loads(payload)


@pytest.fixture
def call() -> Call:
    return asgi_call
