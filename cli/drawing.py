"""The kernels of a graph as a picture, an SVG file: one colour for each, default beside winner."""

from __future__ import annotations

import colorsys
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from html import escape
from itertools import count
from pathlib import Path

from tuner.cli.graph_layout import BOX_HEIGHT, FONT_SIZE, FRAME_PADDING, TITLE_HEIGHT, Box, Frame, Picture, picture, text_width
from tuner.cli.kernels import Kernels, Side
from tuner.cli.layered import Point
from tuner.cli.show_kernels import in_bytes, milliseconds, shortened
from tuner.errors import TunerError

OPERATIONS_LIMIT = 2000
MARGIN, PANEL_GAP, LINE = 20.0, 48.0, 18.0
HEADINGS = 3
LEGEND_WIDTH = 66
SWATCH = 14.0
# the golden angle: neighbours' hues lie far apart, however many there are
HUE_STEP = 0.381966
STYLE = f"""
text {{ font: {FONT_SIZE}px "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1c1c1e; }}
.page {{ fill: #fbfbfa; }} .ink {{ fill: #1c1c1e; }} .faint {{ fill: #66666c; }} .strong {{ font-weight: bold; }}
.line {{ fill: none; stroke: #77777d; stroke-width: 1.2; }} .box {{ stroke-width: 1; }} .frame {{ stroke-width: 1.2; }}
.library {{ stroke-width: 2.2; }} .again {{ stroke-dasharray: 4 3; }} .halo {{ paint-order: stroke; stroke-width: 4px; }}
@media (prefers-color-scheme: dark) {{
  .page {{ fill: #1c1c1f; }} .ink {{ fill: #ececee; }} .faint {{ fill: #a9a9b0; }} .line {{ stroke: #9a9aa2; }}
}}
"""


def drawing(kernels: Kernels, title: str, speedup: str = "") -> str:
    """The SVG of both sides, or of the default alone where it won.

    speedup: of the winner, for its heading. Raises TunerError where there is nothing to draw, or too much.
    """
    if kernels.default is None:
        raise TunerError(f"nothing to draw: the kernels are not known: {kernels.missing}")
    sides = [("default", kernels.default)] + ([("winner", kernels.winner)] if kernels.winner else [])
    most = max(sum(len(kernel.ops) for kernel in side.kernels) for _, side in sides)
    if most > OPERATIONS_LIMIT:
        raise TunerError(f"a graph of {most} operations is too large to be drawn: {OPERATIONS_LIMIT} at most")
    hues = _hues([side for _, side in sides])
    panels = []
    for (name, side), side_hues in zip(sides, hues, strict=True):
        note = speedup if name == "winner" else "the winner" if kernels.winner is None else ""
        panels.append(_Panel(name, note, side, side_hues))
    tallest = max(panel.drawn.height for panel in panels)
    parts: list[str] = []
    left = MARGIN
    top = MARGIN + (HEADINGS + 2.5) * LINE
    for panel in panels:
        parts += panel.parts(left, top, tallest)
        left += panel.width + PANEL_GAP
    width = max(left - PANEL_GAP, MARGIN + text_width(title)) + MARGIN
    height = top + tallest + max(panel.legend_height for panel in panels) + MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            '<rect class="page" width="100%" height="100%"/>',
            _text(MARGIN, MARGIN + FONT_SIZE, title, "ink strong"),
            *parts,
            "</svg>\n",
        ]
    )


def write_atomically(path: Path, text: str) -> None:
    """All of `text` in `path`, or what was there before. Raises TunerError where it cannot be written."""
    name = ""
    try:
        handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except OSError as error:
        with suppress(OSError):
            if name:
                os.unlink(name)
        raise TunerError(f"cannot write {path}: {error.strerror}") from error


def _hues(sides: Sequence[Side]) -> list[list[float]]:
    """A hue for each kernel; what the winner has from the default keeps its own: the same leaves, else equal ones in order."""
    default = sides[0]
    hues = [[number * HUE_STEP % 1.0 for number in range(len(default.kernels))]]
    for side in sides[1:]:
        left = {_leaves(default, number): number for number in range(len(default.kernels))}
        same = {number: left.pop(_leaves(side, number), None) for number in range(len(side.kernels))}
        equal: defaultdict[str, list[int]] = defaultdict(list)
        for number in left.values():
            equal[default.kernels[number].key].append(number)
        fresh = count(len(default.kernels))
        mine = []
        for number, kernel in enumerate(side.kernels):
            kept = same[number]
            if kept is None:
                kept = equal[kernel.key].pop(0) if equal[kernel.key] else next(fresh)
            mine.append(kept * HUE_STEP % 1.0)
        hues.append(mine)
    return hues


def _leaves(side: Side, number: int) -> tuple[str, ...]:
    kernel = side.kernels[number]
    return kernel.key, *(side.anatomy.leaves[leaf].id for leaf in kernel.leaves)


