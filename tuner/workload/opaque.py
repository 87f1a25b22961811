"""What cannot be made again in another process, as data that says what it is: for keys, and for nothing else.

Nested graphs go by a hash of their content, kernels that a user wrote by one of their source, collectives by their kind and the
size of their group, objects by their type. None of it depends on the process: no address, no running number, no name of a group.
"""

from __future__ import annotations

import enum
import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import fx

from tuner.canonical import canonical_json
from tuner.errors import UnsupportedGraph
from tuner.workload.arguments import COLLECTIVES, tensor_meta
from tuner.workload.symbols import Symbols

Encode = Callable[[Any], Any]
# Higher-order ops whose first string is a name that the process made up.
_NUMBERED = ("invoke_subgraph",)
_GROUPS = ("group_name", "group", "tag")


def hashed(content: Any) -> str:
    """sha256 of JSON."""
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def kind_of(value: Any) -> str:
    """The name of the type of an object; of an object of a script class, that of the class."""
    script = getattr(value, "script_class_name", None)
    return str(script) if script else f"{type(value).__module__}.{type(value).__qualname__}"


def name_of(target: Any) -> str:
    """ "higher_order.cond" of an op, "module.qualname" of any other callable."""
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(target)
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None)
    return f"{getattr(target, '__module__', None)}.{name}" if name else kind_of(target)


def described(value: Any, encode: Encode, symbols: Symbols, graph: Callable[[fx.GraphModule], str]) -> Any:
    """JSON of an argument that is no plain data. encode: of what is in it; graph: the hash of a nested one."""
    if isinstance(value, fx.GraphModule):
        return {"graph": graph(value)}
    if isinstance(value, torch.Tensor):
        return {"tensor": tensor_meta(value, symbols=symbols)}
    if isinstance(value, Mapping):
        return {"dict": [[_key(key), encode(value[key])] for key in sorted(value, key=_key)]}
    if isinstance(value, set | frozenset):
        return {"set": sorted(canonical_json(encode(item)) for item in value)}
    if isinstance(value, slice):
        return {"slice": [encode(part) for part in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"slice": "..."}
    if isinstance(value, bytes):
        return {"bytes": hashlib.sha256(value).hexdigest()}
    if isinstance(value, enum.Enum):
        return {"enum": f"{kind_of(value)}.{value.name}"}
    if isinstance(value, torch._ops.OpOverload | torch._ops.OpOverloadPacket | torch._ops.HigherOrderOperator):
        return {"op": name_of(value)}
    if isinstance(value, type) or inspect.isroutine(value):
        return {"function": name_of(value)}
    if hasattr(value, "func") and hasattr(value, "keywords"):  # functools.partial
        return {"partial": [encode(value.func), encode(list(value.args)), encode(dict(value.keywords))]}
    return {"object": kind_of(value)}


def _key(key: Any) -> str:
    return key if isinstance(key, str) else name_of(key) if callable(key) else repr(key)


def is_collective(target: Any) -> bool:
    """Whether it is an op that waits for other ranks."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace in COLLECTIVES


def is_kernel_call(node: fx.Node) -> bool:
    """Whether it calls a user's kernel, which writes in place."""
    target = node.target
    return isinstance(target, torch._ops.HigherOrderOperator) and target.name() == "triton_kernel_wrapper_mutation"


def collective_arguments(node: fx.Node, encode: Encode) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of a collective, with the size of a group in the place of its name."""
    schema = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]

    def one(name: str, value: Any) -> Any:
        return {"group": _group_size(value)} if isinstance(value, str) and name in _GROUPS else encode(value)

    args = [one(name, value) for name, value in zip(schema, node.args, strict=False)]
    return args, {name: one(name, value) for name, value in sorted(node.kwargs.items())}


def _group_size(name: Any) -> int | None:
    """Ranks in a group; None where this process knows no such group."""
    try:
        return int(torch._C._distributed_c10d._resolve_process_group(name).size())
    except (AttributeError, RuntimeError, ValueError, LookupError, TypeError):
        return None


def higher_order_arguments(node: fx.Node, encode: Encode) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of a higher-order op, without numbers and names that only this process knows."""
    name = node.target.name() if isinstance(node.target, torch._ops.HigherOrderOperator) else ""
    args: list[Any] = list(node.args)
    kwargs: dict[str, Any] = dict(node.kwargs)
    if name in _NUMBERED:
        args = [argument for i, argument in enumerate(args) if i != 1 or not isinstance(argument, str)]
    if "kernel_idx" in kwargs:
        kwargs["kernel_idx"] = kernel_content(kwargs["kernel_idx"])
        if "constant_args_idx" in kwargs:
            from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

            kwargs["constant_args_idx"] = kernel_side_table.get_constant_args(kwargs["constant_args_idx"])
    return [encode(argument) for argument in args], {key: encode(value) for key, value in sorted(kwargs.items())}


def kernel_content(number: int) -> str:
    """sha256 of the source of a user's Triton kernel, of the kernels that it calls, and of its own choice of configs.

    Read in torch 2.13.0 (torch/_higher_order_ops/triton_kernel_wrap.py) and Triton 3.6 (runtime/jit.py, runtime/autotuner.py).
    """
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    kernel: Any = kernel_side_table.get_kernel(number)
    configs: list[str] = []
    while not isinstance(getattr(kernel, "src", None), str):
        configs += [str(config) for config in getattr(kernel, "configs", ())]
        configs += [str(key) for key in getattr(kernel, "keys", ())]
        kernel = getattr(kernel, "fn", None)
        if kernel is None:
            raise UnsupportedGraph("user_kernel", "a user's kernel has no source")
    return hashed([_sources(kernel, {}), configs])


def _sources(kernel: Any, found: dict[Any, Any]) -> list[Any]:
    """(name, source) of a kernel and of all that it uses: kernels, and numbers that are constants, also those of modules.

    found: what is in the list already, by what it is, since names are those of one module.
    """
    if kernel.fn in found:
        return []
    found[kernel.fn] = True
    sources = [[getattr(kernel, "__name__", kernel.fn.__name__), kernel.src]]
    for scope, name, used in _used_by(kernel.fn):
        if isinstance(getattr(used, "src", None), str) and hasattr(used, "fn"):
            sources += _sources(used, found)
        elif isinstance(value := getattr(used, "value", used), bool | int | float | str) and (scope, name) not in found:
            found[scope, name] = True
            sources.append([name, repr(value)])
    return sources


def _used_by(function: Any) -> Iterator[tuple[int, str, Any]]:
    """(what tells apart whose name it is, name, object) of globals that a function names, and of what modules among them hold."""
    names = function.__code__.co_names
    scopes: list[Mapping[str, Any]] = [function.__globals__]
    scopes += [vars(used) for name in names if isinstance(used := function.__globals__.get(name), ModuleType) and _is_users(used)]
    for scope in scopes:
        yield from ((id(scope), name, scope[name]) for name in names if scope.get(name) is not None)


def _is_users(module: ModuleType) -> bool:
    """Not Triton's own, of which a kernel names much that is no part of it."""
    return module.__name__.partition(".")[0] != "triton"
