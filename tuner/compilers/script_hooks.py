"""What `tuner capture` puts into the processes of a script: a recorder in the place of every back end.

Called while torch is being imported, so torch's compilers are not touched here before the script itself loads them.
"""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from tuner.compilers.after_import import after_import
from tuner.workload.captured import say_loaded

SEAM_MODULE = "torch._inductor.compile_fx"
# Modules through which a call of torch.compile may pass on its way to torch's own code.
PASSED_THROUGH = ("torch", "torch.nn.modules.module", "functools", "contextlib")


def install(folder: Path) -> None:
    """From now on, this process leaves each program that it compiles in `folder`."""
    say_loaded(folder)
    _replace_back_ends()
    after_import(SEAM_MODULE, functools.partial(_install_recorder, folder))


def _install_recorder(folder: Path, module: ModuleType) -> None:
    # The script goes on, whatever becomes of the recorder.
    try:
        from tuner.compilers.inductor.recorder import install as install_recorder

        trouble = install_recorder(module, folder)
    except Exception as error:
        trouble = f"{type(error).__name__}: {error}"
    if trouble:
        say_loaded(folder, trouble)


def _replace_back_ends() -> None:
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
        if not getattr(self, "is_users", False):
            return call(self, model, inputs)
        # First: once it is imported, the recorder is installed.
        importlib.import_module(SEAM_MODULE)
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
