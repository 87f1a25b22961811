"""Makes `fixtures/schema-N.db` of this version's schema. Run it once, when a schema is released, and never for an older one:

python tests/cache/make_fixture.py
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from stored import GROUP_TIMES, GROUPS, KNOB, NATIVE, POLICY, SPLIT, measurement, program, program_final, query, settled, winner

from tuner.cache.sqlite import SqliteStore
from tuner.lookup.connection import SCHEMA


def main() -> None:
    fixture = Path(__file__).parent / "fixtures" / f"schema-{SCHEMA}.db"
    if fixture.exists():
        raise SystemExit(f"{fixture} exists: a fixture is made once")
    fixture.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        with SqliteStore(path) as store:
            store.add_graph(query("a").workload_key, {"nodes": []})
            store.add_program(program(), [query("a"), query("b")], "made:up")
            store.add_measurement(measurement(query("a"), SPLIT, realised=GROUPS, provenance={"host": "h"}))
            store.add_measurement(measurement(query("a"), KNOB, status="timeout", samples_ms=(), default_samples_ms=()))
            store.record_winner(winner(query("a"), SPLIT, evidence={"processes": 3}))
            store.record_winner(settled(query("b")))
            store.record_program_final(program_final(winner(query("a"), SPLIT), verdict="confirmed", evidence={"processes": 3}))
            store.record_program_choice(program(), native_table=NATIVE.native, evidence={"processes": 3})
            store.add_group_times(query("a"), POLICY, GROUP_TIMES)
        connection = sqlite3.connect(path, isolation_level=None)
        # one file, without a write-ahead log beside it
        connection.execute("VACUUM INTO ?", (str(fixture),))
        connection.close()


if __name__ == "__main__":
    main()
