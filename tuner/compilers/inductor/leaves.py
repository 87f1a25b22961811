"""Names of scheduler leaves that hold in every process, and the groups that the scheduler made of them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from tuner.errors import UnsupportedGraph
from tuner.plan import Groups, canonical_groups
from tuner.workload.fx import canonical_order
from tuner.workload.symbols import Symbols, sizes_in, written


def _sizes(leaf: Any, text: Callable[[Any], str]) -> str:
    """Iteration sizes of a leaf, "2048x1024|1024": of its loops where it has any, else of its output."""
    group = getattr(leaf, "group", None)
    if group is not None:
        return "|".join("x".join(map(text, sizes)) for sizes in group[1])
    layout = getattr(leaf.node, "layout", None)
    return "x".join(map(text, getattr(layout, "size", ())))


def _texts(order: Sequence[fx.Node]) -> Callable[[Any], str]:
    """What writes a size, with symbols numbered by their first use in the graph: torch names them after where they come from."""
    values = [node.meta.get("val") for node in order]
    symbols = Symbols(lambda: values)
    # What depends on data has no number, and is written as torch names it.
    with contextlib.suppress(UnsupportedGraph):
        for value in values:
            for size in sizes_in(value):
                symbols.size(size)

    def text(size: Any) -> str:
        free = getattr(size, "free_symbols", ())
        if free and all(symbol in symbols.numbers for symbol in free):
            return written(size, symbols.numbers)
        return str(size).replace(" ", "")

    return text


def _ir_class(leaf: Any) -> str:
    kind, data = type(leaf.node).__name__, getattr(leaf.node, "data", None)
    return f"{kind}.{type(data).__name__}" if kind == "ComputedBuffer" else kind


def local_ids(nodes: Sequence[Any], graph: fx.Graph) -> dict[str, str]:
    """The local id of every leaf under `nodes`, by the compiler's own name for it ("op3").

    A local id is the canonical position of the leaf's last origin in the post-grad `graph`, its iteration sizes, its IR class and
    an ordinal among leaves that agree in these. The compiler numbers leaves in the order of the statements; local ids do not
    depend on it, nor on what it calls the symbols of sizes that vary.
    """
    order = canonical_order(graph)
    position, text = {node: i for i, node in enumerate(order)}, _texts(order)
    ids: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for leaf in (leaf for node in nodes for leaf in node.get_nodes()):
        origins = [position[origin] for origin in leaf.node.origins if origin in position] if leaf.node is not None else []
        name = f"{max(origins, default=len(position))}:{_sizes(leaf, text)}:{_ir_class(leaf)}"
        ids[leaf.get_name()] = f"{name}:{seen[name]}"
        seen[name] += 1
    return ids


def realised_groups(nodes: Sequence[Any], ids: dict[str, str]) -> Groups:
    """The partition that `nodes`, the scheduler's list after fusion, amounts to."""
    return canonical_groups([ids[leaf.get_name()] for leaf in node.get_nodes()] for node in nodes)
