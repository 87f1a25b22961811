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
from tuner.workload.symbols import Ranges, SymbolicNumber, Symbols, is_number

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

    Nodes that yield sizes or other numbers are left out: a compiler may find them anywhere or nowhere. Independent of names and
    of the order of independent nodes. In-place writes stay after what read the old value and before what reads the new one; side
    effects that no output needs come last, in the graph's own order.
    """
    nodes = list(graph.nodes)
    place = {node: i for i, node in enumerate(nodes)}
    output = next(node for node in reversed(nodes) if node.op == "output")
    numbers = {node for node in nodes if is_number(node)}
    effects = [node for node in nodes if node.op == "call_function" and node not in numbers and node.is_impure()]
    unused = [node for node in nodes if node.op == "placeholder" and node not in numbers]
    # Ranked by what they compute from, before the order of reads and writes says anything: that order lists readers as written.
    needs = {node: [need for need in node.all_input_nodes if need not in numbers] for node in nodes}
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


def tensor_meta(value: Any, node: object = "an input", symbols: Symbols | None = None) -> Any:
    """Metadata of a node's value as JSON. Raises UnsupportedGraph, naming the node, for sizes that depend on data."""
    if isinstance(value, torch.Tensor):
        size = (symbols or Symbols()).size
        dtype, layout = str(value.dtype).removeprefix("torch."), layout_of(value)
        stride = () if layout else tuple(size(step, node) for step in value.stride())
        return TensorMeta(dtype, tuple(size(one, node) for one in value.shape), stride, value.device.type, layout).to_json()
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


def encode(value: Any, index: Mapping[fx.Node, int], node: object, symbols: Symbols | None = None) -> Any:
    """An argument as JSON. Raises UnsupportedGraph for what is not data."""
    if isinstance(value, fx.Node):
        if value in index:
            return {"node": index[value]}
        return encode(value.meta["val"], index, node, symbols)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, list | tuple):
        return [encode(item, index, node, symbols) for item in value]
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
        if kind == "complex":
            return complex(*(decode(part, {}) for part in content))
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
        if value.layout != torch.strided:
            # A weight that freezing packed for a library: it can be read, and made, by that library only.
            return Node("constant", "packed", [str(value.layout).removeprefix("torch.")], {}, tensor_meta(value))
        if value.numel() == 1:
            return Node("constant", "scalar", [encode(value.item(), {}, node)], {}, tensor_meta(value))
        content = "zero" if value.numel() == 0 or not bool(value.any()) else "other"
    return Node("constant", content, [], {}, tensor_meta(value))


def from_fx(
    gm: fx.GraphModule, phase: str = "inference", static_inputs: Iterable[int] = (), ranges: Ranges | None = None
) -> Graph:
    """Our form of a post-AOTAutograd graph. Raises UnsupportedGraph, naming the node, for what our form cannot hold.

    static_inputs: positions among all that a call passes, sizes included. ranges: of torch's symbols, as the back end was given
    them; those that are not in it, or all, as they are now: lowering another graph of the program may have narrowed them.
    """
    order = canonical_order(gm.graph)
    index = {node: i for i, node in enumerate(order)}
    symbols = Symbols(lambda: (node.meta.get("val") for node in order))
    nodes: list[Node] = []
    for node in order:
        if node.op == "get_attr":
            nodes.append(_constant(gm, node))
        elif node.op == "placeholder":
            meta = tensor_meta(node.meta.get("val"), f"node {node}", symbols)
            if meta is None or not isinstance(meta[0], str):
                raise UnsupportedGraph("unsupported_node", f"input {node} is not a tensor")
            nodes.append(Node("input", "", [], {}, meta))
        elif node.op == "call_function":
            name = op_name(node.target, node)
            args = [encode(arg, index, node, symbols) for arg in node.args]
            kwargs = {key: encode(value, index, node, symbols) for key, value in sorted(node.kwargs.items())}
            nodes.append(Node("call", name, args, kwargs, tensor_meta(node.meta.get("val"), f"node {node}", symbols)))
        else:
            raise UnsupportedGraph("unsupported_node", f"node {node} is a {node.op}")
    (output,) = gm.graph.find_nodes(op="output")
    outputs, user_visible = _outputs(output, phase)
    passed = gm.graph.find_nodes(op="placeholder")
    inputs = [node for node in passed if node in index]
    place = {node: i for i, node in enumerate(inputs)}
    written = {target for node in order for target in written_arguments(node)}
    training = phase != "inference"
    return Graph(
        phase=phase,
        nodes=tuple(nodes),
        outputs=encode(outputs, index, output, symbols),
        order=tuple(index[node] for node in gm.graph.nodes if node in index),
        data=(UNSEEN,) * len(inputs),
        static_inputs=tuple(place[passed[i]] for i in static_inputs if passed[i] in place),
        mutated=tuple(i for i, node in enumerate(inputs) if node in written),
        symbols=symbols.declared(ranges),
        user_visible=user_visible if training else None,
        names=tuple(node.name for node in inputs) if training else (),
        yields=tuple(value.name if isinstance(value, fx.Node) else "" for value in outputs) if training else (),
    )


def _outputs(output: fx.Node, phase: str) -> tuple[list[Any], tuple[int, ...] | None]:
    """The outputs, and the positions of those whose strides the user sees, None where that is all that are nodes.

    A backward yields None for each input of the program that needs no gradient: for how many such is nothing that it computes.
    """
    found: Any = output.args[0]
    outputs = list(found) if isinstance(found, list | tuple) else [found]
    kept = [i for i, value in enumerate(outputs) if phase != "backward" or value is not None]
    visible = output.meta.get("user_visible_output_idxs")
    nodes = [new for new, old in enumerate(kept) if isinstance(outputs[old], fx.Node)]
    seen = nodes if visible is None else [new for new, old in enumerate(kept) if old in visible]
    return [outputs[i] for i in kept], None if seen == nodes else tuple(seen)


def to_fx(graph: Graph) -> fx.GraphModule:
    """A graph module that computes what `graph` does, its nodes in the order they had. Raises UnsupportedGraph.

    Constants come back as their content class says: scalars and zeros exactly, others as fixed random data.
    """
    if graph.symbols:
        raise UnsupportedGraph("symbolic_sizes", "graphs with symbolic sizes are not rebuilt yet")
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
    if node.target == "packed":
        raise UnsupportedGraph("unsupported_node", "a constant is packed for a library, and cannot be rebuilt")
    tensor = empty(meta)
    if node.target == "scalar":
        return tensor.fill_(decode(node.args[0], {}))
    if node.target == "zero":
        return tensor.zero_()
    return fill(tensor, UNSEEN, torch.Generator().manual_seed(seed))


def empty(meta: TensorMeta) -> torch.Tensor:
    if meta.layout:
        raise UnsupportedGraph("unsupported_node", f"a {meta.layout} tensor cannot be made like one that was seen")
    shape, stride = meta.at(()).shape, meta.at(()).stride
    return torch.empty_strided(shape, stride, dtype=getattr(torch, meta.dtype), device=meta.device)  # type: ignore[arg-type]


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
