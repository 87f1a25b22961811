"""Tables of the store, as migrations. The schema's number stands in `PRAGMA user_version`.

A released migration is never edited: a change is a new migration, a new number in `tuner.lookup.connection`, and a file of the
old schema among the fixtures of the tests. tuner/lookup/reader.py and quarantine.py read the tables by name, also those of an old
schema: a store that nobody has written to since an upgrade is still served.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from tuner.errors import StoreError
from tuner.lookup.connection import APPLICATION_ID, SCHEMA, check_schema

if TYPE_CHECKING:
    from sqlite_utils import Database

SCHEMA_1 = """
CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT;
INSERT INTO meta VALUES ('generation', 0);

CREATE TABLE graphs (
    graph_key TEXT PRIMARY KEY,
    form TEXT NOT NULL,
    created TEXT NOT NULL
) STRICT;

-- named fields behind the target, toolchain, ambient and policy keys, so that a miss can say which field differs
CREATE TABLE fields (
    key TEXT PRIMARY KEY,
    kind TEXT NOT NULL CHECK (kind IN ('target', 'toolchain', 'ambient', 'policy')),
    json TEXT NOT NULL
) STRICT;

CREATE TABLE programs (
    exact_key TEXT NOT NULL,
    position INTEGER NOT NULL,
    program_key TEXT NOT NULL,
    graph_key TEXT NOT NULL,
    graph_exact_key TEXT NOT NULL,
    target_key TEXT NOT NULL REFERENCES fields(key),
    toolchain_key TEXT NOT NULL REFERENCES fields(key),
    ambient_key TEXT NOT NULL REFERENCES fields(key),
    spec TEXT NOT NULL,
    created TEXT NOT NULL,
    PRIMARY KEY (exact_key, position)
) STRICT;
CREATE INDEX programs_by_graph ON programs (graph_key);

-- graph_key is the workload key of the query, which is a graph's unless query_kind says otherwise
CREATE TABLE measurements (
    id INTEGER PRIMARY KEY,
    query_kind TEXT NOT NULL,
    program_key TEXT,
    graph_key TEXT NOT NULL,
    region_key TEXT,
    exact_key TEXT NOT NULL,
    target_key TEXT NOT NULL REFERENCES fields(key),
    toolchain_key TEXT NOT NULL REFERENCES fields(key),
    ambient_key TEXT NOT NULL REFERENCES fields(key),
    policy_key TEXT NOT NULL REFERENCES fields(key),
    candidate_key TEXT NOT NULL,
    stage TEXT NOT NULL CHECK (stage IN ('screen', 'race', 'final')),
    status TEXT NOT NULL CHECK (
        status IN ('ok', 'wrong', 'compile_error', 'out_of_resources', 'timeout', 'crash', 'busy')
    ),
    label TEXT NOT NULL,
    plan TEXT NOT NULL,
    samples_ms TEXT NOT NULL,
    default_samples_ms TEXT NOT NULL,
    realised TEXT,
    code_key TEXT,
    error REAL,
    peak_bytes INTEGER,
    default_peak_bytes INTEGER,
    message TEXT NOT NULL,
    process TEXT NOT NULL,
    generation INTEGER NOT NULL,
    provenance TEXT NOT NULL,
    created TEXT NOT NULL
) STRICT;
CREATE INDEX measurements_by_exact_key ON measurements (exact_key, stage, candidate_key);
CREATE INDEX measurements_by_graph ON measurements (graph_key);

CREATE TABLE winners (
    exact_key TEXT NOT NULL,
    generation INTEGER NOT NULL UNIQUE,
    query_kind TEXT NOT NULL,
    program_key TEXT,
    graph_key TEXT NOT NULL,
    region_key TEXT,
    target_key TEXT NOT NULL REFERENCES fields(key),
    toolchain_key TEXT NOT NULL REFERENCES fields(key),
    ambient_key TEXT NOT NULL REFERENCES fields(key),
    policy_key TEXT NOT NULL REFERENCES fields(key),
    candidate_key TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('plan', 'default')),
    plan TEXT NOT NULL,
    realised TEXT,
    default_ms REAL NOT NULL,
    winner_ms REAL NOT NULL,
    speedup REAL NOT NULL,
    speedup_low REAL NOT NULL,
    speedup_high REAL NOT NULL,
    effort TEXT NOT NULL,
    space_version INTEGER NOT NULL,
    evidence TEXT NOT NULL,
    provenance TEXT NOT NULL,
    created TEXT NOT NULL,
    PRIMARY KEY (exact_key, generation)
) STRICT;
CREATE INDEX winners_by_graph ON winners (graph_key);
"""

SCHEMA_2 = """
-- what the final of a whole callable said of the plans of its graphs (their digest: plans); append-only.
-- generation: the store's, when the row was there
CREATE TABLE program_finals (
    id INTEGER PRIMARY KEY,
    exact_key TEXT NOT NULL,
    program_key TEXT NOT NULL,
    target_key TEXT NOT NULL REFERENCES fields(key),
    toolchain_key TEXT NOT NULL REFERENCES fields(key),
    ambient_key TEXT NOT NULL REFERENCES fields(key),
    policy_key TEXT NOT NULL REFERENCES fields(key),
    generation INTEGER NOT NULL,
    plans TEXT NOT NULL,
    verdict TEXT NOT NULL CHECK (verdict IN ('confirmed', 'vetoed')),
    speedup REAL NOT NULL,
    speedup_low REAL NOT NULL,
    speedup_high REAL NOT NULL,
    default_ms REAL NOT NULL,
    planned_ms REAL NOT NULL,
    evidence TEXT NOT NULL,
    provenance TEXT NOT NULL,
    created TEXT NOT NULL
) STRICT;
CREATE INDEX program_finals_by_plans ON program_finals (exact_key, plans);
CREATE INDEX program_finals_by_program ON program_finals (program_key);

