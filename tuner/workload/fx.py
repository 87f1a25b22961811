"""From FX graphs to ours and back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from tuner.errors import UnsupportedGraph
from tuner.workload.arguments import decode, encode, layout_of, op_from_name, op_name, refuse, tensor_meta
from tuner.workload.graph import Graph, Node
from tuner.workload.inputs import UNSEEN, empty, extent, fill, make_constant, make_inputs, memory_of, written_once
from tuner.workload.opaque import (
    collective_arguments,
    described,
    hashed,
    higher_order_arguments,
    is_collective,
    kind_of,
    name_of,
)
from tuner.workload.order import BOUND, canonical_order, is_input, written_arguments
from tuner.workload.sizes import SizeNodes
from tuner.workload.symbols import Ranges, Symbols

__all__ = [
    "BOUND",
    "UNSEEN",
    "canonical_order",
    "empty",
    "encode",
    "extent",
    "fill",
    "from_fx",
    "make_inputs",
    "memory_of",
    "op_from_name",
    "op_name",
    "tensor_meta",
    "to_fx",
    "written_arguments",
    "written_once",
]


@dataclass(frozen=True)
class _Rows:
    """Our nodes of one graph module, which may be nested in another: symbols are those of the outermost."""

    gm: fx.GraphModule
    order: list[fx.Node]
    index: dict[fx.Node, int]
    symbols: Symbols
    nested: bool = False

    @staticmethod
    def of(gm: fx.GraphModule, symbols: Symbols | None = None, phase: str = "inference") -> _Rows:
        order = canonical_order(gm.graph, phase)
        known = symbols or Symbols(lambda: (node.meta.get("val") for node in order))
        return _Rows(gm, order, {node: i for i, node in enumerate(order)}, known, symbols is not None)

    def nodes(self) -> list[Node]:
        return [self._node(node) for node in self.order]

    def encode(self, value: Any, node: fx.Node) -> Any:
        """An argument that can be made again. Raises UnsupportedGraph for another."""
        return encode(value, self.index, node, self.symbols)

    def describe(self, value: Any, node: fx.Node) -> Any:
        """Any argument."""

        def other(item: Any) -> Any:
            return described(item, lambda inner: self.describe(inner, node), self.symbols, self._hash)

        return encode(value, self.index, node, self.symbols, other)

    def _hash(self, nested: fx.GraphModule) -> str:
        rows = _Rows.of(nested, self.symbols)
        (output,) = nested.graph.find_nodes(op="output")
        return hashed([[row.to_json() for row in rows.nodes()], rows.describe(output.args[0], output)])

    def _meta(self, node: fx.Node) -> Any:
        return tensor_meta(node.meta.get("val"), f"node {node}", self.symbols)

    def _node(self, node: fx.Node) -> Node:
        if node.op == "get_attr" and not is_input(node):
            return self._constant(node)
        if is_input(node):
            meta = self._meta(node)
            if self.nested or (meta is not None and isinstance(meta[0], str)):
                return Node("input", "", [], {}, meta)
            if (value := node.meta.get("val")) is None or isinstance(value, list | tuple):
                raise UnsupportedGraph("unsupported_node", f"input {node} is not a tensor")
            return Node("opaque", f"input {kind_of(value)}", [], {}, None)
        if node.op == "call_function":
            return self._call(node)
        raise UnsupportedGraph("unsupported_node", f"node {node} is a {node.op}")

    def _call(self, node: fx.Node) -> Node:
        if is_collective(node.target):
            args, kwargs = collective_arguments(node, lambda value: self.describe(value, node))
            return Node("opaque", name_of(node.target), args, kwargs, self._meta(node))
        try:
            name = op_name(node.target, node)
            args = [self.encode(argument, node) for argument in node.args]
            kwargs = {key: self.encode(value, node) for key, value in sorted(node.kwargs.items())}
        except UnsupportedGraph as error:
            if error.reason != "unsupported_node":
                raise
            args, kwargs = higher_order_arguments(node, lambda value: self.describe(value, node))
            return Node("opaque", name_of(node.target), args, kwargs, self._meta(node))
        return Node("call", name, args, kwargs, self._meta(node))

    def _constant(self, node: fx.Node) -> Node:
        value = attrgetter(str(node.target))(self.gm)
        if isinstance(value, fx.GraphModule):
            return Node("opaque", "graph", [self._hash(value)], {}, None)
        if not isinstance(value, torch.Tensor):
            return Node("opaque", f"constant {kind_of(value)}", [], {}, None)
        meta = tensor_meta(value)
        # The compiler calls us under its fake mode, in which a real tensor cannot be read; a fake one can nowhere.
        with unset_fake_temporarily():
            if value.layout != torch.strided or value.is_quantized:
                # A weight that freezing packed for a library: it can be read, and made, by that library only.
                return Node("constant", "packed", [layout_of(value)], {}, meta)
            if isinstance(value, FakeTensor):
                return Node("constant", "other", [], {}, meta)
            if value.numel() == 1:
                return Node("constant", "scalar", [encode(value.item(), {}, node)], {}, meta)
            content = "zero" if value.numel() == 0 or not bool(value.any()) else "other"
        return Node("constant", content, [], {}, meta)


def from_fx(
    gm: fx.GraphModule, phase: str = "inference", static_inputs: Iterable[int] = (), ranges: Ranges | None = None
) -> Graph:
    """Our form of a post-AOTAutograd graph. Raises UnsupportedGraph, naming the node, for what our form cannot hold.

    static_inputs: positions among all that a call passes, sizes included. ranges: of torch's symbols, as the back end was given
    them; those that are not in it, or all, as they are now: lowering another graph of the program may have narrowed them.
    """
    rows = _Rows.of(gm, phase=phase)
    order, index = rows.order, rows.index
    nodes = rows.nodes()
    (output,) = gm.graph.find_nodes(op="output")
    outputs, user_visible = _outputs(output, phase)
    passed = gm.graph.find_nodes(op="placeholder")
    inputs = [node for node in gm.graph.nodes if node in index and nodes[index[node]].op == "input"]
    static = [*(passed[i] for i in static_inputs), *(node for node in inputs if BOUND in node.meta)]
    place = {node: i for i, node in enumerate(inputs)}
    written = {target for node in order for target in written_arguments(node)}
    training = phase != "inference"
    return Graph(
        phase=phase,
        nodes=tuple(nodes),
        outputs=[rows.describe(value, output) for value in outputs],
        order=tuple(index[node] for node in gm.graph.nodes if node in index),
        data=(UNSEEN,) * len(inputs),
        static_inputs=tuple(place[node] for node in static if node in place),
        mutated=tuple(i for i, node in enumerate(inputs) if node in written),
        symbols=rows.symbols.declared(ranges),
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

    It takes a number for each symbol, then the inputs; `symbolic.symbolic_module` also gives what to compile it for.
    Constants come back as their content class says: scalars and zeros exactly, others as fixed random data.
    """
    root = torch.nn.Module()
    new = fx.Graph()
    sizes = SizeNodes(new, len(graph.symbols))
    nodes: dict[int, fx.Node] = {}
    names = iter(graph.names)
    for i in graph.order:
        node = graph.nodes[i]
        if node.op == "opaque":
            refuse(node.target, f"node {i} ")
        elif node.op == "input":
            # AOTAutograd's own names, so that the generated code is the same text.
            nodes[i] = new.placeholder(next(names, f"arg{len(nodes)}_1"))
        elif node.op == "constant":
            root.register_buffer(f"constant{i}", make_constant(node, seed=i))
            nodes[i] = new.get_attr(f"constant{i}")
        else:
            args = decode(node.args, nodes, sizes)
            kwargs = {key: decode(value, nodes, sizes) for key, value in node.kwargs.items()}
            nodes[i] = new.call_function(op_from_name(node.target, f"node {i} "), tuple(args), kwargs)
    output = new.output(tuple(decode(graph.outputs, nodes, sizes)))
    if graph.user_visible is not None:
        output.meta["user_visible_output_idxs"] = list(graph.user_visible)
    return fx.GraphModule(root, new)
