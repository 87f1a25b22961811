"""Answers read straight from a store file, with nothing but the standard library.

Every look-up opens the file anew (some 0.3 ms): no state to go stale when the file is replaced, to share between threads, or to
inherit in a forked process. It reads inside one transaction, so all of it is of one generation.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tuner.answer import Answer, ProgramAnswer, ProgramChoice, digest_of_plans
from tuner.errors import PlanError, StoreError
from tuner.json_fields import points_of
from tuner.lookup.connection import open_read_only, schema_of
from tuner.lookup.miss import NO_STORE, UNKNOWN_GRAPH, Miss, explain
from tuner.lookup.quarantine import why_withheld
from tuner.lookup.stats import stats
from tuner.lookup.validate import groups_of, validated, validated_choice
from tuner.measurement import what_was_wrong
from tuner.plan import Plan
from tuner.search_spaces.validate import validate_plan
from tuner.target import Query

# how many other records of a graph are compared with what was asked, latest first, to explain a miss
NEAREST_LIMIT = 100
UNSETTLED = Miss("unsettled", "the program is known, but no sweep has settled this graph of it")
UNDER_TABLE = "the default, settled with the program's native table"
# SQLite's steps between two looks at the clock
STEPS = 20_000
TABLES = ("graphs", "measurements")
# what a look-up ended with, for the counters, and the answer
Found = tuple[str, Answer]


class StoreReader:
    """Look-ups in the store at `path`; where there is none, everything is a miss at generation 0.

    timeout_s: how long a look-up may take. outcomes: counts of "hit", "program_hit", "program_miss", of the reasons for which a
    stored winner is not served ("invalid_plan", "invalid_choice", "quarantined", "vetoed"), and the outcomes of
    `tuner.lookup.miss`. All methods raise StoreError on a file that cannot be read, is no store or has a newer schema.
    """

    def __init__(self, path: Path, timeout_s: float = 5.0):
        self.path = path
        self.timeout_s = timeout_s
        self.outcomes: Counter[str] = Counter()

    def answer(self, query: Query) -> Answer:
        """The latest winner of the query's exact match, else the default with the reason of the miss."""
        with self._transaction() as connection:
            if connection is None:
                outcome, answer = _miss(NO_STORE, 0)
            else:
                generation = _generation(connection)
                found = _winner(connection, query.exact_key, generation)
                outcome, answer = found or _miss(_explain(connection, query), generation)
        self.outcomes[outcome] += 1
        return answer

    def program(self, query: Query) -> ProgramAnswer:
        """What is known of a program: one answer for each of its graphs, by exact-match key, in order, and its own choice.

        Where the whole callable lost under exactly what is in force, each plan gives way to the default, and so does the choice.
        Where it lost with one plan for all sizes, those do, for whoever cannot dispatch; the buckets stay.
        """
        with self._transaction() as connection:
            generation = _generation(connection) if connection else 0
            found = _program(connection, query.exact_key, generation) if connection else NOTHING
            if connection is None or not found.graphs:
                self.outcomes["program_miss"] += 1
                return ProgramAnswer(False, generation)
            reason = alone = _veto(connection, query.exact_key, found.digest)
            if reason is None and found.choice.dispatch:
                alone = _veto(connection, query.exact_key, found.without_dispatch.digest)
        graphs, choice = found.graphs, found.choice
        if alone is not None:
            vetoed = "vetoed", Answer(Plan(), "exact", generation, alone)
            graphs = {key: pair if pair[1].plan.is_default else vetoed for key, pair in graphs.items()}
        if reason is not None:
            choice = ProgramChoice()
        self.outcomes.update(["program_hit", *(outcome for outcome, _ in graphs.values()), *found.outcomes])
        answers = {key: one for key, (_, one) in graphs.items()}
        return ProgramAnswer(True, generation, answers, False, found.graph_keys, choice.native_table, choice.dispatch)

    def plans_in_force(self, exact_key: str) -> str:
        """Digest of what a program would be served were there no vetoes; "" for the default throughout."""
        with self._transaction() as connection:
            return _program(connection, exact_key, 0).digest if connection else ""

    def generation(self) -> int:
        with self._transaction() as connection:
            return _generation(connection) if connection else 0

    def counts(self) -> dict[str, int]:
        """Number of stored `graphs` and `measurements`, of exact matches that have `winners`, and the `generation`."""
        with self._transaction() as connection:
            if connection is None:
                return dict.fromkeys((*TABLES, "winners", "generation"), 0)
            counts = {table: _number(connection, f"SELECT count(*) FROM {table}") for table in TABLES}
            counts["winners"] = _number(connection, "SELECT count(DISTINCT exact_key) FROM winners")
            return counts | {"generation": _generation(connection)}

    def stats(self) -> dict[str, Any]:
        """What the store holds, in numbers; see `tuner.lookup.stats.stats`."""
        with self._transaction() as connection:
            return stats(connection, self.path, len(_vetoed(connection)) if connection else 0)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection | None]:
        end = time.monotonic() + self.timeout_s
        connection = open_read_only(self.path, self.timeout_s)
        if connection is None:
            yield None
            return
        connection.set_progress_handler(lambda: time.monotonic() > end, STEPS)
        try:
            connection.execute("BEGIN")
            yield connection
        except sqlite3.Error as error:
            raise StoreError(f"cannot read store {self.path}: {error}") from error
        finally:
            connection.close()


