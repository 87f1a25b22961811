"""What the C++ compiler makes appears in Inductor's cache whole or not at all, also where the compile is killed part-way.

Inductor lets g++ write straight to the name under which every later compile of the same code looks: of a compile that was killed,
half a library stays there, and nobody who needs it can load it ("file too short"). Read in torch 2.13.0:
torch/_inductor/codecache.py (_worker_compile_cpp runs here or in a process of Inductor's pool), cpp_builder.py (CppBuilder).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch._inductor import codecache, cpp_builder

# Ends the name of what is being written.
PART = ".tuner-part"
_original: Any = getattr(codecache, "_worker_compile_cpp", None)


def write_whole_files() -> None:
    """From now on, in this process and in the processes of Inductor's pool. Under the same names, made by the same commands."""
    builder: Any = cpp_builder.CppBuilder
    if not hasattr(builder.build, "writes_whole_files"):
        builder.build = _whole(builder.build)
    if _original is not None:
        setattr(codecache, "_worker_compile_cpp", compile_whole)  # noqa: B010 (it takes any builder)


def compile_whole(lock_path: str, builders: Sequence[Any]) -> None:
    """Inductor's own `_worker_compile_cpp`, in whichever process it was sent to. Raises what that does."""
    assert _original is not None
    write_whole_files()
    _original(lock_path, builders)


def _whole(build: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(build)
    def build_whole(self: Any) -> None:
        target = self.get_target_file_path()
        part = f"{target}.{os.getpid()}.{threading.get_ident()}{PART}"
        twin = copy.copy(self)
        # As the option that names the output is the last place where its path stands, all else of the command stays.
        before, found, after = getattr(twin, "_output", "").rpartition(target)
        if not found:
            build(self)
            return
        twin._output = f"{before}{part}{after}"
        _remove_parts(target)
        try:
            build(twin)
            os.replace(part, target)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(part)

    build_whole.writes_whole_files = True  # type: ignore[attr-defined]
    return build_whole


def _remove_parts(target: str) -> None:
    """Those that compiles of the same file have left: Inductor holds the file's lock here, so nobody is writing one."""
    path = Path(target)
    for left in path.parent.glob(f"{path.name}.*{PART}"):
        left.unlink(missing_ok=True)
