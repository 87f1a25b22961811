"""What decides the generated code besides the graph: target, toolchain, ambient settings."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch._inductor.cpp_builder import get_cpp_compiler

from tuner.canonical import differing_fields, named_fields
from tuner.compilers.inductor.hooks import InductorChoices, inductor_config
from tuner.compilers.inductor.users import users_choices, uuid_of
from tuner.errors import UnsupportedGraph
from tuner.plan import PLAN_SCHEMA
from tuner.target import Target

# Environment variables that change generated code through defaults that Inductor reads at import, where its own config cannot
# tell them from a default; and those of them that do not.
CODE_VARIABLES = ("TORCHINDUCTOR_", "INDUCTOR_", "AOT_INDUCTOR_", "ATEN_CPU_CAPABILITY")
OTHER_VARIABLES = (
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCHINDUCTOR_FX_GRAPH",
    "TORCHINDUCTOR_AUTOGRAD",
    "TORCHINDUCTOR_BUNDLED",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES",
    "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE",
    "TORCHINDUCTOR_COMPILE_THREADS",
    "TORCHINDUCTOR_WORKER",
    "TORCHINDUCTOR_REDIS",
    "TORCHINDUCTOR_SAVE_ARGS",
    "TORCHINDUCTOR_QUIESCE",
    "INDUCTOR_TEST",
    "INDUCTOR_WRITE",
    "INDUCTOR_POST_FUSION_SVG",
    "INDUCTOR_ORIG_FX_SVG",
)
# Settings that say where results are kept or how they are shown, not what they are; and passes whose effect is in the graph by
# the time that its key is taken.
OTHER_SETTINGS = (
    "pre_grad_custom_pass",
    "joint_custom_pre_pass",
    "joint_custom_post_pass",
    "enable_autograd_for_aot",
    "aot_inductor.output_path",
    "aot_inductor.serialized_",
    "aot_inductor.package",
    "aot_inductor.metadata",
    "aot_inductor.model_name_for_generated_files",
    "aot_inductor.force_mmap_weights",
    "aot_inductor.dump_aoti_minifier",
    "aot_inductor.repro_level",
    "trace",
    "debug",
    "verbose_progress",
    "compile_threads",
    "worker_",
    "fx_graph_",
    "autotune_local_cache",
    "autotune_remote_cache",
    "force_disable_caches",
)
# Seconds that the C++ compiler may take to tell its version.
COMPILER_S = 5.0
# Settings of back ends that make no code for a CPU, but where a CPU's code is Triton's; and which of them matter all the same.
GPU_SETTINGS = ("triton.", "cuda.", "cutlass.", "rocm.", "xpu.")
NOT_ONLY_GPU = ("triton.cudagraphs",)


@functools.cache
def cpu_target() -> Target:
    """The CPU of this process, by the vector instructions that ATen uses."""
    capability = torch.backends.cpu.get_cpu_capability().lower()
    arch = platform.machine() + ("" if capability in ("default", "no avx") else f"-{capability}")
    return Target("cpu", arch, _cpu_model(), os.cpu_count() or 1)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())


@functools.cache
def cpu_toolchain() -> Mapping[str, Any]:
    """Versions that decide what a CPU runs. Raises what Inductor raises where there is no C++ compiler."""
    command = [get_cpp_compiler(), "--version"]
    version = subprocess.run(command, capture_output=True, text=True, check=True, timeout=COMPILER_S).stdout
    return {"torch": torch.__version__, "compiler": version.partition("\n")[0], "plan_schema": PLAN_SCHEMA}


def ambient() -> dict[str, Any]:
    """Settings of this process and thread that change generated code. Raises UnsupportedGraph for one that cannot be named."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(CODE_VARIABLES) and not name.startswith(OTHER_VARIABLES)
    }
    return {
        "threads": torch.get_num_threads(),
        "inductor": changed_settings(),
        "environment": environment,
        "deterministic": torch.are_deterministic_algorithms_enabled() or None,
        "choices": None if type(choices := users_choices()) is InductorChoices else uuid_of("the choices handler", choices),
        "matmul_precision": None if (precision := torch.get_float32_matmul_precision()) == "highest" else precision,
    }


@contextlib.contextmanager
def as_keyed(keyed: Mapping[str, Any]) -> Iterator[None]:
    """Inductor's settings as in `keyed`, an `ambient()` of another process, within the context.

    Raises UnsupportedGraph, naming the fields, where this process cannot be made equal to it.
    """
    settings = dict(keyed.get("inductor", {}))
    if unknown := [name for name in settings if name not in inductor_config._config]:
        raise UnsupportedGraph("settings", f"this torch has no setting torch._inductor.config.{unknown[0]}")
    hooks = [f"torch._inductor.config.{name}" for name, value in settings.items() if isinstance(value, dict) and "uuid" in value]
    if hooks := [*hooks, *(["the choices handler"] if keyed.get("choices") else [])]:
        raise UnsupportedGraph("settings", f"{hooks[0]} is the user's own, and in no other process")
    with inductor_config.patch(settings):
        here = named_fields(json.loads(json.dumps(ambient())))
        if differences := differing_fields(named_fields(keyed), here):
            raise UnsupportedGraph("settings", f"the measuring process cannot take over {'; '.join(differences)}")
        yield


def settings_in_force() -> dict[str, Any]:
    """Inductor settings of this thread that differ from their defaults and matter to a CPU, as they are."""
    others = OTHER_SETTINGS if inductor_config.cpu_backend == "triton" else (*OTHER_SETTINGS, *GPU_SETTINGS)
    settings: dict[str, Any] = {}
    for name, entry in inductor_config._config.items():
        if entry.alias is not None or name.startswith("_cache") or (name.startswith(others) and name not in NOT_ONLY_GPU):
            continue
        value = getattr(inductor_config, name)
        if value != entry.default:
            settings[name] = value
    return settings


def changed_settings() -> dict[str, Any]:
    """Inductor settings that differ from their defaults and matter to a CPU, as JSON values."""
    changed: dict[str, Any] = {}
    for name, value in settings_in_force().items():
        if name == "inductor_choices_class":
            continue  # one class or another, its handler is named
        changed[name] = _as_json(name, value)
    return changed


def _as_json(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        return [_as_json(name, item) for item in items]
    if isinstance(value, dict):
        return {str(key): _as_json(name, item) for key, item in value.items()}
    return {"uuid": uuid_of(f"torch._inductor.config.{name}", value)}
