"""Interleaved samples: every function is called equally often, on restored state, outside of which the clock stands still."""

from __future__ import annotations

import gc
import itertools

import pytest

from tuner.measure import timing
from tuner.measure.timing import MAX_REPETITIONS, SAMPLE_MS, interleaved, repetitions_for, time_calls


class World:
    """A clock that only stands where functions say how long they take, and a log of what was called."""

    def __init__(self):
        self.now_ns = 0
        self.log: list[str] = []

    def function(self, name: str, ms: float):
        def call():
            self.log.append(name)
            self.now_ns += int(ms * 1e6)

        return call


@pytest.fixture
def world(monkeypatch) -> World:
    made = World()
    monkeypatch.setitem(timing.CLOCKS, "wall", lambda: made.now_ns)
    return made


def test_each_function_is_called_equally_often(world):
    functions = [world.function(name, 1.0) for name in "abc"]
    interleaved(functions, samples=7, repetitions=5, clock="wall", restore=None, seed=0)
    assert {name: world.log.count(name) for name in "abc"} == dict.fromkeys("abc", (7 + 1) * 5), "one round more, to warm up"


def test_each_function_gets_its_own_times(world):
    functions = [world.function(name, ms) for name, ms in (("a", 1.0), ("b", 2.5), ("c", 0.25))]
    assert interleaved(functions, 4, 3, "wall", None, seed=0) == [[1.0] * 4, [2.5] * 4, [0.25] * 4]


def test_the_first_calls_of_each_function_are_not_in_its_times(world):
    slow_at_first = itertools.chain([100.0] * 3, itertools.repeat(1.0))

    def function():
        world.now_ns += int(next(slow_at_first) * 1e6)

    assert interleaved([function], 4, 3, "wall", None, seed=0) == [[1.0] * 4]


def test_every_round_holds_each_function_once(world):
    functions = [world.function(name, 1.0) for name in "abcd"]
    interleaved(functions, samples=20, repetitions=1, clock="wall", restore=None, seed=0)
    rounds = ["".join(world.log[i : i + 4]) for i in range(4, len(world.log), 4)]
    assert {"".join(sorted(one)) for one in rounds} == {"abcd"}
    assert len(set(rounds)) > 5, "in another order each time"


def test_the_order_depends_on_the_seed_alone(world):
    def order(seed):
        world.log.clear()
        interleaved([world.function(name, 1.0) for name in "abcd"], 10, 1, "wall", None, seed)
        return list(world.log)

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_state_is_restored_before_each_call_and_off_the_clock(world):
    functions = [world.function(name, 1.0) for name in "ab"]
    times = interleaved(functions, samples=3, repetitions=4, clock="wall", restore=world.function("restore", 50.0), seed=0)
    assert world.log[::2] == ["restore"] * (len(world.log) // 2)
    assert world.log[1::2].count("a") == world.log[1::2].count("b") == (3 + 1) * 4
    assert times == [[1.0] * 3, [1.0] * 3]


def test_a_time_is_the_mean_of_its_calls(world):
    lasting = iter([1.0, 2.0, 6.0])

    def function():
        world.now_ns += int(next(lasting) * 1e6)

    assert time_calls(function, 3, "wall", None) == 3.0


@pytest.mark.parametrize("was_on", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_garbage_is_not_collected_while_timing_and_as_before_after_it(world, was_on, fails):
    seen = []

    def function():
        seen.append(gc.isenabled())
        if fails and len(seen) == 3:
            raise RuntimeError("broken")

    before = gc.isenabled()
    (gc.enable if was_on else gc.disable)()
    try:
        if fails:
            with pytest.raises(RuntimeError, match="broken"):
                interleaved([function], 4, 1, "wall", None, 0)
        else:
            interleaved([function], 4, 1, "wall", None, 0)
        assert not any(seen[1:])
        assert gc.isenabled() is was_on
    finally:
        (gc.enable if before else gc.disable)()


def test_the_clocks_of_every_policy_are_there_and_go_forward():
    for name in ("thread", "wall"):
        before = timing.CLOCKS[name]()
        sum(range(10_000))
        assert timing.CLOCKS[name]() > before


@pytest.mark.parametrize(
    ("default_ms", "repetitions"), [(SAMPLE_MS / 10, 10), (SAMPLE_MS, 1), (1000.0, 1), (0.0, MAX_REPETITIONS)]
)
def test_a_sample_lasts_about_as_long_whatever_the_default_takes(default_ms, repetitions):
    assert repetitions_for(default_ms) == repetitions


def test_the_number_of_repetitions_stays_in_its_bounds():
    for exponent in range(-12, 9):
        repetitions = repetitions_for(10.0**exponent)
        assert isinstance(repetitions, int)
        assert 1 <= repetitions <= MAX_REPETITIONS
        assert repetitions == MAX_REPETITIONS or repetitions * 10.0**exponent >= SAMPLE_MS
