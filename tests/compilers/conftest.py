"""A store of the test's own, and Inductor's caches in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Bench
from torch._inductor.utils import fresh_cache


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    made = Bench(tmp_path / "store.db")
    monkeypatch.setenv("TUNER_STORE", str(made.store))
    monkeypatch.setenv("TUNER_SOCKET", str(tmp_path / "no.sock"))
    # Look-ups are quick, but this machine may not be.
    monkeypatch.setenv("TUNER_DEADLINE_MS", "60000")
    with fresh_cache():
        made.new_process()
        yield made
    made.new_process()
