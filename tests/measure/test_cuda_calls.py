"""What the CUDA device asks of torch and in which order, on a stand-in for torch that only writes it down.

What comes of it on a GPU, test_devices.py and benchmarks/gpu_check.py show.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.errors import TunerError
from tuner.measure import cuda
from tuner.measure.cuda import CudaDevice

MIB = 2**20


class StandIn:
    """torch with one GPU, whose calls take a millisecond each. log: what it was asked for. free: blocks of the allocator."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.now_ms = 0.0
        self.allocated = 100
        self.segments: list[dict[str, Any]] = []
        self.filled: list[int] = []
        self.uint8, self.int32 = "uint8", "int32"
        self.version = SimpleNamespace(hip=None)
        stream = SimpleNamespace(device_index=0, cuda_stream=0, wait_stream=lambda other: None)
        self.cuda = SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: 1,
            set_device=lambda index: None,
            get_device_properties=lambda index: SimpleNamespace(L2_cache_size=50 * MIB, uuid="1"),
            synchronize=lambda device: self.log.append("synchronize"),
            current_stream=lambda device=None: stream,
            Event=lambda enable_timing: Event(self),
            Stream=lambda: stream,
            stream=lambda which: self.noted("side stream"),
            CUDAGraph=lambda: SimpleNamespace(replay=lambda: self.log.append("replay")),
            graph=lambda graph: self.noted("capture"),
            memory_allocated=lambda device: self.allocated,
            max_memory_allocated=lambda device: self.allocated + 7,
            reset_peak_memory_stats=lambda device: self.log.append("reset"),
            memory_snapshot=lambda: self.segments,
            OutOfMemoryError=MemoryError,
        )

    @contextlib.contextmanager
    def noted(self, what: str) -> Any:
        self.log.append(what)
        yield
        self.log.append(f"{what} ends")

    def empty(self, size: int, dtype: str, device: str) -> Any:
        self.log.append(f"empty {size} {dtype}")
        return SimpleNamespace(zero_=lambda: self.log.append("zero_"))

    def full(self, size: tuple[int], value: int, dtype: str, device: str) -> Any:
        assert (value, dtype) == (0xFF, "uint8")
        if size[0] > 8 * MIB:
            raise MemoryError
        self.filled.append(size[0])
        return object()

    def call(self) -> str:
        self.log.append("call")
        self.now_ms += 1.0
        return "outputs"


class Event:
    def __init__(self, torch: StandIn) -> None:
        self.torch = torch
        self.at_ms = 0.0

    def record(self, stream: Any) -> None:
        self.torch.log.append("event")
        self.at_ms = self.torch.now_ms

    def elapsed_time(self, end: Event) -> float:
        assert self.torch.log[-1] == "synchronize", "an event is read after it happened"
        return end.at_ms - self.at_ms


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn()
    monkeypatch.setattr(cuda, "torch", made)
    return made


def test_many_calls_lie_between_two_events_and_are_waited_for_once(torch):
    assert CudaDevice(0).time_ms(torch.call, 5, "cuda_event", None) == 1.0
    assert torch.log == ["event", *["call"] * 5, "event", "synchronize"]


def test_what_runs_before_each_call_lies_outside_its_events(torch):
    device = CudaDevice(0)

    def before():
        torch.log.append("before")
        torch.now_ms += 100.0

    assert device.time_ms(torch.call, 3, "cuda_event", before) == 1.0
    assert torch.log == [*["before", "event", "call", "event"] * 3, "synchronize"], "and nothing waits between them"


def test_the_wall_clock_waits_for_the_device_before_and_after(torch):
    device = CudaDevice(0)
    device.time_ms(torch.call, 3, "wall", None)
    assert torch.log == ["synchronize", *["call"] * 3, "synchronize"]
    torch.log.clear()
    device.time_ms(torch.call, 2, "wall", lambda: torch.log.append("before"))
    assert torch.log == ["before", "synchronize", "call", "synchronize"] * 2
    with pytest.raises(TunerError, match="not thread"):
        device.time_ms(torch.call, 1, "thread", None)


def test_a_flush_writes_the_same_buffer_of_twice_the_l2(torch):
    device = CudaDevice(0)
    device.flush()
    device.flush()
    assert torch.log == [f"empty {100 * MIB // 4} int32", "zero_", "zero_"]


def test_a_graph_is_captured_after_calls_on_a_side_stream_and_replayed(torch):
    ready = CudaDevice(0).ready(torch.call, "cuda_graph")
    warm_up = ["side stream", *["call"] * cuda.CALLS_BEFORE_CAPTURE, "side stream ends"]
    assert torch.log == [*warm_up, "capture", "call", "capture ends"]
    torch.log.clear()
    assert [ready(), ready()] == ["outputs"] * 2
    assert torch.log == ["replay"] * 2


def test_the_peak_is_read_after_a_reset_and_less_what_was_there(torch):
    assert CudaDevice(0).peak_bytes(torch.call) == 7
    assert torch.log == ["synchronize", "reset", "call", "synchronize"]


def segment(kind: str, *blocks: tuple[int, str], **changes: Any) -> dict[str, Any]:
    told = [{"size": size, "state": state} for size, state in blocks]
    return {"device": 0, "stream": 0, "segment_type": kind, "segment_pool_id": (0, 0), "blocks": told, **changes}


def test_free_blocks_that_calls_can_get_are_filled_with_nan_the_largest_first(torch):
    torch.segments = [
        segment("large", (5 * MIB, "inactive"), (3 * MIB, "active_allocated"), (2 * MIB, "inactive")),
        segment("small", (512, "inactive"), (MIB + MIB // 2, "inactive"), (512, "active_pending_free")),
        segment("large", (6 * MIB, "inactive"), device=1),
        segment("large", (6 * MIB, "inactive"), stream=99),
        segment("large", (6 * MIB, "inactive"), segment_pool_id=(0, 3)),
    ]
    with CudaDevice(0).poisoned():
        assert torch.filled == [5 * MIB, 2 * MIB, MIB, MIB // 2, 512], "of the small pool in pieces that come from it"


def test_poisoning_ends_where_there_is_no_memory_for_it(torch):
    torch.segments = [segment("large", (9 * MIB, "inactive"), (2 * MIB, "inactive"))]
    with CudaDevice(0).poisoned():
        assert torch.filled == []


@pytest.mark.parametrize(
    ("message", "sticky"),
    [
        ("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported later", True),
        ("CUDA error: device-side assert triggered", True),
        ("CUDA error: misaligned address", True),
        ("Triton Error [CUDA]: an illegal instruction was encountered", True),
        ("CUDA error: unspecified launch failure", True),
        ("CUDA error: uncorrectable ECC error encountered", True),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", False),
        ("CUDA error: invalid configuration argument", False),
        ("out of resource: shared memory, Required: 300000, Hardware limit: 232448", False),
    ],
)
def test_errors_after_which_the_process_has_to_go_are_known_by_their_text(torch, message, sticky):
    assert CudaDevice(0).is_sticky(RuntimeError(message)) is sticky


def test_a_gpu_that_torch_does_not_see_is_refused(torch):
    with pytest.raises(TunerError, match="no device cuda:1: torch sees 1 GPU"):
        CudaDevice(1)
    torch.cuda.is_available = lambda: False
    with pytest.raises(TunerError, match="no device cuda:0"):
        CudaDevice(0)
