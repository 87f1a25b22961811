"""`tuner show KEY --svg FILE`: a picture in which everything can be read."""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from made_kernels import anatomy, at_random, side, softmax, softmax_ops
from stored import program, query, settled, winner

from tuner.cache.sqlite import SqliteStore
from tuner.cli.drawing import OPERATIONS_LIMIT, drawing
from tuner.cli.graph_layout import BOX_PADDING, Picture, picture, text_width
from tuner.cli.kernels import Kernels, Side
from tuner.cli.layered import Edge, Node, layered
from tuner.cli.main import main
from tuner.errors import TunerError
from tuner.measurement import Winner

A, B = query("a").workload_key, query("b").workload_key
SVG = "{http://www.w3.org/2000/svg}"
GRAPHS = {"softmax": softmax(), "six layers": softmax(6), **{f"random {seed}": at_random(60, seed) for seed in range(4)}}


def sides(evidence: dict) -> list[Side]:
    found = Kernels.of({"kernels": evidence})
    assert not found.missing
    return [side for side in (found.default, found.winner) if side is not None]


def pictures(evidence: dict) -> Iterator[Picture]:
    for one in sides(evidence):
        yield picture(one, [f"{number + 1}: 0.1234 ms" for number in range(len(one.kernels))])


def overlap(one, other) -> bool:
    """Whether two rectangles share more than a border."""
    return (
        one.x < other.x + other.width - 0.01
        and other.x < one.x + one.width - 0.01
        and one.y < other.y + other.height - 0.01
        and other.y < one.y + one.height - 0.01
    )


def on_the_way(points) -> Iterator[tuple[float, float]]:
    """Points of a line as it is drawn: straight down, or an S between two heights."""
    for (x, y), (there, below) in itertools.pairwise(points):
        for share in (step / 20 for step in range(1, 20)):
            bend = 3 * share**2 * (1 - share) + share**3
            height = 1.5 * share * (1 - share) ** 2 + 1.5 * share**2 * (1 - share) + share**3
            yield x + bend * (there - x), y + height * (below - y)


@pytest.mark.parametrize("name", GRAPHS)
def test_boxes_and_frames_lie_apart_and_within_the_picture(name):
    for drawn in pictures(GRAPHS[name]):
        for one, other in itertools.combinations(drawn.frames, 2):
            assert not overlap(one, other)
        for frame in drawn.frames:
            assert frame.x >= 0
            assert frame.x + frame.width <= drawn.width + 0.01
            assert frame.y + frame.height <= drawn.height + 0.01
            for one, other in itertools.combinations(frame.boxes, 2):
                assert not overlap(one, other)
            for box in frame.boxes:
                assert frame.x <= box.x
                assert box.x + box.width <= frame.x + frame.width
                assert frame.y <= box.y
                assert box.y + box.height <= frame.y + frame.height


@pytest.mark.parametrize("name", GRAPHS)
def test_every_text_fits_where_it_stands(name):
    for drawn in pictures(GRAPHS[name]):
        for frame in drawn.frames:
            assert text_width(frame.title) <= frame.width - 2 * BOX_PADDING + 0.01
            for box in frame.boxes:
                assert text_width(box.text) <= box.width - 2 * BOX_PADDING + 0.01
                assert box.y - frame.y >= 18, "the title is above"


@pytest.mark.parametrize("name", GRAPHS)
def test_lines_run_downwards_from_box_to_box_and_behind_none(name):
    for drawn in pictures(GRAPHS[name]):
        boxes = [box for frame in drawn.frames for box in frame.boxes]
        assert len(drawn.lines) >= len(boxes) - len(drawn.frames) - 1
        for line in drawn.lines:
            assert all(y <= below for (_, y), (_, below) in itertools.pairwise(line))
            (start, top), (end, bottom) = line[0], line[-1]
            assert any(abs(box.y + box.height - top) < 0.01 and box.x <= start <= box.x + box.width for box in boxes)
            assert any(abs(box.y - bottom) < 0.01 and box.x <= end <= box.x + box.width for box in boxes)
            for x, y in on_the_way(line):
                assert not any(box.x < x < box.x + box.width and box.y < y < box.y + box.height for box in boxes)


def test_all_operations_of_each_kernel_are_drawn_and_what_is_computed_again_is_marked():
    default, won = pictures(softmax())
    assert [[box.text for box in frame.boxes] for frame in default.frames] == [
        ["mul", "add", "where", "amax", "sub", "exp"],
        ["sum", "div"],
    ]
    assert not any(box.again for drawn in (default, won) for frame in drawn.frames for box in frame.boxes)
    ops = [("aten.exp.default", ()), ("aten.sum.default", (0,)), ("aten.neg.default", (0,))]
    (drawn,) = pictures({"default": side(anatomy(ops, [[0, 1], [0, 2]], [[0], [1]]))})
    assert [[(box.text, box.again) for box in frame.boxes] for frame in drawn.frames] == [
        [("exp", False), ("sum", False)],
        [("exp", True), ("neg", False)],
    ]
    assert len(drawn.lines) == 2, "neither kernel reads what the other left"


