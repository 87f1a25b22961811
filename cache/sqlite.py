"""The store in one SQLite file, or in memory."""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tuner.answer import Bucket, ProgramChoice
from tuner.cache.contract import GROUP_TIMES_KEPT, ProgramGraph, StoredProgram
from tuner.cache.lock import Lock
from tuner.cache.opening import BUSY_TIMEOUT_S, lock_store, make_folder_of, open_for_writing
from tuner.cache.rows import (
    group_time_columns,
    group_time_of,
    json_text,
    measurement_columns,
    measurement_of,
    now,
    program_choice_columns,
    program_choice_of,
    program_columns,
    program_final_columns,
    program_final_of,
    query_fields,
    stored_program_of,
    winner_columns,
    winner_of,
)
from tuner.cache.schema import migrate
from tuner.errors import PlanError, StoreError
from tuner.lookup.connection import check_file, open_read_only, schema_of
from tuner.lookup.quarantine import IN_FORCE, LATEST, OF_WORKLOAD, why_withheld
from tuner.measurement import QUARANTINE, GroupTime, Measurement, Policy, ProgramFinal, Stage, Winner
from tuner.target import Query

log = logging.getLogger("tuner.cache")
LATEST_WINNER = "generation = (SELECT max(generation) FROM winners AS other WHERE other.exact_key = winners.exact_key)"
FORGOTTEN_GROUP_TIMES = f"""
DELETE FROM group_times WHERE id IN (
    SELECT id FROM group_times WHERE group_key = :group_key AND target_key = :target_key AND toolchain_key = :toolchain_key
    AND ambient_key = :ambient_key AND policy_key = :policy_key ORDER BY id DESC LIMIT -1 OFFSET {GROUP_TIMES_KEPT}
)"""
Value = TypeVar("Value")
Rows = TypeVar("Rows")


