"""A compile that misses today is served tomorrow, without anyone asking. With real processes, compilers and measurements."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tuner.cache.sqlite import SqliteStore
from tuner.lookup.unix_http import request

DEADLINE_S = 600.0
COMPILING = Path(__file__).with_name("compiling.py")


def compile_in_a_process(daemons: Any, caches: Path) -> dict[str, Any]:
    """What `compiling.py` says, with compile caches of its own in `caches`."""
    environment = {
        **os.environ,
        "TUNER_STORE": str(daemons.store),
        "TUNER_SOCKET": str(daemons.socket),
        "TUNER_DEADLINE_MS": "60000",
        "TORCHINDUCTOR_CACHE_DIR": str(caches),
    }
    done = subprocess.run(
        [sys.executable, str(COMPILING)], capture_output=True, text=True, timeout=DEADLINE_S, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def measurements(daemons: Any) -> dict[str, int]:
    return request(daemons.socket, "GET", "/v1/stats")["stored"]["measurements"]


@pytest.mark.slow
def test_a_compile_that_misses_today_is_served_tomorrow(daemons, tmp_path):
    process = daemons.start("--store", str(daemons.store), "--socket", str(daemons.socket), "--when-busy", "measure")
    daemons.hello(process)
    first = compile_in_a_process(daemons, tmp_path / "first")
    assert first["agree"]
    assert [(one["tier"], one["outcome"]) for one in first["served"]] == [("default", "default")]
    assert first["counts"] == {"program": 1, "default": 1, "miss reported": 1}

    end = time.monotonic() + DEADLINE_S
    while (job := request(daemons.socket, "GET", "/v1/jobs")["jobs"][0])["state"] in ("queued", "running"):
        assert time.monotonic() < end, f"it is not tuned yet: {job}"
        time.sleep(0.2)
    assert job["state"] == "done", job

    before = measurements(daemons)
    assert before.get("ok", 0) > 0
    second = compile_in_a_process(daemons, tmp_path / "second")
    assert second["agree"]
    assert [(one["tier"], one["source"]) for one in second["served"]] == [("exact", "daemon")]
    assert "miss reported" not in second["counts"]
    assert measurements(daemons) == before
    with SqliteStore(daemons.store, read_only=True) as store:
        ((winner, _),) = store.winners()
    assert winner.kind == second["served"][0]["winner"]
    assert winner.query.workload_key == job["workload_keys"][0]
