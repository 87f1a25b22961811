"""What `tuner capture` puts into the processes of a script: a recorder in the place of every back end.

Called while torch is being imported, so torch's compilers are not touched here before the script itself loads them.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from tuner.compilers.after_import import after_import
from tuner.workload.captured import say_failed, say_loaded

SEAM_MODULE = "torch._inductor.compile_fx"
SEAM = "_compile_fx_main"
# Modules through which a call of torch.compile may pass on its way to torch's own code.
PASSED_THROUGH = ("torch", "torch.nn.modules.module", "functools", "contextlib")


def install(folder: Path) -> None:
    """From now on, this process leaves each program that it compiles in `folder`."""
    say_loaded(folder)
    atexit.register(_say_what_failed, folder)
    _replace_back_ends(folder)
    after_import(SEAM_MODULE, functools.partial(_install_recorder, folder))


def _install_recorder(folder: Path, module: ModuleType) -> None:
    """Puts the recorder into `module`. It is imported when the first program comes: others may be importing its parts now."""
    original: Callable[..., Any] | None = getattr(module, SEAM, None)
    if original is None:
        say_loaded(folder, f"this torch lacks {SEAM_MODULE}.{SEAM}")
        return

    @functools.wraps(original)
    def compile_fx_main(*args: Any, **kwargs: Any) -> Any:
        record = _recorder(folder)
        return original(*args, **kwargs) if record is None else record(folder, original, *args, **kwargs)

    setattr(module, SEAM, compile_fx_main)


@functools.cache
def _recorder(folder: Path) -> Callable[..., Any] | None:
    # The script goes on, whatever becomes of the recorder.
    try:
        from tuner.compilers.inductor.recorder import record, start

        start()
        return record
    except Exception as error:
        say_loaded(folder, f"{type(error).__name__}: {error}")
        return None


def _say_what_failed(folder: Path) -> None:
    """Says what Dynamo failed to trace, if anything, as the process ends: no back end is asked for that.

    Read in torch 2.13.0: torch/_dynamo/utils.py (CompilationMetrics, kept of the last 64 compiles).
    """
    told: Callable[[], list[Any]] = getattr(sys.modules.get("torch._dynamo.utils"), "get_compilation_metrics", list)
    for one in told():
        if kind := getattr(one, "fail_type", None):
            where = f"{getattr(one, 'fail_user_frame_filename', None)}:{getattr(one, 'fail_user_frame_lineno', None)}"
            why = (getattr(one, "fail_reason", None) or "").strip().partition("\n")[0]
            # The command may have ended before a process that it left behind.
            with contextlib.suppress(OSError):
                say_failed(folder, f"torch.compile failed on {getattr(one, 'co_name', None)} ({where}): {kind}: {why[:300]}")
            return


def _replace_back_ends(folder: Path) -> None:
    """Makes torch.compile compile with Inductor, whose door has the recorder, whatever back end it is given."""
    import torch

    wrapper: Any = torch._TorchCompileWrapper
    construct, call = wrapper.__init__, wrapper.__call__

    @functools.wraps(construct)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        self.is_users = _called_by_user()

    @functools.wraps(call)
    def compile_with_inductor(self: Any, model: Any, inputs: Any) -> Any:
        if not getattr(self, "is_users", False) or _recorder(folder) is None:
            return call(self, model, inputs)
        from tuner.compilers.inductor.recorder import compile_for

        return compile_for(functools.partial(call, self), self.compiler_name, self.kwargs, model, inputs)

    wrapper.__init__ = init
    wrapper.__call__ = compile_with_inductor


def _called_by_user() -> bool:
    """Whether torch.compile is called from elsewhere than torch, which does so itself to run some of its operations."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name not in PASSED_THROUGH and not name.startswith("tuner."):
            return not name.startswith("torch.")
        frame = frame.f_back
    return True
