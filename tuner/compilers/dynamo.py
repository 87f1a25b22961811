"""The entry point `torch_dynamo_backends: tuner`: what torch.compile(model, backend="tuner") calls."""

from __future__ import annotations

import functools
import sys
import threading
from types import FrameType
from typing import Any

from tuner.compilers.inductor import doors

# Whether a program of this process was compiled for CUDA graphs.
_cuda_graphs = threading.Event()


def tuner_backend(gm: Any, example_inputs: Any, mode: str | None = None, options: Any = None) -> Any:
    """Compiles with Inductor, and with a stored winner's plan for each graph that has one.

    mode, options: what they mean to Inductor; a setting that changes code makes another exact-match key. Where this torch lacks
    something that we use, Inductor alone compiles, after one warning.
    """
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx

    if trouble := doors.install(sys.modules[doors.MODULE]):
        doors.warn_unsupported(trouble)
    patches = _patches(mode, options)
    if patches.get("triton.cudagraphs", config.triton.cudagraphs):
        _cuda_graphs.set()
    with doors.served():
        return compile_fx(gm, example_inputs, config_patches=patches)


def reset() -> None:
    """What torch.compiler.reset() asks of a back end: as Inductor's, it drops CUDA graphs; it forgets the client too."""
    if backend := sys.modules.get("tuner.compilers.inductor.backend"):
        backend.client.cache_clear()
    if _cuda_graphs.is_set():
        _cuda_graphs.clear()
        from torch._inductor.cudagraph_trees import reset_cudagraph_trees

        reset_cudagraph_trees()


tuner_backend.reset = reset  # type: ignore[attr-defined]


def _patches(mode: str | None, options: Any, dynamic: bool | None = None) -> dict[str, Any]:
    """Inductor's settings for what torch.compile was given. Raises RuntimeError for a mode or an option that Inductor lacks."""
    import torch

    return torch._TorchCompileInductorWrapper(mode, options, dynamic).config


def check_options_early() -> None:
    """Makes a wrong mode or option fail at torch.compile, as with backend="inductor", not only at the first call.

    torch hands a back end its options with the first program. What torch.compile makes of them is an object that looks up the
    back end when it is made: in the first of a process that is under way here, the later ones are looked at as they are made.
    """
    wrapper: Any = getattr(sys.modules.get("torch"), "_TorchCompileWrapper", None)
    if wrapper is None:
        return
    construct = wrapper.__init__

    @functools.wraps(construct)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        if getattr(self, "compiler_fn", None) is tuner_backend and (given := getattr(self, "kwargs", None)):
            _patches(given.get("mode"), given.get("options"), getattr(self, "dynamic", None))

    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_qualname != "_TorchCompileWrapper.__init__":
        frame = frame.f_back
    if frame is not None:
        given = frame.f_locals
        mode, options = given.get("mode"), given.get("options")
        if (mode and mode != "default") or options:
            _patches(mode, options, given.get("dynamic"))
    wrapper.__init__ = init


# This module is loaded by who looks the back end up, and that is torch.compile.
check_options_early()
