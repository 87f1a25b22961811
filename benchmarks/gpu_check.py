"""What only a GPU can show: that the CUDA side of the measuring rooms does what it says. One JSON report.

    python benchmarks/gpu_check.py [--out REPORT.json] [--only NAME ...]

Needs torch and a GPU, nothing installed and no network: the package is laid out in a temporary folder of links. Exit codes: 0 all
checks passed, 1 one failed, 2 no GPU. Each check is a function of CHECKS that returns what it saw and raises where that is wrong.
It runs in a process of its own, so that one that hangs or loses the device costs only itself.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = 20
MIB = 2**20
# A whole report fits in a few minutes of a GPU: no check may take them all.
CHECK_TIMEOUT_S = 120


def median_ms(call: Callable[[], Any], clock: str, before: Callable[[], Any] | None = None, repetitions: int = 1) -> float:
    """Median of SAMPLES samples after as many for warming up."""
    device = the_device()
    samples = [device.time_ms(call, repetitions, clock, before) for _ in range(2 * SAMPLES)]
    return statistics.median(samples[SAMPLES:])


@functools.cache
def the_device() -> Any:
    from tuner.measure.device import open_device

    return open_device("cuda:0")


def expect(holds: bool, what: str, seen: Mapping[str, Any]) -> dict[str, Any]:
    """What was seen. Raises AssertionError where it is not as it should be."""
    if not holds:
        raise AssertionError(f"{what}: {json.dumps(seen)}")
    return dict(seen)


def check_conformance() -> dict[str, Any]:
    """The suite that holds for every device, on this one."""
    tests = ["tests/measure/test_devices.py", "-m", "gpu", "-q", "-p", "no:cacheprovider", "--tb=short"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=CHECK_TIMEOUT_S,
        check=False,
    )
    seen = {"exit_code": done.returncode, "output": (done.stdout + done.stderr)[-3000:]}
    return expect(done.returncode == 0 and " passed" in done.stdout and "skipped" not in done.stdout, "the suite failed", seen)


def check_clocks() -> dict[str, Any]:
    """A kernel of some milliseconds takes the same by events and by the wall."""
    a = torch.randn(8192, 8192, device="cuda")
    seen = {clock: median_ms(lambda: a @ a, clock) for clock in ("cuda_event", "wall")}
    ratio = seen["wall"] / seen["cuda_event"]
    return expect(0.9 < ratio < 1.3, "events and wall disagree", {**seen, "ratio": ratio})


def check_small_kernels() -> dict[str, Any]:
    """A call costs no more among many in one sample: nothing waits between them."""
    x = torch.randn(256, 1024, device="cuda")
    one, many = median_ms(x.exp, "cuda_event"), median_ms(x.exp, "cuda_event", repetitions=100)
    return expect(many < 2 * one, "a call costs more among many", {"one_ms": one, "of_100_ms": many})


def check_flush() -> dict[str, Any]:
    """A read of half the L2 is slower after a flush, and as slow as after a write of 2 GiB: what it read before is gone."""
    device = the_device()
    l2_bytes = int(device.properties.L2_cache_size)
    values = torch.randn(l2_bytes // 2 // 4, device="cuda")
    large = torch.empty(2048 * MIB, dtype=torch.uint8, device="cuda")

    def flush_and_read() -> None:
        device.flush()  # first, so that launches are queued as far ahead as in the other two
        values.sum()

    befores: dict[str, Callable[[], Any]] = {"warm": flush_and_read, "cold": device.flush, "coldest": large.zero_}
    times_ms = {name: median_ms(values.sum, "cuda_event", before) for name, before in befores.items()}
    rates = {name: round(values.nbytes / ms / 1e6) for name, ms in times_ms.items()}
    seen = {"l2_bytes": l2_bytes, "flushed_bytes": device._buffer.nbytes, "times_ms": times_ms, "gb_per_s": rates}
    gone = times_ms["cold"] > 1.05 * times_ms["warm"] and abs(times_ms["cold"] / times_ms["coldest"] - 1) < 0.1
    return expect(gone, "the flush does not evict everything", seen)


def check_stretches() -> dict[str, Any]:
    """Both modes, warm and cold: equal calls get equal times, a flush makes them longer, a graph spares launches."""
    from tuner.measure.timing import measure_stretch, repetitions_for
    from tuner.measurement import Policy

    x = torch.randn(1024, 1024, device="cuda")

    def call() -> torch.Tensor:
        y = x
        for _ in range(20):
            y = y * 1.01 + x
        return y

    seen: dict[str, Any] = {}
    for policy in (Policy.for_cuda(mode, cache) for mode in ("eager", "cuda_graph") for cache in ("warm", "cold")):
        repetitions = repetitions_for(0.2, policy)
        stretch = measure_stretch(
            the_device(), [call, call], policy, samples=SAMPLES, repetitions=repetitions, restore=None, seed=0, patience=2
        )
        first, second = (statistics.median(times) for times in stretch.times_ms)
        seen[f"{policy.mode}_{policy.cache}"] = {
            "ms": first,
            "ratio_of_equals": first / second,
            "busy": stretch.busy,
            "conditions": stretch.conditions,
        }
    equal = all(abs(one["ratio_of_equals"] - 1) < 0.05 for one in seen.values())
    spared = seen["cuda_graph_warm"]["ms"] < seen["eager_warm"]["ms"]
    return expect(equal and spared, "equal calls differ, or a graph spares nothing", seen)


def check_graph_outputs() -> dict[str, Any]:
    """A replay computes anew from the inputs as they are then, and its outputs stay."""
    x = torch.zeros(1000, device="cuda")
    replay = the_device().ready(lambda: (x + 1, x.sum()), "cuda_graph")
    values = []
    for value in (1.0, 5.0):
        x.fill_(value)
        plus_one, total = replay()
        torch.empty(50 * MIB, dtype=torch.uint8, device="cuda").fill_(3)
        the_device().synchronize()
        values.append([float(plus_one[0]), float(total)])
    return expect(values == [[2.0, 1000.0], [6.0, 5000.0]], "a replay gives other outputs", {"values": values})


def check_memory() -> dict[str, Any]:
    """The peak of a call counts what lives at the same time; memory that nobody wrote is NaN while poisoned."""
    device = the_device()
    peak = device.peak_bytes(lambda: torch.ones(64 * MIB, dtype=torch.uint8, device="cuda"))

    def unwritten() -> torch.Tensor:
        return torch.empty(16 * MIB, device="cuda")

    unwritten().zero_()
    with device.poisoned():
        share = float(unwritten().isnan().float().mean())
    return expect(peak == 64 * MIB and share == 1.0, "peak or poison is wrong", {"peak_bytes": peak, "share_of_nan": share})


STICKY_CHILD = """
import torch
from tuner.measure.device import open_device
device = open_device("cuda:0")
x = torch.zeros(10, device="cuda")
try:
    x[torch.tensor([10 ** 6], device="cuda")].sum()
    device.synchronize()
