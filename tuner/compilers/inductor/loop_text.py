"""What the loops of a leaf compute, as a text that holds in every process.

Read in torch 2.13.0: torch/_inductor/loop_body.py. A body is an FX graph whose placeholder stands for the ops handler: methods
are operations; modules are indices ("get_index"), variables that data sets ("set_indirect0"), masked parts and scans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from tuner.compilers.inductor.leaves import SizeTexts

# Operations that are given a buffer by its name; others may be given words of their own, "sum".
NAMING = frozenset({"load", "load_seed", "store", "store_reduction", "bucketize"})
# How often the same index is written out again: layers have the same ones.
_KNOWN_LIMIT = 10_000


def accesses(body: Any) -> tuple[list[str], list[str]]:
    """Names of the buffers that a body loads from and stores to, in the order in which it first does."""
    used = {kind.name: [entry.buffer_name for entry in entries] for kind, entries in body.memory_usage.items()}
    reads = [name for kind in ("LOAD", "LOAD_SEED", "BUCKETIZE") for name in used.get(kind, ())]
    writes = [name for kind in ("STORE", "STORE_REDUCTION") for name in used.get(kind, ())]
    return list(dict.fromkeys(reads)), list(dict.fromkeys(writes))


class LoopTexts:
    """Texts of bodies of one graph; `text`: its sizes."""

    def __init__(self, text: SizeTexts):
        self.text = text
        self._known: dict[Any, str] = {}

    def __call__(self, body: Any, reads: Mapping[str, int], writes: Mapping[str, int]) -> str:
        """Operations line by line, of a body that reads and writes buffers with these names and numbers.

        Buffers are r and w with their numbers, loops i, variables that data sets j.
        """
        names = tuple({name: f"{kind}{i}" for name, i in numbers.items()} for kind, numbers in (("r", reads), ("w", writes)))
        return _Body(body, names, self).text()

    def index(self, expression: Any, variables: Mapping[Any, str]) -> str:
        if not getattr(expression, "free_symbols", None):
            return str(expression)
        key = (expression, *variables)
        if (found := self._known.get(key)) is None:
            if len(self._known) > _KNOWN_LIMIT:
                self._known.clear()
            found = self._known[key] = self.text.within(expression, variables)
        return found


class _Body:
    def __init__(self, body: Any, names: Sequence[Mapping[str, str]], texts: LoopTexts):
        self.body, self.names, self.texts = body, names, texts
        self.variables = {variable: f"i{i}" for i, variable in enumerate(body.var_ranges)}
        self.variables |= {variable: f"j{i}" for i, variable in enumerate(body.indirect_vars)}
        self.shown: dict[fx.Node, str] = {}

    def text(self) -> str:
        sizes = "|".join("x".join(self._size(size) for size in part) for part in self.body.sizes)
        return "\n".join([sizes, *self._block(self.body.root_block.graph)])

    def _size(self, size: Any) -> str:
        return self.texts.index(size, self.variables)

    def _block(self, graph: fx.Graph) -> Iterator[str]:
        for node in graph.nodes:
            if node.op == "placeholder":
                self.shown[node] = "ops"
            elif node.op == "call_module" and node.target == "get_index":
                self.shown[node] = f"[{self._size(self.body.indexing_exprs[node.args[0]])}]"
            else:
                call, within = self._call(node)
                self.shown[node] = f"%{len(self.shown)}"
                yield f"{self.shown[node]} = {call}"
                yield from within

    def _call(self, node: fx.Node) -> tuple[str, list[str]]:
        """What a node computes, and the lines of the block within, if it has one."""
        target = str(node.target) if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        args, names = list(node.args), self.names[0] if "load" in target or target == "bucketize" else self.names[1]
        if target == "load_seed":
            # Which of the seeds: each layer has its own.
            args = args[:2]
        if node.op != "call_module":
            named = names if target in NAMING else {}
            told = [self._argument(value, named) for value in (*args, *node.kwargs.values())]
            return f"{target}({', '.join(told)})", []
        told = [self._argument(value, {}) for value in args]
        if target in self.body.subblocks:
            return f"masked({', '.join(told)})", [f"  {line}" for line in self._block(self.body.subblocks[target].graph)]
        held = getattr(getattr(self.body.submodules.get(target), "clone", None), "keywords", {})
        told += [self._held(held[name]) for name in sorted(held)]
        return f"{target.rstrip('0123456789')}({', '.join(told)})", []

    def _held(self, value: Any) -> str:
        """What a module is bound to. (A symbol of sympy's is callable.)"""
        if callable(value) and not hasattr(value, "free_symbols"):
            return getattr(value, "__qualname__", type(value).__name__)
        return self._argument(value, {})

    def _argument(self, value: Any, names: Mapping[str, str]) -> str:
        if isinstance(value, fx.Node):
            return self.shown.get(value, "?")
        if isinstance(value, str):
            return names.get(value, value)
        if isinstance(value, list | tuple):
            return f"({', '.join(self._argument(item, names) for item in value)})"
        if isinstance(value, Mapping):
            return f"({', '.join(f'{name}={self._argument(value[name], names)}' for name in sorted(value, key=str))})"
        if hasattr(value, "free_symbols"):
            return self.texts.index(value, self.variables)
        if value is None or isinstance(value, bool | int | float | torch.dtype):
            return repr(value)
        return value.type if isinstance(value, torch.device) else type(value).__name__
