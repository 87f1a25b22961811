"""All errors a user can meet, with the exit code of each.

TunerError                1  anything below, when nothing more precise fits
├── UsageError            2  an option or argument that makes no sense (click's own exit code)
├── SpecError             3  a SPEC that cannot be loaded, run or captured
│   └── UnsupportedGraph  3  a graph that cannot be stored, rebuilt or tuned; the message names the node
├── StoreError            4  the store cannot be opened, read or written
│   └── StoreBusy         4  another process holds the store's write lock
├── DaemonError           5  the daemon cannot start or does not answer
├── PlanError             6  a plan that does not validate
│   ├── PlanNotRealised   6  the compiler did not make what the plan asks for
│   ├── PlanRefused       6  a plan that may not be applied to this graph, or in this mode
│   └── DuplicateCode     6  the generated code was measured before; raised to skip its compilation
├── RandomPlanFailed      6  a compile failed under a plan drawn at random for a test, and not by default
├── WorkerError           7  the measuring process failed
│   ├── WorkerTimeout     7  ... it did not answer in time and was killed
│   └── WorkerDied        7  ... it ended by itself
└── DeviceBusy            8  the device is not quiet enough to be measured
Interrupted by Ctrl-C: 130.
"""

from __future__ import annotations

from typing import TypeVar

Found = TypeVar("Found", bound=BaseException)


def one_line(error: BaseException) -> str:
    """Class and first line of an error, at most 300 characters: for logs, verdicts and messages."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def find_cause(error: BaseException | None, kind: type[Found]) -> Found | None:
    """The error of this kind that `error` is, was raised from, or wraps as torch's own errors do; None if there is none."""
    while error is not None:
        inner = getattr(error, "inner_exception", None)
        for candidate in (error, inner):
            if isinstance(candidate, kind):
                return candidate
        error = inner if inner is not None else error.__cause__ or error.__context__
    return None


class TunerError(Exception):
    """Base of every error that is reported to a user as one line."""

    exit_code = 1


class UsageError(TunerError):
    """An option or argument that makes no sense."""

    exit_code = 2


class SpecError(TunerError):
    """A SPEC that cannot be imported, called, run in eager mode or captured."""

    exit_code = 3


class UnsupportedGraph(SpecError):
    """A graph that cannot be stored, rebuilt or tuned. `reason` is a short word for counters."""

    def __init__(self, reason: str, message: str):
        super().__init__(message)
        self.reason = reason


class StoreError(TunerError):
    """The store cannot be opened, read or written."""

    exit_code = 4


class StoreBusy(StoreError):
    """Another process holds the store's write lock."""


class DaemonError(TunerError):
    """The daemon cannot start or does not answer."""

    exit_code = 5


class PlanError(TunerError):
    """A plan that does not validate against the declared search space."""

    exit_code = 6


class PlanNotRealised(PlanError):
    """The compiler's realised groups, `groups`, differ from those the plan asks for."""

    def __init__(self, groups: tuple[tuple[str, ...], ...] = ()):
        super().__init__("the compiler's groups are not those that the plan asks for")
        self.groups = groups


class PlanRefused(PlanError):
    """The plan may not be applied to this graph, on this machine, or in this mode of the compiler, whatever would come out.

    why: in a word or two, to count by.
    """

    def __init__(self, message: str, why: str = "not allowed here"):
        super().__init__(message)
        self.why = why


class DuplicateCode(PlanError):
    """The generated code equals code that is known already; `code_key` is its hash."""

    def __init__(self, code_key: str):
        super().__init__(f"generated code {code_key[:12]} was seen before")
        self.code_key = code_key


class RandomPlanFailed(TunerError):
    """For tests: a graph that compiles by default did not under the plan drawn for it. Says what makes it happen again."""

    exit_code = 6

    def __init__(self, seed: str, key: str, message: str):
        super().__init__(f"TUNER_RANDOM_PLANS={seed}, graph {key[:12]}, {message}")


class WorkerError(TunerError):
    """The measuring process failed. traceback: the end of the text that it left, "" where it left none."""

    exit_code = 7

    def __init__(self, message: str, traceback: str = ""):
        super().__init__(message)
        self.traceback = traceback


class WorkerTimeout(WorkerError):
    """The measuring process did not answer in time and was killed."""


class WorkerDied(WorkerError):
    """The measuring process ended by itself."""


class DeviceBusy(TunerError):
    """The device was not quiet enough to be measured, also after waiting; the message says what was read."""

    exit_code = 8
