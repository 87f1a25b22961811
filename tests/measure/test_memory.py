"""Peak memory of a call: what lives at the same time is added up, what was freed before is not."""

from __future__ import annotations

import pytest
import torch

from tuner.measure.memory import call_growth_bytes, resident_bytes

MIB = 2**20
# what the allocator and the profiler add
ROOM = 64 * 1024


def block() -> torch.Tensor:
    return torch.empty(MIB, dtype=torch.uint8)


def test_a_temporary_counts_though_it_is_gone_after_the_call():
    def function():
        temporary = block()
        return temporary[:1].clone()

    assert call_growth_bytes(function) == pytest.approx(MIB, abs=ROOM)


def test_a_result_counts():
    kept = []
    assert call_growth_bytes(lambda: kept.append(block())) == pytest.approx(MIB, abs=ROOM)


def test_blocks_that_live_together_are_added_up():
    def function():
        return [block() for _ in range(3)]

    assert call_growth_bytes(function) == pytest.approx(3 * MIB, abs=ROOM)


def test_a_freed_block_is_not_counted_twice():
    def function():
        for _ in range(5):
            block()

    assert call_growth_bytes(function) == pytest.approx(MIB, abs=ROOM)


def test_the_peak_counts_and_not_the_end():
    def function():
        first = [block() for _ in range(4)]
        del first
        return block()

    assert call_growth_bytes(function) == pytest.approx(4 * MIB, abs=ROOM)


def test_memory_that_was_there_before_does_not_count():
    before = [block(), block()]
    assert call_growth_bytes(lambda: before[0].add_(1)) < ROOM


def test_a_call_that_allocates_nothing_grows_by_nothing():
    assert call_growth_bytes(lambda: None) == 0


def test_the_memory_of_the_process_is_asked_once():
    first = resident_bytes()
    assert first > 50 * MIB
    kept = torch.ones(64 * MIB, dtype=torch.uint8)
    assert resident_bytes() == first
    del kept
