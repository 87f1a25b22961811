"""Anatomies drawn by hand: leaves by name, with what they read and write."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tuner.anatomy import Anatomy, Buffer, Leaf, Op
from tuner.plan import canonical_groups

KERNEL, LIBRARY = "ComputedBuffer.Pointwise", "ExternKernelOut"


@dataclass
class Drawing:
    """What is drawn so far. A leaf needs those that filled what it reads; of what it overwrites, those that read it before."""

    leaves: list[Leaf] = field(default_factory=list)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)

    def given(self, *names: str, bytes: int = 4096, source: str = "input") -> None:
        """Buffers that the graph is given."""
        for name in names:
            self.buffers[name] = Buffer(f"float32[{bytes // 4}]{{1}}", bytes, source)

    def leaf(
        self,
        name: str,
        reads: Sequence[str],
        writes: Sequence[str] = (),
        *,
        content: str = "",
        library: bool = False,
        bytes: int = 4096,
        escapes: bool = False,
        after: Iterable[str] = (),
        ops: Iterable[int] = (),
    ) -> None:
        """A leaf that computes `content` (else: its name without digits) and fills the buffer of its name, or `writes`."""
        number = len(self.leaves)
        for buffer in writes or [name]:
            self.buffers.setdefault(buffer, Buffer(f"float32[{bytes // 4}]{{1}}", bytes, "leaf", escapes))
        place = {buffer: i for i, buffer in enumerate(self.buffers)}
        touched = [place[buffer] for buffer in reads], [place[buffer] for buffer in writes or [name]]
        before = {self.names[other] for other in after}
        for other, one in enumerate(self.leaves):
            if {*one.writes} & {*touched[0], *touched[1]} or {*one.reads} & {*touched[1]}:
                before.add(other)
        made = content or name.rstrip("0123456789")
        kind = LIBRARY if library else KERNEL
        points = max(self.buffers[buffer].elements for buffer in (*reads, *(writes or [name])))
        identity = f"{number}:{points}|:{kind}:0"
        self.names[name] = number
        self.leaves.append(Leaf(identity, kind, not library, made, *map(tuple, touched), tuple(sorted(before)), tuple(ops)))

    def anatomy(self, *groups: str) -> Anatomy:
        """The drawing, with these groups, "norm scale"; all other leaves alone."""
        together = [[self.names[name] for name in group.split()] for group in groups]
        taken = {leaf for group in together for leaf in group}
        alone = [[leaf] for leaf in range(len(self.leaves)) if leaf not in taken]
        named = canonical_groups([self.leaves[leaf].id for leaf in group] for group in (*together, *alone))
        return Anatomy(tuple(self.leaves), tuple(self.buffers.values()), tuple(self.ops), named)


def shuffled(anatomy: Anatomy, seed: int) -> tuple[Anatomy, list[int]]:
    """The same graph with its leaves and buffers numbered otherwise, ids and all; and the new number of each old leaf."""
    draw = random.Random(seed)
    new, moved = list(range(len(anatomy.leaves))), list(range(len(anatomy.buffers)))
    draw.shuffle(new)
    draw.shuffle(moved)
    leaves: list[Leaf | None] = [None] * len(new)
    ids = {leaf.id: f"{new[i]}:{leaf.id.split(':', 1)[1]}" for i, leaf in enumerate(anatomy.leaves)}
    for old, leaf in enumerate(anatomy.leaves):
        reads, writes = (tuple(moved[buffer] for buffer in part) for part in (leaf.reads, leaf.writes))
        after = tuple(sorted(new[other] for other in leaf.after))
        leaves[new[old]] = Leaf(ids[leaf.id], leaf.kind, leaf.fusable, leaf.content, reads, writes, after, leaf.ops)
    buffers: list[Buffer | None] = [None] * len(moved)
    for buffer, place in zip(anatomy.buffers, moved, strict=True):
        buffers[place] = buffer
    groups = canonical_groups([ids[leaf] for leaf in group] for group in anatomy.groups)
    return Anatomy(tuple(filter(None, leaves)), tuple(filter(None, buffers)), anatomy.ops, groups), new


def random_anatomy(seed: int, count: int = 9, barriers: float = 0.15) -> Anatomy:
    """A random graph of few contents, so that many of its parts are alike. Nothing is grouped."""
    draw = random.Random(seed)
    drawing = Drawing()
    drawing.given("x", "y")
    made = ["x", "y"]
    for i in range(count):
        reads = draw.sample(made[-5:], min(len(made), draw.choice((1, 1, 2))))
        drawing.leaf(f"{'abc'[draw.randrange(3)]}{i}", reads, library=draw.random() < barriers, escapes=draw.random() < 0.2)
        made.append([*drawing.names][-1])
    return drawing.anatomy()
