"""A stretch: every call is sampled equally often, on restored state and cold caches; noise is repeated, then refused."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from fake_device import FakeDevice, always

from tuner.errors import TunerError
from tuner.measure.cpu import CpuDevice
from tuner.measure.device import Call
from tuner.measure.timing import (
    MAX_REPETITIONS,
    MAX_WARM_UP_BLOCKS,
    SAMPLE_MS,
    WAKE_MS,
    WARM_UP_MS,
    Stretch,
    measure_stretch,
    repetitions_for,
)
from tuner.measurement import Policy

WARM = Policy("wall", 1)
COLD = Policy("wall", 1, cache="cold")


def measured(device: FakeDevice, *calls: Call, policy: Policy = WARM, **changes: Any) -> Stretch:
    options: dict[str, Any] = {"samples": 12, "repetitions": 1, "restore": None, "seed": 0, "patience": 0}
    return measure_stretch(device, calls, policy, wait=device.wait, **{**options, **changes})


def names(device: FakeDevice, since: int = 0) -> list[str]:
    return [entry[1] for entry in device.log[since:] if entry[0] == "call"]


def sampled(device: FakeDevice) -> Callable[[], int]:
    """Patches the device to note where the log stood when it was read; where it stood after the first warm-up is returned."""
    reading, marks = device.conditions, []

    def conditions():
        marks.append(len(device.log))
        return reading()

    device.conditions = conditions  # type: ignore[method-assign]
    return lambda: marks[1]


def test_each_call_is_sampled_equally_often():
    device = FakeDevice()
    warm = sampled(device)
    stretch = measured(
        device, *(device.call(name, ms) for name, ms in zip("abc", (1, 3, 9), strict=True)), repetitions=5, samples=7
    )
    counted = names(device, warm())
    assert {name: counted.count(name) for name in "abc"} == dict.fromkeys("abc", 7 * 5)
    assert [len(times) for times in stretch.times_ms] == [7, 7, 7]


def test_each_call_gets_its_own_times():
    device = FakeDevice()
    stretch = measured(device, *(device.call(str(ms), ms) for ms in (1.0, 2.5, 0.25)), samples=4, repetitions=3)
    assert stretch.times_ms == [pytest.approx([ms] * 4) for ms in (1.0, 2.5, 0.25)]
    assert stretch.busy is None


def test_every_round_holds_each_call_once_in_an_order_of_its_own():
    device = FakeDevice()
    warm = sampled(device)
    measured(device, *(device.call(name, 1.0) for name in "abcd"), samples=20)
    log = names(device, warm())
    rounds = ["".join(log[i : i + 4]) for i in range(0, len(log), 4)]
    assert {"".join(sorted(one)) for one in rounds} == {"abcd"}
    assert len(rounds) == 20
    assert len(set(rounds)) > 5, "in another order each time"


def test_the_order_depends_on_the_seed_alone():
    def order(seed: int) -> list[str]:
        device = FakeDevice()
        measured(device, *(device.call(name, 1.0) for name in "abcd"), samples=10, seed=seed)
        return names(device)

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_the_slow_first_calls_are_not_in_the_times():
    device = FakeDevice()
    slow = (100.0, 40.0, 10.0, 3.0, 1.3, 1.1)
    stretch = measured(device, device.call("a", 1.0), device.call("b", 1.0, first_ms=slow))
    assert stretch.times_ms == [pytest.approx([1.0] * 12)] * 2


def test_the_first_call_warms_the_device_and_the_others_need_two_blocks_that_agree():
    device = FakeDevice()
    warm = sampled(device)
    measured(device, device.call("a", 5.0), device.call("b", 1.0))
    log = names(device)[: warm()]
    assert WAKE_MS / 5.0 <= log.count("a") <= WAKE_MS / 5.0 + 1
    assert log.count("b") == 2


def test_the_warm_up_of_a_call_that_never_settles_ends():
    device = FakeDevice()
    warm = sampled(device)
    unsettled = tuple(1.0 + i % 2 for i in range(1000))
    measured(device, device.call("a", 1.0, first_ms=unsettled))
    assert len(names(device)[: warm()]) == MAX_WARM_UP_BLOCKS


def test_a_very_long_call_is_warmed_up_by_one_call():
    device = FakeDevice()
    warm = sampled(device)
    measured(device, device.call("a", WARM_UP_MS + 1))
    assert len(names(device)[: warm()]) == 1


def test_state_is_restored_before_each_call_and_off_the_clock():
    device = FakeDevice()

    def restore():
        device.log.append(("restore",))
        device.spend(0.05)

    stretch = measured(device, device.call("a", 1.0), device.call("b", 1.0), repetitions=4, restore=restore)
    kinds = [entry[0] for entry in device.log]
    assert kinds == ["restore", "call"] * (len(kinds) // 2)
    assert stretch.times_ms == [pytest.approx([1.0] * 12)] * 2


def test_a_cold_cache_is_flushed_before_every_call_after_its_state_was_restored():
    device = FakeDevice()
    stretch = measured(device, device.call("a", 1.0), device.call("b", 1.0), policy=COLD, repetitions=2)
    kinds = [entry[0] for entry in device.log]
    assert kinds == ["flush", "call"] * (len(kinds) // 2), "in the warm-up too"
    assert stretch.times_ms == [pytest.approx([1.0] * 12)] * 2, "outside the clock"
    device.log.clear()
    measured(device, device.call("a", 1.0), policy=COLD, restore=lambda: device.log.append(("restore",)))
    kinds = [entry[0] for entry in device.log]
    assert kinds == ["restore", "flush", "call"] * (len(kinds) // 3)


def test_graphs_are_replayed_where_the_policy_says_so_with_a_cold_cache_too():
    device = FakeDevice(modes=("eager", "cuda_graph"))
    measured(device, device.call("a", 1.0), policy=Policy("wall", 1, mode="cuda_graph", cache="cold"))
    kinds = [entry[0] for entry in device.log]
    assert kinds == ["flush", "replay", "call"] * (len(kinds) // 3)
    device.log.clear()
    measured(device, device.call("a", 1.0))
    assert {entry[0] for entry in device.log} == {"call"}


@pytest.mark.parametrize(
    ("policy", "message"),
    [(Policy("cuda_event", 1), "clocks wall, thread, not cuda_event"), (Policy("wall", 1, mode="cuda_graph"), "not cuda_graph")],
)
def test_a_policy_that_the_device_cannot_follow_is_refused(policy, message):
    device = FakeDevice()
    with pytest.raises(TunerError, match=message):
        measured(device, device.call("a", 1.0), policy=policy)
    assert device.log == []


def test_a_quiet_stretch_is_measured_once_and_tells_what_was_read():
    device = FakeDevice()
    stretch = measured(device, device.call("a", 20.0), patience=3)
    assert stretch.busy is None
    assert device.readings == 3, "before and after the warm-up, and after the samples"
    told = json.loads(json.dumps(stretch.conditions, allow_nan=False))
    assert (told["attempts"], told["cores"], told["other_cores"], told["mhz"]) == (1, 2, 0.0, [3000.0, 3000.0])
    assert told["elapsed_s"] == pytest.approx((math.ceil(WAKE_MS / 20.0) + 12) * 0.02), "with the warm-up"


def test_a_disturbed_stretch_is_repeated_after_growing_waits_and_then_refused_with_the_reason():
    device = FakeDevice()
    device.neighbours = always(2.0)
    stretch = measured(device, device.call("a", 20.0), patience=3)
    assert stretch.busy is not None
    assert "other processes kept 2.0 of 2 cores busy" in stretch.busy
    assert stretch.conditions["attempts"] == 4
    waits = [float(entry[1]) for entry in device.log if entry[0] == "wait"]
    assert len(waits) == 3
    assert 0 < waits[0] < waits[1] < waits[2]


def test_a_stretch_that_was_disturbed_for_a_while_is_measured_anew_when_it_is_quiet():
    device = FakeDevice()
    leave_s = device.now_s + 1.0
    device.neighbours = lambda now_s: 2.0 if now_s < leave_s else 0.0
    slowed = tuple([30.0] * (2 + 12))
    stretch = measured(device, device.call("a", 20.0, first_ms=slowed), patience=3)
    assert stretch.busy is None
    assert stretch.conditions["attempts"] == 2
    assert stretch.times_ms == [pytest.approx([20.0] * 12)], "nothing of the disturbed stretch"


def test_one_neighbour_on_the_other_core_does_not_disturb_one_thread_but_two():
    for threads, disturbed in ((1, False), (2, True)):
        device = FakeDevice()
        device.neighbours = always(1.0)
        stretch = measured(device, device.call("a", 20.0), policy=Policy("wall", threads))
        assert (stretch.busy is not None) is disturbed


def test_a_clock_that_rises_in_the_warm_up_is_no_disturbance_and_one_that_falls_after_it_is():
    device = FakeDevice()
    started_s = device.now_s
    device.mhz = lambda now_s: 3000.0 if now_s > started_s else 800.0
    assert measured(device, device.call("a", 20.0)).busy is None
    fallen_s = device.now_s + 0.2
    device.mhz = lambda now_s: 3000.0 if now_s < fallen_s else 2000.0
    assert measured(device, device.call("a", 20.0)).busy == "the clock of the processor went from 3000 to 2000 MHz"


def test_short_samples_are_judged_together_with_their_warm_up():
    device = FakeDevice()
    device.neighbours = always(2.0)
    stretch = measured(device, device.call("a", 2.0), device.call("b", 2.0), samples=12)
    assert stretch.busy is not None
    assert "other processes" in stretch.busy


def test_a_default_that_drifts_while_measured_is_seen():
    device = FakeDevice()
    stretch = measured(device, device.call("a", 1.0, drift=100.0), device.call("b", 1.0), patience=1)
    assert stretch.busy is not None
    assert "the default drifted by" in stretch.busy
    assert stretch.conditions["attempts"] == 2


def test_a_default_whose_samples_scatter_is_seen_and_one_that_scatters_little_is_not():
    scattered, steady = FakeDevice(), FakeDevice()
    stretch = measured(scattered, scattered.call("a", 1.0, noise=0.9), samples=30)
    assert stretch.busy is not None
    assert measured(steady, steady.call("a", 1.0, noise=0.03), samples=30).busy is None


def test_what_a_call_raises_comes_through():
    device = FakeDevice()
    broken = device.call("b", 1.0, fails=RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
        measured(device, device.call("a", 1.0), broken)


@pytest.mark.parametrize("was_on", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_garbage_is_not_collected_while_timing_and_as_before_after_it(was_on, fails):
    device, seen = FakeDevice(), []

    def call():
        device.spend(1e-3)
        seen.append(gc.isenabled())
        if fails and len(seen) == 45:
            raise RuntimeError("broken")

    before = gc.isenabled()
    (gc.enable if was_on else gc.disable)()
    try:
        if fails:
            with pytest.raises(RuntimeError, match="broken"):
                measured(device, call)
        else:
            measured(device, call)
        assert not any(seen)
        assert gc.isenabled() is was_on
    finally:
        (gc.enable if before else gc.disable)()


def test_a_stretch_is_measured_on_a_real_cpu():
    calls = [lambda n=n: sum(range(n)) for n in (1_000, 100_000)]
    for policy in (Policy.for_cpu(1), Policy.for_cpu(2), Policy.for_cpu(1, cache="cold")):
        stretch = measure_stretch(
            CpuDevice(), calls, policy, samples=3, repetitions=repetitions_for(0.5, policy), restore=None, seed=0, patience=0
        )
        little, much = (min(times) for times in stretch.times_ms)
        assert 0 < little * 5 < much
        json.dumps(stretch.conditions, allow_nan=False)


@pytest.mark.parametrize(
    ("default_ms", "repetitions"), [(SAMPLE_MS / 10, 10), (SAMPLE_MS, 1), (1000.0, 1), (0.0, MAX_REPETITIONS)]
)
def test_a_sample_lasts_about_as_long_whatever_the_default_takes(default_ms, repetitions):
    assert repetitions_for(default_ms) == repetitions
    assert repetitions_for(default_ms, Policy.for_cpu(1)) == repetitions
    assert repetitions_for(default_ms, Policy.for_cpu(1, cache="cold")) == 1, "after the first call a cold cache is warm"


def test_the_number_of_repetitions_stays_in_its_bounds():
    for exponent in range(-12, 9):
        repetitions = repetitions_for(10.0**exponent)
        assert isinstance(repetitions, int)
        assert 1 <= repetitions <= MAX_REPETITIONS
        assert repetitions == MAX_REPETITIONS or repetitions * 10.0**exponent >= SAMPLE_MS
