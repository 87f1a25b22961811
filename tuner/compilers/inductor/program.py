"""The program: the graph that a backend is given, before AOTAutograd, and its key."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from tuner.canonical import digest
from tuner.errors import UnsupportedGraph
from tuner.workload.fx import encode, tensor_meta
from tuner.workload.opaque import (
    collective_arguments,
    described,
    hashed,
    higher_order_arguments,
    is_collective,
    kind_of,
    name_of,
)
from tuner.workload.symbols import Ranges, SymbolicNumber, Symbols, expression_of, sizes_in

# What every module has, its parameters and modules among it.
_OF_ANY_MODULE = frozenset(vars(torch.nn.Module()))


def program_key(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> str:
    """Key of a Dynamo graph under this thread's gradient and autocast modes. Raises UnsupportedGraph for what cannot be keyed.

    Unlike a graph key it keeps the order of the statements: a program only says where its graphs are found.
    """
    values = _values(gm, example_inputs)
    symbols = Symbols(lambda: values)
    inputs = [_input(value, symbols) for value in values]
    rows = _rows(gm, symbols)
    training = is_training(gm, example_inputs)
    modes: dict[str, Any] = {
        "training": training,
        "autocast": str(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else None,
        "default_dtype": str(torch.get_default_dtype()),
    }
    if training:
        modes["gradients"] = [i for i, value in enumerate(example_inputs) if getattr(value, "requires_grad", False)]
        if held := [name for name, value in _held_tensors(gm) if value.requires_grad]:
            modes["gradients_of"] = held
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


def program_symbols(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> tuple[list[Any], Mapping[Any, int]]:
    """The inputs, with symbols where sizes vary, and the number that each symbol has in the program's key."""
    values, symbols = _numbered(gm, example_inputs)
    return values, symbols.numbers


def program_hints(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> tuple[int, ...]:
    """The sizes that the program's symbols, by number, have in this call."""
    return tuple(symbol.hint for symbol in _numbered(gm, example_inputs)[1].declared())


def _numbered(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> tuple[list[Any], Symbols]:
    values = _values(gm, example_inputs)
    symbols = Symbols(lambda: values)
    for value in values:
        _input(value, symbols)
    return values, symbols


def program_ranges(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Ranges:
    """The ranges of all symbols of a program, as the back end is given it: for `from_fx`, however long after.

    Compiling its graphs narrows them.
    """
    values = _values(gm, example_inputs)
    sizes = (size for value in values for size in sizes_in(value) if expression_of(size) is not None)
    environment = next((size.node.shape_env for size in sizes), None)
    return {} if environment is None else dict(environment.var_to_range)


def is_training(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Whether AOTAutograd will make a forward and a backward graph of it: of the tensors that it holds as of its inputs."""
    if not torch.is_grad_enabled():
        return False
    tensors = [*example_inputs, *(value for _, value in _held_tensors(gm))]
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in tensors)


def _held_tensors(gm: fx.GraphModule) -> list[tuple[str, torch.Tensor]]:
    return sorted([*gm.named_parameters(), *gm.named_buffers()], key=lambda pair: pair[0])


def _input(value: Any, symbols: Symbols) -> Any:
    if isinstance(value, torch.Tensor):
        meta = tensor_meta(value, symbols=symbols)
        if not is_traceable_wrapper_subclass(value):
            return meta
        names, _ = value.__tensor_flatten__()
        parts = [[name, _input(getattr(value, name), symbols)] for name in names]
        return [kind_of(value), meta, parts, str(getattr(value, "placements", ""))]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return symbols.number(value) if isinstance(value, SymbolicNumber) else {"object": kind_of(value)}


def _rows(gm: fx.GraphModule, symbols: Symbols) -> list[Any]:
    index = {node: i for i, node in enumerate(gm.graph.nodes)}
    return [[node.op, _target(gm, node, symbols), *_arguments(node, index, symbols)] for node in index]


def _target(gm: fx.GraphModule, node: fx.Node, symbols: Symbols) -> Any:
    if node.op in ("placeholder", "output"):
        return ""
    if node.op == "call_method":
        return node.target
    if node.op in ("get_attr", "call_module"):
        value = attrgetter(str(node.target))(gm)
        return _held(value, symbols)
    name = getattr(node.target, "__qualname__", None) or getattr(node.target, "__name__", None)
    return f"{getattr(node.target, '__module__', '')}.{name}" if name else name_of(node.target)


def _held(value: Any, symbols: Symbols) -> Any:
    """What a program holds under a name: a constant, a graph, a module, or something else."""
    if isinstance(value, torch.Tensor):
        with unset_fake_temporarily():
            known = value.numel() == 1 and not isinstance(value, FakeTensor) and value.layout == torch.strided
            return [tensor_meta(value), encode(value.item(), {}, "a constant") if known else None]
    if isinstance(value, fx.GraphModule):
        return {"graph": hashed(_rows(value, symbols))}
    if isinstance(value, torch.nn.Module):
        state = [[name, tensor_meta(tensor)] for name, tensor in sorted(value.state_dict(keep_vars=True).items())]
        modules = [[name, kind_of(module), module.training, _attributes(module)] for name, module in value.named_modules()]
        return {"module": [modules, state]}
    return {"object": kind_of(value)}


def _attributes(module: torch.nn.Module) -> dict[str, Any]:
    """What a module that is called as it is was made with: numbers, texts and the like. Raises UnsupportedGraph for the rest."""
    found = {}
    for name, value in sorted(vars(module).items()):
        if name in _OF_ANY_MODULE:
            if "hooks" in name and "state_dict" not in name and value:
                raise UnsupportedGraph("module_with_hooks", f"a {type(module).__name__} that the program calls has hooks")
        else:
            found[name] = _attribute(module, value)
    return found


def _attribute(module: torch.nn.Module, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return encode(value, {}, "an attribute")
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    if isinstance(value, list | tuple | torch.Size):
        return [_attribute(module, one) for one in value]
    raise UnsupportedGraph("module_attribute", f"a {type(module).__name__} that the program calls holds a {type(value).__name__}")


def _arguments(node: fx.Node, index: dict[fx.Node, int], symbols: Symbols) -> tuple[Any, Any]:
    def one(value: Any) -> Any:
        return _encode(value, index, node, symbols)

    if node.op == "call_function" and is_collective(node.target):
        return collective_arguments(node, one)
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return higher_order_arguments(node, one)
    return one(node.args), one(node.kwargs)


def _encode(value: Any, index: dict[fx.Node, int], node: fx.Node, symbols: Symbols) -> Any:
    def one(item: Any) -> Any:
        return _encode(item, index, node, symbols)

    if isinstance(value, list | tuple):
        return [one(item) for item in value]
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): one(item) for key, item in value.items()}
    if isinstance(value, slice) or value is Ellipsis:
        return described(value, one, symbols, lambda graph: "")
    return encode(value, index, node, symbols, lambda item: described(item, one, symbols, lambda g: hashed(_rows(g, symbols))))


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
