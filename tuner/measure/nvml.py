"""What the driver tells of an NVIDIA GPU, by nvidia-ml-py; without it nothing is known. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tuner.measure.quietness import GpuConditions


def gpu_conditions(uuid: str) -> GpuConditions | None:
    """A reading of the GPU with this UUID ("GPU-..."); None where nvidia-ml-py, the driver or the GPU is not there."""
    try:
        nvml = import_module("pynvml")  # that of nvidia-ml-py
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError:
        return None

    def ask(question: Callable[..., Any], *arguments: Any) -> Any:
        """What this GPU answers; None where it does not support the question."""
        try:
            return question(handle, *arguments)
        except nvml.NVMLError:
            return None

    # called ...ThrottleReasons before version 12 of nvidia-ml-py
    reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    rates, limit = ask(nvml.nvmlDeviceGetUtilizationRates), ask(nvml.nvmlDeviceGetEnforcedPowerLimit)
    return GpuConditions(
        sm_mhz=ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
        memory_mhz=ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
        utilisation_percent=None if rates is None else rates.gpu,
        temperature_c=ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
        power_limit_w=None if limit is None else limit / 1000,
        throttle_reasons=ask(reasons),
        other_processes=_others(ask(nvml.nvmlDeviceGetComputeRunningProcesses)),
    )


def _others(processes: list[Any] | None) -> int | None:
    """Processes with a context on the GPU beside this one, which has one too: in a container it goes by another number there."""
    if processes is None:
        return None
    numbers = {process.pid for process in processes}
    return len(numbers - {os.getpid()}) if os.getpid() in numbers else max(0, len(numbers) - 1)
