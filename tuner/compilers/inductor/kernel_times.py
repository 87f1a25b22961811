"""Each group of a graph as a C++ function of its own, and the time of each within a call of the graph. CPU only.

Inductor packs consecutive groups into one C++ function. Here it is made to end a function after each group; the names that the
generated Python calls are then replaced by ones that read a clock. A binary is found by its source, in which nothing names the
graph or its buffers: equal groups of other plans and other graphs are compiled once. Read in torch 2.13.0:
torch/_inductor/codegen/cpp.py (CppScheduling), scheduler.py (`Scheduler._codegen`), graph.py (`compile_to_module`).
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from unittest import mock

from tuner.anatomy import KernelTimes
from tuner.compilers.inductor.hooks import GraphLowering, inductor_config
from tuner.plan import canonical_groups

try:
    from torch._inductor.codegen.cpp import CppScheduling
except ImportError:  # then `cannot_split` says so
    CppScheduling = None  # type: ignore[assignment, misc]

METHODS = ("codegen_node", "define_kernel", "_set_flush_status")
# Names of the generated module by which it reaches libraries.
LIBRARIES = ("extern_kernels", "aten", "inductor_ops", "_quantized")
# Calls of nothing, of which the median is what watching one call adds to its time.
CALIBRATION = 1001

Clock = Callable[[], int]


def cannot_split() -> str:
    """Why the groups of a graph cannot be timed one by one under the present settings, or ""."""
    missing = [name for name in METHODS if not hasattr(CppScheduling, name)]
    if missing or not hasattr(GraphLowering, "compile_to_module"):
        return f"this torch has no CppScheduling.{missing[0]}" if missing else "this torch has no GraphLowering.compile_to_module"
    if inductor_config.cpp_wrapper:
        return "with cpp_wrapper all kernels are called from one C++ function"
    backend = getattr(inductor_config, "cpu_backend", "cpp")
    return "" if backend == "cpp" else f"the CPU back end is {backend}, of which no kernels are known apart"


@dataclass
class SplitCode:
    """What was generated. kernels: the C++ function's name in the module and the compiler's names of its leaves, in the order
    of the calls; equal functions are there once for each call. module: the generated Python.
    """

    kernels: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    module: types.ModuleType | None = None


@contextlib.contextmanager
def split_kernels() -> Iterator[SplitCode]:
    """The graph that is compiled meanwhile gets one C++ function a group. Only where `cannot_split` says nothing."""
    found = SplitCode()
    codegen_node, define_kernel, compile_to_module = (
        CppScheduling.codegen_node,
        CppScheduling.define_kernel,
        GraphLowering.compile_to_module,
    )

    @functools.wraps(codegen_node)
    def ended(self: Any, node: Any) -> None:
        codegen_node(self, node)
        self._set_flush_status(True)

    @functools.wraps(define_kernel)
    def defined(self: Any, src_code: str, nodes: Sequence[Any], *args: Any, **kwargs: Any) -> str:
        name: str = define_kernel(self, src_code, nodes, *args, **kwargs)  # type: ignore[no-untyped-call]
        found.kernels.append((name, tuple(leaf.get_name() for node in nodes for leaf in node.get_nodes())))
        return name

    @functools.wraps(compile_to_module)
    def loaded(self: Any) -> Any:
        made = compile_to_module(self)
        if isinstance(made, types.ModuleType):
            found.module = made
        return made

    with (
        mock.patch.object(CppScheduling, "codegen_node", ended),
        mock.patch.object(CppScheduling, "define_kernel", defined),
        mock.patch.object(GraphLowering, "compile_to_module", loaded),
    ):
        yield found


class WatchedKernels:
    """Times of one compiled graph: of its kernels and library calls, while it is called through `watching`; and of the whole,
    while it is called through `timing`, with nothing in it watched.

    ids: local ids by the compiler's names of leaves. Kernels of leaves that have none, of a graph within the graph, count as
    library calls: to a plan they are one. now: reads a clock, in nanoseconds.
    """

    def __init__(self, code: SplitCode, ids: Mapping[str, str], now: Clock):
        assert code.module is not None
        self._now, self._names = now, vars(code.module)
        self._kernels: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        for name, leaves in code.kernels:
            own = [ids[leaf] for leaf in leaves if leaf in ids]
            if own and name in self._names:
                (group,) = canonical_groups([own])
                self._kernels[name].append(group)
        self._spent: dict[str, list[int]] = {name: [] for name in self._kernels}
        self._library: list[int] = []
        self._total: list[int] = []
        self._plain, self._watched = self._both()
        self._cost_ns, self._calls = self._cost(), 0

    def _both(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the generated code calls by these names: as it was loaded, and watched."""
        watched: dict[str, Any] = {name: self._timed(self._names[name], self._spent[name]) for name in self._kernels}
        # Of a graph within the graph.
        within = [name for name in self._names if name.startswith("cpp_") and name not in watched]
        watched |= {name: self._timed(self._names[name], self._library) for name in within if callable(self._names[name])}
        watched |= {name: self._library_of(self._names[name]) for name in LIBRARIES if name in self._names}
        if (torch := self._names.get("torch")) is not None:
            watched["torch"] = _Namespace(torch, {"ops": self._library_of(torch.ops)})
        return {name: self._names[name] for name in watched}, watched

    def _timed(self, function: Callable[..., Any], spent: list[int]) -> Callable[..., Any]:
        now = self._now

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = now()
            result = function(*args, **kwargs)
            spent.append(now() - start)
            return result

        return timed

    def _library_of(self, holder: Any) -> _Library:
        return _Library(holder, lambda function: self._timed(function, self._library))

    def _cost(self) -> float:
        """What watching adds to the time of one call."""
        spent: list[int] = []
        nothing = self._timed(lambda *args, **kwargs: None, spent)
        for _ in range(CALIBRATION):
            nothing(None, None, None)
        return median(spent)

    def watching(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """The same call, of the graph that was compiled, with its kernels timed."""

        def watched() -> Any:
            self._calls += 1
            self._names.update(self._watched)
            try:
                return call()
            finally:
                self._names.update(self._plain)

        return watched

    def timing(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """The same call, timed as a whole."""
        return self._timed(call, self._total)

    def times(self, calls: int) -> KernelTimes:
        """Medians over the last so many calls of each kind: single calls, of which others on the machine disturb a few."""
        kernels = [
            (group, ms)
            for name, groups in self._kernels.items()
            for group, ms in zip(groups, self._medians_ms(self._spent[name], calls, len(groups)), strict=True)
        ]
        in_a_call = max(1, round(len(self._library) / self._calls)) if self._library else 0
        library_ms = sum(self._medians_ms(self._library, calls, in_a_call))
        return KernelTimes(tuple(kernels), library_ms, self._median_ms(self._total[-calls:]))

    def _median_ms(self, spent: Sequence[int]) -> float:
        return max(0.0, median(spent) - self._cost_ns) / 1e6

    def _medians_ms(self, spent: Sequence[int], calls: int, in_a_call: int) -> list[float]:
        """Of each of the places that they have in a call; where their number varies, the mean."""
        if len(spent) != in_a_call * self._calls:
            mean_ns = (sum(spent) - self._cost_ns * len(spent)) / self._calls / in_a_call
            return [max(0.0, mean_ns) / 1e6] * in_a_call
        last = spent[len(spent) - calls * in_a_call :]
        return [self._median_ms(last[i::in_a_call]) for i in range(in_a_call)]


class _Namespace:
    """Another module, with a few names replaced."""

    def __init__(self, module: Any, replaced: Mapping[str, Any]):
        self._module = module
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        setattr(self, name, value)
        return value


class _Library:
    """Something that is called by a dotted name, `torch.ops.aten.mm.default`; each call of any of it is timed."""

    def __init__(self, original: Any, timed: Callable[[Callable[..., Any]], Callable[..., Any]]):
        self._original, self._timing = original, timed
        self._call = timed(original) if callable(original) else None

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._original, name)
        made = _Library(value, self._timing) if callable(value) or isinstance(value, types.ModuleType) else value
        setattr(self, name, made)
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        assert self._call is not None
        return self._call(*args, **kwargs)
