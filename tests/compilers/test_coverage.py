"""Ten models and seeds drawn at random, each compiled under plans drawn at random; `make soak` draws two hundred."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "coverage.py"


@pytest.mark.slow
def test_ten_draws_find_nothing() -> None:
    command = [sys.executable, str(BENCHMARK), "--own", "--draws", "10", "--jobs", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert [error for row in found["rows"] for error in row["errors"]] == []
    assert done.returncode == 0
    assert len(found["rows"]) == 10
    assert found["random_plans"] >= 10
