"""Which candidates are in quarantine: those that were wrong, crashed or hung, and have not passed a screening since.

A verdict holds for a workload, candidate, target and toolchain, whatever the policy, the ambient settings or the stage it came
under. A later "ok" of the stage "screen", which is what a retry on request leaves, lifts it. Store and reader share these
queries.
"""

from __future__ import annotations

import sqlite3

from tuner.measurement import QUARANTINE

# the whole of the verdicts in force: rows `verdict` of the table measurements
IN_FORCE = f"""
FROM measurements AS verdict
WHERE verdict.status IN ({", ".join(f"'{status}'" for status in QUARANTINE)})
AND NOT EXISTS (
    SELECT 1 FROM measurements AS retry
    WHERE retry.graph_key = verdict.graph_key AND retry.candidate_key = verdict.candidate_key
    AND retry.target_key = verdict.target_key AND retry.toolchain_key = verdict.toolchain_key
    AND retry.status = 'ok' AND retry.stage = 'screen' AND retry.id > verdict.id
)
"""
# a condition for IN_FORCE, and a grouping that leaves the latest verdict on each candidate (SQLite takes bare columns from the
# row that has the maximum)
OF_WORKLOAD = "AND verdict.graph_key = ? AND verdict.target_key = ? AND verdict.toolchain_key = ?"
LATEST = "GROUP BY verdict.graph_key, verdict.candidate_key, verdict.target_key, verdict.toolchain_key ORDER BY max(verdict.id)"
MESSAGE_LIMIT = 200


def why_withheld(
    connection: sqlite3.Connection, graph_key: str, target_key: str, toolchain_key: str, candidate_key: str
) -> str | None:
    """The verdict that keeps a candidate from being served, in one line; None where there is none. Raises sqlite3.Error."""
    sql = f"SELECT status, message, error {IN_FORCE} {OF_WORKLOAD} AND verdict.candidate_key = ? ORDER BY verdict.id DESC LIMIT 1"
    row = connection.execute(sql, (graph_key, target_key, toolchain_key, candidate_key)).fetchone()
    return None if row is None else describe_verdict(*row)


def describe_verdict(status: str, message: str, error: float | None) -> str:
    """`wrong (what was seen)`: the first line of the message, else how far the outputs are off."""
    lines = message.strip().splitlines()
    seen = lines[0][:MESSAGE_LIMIT] if lines else f"{error:.3g} times the tolerance" if isinstance(error, int | float) else ""
    return f"{status} ({seen})" if seen else status
