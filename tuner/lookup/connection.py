"""Opening a store for reading, with nothing but the standard library."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

from tuner.errors import StoreError

SCHEMA = 4
APPLICATION_ID = 0x54554E45  # "TUNE", in SQLite's header: tells a store from the database of another program


def check_file(path: Path) -> bool:
    """Whether there is a store file: False where nothing, or an empty file, is at `path`. Raises StoreError on anything else.

    Asked before SQLite opens anything, which would wait for ever on a named pipe.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(f"cannot open store {path}: {error.strerror}") from error
    if stat.S_ISDIR(status.st_mode):
        raise StoreError(f"store {path} is a folder, not a file")
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"store {path} is not a regular file")
    return status.st_size > 0


def check_schema(connection: sqlite3.Connection, where: str) -> int:
    """The schema's number, 0 for an empty database. Raises StoreError on a newer one and on a database that is no store."""
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    schema = schema_of(connection)
    if application_id != APPLICATION_ID:
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise StoreError(f"{where} is a SQLite database, but not a store of tuner")
        return 0
    if schema > SCHEMA:
        raise StoreError(f"store {where}: schema {schema} is newer than this version's {SCHEMA}: upgrade tuner")
    return schema


def schema_of(connection: sqlite3.Connection) -> int:
    """The number that the file says; one older than SCHEMA where nobody has written to the store since an upgrade."""
    schema: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return schema


def open_read_only(path: Path, timeout_s: float) -> sqlite3.Connection | None:
    """A connection that cannot write, None where there is no store yet. Raises StoreError.

    A store in WAL mode whose folder cannot be written to has no place for SQLite's shared memory; it is then opened as immutable,
    which is right where nobody writes it (an image layer, a read-only mount). timeout_s: how long to wait for a locked database.
    """
    if not check_file(path):
        return None
    uri = path.absolute().as_uri()
    try:
        try:
            return _open(f"{uri}?mode=ro", path, timeout_s)
        except sqlite3.OperationalError:
            if os.access(path.parent, os.W_OK):
                raise
            return _open(f"{uri}?mode=ro&immutable=1", path, timeout_s)
    except sqlite3.Error as error:
        raise StoreError(f"cannot read store {path}: {error}") from error


def _open(uri: str, path: Path, timeout_s: float) -> sqlite3.Connection | None:
    connection = sqlite3.connect(uri, uri=True, timeout=timeout_s, isolation_level=None)
    try:
        if check_schema(connection, str(path)):
            return connection
    except BaseException:
        connection.close()
        raise
    connection.close()
    return None
