"""What a candidate may take of time and memory, derived from the default."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tuner.measure.timing import FIRST_WAIT_S, MAX_WARM_UP_BLOCKS
from tuner.workers.limits import limits
from tuner.workers.memory import available_bytes, is_leaking, resident_bytes_now

QUICK = {"compile_s": 0.5, "check_s": 0.01, "call_s": 1e-5}


def test_a_small_graph_is_given_a_floor_and_a_large_one_a_multiple_of_its_own_time():
    quick, slow = limits(QUICK), limits({"compile_s": 100.0, "check_s": 20.0, "call_s": 1.0})
    assert quick.compile_s >= 30
    assert slow.compile_s >= 5 * 100
    assert slow.try_s - slow.compile_s >= 5 * 20 + 10 * 1


def test_each_kernel_of_the_default_adds_to_the_time_for_compiling():
    many = limits({**QUICK, "realised": [["a leaf"]] * 100})
    assert many.compile_s >= 5 * 100, "though its own compilation found all of them compiled"
    assert limits({**QUICK, "realised": [["a leaf"]]}) == limits({**QUICK, "realised": None}) == limits(QUICK)


CALL_S = 1.0
SLOW_CALLS = {**QUICK, "call_s": CALL_S}


def stretch_s(candidates: int = 1, samples: int = 10, repetitions: int = 3, patience: int = 0, known: bool = False) -> float:
    return limits(SLOW_CALLS).stretch_s(candidates, samples, repetitions, patience, known)


def test_a_stretch_has_time_for_all_its_calls_and_warm_ups_however_often_it_is_repeated():
    """As many samples as `measure_stretch` takes at most, of calls that take what the default's takes."""
    assert limits(QUICK).stretch_s(1, 1, 1, 0, known=True) >= 5
    for candidates, samples, patience in ((0, 1, 0), (1, 10, 0), (1, 10, 3), (8, 200, 3), (0, 200, 5)):
        waits_s = FIRST_WAIT_S * (2**patience - 1)
        calls = (candidates + 1) * (samples + MAX_WARM_UP_BLOCKS) * 3 * (patience + 1)
        for known in (False, True):
            assert stretch_s(candidates, samples, patience=patience, known=known) >= waits_s + calls * CALL_S


def test_one_that_was_timed_before_is_given_less_than_one_of_which_nothing_is_known():
    unknown, known = stretch_s(4, 100), stretch_s(4, 100, known=True)
    assert unknown >= 4 * 100 * 3 * 50 * CALL_S, "each may be 50 times as slow"
    assert 4 * 100 * 3 * 5 * CALL_S <= known < unknown / 3


def test_a_worker_that_grew_by_much_is_replaced():
    gib = 2**30
    assert not is_leaking(gib, 2 * gib)
    assert is_leaking(gib, 4 * gib)
    assert is_leaking(gib // 8, gib)
    assert not is_leaking(0, 0), "where /proc tells nothing"


def test_memory_is_read():
    assert resident_bytes_now() > 2**20
    assert (available_bytes() or 0) > 2**20


CAPPED = """
import sys
from tuner.workers import memory
memory.MIN_CAP_BYTES = 64 * 2**20
limit = memory.cap_memory(int(sys.argv[1]))
assert memory.mapped_bytes() < limit < memory.mapped_bytes() + 2**30, limit
try:
    bytearray(2**30)
except MemoryError:
    print("refused")
bytearray(32 * 2**20)
memory.cap_memory(None)
bytearray(2**30)
print("lifted")
"""


@pytest.mark.parametrize("default_peak", [0, 100 * 2**20])
def test_memory_beyond_the_cap_is_refused_until_it_is_lifted(default_peak):
    ran = subprocess.run([sys.executable, "-c", CAPPED, str(default_peak)], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["refused", "lifted"]