-- when a verdict last took a winner out of service, or brought one back
INSERT INTO meta VALUES ('quarantine_generation', 0);
-- verdicts on a candidate, and all that the old index was for
DROP INDEX measurements_by_graph;
CREATE INDEX measurements_by_candidate ON measurements (graph_key, candidate_key, status);
"""

SCHEMA_3 = """
-- what is chosen for a program as a whole, JSON lists: op kinds left out of AOTAutograd's decomposition table, and buckets of
-- sizes with plans of their own; append-only, the latest generation holds
CREATE TABLE program_choices (
    exact_key TEXT NOT NULL,
    generation INTEGER NOT NULL UNIQUE,
    program_key TEXT NOT NULL,
    target_key TEXT NOT NULL REFERENCES fields(key),
    toolchain_key TEXT NOT NULL REFERENCES fields(key),
    ambient_key TEXT NOT NULL REFERENCES fields(key),
    native_table TEXT NOT NULL,
    dispatch TEXT NOT NULL,
    evidence TEXT NOT NULL,
    provenance TEXT NOT NULL,
    created TEXT NOT NULL,
    PRIMARY KEY (exact_key, generation)
) STRICT;
-- nobody asks any more when a verdict last took a winner out of service
DELETE FROM meta WHERE name = 'quarantine_generation';
"""

SCHEMA_4 = """
-- how long the kernel of a group of leaves ran, in one process; graph_key says in which graph. Readers ask by group, whatever
-- the graph; the oldest of a group are dropped as new ones come
CREATE TABLE group_times (
    id INTEGER PRIMARY KEY,
    group_key TEXT NOT NULL,
    target_key TEXT NOT NULL REFERENCES fields(key),
    toolchain_key TEXT NOT NULL REFERENCES fields(key),
    ambient_key TEXT NOT NULL REFERENCES fields(key),
    policy_key TEXT NOT NULL REFERENCES fields(key),
    graph_key TEXT NOT NULL,
    ms REAL NOT NULL,
    process TEXT NOT NULL,
    created TEXT NOT NULL
) STRICT;
CREATE INDEX group_times_by_group ON group_times (group_key, target_key, toolchain_key, ambient_key, policy_key);
"""


def migrate(connection: sqlite3.Connection, where: str) -> None:
    """Bring the database to SCHEMA, in one transaction; one that is there already is not written to.

    The caller holds the store's lock: sqlite-utils takes none between finding a migration pending and applying it.
    Raises StoreError on a database of another program or of a newer schema, sqlite3.Error on what SQLite reports.
    """
    if check_schema(connection, where) == SCHEMA:
        return
    from sqlite_utils import Database, Migrations

    migrations = Migrations("tuner")

    @migrations(name="schema_1")
    def schema_1(db: Database) -> None:
        db.executescript(SCHEMA_1)

    @migrations(name="schema_2")
    def schema_2(db: Database) -> None:
        db.executescript(SCHEMA_2)

    @migrations(name="schema_3")
    def schema_3(db: Database) -> None:
        db.executescript(SCHEMA_3)

    @migrations(name="schema_4")
    def schema_4(db: Database) -> None:
        db.executescript(SCHEMA_4)

    database = Database(connection, execute_plugins=False)
    # atomic() and apply() issue a deferred BEGIN of their own, which can fail at once where another connection writes: ours comes
    # first, theirs become savepoints in it
    connection.execute("BEGIN IMMEDIATE")
    try:
        migrations.apply(database)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    if check_schema(connection, where) != SCHEMA:
        raise StoreError(f"store {where} could not be brought to schema {SCHEMA}")
