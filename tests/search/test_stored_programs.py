"""The key of a stored program as a SPEC: for the threads and the settings that it was compiled with, on this machine only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tuner.cache.contract import StoredProgram
from tuner.compilers.inductor.ambient import cpu_target, cpu_toolchain
from tuner.compilers.inductor.hooks import inductor_config
from tuner.errors import SpecError, TunerError, UsageError
from tuner.search.workloads import Resolved, resolve
from tuner.target import Query
from tuner.workload.graph import Graph, Symbol

GRAPH = Graph("inference", (), [], (), ())
KEY = "ab" * 32


@pytest.fixture(autouse=True)
def threads_put_back() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def stored(threads: int = 1, key: str = KEY, **more: Any) -> StoredProgram:
    """A program of one graph, compiled here; `more` are other settings."""
    where = (cpu_target().fields(), cpu_toolchain(), {"threads": threads, **more})
    return StoredProgram(Query("program", key, *where), (Query("graph", GRAPH.key, *where),), "m:f")


def resolved(*made: StoredProgram, threads: int | None = None, dims: Any = None, graphs: tuple[str, ...] = ()) -> list[Resolved]:
    return resolve(
        KEY[:12],
        threads=threads,
        forms=lambda key: GRAPH.to_json(),
        find=lambda prefix: list(graphs),
        programs=lambda prefix: list(made),
        dims=dims or {},
    )


def test_its_graphs_are_tuned_for_the_settings_and_threads_that_it_was_compiled_with():
    made = stored(1, inductor={"max_fusion_size": 8})
    (one,) = resolved(made)
    assert (one.program_query, one.query, one.graph.key) == (made.query, made.graphs[0], GRAPH.key)
    assert one.query.ambient["inductor"] == {"max_fusion_size": 8}
    assert torch.get_num_threads() == 1


def test_other_settings_of_the_same_program_are_tuned_too():
    assert len(resolved(stored(1), stored(1, deterministic=True))) == 2


def test_threads_asked_for_choose_among_the_records_and_change_them_where_none_fits():
    assert [one.query.ambient["threads"] for one in resolved(stored(1), stored(2), threads=2)] == [2]
    (one,) = resolved(stored(1), threads=2)
    assert one.program_query == stored(2).query
    assert one.query == stored(2).graphs[0]


@pytest.mark.parametrize(
    ("made", "more", "error", "told"),
    [
        ([stored(1), stored(2)], {}, UsageError, "compiled for 1 and 2 threads: say which with --threads"),
        ([stored(1), stored(1, key="ab" * 31 + "cd")], {}, SpecError, "give more digits"),
        ([stored(1)], {"graphs": ("ab" * 31 + "ef",)}, SpecError, "a stored workload and a stored program have this key"),
        ([stored(1)], {"dims": {"s0": (1, 8)}}, UsageError, "has no size that varies"),
    ],
)
def test_what_is_not_clear_is_refused(made, more, error: type[TunerError], told):
    with pytest.raises(error, match=told):
        resolved(*made, **more)


EVIL = {"cpp.cxx": ["/tmp/evil"]}


@pytest.mark.parametrize(
    "ambient",
    [
        {"threads": 1, "inductor": EVIL},
        {"threads": 1, "inductor": {"post_grad_custom_pre_pass": {"uuid": "os.system"}}},
        {"threads": 1, "inductor": {"cpp.cxx": "/tmp/evil"}},
        {"threads": 1, "inductor": [["cpp.cxx", ["/tmp/evil"]]]},
        {"threads": 10**6},
        {"threads": True},
        {"threads": "1"},
        {},
    ],
    ids=str,
)
def test_settings_that_a_store_may_not_choose_are_refused(ambient):
    made = stored()
    evil = replace(made, query=replace(made.query, ambient=ambient))
    with pytest.raises(SpecError, match="the stored program cannot be tuned"):
        resolved(evil)
    with pytest.raises(SpecError, match="the stored program cannot be tuned"):
        resolved(replace(made, graphs=(replace(made.graphs[0], ambient=ambient),)))


def test_a_setting_that_is_a_text_is_taken_where_the_user_says_it_too():
    made = stored(inductor={"cpp.simdlen": None, "cpp.vec_isa_ok": True, "cpp.dynamic_threads": True, "cpp.cxx": [None, "c++"]})
    with pytest.raises(SpecError, match=r"cpp\.cxx is not taken over .* --option"):
        resolved(made)
    with inductor_config.patch({"cpp.cxx": [None, "c++"]}):
        assert [one.query for one in resolved(made)] == list(made.graphs)


def test_a_program_that_was_compiled_elsewhere_is_refused_with_what_differs():
    made = stored(1)
    other = replace(made, query=replace(made.query, toolchain={**made.query.toolchain, "torch": "1.0"}))
    with pytest.raises(SpecError, match=r"compiled elsewhere: toolchain\.torch \(stored '1\.0', asked"):
        resolved(other)


def test_sizes_of_a_program_are_named_only_where_they_mean_the_same_in_each_graph(monkeypatch: pytest.MonkeyPatch):
    def varying(count: int) -> Any:
        monkeypatch.setitem(globals(), "GRAPH", replace(GRAPH, symbols=(Symbol(2, None, 8),) * count))
        return resolved(stored(1), dims={"s0": (4, 8)})

    assert [one.sizes for one in varying(1)] == [((4,), (8,))]
    with pytest.raises(UsageError, match=r"--dim x\.0: the stored program has the sizes s0"):
        resolved(stored(1), dims={"s0": (4, 8), "x.0": (4, 8)})
    with pytest.raises(UsageError, match="numbers its sizes by itself: name a graph, like"):
        varying(2)


@pytest.mark.parametrize("made", [[stored(1)], []], ids=["a program", "a graph"])
def test_a_phase_cannot_be_chosen_for_what_is_stored(made: list[StoredProgram]):
    with pytest.raises(UsageError, match="no --phase"):
        resolve(KEY, threads=None, forms=lambda key: None, find=lambda prefix: [], programs=lambda prefix: made, phase="training")
