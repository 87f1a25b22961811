"""The recorder: in the place of Inductor's main step it notes a program's graphs, and runs them eagerly. Compiles no C++.

For `tuner capture`. The script goes on whatever happens here: what cannot be recorded is noted with the reason, and runs eagerly
all the same. What must be a compiled artifact (AOTInductor, a compile with an inner step of the caller's own) is compiled as
always, after its graphs were noted.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import fx

from tuner.compilers.inductor.ambient import ambient, cpu_target, cpu_toolchain
from tuner.compilers.inductor.capture import form_of, graph_forms, native_form, parameters_of, with_native
from tuner.compilers.inductor.hooks import DYNAMO_SIGNALS, V, compile_fx, compile_fx_inner, functorch_config
from tuner.compilers.inductor.layouts import as_compiled, whatever_layout
from tuner.compilers.inductor.program import copied, is_training, program_key, program_ranges
from tuner.errors import UnsupportedGraph, one_line
from tuner.target import Query
from tuner.workload.captured import CapturedGraph, CapturedProgram, merged_data, with_data, write_file
from tuner.workload.graph import Graph
from tuner.workload.seen import seen_in, seen_in_all

log = logging.getLogger("tuner")
# Inputs are looked at in the first calls, and then ever more seldom; a file is written again after as many seconds at least, and
# after so many times as many as writing it took.
FIRST_CALLS = 8
REWRITE_S = 2.0
REWRITE_FACTOR = 100
# Of a graph whose sizes vary, those at which it runs most often are kept.
MAX_SIZES = 256

Main = Callable[..., Any]
# Whether the thread is within a compile of ours, whose parts pass the door too; and how often programs of scripts passed it.
_within: ContextVar[bool] = ContextVar("tuner_recording", default=False)
_passed: ContextVar[int] = ContextVar("tuner_programs_passed", default=0)
_recordings: list[Recording] = []
_numbers = itertools.count()


def start() -> None:
    """Once in a process, before anything is recorded."""
    atexit.register(_write_all)
    os.register_at_fork(after_in_child=_forget_counts)


def record(
    folder: Path, original: Main, model: Any, example_inputs: Sequence[Any], inner_compile: Main, *rest: Any, **more: Any
) -> Any:
    """In the place of `original`, Inductor's main step: notes the program `model` in `folder`, and gives what runs it eagerly."""
    if _within.get() or not isinstance(model, fx.GraphModule):
        return original(model, example_inputs, inner_compile, *rest, **more)
    _passed.set(_passed.get() + 1)

    def run(gm: fx.GraphModule, inputs: Sequence[Any], inner: Main) -> Any:
        return original(gm, inputs, inner, *rest, **more)

    token = _within.set(True)
    try:
        return _record(folder, model, example_inputs, inner_compile, run)
    finally:
        _within.reset(token)


def compile_for(
    back_end: Callable[[Any, Any], Any], name: str, options: Mapping[str, Any], gm: fx.GraphModule, inputs: Sequence[Any]
) -> Any:
    """What torch.compile gets for a program that it gives to a `back_end` other than Inductor: the program recorded, run eagerly.

    A back end of the user's own that asks Inductor itself is left to do so, with whatever settings it has.
    """
    if name == "tuner":
        patches = torch._TorchCompileInductorWrapper(options.get("mode"), options.get("options"), None).config
        return compile_fx(gm, inputs, config_patches=patches)
    if name in torch._dynamo.list_backends(None):
        return compile_fx(gm, inputs)
    before, untouched = _passed.get(), _copied(gm)
    if isinstance(untouched, Exception):
        log.warning("tuner: a program given to the back end %s is not captured: %s", name, one_line(untouched))
        return back_end(gm, inputs)
    compiled = back_end(gm, inputs)
    return compiled if _passed.get() != before else compile_fx(untouched, inputs)


