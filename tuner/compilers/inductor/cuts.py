"""Cuts: values put into memory that the compiler would compute within one leaf, each time anew for whoever reads them.

A pass over the post-grad graph marks the nodes; lowering does the rest (torch 2.13.0, torch/_inductor/graph.py, `run_node`: a
node that is marked is realised, in the order of its strides in eager). A mark says nothing where a value is in memory anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import getitem
from typing import Any

import torch
from torch import fx

from tuner.compilers.inductor.hooks import GraphPass, InferenceAwareGraphPass, fallbacks, lowerings
from tuner.errors import PlanRefused
from tuner.workload.opaque import is_collective, name_of
from tuner.workload.order import canonical_order
from tuner.workload.symbols import is_number

# What the compiler looks for.
REALIZE = "inductor_realize_to_strides"
# A node's place in the canonical order, the id of the cut after it where there may be one, and whether it was cut there.
POSITION, SITE, CUT = "tuner_position", "tuner_cut_site", "tuner_cut"
# Ops that torch does not mark as pointwise, and that are computed within the loop that reads them all the same.
WITHIN_LOOPS = frozenset(
    {
        "aten._unsafe_index.Tensor",
        "aten._unsafe_masked_index.default",
        "aten.avg_pool2d.default",
        "aten.avg_pool2d_backward.default",
        "aten.cat.default",
        "aten.constant_pad_nd.default",
        "aten.embedding.default",
        "aten.gather.default",
        "aten.index.Tensor",
        "aten.repeat.default",
        "aten.upsample_nearest2d.default",
        "prims.rev.default",
        "quantized_decomposed.dequantize_per_channel.default",
        "quantized_decomposed.dequantize_per_tensor.default",
        "quantized_decomposed.dequantize_per_tensor.tensor",
        "quantized_decomposed.quantize_per_channel.default",
        "quantized_decomposed.quantize_per_tensor.default",
        "quantized_decomposed.quantize_per_tensor.tensor",
    }
)
# Namespaces of ops that the compiler knows to have no effects: all others, and higher-order ops, are opaque.
KNOWN = frozenset({"aten", "prims", "quantized_decomposed", "mkl", "mkldnn", "onednn"})


def cut_id(node: fx.Node) -> str:
    """The id of the cut after a node of a graph that the pass has seen, "12:aten.where.self"; "" where there may be none."""
    return str(node.meta.get(SITE, ""))


class CutPass(InferenceAwareGraphPass):
    """Numbers the nodes of the graph that is compiled, and marks those that are to be cut.

    outermost: what is compiled; of a graph within it, as of a branch, nothing is named or cut. wanted: whether a cut, by its id,
    is to be made. required: cuts that must be there, else PlanRefused is raised. users: the user's own passes of this place,
    which run before. In the compile caches' key by its uuid alone.
    """

    def __init__(
        self,
        outermost: fx.GraphModule,
        phase: str,
        wanted: Callable[[str], bool],
        uuid: str,
        required: Iterable[str] = (),
        users: Sequence[Callable[..., Any]] = (),
    ):
        self.outermost, self.phase, self.wanted, self._uuid = outermost, phase, wanted, uuid
        self.required, self.users = frozenset(required), tuple(users)

    def __call__(self, graph: fx.Graph, is_inference: bool = False) -> None:
        for users in self.users:
            if InferenceAwareGraphPass is not GraphPass and isinstance(users, InferenceAwareGraphPass):
                users(graph, is_inference)
            else:
                users(graph)
        if graph is self.outermost.graph:
            mark(graph, self.phase, self.wanted)
            check_cut(graph, self.required)

    def uuid(self) -> str:
        return self._uuid


def mark(graph: fx.Graph, phase: str, wanted: Callable[[str], bool]) -> None:
    """Numbers the nodes of `graph`, names where it may be cut, and marks where it is `wanted`."""
    for node in graph.nodes:
        for name in (POSITION, SITE, CUT):
            node.meta.pop(name, None)
    order = canonical_order(graph, phase)
    device = _device(order)
    for position, node in enumerate(order):
        node.meta[POSITION] = position
        if device is not None and may_be_cut(node, device):
            site = node.meta[SITE] = f"{position}:{node.target}"
            if wanted(site):
                node.meta[CUT] = node.meta[REALIZE] = True


def check_cut(graph: fx.Graph, required: Iterable[str]) -> None:
    """Raises PlanRefused unless `graph` was cut wherever it is `required`."""
    if missing := sorted(frozenset(required) - {cut_id(node) for node in graph.nodes if CUT in node.meta}):
        raise PlanRefused(f"no value of this graph can be cut as {missing[0]}")


def may_be_cut(node: fx.Node, device: torch.device) -> bool:
    """Whether a value is one that the compiler may compute anew within each loop that reads it, and that it can put into memory.

    That is one tensor on `device`, no view, no result of a library call; something in the graph reads it, and the graph does not
    yield it, which would put it into memory anyway. Neither what makes it nor what reads it is opaque or waits for other ranks.
    """
    target, value = node.target, node.meta.get("val")
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload) or not isinstance(value, torch.Tensor):
        return False
    if torch.Tag.pointwise not in target.tags and str(target) not in WITHIN_LOOPS:
        return False
    if target not in lowerings or target in fallbacks or any(argument.alias_info for argument in target._schema.arguments):
        return False
    inputs = [one.meta["val"] for one in node.all_input_nodes if isinstance(one.meta.get("val"), torch.Tensor)]
    if value.device != device or not inputs or any(map(_is_left_to_the_library, (value, *inputs))):
        return False
    readers = list(_through_items(node.users, lambda reader: reader.users))
    makers = list(_through_items(node.all_input_nodes, lambda maker: maker.all_input_nodes))
    if not readers or any(reader.op == "output" for reader in readers):
        return False
    return not any(_is_opaque(near) for near in (*readers, *makers))


def _is_left_to_the_library(value: torch.Tensor) -> bool:
    return value.is_complex() or value.layout != torch.strided or value.is_quantized


def _through_items(nodes: Iterable[fx.Node], further: Callable[[fx.Node], Iterable[fx.Node]]) -> Iterator[fx.Node]:
    """`nodes`, and in the place of such as take one value of several, those next to them."""
    for node in nodes:
        if node.target is getitem:
            yield from _through_items(further(node), further)
        else:
            yield node


def _is_opaque(node: fx.Node) -> bool:
    if node.op != "call_function" or is_number(node):
        return False
    return is_collective(node.target) or name_of(node.target).partition(".")[0] not in KNOWN


def _device(order: Iterable[fx.Node]) -> torch.device | None:
    """Where most values of the graph are: numbers that a host keeps beside them are not worth a kernel."""
    values = (node.meta.get("val") for node in order if node.op == "call_function")
    counted = Counter(value.device for value in values if isinstance(value, torch.Tensor))
    return counted.most_common(1)[0][0] if counted else None
