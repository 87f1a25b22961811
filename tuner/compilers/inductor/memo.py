"""Which graphs a program gave, remembered beside the compile caches, for programs of which the store has no record.

Without it a graph's key is known only once AOTAutograd has made the graph, which is too late for the compile caches' key: the
next process would be handed what was compiled before a winner came. A memo holds keys and nothing else. What it says is checked
when it is read, and a wrong one costs a compile.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tuner.compilers.inductor.hooks import cache_dir, inductor_config

MEMO_SCHEMA = 1
# Of a program with more graphs than this none is remembered.
GRAPHS_LIMIT = 64
BYTES_LIMIT = 16_384
_KEY = re.compile(r"[0-9a-f]{64}")


def _path(exact_key: str) -> Path:
    return Path(cache_dir()) / "tuner" / f"{exact_key}.json"


def remembered(exact_key: str) -> tuple[str, ...]:
    """Keys of the graphs that the program of this exact match gave, in order; empty where nothing valid is remembered."""
    try:
        with _path(exact_key).open("rb") as file:
            data = json.loads(file.read(BYTES_LIMIT))
        keys = data["graphs"]
        if data["schema"] != MEMO_SCHEMA or not isinstance(keys, list) or len(keys) > GRAPHS_LIMIT:
            return ()
        if not all(isinstance(key, str) and _KEY.fullmatch(key) for key in keys):
            return ()
        return tuple(keys)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()


def remember(exact_key: str, graph_keys: Sequence[str]) -> None:
    """Keeps the keys of a program's graphs, whole or not at all; does nothing without caches, or where they cannot be written."""
    if not graph_keys or len(graph_keys) > GRAPHS_LIMIT or inductor_config.force_disable_caches:
        return
    if remembered(exact_key)[: len(graph_keys)] == tuple(graph_keys):
        return  # a forward that is compiled again takes nothing from what is known of its backward
    path = _path(exact_key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".")
        try:
            with os.fdopen(handle, "w") as file:
                json.dump({"schema": MEMO_SCHEMA, "graphs": list(graph_keys)}, file)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