class SqliteStore:
    """`tuner.cache.contract.Store` in the file `path`, made if missing; ":memory:" keeps it in this object.

    For writing it holds the lock file `<path>.lock` and uses a write-ahead log, so readers are never blocked; only local disks
    carry that. read_only: takes no lock and makes nothing; every write raises StoreError. Raises StoreBusy, StoreError.
    """

    def __init__(self, path: Path | str, read_only: bool = False):
        self.path = Path(path)
        self.invalid_rows = 0
        self._lock: Lock | None = None
        self._fields: dict[str, dict[str, Any]] = {}
        if str(path) == ":memory:":
            connection = sqlite3.connect(":memory:", isolation_level=None)
            migrate(connection, ":memory:")
        elif read_only:
            opened = open_read_only(self.path, BUSY_TIMEOUT_S)
            if opened is None:
                raise StoreError(f"no store at {path}")
            connection = opened
        else:
            make_folder_of(self.path)
            check_file(self.path)
            self._lock = lock_store(self.path)
            try:
                connection = open_for_writing(self.path)
            except BaseException:
                self._lock.release()
                raise
        connection.row_factory = sqlite3.Row
        self._connection: sqlite3.Connection | None = connection

    # graphs and programs

    def add_graph(self, workload_key: str, form: dict[str, Any], anew: bool = False) -> None:
        with self._write() as connection:
            row = {"graph_key": workload_key, "form": json_text(form), "created": now()}
            _insert(connection, "graphs", row, "OR REPLACE" if anew else "OR IGNORE")

    def graph(self, workload_key: str) -> dict[str, Any] | None:
        rows = self._read("SELECT form FROM graphs WHERE graph_key = ?", workload_key)
        forms = self._valid(rows, lambda row: json.loads(row["form"]), "graph")
        return forms[0] if forms else None

    def find_graphs(self, prefix: str) -> list[str]:
        # not LIKE: a prefix may hold its wildcards
        rows = self._read("SELECT graph_key FROM graphs WHERE substr(graph_key, 1, ?) = ? ORDER BY 1", len(prefix), prefix)
        return [row["graph_key"] for row in rows]

    def add_program(self, query: Query, graphs: Sequence[Query], spec: str) -> None:
        program = program_columns(query)
        if any(graph.kind != "graph" for graph in graphs):
            raise ValueError("the graphs of a program are queries of kind graph")
        with self._write() as connection:
            self._add_fields(connection, query_fields(query))
            connection.execute("DELETE FROM programs WHERE exact_key = ?", (query.exact_key,))
            for position, graph in enumerate(graphs):
                row = {
                    **program,
                    "position": position,
                    "graph_key": graph.workload_key,
                    "graph_exact_key": graph.exact_key,
                    "spec": spec,
                    "created": now(),
                }
                _insert(connection, "programs", row)

    def programs_of(self, graph_key: str) -> list[ProgramGraph]:
        names = "program_key, exact_key, position, graph_key, graph_exact_key, spec"
        rows = self._read(f"SELECT {names} FROM programs WHERE graph_key = ? ORDER BY rowid", graph_key)
        return [ProgramGraph(*row) for row in rows]

    def find_programs(self, prefix: str) -> list[StoredProgram]:
        rows = self._read("SELECT * FROM programs WHERE substr(program_key, 1, ?) = ? ORDER BY rowid", len(prefix), prefix)
        made: dict[str, list[sqlite3.Row]] = {}
        for row in rows:
            made.setdefault(row["exact_key"], []).append(row)
        return self._valid(list(made.values()), lambda rows: stored_program_of(rows, self._fields_of), "program")

    # measurements and winners

    def add_measurement(self, measurement: Measurement) -> int:
        with self._write() as connection:
            row = measurement_columns(measurement, _generation(connection))
            self._add_fields(connection, query_fields(measurement.query) | _policy_fields(measurement.policy))
            withheld = _withheld(connection, row)
            number = _insert(connection, "measurements", row)
            if _withheld(connection, row) != withheld:
                _next_generation(connection)
            return number

    def measurements(self, exact_key: str, stage: Stage | None = None, policy_key: str | None = None) -> list[Measurement]:
        rows = self._read(
            "SELECT * FROM measurements WHERE exact_key = ?1 AND (?2 IS NULL OR stage = ?2) "
            "AND (?3 IS NULL OR policy_key = ?3) ORDER BY id",
            exact_key,
            stage,
            policy_key,
        )
        return self._valid(rows, lambda row: measurement_of(row, self._fields_of), "measurement")

    def quarantined(self, query: Query) -> dict[str, Measurement]:
        found = self._quarantined(OF_WORKLOAD, query.workload_key, query.target_key, query.toolchain_key)
        return {measurement.plan.key: measurement for measurement in found}

    def quarantine(self) -> list[Measurement]:
        return self._quarantined("")

    def exact_keys(self, workload_key: str) -> list[str]:
        rows = self._read(
            "SELECT exact_key FROM (SELECT exact_key, created FROM measurements WHERE graph_key = ?1 "
            "UNION ALL SELECT exact_key, created FROM winners WHERE graph_key = ?1) GROUP BY exact_key ORDER BY min(created)",
            workload_key,
        )
        return [row["exact_key"] for row in rows]

    def record_winner(self, winner: Winner) -> int:
        with self._write() as connection:
            generation = _next_generation(connection)
            row = winner_columns(winner, generation)
            self._add_fields(connection, query_fields(winner.query) | _policy_fields(winner.policy))
            _insert(connection, "winners", row)
            return generation

    def winner(self, exact_key: str) -> tuple[Winner, int] | None:
        found = self._winners("WHERE exact_key = ? ORDER BY generation DESC LIMIT 1", exact_key)
        return found[0] if found else None

    def winners(self) -> list[tuple[Winner, int]]:
        return self._winners(f"WHERE {LATEST_WINNER} ORDER BY generation")

    def record_program_final(self, final: ProgramFinal) -> int:
        with self._write() as connection:
            before = connection.execute(
                "SELECT verdict FROM program_finals WHERE exact_key = ? AND plans = ? ORDER BY id DESC LIMIT 1",
                (final.query.exact_key, final.plans),
            ).fetchone()
            vetoed = before is not None and before["verdict"] == "vetoed"
            changes = vetoed != (final.verdict == "vetoed")
            generation = _next_generation(connection) if changes else _generation(connection)
            self._add_fields(connection, query_fields(final.query) | _policy_fields(final.policy))
            _insert(connection, "program_finals", program_final_columns(final, generation))
            return generation

    def program_final(self, exact_key: str, plans: str | None = None) -> tuple[ProgramFinal, int] | None:
        with self._errors() as connection:
            if schema_of(connection) < 2:
                return None
        rows = self._read(
            "SELECT * FROM program_finals WHERE exact_key = ?1 AND (?2 IS NULL OR plans = ?2) ORDER BY id DESC LIMIT 1",
            exact_key,
            plans,
        )
        found = self._valid(rows, lambda row: (program_final_of(row, self._fields_of), row["generation"]), "program final")
        return found[0] if found else None

    def record_program_choice(
        self,
        query: Query,
        native_table: Sequence[str] = (),
        dispatch: Sequence[Bucket] = (),
        evidence: Mapping[str, Any] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> int:
        choice = ProgramChoice(tuple(native_table), tuple(dispatch))
        with self._write() as connection:
            generation = _next_generation(connection)
            row = program_choice_columns(query, choice, generation, evidence or {}, provenance or {})
            self._add_fields(connection, query_fields(query))
            _insert(connection, "program_choices", row)
            return generation

    def program_choice(self, exact_key: str) -> tuple[ProgramChoice, int] | None:
        found = self._choice(exact_key)
        return None if found is None else found[:2]

    def choice_evidence(self, exact_key: str) -> Mapping[str, Any] | None:
        found = self._choice(exact_key)
        return None if found is None else found[2]

    def _choice(self, exact_key: str) -> tuple[ProgramChoice, int, dict[str, Any]] | None:
        with self._errors() as connection:
            if schema_of(connection) < 3:
                return None
        rows = self._read("SELECT * FROM program_choices WHERE exact_key = ? ORDER BY generation DESC LIMIT 1", exact_key)

        def rebuilt(row: sqlite3.Row) -> tuple[ProgramChoice, int, dict[str, Any]]:
            evidence = json.loads(row["evidence"])
            return program_choice_of(row), row["generation"], evidence if isinstance(evidence, dict) else {}

        found = self._valid(rows, rebuilt, "program choice")
        return found[0] if found else None

    # times of groups

    def add_group_times(self, query: Query, policy: Policy, times: Sequence[GroupTime]) -> None:
        with self._write() as connection:
            self._add_fields(connection, query_fields(query) | _policy_fields(policy))
            for time in times:
                row = group_time_columns(query, policy, time)
                _insert(connection, "group_times", row)
                connection.execute(FORGOTTEN_GROUP_TIMES, row)

    def group_times(self, query: Query, policy: Policy, keys: Iterable[str]) -> list[GroupTime]:
        with self._errors() as connection:
            if schema_of(connection) < 4:
                return []
        rows = self._read(
            "SELECT * FROM group_times WHERE group_key IN (SELECT value FROM json_each(?)) AND target_key = ? "
            "AND toolchain_key = ? AND ambient_key = ? AND policy_key = ? ORDER BY id",
            json_text(sorted(set(keys))),
            query.target_key,
            query.toolchain_key,
            query.ambient_key,
            policy.key,
        )
        return self._valid(rows, group_time_of, "group time")

    # the store itself

    def generation(self) -> int:
        with self._errors() as connection:
            return _generation(connection)

    def counts(self) -> dict[str, int]:
        row = self._read(
            "SELECT (SELECT count(*) FROM graphs) AS graphs, (SELECT count(DISTINCT exact_key) FROM programs) AS programs, "
            "(SELECT count(*) FROM measurements) AS measurements, (SELECT count(DISTINCT exact_key) FROM winners) AS winners, "
            "(SELECT value FROM meta WHERE name = 'generation') AS generation"
        )[0]
        return dict(row)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # how it is done

    @contextlib.contextmanager
    def _errors(self) -> Iterator[sqlite3.Connection]:
        if self._connection is None:
            raise StoreError(f"store {self.path} is closed")
        try:
            yield self._connection
        except sqlite3.Error as error:
            raise StoreError(f"store {self.path}: {error}") from error

    @contextlib.contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """One transaction that has the write lock from its start, so that what it reads cannot change before it writes."""
        with self._errors() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _read(self, sql: str, *values: Any) -> list[sqlite3.Row]:
        with self._errors() as connection:
            return connection.execute(sql, values).fetchall()

    def _quarantined(self, condition: str, *values: Any) -> list[Measurement]:
        rows = self._read(f"SELECT verdict.*, max(verdict.id) {IN_FORCE} {condition} {LATEST}", *values)
        return self._valid(rows, lambda row: measurement_of(row, self._fields_of), "measurement")

    def _winners(self, condition: str, *values: Any) -> list[tuple[Winner, int]]:
        rows = self._read(f"SELECT * FROM winners {condition}", *values)
        return self._valid(rows, lambda row: (winner_of(row, self._fields_of), row["generation"]), "winner")

    def _valid(self, rows: Sequence[Rows], rebuild: Callable[[Rows], Value], name: str) -> list[Value]:
        values = []
        for row in rows:
            try:
                values.append(rebuild(row))
            except (PlanError, ValueError, TypeError, KeyError, RecursionError) as error:
                self.invalid_rows += 1
                log.warning("store %s: a %s row does not validate and is ignored: %s", self.path, name, error)
        return values

    def _fields_of(self, key: str) -> dict[str, Any]:
        if key not in self._fields:
            rows = self._read("SELECT json FROM fields WHERE key = ?", key)
            if not rows:
                raise KeyError(f"no fields of key {key[:12]}")
            fields = json.loads(rows[0]["json"])
            if not isinstance(fields, dict):
                raise TypeError(f"the fields of key {key[:12]} are no object")
            self._fields[key] = fields
        return self._fields[key]

    def _add_fields(self, connection: sqlite3.Connection, fields: dict[str, tuple[str, str]]) -> None:
        rows = [(key, kind, text) for key, (kind, text) in fields.items()]
        connection.executemany("INSERT OR IGNORE INTO fields (key, kind, json) VALUES (?, ?, ?)", rows)


def _policy_fields(policy: Policy) -> dict[str, tuple[str, str]]:
    return {policy.key: ("policy", json_text(policy.fields()))}


def _generation(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT value FROM meta WHERE name = 'generation'").fetchone()[0])


def _next_generation(connection: sqlite3.Connection) -> int:
    generation = _generation(connection) + 1
    connection.execute("UPDATE meta SET value = ? WHERE name = 'generation'", (generation,))
    return generation


def _withheld(connection: sqlite3.Connection, row: dict[str, Any]) -> bool:
    """Whether the candidate of a measurement is a winner somewhere that quarantine keeps from being served."""
    if row["status"] not in (*QUARANTINE, "ok"):
        return False
    keys = [row[name] for name in ("graph_key", "target_key", "toolchain_key", "candidate_key")]
    won = connection.execute(
        "SELECT 1 FROM winners WHERE graph_key = ? AND target_key = ? AND toolchain_key = ? AND candidate_key = ? "
        f"AND kind = 'plan' AND {LATEST_WINNER}",
        keys,
    ).fetchone()
    return won is not None and why_withheld(connection, *keys) is not None


def _insert(connection: sqlite3.Connection, table: str, row: dict[str, Any], conflict: str = "") -> int:
    names, places = ", ".join(row), ", ".join(f":{name}" for name in row)
    cursor = connection.execute(f"INSERT {conflict} INTO {table} ({names}) VALUES ({places})", row)
    return cursor.lastrowid or 0
