"""Where the operations and kernels of a graph stand in its drawing: a kernel is a frame around all operations it computes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.cli.kernels import VIEWS, Side, short
from tuner.cli.layered import Edge, Layout, Node, Point, layered

FONT_SIZE = 12
# of a fixed-width font at FONT_SIZE: 0.602 em in DejaVu Sans Mono, the widest in use
CHARACTER_WIDTH = 7.4
BOX_HEIGHT, BOX_PADDING = 22, 8
FRAME_PADDING, TITLE_HEIGHT = 8, 18
GAP_X, GAP_Y = 10.0, 14.0
FRAMES_GAP_X, FRAMES_GAP_Y = 18.0, 30.0
NAME_LENGTH = 30


@dataclass(frozen=True)
class Box:
    """An operation where it is drawn: left upper corner and size. again: another kernel that runs before computes it, too."""

    op: int
    text: str
    x: float
    y: float
    width: float
    height: float
    again: bool


@dataclass(frozen=True)
class Frame:
    """A kernel where it is drawn."""

    kernel: int
    title: str
    x: float
    y: float
    width: float
    height: float
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class Picture:
    """frames by kernel; lines: the points of each edge, downwards."""

    frames: tuple[Frame, ...]
    lines: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def text_width(text: str) -> float:
    return len(text) * CHARACTER_WIDTH


def picture(side: Side, titles: Sequence[str]) -> Picture:
    """The drawing of one side. titles: of each kernel's frame. Operations that only view memory are left out."""
    graph = _Drawn.of(side)
    inner = [_Inside.of(graph, kernel, title) for kernel, title in enumerate(titles)]
    outer = _outside(graph, inner)
    # once more, now that it is known from where a kernel's inputs come
    inner = [_Inside.of(graph, kernel, title, _hints(graph, kernel, outer)) for kernel, title in enumerate(titles)]
    outer = _outside(graph, inner)
    frames = tuple(_frame(graph, kernel, inner[kernel], outer, title) for kernel, title in enumerate(titles))
    return Picture(frames, tuple(_lines(graph, inner, outer)), outer.width, outer.height)


@dataclass(frozen=True)
class _Drawn:
    """ops: of each kernel, those that are drawn. within: edges in each kernel, by operations. between: (from, operation, to,
    operations there): the value that one kernel leaves in memory, and who uses it in another. again: (kernel, operation).
    """

    side: Side
    ops: tuple[tuple[int, ...], ...]
    within: tuple[tuple[tuple[int, int], ...], ...]
    between: tuple[tuple[int, int, int, tuple[int, ...]], ...]
    again: frozenset[tuple[int, int]]

    @staticmethod
    def of(side: Side) -> _Drawn:
        ops = tuple(tuple(_worth_drawing(side, kernel)) for kernel in range(len(side.kernels)))
        drawn = {op for some in ops for op in some}
        within: list[list[tuple[int, int]]] = [[] for _ in ops]
        between: defaultdict[tuple[int, int, int], set[int]] = defaultdict(set)
        again, seen = set(), set[int]()
        for number, here in enumerate(map(frozenset, ops)):
            sources = {op: _sources(side, op, here, drawn) for op in here}
            within[number] = [(source, op) for op in ops[number] for source in sources[op] if source in here]
            read = set()
            for origin, op, leaf in _reads(side, number, ops):
                users = {user for user in here.intersection(side.anatomy.leaves[leaf].ops) if op in sources[user]}
                if op in here:
                    # an operation of several steps, the last of which are taken here
                    users = {op}
                    read.add(op)
                between[origin, op, number] |= users or set(
                    sorted(here.intersection(side.anatomy.leaves[leaf].ops))[:1] or ops[number][:1]
                )
            again |= {(number, op) for op in here & seen - read}
            seen |= here
        passed = ((*names, tuple(sorted(users))) for names, users in between.items() if users)
        return _Drawn(side, ops, tuple(map(tuple, within)), tuple(passed), frozenset(again))


def _reads(side: Side, number: int, ops: Sequence[Sequence[int]]) -> Iterator[tuple[int, int, int]]:
    """What a kernel reads of those before it: that kernel, the operation that left the value there, the leaf that reads it."""
    leaves = side.anatomy.leaves
    for leaf in side.kernels[number].leaves:
        for buffer in leaves[leaf].reads:
            for writer in side.anatomy.writers[buffer]:
                origin = side.holder[writer]
                made = [op for op in leaves[writer].ops if op in ops[origin]]
                # what runs later cannot have given it: a buffer that is written twice
                if origin < number and made:
                    yield origin, made[-1], leaf


def _worth_drawing(side: Side, number: int) -> Iterator[int]:
    kernel = side.kernels[number]
    telling = [op for op in kernel.ops if short(side.anatomy.ops[op].target) not in VIEWS]
    yield from telling or kernel.ops[-1:]