def _record(folder: Path, gm: fx.GraphModule, example_inputs: Sequence[Any], inner_compile: Main, run: Main) -> Any:
    recording = Recording(folder)
    compiled: Any = None
    if must_compile(inner_compile):
        recording.trace(gm, example_inputs)
        compiled = run(gm, example_inputs, inner_compile)
        recording.write()
        return compiled
    # Inductor's own steps change what they are given.
    untouched = _copied(gm)
    if isinstance(untouched, Exception):
        recording.leave_out(untouched)
        untouched = gm
    elif recording.key(gm, example_inputs):
        compiled = recording.compile(gm, example_inputs, run)
    recording.write()
    return untouched.forward if compiled is None else compiled


def _copied(gm: fx.GraphModule) -> fx.GraphModule | Exception:
    """A copy, or why there is none: a graph may hold what cannot be copied, and the script goes on all the same."""
    try:
        return copied(gm)
    except Exception as error:
        return error


def must_compile(inner_compile: Main) -> bool:
    """Whether what comes out must be a compiled artifact, which running eagerly cannot stand for."""
    inner: Any = inner_compile
    while inner is not compile_fx_inner:
        inner = getattr(inner, "func", None) or getattr(inner, "__wrapped__", None)
        if inner is None:
            return True
    return bool(V.aot_compilation or functorch_config.bundled_autograd_cache)


class Recording:
    """One program of this process, as it goes to its file."""

    def __init__(self, folder: Path):
        self.folder, self.number = folder, next(_numbers)
        self.query: Query | None = None
        self.left_out: dict[str, str] = {}
        self.graphs: list[CapturedGraph] = []
        self.lock = threading.Lock()
        self.write_after, self.changed = 0.0, False
        _recordings.append(self)

    def leave_out(self, error: Exception) -> None:
        """Notes why something is missing."""
        reason = error.reason if isinstance(error, UnsupportedGraph) else type(error).__name__
        self.left_out.setdefault(reason, str(error) if isinstance(error, UnsupportedGraph) else one_line(error))

    def key(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
        """Notes the program's query; whether its graphs can be recorded."""
        elsewhere = {value.device.type for value in example_inputs if isinstance(value, torch.Tensor)} - {"cpu"}
        # The script's border: what fails here on our account must not fail the script.
        try:
            if elsewhere:
                raise UnsupportedGraph("device", f"an input is on {min(elsewhere)}; only the CPU is supported yet")
            where = (cpu_target().fields(), cpu_toolchain(), ambient())
            self.query = Query("program", program_key(gm, example_inputs), *where)
        except Exception as error:
            self.leave_out(error)
        return not elsewhere

    def trace(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        """Notes the program's graphs without what is seen in their inputs; compiles nothing."""
        if self.key(gm, example_inputs):
            try:
                self.graphs = [CapturedGraph(graph) for graph in graph_forms(gm, example_inputs, {})]
            except Exception as error:
                self.leave_out(error)

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any], run: Main) -> Any:
        """The program, which notes its graphs and runs eagerly; None where Inductor's own steps fail with it."""

        def inner(made: fx.GraphModule, inputs_like: Sequence[Any], **kwargs: Any) -> Any:
            try:
                graph = with_native(form_of(made, kwargs, inputs_like, ranges), native)
                finish = as_compiled(made, inputs_like, kwargs) if graph.phase == "forward" else lambda outputs: outputs
                runs = whatever_layout(made) if graph.phase == "backward" else made
            except Exception as error:
                self.leave_out(error)
                return _boxed(whatever_layout(made).forward)
            with self.lock:
                place = len(self.graphs)
                self.graphs.append(CapturedGraph(graph))
                parameters = parameters_of(graph, [one.graph for one in self.graphs])
            return self._running(runs, finish, place, parameters)

        try:
            # Before anything narrows them.
            ranges = program_ranges(gm, example_inputs)
            native = None if is_training(gm, example_inputs) else native_form(gm, example_inputs)
            with functorch_config.patch(enable_autograd_cache=False, force_non_lazy_backward_lowering=True):
                return run(gm, example_inputs, inner)
        except DYNAMO_SIGNALS:
            _recordings.remove(self)
            raise
        except Exception as error:
            self.leave_out(error)
            return None

    def _running(self, made: fx.GraphModule, finish: Callable[[Any], Any], place: int, static: frozenset[int]) -> Any:
        def run(*inputs: Any) -> Any:
            try:
                self._look(place, [value for value in inputs if isinstance(value, torch.Tensor)], static)
            except Exception as error:
                self.leave_out(error)
            return finish(made.forward(*inputs))

        return _boxed(run)

    def _look(self, place: int, inputs: Sequence[torch.Tensor], static: frozenset[int]) -> None:
        with self.lock, torch.no_grad():
            known = self.graphs[place]
            calls = known.calls + 1
            graph = known.graph
            if calls == 1:
                graph = with_data(graph, seen_in_all(inputs, static))
            elif calls <= FIRST_CALLS or calls & (calls - 1) == 0:
                graph = _seen_again(graph, inputs, static)
            self.graphs[place] = CapturedGraph(graph, calls, _counted(known.sizes, _sizes(graph, inputs)))
            self.changed = True
        if calls == 1 or time.monotonic() > self.write_after:
            self.write()

    def write(self) -> None:
        """Writes the program's file, where there is something to say. Never raises: the script goes on."""
        with self.lock:
            program = CapturedProgram(self.query, tuple(self.graphs), dict(self.left_out))
            started = time.monotonic()
            try:
                write_file(self.folder / f"{os.getpid()}-{self.number}.json", program)
            except (OSError, ValueError) as error:
                log.warning("tuner: cannot write what was captured: %s", one_line(error))
            ended = time.monotonic()
            self.write_after, self.changed = ended + max(REWRITE_S, REWRITE_FACTOR * (ended - started)), False