def _winner(connection: sqlite3.Connection, exact_key: str, generation: int) -> Found | None:
    sql = (
        "SELECT generation, kind, plan, realised, speedup, speedup_low, speedup_high, effort, space_version, "
        "graph_key, target_key, toolchain_key, policy_key FROM winners WHERE exact_key = ? ORDER BY generation DESC LIMIT 1"
    )
    row = connection.execute(sql, (exact_key,)).fetchone()
    if row is None:
        return None
    try:
        answer = _answer(row[:9], generation, _sizes(_fields(connection, row[12])))
    except (PlanError, ValueError, TypeError, RecursionError) as error:
        return _miss(Miss("invalid_plan", f"the stored winner does not validate: {error}"), generation)
    graph_key, target_key, toolchain_key = row[9:12]
    if answer.plan.is_default:
        return "hit", answer
    verdict = why_withheld(connection, graph_key, target_key, toolchain_key, answer.plan.key)
    if verdict is not None:
        return _miss(Miss("quarantined", f"quarantined: {verdict}"), generation)
    return "hit", answer


def _miss(miss: Miss, generation: int) -> Found:
    return miss.outcome, Answer(Plan(), "default", generation, miss.reason)


@dataclass(frozen=True)
class _Program:
    """What is known of a program, vetoes apart: its graphs by exact-match key, in order, and its own choice."""

    graphs: Mapping[str, Found] = field(default_factory=dict)
    graph_keys: tuple[str, ...] = ()
    choice: ProgramChoice = field(default_factory=ProgramChoice)
    outcomes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        plans = {key: (answer.plan, answer.groups) for key, (_, answer) in self.graphs.items()}
        return digest_of_plans(plans, self.choice.native_table, self.choice.dispatch)

    @property
    def without_dispatch(self) -> _Program:
        return replace(self, choice=replace(self.choice, dispatch=()))


NOTHING = _Program()


def _program(connection: sqlite3.Connection, exact_key: str, generation: int) -> _Program:
    sql = "SELECT graph_exact_key, graph_key, target_key, toolchain_key FROM programs WHERE exact_key = ? ORDER BY position"
    rows = connection.execute(sql, (exact_key,)).fetchall()
    outcome, choice = _choice(connection, exact_key, rows) if rows else ("", ProgramChoice())
    # What has no winner beside a native table is a graph under it, which the choice has settled: no sweep tunes those.
    under = ("hit", Answer(Plan(), "exact", generation, UNDER_TABLE)) if choice.native_table else _miss(UNSETTLED, generation)
    graphs = {key: _winner(connection, key, generation) or under for key, *_ in rows}
    return _Program(graphs, tuple(row[1] for row in rows), choice, (outcome,) if outcome else ())


def _choice(connection: sqlite3.Connection, exact_key: str, graphs: list[tuple[str, str, str, str]]) -> tuple[str, ProgramChoice]:
    """The program's choice, and why there is none that may be served: "invalid_choice" or "quarantined"."""
    if schema_of(connection) < 3:
        return "", ProgramChoice()
    sql = "SELECT native_table, dispatch FROM program_choices WHERE exact_key = ? ORDER BY generation DESC LIMIT 1"
    row = connection.execute(sql, (exact_key,)).fetchone()
    if row is None:
        return "", ProgramChoice()
    try:
        choice = ProgramChoice.from_json({"native_table": json.loads(row[0]), "dispatch": json.loads(row[1])})
        validated_choice(choice)
    except (PlanError, ValueError, TypeError, RecursionError):
        return "invalid_choice", ProgramChoice()
    known = {row[0]: row for row in graphs}
    for key, plan, _ in (one for bucket in choice.dispatch for one in bucket.plans):
        if key not in known:
            return "invalid_choice", ProgramChoice()
        _, graph_key, target_key, toolchain_key = known[key]
        if why_withheld(connection, graph_key, target_key, toolchain_key, plan.key) is not None:
            return "quarantined", ProgramChoice()
    return "", choice


