"""The program: the graph that a backend is given, before AOTAutograd, and its key."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from tuner.canonical import digest
from tuner.errors import UnsupportedGraph
from tuner.workload.fx import encode, tensor_meta
from tuner.workload.symbols import Ranges, SymbolicNumber, Symbols, sizes_in


def program_key(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> str:
    """Key of a Dynamo graph under this thread's gradient and autocast modes. Raises UnsupportedGraph for what cannot be keyed.

    Unlike a graph key it keeps the order of the statements: a program only says where its graphs are found.
    """
    index = {node: i for i, node in enumerate(gm.graph.nodes)}
    rows = [[node.op, _target(gm, node), _encode(node.args, index, node), _encode(node.kwargs, index, node)] for node in index]
    values = _values(gm, example_inputs)
    symbols = Symbols(lambda: values)
    inputs = [_input(value, symbols) for value in values]
    training = is_training(example_inputs)
    modes: dict[str, Any] = {
        "training": training,
        "autocast": str(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else None,
        "default_dtype": str(torch.get_default_dtype()),
    }
    if training:
        modes["gradients"] = [i for i, value in enumerate(example_inputs) if getattr(value, "requires_grad", False)]
    bounds = [[symbol.low, symbol.high] for symbol in symbols.declared()]
    return digest("program", {"rows": rows, "inputs": inputs, "modes": modes, "symbols": bounds})


def _values(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> list[Any]:
    """The inputs, with symbols where sizes vary. A back end is given tensors with the sizes of the first call."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    if len(placeholders) != len(example_inputs):
        return list(example_inputs)
    symbolic = [node.meta.get("example_value", node.meta.get("val")) for node in placeholders]
    pairs = zip(symbolic, example_inputs, strict=True)
    return [one if any(isinstance(size, SymbolicNumber) for size in sizes_in(one)) else other for one, other in pairs]


def program_ranges(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Ranges:
    """The ranges of all symbols of a program, as the back end is given it: for `from_fx`, however long after.

    Compiling its graphs narrows them.
    """
    values = _values(gm, example_inputs)
    sizes = (size for value in values for size in sizes_in(value) if isinstance(size, SymbolicNumber))
    environment = next((size.node.shape_env for size in sizes), None)
    return {} if environment is None else dict(environment.var_to_range)


def is_training(example_inputs: Sequence[Any]) -> bool:
    """Whether AOTAutograd will make a forward and a backward graph of it."""
    return torch.is_grad_enabled() and any(isinstance(value, torch.Tensor) and value.requires_grad for value in example_inputs)


def _input(value: Any, symbols: Symbols) -> Any:
    if isinstance(value, torch.Tensor):
        return tensor_meta(value, symbols=symbols)
    if isinstance(value, bool | int | float | SymbolicNumber):
        return symbols.number(value)
    raise UnsupportedGraph("unsupported_node", f"an input of the program is a {type(value).__name__}")


def _target(gm: fx.GraphModule, node: fx.Node) -> Any:
    if node.op in ("placeholder", "output"):
        return ""
    if node.op == "call_method":
        return node.target
    if node.op == "get_attr":
        value: Any = gm
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            raise UnsupportedGraph("nested_graph", f"node {node} is a {type(value).__name__}")
        return [tensor_meta(value), value.item() if value.numel() == 1 else None]
    if node.op == "call_function" and (
        name := getattr(node.target, "__qualname__", None) or getattr(node.target, "__name__", None)
    ):
        return f"{getattr(node.target, '__module__', '')}.{name}"
    raise UnsupportedGraph("unsupported_node", f"node {node} calls {node.target}")


def _encode(value: Any, index: dict[fx.Node, int], node: fx.Node) -> Any:
    if isinstance(value, list | tuple):
        return [_encode(item, index, node) for item in value]
    if isinstance(value, dict):
        return {str(key): _encode(item, index, node) for key, item in value.items()}
    if isinstance(value, slice):
        return {"slice": [_encode(part, index, node) for part in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"slice": "..."}
    return encode(value, index, node)


def copied(gm: fx.GraphModule) -> fx.GraphModule:
    """A graph module with a graph of its own; tensors are shared. (A deep copy fails on tensors under a fake mode.)

    Where an input came from goes with it: without that AOTAutograd knows no parameter, and guards no aliasing.
    """
    made = fx.GraphModule(gm, copy.deepcopy(gm.graph))
    made.meta.update(gm.meta)
    if (sources := getattr(gm, "_param_name_to_source", None)) is not None:
        made._param_name_to_source = sources
    for old, new in zip(gm.graph.find_nodes(op="placeholder"), made.graph.find_nodes(op="placeholder"), strict=True):
        if hasattr(old, "_dynamo_source"):
            new._dynamo_source = old._dynamo_source
    return made
