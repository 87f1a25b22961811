"""The loop of the measuring process: whatever a request does becomes an answer, in words."""

from __future__ import annotations

import errno
import io
import json
import os
import threading
from typing import Any

import pytest

from tuner.errors import UnsupportedGraph, WorkerDied, WorkerError, WorkerTimeout
from tuner.measure.device import open_device
from tuner.workers import child
from tuner.workers.verdicts import TRACEBACK_CHARACTERS, failure, lost, starved


class Wordless(Exception):
    def __init__(self) -> None:
        self.lock = threading.Lock()  # which cannot be pickled

    def __str__(self) -> str:
        raise RuntimeError("no words")


class LostDevice(RuntimeError):
    pass


def answers_to(error: BaseException) -> list[dict[str, Any]]:
    """Answers to two requests, of which the first raises."""

    class Raising(child.Handler):
        def __call__(self, request: dict[str, Any]) -> Any:
            if request["do"] == "raise":
                raise error
            return "there"

    device = open_device("cpu")
    device.is_sticky = lambda error: isinstance(error, LostDevice)  # type: ignore[method-assign]
    out = io.StringIO()
    child.serve(io.StringIO('{"do": "raise"}\n{"do": "something"}\n'), out, Raising(device))
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("first\nsecond"), "ValueError: first"),
        (Wordless(), "Wordless"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_any_error_becomes_an_answer_and_the_loop_goes_on(error, message):
    told, after = answers_to(error)
    assert told["error"]["message"] == message
    assert not told["error"]["refused"]
    assert type(error).__name__ in told["error"]["traceback"]
    assert after == {"ok": "there"}


def test_a_refusal_keeps_its_reason_and_words():
    told, _ = answers_to(UnsupportedGraph("symbolic_sizes", "node x has symbolic sizes"))
    assert (told["error"]["refused"], told["error"]["reason"]) == (True, "symbolic_sizes")
    assert told["error"]["message"] == "node x has symbolic sizes"


def test_a_lost_device_is_told():
    assert [answers_to(error)[0]["error"]["sticky"] for error in (LostDevice(), RuntimeError())] == [True, False]


def test_a_failure_keeps_the_end_of_its_text_and_no_frames():
    def deep(n: int) -> None:
        tensor = [n]  # stands for what frames hold
        if n == 0:
            raise ValueError("x" * 5000)
        deep(n - 1)
        del tensor

    try:
        deep(200)
    except ValueError as error:
        caught = error
    told = failure(caught)
    assert len(told["traceback"]) == TRACEBACK_CHARACTERS
    assert told["traceback"].rstrip().endswith("x" * 100)
    last = caught.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    assert last is not None
    assert not last.tb_frame.f_locals


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (WorkerTimeout("no answer"), "timeout"),
        (WorkerDied("ended (SIGSEGV)"), "crash"),
        (WorkerDied("ended (SIGABRT)", "std::bad_alloc"), "out_of_resources"),
        (WorkerError("KeyError", "Traceback"), "crash"),
        (
            WorkerError("RuntimeError: DefaultCPUAllocator: can't allocate memory"),
            "out_of_resources",
        ),
        (WorkerTimeout("no answer", "cc1plus: out of memory"), "timeout"),
    ],
)
def test_a_lost_worker_is_a_verdict_on_the_candidate(error, status):
    assert lost(error) == {"status": status, "message": str(error), "traceback": error.traceback}


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("C++ compile error\ncc1plus: out of memory allocating 65536 bytes"),
        RuntimeError("C++ compile error\ng++: fatal error: Killed signal terminated program cc1plus"),
        RuntimeError("C++ compile error\n/tmp/ccX.s: Assembler: fatal error: can't write: No space left on device"),
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
        OSError(errno.EROFS, os.strerror(errno.EROFS)),
    ],
)
def test_memory_or_a_disk_that_ran_out_is_known_by_its_words(error):
    assert starved(error)
    assert not starved(RuntimeError("another error"))
