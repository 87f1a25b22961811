"""Opening a store for writing: its folder, its lock, its file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tuner.cache.folder import make_folder
from tuner.cache.lock import Lock, LockTaken, take_lock
from tuner.cache.schema import migrate
from tuner.errors import StoreBusy, StoreError

BUSY_TIMEOUT_S = 5.0


def make_folder_of(path: Path) -> None:
    """Make a store's folder. One that is there may be anybody's: what a store says is validated. Raises StoreError."""
    folder = path.absolute().parent
    try:
        make_folder(folder)
    except OSError as error:
        raise StoreError(f"cannot make the folder {folder} for the store: {error.strerror}") from error


def lock_store(path: Path) -> Lock:
    try:
        return take_lock(path.with_name(path.name + ".lock"))
    except LockTaken as taken:
        raise StoreBusy(f"store {path} is being written by {taken.holder}") from None
    except OSError as error:
        raise StoreError(f"cannot lock store {path} for writing: {error.strerror}") from error


def open_for_writing(path: Path) -> sqlite3.Connection:
    connection = None
    try:
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        migrate(connection, str(path))
        # after the migration, so that a database that is refused stays as it was
        connection.execute("PRAGMA journal_mode = wal")
        connection.execute("PRAGMA synchronous = normal")
        # what a read-only file or disk refuses is to be known now, not after the first measurement
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
        return connection
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise StoreError(f"cannot open store {path}: {error}") from error
        raise
