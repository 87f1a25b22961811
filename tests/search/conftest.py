"""What the tests of the search share: a store, and a screening by a script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from scripted import EFFORT, GELU, Script, bench, progress, resolved

from tuner.cache.sqlite import SqliteStore
from tuner.search.bench import Bench
from tuner.search.effort import Effort
from tuner.search.progress import Progress
from tuner.search.screen import Rules, Screening, screen
from tuner.search.workloads import Resolved


@pytest.fixture
def store() -> SqliteStore:
    return SqliteStore(":memory:")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, store: SqliteStore) -> Callable[..., tuple[Screening, Progress]]:
    """Screens one graph by a script; no pool, unless one is given."""

    def screened(
        script: Script,
        asked: Resolved | None = None,
        effort: Effort = EFFORT,
        rules: Rules | None = None,
        pool: Any = None,
        on: Bench | None = None,
    ) -> tuple[Screening, Progress]:
        script.play(monkeypatch)
        seen = progress()
        with on or bench() as measuring:
            found = screen(measuring, pool, asked or resolved((GELU,)), store, effort, seen, rules or Rules())
        return found, seen

    return screened
