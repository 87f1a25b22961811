"""From FX graphs to ours and back, and inputs to run them on."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from tuner.errors import UnsupportedGraph
from tuner.workload.graph import REBUILDABLE_NAMESPACES, Graph, InputData, Node, TensorMeta

# What an input is drawn from that was never seen.
UNSEEN = InputData(0, 1)
COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor", "symm_mem")


def written_arguments(node: fx.Node) -> list[fx.Node]:
    """Nodes whose tensors this node writes in place."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return []
    arguments = node.target._schema.arguments
    named = [*zip(arguments, node.args, strict=False), *((a, node.kwargs[a.name]) for a in arguments if a.name in node.kwargs)]
    written = [value for argument, value in named if argument.alias_info is not None and argument.alias_info.is_write]
    flat = [item for value in written for item in (value if isinstance(value, list | tuple) else [value])]
    return [value for value in flat if isinstance(value, fx.Node)]


def canonical_order(graph: fx.Graph) -> list[fx.Node]:
    """All live nodes but the output: inputs first, then the rest, each in the order of a depth-first walk from the outputs.

    Independent of names and of the order of independent nodes. In-place writes stay after what read the old value and before what
    reads the new one; side effects that no output needs come last, in the graph's own order.
    """
    nodes = list(graph.nodes)
    place = {node: i for i, node in enumerate(nodes)}
    output = next(node for node in reversed(nodes) if node.op == "output")
    effects = [node for node in nodes if node.op == "call_function" and node.is_impure()]
    unused = [node for node in nodes if node.op == "placeholder"]
    # Ranked by what they compute from, before the order of reads and writes says anything: that order lists readers as written.
    needs = {node: list(node.all_input_nodes) for node in nodes}
    rank = {node: i for i, node in enumerate(depth_first((*needs[output], *effects, *unused), needs))}
    for writer in rank:
        for written in written_arguments(writer):
            for user in filter(rank.__contains__, written.users):
                if place[user] < place[writer]:
                    needs[writer].append(user)
                elif place[user] > place[writer]:
                    needs[user].append(writer)
    order = depth_first(rank, {node: sorted(needs[node], key=rank.__getitem__) for node in rank})
    return [node for node in order if node.op == "placeholder"] + [node for node in order if node.op != "placeholder"]


def depth_first(roots: Iterable[fx.Node], needs: Mapping[fx.Node, list[fx.Node]]) -> list[fx.Node]:
    """The roots and all they need, each after what it needs, in the order of a walk that follows `needs` in turn."""
    found: dict[fx.Node, None] = {}
    for root in roots:
        stack = [] if root in found else [(root, iter(needs[root]))]
        while stack:
            node, rest = stack[-1]
            following = next((need for need in rest if need not in found), None)
            if following is None:
                found[node] = None
                stack.pop()
            else:
                stack.append((following, iter(needs[following])))
    return list(found)


def tensor_meta(value: Any, node: object = "an input") -> Any:
    """Metadata of a node's value as JSON. Raises UnsupportedGraph, naming the node, for sizes that are symbols."""
    if isinstance(value, torch.Tensor):
        if any(isinstance(size, torch.SymInt) for size in (*value.shape, *value.stride())):
            sizes = tuple(value.shape)
            raise UnsupportedGraph("symbolic_sizes", f"{node} has symbolic sizes, which are not supported yet: {sizes}")
        dtype = str(value.dtype).removeprefix("torch.")
        return TensorMeta(dtype, tuple(value.shape), tuple(value.stride()), value.device.type).to_json()
    if isinstance(value, list | tuple):
        return [tensor_meta(item, node) for item in value]
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise UnsupportedGraph("symbolic_sizes", f"{node} is a symbolic number, which is not supported yet")
    return None


