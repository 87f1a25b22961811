"""What Inductor makes of generated C++: the flags it is compiled with, and binaries of their own for equal code.

Read in torch 2.13.0: torch/_inductor/codecache.py (CppCodeCache.load_async keys a binary by its source and the command line),
cpp_builder.py, async_compile.py.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

from torch._inductor.codecache import CppPythonBindingsCodeCache, PyCodeCache
from torch._inductor.cpp_builder import CppTorchDeviceOptions
from torch._inductor.cpu_vec_isa import pick_vec_isa

# How the generated Python names what the C++ compiler gets.
HOLDS_CPP = ("cpp_pybinding(", "CppWrapperCodeCache")


def cpp_flags(code: str) -> str:
    """The compiler and its flags, as Inductor's present settings have them, for generated code that holds C++; else "".

    Without folders: those differ between installations that make the same code.
    """
    if not any(name in code for name in HOLDS_CPP):
        return ""
    options = CppTorchDeviceOptions(
        vec_isa=pick_vec_isa(), device_type="cpu", **CppPythonBindingsCodeCache.cpp_compile_command_flags
    )
    flags = (options.get_definitions(), options.get_cflags(), options.get_ldflags(), options.get_passthrough_args())
    return " ".join([options.get_compiler(), *(str(flag) for part in flags for flag in part)])


def forget_loaded() -> None:
    """Makes Inductor load generated Python anew: it finds it by its text, which says nothing of the flags that its C++ needs."""
    PyCodeCache.cache_clear()


@contextlib.contextmanager
def own_binaries(mark: str) -> Iterator[None]:
    """Meanwhile each piece of generated C++ becomes a binary of its own, with `mark` (no line break) in its source."""
    from torch._inductor.async_compile import AsyncCompile

    before = AsyncCompile.cpp_pybinding

    @functools.wraps(before)
    def marked(self: Any, argtypes: list[str], source_code: str) -> Any:
        return before(self, argtypes, f"{source_code}\n// {mark}\n")

    with mock.patch.object(AsyncCompile, "cpp_pybinding", marked):
        yield
