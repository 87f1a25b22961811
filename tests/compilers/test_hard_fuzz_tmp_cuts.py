"""Graphs that are hard to name or to rebuild: what comes out is Inductor's to the bit, and what is not served has a reason."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import hard_distributed
import hard_graphs
import pytest
from hard_graphs import Case
from hard_run import close, run, same
from torch._inductor.utils import fresh_cache

import tuner
from tuner.compilers import dynamo

pytestmark = pytest.mark.slow
# Why a case is compiled by default without a look-up; the graphs of all others are asked for by their keys.
REASONS = {
    "read_to_python": "symbolic_sizes",
    "sizes_that_depend_on_data": "symbolic_sizes",
    "jagged": "symbolic_sizes",
    "meta_device": "device",
}
# What Dynamo gives no back end.
NEVER_COMPILED = ("quantised_by_module", "identity", "sparse", "sparse_input")
# Cases of each kind, for what costs a compilation more.
SOME = (
    hard_graphs.frozen_weights,
    hard_graphs.tied_weights,
    hard_graphs.repeated_region_that_trains,
    hard_graphs.flex,
    hard_graphs.branch,
    hard_graphs.scanned,
    hard_graphs.checkpointed,
    hard_graphs.mutated_inputs,
    hard_graphs.outputs_that_are_views_of_each_other,
    hard_graphs.optimiser_step,
    hard_graphs.read_to_python,
    hard_graphs.complex_numbers,
    hard_graphs.dropout,
    hard_graphs.automatic_dynamic_training,
    hard_graphs.two_tensors_that_train,
    hard_graphs.custom_op_that_writes,
)


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
    assert {graph.outcome for graph in report["served"]} <= {"default"}
    reasons = {name.removeprefix("default: ") for name in report["counts"] if name.startswith("default: ")}
    reasons |= {graph.reason for graph in report["served"] if not graph.workload_key}
    assert reasons == set(filter(None, [REASONS.get(make.__name__)]))
    assert bool(report["counts"].get("program")) == (make.__name__ not in NEVER_COMPILED)
    assert reasons or report["served"] or make.__name__ in NEVER_COMPILED


def is_right_under_random_plans(make: Callable[[], Case], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = run(make, "inductor")
    monkeypatch.setenv("TUNER_RANDOM_PLANS", "303")
    dynamo.reset()
    found = run(make, "tuner")
    assert close(found, wanted) == ""
    assert {graph.outcome for graph in tuner.report()["served"]} == {"random"}


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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", SOME)
def test_a_hard_graph_is_right_under_a_plan_drawn_at_random(make: Callable[[], Case], monkeypatch: pytest.MonkeyPatch) -> None:
    is_right_under_random_plans(make, monkeypatch)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [hard_distributed.functional_collectives, hard_distributed.tensor_parallel])
def test_a_graph_of_one_rank_of_two_is_right_under_a_plan_drawn_at_random(
    make: Callable[[], Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    with hard_distributed.fake_ranks():
        is_right_under_random_plans(make, monkeypatch)
