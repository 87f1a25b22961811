"""Made-up anatomies, as a winner's evidence holds them: of a masked softmax, of layers of it, and drawn at random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tuner.anatomy import Anatomy, Buffer, KernelTimes, Leaf, Op

# operation -> the operations it uses
SOFTMAX = {"mul": (), "add": (0,), "where": (1,), "amax": (2,), "sub": (2, 3), "exp": (4,), "sum": (5,), "div": (5, 6)}
Ops = Sequence[tuple[str, tuple[int, ...]]]
Values = Sequence[Sequence[int]]


def anatomy(ops: Ops, leaves: Values, groups: Values, library: Sequence[int] = (), size: int = 1000) -> Anatomy:
    """ops: targets with the operations they use. leaves: the operations of each, of which it keeps the last in `size` bytes.

    Whatever a leaf's operations use from outside the leaf it reads from the leaf that keeps it. groups: numbers of leaves.
    """
    keeper = {made[-1]: leaf for leaf, made in enumerate(leaves)}
    used = [sorted({one for op in made for one in ops[op][1] if one not in made and one in keeper}) for made in leaves]
    read = {one for some in used for one in some}
    buffers = [Buffer(f"float32[{size // 4}]", size, "leaf", escapes=made[-1] not in read) for made in leaves]
    buffers.append(Buffer(f"float32[{size // 4}]", size, "input"))
    made_leaves = []
    for number, made in enumerate(leaves):
        reads = tuple(keeper[one] for one in used[number]) or (len(leaves),)
        kind = "ExternKernel" if number in library else "ComputedBuffer.Pointwise"
        content = "/".join(ops[op][0] for op in made)
        after = tuple(buffer for buffer in reads if buffer < len(leaves))
        ident = f"{made[-1]}:{size // 4}:Pointwise:0"
        made_leaves.append(Leaf(ident, kind, number not in library, content, reads, (number,), after, tuple(sorted(made))))
    named = tuple(tuple(made_leaves[leaf].id for leaf in group) for group in groups)
    return Anatomy(tuple(made_leaves), tuple(buffers), tuple(Op(target, inputs) for target, inputs in ops), named)


def side(told: Anatomy, ms: Sequence[float | None] = (), library_ms: float = 0.0, between_ms: float = 0.01) -> dict[str, Any]:
    """JSON of one side: milliseconds of each group, of those that are timed."""
    data: dict[str, Any] = {"anatomy": told.to_json()}
    if ms:
        kernels = tuple((group, one) for group, one in zip(told.groups, ms, strict=True) if one is not None)
        total = sum(one for _, one in kernels) + library_ms + between_ms
        data["times"] = KernelTimes(kernels, library_ms, total).to_json()
    return data


def softmax_ops(layers: int = 1) -> list[tuple[str, tuple[int, ...]]]:
    """Softmax upon softmax, a library call between."""
    ops: list[tuple[str, tuple[int, ...]]] = []
    for _ in range(layers):
        start = len(ops)
        first = (start - 1,) if start else ()
        ops += [(f"aten.{op}.default", tuple(start + one for one in used) or first) for op, used in SOFTMAX.items()]
        ops.append(("aten.mm.default", (len(ops) - 1,)))
    return ops[:-1]


def softmax(layers: int = 1) -> dict[str, Any]:
    """Evidence of a winner that keeps the masked score: by default it is computed on the way to the sum."""
    ops = softmax_ops(layers)
    sides = {}
    for name, parts in (("default", ((0, 1, 2, 3, 4, 5), (6, 7))), ("winner", ((0, 1, 2), (3, 4, 5, 6, 7)))):
        leaves: list[list[int]] = []
        groups, library, ms = [], [], []
        for layer in range(layers):
            start = 9 * layer
            for part, one_ms in zip(parts, (0.3, 0.02) if name == "default" else (0.09, 0.08), strict=True):
                groups.append([len(leaves)])
                leaves.append([start + op for op in part])
                ms.append(one_ms)
            if layer + 1 < layers:
                library.append(len(leaves))
                groups.append([len(leaves)])
                leaves.append([start + 8])
                ms.append(None)
        # what a leaf uses but no leaf keeps it computes itself
        leaves = [_completed(ops, leaves, made) for made in leaves]
        sides[name] = side(anatomy(ops, leaves, groups, library), ms, library_ms=0.5 * (layers - 1))
    return sides


def _completed(ops: Ops, leaves: Values, made: Sequence[int]) -> list[int]:
    kept = {other[-1] for other in leaves}
    needed, stack = set(made), list(made)
    while stack:
        for one in ops[stack.pop()][1]:
            if one not in needed and one not in kept:
                needed.add(one)
                stack.append(one)
    return [*sorted(needed - {made[-1]}), made[-1]]


def at_random(count: int, seed: int) -> dict[str, Any]:
    """Evidence of a graph of so many operations: a leaf of one to four each, kernels of one to three leaves in a row."""
    chance = random.Random(seed)
    names = [
        "mul",
        "add",
        "native_layer_norm",
        "exp",
        "where",
        "amax",
        "sub",
        "convolution",
        "_scaled_dot_product_attention_for_cpu",
    ]
    ops: list[tuple[str, tuple[int, ...]]] = []
    for op in range(count):
        near = [one for one in (op - 1, op - 2, op - 3, chance.randrange(op + 1) - 1) if one >= 0]
        used = chance.sample(sorted(set(near)), min(len(set(near)), chance.randint(0 if op < 3 else 1, 2)))
        ops.append((f"aten.{chance.choice(names)}.default", tuple(sorted(used))))
    sides = {}
    for name in ("default", "winner"):
        leaves, start = [], 0
        while start < count:
            leaves.append(list(range(start, min(count, start + chance.randint(1, 4)))))
            start = leaves[-1][-1] + 1
        leaves = [_completed(ops, leaves, made) for made in leaves]
        groups, first = [], 0
        while first < len(leaves):
            groups.append(list(range(first, min(len(leaves), first + chance.randint(1, 3)))))
            first = groups[-1][-1] + 1
        sides[name] = side(anatomy(ops, leaves, groups), [chance.uniform(0.001, 20) for _ in groups])
    return sides
