"""What `tuner show` says of kernels: default and winner side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest

from tuner.cli.kernels import Block, Kernel, Kernels, Side, blocks
from tuner.cli.output import print_table

TITLE_WIDTH = 48
Row = tuple[str, ...]
NOTHING = ("", "", "")


def summary_of(kernels: Kernels) -> str:
    """Both sides in one line; why nothing is known, where nothing is."""
    if kernels.default is None:
        return f"not known: {kernels.missing}"
    if kernels.winner is None:
        return _summary(kernels.default)
    saved = kernels.default.bytes - kernels.winner.bytes
    text = f"{_summary(kernels.winner)}; default: {_summary(kernels.default)}"
    return f"{text}; {in_bytes(abs(saved))} {'more moved' if saved < 0 else 'saved'}"


def _summary(side: Side) -> str:
    library = sum(kernel.library for kernel in side.kernels)
    text = f"{len(side.kernels) - library} kernels" + (f" and {library} library calls" if library else "")
    total = f", {milliseconds(side.times.total_ms)} ms" if side.times else ""
    return f"{text}{total}, {in_bytes(side.bytes)} moved"


def print_kernels(kernels: Kernels) -> None:
    """A table of all kernels; nothing where nothing is known."""
    if kernels.default is None:
        return
    if kernels.winner is None:
        alone = kernels.default
        _print([("kernel", "ms", "moved"), *_rows(alone, range(len(alone.kernels))), *_totals(alone)])
        return
    rows: list[Row] = [("default", "ms", "moved", "winner", "ms", "moved", "ms saved", "saved")]
    for block in blocks(kernels.default, kernels.winner):
        rows += _side_by_side(block, kernels.default, kernels.winner)
    for left, right in zip(_totals(kernels.default), _totals(kernels.winner), strict=True):
        rows.append((*left, *right, "", ""))
    saved_ms = milliseconds(kernels.default.kernels_ms - kernels.winner.kernels_ms) if _timed(kernels) else ""
    rows[-3] = (*rows[-3][:6], saved_ms, in_bytes(kernels.default.bytes - kernels.winner.bytes))
    _print(rows)


def _timed(kernels: Kernels) -> bool:
    return all(side is not None and side.times is not None for side in (kernels.default, kernels.winner))


def _side_by_side(block: Block, default: Side, winner: Side) -> list[Row]:
    """The rows of kernels that belong together; the first says what the winner saves."""
    left, right = _rows(default, block.default), _rows(winner, block.winner)
    rows: list[Row] = [(*one, *other, "", "") for one, other in zip_longest(left, right, fillvalue=NOTHING)]
    olds, news = ([side.kernels[i] for i in every] for side, every in ((default, block.default), (winner, block.winner)))
    saved = sum(kernel.bytes for kernel in olds) - sum(kernel.bytes for kernel in news)
    changed = Counter(kernel.key for kernel in olds) != Counter(kernel.key for kernel in news)
    saved_ms = ""
    if changed and all(kernel.ms is not None for kernel in (*olds, *news)):
        saved_ms = milliseconds(sum(kernel.ms or 0.0 for kernel in olds) - sum(kernel.ms or 0.0 for kernel in news))
    rows[0] = (*rows[0][:6], saved_ms, in_bytes(saved) if changed else "")
    return rows


def _rows(side: Side, numbers: Sequence[int]) -> list[tuple[str, str, str]]:
    """One row for each kernel, equal ones in one, with their sums."""
    alike: dict[str, list[Kernel]] = {}
    for number in numbers:
        alike.setdefault(side.kernels[number].key, []).append(side.kernels[number])
    rows = []
    for same in alike.values():
        times = [kernel.ms for kernel in same if kernel.ms is not None]
        title = f"{len(same)} x {same[0].title}" if len(same) > 1 else same[0].title
        moved = in_bytes(sum(kernel.bytes for kernel in same))
        rows.append((shortened(title), milliseconds(sum(times)) if times else "-", moved))
    return rows


def _totals(side: Side) -> list[tuple[str, str, str]]:
    """All kernels, library calls, what lies between them."""
    times = side.times
    if times is None:
        return [("all", "-", in_bytes(side.bytes)), NOTHING, NOTHING]
    rest = max(times.total_ms - times.library_ms - side.kernels_ms, 0.0)
    return [
        ("all kernels", milliseconds(side.kernels_ms), in_bytes(side.bytes)),
        ("library calls", milliseconds(times.library_ms), ""),
        ("between kernels", milliseconds(rest), ""),
    ]


def _print(rows: Sequence[Row]) -> None:
    """A table whose numbers end below each other."""
    columns = []
    for place, column in enumerate(zip(*rows, strict=True)):
        width = max(map(len, column))
        columns.append(column if place % 3 == 0 and place < 6 else [cell.rjust(width) for cell in column])
    header, *lines = zip(*columns, strict=True)
    print_table(header, [line for line in lines if any(cell.strip() for cell in line)])


def shortened(text: str, width: int = TITLE_WIDTH) -> str:
    return text if len(text) <= width else text[: width - 1].rstrip(", ") + "…"


def milliseconds(ms: float) -> str:
    """Three digits, without an exponent."""
    if abs(ms) >= 100:
        return f"{ms:.0f}"
    digits = 2 if abs(ms) >= 1 else 4
    return f"{ms:.{digits}f}"


def in_bytes(count: int) -> str:
    """Bytes with a unit: "1.5 MB"; thousands, not 1,024."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 999.5 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" or abs(size) >= 99.95 else f"{size:.1f} {unit}"
