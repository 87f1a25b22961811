"""What a group of leaves is, whatever its leaves are called; what it moves, and how much it computes."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
from drawn import Drawing, random_anatomy, shuffled

from tuner.anatomy import Anatomy, Buffer, Leaf


def norm(*, outside: bool = False, neighbour: bool = False, content: str = "centre") -> Anatomy:
    """mean and centre of an input; outside: a library call reads the mean; neighbour: one more leaf reads the result."""
    drawing = Drawing()
    drawing.given("x")
    drawing.leaf("mean", ["x"], bytes=64)
    drawing.leaf("centre", ["x", "mean"], content=content)
    drawing.leaf("use", ["centre", "mean"] if outside else ["centre"], library=True)
    if neighbour:
        drawing.leaf("more", ["centre"])
    return drawing.anatomy()


@pytest.mark.parametrize("seed", range(12))
def test_a_group_has_one_key_however_its_leaves_and_buffers_are_numbered(seed):
    anatomy = random_anatomy(seed)
    other, new = shuffled(anatomy, seed)
    for size in range(1, 5):
        for group in itertools.combinations(range(len(anatomy.leaves)), size):
            assert anatomy.group_key(group) == other.group_key(new[leaf] for leaf in group)


def test_groups_have_one_key_only_if_one_can_be_laid_over_the_other():
    anatomy = random_anatomy(3, count=12)
    for size in (2, 3):
        groups = list(itertools.combinations(range(12), size))
        for one, other in itertools.combinations(groups, 2):
            alike = any(laid_over(anatomy, one, order) for order in itertools.permutations(other))
            assert (anatomy.group_key(one) == anatomy.group_key(other)) == alike


def laid_over(anatomy: Anatomy, one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether the leaves of two groups compute the same place by place, from buffers that correspond."""
    across: dict[int, int] = {}
    for a, b in zip(one, other, strict=True):
        left, right = anatomy.leaves[a], anatomy.leaves[b]
        if (left.kind, left.content, len(left.reads)) != (right.kind, right.content, len(right.reads)):
            return False
        for mine, its in zip((*left.reads, *left.writes), (*right.reads, *right.writes), strict=True):
            if across.setdefault(mine, its) != its:
                return False
    alike = all(memory(anatomy, a, one) == memory(anatomy, b, other) for a, b in across.items())
    return alike and len({*across.values()}) == len(across)


def memory(anatomy: Anatomy, buffer: int, group: tuple[int, ...]) -> tuple[str, bool, bool]:
    touching = {*anatomy.readers[buffer], *anatomy.writers[buffer]}
    filled = not {*anatomy.writers[buffer]}.isdisjoint(group)
    return anatomy.buffers[buffer].meta, filled, filled and (anatomy.buffers[buffer].escapes or not touching <= {*group})


def test_a_changed_neighbour_changes_no_key():
    assert norm().group_key([0, 1]) == norm(neighbour=True).group_key([0, 1])


def test_a_value_that_somebody_outside_needs_is_another_group():
    assert norm().group_key([0, 1]) != norm(outside=True).group_key([0, 1])


def test_another_computation_or_another_size_is_another_group():
    assert norm().group_key([0, 1]) != norm(content="scale").group_key([0, 1])
    keys = set()
    for size in (4096, 8192):
        drawing = Drawing()
        drawing.given("x", bytes=size)
        drawing.leaf("gelu", ["x"], bytes=size)
        keys.add(drawing.anatomy().group_key([0]))
    assert len(keys) == 2


def test_which_inputs_are_one_and_the_same_counts():
    keys = set()
    for second in ("x", "y"):
        drawing = Drawing()
        drawing.given("x", "y")
        drawing.leaf("a", ["x"])
        drawing.leaf("b", ["a", second])
        keys.add(drawing.anatomy().group_key([0, 1]))
    assert len(keys) == 2


def test_an_input_that_is_overwritten_is_not_a_value_that_is_kept():
    keys = []
    for writes in ([], ["x"]):
        drawing = Drawing()
        drawing.given("x")
        drawing.leaf("step", ["x"], writes, escapes=True)
        keys.append(drawing.anatomy().group_key([0]))
    assert keys[0] != keys[1]


def test_an_input_read_before_and_after_it_is_overwritten():
    """Both readers are alike but for when they read."""
    keys = set()
    for first in (True, False):
        drawing = Drawing()
        drawing.given("x", "y")
        for name in ("read", "write") if first else ("write", "read"):
            drawing.leaf(name, ["x"] if name == "read" else ["y"], ["x"] if name == "write" else [])
        keys.add(drawing.anatomy().group_key([0, 1]))
    assert len(keys) == 2


def test_many_leaves_that_are_alike_are_put_in_order():
    """Rows of steps, each from its own inputs and one that all share, can be matched row by row only."""
    drawing = Drawing()
    drawing.given("rate", *(f"x{row}" for row in range(40)))
    for row in range(40):
        drawing.leaf(f"a{row}", [f"x{row}", "rate"])
        drawing.leaf(f"b{row}", [f"a{row}", f"x{row}"])
        drawing.leaf(f"c{row}", [f"b{row}", f"a{row}"])
    anatomy = drawing.anatomy()
    other, new = shuffled(anatomy, 1)
    assert anatomy.group_key(range(120)) == other.group_key(new)


