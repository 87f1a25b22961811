"""A measuring process in which one candidate misbehaves: for the fault table, with real processes, real signals, a real compiler.

Run as a worker's child with TUNER_FAULT="NAME PLAN_KEY FOLDER". When the fault strikes, its process id stands in FOLDER/struck.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from tuner.workers import child

Run = Callable[[list[Any]], Any]


class Unpicklable(Exception):
    """Cannot be pickled, printed or copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def __str__(self) -> str:
        raise RuntimeError("no words")

    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


def hang() -> None:
    # In C, with Python's lock held: no thread of the process can do anything about it.
    ctypes.PyDLL(None).pause()


def memory_bomb() -> None:
    import torch

    kept = []
    while True:
        kept.append(torch.ones(2**26))


def memory_bomb_in_cpp() -> None:
    """What is thrown in a thread of compiled code, no Python catches: the process ends."""
    source = '#include <vector>\nextern "C" void bomb() noexcept { std::vector<char*> v; for (;;) { char* p = new char[1 << 26];'
    source += " for (long i = 0; i < 1 << 26; i += 4096) p[i] = 1; v.push_back(p); } }\n"
    folder = Path(fault()[2])
    (folder / "bomb.cpp").write_text(source)
    os.system(f"g++ -O1 -shared -fPIC -o {folder}/bomb.so {folder}/bomb.cpp")
    ctypes.CDLL(f"{folder}/bomb.so").bomb()


def raise_unpicklable() -> None:
    raise Unpicklable


def raise_exit() -> None:
    raise SystemExit(0)


# Before the candidate's call.
STRIKES: dict[str, Callable[[], Any]] = {
    "hang": hang,
    "SIGSEGV": lambda: ctypes.string_at(0),
    "os._exit": lambda: os._exit(0),
    "memory bomb": memory_bomb,
    "memory bomb in C++": memory_bomb_in_cpp,
    "exception that does not pickle": raise_unpicklable,
    "SystemExit": raise_exit,
    # Killed meanwhile by who runs the table.
    "worker killed from outside": hang,
    "parent killed": hang,
}


def wrong_by_a_percent(output: Any) -> None:
    output.mul_(1.01)


def wrong_in_one_element(output: Any) -> None:
    output.view(-1)[output.numel() // 2] += output.abs().max() / 10


def not_a_number(output: Any) -> None:
    output.view(-1)[-1] = float("nan")


# To the candidate's first output.
SPOILS: dict[str, Callable[[Any], None]] = {
    "wrong by 1%": wrong_by_a_percent,
    "wrong in one element": wrong_in_one_element,
    "NaN": not_a_number,
}
ENDLESS = "endless compile"
NAMES = (*STRIKES, *SPOILS, ENDLESS)


def fault() -> tuple[str, str, str]:
    """Name of the fault, key of the plan that has it, folder of notes."""
    name, key, folder = os.environ["TUNER_FAULT"].rsplit(" ", 2)
    return name, key, folder


def note() -> None:
    whole = Path(fault()[2], f"struck.{os.getpid()}")
    whole.write_text(str(os.getpid()))
    whole.rename(whole.with_name("struck"))


def faulty(real: Callable[..., Any]) -> Callable[..., Any]:
    """`compile_candidate` with the fault in the one plan."""
    name, key, folder = fault()

    def compile_candidate(gm: Any, inputs: Any, plan: Any, **more: Any) -> Any:
        if plan.key != key:
            return real(gm, inputs, plan, **more)
        if name == ENDLESS:
            with endless_compiler(Path(folder)):
                return real(gm, inputs, plan, **more)
        compiled, realised = real(gm, inputs, plan, **more)
        return spoilt(name, compiled), realised

    return compile_candidate


def spoilt(name: str, compiled: Run) -> Run:
    def run(inputs: list[Any]) -> Any:
        note()
        if name in STRIKES:
            STRIKES[name]()
        outputs = compiled(inputs)
        if name in SPOILS:
            SPOILS[name](outputs[0])
        return outputs

    return run


def endless_compiler(folder: Path) -> Any:
    """g++ reads, as part of the candidate's source, a pipe into which nobody ever writes."""
    from torch._inductor.async_compile import AsyncCompile

    pipe = folder / "never"
    if not pipe.exists():
        os.mkfifo(pipe)
    before = AsyncCompile.cpp_pybinding

    def cpp_pybinding(self: Any, argtypes: list[str], source: str) -> Any:
        note()
        return before(self, argtypes, f'{source}\n#include "{pipe}"\n')

    return mock.patch.object(AsyncCompile, "cpp_pybinding", cpp_pybinding)


class FaultyHandler(child.Handler):
    def open(self, request: dict[str, Any]) -> Any:
        from tuner.workers import builder

        if not hasattr(self, "real"):
            self.real = builder.compile_candidate
            builder.compile_candidate = faulty(self.real)
        return super().open(request)


if __name__ == "__main__":
    child.Handler = FaultyHandler  # type: ignore[misc]
    child.main()
