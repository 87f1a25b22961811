"""Where the time of a graph goes: each of its kernels, by default and under plans, timed within calls of the whole.

Runs in the child only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.compilers.inductor.kernel_times import WatchedKernels, cannot_split, split_kernels
from tuner.measure.cpu import CLOCKS
from tuner.measure.timing import measure_stretch
from tuner.plan import Plan
from tuner.workers.builder import Built
from tuner.workers.session import Session
from tuner.workers.verdicts import failure, starved

Call = Callable[[], Any]


@dataclass(frozen=True)
class Profiled:
    """A plan compiled with a function for each group.

    call: one call on the inputs that are timed, timed as a whole. watched: the same call, its kernels timed.
    """

    call: Call
    watched: Call
    kernels: WatchedKernels


def profile(session: Session, plans: Sequence[Plan], rounds: int, seed: int) -> dict[str, Any]:
    """Times of the kernels of the default and the plans, interleaved, at the first of the policy's sizes.

    times: KernelTimes as JSON by plan key, the default's among them. failed: a verdict on each that could not be timed; on all,
    where this device or these settings do not tell kernels apart. conditions: see Stretch. compile_s: seconds that compiling and
    first calls took. Outputs are not checked.
    """
    wanted = {plan.key: plan for plan in (Plan(), *plans)}
    policy, one = session.policy, session.sized[0]
    if reason := _cannot_profile(session):
        verdict = {"status": "refused", "why": "not profiled", "message": reason}
        return {"status": "ok", "times": {}, "failed": dict.fromkeys(wanted, verdict), "conditions": {}, "compile_s": 0.0}
    started = time.monotonic()
    made: dict[str, Profiled] = {}
    failed: dict[str, dict[str, Any]] = {}
    for key, plan in wanted.items():
        found = _profiled(session, plan)
        if isinstance(found, Profiled):
            made[key] = found
        else:
            failed[key] = found
    told = {"status": "ok", "failed": failed, "compile_s": time.monotonic() - started}
    if not made:
        return {**told, "times": {}, "conditions": {}}
    stretch = measure_stretch(
        session.device,
        [call for found in made.values() for call in (found.call, found.watched)],
        policy,
        samples=rounds,
        repetitions=one.repetitions,
        restore=one.restore,
        seed=seed,
        patience=0,
    )
    one.put_back()
    times = {key: found.kernels.times(rounds * one.repetitions).to_json() for key, found in made.items()}
    busy = {"busy": stretch.busy} if stretch.busy else {}
    return {**told, "times": times, "conditions": {**stretch.conditions, **busy}}


def _cannot_profile(session: Session) -> str:
    if session.device.name != "cpu":
        return "kernels are timed one by one on the CPU only yet"
    if session.policy.mode != "eager":
        return f"kernels cannot be timed one by one in the mode {session.policy.mode}"
    return cannot_split()


def _profiled(session: Session, plan: Plan) -> Profiled | dict[str, Any]:
    """The plan compiled and called once, or the verdict on it."""
    with split_kernels() as code:
        built = session.builder.attempt(plan, None, ())
    if not isinstance(built, Built):
        return built
    one = session.sized[0]
    if not built.holds(one.sizes):
        return {"status": "refused", "why": "not for all sizes", "message": "the compiler makes other code for the first size"}
    if code.module is None:
        return {"status": "refused", "why": "not profiled", "message": "the compiler made no Python module"}
    kernels = WatchedKernels(code, built.realised.ids, CLOCKS[session.policy.clock])
    call = one.call(built.function)
    found = Profiled(kernels.timing(call), kernels.watching(call), kernels)
    try:
        one.put_back()
        found.watched()
        return found
    # A border of the worker loop: whatever running a candidate raises is a verdict on it.
    except BaseException as error:
        status = "out_of_resources" if starved(error) else "crash"
        return {**failure(error), "status": status, "sticky": session.device.is_sticky(error)}
    finally:
        one.put_back()