def test_keys_are_the_same_in_every_process(tmp_path):
    script = "from test_keys_of_groups import norm; print(norm().group_key([0, 1]))"
    found = set()
    for seed in ("0", "1"):
        command = [sys.executable, "-c", script]
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(path for path in sys.path if path)}
        found.add(subprocess.run(command, env=env, capture_output=True, text=True, check=True, cwd=tmp_path).stdout.strip())
    assert found == {norm().group_key([0, 1])}


class TestBytes:
    def test_a_value_that_stays_within_the_kernel_is_not_moved(self):
        anatomy = norm()
        assert anatomy.bytes_of([0]) == 4096 + 64
        assert anatomy.bytes_of([1]) == 4096 + 64 + 4096
        assert anatomy.bytes_of([0, 1]) == 4096 + 4096

    def test_a_value_that_somebody_outside_needs_is_written(self):
        assert norm(outside=True).bytes_of([0, 1]) == 4096 + 64 + 4096

    def test_an_input_that_is_overwritten_is_read_and_written(self):
        drawing = Drawing()
        drawing.given("x")
        drawing.leaf("step", ["x"], ["x"])
        assert drawing.anatomy().bytes_of([0]) == 2 * 4096

    def test_what_the_graph_yields_is_written(self):
        drawing = Drawing()
        drawing.given("x")
        drawing.leaf("a", ["x"], escapes=True)
        drawing.leaf("b", ["a"], escapes=True)
        assert drawing.anatomy().bytes_of([0, 1]) == 3 * 4096

    def test_of_a_table_in_which_something_is_looked_up_no_more_is_read_than_the_loop_can(self):
        leaf = Leaf("3:2x8|:ComputedBuffer.Pointwise:0", "ComputedBuffer.Pointwise", True, "", (0, 1), (2,), (), ())
        buffers = [
            Buffer("int64[2]{1}", 16, "input"),
            Buffer("float32[9999,8]{8,1}", 319968, "input"),
            Buffer("float32[2,8]{8,1}", 64, "leaf", True),
        ]
        assert Anatomy((leaf,), tuple(buffers), (), ()).bytes_of([0]) == 16 + 4 * 64 + 64

    def test_of_what_is_rewritten_in_part_no_more_is_written_than_the_loop_does(self):
        leaf = Leaf("3:8|:ComputedBuffer.Scatter:0", "ComputedBuffer.Scatter", True, "", (0,), (1,), (), ())
        buffers = (Buffer("float32[8]{1}", 32, "input"), Buffer("float32[999,8]{8,1}", 31968, "input", True))
        assert Anatomy((leaf,), buffers, (), ()).bytes_of([0]) == 32 + 32


class TestWork:
    def leaf(self, identity: str, ops: int) -> Anatomy:
        leaf = Leaf(identity, "ComputedBuffer.Reduction", True, "", (0,), (1,), (), tuple(range(ops)))
        buffers = (Buffer("float32[64,32]{32,1}", 8192, "input"), Buffer("float32[64]{1}", 256, "leaf"))
        return Anatomy((leaf,), buffers, (), ((identity,),))

    def test_it_is_points_of_the_loops_times_operations(self):
        assert self.leaf("3:64|32:ComputedBuffer.Reduction:0", 3).work_of([0]) == 64 * 32 * 3

    def test_where_the_sizes_are_symbols_the_largest_buffer_says_how_many_points_there_are(self):
        assert self.leaf("3:s0|32:ComputedBuffer.Reduction:0", 1).work_of([0]) == 64 * 32

    def test_it_is_the_sum_of_the_leaves(self):
        anatomy = norm()
        assert anatomy.work_of([0, 1]) == anatomy.work_of([0]) + anatomy.work_of([1]) == 1024 + 1024

    @pytest.mark.parametrize(
        ("meta", "size", "elements"),
        [
            ("float32[8]{1}", 32, 8),
            ("bfloat16[8]{1}", 16, 8),
            ("bool[8]{1}", 8, 8),
            ("float8_e4m3fn[8]{1}", 8, 8),
            ("int64[]{}", 8, 1),
        ],
    )
    def test_elements_are_counted_by_the_bits_of_the_dtype(self, meta, size, elements):
        assert Buffer(meta, size, "input").elements == elements


def test_leaves_that_wait_for_each_other_in_a_circle_are_refused():
    drawing = Drawing()
    drawing.given("x")
    drawing.leaf("a", ["x"], ["a", "b"])
    (leaf,) = drawing.leaves
    drawing.leaves = [leaf, leaf]
    anatomy = Anatomy(
        tuple(Leaf(f"{i}:8|:X:0", "X", True, "", leaf.reads, (i + 1,), (1 - i,), ()) for i in range(2)),
        tuple(drawing.buffers.values()),
        (),
        (),
    )
    with pytest.raises(ValueError, match="circle"):
        _ = anatomy.depths


def test_json_gives_the_same_anatomy_back():
    anatomy = random_anatomy(2)
    assert Anatomy.from_json(anatomy.to_json()) == anatomy
