"""The CPU as a device: calls run at once, in the calling thread and torch's pool."""

from __future__ import annotations

import ctypes
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from tuner.errors import TunerError
from tuner.measure.device import Call
from tuner.measure.memory import call_growth_bytes, resident_bytes
from tuner.measure.quietness import Conditions, host_conditions

CLOCKS: dict[str, Callable[[], int]] = {"thread": time.thread_time_ns, "wall": time.perf_counter_ns}
CACHES = "/sys/devices/system/cpu/cpu{core}/cache"
# Where the kernel does not tell: larger than the last-level cache of most desktop and virtual machines.
UNKNOWN_CACHE_BYTES = 64 * 2**20
# malloc.h. The C library fills what it hands out with the complement of the value, and what is given back with the value.
M_PERTURB = -6
# Handed out as 0x7f: 3.4e38 as float32 and bfloat16, NaN as float16, 1.4e306 as float64; 0xff (NaN) cannot be asked for.
PERTURB = 0x80
HANDED_OUT = PERTURB ^ 0xFF
# Not smaller: blocks of up to 1 KiB come now and then as they were freed (glibc 2.26 on: _int_malloc, "return_cached").
PROBED_BYTES = (4096, 2**20)


class CpuDevice:
    name = "cpu"
    clocks: tuple[str, ...] = tuple(CLOCKS)

    def __init__(self) -> None:
        resident_bytes()  # first asked here, before anything is compiled
        self._buffer: torch.Tensor | None = None

    def synchronize(self) -> None:
        """A call on the CPU has ended, or raised, when it returns."""

    def ready(self, call: Call, mode: str) -> Call:
        if mode != "eager":
            raise TunerError(f"a CPU measures calls in the mode eager, not {mode}")
        return call

    def time_ms(self, call: Call, repetitions: int, clock: str, before: Call | None) -> float:
        if clock not in CLOCKS:
            raise TunerError(f"a CPU has the clocks {', '.join(CLOCKS)}, not {clock}")
        now = CLOCKS[clock]
        if before is None:
            start = now()
            for _ in range(repetitions):
                call()
            return (now() - start) / repetitions / 1e6
        spent = 0
        for _ in range(repetitions):
            before()
            start = now()
            call()
            spent += now() - start
        return spent / repetitions / 1e6

    def flush(self) -> None:
        if self._buffer is None:
            self._buffer = torch.zeros(2 * last_level_cache_bytes() // 8, dtype=torch.int64)
        # reads and writes: a plain fill may go past the caches
        self._buffer.add_(1)

    def peak_bytes(self, call: Call) -> int:
        """Of a process that has loaded torch and makes this call: what its user sees of it, but for the inputs."""
        return resident_bytes() + call_growth_bytes(call)

    @contextmanager
    def poisoned(self) -> Iterator[None]:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is None or not mallopt(M_PERTURB, PERTURB) or not _handed_out_poisoned():
            warnings.warn("this C library does not fill new memory: garbage was left in freed blocks only", stacklevel=3)
            leave_garbage()
        try:
            yield
        finally:
            if mallopt is not None:
                mallopt(M_PERTURB, 0)

    def conditions(self) -> Conditions:
        return host_conditions()

    def is_sticky(self, error: BaseException) -> bool:
        return False


def _handed_out_poisoned() -> bool:
    return all(bool((torch.empty(size, dtype=torch.uint8) == HANDED_OUT).all()) for size in PROBED_BYTES)


def leave_garbage() -> None:
    """Fills blocks of many sizes and gives them back: an allocator without a fill of its own likely hands them out next."""
    blocks = [torch.full((2**power,), HANDED_OUT, dtype=torch.uint8) for power in range(6, 26) for _ in range(3)]
    del blocks


def last_level_cache_bytes() -> int:
    """Sum of the last-level caches that the cores of this process reach, each counted once; UNKNOWN_CACHE_BYTES if not told."""
    found: dict[tuple[int, str], int] = {}
    for core in os.sched_getaffinity(0):
        for index in Path(CACHES.format(core=core)).glob("index*"):
            try:
                level = int((index / "level").read_text())
                size = (index / "size").read_text().strip()
                found[level, (index / "shared_cpu_list").read_text().strip()] = _bytes_of(size)
            except (OSError, ValueError):
                continue
    last = max((level for level, _ in found), default=0)
    return sum(size for (level, _), size in found.items() if level == last) or UNKNOWN_CACHE_BYTES


def _bytes_of(size: str) -> int:
    """Bytes of a size as the kernel writes it: "32768K"."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    return int(size[:-1]) * units[size[-1]] if size[-1:] in units else int(size)
