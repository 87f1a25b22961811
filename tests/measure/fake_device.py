"""A device that exists in this file only: its clock stands where nobody moves it, and it misbehaves on demand."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tuner.errors import TunerError
from tuner.measure.device import Call
from tuner.measure.quietness import Conditions, GpuConditions

CACHE_BYTES = 2**20
STICKY = "fake error: an illegal memory access was encountered"


def always(value: float) -> Callable[[float], float]:
    return lambda now_s: value


class FakeDevice:
    """Two cores, of which calls keep one busy. What goes wrong in a call shows when it is waited for, as on a GPU.

    now_s: virtual time. neighbours: cores that others keep busy, stolen: cores that the hypervisor keeps back, mhz, gpu: by time.
    log: ("call" | "replay", name), ("flush",), ("wait",) and whatever tests append.
    """

    cores = 2

    def __init__(self, modes: tuple[str, ...] = ("eager",), seed: int = 0):
        self.name = "fake:0"
        self.clocks: tuple[str, ...] = ("wall", "thread")
        self.modes = modes
        self.now_s = 1000.0
        self.neighbours = self.stolen = always(0.0)
        self.mhz = always(3000.0)
        self.gpu: Callable[[float], GpuConditions | None] = lambda now_s: None
        self.log: list[tuple[str, ...]] = []
        self.readings = 0
        self.flushed_bytes = self.allocated = self.peak = 0
        self.fill = 0
        self._own_s = self._others_s = self._stolen_s = 0.0
        self._random = random.Random(seed)
        self._failed: BaseException | None = None

    def call(
        self,
        name: str,
        ms: float,
        *,
        first_ms: tuple[float, ...] = (),
        noise: float = 0.0,
        drift: float = 0.0,
        temporary_bytes: int = 0,
        returns: Any = None,
        fails: BaseException | None = None,
        hangs: bool = False,
        crashes: bool = False,
    ) -> Call:
        """A call that takes `ms`. first_ms: its first calls take these instead. noise: relative, uniform. drift: growth a second.

        returns: the (perhaps wrong) outputs. fails: what is raised when it is waited for. hangs, crashes: this process, for good.
        """
        first = iter(first_ms)
        born_s = self.now_s

        def run() -> Any:
            if crashes:
                os.kill(os.getpid(), signal.SIGSEGV)
            while hangs:
                signal.pause()
            self.log.append(("call", name))
            lasting_ms = next(first, ms * (1 + drift * (self.now_s - born_s)) * (1 + self._random.uniform(-noise, noise)))
            self.spend(lasting_ms / 1e3)
            self.allocate(temporary_bytes)
            self.allocated -= temporary_bytes
            self._failed = self._failed or fails
            return returns

        return run

    def spend(self, seconds: float) -> None:
        """This process computes for so long; others do as they do."""
        self._own_s += seconds
        self._pass(seconds)

    def wait(self, seconds: float) -> None:
        """This process sleeps."""
        self.log.append(("wait", f"{seconds:g}"))
        self._pass(seconds)

    def _pass(self, seconds: float) -> None:
        self._others_s += self.neighbours(self.now_s) * seconds
        self._stolen_s += self.stolen(self.now_s) * seconds
        self.now_s += seconds

    def allocate(self, size: int) -> bytes:
        """Memory as it comes: nobody wrote it. It is for the caller to take it off `allocated` again."""
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        return bytes([self.fill]) * size

    def synchronize(self) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def ready(self, call: Call, mode: str) -> Call:
        if mode not in self.modes:
            raise TunerError(f"{self.name} has the modes {', '.join(self.modes)}, not {mode}")
        if mode == "eager":
            return call

        def replay() -> Any:
            self.log.append(("replay",))
            return call()

        return replay

    def time_ms(self, call: Call, repetitions: int, clock: str, before: Call | None) -> float:
        if clock not in self.clocks:
            raise TunerError(f"{self.name} has the clocks {', '.join(self.clocks)}, not {clock}")
        spent_s = 0.0
        for _ in range(repetitions):
            if before is not None:
                before()
            start_s = self.now_s
            call()
            spent_s += self.now_s - start_s
        self.synchronize()
        return spent_s / repetitions * 1e3

    def flush(self) -> None:
        self.log.append(("flush",))
        self.flushed_bytes += 2 * CACHE_BYTES
        self.spend(1e-3)

    def peak_bytes(self, call: Call) -> int:
        before = self.peak = self.allocated
        call()
        self.synchronize()
        return self.peak - before

    @contextmanager
    def poisoned(self) -> Iterator[None]:
        self.fill = 0xFF
        try:
            yield
        finally:
            self.fill = 0

    def conditions(self) -> Conditions:
        self.readings += 1
        return Conditions(
            at_s=self.now_s,
            cores=self.cores,
            own_s=self._own_s,
            switches=0,
            busy_s=self._own_s + self._others_s,
            steal_s=self._stolen_s,
            waited_s=0.0,
            mhz=self.mhz(self.now_s),
            gpu=self.gpu(self.now_s),
        )

    def is_sticky(self, error: BaseException) -> bool:
        return str(error) == STICKY
