"""What a store holds, in numbers, read with nothing but the standard library."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path
from typing import Any

from tuner.errors import StoreError
from tuner.lookup.connection import open_read_only
from tuner.lookup.quarantine import IN_FORCE, LATEST

# SQLite's steps between two looks at the clock
STEPS = 20_000
EMPTY: dict[str, Any] = {
    "generation": 0,
    "graphs": 0,
    "programs": 0,
    "measurements": {},
    "winners": {},
    "vetoed": 0,
    "quarantined": 0,
    "size_bytes": 0,
}


def store_statistics(path: Path, timeout_s: float = 5.0) -> dict[str, Any]:
    """The store's `generation`; number of `graphs` and `programs`, of `measurements` by status, of `winners` ("plan", "default"),
    of sets of plans that are `vetoed` for a program and of candidates that are `quarantined`; `size_bytes` with its log.

    All zero where there is no store. Raises StoreError.
    """
    connection = open_read_only(path, timeout_s)
    if connection is None:
        return dict(EMPTY)
    end = time.monotonic() + timeout_s
    connection.set_progress_handler(lambda: time.monotonic() > end, STEPS)
    try:
        connection.execute("BEGIN")
        return {**_counted(connection), "size_bytes": _size(path)}
    except sqlite3.Error as error:
        raise StoreError(f"cannot read store {path}: {error}") from error
    finally:
        connection.close()


def _counted(connection: sqlite3.Connection) -> dict[str, Any]:
    def number(sql: str) -> int:
        return int((connection.execute(sql).fetchone() or [0])[0])

    def by(sql: str) -> dict[str, int]:
        return {str(name): int(count) for name, count in connection.execute(sql).fetchall()}

    # a store of the first schema, which nobody has written since, has no finals of programs
    vetoes = number("SELECT count(*) FROM sqlite_master WHERE name = 'program_finals'")
    latest = "SELECT kind, max(generation) FROM winners GROUP BY exact_key"
    finals = "SELECT verdict, max(id) FROM program_finals GROUP BY exact_key, plans"
    return {
        "generation": number("SELECT value FROM meta WHERE name = 'generation'"),
        "graphs": number("SELECT count(*) FROM graphs"),
        "programs": number("SELECT count(DISTINCT exact_key) FROM programs"),
        "measurements": by("SELECT status, count(*) FROM measurements GROUP BY status ORDER BY status"),
        "winners": by(f"SELECT kind, count(*) FROM ({latest}) GROUP BY kind ORDER BY kind"),
        "vetoed": number(f"SELECT count(*) FROM ({finals}) WHERE verdict = 'vetoed'") if vetoes else 0,
        "quarantined": number(f"SELECT count(*) FROM (SELECT verdict.id {IN_FORCE} {LATEST})"),
    }


def _size(path: Path) -> int:
    size = 0
    for suffix in ("", "-wal"):
        with contextlib.suppress(OSError):
            size += path.with_name(path.name + suffix).stat().st_size
    return size
