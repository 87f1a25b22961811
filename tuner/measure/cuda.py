"""An NVIDIA or AMD GPU as a device, through torch.cuda: calls are queued on the current stream and run later."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tuner.errors import TunerError
from tuner.measure.device import Call
from tuner.measure.nvml import gpu_conditions
from tuner.measure.quietness import Conditions, host_conditions

# Where the device does not tell its L2: what Triton's do_bench writes.
UNKNOWN_CACHE_BYTES = 128 * 2**20
# AMD's devices tell the L2 (4 MiB), behind which MI300 has 256 MiB more: CDNA 3 white paper, "Infinity Cache".
HIP_LAST_LEVEL_BYTES = 256 * 2**20
# The largest block of the caching allocator's pool of small ones: c10/core/AllocatorConfig.h, kSmallSize.
SMALL_BLOCK_BYTES = 2**20
# As torch's own examples of graph capture: libraries set themselves up in the first calls, which cannot be captured.
CALLS_BEFORE_CAPTURE = 3
# After these, every further call in this process fails: CUDA runtime API, cudaError, "must be terminated and relaunched".
STICKY = (
    "illegal memory access",
    "misaligned address",
    "unspecified launch failure",
    "illegal instruction",
    "device-side assert",
    "global/shared address space",
    "invalid program counter",
    "hardware stack error",
    "uncorrectable ecc error",
    "launch timed out",
    "memory access fault",
)


class CudaDevice:
    clocks: tuple[str, ...] = ("cuda_event", "wall")

    def __init__(self, index: int) -> None:
        """Raises TunerError where torch sees no such GPU."""
        if not torch.cuda.is_available() or index >= torch.cuda.device_count():
            raise TunerError(f"no device cuda:{index}: torch sees {torch.cuda.device_count()} GPUs")
        self.name = f"cuda:{index}"
        torch.cuda.set_device(index)
        self.properties = torch.cuda.get_device_properties(index)
        self._buffer: torch.Tensor | None = None

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.name)

    def ready(self, call: Call, mode: str) -> Call:
        if mode == "eager":
            return call
        if mode != "cuda_graph":
            raise TunerError(f"a GPU measures calls in the modes eager and cuda_graph, not {mode}")
        return captured(call)

    def time_ms(self, call: Call, repetitions: int, clock: str, before: Call | None) -> float:
        if clock == "cuda_event":
            return self._event_ms(call, repetitions, before)
        if clock != "wall":
            raise TunerError(f"a GPU has the clocks {', '.join(self.clocks)}, not {clock}")
        if before is None:
            self.synchronize()
            return self._wall_ms(call, repetitions) / repetitions
        spent_ms = 0.0
        for _ in range(repetitions):
            before()
            self.synchronize()
            spent_ms += self._wall_ms(call, 1)
        return spent_ms / repetitions

    def _wall_ms(self, call: Call, repetitions: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(repetitions):
            call()
        self.synchronize()
        return (time.perf_counter_ns() - start) / 1e6

    def _event_ms(self, call: Call, repetitions: int, before: Call | None) -> float:
        """Everything is queued, then waited for once: a wait between calls would let the device run dry."""
        stream = torch.cuda.current_stream(self.name)
        calls_an_event = repetitions if before is None else 1
        events = []
        for _ in range(repetitions // calls_an_event):
            if before is not None:
                before()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record(stream)
            for _ in range(calls_an_event):
                call()
            end.record(stream)
            events.append((start, end))
        self.synchronize()
        return float(sum(start.elapsed_time(end) for start, end in events)) / repetitions

    def flush(self) -> None:
        if self._buffer is None:
            size = flush_bytes(getattr(self.properties, "L2_cache_size", 0), torch.version.hip is not None)
            self._buffer = torch.empty(size // 4, dtype=torch.int32, device=self.name)
        self._buffer.zero_()

    def peak_bytes(self, call: Call) -> int:
        """What the caching allocator had handed out at most during the call, beyond what it had before."""
        self.synchronize()
        torch.cuda.reset_peak_memory_stats(self.name)
        before = torch.cuda.memory_allocated(self.name)
        call()
        self.synchronize()
        return torch.cuda.max_memory_allocated(self.name) - before

    @contextmanager
    def poisoned(self) -> Iterator[None]:
        """Fills the caching allocator's free blocks once: good for one call, and best after another that made it have them."""
        self.synchronize()
        held: list[torch.Tensor] = []
        for size in self._free_blocks():
            try:
                # 0xff in every byte is NaN in every floating type
                held.append(torch.full((size,), 0xFF, dtype=torch.uint8, device=self.name))
            except torch.cuda.OutOfMemoryError:
                break
        held.clear()
        self.synchronize()
        yield

    def _free_blocks(self) -> list[int]:
        """Sizes in bytes, the largest first, that the caching allocator can hand out of what it holds."""
        stream = torch.cuda.current_stream(self.name)
        segments: list[dict[str, Any]] = [
            segment
            for segment in torch.cuda.memory_snapshot()
            if (segment["device"], segment["stream"]) == (stream.device_index, stream.cuda_stream)
            and tuple(segment.get("segment_pool_id", (0, 0))) == (0, 0)  # not those of captured graphs
        ]
        sizes: list[int] = []
        for segment in segments:
            # what is larger than this is handed out from the other pool
            most = SMALL_BLOCK_BYTES if segment["segment_type"] == "small" else sys.maxsize
            for block in segment["blocks"]:
                if block["state"] == "inactive":
                    whole, rest = divmod(block["size"], most)
                    sizes += [most] * whole + ([rest] if rest else [])
        return sorted(sizes, reverse=True)

    def conditions(self) -> Conditions:
        return host_conditions(gpu_conditions(f"GPU-{getattr(self.properties, 'uuid', '')}"))

    def is_sticky(self, error: BaseException) -> bool:
        return any(words in str(error).lower() for words in STICKY)


def flush_bytes(l2_bytes: int, hip: bool) -> int:
    """How much to write so that nothing is left of what the last-level cache held: twice its size."""
    return 2 * (max(l2_bytes, HIP_LAST_LEVEL_BYTES) if hip else l2_bytes or UNKNOWN_CACHE_BYTES)


def captured(call: Call) -> Call:
    """The replay of the call's CUDA graph; it returns the outputs, which every replay writes anew."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(CALLS_BEFORE_CAPTURE):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = call()

    def replay() -> Any:
        graph.replay()
        return outputs

    return replay
