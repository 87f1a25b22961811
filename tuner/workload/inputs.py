"""Data to run a graph on, like what was seen at capture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tuner.errors import UnsupportedGraph
from tuner.workload.arguments import decode
from tuner.workload.graph import Graph, InputData, Node, TensorMeta

# Sizes of symbols, by number or by name; None: those of the graph's making.
Sizes = Sequence[int] | Mapping[str, int] | None
# What an input is drawn from that was never seen.
UNSEEN = InputData(0, 1)


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


def sizes_of(graph: Graph, sizes: Sizes = None) -> tuple[int, ...]:
    """The size of each symbol, by number: those given, by number or by name ("s0"), else those of the graph's making."""
    if sizes is None:
        return graph.hints
    if isinstance(sizes, Mapping):
        return tuple(sizes.get(f"s{i}", hint) for i, hint in enumerate(graph.hints))
    return tuple(sizes)


def make_inputs(graph: Graph, seed: int, sizes: Sizes = None) -> list[Any]:
    """What to call the rebuilt graph with: a number for each symbol, then fresh tensors, with data like that seen at capture.

    They have the right dtype, shape, stride and device. Those that shared memory do so again, at the same distances. Equal seeds
    give equal bits, in every process. At other `sizes` than those of the graph's making memory is not shared, contents that were
    kept whole are only made again where they fit or are one value throughout, and integers that could be an index past a size
    that shrank stay below their bound times that size's share of what it was. Raises ValueError for sizes at which
    the graph has no inputs.
    """
    generator = torch.Generator().manual_seed(seed)
    numbers = sizes_of(graph, sizes)
    inputs = [empty(TensorMeta.from_json(node.value).at(numbers)) for node in graph.inputs]
    data = _resized(graph, inputs, numbers) if graph.symbols else graph.data
    for first in {seen.shares[0] for seen in data if seen.shares is not None}:
        share_memory(
            inputs,
            {first: 0} | {i: seen.shares[1] for i, seen in enumerate(data) if seen.shares and seen.shares[0] == first},
        )
    # Masks and indexes last: where they share memory with others, they must be what they were.
    for exact in (False, True):
        for tensor, seen in zip(inputs, data, strict=True):
            if (seen.runs is not None) == exact:
                fill(tensor, seen, generator)
    return [*numbers, *inputs]


def _resized(graph: Graph, inputs: Sequence[torch.Tensor], numbers: Sequence[int]) -> tuple[InputData, ...]:
    """What was seen in the inputs of a symbolic graph, which may have been of other sizes, for inputs of these."""
    shrunk = min(new / max(old, 1) for new, old in zip(numbers, graph.hints, strict=True))
    data = [_resized_one(seen, tensor, shrunk, min(numbers)) for seen, tensor in zip(graph.data, inputs, strict=True)]
    return tuple(data) if tuple(numbers) == graph.hints else tuple(replace(seen, shares=None) for seen in data)


def _resized_one(seen: InputData, tensor: torch.Tensor, shrunk: float, smallest: int) -> InputData:
    runs = seen.runs
    if runs is not None and sum(length for _, length in runs) != (places := tensor[written_once(tensor)].numel()):
        runs = ((runs[0][0], places),) if len(runs) == 1 else None
    if tensor.dtype.is_floating_point or tensor.dtype == torch.bool or shrunk >= 1 or seen.high < smallest:
        return replace(seen, runs=runs)
    high = math.ceil((seen.high + 1) * shrunk) - 1
    return replace(seen, runs=None, low=min(seen.low, high), high=high)


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
