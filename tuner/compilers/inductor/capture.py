"""Run a callable once and keep the graphs that Inductor would be given, with what was seen in their inputs. Compiles no C++."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from tuner.compilers.inductor.decompose import late_decompose, native_table, register_native, table_without
from tuner.compilers.inductor.graphs_only import Stop, never_called, trace_graphs
from tuner.compilers.inductor.hooks import DYNAMO_SIGNALS, V, compile_fx, dynamo_config, functorch_config, inductor_config
from tuner.compilers.inductor.layouts import as_compiled, whatever_layout
from tuner.compilers.inductor.program import is_training, program_hints, program_key, program_ranges
from tuner.errors import SpecError, UnsupportedGraph, find_cause, one_line
from tuner.search_spaces.native import NATIVE_OPS
from tuner.workload.captured import with_data
from tuner.workload.fx import BOUND, from_fx
from tuner.workload.graph import Graph, SpecPhase
from tuner.workload.seen import seen_in_all
from tuner.workload.step import Step
from tuner.workload.symbols import Ranges


@dataclass
class Program:
    """A captured program: its key, its graphs in the order in which they were compiled, and the sizes of its symbols."""

    key: str
    graphs: list[Graph] = field(default_factory=list)
    hints: tuple[int, ...] = ()


log = logging.getLogger("tuner")
# Else sizes that varied in other runs of a script would be dynamic here.
NO_PROFILE = {"automatic_dynamic_local_pgo": False, "automatic_dynamic_remote_pgo": False}


@dataclass(frozen=True)
class Native:
    """A graph with all declared op kinds undecomposed, and the key of what it decomposes to."""

    form: Graph
    key: str


def native_form(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Native | None:
    """The inference graph with all declared op kinds undecomposed; None if it holds none of them, or cannot be had."""
    found: list[Native] = []
    ranges = program_ranges(gm, example_inputs)

    def record(made: fx.GraphModule, _: Sequence[Any], **kwargs: Any) -> Any:
        form = from_fx(made, static_inputs=kwargs.get("static_input_idxs", ()), ranges=ranges)
        if NATIVE_OPS.intersection(form.calls):
            found.append(Native(form, from_fx(late_decompose(made, ()), ranges=ranges).key))
        raise Stop

    try:
        trace_graphs(gm, example_inputs, record, decompositions=native_table())
    except DYNAMO_SIGNALS:
        raise
    except Exception as error:
        # What is wrong with the program itself shows when the default is captured; else it is only tuned without native ops.
        if not find_cause(error, UnsupportedGraph):
            log.warning("tuner: no op can be kept native in this graph: %s", one_line(error))
    return found[0] if found else None


def graph_forms(
    gm: fx.GraphModule, example_inputs: Sequence[Any], patches: dict[str, Any], made: Sequence[Graph] = ()
) -> list[Graph]:
    """The graphs that Inductor would be given under `patches`, nothing seen of their inputs; compiles nothing, asks no cache.

    For use in a back end. made: the same, where the compile has just made them, without native forms: it saves a trace. Raises
    UnsupportedGraph, naming the node, for what our form cannot hold.
    """
    graphs, ranges = list(made), program_ranges(gm, example_inputs)

    def record(gm: fx.GraphModule, inputs_like: Sequence[Any], **kwargs: Any) -> Any:
        graphs.append(form_of(gm, kwargs, inputs_like, ranges))
        if graphs[-1].phase != "forward":
            raise Stop
        as_compiled(gm, inputs_like, kwargs)
        return never_called

    with (
        functorch_config.patch(enable_autograd_cache=False, force_non_lazy_backward_lowering=True),
        inductor_config.patch({**patches, "fx_graph_cache": False}),
    ):
        native = None if is_training(gm, example_inputs) else native_form(gm, example_inputs)
        try:
            if not made:
                trace_graphs(gm, example_inputs, record, config_patches=patches)
        except Exception as error:
            if own := find_cause(error, UnsupportedGraph):
                raise own from error
            raise
    return [with_native(graph, native) for graph in graphs]


def form_of(
    gm: fx.GraphModule, kwargs: Mapping[str, Any], example_inputs: Sequence[Any] = (), ranges: Ranges | None = None
) -> Graph:
    """The form of a graph that Inductor's inner step is given with `kwargs`. Raises UnsupportedGraph.

    example_inputs: what the step is given beside it, for a backward graph: it is traced before the forward is compiled, and
    compiled for what that lays out in another way. ranges: of the program's symbols, see `program.program_ranges`; a backward's
    key would else depend on how its forward was lowered.
    """
    if V.aot_compilation and not inductor_config.freezing and not inductor_config.enable_autograd_for_aot:
        _mark_bound(gm)
    phase = "inference" if kwargs.get("is_inference") else "backward" if kwargs.get("is_backward") else "forward"
    if phase == "backward" and example_inputs:
        for node, value in zip(gm.graph.find_nodes(op="placeholder"), example_inputs, strict=True):
            if isinstance(value, torch.Tensor):
                node.meta["val"] = value
    return from_fx(gm, phase, sorted(kwargs.get("static_input_idxs", ())), ranges)


def _mark_bound(gm: fx.GraphModule) -> None:
    """Marks the constants that AOTInductor has made of parameters and the like: single numbers it had as constants before."""
    for node in gm.graph.find_nodes(op="get_attr"):
        value = functools.reduce(getattr, str(node.target).split("."), gm)
        if isinstance(value, torch.Tensor) and value.numel() > 1 and isinstance(node.meta.get("val"), torch.Tensor):
            node.meta[BOUND] = True


def with_native(graph: Graph, native: Native | None) -> Graph:
    """`graph` with its native form, where it is what `native` decomposes to."""
    return replace(graph, native_form=native.form if native and native.key == graph.key else None)


def _recorder(programs: list[Program], without: Sequence[str]) -> Callable[..., Any]:
    register_native(without)

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        program = Program(program_key(gm, example_inputs), hints=program_hints(gm, example_inputs))
        programs.append(program)
        # Before anything narrows them.
        ranges = program_ranges(gm, example_inputs)
        native = None if is_training(gm, example_inputs) else native_form(gm, example_inputs)

        def record(made: fx.GraphModule, inputs_like: Sequence[Any], **kwargs: Any) -> Any:
            place = len(program.graphs)
            graph = with_native(form_of(made, kwargs, inputs_like, ranges), native)
            program.graphs.append(graph)
            parameters = parameters_of(graph, program.graphs)
            finish = as_compiled(made, inputs_like, kwargs) if graph.phase == "forward" else lambda outputs: outputs

            runs = whatever_layout(made) if graph.phase == "backward" else made

            def run(inputs: list[Any]) -> Any:
                seen = seen_in_all([value for value in inputs if isinstance(value, torch.Tensor)], parameters)
                program.graphs[place] = with_data(program.graphs[place], seen)
                outputs = runs.forward(*inputs)
                inputs.clear()
                return finish(outputs)

            run._boxed_call = True  # type: ignore[attr-defined]
            return run

        return compile_fx(gm, example_inputs, inner_compile=record, decompositions=table_without(without) if without else None)

    return backend


def parameters_of(graph: Graph, program: Sequence[Graph]) -> frozenset[int]:
    """Positions among the tensors of inputs that are parameters; of a backward, to which all saved values are static, by name."""
    if graph.phase != "backward":
        return frozenset(graph.static_inputs)
    names = {one.names[i] for one in program if one.phase == "forward" for i in one.static_inputs}
    return frozenset(i for i, name in enumerate(graph.names) if name in names)


def capture(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    dynamic: bool | None = False,
    phase: SpecPhase = "inference",
    without: Sequence[str] = (),
) -> list[Program]:
    """The programs, in order, that `torch.compile(function)` makes for `inputs`, which runs once, without compiled code.

    dynamic: as torch.compile takes it. phase: whether it runs without gradients or as a training step; of a step each program
    has a forward and a backward graph. without: op kinds that AOTAutograd leaves undecomposed, see `native_tables`. Raises
    UnsupportedGraph, naming the node, for a graph that cannot be stored, SpecError for what Dynamo cannot compile.
    """
    programs: list[Program] = []
    torch._dynamo.reset()
    with (
        functorch_config.patch(enable_autograd_cache=False),
        inductor_config.patch(fx_graph_cache=False),
        # Else Dynamo would break the graph there and specialise on the size that came out.
        dynamo_config.patch(capture_dynamic_output_shape_ops=True, **NO_PROFILE),
        contextlib.nullcontext() if phase == "training" or torch.is_inference_mode_enabled() else torch.no_grad(),
    ):
        try:
            compiled = torch.compile(function, backend=_recorder(programs, without), dynamic=dynamic)
            if phase == "training":
                step = Step(inputs)
                step(compiled)
                step.forget()
            else:
                compiled(*inputs)
        except Exception as error:
            if own := find_cause(error, UnsupportedGraph):
                raise own from error
            if isinstance(error, SpecError):
                raise
            # Dynamo's own error only says that its back end failed; what it wraps says why.
            told = getattr(error, "inner_exception", None) or error
            raise SpecError(f"torch.compile cannot capture it: {one_line(told)}") from error
    torch._dynamo.reset()
    # Of one that Dynamo traced again, the first trace gave none.
    made = [program for program in programs if program.graphs]
    if not made:
        raise SpecError("nothing to tune: torch.compile made no graph of it")
    return made
