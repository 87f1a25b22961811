"""What the tests of the search share: a store, and a screening by a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from scripted import EFFORT, GELU, LISTED, ONE_CANDIDATE, POLICY, Script, bench, progress, resolved

from tuner.cache.sqlite import SqliteStore
from tuner.measurement import Policy
from tuner.search.bench import Bench
from tuner.search.effort import Effort
from tuner.search.progress import Progress
from tuner.search.rules import Rules
from tuner.search.screen import screen
from tuner.search.screened import Screening
from tuner.search.sweep import Sweep, plan_sweep, run_sweep
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
        into: SqliteStore | None = None,
    ) -> tuple[Screening, Progress]:
        script.play(monkeypatch)
        seen = progress()
        with on or bench() as measuring:
            found = screen(measuring, pool, asked or resolved((GELU,)), into or store, effort, seen, rules or LISTED)
        return found, seen

    return screened


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices that were held, in order."""
    held: list[str] = []

    @contextmanager
    def hold(name: str, wait: Any) -> Iterator[None]:
        held.append(name)
        yield

    monkeypatch.setattr("tuner.search.sweep.hold_device", hold)
    return held


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch, store: SqliteStore, devices: list[str]) -> Callable[..., Sweep]:
    """Sweeps workloads by a script."""

    def swept(
        script: Script,
        *workloads: Resolved,
        policy: Policy = POLICY,
        effort: Effort = EFFORT,
        again: bool = False,
        rules: Rules = ONE_CANDIDATE,
    ) -> Sweep:
        script.play(monkeypatch)
        plan = plan_sweep(workloads, effort, lambda: None)
        run_sweep(plan, store, policy, effort, again, rules)
        return plan

    return swept
