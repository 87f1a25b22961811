"""Memory of the worker's own process: what it has, what it may have, when it has grown too much."""

from __future__ import annotations

import resource
from pathlib import Path

from tuner.measure.memory import statm_bytes

# What every candidate may map beyond what its worker has: g++, which inherits the cap, needs up to about 2 GiB for one kernel.
MIN_CAP_BYTES = 4 * 2**30
# A candidate may need so many times the default's peak; one that needs more than a few percent more never wins.
CAP_FACTOR = 4
# Share of the memory that is free now which the cap leaves to the rest of the machine.
LEFT_SHARE = 0.1
# Growth since the graph was opened at which a worker is replaced: compiled code, and what leaks of it.
LEAK_BYTES, LEAK_FACTOR = 2 * 2**30, 4


def mapped_bytes() -> int:
    """Address space of this process now."""
    return statm_bytes(0)


def resident_bytes_now() -> int:
    """Physical memory of this process now; 0 where /proc does not tell."""
    return statm_bytes(1)


def available_bytes() -> int | None:
    """What this process could still use before the kernel kills somebody: of the machine and of its control group (version 2)."""
    found = [value for value in (_meminfo_available(), _cgroup_available()) if value is not None]
    return min(found, default=None)


def _meminfo_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None


def _cgroup_available() -> int | None:
    try:
        path = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        folder = Path("/sys/fs/cgroup") / path.lstrip("/")
        return int((folder / "memory.max").read_text()) - int((folder / "memory.current").read_text())
    # Also where the limit is the word "max".
    except (OSError, ValueError, StopIteration):
        return None


def cap_memory(default_peak_bytes: int | None) -> int:
    """Limits the address space of this process, and of each that it starts; the answer is the limit, in bytes.

    Beyond it an allocation fails, in the one who asks, where else the kernel would kill whom it likes. default_peak_bytes: of the
    default, from which what candidates may need is derived; None: as much as the machine has. To be called again for each graph.
    """
    free = available_bytes()
    allowed = [] if free is None else [int(free * (1 - LEFT_SHARE))]
    if default_peak_bytes is not None:
        allowed.append(max(MIN_CAP_BYTES, CAP_FACTOR * default_peak_bytes))
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = mapped_bytes() + min(allowed) if allowed else hard
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    return limit


def is_leaking(opened_bytes: int, now_bytes: int) -> bool:
    """Whether a worker is to be replaced: `resident_bytes` of its answer to "open", and of the latest to "try" or "time"."""
    return now_bytes - opened_bytes > LEAK_BYTES or now_bytes > LEAK_FACTOR * opened_bytes > 0
