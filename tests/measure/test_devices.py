"""What holds for every device: one suite over the CPU, the fake device and, where there is one, a GPU."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import fake_device
import pytest
import torch
from fake_device import FakeDevice

from tuner.errors import TunerError
from tuner.measure import cpu, cuda
from tuner.measure.cpu import CpuDevice
from tuner.measure.cuda import CudaDevice
from tuner.measure.device import Call, Device, open_device
from tuner.measure.quietness import disturbance, observed

MIB = 2**20
# how far a time may be off, when 50 times the work is compared: no machine is that noisy
FACTOR = 5


class Harness:
    """What the suite needs of a device beside its interface. sticky: an error after which it is lost; None where it never is."""

    device: Device
    modes: tuple[str, ...] = ("eager",)
    sticky: str | None = None

    def work(self, amount: int) -> Call:
        """A call that computes for a time in proportion to `amount`."""
        raise NotImplementedError

    def temporary(self, size: int) -> Call:
        """A call that needs `size` bytes beside its result, of none."""
        raise NotImplementedError

    def fails(self) -> Call:
        """A call that goes wrong, "broken", and leaves the device as it is."""
        raise NotImplementedError

    def unwritten(self, size: int) -> list[int]:
        """Bytes of new memory as the allocator hands it out while poisoned, where zeros were freed before."""
        raise NotImplementedError

    def flushed(self) -> int:
        """Bytes that one flush writes."""
        raise NotImplementedError

    def cache_bytes(self) -> int:
        raise NotImplementedError


class FakeHarness(Harness):
    sticky = fake_device.STICKY

    def __init__(self) -> None:
        self.device: FakeDevice = FakeDevice()

    def work(self, amount: int) -> Call:
        return self.device.call("work", 0.1 * amount)

    def temporary(self, size: int) -> Call:
        return self.device.call("temporary", 1.0, temporary_bytes=size)

    def fails(self) -> Call:
        return self.device.call("fails", 1.0, fails=RuntimeError("broken"))

    def unwritten(self, size: int) -> list[int]:
        with self.device.poisoned():
            return list(self.device.allocate(size))

    def flushed(self) -> int:
        self.device.flush()
        return self.device.flushed_bytes

    def cache_bytes(self) -> int:
        return fake_device.CACHE_BYTES


class TorchHarness(Harness):
    device: CpuDevice | CudaDevice
    where: str

    def work(self, amount: int) -> Call:
        values = torch.rand(256, 1024, device=self.where)

        def call() -> None:
            for _ in range(amount):
                values.mul_(1.0)

        return call

    def temporary(self, size: int) -> Call:
        def call() -> None:
            torch.ones(size, dtype=torch.uint8, device=self.where)

        return call

    def fails(self) -> Call:
        def call() -> None:
            torch.ones(4, device=self.where).mul_(2)
            raise RuntimeError("broken")

        return call

    def unwritten(self, size: int) -> list[int]:
        zeros = [torch.zeros(size, dtype=torch.uint8, device=self.where) for _ in range(2)]
        self.device.synchronize()
        del zeros
        with self.device.poisoned():
            return torch.empty(size, dtype=torch.uint8, device=self.where).tolist()

    def flushed(self) -> int:
        self.device.flush()
        buffer = self.device._buffer
        assert buffer is not None
        buffer.fill_(7)
        self.device.flush()
        assert not bool((buffer == 7).any()), "all of it is written"
        return buffer.numel() * buffer.element_size()


class CpuHarness(TorchHarness):
    where = "cpu"

    def __init__(self) -> None:
        self.device = CpuDevice()

    def cache_bytes(self) -> int:
        return cpu.last_level_cache_bytes()


class CudaHarness(TorchHarness):
    where = "cuda:0"
    modes = ("eager", "cuda_graph")
    sticky = "CUDA error: an illegal memory access was encountered"

    def __init__(self) -> None:
        self.device = CudaDevice(0)

    def cache_bytes(self) -> int:
        return int(getattr(self.device.properties, "L2_cache_size", 0)) or MIB


HARNESSES: dict[str, Any] = {"fake": FakeHarness, "cpu": CpuHarness, "cuda": CudaHarness}


@pytest.fixture(params=["fake", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield HARNESSES[request.param]()
    torch.set_num_threads(threads)


def best_ms(device: Device, call: Call, clock: str, before: Call | None = None) -> float:
    device.time_ms(call, 3, clock, before)
    return min(device.time_ms(call, 3, clock, before) for _ in range(5))


def test_more_work_takes_longer_on_every_clock(harness):
    assert harness.device.clocks
    for clock in harness.device.clocks:
        little, much = (best_ms(harness.device, harness.work(amount), clock) for amount in (4, 200))
        assert 0 < little * FACTOR < much, clock


def test_a_time_is_that_of_one_call_however_many_make_a_sample(harness):
    clock, call = harness.device.clocks[0], harness.work(50)
    few, many = (min(harness.device.time_ms(call, n, clock, None) for _ in range(5)) for n in (1, 50))
    assert few / FACTOR < many < few * FACTOR


def test_what_runs_before_each_call_is_outside_the_clock(harness):
    ran = []
    much = harness.work(200)

    def before():
        ran.append(1)
        much()

    for clock in harness.device.clocks:
        ran.clear()
        assert best_ms(harness.device, harness.work(4), clock, before) * FACTOR < best_ms(harness.device, much, clock)
        assert len(ran) == 6 * 3, "before each call"


def test_a_clock_that_the_device_has_not_is_refused(harness):
    with pytest.raises(TunerError, match="not sundial"):
        harness.device.time_ms(harness.work(1), 1, "sundial", None)


def test_a_call_that_goes_wrong_is_noticed_when_it_was_waited_for(harness):
    with pytest.raises(RuntimeError, match="broken"):
        harness.device.time_ms(harness.fails(), 1, harness.device.clocks[0], None)
    harness.device.synchronize()
    assert harness.device.time_ms(harness.work(1), 1, harness.device.clocks[0], None) > 0, "and the device goes on"


def test_a_call_is_made_ready_for_the_modes_that_the_device_has_and_no_other(harness):
    for mode in harness.modes:
        ready = harness.device.ready(harness.work(4), mode)
        assert harness.device.time_ms(ready, 2, harness.device.clocks[0], None) > 0
    for mode in {"eager", "cuda_graph", "dreamt"} - set(harness.modes):
        with pytest.raises(TunerError, match=f"not {mode}"):
            harness.device.ready(harness.work(4), mode)


def test_a_flush_writes_more_than_the_last_level_cache_holds(harness):
    assert harness.flushed() >= 2 * harness.cache_bytes() > 0


def test_memory_that_nobody_wrote_is_garbage_while_poisoned(harness):
    for size in (4096, 3 * MIB):
        assert 0 not in harness.unwritten(size), f"{size} bytes"


def test_the_peak_grows_by_what_lives_during_a_call(harness):
    nothing = harness.device.peak_bytes(harness.temporary(0))
    assert harness.device.peak_bytes(harness.temporary(8 * MIB)) - nothing == pytest.approx(8 * MIB, abs=64 * 1024)
    assert harness.device.peak_bytes(harness.temporary(0)) - nothing == pytest.approx(0, abs=64 * 1024)


def test_conditions_are_json_and_two_of_them_make_a_judgement(harness):
    before = harness.device.conditions()
    harness.device.time_ms(harness.work(200), 20, harness.device.clocks[0], None)
    after = harness.device.conditions()
    json.dumps([asdict(before), asdict(after)], allow_nan=False)
    seen = json.loads(json.dumps(observed(before, after), allow_nan=False))
    assert seen["elapsed_s"] > 0
    assert seen["cores"] >= 1
    assert isinstance(disturbance(before, after, threads=1), str | None)


def test_only_an_error_that_loses_the_device_is_sticky(harness):
    assert not harness.device.is_sticky(RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB"))
    assert not harness.device.is_sticky(ValueError("shapes do not fit"))
    if harness.sticky is not None:
        assert harness.device.is_sticky(RuntimeError(harness.sticky))


def test_a_device_is_opened_by_its_name(harness):
    assert harness.device.name.partition(":")[0] in HARNESSES
    if harness.device.name != "fake:0":
        opened = open_device(harness.device.name)
        assert (type(opened), opened.name) == (type(harness.device), harness.device.name)


@pytest.mark.parametrize("name", ["", "gpu", "cuda", "cuda:x", "cuda:", "cpu:0", "fake:0", "cuda:99"])
def test_a_device_that_is_not_there_is_an_error_of_one_line(name):
    with pytest.raises(TunerError, match="no device") as error:
        open_device(name)
    assert "\n" not in str(error.value)


def test_the_last_level_cache_is_the_sum_of_those_that_are_reached(tmp_path, monkeypatch):
    def cache(core: int, index: int, level: str, size: str, shared: str) -> None:
        folder = tmp_path / str(core) / f"index{index}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("size", size), ("shared_cpu_list", shared)):
            (folder / name).write_text(text + "\n")

    monkeypatch.setattr(cpu, "CACHES", str(tmp_path / "{core}"))
    monkeypatch.setattr(cpu.os, "sched_getaffinity", lambda pid: {0, 1, 2})
    assert cpu.last_level_cache_bytes() == cpu.UNKNOWN_CACHE_BYTES
    for core, shared in ((0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3"), (4, "4")):
        cache(core, 0, "1", "48K", str(core))
        cache(core, 1, "3", "32M", shared)
    assert cpu.last_level_cache_bytes() == 64 * MIB, "two of the three, each once; the first level is not the last"


def test_memory_is_poisoned_no_longer_than_it_was_asked_to_be():
    with CpuDevice().poisoned():
        assert set(torch.empty(4 * MIB, dtype=torch.uint8).unique().tolist()) == {cpu.HANDED_OUT}
    # fresh pages of the kernel are zero
    assert set(torch.empty(256 * MIB, dtype=torch.uint8)[:: 64 * 1024].unique().tolist()) == {0}


def test_a_c_library_that_cannot_fill_new_memory_is_told_of(monkeypatch):
    monkeypatch.setattr(cpu, "_handed_out_poisoned", lambda: False)
    with pytest.warns(UserWarning, match="does not fill new memory"), CpuDevice().poisoned():
        pass


@pytest.mark.parametrize("value", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32])
def test_a_poisoned_number_is_far_from_every_plausible_result(value):
    with CpuDevice().poisoned():
        numbers = torch.empty(2000, dtype=value)
    assert bool((numbers.double().abs().nan_to_num(nan=1e30) > 1e9).all())


@pytest.mark.parametrize(
    ("l2_bytes", "hip", "expected"),
    [(50 * MIB, False, 100 * MIB), (0, False, 256 * MIB), (4 * MIB, True, 512 * MIB), (0, True, 512 * MIB)],
)
def test_the_flush_of_a_gpu_is_twice_its_last_level_cache(l2_bytes, hip, expected):
    assert cuda.flush_bytes(l2_bytes, hip) == expected


MISBEHAVING = """
import signal, sys
sys.path.insert(0, sys.argv[1])
from fake_device import FakeDevice
signal.signal(signal.SIGUSR1, lambda *_: print("still here", flush=True))
call = FakeDevice().call("call", 1.0, **{sys.argv[2]: True})
print("calling", flush=True)
call()
print("returned", flush=True)
"""


@pytest.fixture
def misbehaving() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts a process that makes one call, which hangs or crashes."""
    started = []

    def start(how: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", MISBEHAVING, str(Path(__file__).parent), how]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_fake_call_that_hangs_does_so_until_its_process_is_killed(misbehaving):
    process = misbehaving("hangs")
    assert process.stdout.readline() == "calling\n"
    for _ in range(3):
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "still here\n"
    process.kill()
    assert process.stdout.read() == ""


def test_a_fake_call_that_crashes_takes_its_process_along(misbehaving):
    process = misbehaving("crashes")
    assert process.communicate(timeout=60)[0] == "calling\n"
    assert process.returncode == -signal.SIGSEGV