class _Panel:
    """One side: headings, the graph, the legend."""

    def __init__(self, name: str, note: str, side: Side, hues: Sequence[float]):
        self.side, self.hues = side, hues
        self.titles = [_frame_title(number, side) for number in range(len(side.kernels))]
        self.drawn: Picture = picture(side, self.titles)
        library = sum(kernel.library for kernel in side.kernels)
        moved = f"{in_bytes(side.bytes)} moved"
        self.headings = [
            (name + (f": {note}" if note else ""), "ink strong"),
            (f"{len(side.kernels) - library} kernels, {library} library calls", "faint"),
            (f"{milliseconds(side.times.total_ms)} ms, {moved}" if side.times else moved, "faint"),
        ]
        self.legend = [_legend_text(number, side) for number in range(len(side.kernels))]
        if any(box.again for frame in self.drawn.frames for box in frame.boxes):
            self.legend.append("dashed: computed again, not read from memory")
        self.width = max(
            self.drawn.width,
            *(text_width(text) for text, _ in self.headings),
            *(2 * SWATCH + text_width(text) for text in self.legend),
        )

    @property
    def legend_height(self) -> float:
        return (len(self.legend) + 2) * LINE

    def parts(self, left: float, top: float, tallest: float) -> Iterator[str]:
        for number, (text, style) in enumerate(self.headings):
            yield _text(left, MARGIN + (number + 1.5) * LINE + FONT_SIZE, text, style)
        indent = left + (self.width - self.drawn.width) / 2
        yield f'<g transform="translate({indent:.1f} {top:.1f})">'
        yield from self._graph()
        yield "</g>"
        below = top + tallest + 2 * LINE
        for number, text in enumerate(self.legend):
            y = below + number * LINE
            if number < len(self.hues):
                fill, _, edge = _colours(self.hues[number])
                place = f'x="{left:.1f}" y="{y - SWATCH + 3:.1f}" width="{SWATCH}" height="{SWATCH}"'
                yield f'<rect {place} fill="{fill}" stroke="{edge}"/>'
            yield _text(left + 2 * SWATCH, y, text, "ink")

    def _graph(self) -> Iterator[str]:
        for frame in self.drawn.frames:
            _, fill, edge = _colours(self.hues[frame.kernel])
            style = "frame library" if self.side.kernels[frame.kernel].library else "frame"
            yield f'<rect class="{style}" {_place(frame)} rx="6" fill="{fill}" stroke="{edge}"/>'
        for line in dict.fromkeys(_path(points) for points in self.drawn.lines):
            yield f'<path class="line" d="{line}"/>'
        for frame in self.drawn.frames:
            fill, pale, edge = _colours(self.hues[frame.kernel])
            place = f'x="{frame.x + FRAME_PADDING:.1f}" y="{frame.y + TITLE_HEIGHT - 5:.1f}"'
            yield f'<text class="halo" {place} stroke="{pale}">{escape(frame.title)}</text>'
            for box in frame.boxes:
                style = "box again" if box.again else "box"
                name = escape(self.side.anatomy.ops[box.op].target)
                yield f'<rect class="{style}" {_place(box)} rx="3" fill="{fill}" stroke="{edge}"><title>{name}</title></rect>'
                place = f'x="{box.x + box.width / 2:.1f}" y="{box.y + BOX_HEIGHT / 2 + FONT_SIZE * 0.36:.1f}"'
                yield f'<text {place} text-anchor="middle">{escape(box.text)}</text>'


def _frame_title(number: int, side: Side) -> str:
    ms = side.kernels[number].ms
    library = " library" if side.kernels[number].library else ""
    return f"{number + 1}{library}" + (f": {milliseconds(ms)} ms" if ms is not None else "")


def _legend_text(number: int, side: Side) -> str:
    kernel = side.kernels[number]
    ms = f"{milliseconds(kernel.ms)} ms" if kernel.ms is not None else "-"
    return shortened(f"{number + 1:>3} {ms:>10} {in_bytes(kernel.bytes):>8}  {kernel.title}", LEGEND_WIDTH)


def _colours(hue: float) -> tuple[str, str, str]:
    """Of a kernel: its boxes, its frame, its borders; dark text can be read on the first two."""

    def colour(light: float, saturation: float) -> str:
        red, green, blue = colorsys.hls_to_rgb(hue, light, saturation)
        return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"

    return colour(0.74, 0.62), colour(0.91, 0.55), colour(0.38, 0.45)


def _path(points: Sequence[Point]) -> str:
    """Straight down where x stays, else an S between the two heights."""
    x, y = points[0]
    text = f"M{x:.1f} {y:.1f}"
    for there, below in points[1:]:
        if abs(there - x) < 0.05:
            text += f"V{below:.1f}" if below - y > 0.05 else ""
        else:
            middle = (y + below) / 2
            text += f"C{x:.1f} {middle:.1f} {there:.1f} {middle:.1f} {there:.1f} {below:.1f}"
        x, y = there, below
    return text


def _place(one: Frame | Box) -> str:
    return f'x="{one.x:.1f}" y="{one.y:.1f}" width="{one.width:.1f}" height="{one.height:.1f}"'


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" xml:space="preserve">{escape(text)}</text>'
