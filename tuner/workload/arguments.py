"""Arguments and targets of FX nodes as JSON, and back."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import fx

from tuner.errors import UnsupportedGraph
from tuner.workload.graph import REBUILDABLE_NAMESPACES, TensorMeta
from tuner.workload.symbols import SymbolicNumber, Symbols

COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor", "symm_mem")


def tensor_meta(value: Any, node: object = "an input", symbols: Symbols | None = None) -> Any:
    """Metadata of a node's value as JSON. Raises UnsupportedGraph, naming the node, for sizes that depend on data."""
    if isinstance(value, torch.Tensor):
        size = (symbols or Symbols()).size
        dtype, layout = str(value.dtype).removeprefix("torch."), layout_of(value)
        shape = tuple(size(one, node) for one in value.shape)
        stride = () if layout else tuple(size(step, node) for step in value.stride())
        return TensorMeta(dtype, shape, stride, value.device.type, layout).to_json()
    if isinstance(value, list | tuple):
        return [tensor_meta(item, node, symbols) for item in value]
    return None


def layout_of(value: torch.Tensor) -> str:
    """ "" for a plain tensor, else what it is instead: "sparse_coo", "quantized"."""
    if value.is_quantized:
        return "quantized"
    return "" if value.layout == torch.strided else str(value.layout).removeprefix("torch.")


def op_name(target: Any, node: object = "") -> str:
    """ "aten.add.Tensor" or "operator.getitem". Raises UnsupportedGraph, naming the node, for what has no name of that kind."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if target is operator.getitem:
        return "operator.getitem"
    name = getattr(target, "__name__", None) or type(target).__name__
    raise UnsupportedGraph("unsupported_node", f"node {node} calls {name}, which cannot be rebuilt from a stored graph")


def refuse(name: str, node: str) -> NoReturn:
    """Raises the UnsupportedGraph that says why what is called `name` cannot be made again."""
    if name.partition(".")[0] in COLLECTIVES:
        raise UnsupportedGraph("collective", f"{node}{name} is a collective: graphs that wait for other ranks are not tuned yet")
    raise UnsupportedGraph(
        "unsupported_node", f"{node}{name} cannot be rebuilt: only {' and '.join(REBUILDABLE_NAMESPACES)} ops can"
    )


def op_from_name(name: str, node: str = "op ") -> Callable[..., Any]:
    """The op that `op_name` named. Raises UnsupportedGraph, naming the node that calls it."""
    if name == "operator.getitem":
        return operator.getitem
    namespace, _, rest = name.partition(".")
    packet, _, overload = rest.rpartition(".")
    if namespace not in REBUILDABLE_NAMESPACES:
        refuse(name, node)
    if packet == "from_file":
        raise UnsupportedGraph("unsupported_node", f"{node}{name} would map a file, or make one")
    try:
        found = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    except (AttributeError, RuntimeError) as error:
        raise UnsupportedGraph("unsupported_node", f"{node}{name} does not exist in torch {torch.__version__}") from error
    if not isinstance(found, torch._ops.OpOverload):
        raise UnsupportedGraph("unsupported_node", f"{node}{name} is no op of torch's")
    return found


def encode(
    value: Any,
    index: Mapping[fx.Node, int],
    node: object,
    symbols: Symbols | None = None,
    other: Callable[[Any], Any] | None = None,
) -> Any:
    """An argument as JSON. other: gives that of what is not data. Raises UnsupportedGraph where there is no such."""
    if isinstance(value, fx.Node):
        if value in index:
            return {"node": index[value]}
        return encode(value.meta["val"], index, node, symbols, other)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, list | tuple):
        return [encode(item, index, node, symbols, other) for item in value]
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": value.type}
    if isinstance(value, torch.layout | torch.memory_format):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, complex):
        return {"complex": [encode(part, index, node) for part in (value.real, value.imag)]}
    if isinstance(value, SymbolicNumber):
        return (symbols or Symbols()).number(value, f"node {node}")
    if other is not None:
        return other(value)
    raise UnsupportedGraph("unsupported_node", f"node {node} has an argument of type {type(value).__name__}")


def decode(value: Any, nodes: Mapping[int, fx.Node], sizes: Callable[[str], Any] | None = None) -> Any:
    """The argument that `encode` wrote. sizes: gives the node for an expression over symbols. Raises UnsupportedGraph."""
    if isinstance(value, list):
        return [decode(item, nodes, sizes) for item in value]
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        if kind == "node":
            return nodes[content]
        if kind == "float":
            return float(content)
        if kind == "sym" and sizes is not None:
            return sizes(content)
        if kind == "complex":
            return complex(*(decode(part, {}) for part in content))
        if kind == "device":
            return torch.device(content)
        if kind in ("dtype", "torch"):
            return getattr(torch, content)
        raise UnsupportedGraph("unsupported_node", f"unknown kind of argument {kind!r}")
    return value
