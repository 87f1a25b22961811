"""A program that a script compiled under `tuner capture`: a small file that the script's process leaves for the command.

One file for each program of each process, `<pid>-<number>.json`, written when the program was compiled and again as more is seen
of it, each time whole or not at all: what a script that is killed had compiled is kept. `<pid>.loaded` says that a process had
the recorder in it; it holds why nothing can be recorded there, or nothing. `<pid>.failed` holds what torch.compile failed with
there, where it did. No torch here.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tuner.errors import SpecError
from tuner.target import Query
from tuner.workload.graph import Graph, InputData

# Set by `tuner capture` for the command that it runs: the folder to leave files in.
FOLDER_VARIABLE = "TUNER_CAPTURE"
SCHEMA = 1
# What is read of one file, at most; a program of 2,000 operations is about 1 MB.
FILE_LIMIT_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True)
class CapturedGraph:
    """calls: how often it ran. sizes: of its symbols, in order, with how often it ran at them."""

    graph: Graph
    calls: int = 0
    sizes: Mapping[tuple[int, ...], int] = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, Any]:
        sizes = [[list(size), count] for size, count in self.sizes.items()]
        return {"key": self.graph.key, "form": self.graph.to_json(), "calls": self.calls, "sizes": sizes}

    @staticmethod
    def from_json(data: Any) -> CapturedGraph:
        graph = Graph.from_json(data["form"])
        if graph.key != data["key"]:
            raise ValueError("a graph has another key than is claimed")
        sizes = {tuple(map(int, size)): int(count) for size, count in data["sizes"]}
        return CapturedGraph(graph, int(data["calls"]), sizes)

    def merged(self, other: CapturedGraph) -> CapturedGraph:
        """What was seen of one graph by two processes, or in two programs."""
        sizes = dict(self.sizes)
        for size, count in other.sizes.items():
            sizes[size] = sizes.get(size, 0) + count
        graph = self.graph
        if not self.calls:
            graph = other.graph
        elif other.calls and len(graph.data) == len(other.graph.data):
            data = tuple(merged_data(one, another) for one, another in zip(graph.data, other.graph.data, strict=True))
            graph = with_data(graph, data)
        return CapturedGraph(graph, self.calls + other.calls, sizes)

    def added_to(self, stored: Graph) -> Graph:
        """The same graph as it is stored already, with what was seen of it then and now.

        What was seen at other sizes is not mixed with that: an index that fits there may not fit here.
        """
        seen_then = any((seen.low, seen.high) != (0, 1) or seen.runs is not None for seen in stored.data)
        if seen_then and self.graph.hints != stored.hints:
            return stored
        return CapturedGraph(stored, int(seen_then)).merged(self).graph


@dataclass(frozen=True)
class CapturedProgram:
    """query: of the program; None where it has no key. left_out: what is missing and why, in words by a short reason."""

    query: Query | None
    graphs: tuple[CapturedGraph, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "program": None if self.query is None else self.query.to_json(),
            "graphs": [graph.to_json() for graph in self.graphs],
            "left_out": dict(self.left_out),
        }

    @staticmethod
    def from_json(data: Any) -> CapturedProgram:
        """The program that `to_json` wrote, each graph under the key that it has. Raises ValueError, SpecError on others."""
        try:
            if data["schema"] != SCHEMA:
                raise ValueError(f"it has schema {data['schema']!r}, this version reads {SCHEMA}")
            query = None if data["program"] is None else Query.from_json(data["program"])
            if query is not None and query.kind != "program":
                raise ValueError("it is about no program")
            graphs = tuple(map(CapturedGraph.from_json, data["graphs"]))
            return CapturedProgram(query, graphs, {str(reason): str(words) for reason, words in data["left_out"].items()})
        except (TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"it is malformed: {type(error).__name__}") from error

    def graph_queries(self) -> tuple[Query, ...]:
        """The query of each graph; none for a program without a key."""
        if self.query is None:
            return ()
        where = (self.query.target, self.query.toolchain, self.query.ambient)
        return tuple(Query("graph", one.graph.key, *where) for one in self.graphs)

    def merged(self, other: CapturedProgram) -> CapturedProgram:
        """What two processes saw of one program, or one process twice."""
        graphs = {one.graph.key: one for one in self.graphs}
        for one in other.graphs:
            known = graphs.get(one.graph.key)
            graphs[one.graph.key] = one if known is None else known.merged(one)
        return replace(self, graphs=tuple(graphs.values()), left_out={**other.left_out, **self.left_out})


@dataclass(frozen=True)
class Captured:
    """All that a command left. left_out: programs and graphs that are missing, (reason, words) -> how many.

    unreadable: files that are no captured programs. processes: that had the recorder in them. unsupported: why one of them could
    record nothing, or "". failed: what torch.compile failed with in one of them, or "".
    """

    programs: tuple[CapturedProgram, ...]
    left_out: Mapping[tuple[str, str], int]
    unreadable: int = 0
    processes: int = 0
    unsupported: str = ""
    failed: str = ""


def merged_data(one: InputData, other: InputData) -> InputData:
    """What holds of both: the wider bounds, and the content and the place in memory only where they are the same."""
    return replace(
        one,
        low=min(one.low, other.low),
        high=max(one.high, other.high),
        runs=one.runs if one.runs == other.runs else None,
        shares=one.shares if one.shares == other.shares else None,
    )


def with_data(graph: Graph, data: tuple[InputData, ...]) -> Graph:
    """`graph` and its native form with what was seen in the inputs."""
    native = None if graph.native_form is None else replace(graph.native_form, data=data)
    return replace(graph, data=data, native_form=native)


def write_file(path: Path, program: CapturedProgram) -> None:
    """All of the program or nothing. Raises OSError."""
    part = path.with_suffix(f".part{os.getpid()}")
    part.write_text(json.dumps(program.to_json()))
    part.replace(path)


def say_loaded(folder: Path, trouble: str = "") -> None:
    """Says that this process has the recorder in it, and what keeps it from recording. Raises OSError."""
    (folder / f"{os.getpid()}.loaded").write_text(trouble)


def say_failed(folder: Path, words: str) -> None:
    """Says what torch.compile failed with in this process, which no back end hears of. Raises OSError."""
    (folder / f"{os.getpid()}.failed").write_text(words)


def read_folder(folder: Path) -> Captured:
    """What is in `folder`, equal programs as one, in the order in which they were written first."""
    programs: dict[str, CapturedProgram] = {}
    left_out: dict[tuple[str, str], int] = {}
    unreadable = 0
    for path in _in_order(folder.glob("*.json")):
        try:
            if path.is_symlink() or path.stat().st_size > FILE_LIMIT_BYTES:
                raise ValueError("it is no captured program")
            program = CapturedProgram.from_json(json.loads(path.read_text()))
        except (OSError, ValueError, SpecError, RecursionError):
            unreadable += 1
            continue
        for reason in program.left_out.items():
            left_out[reason] = left_out.get(reason, 0) + 1
        if not program.graphs:
            continue
        name = path.name if program.query is None else program.query.exact_key
        programs[name] = programs[name].merged(program) if name in programs else program
    loaded = sorted(folder.glob("*.loaded"))
    unsupported, failed = _first_said(loaded), _first_said(sorted(folder.glob("*.failed")))
    return Captured(tuple(programs.values()), left_out, unreadable, len(loaded), unsupported, failed)


def _first_said(paths: Iterable[Path]) -> str:
    """The first of these files that says anything; "" where none does."""
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            if said := path.read_text().strip():
                return said
    return ""


def _in_order(paths: Iterable[Path]) -> list[Path]:
    """By process, and in each by the number of the program."""

    def place(path: Path) -> tuple[int, ...]:
        return tuple(int(part) for part in path.stem.split("-") if part.isdigit())

    return sorted(paths, key=place)
