"""What counts as a disturbance: readings of a host and a GPU made up here, and real ones of this machine."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tuner.measure import nvml, quietness
from tuner.measure.quietness import Conditions, GpuConditions, disturbance, host_conditions, observed, unsteady

BEFORE = Conditions(at_s=50.0, cores=2, own_s=10.0, switches=3, busy_s=100.0, steal_s=1.0, waited_s=0.5, load_1m=1.0, mhz=3000.0)
GPU = GpuConditions(sm_mhz=1980.0, throttle_reasons=0, other_processes=0)


def later(
    seconds: float = 1.0, own: float = 1.0, others: float = 0.0, steal: float = 0.0, waited: float = 0.0, **states: Any
) -> Conditions:
    """A reading `seconds` after BEFORE, in which this process and others used so many cores."""
    assert BEFORE.busy_s is not None
    assert BEFORE.steal_s is not None
    assert BEFORE.waited_s is not None
    return replace(
        BEFORE,
        at_s=BEFORE.at_s + seconds,
        own_s=BEFORE.own_s + own * seconds,
        busy_s=BEFORE.busy_s + (own + others) * seconds,
        steal_s=BEFORE.steal_s + steal * seconds,
        waited_s=BEFORE.waited_s + waited * seconds,
        **states,
    )


@pytest.mark.parametrize(
    ("threads", "others", "disturbed"),
    [
        (1, 0.0, False),
        (1, 1.0, False),
        (1, 1.2, False),
        (1, 1.4, True),
        (1, 2.0, True),
        (2, 0.1, False),
        (2, 0.5, True),
        (4, 0.5, True),
    ],
)
def test_others_may_use_the_cores_that_are_left_over(threads, others, disturbed):
    reason = disturbance(BEFORE, later(others=others), threads)
    assert (reason is not None) is disturbed
    if disturbed:
        assert f"other processes kept {others:.1f} of 2 cores busy" in str(reason)


def test_time_that_this_process_used_itself_is_not_that_of_others():
    assert disturbance(BEFORE, later(own=2.0), 2) is None
    assert observed(BEFORE, later(own=2.0))["other_cores"] == 0


def test_a_short_stretch_is_not_judged_by_ticks():
    assert disturbance(BEFORE, later(seconds=0.05, others=2.0, steal=1.0, waited=0.5), 1) is None
    assert disturbance(BEFORE, later(seconds=0.5, others=2.0), 1) is not None
    # 0.2 s: a tick of 10 ms more on each core is a tenth of a core
    assert disturbance(BEFORE, later(seconds=0.2, others=0.34), 2) is None
    assert disturbance(BEFORE, later(seconds=0.2, others=0.4), 2) is not None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"steal": 0.3}, "the hypervisor kept back 0.3 cores' worth of time"),
        ({"steal": 0.05}, None),
        ({"waited": 0.3}, "the measuring threads waited for a core for 30% of the time"),
        ({"waited": 0.15}, None),
        ({"mhz": 2400.0}, "the clock of the processor went from 3000 to 2400 MHz"),
        ({"mhz": 3600.0}, "the clock of the processor went from 3000 to 3600 MHz"),
        ({"mhz": 2900.0}, None),
        ({"mhz": None}, None),
    ],
)
def test_a_host_that_disturbs_is_named(changes, reason):
    assert disturbance(BEFORE, later(**changes), 1) == reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"other_processes": 1}, "1 other process uses the GPU"),
        ({"other_processes": 3}, "3 other processes use the GPU"),
        ({"throttle_reasons": 0x8}, "the GPU is throttled: hardware slowdown"),
        ({"throttle_reasons": 0x40}, "the GPU is throttled: thermal slowdown (hardware)"),
        ({"throttle_reasons": 0x80 | 0x4}, "the GPU is throttled: power brake"),
        ({"throttle_reasons": 0x1 | 0x2 | 0x4}, None),
        ({"sm_mhz": 1200.0}, "the clock of the GPU went from 1980 to 1200 MHz"),
        ({"sm_mhz": None, "throttle_reasons": None, "other_processes": None}, None),
    ],
)
def test_a_gpu_that_disturbs_is_named(changes, reason):
    assert disturbance(replace(BEFORE, gpu=GPU), later(gpu=replace(GPU, **changes)), 1) == reason
    assert disturbance(BEFORE, later(gpu=replace(GPU, **changes)), 1) is None, "not without a reading before"


def test_what_a_machine_does_not_tell_is_not_judged():
    unknown = Conditions(at_s=1.0, cores=2, own_s=0.0, switches=0)
    after = replace(unknown, at_s=2.0, own_s=1.0)
    assert disturbance(unknown, after, 1) is None
    seen = observed(unknown, after)
    assert (seen["other_cores"], seen["stolen_cores"], seen["waited"], seen["gpu"]) == (None, None, None, None)
    assert observed(unknown, unknown)["own_cores"] is None


def test_steady_samples_are_trusted():
    assert unsteady([[1.0, 1.02, 0.99, 1.01, 1.0, 1.02, 0.98, 1.0], [0.5, 0.51] * 4]) is None


@pytest.mark.parametrize("end", [1.23, 1 / 1.23])
def test_a_drift_of_the_default_is_seen_up_and_down(end):
    reason = unsteady([[1.0] * 6 + [end] * 6])
    assert reason == "the default drifted by 23% while measured"


def test_one_outlier_is_no_drift_and_no_spread():
    assert unsteady([[1.0] * 11 + [9.0]]) is None


def test_samples_that_scatter_are_seen():
    reason = unsteady([[1.0, 1.5] * 6])
    assert reason is not None
    assert "spreads over" in reason


def test_ratios_that_drift_are_seen_but_one_uneven_candidate_costs_no_other():
    steady, uneven = [1.0] * 12, [0.8] * 6 + [1.0] * 6
    assert unsteady([steady, uneven, uneven]) == "the ratios to the default drifted by 25% while measured"
    assert unsteady([steady, uneven]) is None
    assert unsteady([steady, uneven, steady]) is None
    assert unsteady([steady, uneven, steady, uneven, uneven]) is not None


def test_few_samples_are_not_judged():
    assert unsteady([[1.0, 2.0, 3.0]]) is None
    assert unsteady([[0.0] * 12]) is None


def test_this_machine_tells_about_itself():
    before = host_conditions()
    assert before.cores >= 1
    json.dumps(asdict(before), allow_nan=False)
    deadline = time.monotonic() + 10
    while (after := host_conditions()).own_s - before.own_s < 0.2 and time.monotonic() < deadline:
        sum(range(10_000))
    seen = observed(before, after)
    # Other threads of this process may have spent a part of it; and the kernel counts others' time in ticks of up to 10 ms,
    # of which one more or less is much of a fifth of a second.
    assert seen["elapsed_s"] >= 0.2 / after.cores - 0.01
    all_cores = after.cores * (1 + 0.02 / seen["elapsed_s"])
    assert 0 < seen["own_cores"] <= all_cores
    if seen["other_cores"] is not None:
        assert 0 <= seen["other_cores"] <= all_cores


@pytest.mark.parametrize("gone", [FileNotFoundError, ProcessLookupError])
def test_a_thread_that_ends_while_it_is_read_does_not_hide_how_long_the_others_waited(monkeypatch, gone):
    if quietness._known(quietness._waited_s) is None:
        pytest.skip("this kernel keeps no scheduler statistics")
    stop, read_text = threading.Event(), Path.read_text
    thread = threading.Thread(target=stop.wait)
    thread.start()
    task = Path(f"/proc/self/task/{thread.native_id}")

    def read(path: Path, *rest: Any) -> str:
        if path.parent != task:
            return read_text(path, *rest)
        stop.set()
        while task.exists():
            time.sleep(0.001)
        raise gone(str(path))

    monkeypatch.setattr(Path, "read_text", read)
    assert quietness._known(quietness._waited_s) is not None
    assert not task.exists()


@contextlib.contextmanager
def neighbours(number: int) -> Iterator[None]:
    """So many busy processes, once all of them run."""
    busy = "print(flush=True)\nwhile True: pass"
    started = [subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) for _ in range(number)]
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        yield
    finally:
        for process in started:
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def test_as_many_busy_neighbours_as_cores_disturb_a_thread():
    before = host_conditions()
    if before.busy_s is None:
        pytest.skip("this kernel does not tell how busy its cores are")
    with neighbours(before.cores):
        before, deadline = host_conditions(), time.monotonic() + 60
        reason = None
        while reason is None and time.monotonic() < deadline:
            sum(range(100_000))
            reason = disturbance(before, host_conditions(), threads=1)
    assert reason is not None
    assert "busy" in reason or "waited" in reason


def test_a_kernel_that_counts_nothing_is_unknown(monkeypatch, tmp_path):
    (tmp_path / "stat").write_text("cpu  0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n")
    monkeypatch.setattr(quietness, "Path", lambda path: tmp_path / path.rsplit("/", 1)[1])
    reading = host_conditions()
    assert (reading.busy_s, reading.steal_s, reading.waited_s, reading.load_1m, reading.mhz) == (None,) * 5


def test_the_daemon_can_ask_without_torch():
    code = "import sys, tuner.measure.quietness as q; q.host_conditions(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class FakeNvml:
    """pynvml with one GPU that supports some questions."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self, pids: list[int]):
        self.pids = pids

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-1":
            raise self.NVMLError("not found")
        return uuid

    def nvmlDeviceGetClockInfo(self, handle: str, clock: int) -> int:
        return {1: 1980, 2: 3201}[clock]

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        raise self.NVMLError("not supported")

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return type("Rates", (), {"gpu": 7})

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:
        return 700_000

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return 4

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        return [type("Process", (), {"pid": pid}) for pid in self.pids]


@pytest.mark.parametrize(("pids", "others"), [([77], 0), ([77, 1], 1), ([5], 0), ([5, 6, 6], 1), ([], 0)])
def test_a_gpu_tells_what_it_supports_and_this_process_is_not_another(monkeypatch, pids, others):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(pids))
    monkeypatch.setattr(nvml.os, "getpid", lambda: 77)
    expected = GpuConditions(1980, 3201, 7, None, 700.0, 4, others)
    assert nvml.gpu_conditions("GPU-1") == expected
    assert nvml.gpu_conditions("GPU-2") is None


def test_without_nvidia_ml_py_nothing_is_known_of_a_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml.gpu_conditions("GPU-1") is None
