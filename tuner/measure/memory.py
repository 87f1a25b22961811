"""Peak memory of one call on the CPU."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path


def statm_bytes(field: int) -> int:
    """A field of /proc/self/statm (proc(5): 0 is the address space, 1 the physical memory), in bytes; 0 where nothing tells."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[field]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


@functools.cache
def resident_bytes() -> int:
    """Memory of this process, in bytes, when this was first asked: with torch loaded, before anything was compiled."""
    return statm_bytes(1)


def call_growth_bytes(function: Callable[[], object]) -> int:
    """Largest growth of allocated memory during one call, in bytes, as the CPU allocator reports it to the profiler."""
    # Here, so that those who only ask what a process has do not load torch.
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        function()
    assert recorded.profiler is not None
    allocated = peak = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            allocated += event.nbytes()
            peak = max(peak, allocated)
    return peak
