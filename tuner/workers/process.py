"""The parent's side of the measuring process: start it, ask it with a deadline, kill it."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from tuner.errors import UnsupportedGraph, WorkerDied, WorkerError, WorkerTimeout

# Whole seconds that a request may take; a sum of the slowest seen with a wide margin, for the first form.
START_S = 120.0
LOG_TAIL_BYTES = 2000


class Worker:
    """A child in a process group of its own, with `threads` intra-op threads. It dies with its parent, also on SIGKILL of it."""

    def __init__(self, threads: int):
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tuner.workers.child", "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,
        )
        self.name = f"{os.uname().nodename}:{self._process.pid}:{int(time.time())}"
        self._buffer = b""
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, timeout_s: float, **request: Any) -> Any:
        """The child's answer. Raises WorkerTimeout (the child is killed then), WorkerDied, UnsupportedGraph, WorkerError."""
        deadline = time.monotonic() + timeout_s
        self._write(json.dumps(request).encode() + b"\n", deadline, timeout_s)
        try:
            answer = json.loads(self._read_line(deadline, timeout_s))
        except ValueError as error:
            self.kill()
            raise WorkerDied(f"the measuring process answered nonsense and was killed: {error}") from error
        if "error" in answer:
            told = answer["error"]
            if told["refused"]:
                raise UnsupportedGraph(told["reason"], told["message"])
            raise WorkerError(told["message"])
        return answer["ok"]

    def _write(self, data: bytes, deadline: float, timeout_s: float) -> None:
        # A request larger than the pipe waits for the child to read it, and a child that hangs never does.
        assert self._process.stdin is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdin, selectors.EVENT_WRITE)
            while data:
                self._wait(selector, deadline, timeout_s)
                try:
                    data = data[os.write(self._process.stdin.fileno(), data) :]
                except BrokenPipeError:
                    raise self._died() from None

    def _wait(self, selector: selectors.BaseSelector, deadline: float, timeout_s: float) -> None:
        if not selector.select(max(0.0, deadline - time.monotonic())):
            self.kill()
            raise WorkerTimeout(f"no answer within {timeout_s:.0f} s: the measuring process was killed")

    def _read_line(self, deadline: float, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                self._wait(selector, deadline, timeout_s)
                chunk = os.read(self._process.stdout.fileno(), 1 << 16)
                if not chunk:
                    raise self._died()
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _died(self) -> WorkerDied:
        self.kill()
        code = self._process.returncode
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return WorkerDied(f"the measuring process ended ({how})" + (f": {lines[-1][:200]}" if lines else ""))

    def kill(self) -> None:
        """Ends the child and everything it started."""
        # Once waited for, its number may be another's.
        if self._process.returncode is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass
