"""A store of the test's own, and its reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.lookup.reader import StoreReader


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def reader(path: Path) -> StoreReader:
    return StoreReader(path)