def _boxed(run: Callable[..., Any]) -> Any:
    def boxed(inputs: list[Any]) -> Any:
        given = tuple(inputs)
        inputs.clear()
        return run(*given)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


def _sizes(graph: Graph, inputs: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """The values of the graph's symbols in a call; none where an input does not say each by itself."""
    found: dict[str, int] = {}
    if graph.symbols:
        for node, value in zip(graph.inputs, inputs, strict=True):
            found.update({size: at for size, at in zip(node.value[1], value.shape, strict=True) if isinstance(size, str)})
    names = [f"s{i}" for i in range(len(graph.symbols))]
    return tuple(found[name] for name in names) if all(name in found for name in names) else ()


def _counted(sizes: Mapping[tuple[int, ...], int], at: tuple[int, ...]) -> dict[tuple[int, ...], int]:
    """`sizes` with a call at `at` more; where these are too many, without the other that was seen least."""
    counted = dict(sizes)
    if at:
        if at not in counted and len(counted) >= MAX_SIZES:
            del counted[min(counted, key=counted.__getitem__)]
        counted[at] = counted.get(at, 0) + 1
    return counted


def _seen_again(graph: Graph, inputs: Sequence[torch.Tensor], static: frozenset[int]) -> Graph:
    """`graph` with the wider bounds of its integer inputs: those of other kinds are made like the first ones."""
    data = list(graph.data)
    for i, (value, seen) in enumerate(zip(inputs, data, strict=True)):
        if i not in static and not (value.is_floating_point() or value.is_complex()):
            data[i] = merged_data(seen, seen_in(value))
    return with_data(graph, tuple(data))


def _write_all() -> None:
    for recording in _recordings:
        if recording.changed:
            recording.write()


def _forget_counts() -> None:
    """In a forked process: what was counted before is the parent's."""
    for recording in _recordings:
        recording.lock = threading.Lock()
        recording.graphs = [CapturedGraph(one.graph) for one in recording.graphs]
        recording.changed = False
