"""A compile that misses today is served tomorrow, without anyone asking. With real processes, compilers and measurements."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tuner.cache.sqlite import SqliteStore
from tuner.lookup.unix_http import request
from tuner.search.progress import SCREENING

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
    return request(daemons.socket, "GET", "/v2/stats")["stored"]["measurements"]


def tuning_daemon(daemons: Any) -> Any:
    process = daemons.start("--store", str(daemons.store), "--socket", str(daemons.socket), "--when-busy", "measure")
    daemons.hello(process)
    return process


def until(met: Callable[[], Any]) -> Any:
    end = time.monotonic() + DEADLINE_S
    while not (found := met()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)
    return found


def job(daemons: Any) -> dict[str, Any]:
    (only,) = request(daemons.socket, "GET", "/v2/jobs")["jobs"]
    return only


def marked(mark: str) -> list[int]:
    """Process ids of those that were started with `mark` in their environment, and of what they started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


@pytest.mark.slow
def test_a_compile_that_misses_today_is_served_tomorrow_though_the_daemon_is_killed_over_it(daemons, tmp_path, monkeypatch):
    mark = f"mark-{tmp_path}"
    monkeypatch.setenv("MARK", mark)
    daemon = tuning_daemon(daemons)
    first = compile_in_a_process(daemons, tmp_path / "first")
    assert first["agree"]
    assert [(one["tier"], one["outcome"]) for one in first["served"]] == [("default", "default")]
    assert first["counts"] == {"program": 1, "default": 1, "miss reported": 1}

    until(lambda: job(daemons)["phase"] in SCREENING)
    assert len(marked(mark)) > 2
    daemon.kill()
    daemon.wait()
    until(lambda: not marked(mark))

    tuning_daemon(daemons)
    until(lambda: job(daemons)["state"] not in ("queued", "running"))
    assert (job(daemons)["state"], job(daemons)["attempts"]) == ("done", 2), job(daemons)

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
    assert winner.query.workload_key == job(daemons)["workload_keys"][0]
