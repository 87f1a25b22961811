"""The entry point `torch_dynamo_backends: tuner`: what torch.compile(model, backend="tuner") calls."""

from __future__ import annotations

import sys
from typing import Any

from tuner.compilers.inductor import doors


def tuner_backend(gm: Any, example_inputs: Any, mode: str | None = None, options: Any = None) -> Any:
    """Compiles with Inductor, and with a stored winner's plan for each graph that has one.

    mode, options: what they mean to Inductor; a setting that changes code makes another exact-match key. Where this torch lacks
    something that we use, Inductor alone compiles, after one warning.
    """
    import torch
    from torch._inductor.compile_fx import compile_fx

    if trouble := doors.install(sys.modules[doors.MODULE]):
        doors.warn_unsupported(trouble)
    with doors.served():
        return compile_fx(gm, example_inputs, config_patches=torch._TorchCompileInductorWrapper(mode, options, None).config)


def reset() -> None:
    """What torch.compiler.reset() asks of a back end; here it forgets this process's client."""
    if backend := sys.modules.get("tuner.compilers.inductor.backend"):
        backend.client.cache_clear()


tuner_backend.reset = reset  # type: ignore[attr-defined]
