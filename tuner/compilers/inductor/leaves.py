"""Names of scheduler leaves that hold in every process, and the groups that the scheduler made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx

from tuner.plan import Groups, canonical_groups
from tuner.workload.opaque import hashed
from tuner.workload.symbols import expression_of, sizes_in, written

# A plan names leaves by such texts; of longer ones a hash does.
LONGEST_SIZE = 80


class SizeTexts:
    """Texts of sizes that hold in every process: symbols numbered as the post-grad graph first needs them.

    precomputed: what stands for the symbols that the compiler makes for sizes that it computes once.
    """

    def __init__(self, order: Sequence[fx.Node], precomputed: Mapping[Any, Any]):
        self._numbers: dict[Any, int] = {}
        self._precomputed = dict(precomputed)
        found = [expression_of(size) for node in order for size in sizes_in(node.meta.get("val"))]
        sizes = [size for size in found if size is not None]
        # Those first that stand by themselves somewhere: within an expression only their names would tell them apart.
        for size in sorted(sizes, key=lambda size: not size.is_Symbol):
            self._number(size)

    def __call__(self, size: Any) -> str:
        if not getattr(size, "free_symbols", None):
            return str(size).replace(" ", "")
        text = self.within(size, {})
        return text if len(text) <= LONGEST_SIZE else hashed(text)[:16]

    def within(self, expression: Any, variables: Mapping[Any, Any]) -> str:
        """The text, however long, of an expression that holds sizes and `variables`, which are called s and what they map to."""
        if self._precomputed:
            expression = expression.xreplace(self._precomputed)
        self._number(expression, variables)
        return written(expression, {**self._numbers, **variables} if variables else self._numbers)

    def _number(self, size: Any, variables: Mapping[Any, Any] | None = None) -> None:
        for symbol in sorted(size.free_symbols, key=str):
            if not variables or symbol not in variables:
                self._numbers.setdefault(symbol, len(self._numbers))


def sizes_of(leaf: Any, text: SizeTexts) -> str:
    """Iteration sizes of a leaf, "2048x1024|1024": of its loops where it has any, else of its output."""
    group = getattr(leaf, "group", None)
    if group is not None:
        return "|".join("x".join(map(text, sizes)) for sizes in group[1])
    layout = getattr(leaf.node, "layout", None)
    return "x".join(map(text, getattr(layout, "size", ())))


def ir_class(leaf: Any) -> str:
    kind, data = type(leaf.node).__name__, getattr(leaf.node, "data", None)
    return f"{kind}.{type(data).__name__}" if kind == "ComputedBuffer" else kind


def local_ids(nodes: Sequence[Any], order: Sequence[fx.Node], text: SizeTexts) -> dict[str, str]:
    """The local id of every leaf under `nodes`, by the compiler's own name for it ("op3").

    A local id is the place of the leaf's last origin in `order`, the canonical order of the post-grad graph, its iteration sizes,
    its IR class and an ordinal among leaves that agree in these. The compiler numbers leaves in the order of the statements, and
    names symbols after variables; local ids depend on neither.
    """
    position = {node: i for i, node in enumerate(order)}
    ids: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for leaf in (leaf for node in nodes for leaf in node.get_nodes()):
        origins = [position[origin] for origin in leaf.node.origins if origin in position] if leaf.node is not None else []
        name = f"{max(origins, default=len(position))}:{sizes_of(leaf, text)}:{ir_class(leaf)}"
        ids[leaf.get_name()] = f"{name}:{seen[name]}"
        seen[name] += 1
    return ids


def realised_groups(nodes: Sequence[Any], ids: dict[str, str]) -> Groups:
    """The partition that `nodes`, the scheduler's list after fusion, amounts to."""
    return canonical_groups([ids[leaf.get_name()] for leaf in node.get_nodes()] for node in nodes)
