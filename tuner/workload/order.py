"""The canonical order of the nodes of an FX graph: independent of names, and of the order of independent statements."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from tuner.workload.opaque import is_kernel_call, name_of
from tuner.workload.symbols import is_number

# In the metadata of a constant that is in truth an input: one that whoever compiles has bound to it, as AOTInductor does with
# parameters. The kernels are the same.
BOUND = "tuner_bound"


def is_input(node: fx.Node) -> bool:
    """Whether a node stands for an input of the graph."""
    return node.op == "placeholder" or BOUND in node.meta


def written_arguments(node: fx.Node) -> list[fx.Node]:
    """Nodes whose tensors this node writes in place; of a user's kernel, all that it is given."""
    if node.op == "call_function" and is_kernel_call(node):
        return list(node.all_input_nodes)
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return []
    arguments = node.target._schema.arguments
    named = [*zip(arguments, node.args, strict=False), *((a, node.kwargs[a.name]) for a in arguments if a.name in node.kwargs)]
    written = [value for argument, value in named if argument.alias_info is not None and argument.alias_info.is_write]
    flat = [item for value in written for item in (value if isinstance(value, list | tuple) else [value])]
    return [value for value in flat if isinstance(value, fx.Node)]


def canonical_order(graph: fx.Graph, phase: str = "inference") -> list[fx.Node]:
    """All live nodes but the output: inputs first, then the rest, each in the order of a depth-first walk from the outputs.

    Of a training step only the outputs that a user sees have an order: what a forward keeps for its backward, and the gradients
    that a backward gives, come in the order in which the program's statements happen to need things, and are told apart by what
    computes them.
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
    ordered, rest = _outputs(output, phase, needs)
    rest = _by_content(rest, graph, depth_first(ordered, needs)) if len(rest) > 1 else rest
    rank = {node: i for i, node in enumerate(depth_first((*ordered, *rest, *effects, *unused), needs))}
    for writer in rank:
        for written in written_arguments(writer):
            for user in filter(rank.__contains__, written.users):
                if place[user] < place[writer]:
                    needs[writer].append(user)
                elif place[user] > place[writer]:
                    needs[user].append(writer)
    order = depth_first(rank, {node: sorted(needs[node], key=rank.__getitem__) for node in rank})
    return [node for node in order if is_input(node)] + [node for node in order if not is_input(node)]


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


def visible_outputs(output: fx.Node, phase: str) -> list[int]:
    """Positions of the outputs that have an order: of a forward graph those that the user sees, of a backward none."""
    found: Any = output.args[0]
    count = len(found) if isinstance(found, list | tuple) else 1
    if phase == "inference":
        return list(range(count))
    return [i for i in output.meta.get("user_visible_output_idxs", range(count)) if i < count] if phase == "forward" else []


def _outputs(output: fx.Node, phase: str, needs: Mapping[fx.Node, list[fx.Node]]) -> tuple[list[fx.Node], list[fx.Node]]:
    """What the graph yields: the nodes that have an order, in it, and the others."""
    if phase == "inference":
        return needs[output], []
    found: Any = output.args[0]
    ordered = [found[i] for i in visible_outputs(output, phase) if found[i] in needs and not is_number(found[i])]
    return ordered, [node for node in needs[output] if node not in ordered]


def _by_content(roots: list[fx.Node], graph: fx.Graph, known: Iterable[fx.Node]) -> list[fx.Node]:
    """`roots` in an order that depends on what computes them alone, where that differs; `known` nodes go by their place."""
    texts = {node: str(i) for i, node in enumerate(known)}
    for node in graph.nodes:
        if node not in texts and node.op != "output":
            texts[node] = hashlib.sha256(_content(node, texts).encode()).hexdigest()
    return sorted(roots, key=lambda node: (node not in texts, texts[node]))


def _content(node: fx.Node, texts: Mapping[fx.Node, str]) -> str:
    """What a node is, told by what it is made of; an input also by what is made of it."""
    made = [_kind(node.meta.get("val")), "input" if is_input(node) else node.op]
    if is_input(node):
        return str([*made, sorted(_called(user) for user in node.users if not is_number(user))])
    if node.op == "get_attr":
        return str([*made, _held(node)])
    arguments = [*(_argument(value, texts) for value in node.args), *_argument(dict(node.kwargs), texts)]
    return str([*made, _called(node) if node.op == "call_function" else "", arguments])


def _called(node: fx.Node) -> str:
    """The name of what a node calls: the text of a function of Python's, or of a method, holds an address."""
    text = str(node.target)
    return name_of(node.target) if " at 0x" in text else text


def _held(node: fx.Node) -> Any:
    """What a nested graph computes, and what a constant is."""
    value: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        value = getattr(value, part, None)
    if isinstance(value, fx.GraphModule):
        return [_within(one) for one in value.graph.nodes if one.op != "output"]
    if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor) and value.numel() == 1:
        # The compiler calls us under its fake mode, in which a real tensor cannot be read.
        with unset_fake_temporarily():
            return [_kind(value), str(value.item())]
    return _kind(value)


def _within(node: fx.Node) -> Any:
    held = _held(node) if node.op == "get_attr" else _called(node) if node.op == "call_function" else ""
    return [node.op, held, _kind(node.meta.get("val"))]


def _argument(value: Any, texts: Mapping[fx.Node, str]) -> Any:
    if isinstance(value, fx.Node):
        return "a number" if is_number(value) else texts.get(value, "")
    if isinstance(value, list | tuple):
        return [_argument(item, texts) for item in value]
    if isinstance(value, Mapping):
        return [[name, _argument(value[name], texts)] for name in sorted(value, key=str)]
    return value if value is None or isinstance(value, bool | int | float | str) else type(value).__name__


def _kind(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), [size if isinstance(size, int) else "a number" for size in value.shape]
    return [_kind(item) for item in value] if isinstance(value, list | tuple) else type(value).__name__
