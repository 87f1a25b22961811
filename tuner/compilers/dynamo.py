"""The entry point `torch_dynamo_backends: tuner`: what torch.compile(model, backend="tuner") calls."""

from __future__ import annotations

import functools
import logging
from typing import Any

log = logging.getLogger("tuner")


def tuner_backend(gm: Any, example_inputs: Any, mode: str | None = None, options: Any = None) -> Any:
    """Compiles with Inductor, and with a stored winner's plan for each graph that has one.

    mode, options: what they mean to Inductor; a setting that changes code makes another exact-match key. Where this torch lacks
    something that we use, Inductor alone compiles, after one warning.
    """
    program = _compile_program()
    if program is not None:
        return program(gm, example_inputs, mode, options)
    import torch
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(gm, example_inputs, config_patches=torch._TorchCompileInductorWrapper(mode, options, None).config)


@functools.cache
def _compile_program() -> Any:
    try:
        from tuner.compilers.inductor.backend import compile_program
    except (ImportError, AttributeError) as error:
        log.warning("tuner: this torch is not supported (%s); Inductor compiles by default", error)
        return None
    return compile_program


def reset() -> None:
    """What torch.compiler.reset() asks of a back end; here it forgets this process's client."""
    if _compile_program() is not None:
        from tuner.compilers.inductor import backend

        backend.client.cache_clear()


tuner_backend.reset = reset  # type: ignore[attr-defined]
