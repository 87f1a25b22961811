"""What a store holds, in numbers, with nothing but the standard library."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.lookup.quarantine import IN_FORCE

# what a winner's evidence says of the time that it took
SECONDS = ("compiling", "measuring")
COUNTS: Mapping[str, str] = {
    "graphs": "SELECT count(*) FROM graphs",
    "programs": "SELECT count(DISTINCT exact_key) FROM programs",
    "quarantined": f"SELECT count(*) FROM (SELECT DISTINCT graph_key, candidate_key, target_key, toolchain_key {IN_FORCE})",
    "generation": "SELECT value FROM meta WHERE name = 'generation'",
}
GROUPS: Mapping[str, str] = {
    "measurements": "SELECT status, count(*) FROM measurements GROUP BY status ORDER BY status",
    "winners": "SELECT kind, count(*) FROM (SELECT kind, max(generation) FROM winners GROUP BY exact_key) GROUP BY 1 ORDER BY 1",
}
TAKEN = "SELECT {} FROM winners WHERE json_valid(evidence)".format(
    ", ".join(f"total(json_extract(evidence, '$.seconds.{name}'))" for name in SECONDS)
)


def stats(connection: sqlite3.Connection | None, path: Path, programs_vetoed: int) -> dict[str, Any]:
    """Numbers of `graphs`, `programs` and `quarantined` candidates; `generation`; `programs_vetoed`, as given; `measurements` by
    status; `winners` by kind, the latest of each exact match; `winner_seconds`: spent on their graphs for all winners there ever
    were, by what on; `bytes` of the file and its write-ahead log. All 0 where there is no store (None). Raises sqlite3.Error.
    """
    numbers = {name: connection.execute(sql).fetchone()[0] if connection else 0 for name, sql in COUNTS.items()}
    groups = {name: dict(connection.execute(sql).fetchall()) if connection else {} for name, sql in GROUPS.items()}
    taken = connection.execute(TAKEN).fetchone() if connection else (0.0,) * len(SECONDS)
    return {
        **numbers,
        "programs_vetoed": programs_vetoed,
        **groups,
        "winner_seconds": dict(zip(SECONDS, taken, strict=True)),
        "bytes": sum(map(_bytes, (path, path.with_name(path.name + "-wal")))),
    }


def _bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