def op_name(target: Any, node: object = "") -> str:
    """ "aten.add.Tensor" or "operator.getitem". Raises UnsupportedGraph, naming the node, for what has no name of that kind."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if target is operator.getitem:
        return "operator.getitem"
    name = getattr(target, "__name__", None) or type(target).__name__
    raise UnsupportedGraph("unsupported_node", f"node {node} calls {name}, which cannot be rebuilt from a stored graph")


def op_from_name(name: str, node: str = "op ") -> Callable[..., Any]:
    """The op that `op_name` named. Raises UnsupportedGraph, naming the node that calls it."""
    if name == "operator.getitem":
        return operator.getitem
    namespace, _, rest = name.partition(".")
    packet, _, overload = rest.rpartition(".")
    if namespace in COLLECTIVES:
        raise UnsupportedGraph("collective", f"{node}{name} is a collective: graphs that wait for other ranks are not tuned yet")
    if namespace not in REBUILDABLE_NAMESPACES:
        raise UnsupportedGraph(
            "unsupported_node", f"{node}{name} cannot be rebuilt: only {' and '.join(REBUILDABLE_NAMESPACES)} ops can"
        )
    try:
        found = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    except (AttributeError, RuntimeError) as error:
        raise UnsupportedGraph("unsupported_node", f"{node}{name} does not exist in torch {torch.__version__}") from error
    if not isinstance(found, torch._ops.OpOverload):
        raise UnsupportedGraph("unsupported_node", f"{node}{name} is no op of torch's")
    return found


def encode(value: Any, index: dict[fx.Node, int], node: object) -> Any:
    """An argument as JSON. Raises UnsupportedGraph for what is not data."""
    if isinstance(value, fx.Node):
        return {"node": index[value]}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, list | tuple):
        return [encode(item, index, node) for item in value]
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": value.type}
    if isinstance(value, torch.layout | torch.memory_format):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise UnsupportedGraph("symbolic_sizes", f"node {node} has a symbolic argument")
    raise UnsupportedGraph("unsupported_node", f"node {node} has an argument of type {type(value).__name__}")


def decode(value: Any, nodes: Mapping[int, fx.Node]) -> Any:
    """The argument that `encode` wrote."""
    if isinstance(value, list):
        return [decode(item, nodes) for item in value]
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        if kind == "node":
            return nodes[content]
        if kind == "float":
            return float(content)
        if kind == "device":
            return torch.device(content)
        if kind in ("dtype", "torch"):
            return getattr(torch, content)
        raise UnsupportedGraph("unsupported_node", f"unknown kind of argument {kind!r}")
    return value


def _constant(gm: fx.GraphModule, node: fx.Node) -> Node:
    value: Any = gm
    for part in str(node.target).split("."):
        value = getattr(value, part)
    if not isinstance(value, torch.Tensor):
        raise UnsupportedGraph("unsupported_node", f"node {node} is a constant of type {type(value).__name__}")
    # The compiler calls us under its fake mode, in which a real tensor cannot be read.
    with unset_fake_temporarily():
        if value.numel() == 1:
            return Node("constant", "scalar", [encode(value.item(), {}, node)], {}, tensor_meta(value))
        content = "zero" if value.numel() == 0 or not bool(value.any()) else "other"
    return Node("constant", content, [], {}, tensor_meta(value))


def from_fx(gm: fx.GraphModule, phase: str = "inference", static_inputs: Iterable[int] = ()) -> Graph:
    """Our form of a post-AOTAutograd graph. Raises UnsupportedGraph, naming the node, for what our form cannot hold."""
    order = canonical_order(gm.graph)
    index = {node: i for i, node in enumerate(order)}
    placeholders = gm.graph.find_nodes(op="placeholder")
    nodes: list[Node] = []
    for node in order:
        if node.op == "get_attr":
            nodes.append(_constant(gm, node))
        elif node.op == "placeholder":
            meta = tensor_meta(node.meta.get("val"), f"node {node}")
            if meta is None or not isinstance(meta[0], str):
                raise UnsupportedGraph("unsupported_node", f"input {node} is not a tensor")
            nodes.append(Node("input", "", [], {}, meta))
        elif node.op == "call_function":
            name = op_name(node.target, node)
            args = [encode(arg, index, node) for arg in node.args]
            kwargs = {key: encode(value, index, node) for key, value in sorted(node.kwargs.items())}
            nodes.append(Node("call", name, args, kwargs, tensor_meta(node.meta.get("val"), f"node {node}")))
        else:
            raise UnsupportedGraph("unsupported_node", f"node {node} is a {node.op}")
    (output,) = gm.graph.find_nodes(op="output")
    written = {target for node in order for target in written_arguments(node)}
    training = phase != "inference"
    return Graph(
        phase=phase,
        nodes=tuple(nodes),
        outputs=encode(output.args[0], index, output),
        order=tuple(index[node] for node in gm.graph.nodes if node in index),
        data=(UNSEEN,) * len(placeholders),
        static_inputs=tuple(static_inputs),
        mutated=tuple(i for i, node in enumerate(placeholders) if node in written),
        user_visible=_user_visible(output) if training else None,
        names=tuple(node.name for node in placeholders) if training else (),
        yields=tuple(value.name if isinstance(value, fx.Node) else "" for value in output.args[0]) if training else (),
    )


def _user_visible(output: fx.Node) -> tuple[int, ...] | None:
    """Positions of the outputs whose strides the user sees, as the compiler was told; None where those are all."""
    outputs: Any = output.args[0]
    nodes = [i for i, value in enumerate(outputs) if isinstance(value, fx.Node)]
    visible = output.meta.get("user_visible_output_idxs", nodes)
    return None if list(visible) == nodes else tuple(visible)


def to_fx(graph: Graph) -> fx.GraphModule:
    """A graph module that computes what `graph` does, its nodes in the order they had. Raises UnsupportedGraph.

    Constants come back as their content class says: scalars and zeros exactly, others as fixed random data.
    """
    root = torch.nn.Module()
    new = fx.Graph()
    nodes: dict[int, fx.Node] = {}
    names = iter(graph.names)
    for i in graph.order:
        node = graph.nodes[i]
        if node.op == "input":
            # AOTAutograd's own names, so that the generated code is the same text.
            nodes[i] = new.placeholder(next(names, f"arg{len(nodes)}_1"))
        elif node.op == "constant":
            root.register_buffer(f"constant{i}", make_constant(node, seed=i))
            nodes[i] = new.get_attr(f"constant{i}")
        else:
            args, kwargs = decode(node.args, nodes), {key: decode(value, nodes) for key, value in node.kwargs.items()}
            nodes[i] = new.call_function(op_from_name(node.target, f"node {i} "), tuple(args), kwargs)
    output = new.output(tuple(decode(graph.outputs, nodes)))
    if graph.user_visible is not None:
        output.meta["user_visible_output_idxs"] = list(graph.user_visible)
    return fx.GraphModule(root, new)


def make_constant(node: Node, seed: int) -> torch.Tensor:
    meta = TensorMeta.from_json(node.value)
    tensor = empty(meta)
    if node.target == "scalar":
        return tensor.fill_(decode(node.args[0], {}))
    if node.target == "zero":
        return tensor.zero_()
    return fill(tensor, UNSEEN, torch.Generator().manual_seed(seed))


def empty(meta: TensorMeta) -> torch.Tensor:
    return torch.empty_strided(meta.shape, meta.stride, dtype=getattr(torch, meta.dtype), device=meta.device)


def written_once(tensor: torch.Tensor) -> tuple[slice, ...]:
    """Index of the part of `tensor` that has memory of its own: one element of each dimension of stride 0."""
    return tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last that such a tensor reaches in memory."""
    return 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory from the first to the last element of `tensor`, as a view of one dimension."""
    return tensor.as_strided((extent(tensor.shape, tensor.stride()),), (1,))


def fill(tensor: torch.Tensor, seen: InputData, generator: torch.Generator) -> torch.Tensor:
    """Fills `tensor` in place with data like that seen.

    The same runs, where they were kept. Else floats come from a normal distribution with the mean and deviation seen, cut off at
    the bounds, integers uniformly from the bounds, and booleans are true as often.
    """
    if seen.runs is None and extent(tensor.shape, tensor.stride()) < tensor[written_once(tensor)].numel():
        # Elements overlap: each place in memory is written once, for what is written twice depends on the order.
        fill(memory_of(tensor), seen, generator)
        return tensor
    once = written_once(tensor)
    shape = tensor[once].shape
    if seen.runs is not None:
        runs = [decode(value, {}) for value, _ in seen.runs]
        lengths = torch.tensor([length for _, length in seen.runs])
        # Indexing, unlike repeat_interleave of the values, knows every dtype.
        places = torch.arange(len(runs)).repeat_interleave(lengths)
        values = torch.tensor(runs, dtype=tensor.dtype)[places].reshape(shape)
    elif tensor.dtype == torch.bool:
        values = torch.rand(shape, generator=generator) < seen.mean
    elif tensor.dtype.is_floating_point:
        wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
        values = torch.randn(shape, generator=generator, dtype=wide).mul_(seen.std).add_(seen.mean)
        values = values.clamp_(float(seen.low), float(seen.high))
    elif tensor.dtype.is_complex:
        values = torch.randn(shape, generator=generator, dtype=tensor.dtype)
    else:
        end = min(int(seen.high) + 1, torch.iinfo(torch.int64).max)
        values = torch.randint(int(seen.low), end, shape, generator=generator, dtype=torch.int64)
    tensor[once] = values.to(tensor.dtype)
    return tensor


def make_inputs(graph: Graph, seed: int) -> list[torch.Tensor]:
    """Fresh inputs of the right dtype, shape, stride and device, with data like that seen at capture.

    Those that shared memory do so again, at the same distances. Equal seeds give equal bits, in every process.
    """
    generator = torch.Generator().manual_seed(seed)
    metas = [TensorMeta.from_json(node.value) for node in graph.inputs]
    inputs = [empty(meta) for meta in metas]
    for first in {seen.shares[0] for seen in graph.data if seen.shares is not None}:
        share_memory(
            inputs,
            {first: 0} | {i: seen.shares[1] for i, seen in enumerate(graph.data) if seen.shares and seen.shares[0] == first},
        )
    # Masks and indexes last: where they share memory with others, they must be what they were.
    for exact in (False, True):
        for tensor, seen in zip(inputs, graph.data, strict=True):
            if (seen.runs is not None) == exact:
                fill(tensor, seen, generator)
    return inputs


def share_memory(inputs: list[torch.Tensor], offsets: Mapping[int, int]) -> None:
    """Replaces the inputs at the positions in `offsets` by views of one memory, each its offset in bytes from the first one's."""
    start = min(offsets.values())
    if any((offset - start) % inputs[i].itemsize for i, offset in offsets.items()):
        return
    sizes = {i: extent(inputs[i].shape, inputs[i].stride()) * inputs[i].itemsize for i in offsets}
    memory = torch.zeros(
        max(offsets[i] - start + sizes[i] for i in offsets), dtype=torch.uint8, device=inputs[min(offsets)].device
    )
    for i, offset in offsets.items():
        like = inputs[i]
        place = (offset - start) // like.itemsize
        inputs[i] = like.new_empty(0).set_(memory.untyped_storage(), place, like.shape, like.stride())
