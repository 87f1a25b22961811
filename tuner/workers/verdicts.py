"""Failures as data: what went wrong over a candidate, in words, with nothing of the error itself kept alive."""

from __future__ import annotations

import traceback
from typing import Any

from tuner.errors import WorkerError, WorkerTimeout, find_cause, one_line
from tuner.measurement import Status

TRACEBACK_CHARACTERS = 4000
# What torch, C++, the C++ compiler, the C library and CUDA say when memory ends; and what is said of a disk.
OUT_OF_RESOURCES = (
    *("can't allocate memory", "out of memory", "bad_alloc", "cannot allocate memory", "virtual memory exhausted"),
    *("memory exhausted", "failed to map segment", "killed signal terminated program"),
    *("no space left", "disk quota exceeded", "read-only file system"),
)


def failure(error: BaseException) -> dict[str, str]:
    """message: class and first line; traceback: its text's end. For any error, also one whose own str() fails."""
    text = "".join(traceback.format_exception(error))[-TRACEBACK_CHARACTERS:]
    # Frames hold tensors.
    traceback.clear_frames(error.__traceback__)
    return {"message": _message(error), "traceback": text}


def _message(error: BaseException) -> str:
    try:
        return one_line(error)
    # A border like the worker loop's: the error is the candidate's, and so is its str().
    except BaseException:
        return type(error).__name__


def starved(error: BaseException) -> bool:
    """Whether memory or the disk ran out, as far as the error tells."""
    return find_cause(error, MemoryError) is not None or mentions_resources(failure(error)["traceback"])


def mentions_resources(text: str) -> bool:
    return any(words in text.lower() for words in OUT_OF_RESOURCES)


def lost(error: WorkerError) -> dict[str, Any]:
    """The verdict on a candidate over which the worker was lost, or did not answer as it should."""
    status: Status = "crash"
    if isinstance(error, WorkerTimeout):
        status = "timeout"
    elif mentions_resources(f"{error} {error.traceback}"):
        status = "out_of_resources"
    return {"status": status, "message": str(error), "traceback": error.traceback}
