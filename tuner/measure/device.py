"""The narrow interface to what is measured on. One conformance suite holds for every implementation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tuner.errors import TunerError
from tuner.measure.quietness import Conditions

Call = Callable[[], Any]


class Device(Protocol):
    """Runs calls, times them, and tells about itself.

    name: "cpu", "cuda:0". clocks: those it has, the preferred first: "thread", "wall", "cuda_event".
    """

    name: str
    clocks: tuple[str, ...]

    def synchronize(self) -> None:
        """Waits for what was started; raises what went wrong in it."""

    def ready(self, call: Call, mode: str) -> Call:
        """The call as `mode` measures it: "eager": itself; "cuda_graph": captured now; its replay, outputs kept alive.

        Raises TunerError for a mode that the device has not.
        """

    def time_ms(self, call: Call, repetitions: int, clock: str, before: Call | None) -> float:
        """Milliseconds for one call, mean over `repetitions`; `before` runs before each, outside the clock. Ends synchronised.

        Raises TunerError for a clock that the device has not.
        """

    def flush(self) -> None:
        """Evicts the last-level cache: writes a buffer of twice its size."""

    def peak_bytes(self, call: Call) -> int:
        """Peak memory of one call as promise 1 counts it, less its inputs, which the caller adds."""

    def poisoned(self) -> AbstractContextManager[None]:
        """Meanwhile, memory that the allocator hands out holds garbage, so that a value that nobody wrote shows."""

    def conditions(self) -> Conditions:
        """A reading for quietness: counters and states now."""

    def is_sticky(self, error: BaseException) -> bool:
        """Whether the device is lost for this process, which then has to be replaced."""


def open_device(name: str) -> Device:
    """The device "cpu" or "cuda:N", to be opened before anything is compiled. Raises TunerError where there is none."""
    kind, _, index = name.partition(":")
    if name == "cpu":
        from tuner.measure.cpu import CpuDevice

        return CpuDevice()
    if kind == "cuda" and index.isdecimal():
        from tuner.measure.cuda import CudaDevice

        return CudaDevice(int(index))
    raise TunerError(f"no device {name!r}: cpu or cuda:N")
