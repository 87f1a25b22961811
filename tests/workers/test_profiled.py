"""Where the time of a graph goes: each group a function of its own, timed within calls of the whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sessions import graph_of, numbers, session_on, softmax_graph, update_graph

from tuner.anatomy import KernelTimes
from tuner.compilers.inductor.hooks import cache_dir
from tuner.plan import Plan, canonical_groups
from tuner.search_spaces.fusion import no_fusion
from tuner.workers.profiled import profile
from tuner.workers.session import DEFAULT_KEY, Session


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def default_groups(session: Session):
    return canonical_groups(session.describe_default()["realised"])


def unfused(session: Session) -> Plan:
    return Plan(groups=no_fusion(default_groups(session)))


def kernels_of(told, key: str):
    """The groups that were timed, of a plan."""
    times = KernelTimes.from_json(told["times"][key])
    assert times.total_ms > 0
    assert all(ms >= 0 for _, ms in times.kernels)
    return canonical_groups(leaves for leaves, _ in times.kernels)


def binaries() -> set[Path]:
    return set(Path(cache_dir()).rglob("*.so"))


@pytest.mark.slow
def test_each_group_of_the_default_and_of_a_plan_is_timed_by_itself():
    session = session_on(softmax_graph())
    plan = unfused(session)
    told = profile(session, [plan], rounds=2, seed=0)
    assert told["failed"] == {}
    assert kernels_of(told, DEFAULT_KEY) == default_groups(session)
    assert kernels_of(told, plan.key) == plan.groups
    assert told["times"][DEFAULT_KEY]["library_ms"] == 0
    assert told["compile_s"] > 0


@pytest.mark.slow
def test_equal_groups_of_another_graph_are_compiled_once():
    def alone(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 3 + 1)

    def twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.relu(x * 3 + 1) @ w * 3 + 1)

    one, two = session_on(graph_of(alone, numbers(24, 24))), session_on(graph_of(twice, numbers(24, 24), numbers(24, 24, seed=1)))
    profile(one, [], rounds=1, seed=0)
    before = binaries()
    told = profile(two, [], rounds=1, seed=0)
    assert len(kernels_of(told, DEFAULT_KEY)) == 2
    assert told["times"][DEFAULT_KEY]["library_ms"] > 0
    assert before
    # Beside the function that works in place, of which there is none in the other graph.
    assert len(binaries() - before) <= 1
    profile(two, [], rounds=1, seed=0)
    again = binaries()
    profile(two, [], rounds=1, seed=1)
    assert binaries() == again


def test_what_a_graph_writes_is_put_back():
    session = session_on(update_graph())
    told = profile(session, [], rounds=2, seed=0)
    assert kernels_of(told, DEFAULT_KEY) == default_groups(session)
    written = session.timed.originals
    assert len(written) == 2
    assert all(torch.equal(session.timed.values[i], original) for i, original in written.items())


def test_a_plan_that_cannot_be_compiled_costs_the_others_nothing():
    session = session_on(softmax_graph())
    refused = Plan(native=("aten._softmax.default#1",))
    told = profile(session, [refused], rounds=1, seed=0)
    assert set(told["times"]) == {DEFAULT_KEY}
    assert told["failed"][refused.key]["status"] == "refused"


def test_a_call_that_raises_is_a_verdict(monkeypatch):
    session = session_on(softmax_graph())
    monkeypatch.setattr(session.sized[0], "call", lambda function: lambda: 1 / 0)
    told = profile(session, [], rounds=1, seed=0)
    assert told["times"] == {}
    assert told["failed"][DEFAULT_KEY]["status"] == "crash"
    assert "ZeroDivisionError" in told["failed"][DEFAULT_KEY]["message"]


@pytest.mark.parametrize(
    ("field", "value", "words"), [("mode", "cuda_graph", "mode cuda_graph"), ("device", "cuda:0", "on the CPU only yet")]
)
def test_where_kernels_are_not_known_apart_the_reason_is_told(monkeypatch, field, value, words):
    session = session_on(softmax_graph())
    if field == "device":
        monkeypatch.setattr(session.device, "name", value)
    else:
        session.policy = replace(session.policy, mode=value)
    told = profile(session, [Plan(compiler="eager")], rounds=1, seed=0)
    assert told["times"] == {}
    assert {words in verdict["message"] for verdict in told["failed"].values()} == {True}
    assert len(told["failed"]) == 2
