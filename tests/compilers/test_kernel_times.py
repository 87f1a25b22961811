"""The time of each kernel within a call: of equal functions each call by itself, library calls apart."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tuner.compilers.inductor import kernel_times
from tuner.compilers.inductor.hooks import inductor_config
from tuner.compilers.inductor.kernel_times import SplitCode, WatchedKernels, cannot_split

US = 1000
FIRST, SECOND, THIRD = (
    ("1:8|:ComputedBuffer.Pointwise:0",),
    ("2:8|:ComputedBuffer.Pointwise:0",),
    ("3:8|8:ComputedBuffer.Reduction:0",),
)
IDS = {"op0": FIRST[0], "op1": SECOND[0], "op2": THIRD[0]}


class Clock:
    """Stands still but for what is spent; reading it costs 1 microsecond."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        self.ns += US
        return self.ns

    def spend(self, us: float) -> None:
        self.ns += int(us * US)


class Made:
    """A generated module of which each function takes as long as it is told, and its graph's call."""

    def __init__(self, body: Callable[[types.ModuleType, Clock], None], kernels: Sequence[tuple[str, tuple[str, ...]]]):
        self.clock, self.module = Clock(), types.ModuleType("made")
        for name in {name for name, _ in kernels}:
            setattr(self.module, name, self.clock.spend)
        self.module.extern_kernels = types.SimpleNamespace(mm=self.clock.spend)  # type: ignore[attr-defined]
        self.module.torch = torch  # type: ignore[attr-defined]
        self.watched = WatchedKernels(SplitCode(list(kernels), self.module), IDS, self.clock)
        self.call = self.watched.watching(lambda: body(self.module, self.clock))
        self.whole = self.watched.timing(lambda: body(self.module, self.clock))

    def call_both(self) -> None:
        self.whole()
        self.call()

    def times_us(self, calls: int) -> tuple[dict[Any, float], float]:
        times = self.watched.times(calls)
        return {group: ms * 1e3 for group, ms in times.kernels}, times.library_ms * 1e3


EQUAL = [("cpp_fused_0", ("op0",)), ("cpp_fused_1", ("op2",)), ("cpp_fused_0", ("op1",))]


def equal_kernels(module: Any, clock: Clock) -> None:
    module.cpp_fused_0(5)
    module.extern_kernels.mm(100)
    clock.spend(1000)
    module.cpp_fused_1(20)
    module.cpp_fused_0(7)
    module.extern_kernels.mm(50)


def test_each_call_of_equal_functions_has_leaves_and_a_time_of_its_own():
    made = Made(equal_kernels, EQUAL)
    for _ in range(3):
        made.call_both()
    kernels, library_us = made.times_us(3)
    assert made.watched.times(3).total_ms == pytest.approx(1.182)
    assert kernels == pytest.approx({FIRST: 5, SECOND: 7, THIRD: 20})
    assert library_us == pytest.approx(150)


def test_of_many_calls_the_last_are_counted_and_a_slow_one_is_not_believed():
    slow = iter([900, 900, 900, 5, 5, 400, 5, 5] * 2)
    made = Made(lambda module, clock: module.cpp_fused_0(next(slow)), [("cpp_fused_0", ("op0",))])
    for call in (made.call, made.whole):
        for _ in range(8):
            call()
    assert made.times_us(5) == ({FIRST: pytest.approx(5)}, 0.0)
    assert made.watched.times(5).total_ms == pytest.approx(0.005)


def test_where_the_number_of_calls_varies_the_mean_is_told():
    often = iter([1, 1, 3, 3, 1, 1, 3, 3])

    def body(module: Any, clock: Clock) -> None:
        for _ in range(next(often)):
            module.cpp_fused_0(10)

    made = Made(body, [("cpp_fused_0", ("op0",))])
    for _ in range(4):
        made.call_both()
    assert made.times_us(2)[0] == {FIRST: pytest.approx(20)}


def test_what_no_leaf_of_the_graph_makes_counts_as_a_library_call():
    made = Made(lambda module, clock: module.cpp_fused_0(3), [("cpp_fused_0", ("subgraph0_op0",))])
    made.call_both()
    assert made.times_us(1) == ({}, pytest.approx(3))


def test_library_calls_by_any_of_their_names_are_timed_and_give_what_they_gave():
    given: list[torch.Tensor] = []

    def body(module: Any, clock: Clock) -> None:
        given.append(module.torch.ops.aten.add.Tensor(module.torch.ones(2), 1.0))
        assert module.torch.float32 is torch.float32

    made = Made(body, [])
    made.call()
    assert torch.equal(given[0], torch.full((2,), 2.0))
    assert made.module.torch is torch, "outside of a watched call nothing is replaced"
    assert made.watched._calls == 1
    assert len(made.watched._library) == 1


def test_what_was_replaced_is_put_back_when_a_kernel_fails():
    def body(module: Any, clock: Clock) -> None:
        module.cpp_fused_0("no number")

    made = Made(body, [("cpp_fused_0", ("op0",))])
    with pytest.raises(ValueError, match="no number"):
        made.call()
    assert made.module.cpp_fused_0 == made.clock.spend


def test_settings_under_which_kernels_are_not_apart_are_told(monkeypatch):
    assert cannot_split() == ""
    with inductor_config.patch(cpp_wrapper=True):
        assert "cpp_wrapper" in cannot_split()
    monkeypatch.setattr(kernel_times, "CppScheduling", object)
    assert "CppScheduling.codegen_node" in cannot_split()