def test_an_operation_that_a_later_kernel_ends_is_no_repetition():
    """A variance: one kernel sums squares, the next divides them."""
    ops = [("aten.var.default", ()), ("aten.rsqrt.default", (0,))]
    told = anatomy(ops, [[0], [0, 1]], [[0], [1]]).to_json()
    told["leaves"][1][4:7] = [[0], [1], [0]]
    (drawn,) = pictures({"default": {"anatomy": told}})
    assert [[(box.text, box.again) for box in frame.boxes] for frame in drawn.frames] == [
        [("var", False)],
        [("var", False), ("rsqrt", False)],
    ]
    assert len(drawn.lines) == 2


def test_views_are_passed_through():
    ops = [("aten.exp.default", ()), ("aten.view.default", (0,)), ("aten.permute.default", (1,)), ("aten.mm.default", (2,))]
    told = anatomy(ops, [[0], [3]], [[0], [1]], library=[1]).to_json()
    told["leaves"][1][4:7] = [[0], [1], [0]]
    (drawn,) = pictures({"default": {"anatomy": told}})
    assert [box.text for frame in drawn.frames for box in frame.boxes] == ["exp", "mm"]
    assert len(drawn.lines) == 1


def texts(svg: str) -> list[str]:
    return ["".join(one.itertext()) for one in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def rectangles(svg: str, kind: str) -> list[ElementTree.Element]:
    return [one for one in ElementTree.fromstring(svg).iter(f"{SVG}rect") if kind in one.get("class", "").split()]


@pytest.mark.parametrize("name", GRAPHS)
def test_the_file_is_xml_as_large_as_what_is_in_it(name):
    svg = drawing(Kernels.of({"kernels": GRAPHS[name]}), "m.py:f", "1.500x")
    root = ElementTree.fromstring(svg)
    width, height = (float(root.get(name)) for name in ("width", "height"))
    left = 0.0
    for panel in root.iter(f"{SVG}g"):
        dx, dy = map(float, re.findall(r"[\d.]+", panel.get("transform")))
        for one in panel.iter(f"{SVG}rect"):
            x, y, w, h = (float(one.get(name)) for name in ("x", "y", "width", "height"))
            assert left <= dx + x
            assert dx + x + w <= width
            assert dy + y + h <= height
        left = dx
    for one in root.findall(f"{SVG}text"):
        x, y = float(one.get("x")), float(one.get("y"))
        assert x + text_width("".join(one.itertext())) <= width
        assert y <= height


def test_default_stands_beside_winner_with_its_number_and_time_on_each_kernel():
    svg = drawing(Kernels.of({"kernels": softmax()}), "m.py:f", "1.500x (1.4 to 1.6)")
    told = texts(svg)
    assert told[0] == "m.py:f"
    assert {"default", "winner: 1.500x (1.4 to 1.6)", "2 kernels, 0 library calls", "0.3300 ms, 4.0 kB moved"} <= set(told)
    assert {"1: 0.3000 ms", "2: 0.0200 ms", "1: 0.0900 ms", "2: 0.0800 ms"} <= set(told)
    legend = "  2  0.0800 ms   2.0 kB  amax, sub, exp, sum, div"
    assert legend in told


def test_each_kernel_has_a_colour_and_one_that_the_winner_keeps_has_the_same():
    ops = softmax_ops(2)
    parts = [[0, 1, 2], [3, 4, 5, 6, 7], [8], [9, 10, 11], [12, 13, 14, 15, 16]]
    evidence = {
        "default": side(anatomy(ops, parts, [[number] for number in range(5)], library=[2])),
        "winner": side(anatomy(ops, parts, [[0, 1], [2], [3], [4]], library=[2])),
    }
    fills = [one.get("fill") for one in rectangles(drawing(Kernels.of({"kernels": evidence}), "t"), "frame")]
    default, won = fills[:5], fills[5:]
    assert len(set(default)) == 5
    assert won[1:] == default[2:]
    assert won[0] not in default


def test_library_calls_are_framed_otherwise_and_named():
    svg = drawing(Kernels.of({"kernels": softmax(2)}), "t")
    assert len(rectangles(svg, "library")) == 2
    assert "3 library" in texts(svg)


def test_names_are_escaped_in_the_picture():
    ops = [('mine<>.a&"b<script>.default', ())]
    svg = drawing(Kernels.of({"kernels": {"default": side(anatomy(ops, [[0]], [[0]]))}}), "<m>.py:f&g")
    assert {'a&"b<script>', "<m>.py:f&g"} <= set(texts(svg))
    assert "<script" not in svg


def test_a_graph_too_large_to_be_seen_is_refused():
    count = OPERATIONS_LIMIT + 1
    ops = [("aten.exp.default", (op - 1,) if op else ()) for op in range(count)]
    large = {"default": side(anatomy(ops, [[op] for op in range(count)], [[op] for op in range(count)]))}
    with pytest.raises(TunerError, match=f"a graph of {count} operations is too large to be drawn: {OPERATIONS_LIMIT} at most"):
        drawing(Kernels.of({"kernels": large}), "t")


# the layout by itself


def test_a_line_that_leads_back_is_refused():
    with pytest.raises(ValueError, match="back"):
        layered([Node(10, 10)] * 2, [Edge(1, 0)], 5, 5)


def test_nothing_is_laid_out_as_nothing():
    assert layered([], [], 5, 5).height == 0


def test_chains_that_were_given_crosswise_do_not_cross():
    # 0 1 over 3 2 over 4 5
    edges = [Edge(0, 3), Edge(1, 2), Edge(3, 4), Edge(2, 5)]
    x = layered([Node(10, 10)] * 6, edges, 5, 5).x
    assert (x[0] < x[1]) == (x[3] < x[2]) == (x[4] < x[5])


def test_what_stands_alone_above_one_another_stands_straight():
    laid = layered([Node(30, 10), Node(50, 20), Node(10, 10)], [Edge(0, 1), Edge(1, 2)], 5, 7)
    assert laid.x == pytest.approx((25, 25, 25))
    assert laid.y == pytest.approx((0, 17, 44))
    assert (laid.width, laid.height) == pytest.approx((50, 54))


def test_a_line_past_a_box_goes_around_it():
    laid = layered([Node(20, 10), Node(20, 10), Node(20, 10)], [Edge(0, 1), Edge(1, 2), Edge(0, 2)], 5, 7)
    around = [x for x, y in laid.routes[2] if laid.y[1] <= y <= laid.y[1] + 10]
    assert around
    assert all(abs(x - laid.x[1]) > 10 for x in around)


# the command


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    with SqliteStore(path) as store:
        for key in (A, B):
            store.add_graph(key, {"phase": "forward"})
        store.add_program(program(), [query("a"), query("b")], "m.py:f")
        store.record_winner(settled(query("b")))
    return path


def show(path: Path, *arguments: str, won: Winner | None = None) -> Result:
    if won is not None:
        with SqliteStore(path) as store:
            store.record_winner(won)
    return CliRunner().invoke(main, ["show", "--store", str(path), *arguments])


def test_the_picture_is_written_and_told_in_one_line(path, tmp_path):
    file = tmp_path / "a.svg"
    file.write_text("of before")
    result = show(path, A[:6], "--svg", str(file), won=winner(evidence={"kernels": softmax()}))
    assert (result.exit_code, result.output) == (
        0,
        f"drew the kernels of m.py:f  forward  {A[:12]}  cpu/x86_64-avx2/2 into {file}\n",
    )
    assert "winner: 2.000x (1.900 to 2.100)" in texts(file.read_text())
    assert sorted(one.name for one in tmp_path.glob("*.svg*")) == ["a.svg"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~mask


def test_of_several_settings_the_latest_whose_kernels_are_known_is_drawn(path, tmp_path):
    file = tmp_path / "a.svg"
    two, three = (query("a", ambient={"threads": threads}) for threads in (2, 3))
    won = winner(evidence={"kernels": softmax()})
    show(path, won=won)
    show(path, won=winner(two, speedup=1.75, evidence={"kernels": softmax()}))
    assert show(path, A[:6], "--svg", str(file), won=winner(three)).exit_code == 0
    assert any(text.startswith("winner: 1.750x") for text in texts(file.read_text()))


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        ((), 2, "--svg draws one graph: name it"),
        ((A[:6], "--quarantined"), 2, "--svg draws one graph: name it"),
        ((program().workload_key[:6],), 2, f"--svg draws one graph, of these 2: {A[:12]}, {B[:12]}"),
        ((A[:6],), 1, f"nothing to draw: workload {A[:12]} has no winner yet"),
        ((B[:6],), 1, "nothing to draw: the kernels are not known: its sweep recorded none"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_one_line_and_leaves_no_file(path, tmp_path, arguments, code, why):
    file = tmp_path / "a.svg"
    result = show(path, *arguments, "--svg", str(file))
    assert (result.exit_code, result.stderr.count("\n")) == (code, 1)
    assert why in result.stderr
    assert not file.exists()


def test_a_file_that_cannot_be_written_is_said_in_one_line(path, tmp_path):
    result = show(path, A[:6], "--svg", str(tmp_path / "missing" / "a.svg"), won=winner(evidence={"kernels": softmax()}))
    assert (result.exit_code, result.stderr) == (
        1,
        f"Error: cannot write {tmp_path}/missing/a.svg: No such file or directory\n",
    )
    (tmp_path / "folder").mkdir()
    result = show(path, A[:6], "--svg", str(tmp_path / "folder"))
    assert result.exit_code == 1
    assert "Is a directory" in result.stderr
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".folder")] == []
