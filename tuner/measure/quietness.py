"""Whether the machine was quiet: what Linux and the GPU's driver tell before and after, and what the samples tell themselves.

Imports no torch: the daemon asks too, before it starts to tune. What a machine does not tell is None, and is not judged.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

# Linux counts a core's time in ticks of usually 10 ms: over a shorter stretch a tick more or less would be taken for a neighbour.
MIN_JUDGED_S = 0.1
# Cores' worth that others may use beyond those that we leave over: what an idle system's services and the tick's error come to.
SPARE_CORES = 0.25
# A hypervisor that keeps back a tenth of what was asked for makes a 1% difference of two candidates unreadable.
MAX_STEAL = 0.10
# Share of the stretch that a measuring thread stood in line for a core. A neighbour that the scheduler moves about makes it a
# tenth, one thread more than there are cores a third.
MAX_WAITED = 0.25
# Speed of a core or of the GPU at the end, against the beginning.
MAX_CLOCK_CHANGE = 0.10
# The default's median of the second half against the first's, and likewise of the ratios to it: ten times a winner's least gain.
MAX_DRIFT = 0.10
# Middle half of the default's samples, relative to their median. Beyond it ten samples tell the median to about 15% only.
MAX_SPREAD = 0.25
# Fewer samples have no halves worth a median.
MIN_JUDGED_SAMPLES = 6
# NVML's reasons for a lower clock that come from trouble and not from the settings or the power that the work itself draws:
# nvml.h, nvmlClocksEventReason*.
THROTTLED = {
    0x8: "hardware slowdown",
    0x20: "thermal slowdown (driver)",
    0x40: "thermal slowdown (hardware)",
    0x80: "power brake",
}

Value = TypeVar("Value")


@dataclass(frozen=True)
class GpuConditions:
    """What the driver tells of a GPU now. throttle_reasons: NVML's bits. other_processes: that compute on it beside this one."""

    sm_mhz: float | None = None
    memory_mhz: float | None = None
    utilisation_percent: float | None = None
    temperature_c: float | None = None
    power_limit_w: float | None = None
    throttle_reasons: int | None = None
    other_processes: int | None = None


@dataclass(frozen=True)
class Conditions:
    """One reading: counters since some time in the past, in seconds, and states now. Two of them make a judgement.

    at_s: when. cores: that this process may use; busy_s, steal_s: of these cores; own_s: CPU time of this process. waited_s:
    that its threads stood in line for a core. switches: involuntary ones of this process. pressure_s: "some" of
    /proc/pressure/cpu. load_1m: runnable tasks. mhz: of the fastest core, since idle ones slow down.
    """

    at_s: float
    cores: int
    own_s: float
    switches: int
    busy_s: float | None = None
    steal_s: float | None = None
    waited_s: float | None = None
    pressure_s: float | None = None
    load_1m: float | None = None
    mhz: float | None = None
    gpu: GpuConditions | None = None


def host_conditions(gpu: GpuConditions | None = None) -> Conditions:
    """A reading of this machine, and of this process in it."""
    cores = os.sched_getaffinity(0)
    busy_s, steal_s = _known(lambda: _core_times(cores)) or (None, None)
    return Conditions(
        at_s=time.monotonic(),
        cores=len(cores),
        own_s=time.process_time(),
        switches=resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
        busy_s=busy_s,
        steal_s=steal_s,
        waited_s=_known(_waited_s),
        pressure_s=_known(lambda: int(Path("/proc/pressure/cpu").read_text().split("total=")[1].split()[0]) / 1e6),
        load_1m=_known(lambda: float(Path("/proc/loadavg").read_text().split()[0])),
        mhz=_known(lambda: _mhz(cores)),
        gpu=gpu,
    )


def _known(read: Callable[[], Value]) -> Value | None:
    """What `read` reads, or None where this kernel has no such file or writes it otherwise."""
    try:
        return read()
    except (OSError, ValueError, IndexError):
        return None


def _core_times(cores: set[int]) -> tuple[float, float] | None:
    """Seconds that these cores were busy, and that the hypervisor kept them back (proc(5), /proc/stat); None where all are 0."""
    busy = steal = total = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            user, nice, system, idle, waiting, irq, softirq, stolen = (int(field) for field in fields[:8])
            busy += user + nice + system + irq + softirq
            steal += stolen
            total += busy + idle + waiting
    ticks = os.sysconf("SC_CLK_TCK")
    return (busy / ticks, steal / ticks) if total else None