except RuntimeError as error:
    print("sticky" if device.is_sticky(error) else "passing", type(error).__name__, str(error).splitlines()[0])
try:
    torch.ones(1, device="cuda").add_(1)
    device.synchronize()
    print("alive")
except RuntimeError as error:
    print("sticky" if device.is_sticky(error) else "passing", "dead")
"""
STARVED_CHILD = """
import torch
from tuner.measure.device import open_device
device = open_device("cuda:0")
try:
    torch.empty(10 ** 15, dtype=torch.uint8, device="cuda")
except RuntimeError as error:
    print("sticky" if device.is_sticky(error) else "passing", type(error).__name__)
torch.ones(1, device="cuda").add_(1)
device.synchronize()
print("alive")
"""


def check_sticky_errors() -> dict[str, Any]:
    """An index out of bounds loses the device for its process, memory that is not there does not."""
    printed = {}
    for name, code in {"out_of_bounds": STICKY_CHILD, "out_of_memory": STARVED_CHILD}.items():
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=CHECK_TIMEOUT_S, check=False)
        printed[name] = done.stdout.splitlines() or [done.stderr[-500:]]
    lost, starved = printed["out_of_bounds"], printed["out_of_memory"]
    first_words = [line.split()[0] for line in [*lost, *starved]]
    return expect(first_words == ["sticky", "sticky", "passing", "alive"], "an error was taken for another kind", printed)


def check_conditions() -> dict[str, Any]:
    """The driver tells clocks, temperature and throttling; nobody else computes on this GPU."""
    a = torch.randn(4096, 4096, device="cuda")
    before = the_device().conditions()
    ended = time.monotonic() + 0.5
    while time.monotonic() < ended:
        a @ a
        the_device().synchronize()
    after = the_device().conditions()

    from tuner.measure.quietness import disturbance, observed

    seen = {"before": asdict(before), "observed": observed(before, after), "disturbance": disturbance(before, after, 1)}
    try:
        importlib.metadata.version("nvidia-ml-py")
    except importlib.metadata.PackageNotFoundError:
        return {**seen, "note": "nvidia-ml-py is not there: nothing is known of the GPU"}
    return expect(after.gpu is not None and after.gpu.sm_mhz is not None, "nvidia-ml-py is there and tells nothing", seen)


# Later parts append theirs.
CHECKS: list[Callable[[], dict[str, Any]]] = [
    check_conditions,
    check_clocks,
    check_small_kernels,
    check_flush,
    check_stretches,
    check_graph_outputs,
    check_memory,
    check_sticky_errors,
    check_conformance,
]


def run_apart(name: str) -> dict[str, Any]:
    """The check in a process of its own: "passed", "seconds" and what it saw, or its error."""
    started = time.monotonic()
    command = [sys.executable, __file__, "--here", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"passed": False, "error": "took too long", "seconds": CHECK_TIMEOUT_S}
    passed = done.returncode == 0
    told = {"seen": json.loads(done.stdout)} if passed else {"error": done.stderr[-3000:] or f"exit code {done.returncode}"}
    return {"passed": passed, "seconds": round(time.monotonic() - started, 1), **told}


@contextlib.contextmanager
def package_for_children() -> Iterator[None]:
    """Meanwhile, processes that are started find the package in a folder of links, laid out as a wheel would be."""
    with tempfile.TemporaryDirectory(prefix="tuner-gpu-check-") as folder:
        package = Path(folder, "tuner")
        package.mkdir()
        for source in [*(ROOT / "tuner").iterdir(), *(ROOT / room for room in ("cache", "cli", "search_spaces"))]:
            if source.name != "__pycache__":
                (package / source.name).symlink_to(source)
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
        yield


def machine() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "memory_bytes": properties.total_memory,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
    }


def main() -> int:
    named = {check.__name__.removeprefix("check_"): check for check in CHECKS}
    parser = argparse.ArgumentParser(description="Checks of the CUDA side, on a machine with a GPU.")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    parser.add_argument("--only", nargs="+", choices=named, default=list(named), help="run these checks only")
    parser.add_argument("--here", choices=named, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_check: torch sees no GPU here, nothing was checked", file=sys.stderr)
        return 2
    if arguments.here is not None:
        print(json.dumps(named[arguments.here]()))
        return 0
    checks = {}
    with package_for_children():
        for name in arguments.only:
            checks[name] = run_apart(name)
            print(f"{name}: {'passed' if checks[name]['passed'] else 'FAILED'}, {checks[name]['seconds']} s", file=sys.stderr)
    passed = all(result["passed"] for result in checks.values())
    report = json.dumps({"machine": machine(), "passed": passed, "checks": checks}, indent=1)
    print(report)
    if arguments.out is not None:
        arguments.out.write_text(report + "\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