def _sources(side: Side, op: int, here: frozenset[int], drawn: set[int]) -> set[int]:
    """The operations whose values `op` uses, through views and all else that nobody draws, `here` first."""
    found, seen, stack = set(), set(), list(side.anatomy.ops[op].inputs)
    while stack:
        one = stack.pop()
        if one in seen or one >= op:
            continue
        seen.add(one)
        if one in here or one in drawn:
            found.add(one)
        else:
            stack += side.anatomy.ops[one].inputs
    return found


@dataclass(frozen=True)
class _Inside:
    """A kernel's own layout. nodes: its inputs, its operations, its outputs; enters, leaves: the node of each, by operation."""

    layout: Layout
    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]
    boxes: dict[int, int]
    enters: dict[int, int]
    leaves: dict[int, int]
    width: float
    height: float
    shift: float

    @staticmethod
    def of(graph: _Drawn, kernel: int, title: str, hints: dict[int, float] | None = None) -> _Inside:
        given = {op: users for _, op, number, users in graph.between if number == kernel}
        taken = list(dict.fromkeys(op for number, op, _, _ in graph.between if number == kernel))
        enters = {op: place for place, op in enumerate(given)}
        boxes = {op: len(enters) + place for place, op in enumerate(graph.ops[kernel])}
        leaves = {op: len(enters) + len(boxes) + place for place, op in enumerate(taken)}
        nodes = [Node(1.0, 0.0, "top", None if hints is None else hints.get(op, 0.0)) for op in enters]
        nodes += [Node(text_width(box_text(graph, op)) + 2 * BOX_PADDING, BOX_HEIGHT) for op in boxes]
        nodes += [Node(1.0, 0.0, "bottom")] * len(leaves)
        edges = [(enters[op], boxes[user]) for op, users in given.items() for user in users]
        edges += [(boxes[op], boxes[user]) for op, user in graph.within[kernel]]
        edges += [(boxes[op], leaves[op]) for op in taken]
        layout = layered(nodes, [Edge(*one) for one in edges], GAP_X, GAP_Y)
        width = max(layout.width, text_width(title)) + 2 * FRAME_PADDING
        # the title stands above, and the ends of the lines at the very border
        height = layout.height + TITLE_HEIGHT + (0 if leaves else FRAME_PADDING)
        return _Inside(layout, tuple(nodes), tuple(edges), boxes, enters, leaves, width, height, (width - layout.width) / 2)

    def point(self, node: int) -> float:
        """How far right of the frame's centre a node stands."""
        return self.layout.x[node] + self.shift - self.width / 2


def box_text(graph: _Drawn, op: int) -> str:
    name = short(graph.side.anatomy.ops[op].target)
    return name if len(name) <= NAME_LENGTH else name[: NAME_LENGTH - 1] + "…"


def _outside(graph: _Drawn, inner: Sequence[_Inside]) -> Layout:
    nodes = [Node(one.width, one.height) for one in inner]
    edges = [
        Edge(origin, number, inner[origin].point(inner[origin].leaves[op]), inner[number].point(inner[number].enters[op]))
        for origin, op, number, _ in graph.between
    ]
    return layered(nodes, edges, FRAMES_GAP_X, FRAMES_GAP_Y)


def _hints(graph: _Drawn, kernel: int, outer: Layout) -> dict[int, float]:
    """From where each input of a kernel comes: the last bend of its line."""
    found = {}
    for (_, op, number, _), route in zip(graph.between, outer.routes, strict=True):
        if number == kernel:
            found[op] = route[-2][0]
    return found


def _frame(graph: _Drawn, kernel: int, inside: _Inside, outer: Layout, title: str) -> Frame:
    left, top = outer.x[kernel] - inside.width / 2, outer.y[kernel]
    boxes = []
    for op, place in inside.boxes.items():
        node = inside.nodes[place]
        x = left + inside.shift + inside.layout.x[place] - node.width / 2
        y = top + TITLE_HEIGHT + inside.layout.y[place]
        boxes.append(Box(op, box_text(graph, op), x, y, node.width, node.height, (kernel, op) in graph.again))
    return Frame(kernel, title, left, top, inside.width, inside.height, tuple(boxes))


def _lines(graph: _Drawn, inner: Sequence[_Inside], outer: Layout) -> Iterator[tuple[Point, ...]]:
    """All edges: those within a kernel, and those between two from operation to operation."""

    def moved(kernel: int, edge: int) -> tuple[Point, ...]:
        inside = inner[kernel]
        left, top = outer.x[kernel] - inside.width / 2 + inside.shift, outer.y[kernel] + TITLE_HEIGHT
        return tuple((left + x, top + y) for x, y in inside.layout.routes[edge])

    for kernel, inside in enumerate(inner):
        ports = {*inside.enters.values(), *inside.leaves.values()}
        for number, (source, target) in enumerate(inside.edges):
            if not ports & {source, target}:
                yield moved(kernel, number)
    for (origin, op, number, users), route in zip(graph.between, outer.routes, strict=True):
        start, end = inner[origin], inner[number]
        out = moved(origin, start.edges.index((start.boxes[op], start.leaves[op])))
        for user in users:
            yield (*out, *route, *moved(number, end.edges.index((end.enters[op], end.boxes[user]))))