def _waited_s() -> float:
    """Seconds that the threads of this process were runnable without a core (kernel's sched-stats: second field, nanoseconds)."""
    waited = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            waited += int((task / "schedstat").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            if task.exists():
                raise
    return waited / 1e9


def _mhz(cores: set[int]) -> float:
    scaling = [Path(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq") for core in cores]
    if scaling[0].exists():
        return max(int(path.read_text()) for path in scaling) / 1e3
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    speeds = [float(line.split(":")[1]) for line in lines if line.startswith("cpu MHz")]
    return max(speeds[core] for core in cores)


def observed(before: Conditions, after: Conditions) -> dict[str, Any]:
    """What happened between two readings, for the store: JSON. other_cores: cores' worth of time that other processes used."""
    elapsed_s = after.at_s - before.at_s
    own_s = after.own_s - before.own_s
    busy_s, steal_s = _difference(before.busy_s, after.busy_s), _difference(before.steal_s, after.steal_s)
    waited_s, pressure_s = _difference(before.waited_s, after.waited_s), _difference(before.pressure_s, after.pressure_s)

    def rate(spent_s: float | None) -> float | None:
        return None if spent_s is None or elapsed_s <= 0 else round(spent_s / elapsed_s, 3)

    return {
        "elapsed_s": round(elapsed_s, 3),
        "cores": after.cores,
        "own_cores": rate(own_s),
        "other_cores": None if busy_s is None else rate(max(0.0, busy_s - own_s)),
        "stolen_cores": rate(steal_s),
        "waited": rate(waited_s),
        "pressure": rate(pressure_s),
        "involuntary_switches": after.switches - before.switches,
        "load_1m": after.load_1m,
        "mhz": [before.mhz, after.mhz],
        "gpu": None if before.gpu is None or after.gpu is None else [asdict(before.gpu), asdict(after.gpu)],
    }


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def disturbance(before: Conditions, after: Conditions, threads: int) -> str | None:
    """Why what was measured with `threads` threads between two readings is not to be trusted, in one line; None if it is."""
    seen = observed(before, after)
    return _host_disturbance(seen, threads) or _clock_change(seen["mhz"], "the processor") or _gpu_disturbance(before, after)


def _host_disturbance(seen: dict[str, Any], threads: int) -> str | None:
    elapsed_s, cores = seen["elapsed_s"], seen["cores"]
    if elapsed_s < MIN_JUDGED_S:
        return None
    # each core's count may be a tick off
    error = cores / os.sysconf("SC_CLK_TCK") / elapsed_s
    others = seen["other_cores"]
    if others is not None and others - error > max(0, cores - threads) + SPARE_CORES:
        return f"other processes kept {others:.1f} of {cores} cores busy, {threads} {'is' if threads == 1 else 'are'} needed"
    stolen = seen["stolen_cores"]
    if stolen is not None and stolen - error > MAX_STEAL * max(seen["own_cores"] + (others or 0.0) + stolen, 1.0):
        return f"the hypervisor kept back {stolen:.1f} cores' worth of time"
    waited = seen["waited"]
    if waited is not None and waited > MAX_WAITED * threads:
        return f"the measuring threads waited for a core for {waited / threads:.0%} of the time"
    return None


def _clock_change(mhz: Sequence[float | None], what: str) -> str | None:
    first, last = mhz
    if not first or not last or abs(last / first - 1) <= MAX_CLOCK_CHANGE:
        return None
    return f"the clock of {what} went from {first:.0f} to {last:.0f} MHz"


def _gpu_disturbance(before: Conditions, after: Conditions) -> str | None:
    if before.gpu is None or after.gpu is None:
        return None
    others = max(before.gpu.other_processes or 0, after.gpu.other_processes or 0)
    if others:
        return f"{others} other process{'es use' if others > 1 else ' uses'} the GPU"
    reasons = (before.gpu.throttle_reasons or 0) | (after.gpu.throttle_reasons or 0)
    for bit, reason in THROTTLED.items():
        if reasons & bit:
            return f"the GPU is throttled: {reason}"
    return _clock_change([before.gpu.sm_mhz, after.gpu.sm_mhz], "the GPU")


def unsteady(times_ms: Sequence[Sequence[float]]) -> str | None:
    """What the samples themselves tell, the default's first, paired by round: why they are not to be trusted; None if they are.

    The default stands for all: it is the same code in every stretch. Of the ratios to it, where there are several, the middle one
    must hold, so that one candidate that is uneven by itself costs no other, and no workload.
    """
    default = times_ms[0]
    if len(default) < MIN_JUDGED_SAMPLES:
        return None
    if (change := _drift(default)) > MAX_DRIFT:
        return f"the default drifted by {change:.0%} while measured"
    lower, middle, upper = statistics.quantiles(default, n=4)
    if upper - lower > MAX_SPREAD * middle:
        return f"the middle half of the default's samples spreads over {(upper - lower) / middle:.0%} of their median"
    changes = [_drift([mine / base for mine, base in zip(times, default, strict=True)]) for times in times_ms[1:]]
    if len(changes) > 1 and (change := statistics.median_low(changes)) > MAX_DRIFT:
        return f"the ratios to the default drifted by {change:.0%} while measured"
    return None


def _drift(samples: Sequence[float]) -> float:
    """Median of the second half against the first's: 0.1 for 10% more or less."""
    half = len(samples) // 2
    first, second = statistics.median(samples[:half]), statistics.median(samples[half:])
    return max(first, second) / min(first, second) - 1 if min(first, second) > 0 else 0.0
