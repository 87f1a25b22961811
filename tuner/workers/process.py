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
from collections.abc import Mapping
from typing import Any

from tuner.errors import UnsupportedGraph, WorkerDied, WorkerError, WorkerTimeout
from tuner.workers.guard import kill, session_of
from tuner.workers.verdicts import TRACEBACK_CHARACTERS

# Seconds within which a worker has started: it imports torch, maybe from a slow disk, maybe beside others that do.
START_S = 120.0
# Seconds that a guard has to kill its worker and all that it started.
END_S = 10.0
CHILD = "tuner.workers.child"


class Worker:
    """A child with a guard of its own and `threads` intra-op threads. It dies with this process, and all that it started with it.

    module: what is run as the child, in place of `tuner.workers.child`: for faults on purpose.
    """

    def __init__(self, threads: int, device: str = "cpu", module: str = CHILD, environment: Mapping[str, str] | None = None):
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        self._log_start = 0
        # What the measuring process compiles by default must be the default.
        counts = {"TUNER_INDUCTOR": "0", "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        told = ["--threads", str(threads), "--device", device, "--parent", str(os.getpid())]
        self._guard = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *told],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **counts, **(environment or {})},
            start_new_session=True,
        )
        self.name = f"{os.uname().nodename}:{self._guard.pid}:{int(time.time())}"
        self._buffer = b""
        assert self._guard.stdin is not None
        os.set_blocking(self._guard.stdin.fileno(), False)

    @property
    def pid(self) -> int:
        """Process id of the guard; the worker is its child, in the session that the guard leads."""
        return self._guard.pid

    def ask(self, timeout_s: float, **request: Any) -> Any:
        """The child's answer. Raises WorkerTimeout (the child is killed then), WorkerDied, UnsupportedGraph, WorkerError."""
        self.send(request, deadline := time.monotonic() + timeout_s, timeout_s)
        return self.receive(deadline, timeout_s)

    def send(self, request: dict[str, Any], deadline: float, timeout_s: float) -> None:
        """Half of `ask`: the child has read the whole request by `deadline` (of the monotonic clock). Raises as `ask` does."""
        self._log_start = self._log.seek(0, os.SEEK_END)
        data = json.dumps(request).encode() + b"\n"
        # A request larger than the pipe waits for the child to read it, and a child that hangs never does.
        assert self._guard.stdin is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._guard.stdin, selectors.EVENT_WRITE)
            while data:
                self._wait(selector, deadline, timeout_s)
                try:
                    data = data[os.write(self._guard.stdin.fileno(), data) :]
                except BrokenPipeError:
                    raise self._died() from None

    def receive(self, deadline: float, timeout_s: float) -> Any:
        """The other half: the answer, waited for until `deadline`. Raises as `ask` does."""
        try:
            answer = json.loads(self._read_line(deadline, timeout_s))
        except ValueError as error:
            self.kill()
            raise WorkerDied(f"the measuring process answered nonsense and was killed: {error}") from error
        if "error" in answer:
            told = answer["error"]
            if told["refused"]:
                raise UnsupportedGraph(told["reason"], told["message"])
            if told["sticky"]:
                self.kill()
                raise WorkerDied(f"the device was lost, the measuring process killed: {told['message']}", told["traceback"])
            raise WorkerError(told["message"], told["traceback"])
        return answer["ok"]

    def fileno(self) -> int:
        """Readable when an answer, or the end of the child, is there: for those who wait for several workers."""
        assert self._guard.stdout is not None
        return self._guard.stdout.fileno()

    def _wait(self, selector: selectors.BaseSelector, deadline: float, timeout_s: float) -> None:
        if not selector.select(max(0.0, deadline - time.monotonic())):
            self.kill()
            raise WorkerTimeout(f"no answer within {timeout_s:.0f} s: the measuring process was killed", self._last_words())

    def _read_line(self, deadline: float, timeout_s: float) -> bytes:
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno(), selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                self._wait(selector, deadline, timeout_s)
                chunk = os.read(self.fileno(), 1 << 16)
                if not chunk:
                    raise self._died()
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _died(self) -> WorkerDied:
        # The guard ends by itself when it has cleaned up, and in its worker's way.
        self._end(self._awaited())
        code = self._guard.returncode
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        words = self._last_words()
        lines = words.strip().splitlines()
        message = f"the measuring process ended ({how})" + (f": {lines[-1][:200]}" if lines else "")
        return WorkerDied(message, words)

    def _last_words(self) -> str:
        # Since the last request: what was printed over earlier candidates says nothing about this one.
        self._log.seek(max(self._log_start, self._log.seek(0, os.SEEK_END) - TRACEBACK_CHARACTERS))
        return self._log.read().decode(errors="replace")

    def _awaited(self) -> bool:
        try:
            self._guard.wait(END_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Ends the child and everything it started."""
        # Once waited for, its number may be another's.
        if self._guard.returncode is None:
            self._guard.terminate()
            self._end(self._awaited())

    def _end(self, ended: bool) -> None:
        if not ended:
            self._guard.kill()
            self._guard.wait()
        # Where the guard itself was killed, it could not clean up.
        for pid in session_of(self._guard.pid):
            kill(pid)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for stream in (self._guard.stdin, self._guard.stdout, self._log):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass
