"""What a candidate may take of time and memory, derived from the default."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tuner.workers.limits import limits
from tuner.workers.memory import available_bytes, is_leaking, resident_bytes_now

QUICK = {"compile_s": 0.5, "check_s": 0.01, "call_s": 1e-5}


def test_a_small_graph_is_given_a_floor_and_a_large_one_a_multiple_of_its_own_time():
    quick, slow = limits(QUICK), limits({"compile_s": 100.0, "check_s": 20.0, "call_s": 1.0})
    assert quick.compile_s >= 30
    assert quick.run_s(1) >= 5
    assert slow.compile_s >= 5 * 100
    assert slow.try_s - slow.compile_s >= 5 * 20 + 10 * 1
    assert slow.run_s(10) - slow.run_s(0) >= 5 * 10


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
