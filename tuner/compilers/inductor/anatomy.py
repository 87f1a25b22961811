"""The anatomy of a graph, read off Inductor's scheduler: a lowering says it, no code is generated.

Read in torch 2.13.0: torch/_inductor/scheduler.py (Scheduler.compute_dependencies: mutations are renamed, `mutation_real_name`
leads back), ir.py, loop_body.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from tuner.anatomy import Anatomy, Buffer, Leaf, Op
from tuner.compilers.inductor.cuts import cut_id
from tuner.compilers.inductor.hooks import V
from tuner.compilers.inductor.leaves import SizeTexts, ir_class, sizes_of
from tuner.compilers.inductor.loop_text import LoopTexts, accesses
from tuner.plan import Groups, leaf_order
from tuner.workload.opaque import hashed, name_of
from tuner.workload.order import is_input

# What no grouping is: asked for, it ends a compilation after fusion.
NEVER: Groups = ()


class Reader:
    """Keeps what it is shown before fusion, which changes the scheduler's nodes; see `compile_candidate`'s `inspect`.

    Of graphs within the graph it is told nothing.
    """

    graph: Any = None
    fake_mode: Any = None

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}
        self.leaves: tuple[Leaf, ...] = ()
        self.buffers: tuple[Buffer, ...] = ()
        self.ops: tuple[Op, ...] = ()

    def __call__(self, nodes: Sequence[Any], ids: dict[str, str], order: Sequence[fx.Node], text: SizeTexts) -> None:
        self.graph, self.fake_mode, self.ids = V.graph, V.fake_mode, dict(ids)
        found = {leaf.get_name(): (leaf, node) for node in nodes for leaf in node.get_nodes()}
        names = sorted(found, key=lambda name: leaf_order(ids[name]))
        memory, operations = _Memory(text), _Operations(order)
        number = {name: i for i, name in enumerate(names)}
        loops = LoopTexts(text)
        leaves = []
        for name in names:
            leaf, node = found[name]
            body = _loops_of(leaf)
            # A list of leaves that stays together is a kernel of its own.
            fusable = body is not None and leaf is node
            reads, writes = _of_a_call(leaf) if body is None else accesses(body)
            touched = memory.numbers(reads), memory.numbers(writes)
            told = "" if body is None else loops(body, memory.places(reads), memory.places(writes))
            content = _content(leaf, told, memory, (reads, writes), text)
            after = sorted({number[before] for before in _before(leaf) if before in number and before != name})
            made_of = operations.of(leaf, loops=body is not None)
            leaves.append(Leaf(ids[name], ir_class(leaf), fusable, content, *touched, tuple(after), made_of))
        calls = {op for leaf in leaves if not leaf.fusable for op in leaf.ops}
        # Copies that are made for a call are told to come of it too.
        self.leaves = tuple(
            replace(leaf, ops=tuple(op for op in leaf.ops if not leaf.fusable or op not in calls)) for leaf in leaves
        )
        self.buffers, self.ops = memory.buffers(), operations.ops()

    def anatomy(self, groups: Groups) -> Anatomy:
        return Anatomy(self.leaves, self.buffers, self.ops, groups)


def _loops_of(leaf: Any) -> Any:
    """The body of the loops that are generated for a leaf; None for a library call, a template, and what does nothing."""
    body = getattr(leaf, "_body", None)
    return body if ir_class(leaf).startswith("ComputedBuffer") and hasattr(body, "root_block") else None


def _of_a_call(leaf: Any) -> tuple[list[str], list[str]]:
    """Names of what a leaf without loops reads and writes: not what only orders it, nor an output that is a view of an input."""
    reads = [dep.name for dep in leaf.read_writes.reads if type(dep).__name__ != "WeakDep"]
    return list(dict.fromkeys(reads)), [buffer.get_name() for buffer in leaf.get_outputs() if not buffer.get_aliases()]


def _before(leaf: Any) -> Iterable[str]:
    """Names of the leaves that must run before, whatever for."""
    buffers = leaf.scheduler.name_to_buf
    return (buffers[dep.name].defining_op_name() for dep in leaf.unmet_dependencies if dep.name in buffers)


def _content(leaf: Any, loops: str, memory: _Memory, touched: tuple[list[str], list[str]], text: SizeTexts) -> str:
    device = leaf.get_device()
    told: list[Any] = [ir_class(leaf), "" if device is None else device.type]
    if loops:
        told += [loops, [[memory.dtype(name) for name in names] for names in touched]]
        if "scan(" in loops:
            # What a scan does to its elements is a function of Python's.
            told.append(sorted({str(origin.target) for origin in leaf.node.origins}))
    else:
        target = getattr(leaf.node, "op_overload", None)
        named = name_of(target) if target is not None else getattr(leaf.node, "python_kernel_name", None)
        told += [str(named or ""), sizes_of(leaf, text), [[memory.meta(name) for name in names] for names in touched]]
    return hashed(told)[:32]


class _Memory:
    """Numbers buffers as they are asked for: whatever aliases or rewrites one is that one."""

    def __init__(self, text: SizeTexts):
        self.text, self.graph, self.scheduler = text, V.graph, V.graph.scheduler
        self._numbers: dict[str, int] = {}

    def numbers(self, names: Sequence[str]) -> tuple[int, ...]:
        held = dict.fromkeys(self._holder(name) for name in names)
        return tuple(self._numbers.setdefault(name, len(self._numbers)) for name in held)

    def places(self, names: Sequence[str]) -> dict[str, int]:
        """For each buffer its place among those that `numbers` gives for all."""
        held = [self._holder(name) for name in names]
        place = {name: i for i, name in enumerate(dict.fromkeys(held))}
        return {name: place[holder] for name, holder in zip(names, held, strict=True)}

    def _holder(self, name: str) -> str:
        """The buffer in whose memory this one lies; pieces that are written in place of a whole are buffers of their own."""
        for _ in range(len(self.scheduler.name_to_buf) + 1):
            real = self.scheduler.mutation_real_name.get(name, name)
            buffer: Any = self.scheduler.name_to_buf.get(real)
            piece = buffer is None or type(buffer.node.layout).__name__ == "NonOwningLayout"
            aliased = [] if piece else list(buffer.get_aliases())
            following = aliased[0] if len(aliased) == 1 else real
            if following == name:
                return name
            name = following
        return name

    def buffers(self) -> tuple[Buffer, ...]:
        yielded = {self._holder(name) for name in self.graph.get_output_names()}
        rewritten = {self._holder(name) for name in self.scheduler.mutation_real_name}
        return tuple(self._buffer(name, yielded, rewritten) for name in self._numbers)

    def _buffer(self, name: str, yielded: set[str], rewritten: set[str]) -> Buffer:
        source = "input" if name in self.graph.graph_inputs else "constant" if name in self.graph.constants else "leaf"
        escapes = name in yielded or (source != "leaf" and name in rewritten)
        return Buffer(self.meta(name), self._bytes(name), source, escapes)

    def _layout(self, name: str) -> Any:
        """None for what is no memory of its own: a tuple, nothing, an object."""
        buffer: Any = self.graph.try_get_buffer(self._holder(name))
        layout = buffer.maybe_get_layout() if hasattr(buffer, "maybe_get_layout") else None
        return layout if layout is not None and hasattr(layout, "stride") and hasattr(layout, "size") else None

    def dtype(self, name: str) -> str:
        layout = self._layout(name)
        return "" if layout is None else str(layout.dtype).removeprefix("torch.")

    def meta(self, name: str) -> str:
        if (layout := self._layout(name)) is None:
            return "none"
        sizes, strides = (",".join(map(self.text, part)) for part in (layout.size, layout.stride))
        return f"{self.dtype(name)}[{sizes}]{{{strides}}}"

    def _bytes(self, name: str) -> int:
        """What the elements of a buffer take, those once that several places share; symbols by the sizes of its making."""
        if (layout := self._layout(name)) is None:
            return 0
        sizes, strides = ([_hint(size) for size in part] for part in (layout.size, layout.stride))
        if 0 in sizes:
            return 0
        extent, elements = 1, 1
        for size, stride in zip(sizes, strides, strict=True):
            extent, elements = extent + (size - 1) * abs(stride), elements * size
        return min(extent, elements) * int(layout.dtype.itemsize)


def _hint(size: Any) -> int:
    return size if isinstance(size, int) else int(V.graph.sizevars.optimization_hint(size, fallback=1))


class _Operations:
    """Numbers the operations of a graph by the canonical order."""

    def __init__(self, order: Sequence[fx.Node]):
        self.nodes = [node for node in order if node.op == "call_function" and not is_input(node)]
        self.number = {node: i for i, node in enumerate(self.nodes)}
        self._inlined: set[fx.Node] = set()
        self._stored: set[fx.Node] = set()

    def of(self, leaf: Any, loops: bool) -> tuple[int, ...]:
        """Those of which a leaf is made. loops: whether it has loops, in which others are computed beside its own."""
        made_of = [self.number[origin] for origin in leaf.node.origins if origin in self.number]
        if not loops:
            # The compiler tells also what was not in memory yet when the call was lowered: loops of other leaves compute that.
            made_of = [max(made_of)] if made_of else []
            self._stored.update(self.nodes[i] for i in made_of)
        self._inlined.update(self.nodes[i] for i in made_of)
        self._stored.add(leaf.node.get_origin_node())
        return tuple(sorted(made_of))

    def ops(self) -> tuple[Op, ...]:
        return tuple(self._op(node) for node in self.nodes)

    def _op(self, node: fx.Node) -> Op:
        inputs = sorted({self.number[value] for value in node.all_input_nodes if value in self.number})
        inlined = node in self._inlined and node not in self._stored
        return Op(name_of(node.target), tuple(inputs), cut_id(node) if inlined else "")
