"""Graphs that are hard to name or to rebuild: what comes out is Inductor's to the bit, and what is not served has a reason."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import hard_distributed
import hard_graphs
import pytest
from hard_graphs import Case
from hard_run import run, same
from torch._inductor.utils import fresh_cache

import tuner
from tuner.compilers import dynamo

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _one_cache() -> Iterator[None]:
    """Compile caches of this file's own: machine code that a case makes twice is compiled once."""
    with fresh_cache():
        yield


@pytest.fixture(autouse=True)
def _nothing_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_STORE", str(tmp_path / "store.db"))
    monkeypatch.setenv("TUNER_SOCKET", str(tmp_path / "no.sock"))
    monkeypatch.setenv("TUNER_DEADLINE_MS", "60000")
    dynamo.reset()
    tuner.reset_report()


def is_left_alone(make: Callable[[], Case], caplog: pytest.LogCaptureFixture) -> None:
    """Where no plan is known, the back end changes nothing of what Inductor alone does, and says why it did what it did."""
    wanted = run(make, "inductor")
    with caplog.at_level(logging.WARNING, "tuner"):
        found = run(make, "tuner")
    assert same(found, wanted) == ""
    report = tuner.report()
    assert not [name for name in report["counts"] if "error" in name], [record.getMessage() for record in caplog.records]
    assert all(graph.outcome == "default" and (graph.workload_key or graph.reason) for graph in report["served"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", hard_graphs.ALL)
def test_a_hard_graph_is_compiled_as_inductor_does(make: Callable[[], Case], caplog: pytest.LogCaptureFixture) -> None:
    is_left_alone(make, caplog)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", hard_distributed.OF_TWO)
def test_a_graph_of_one_rank_of_two_is_compiled_as_inductor_does(
    make: Callable[[], Case], caplog: pytest.LogCaptureFixture
) -> None:
    with hard_distributed.fake_ranks():
        is_left_alone(make, caplog)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", hard_distributed.ALONE)
def test_a_graph_of_the_only_rank_is_compiled_as_inductor_does(
    make: Callable[[], Case], caplog: pytest.LogCaptureFixture
) -> None:
    with hard_distributed.one_rank():
        is_left_alone(make, caplog)