def _vetoed(connection: sqlite3.Connection) -> list[str]:
    """Exact-match keys of the programs whose plans in force are vetoed."""
    if schema_of(connection) < 2:
        return []
    keys = [key for (key,) in connection.execute("SELECT DISTINCT exact_key FROM program_finals WHERE verdict = 'vetoed'")]
    return [key for key in keys if _veto(connection, key, _program(connection, key, 0).digest)]


def _veto(connection: sqlite3.Connection, exact_key: str, plans: str) -> str | None:
    """Why a program is not to be served these plans together, in one line."""
    if not plans or schema_of(connection) < 2:
        return None
    sql = (
        "SELECT verdict, evidence, speedup, speedup_low, speedup_high FROM program_finals WHERE exact_key = ? AND plans = ? "
        "ORDER BY id DESC LIMIT 1"
    )
    verdict, evidence, *speedups = connection.execute(sql, (exact_key, plans)).fetchone() or ("none", "")
    if verdict != "vetoed":
        return None
    why = what_was_wrong(_object(evidence)) or "the whole callable measured {}x ({} to {})".format(*map(_told, speedups))
    return f"vetoed for this program: {why}"


def _answer(row: tuple[Any, ...], generation: int, sizes: tuple[tuple[int, ...], ...]) -> Answer:
    recorded, kind, plan, realised, speedup, low, high, effort, space_version = row
    if kind == "default":
        if Plan.from_json(json.loads(plan)) != Plan():
            raise ValueError("it says that the default won, and carries a plan")
        speedup = low = high = 1.0
        reason = f"the default is the settled winner of generation {recorded} (effort {effort}, space {space_version})"
    else:
        reason = f"winner of generation {recorded}: {speedup:.2f}x ({low:.2f} to {high:.2f}), effort {effort}"
    return validated(
        Answer(
            plan=validate_plan(json.loads(plan)),
            tier="exact",
            generation=generation,
            reason=reason,
            groups=groups_of(None if realised is None else json.loads(realised)),
            speedup=speedup,
            speedup_low=low,
            speedup_high=high,
            sizes=sizes,
        )
    )


def _told(speedup: Any) -> str:
    return f"{speedup:.2f}" if isinstance(speedup, int | float) else "?"


def _sizes(policy: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    """The sizes at which a winner was measured, of the fields of its policy. Raises ValueError."""
    return points_of(policy.get("sizes", ()))


def _explain(connection: sqlite3.Connection, query: Query) -> Miss:
    sql = (
        "SELECT target_key, toolchain_key, ambient_key FROM winners WHERE graph_key = ? "
        "GROUP BY 1, 2, 3 ORDER BY max(generation) DESC LIMIT ?"
    )
    stored = []
    for target, toolchain, ambient in connection.execute(sql, (query.workload_key, NEAREST_LIMIT)).fetchall():
        parts = {"target": target, "toolchain": toolchain, "ambient": ambient}
        stored.append({part: _fields(connection, key) for part, key in parts.items()})
    return explain(query, stored) if stored else UNKNOWN_GRAPH


def _fields(connection: sqlite3.Connection, key: str) -> dict[str, Any]:
    row = connection.execute("SELECT json FROM fields WHERE key = ?", (key,)).fetchone()
    return _object(row[0]) if row else {}


def _object(text: Any) -> dict[str, Any]:
    """A stored JSON object; an empty one where it is none."""
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        value = json.loads(text)
        return value if isinstance(value, dict) else {}
    return {}


def _generation(connection: sqlite3.Connection) -> int:
    return _number(connection, "SELECT value FROM meta WHERE name = 'generation'")


def _number(connection: sqlite3.Connection, sql: str, *values: str) -> int:
    row = connection.execute(sql, values).fetchone()
    if row is None or not isinstance(row[0], int):
        raise StoreError("the store has lost its generation")
    return row[0]
