"""Screening and race find the best config of real GPUs' measurements, with few repetitions."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("TUNER_SHARED", ROOT.parent / "shared")) / "data" / "kernel_tuner"
FILES = sorted(DATA.glob("*/*.json.gz"))


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_of_measurement", ROOT / "benchmarks" / "measurement.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not FILES, reason=f"no measurements in {DATA}")
@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_the_chosen_config_is_within_one_percent_of_the_best_with_five_repetitions_each(
    benchmark: ModuleType, file: Path
) -> None:
    for seed in range(3):
        regret, repetitions = benchmark.replay(file, seed)
        assert repetitions <= 5
        assert regret <= 0.01


def test_a_rate_of_none_in_sixty_is_below_five_percent_with_confidence(benchmark: ModuleType) -> None:
    assert benchmark.upper_bound(0, 60) == pytest.approx(1 - 0.05 ** (1 / 60))
    assert benchmark.upper_bound(60, 60) == 1.0
