"""How long a candidate may take, derived from what the default took. Counted by who holds the device, from when he holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# The default's own compilation and check, before anything is known of it: a large graph on a slow machine.
OPEN_S = 420.0
# A candidate's compilation against the default's: other groups are other kernels, of which g++ now and then takes many times as
# long; beside others in a pool it takes longer still. The floor is for small graphs, where starting g++ is all there is.
COMPILE_FLOOR_S, COMPILE_FACTOR = 60.0, 10.0
# A candidate's calls against the default's. One that is 50 times as slow is not worth more.
RUN_FLOOR_S, RUN_FACTOR = 20.0, 50.0
# A candidate's check against the default's: most of it compares, which takes as long for any candidate; and the calls in it.
CHECK_FLOOR_S, CHECK_FACTOR, CHECK_CALLS = 10.0, 5.0, 4


@dataclass(frozen=True)
class Limits:
    """compile_s: for compiling one candidate. try_s: for compiling and checking one. call_s: for one call."""

    compile_s: float
    try_s: float
    call_s: float

    def run_s(self, calls: int) -> float:
        """Seconds for so many calls, with what surrounds them."""
        return RUN_FLOOR_S + calls * self.call_s


def limits(default: Mapping[str, Any]) -> Limits:
    """The limits beside a default of which `default` tells, the worker's answer to "open": its compile_s, check_s and call_s."""
    compile_s = max(COMPILE_FLOOR_S, COMPILE_FACTOR * default["compile_s"])
    call_s = RUN_FACTOR * default["call_s"]
    check_s = CHECK_FLOOR_S + CHECK_FACTOR * default["check_s"] + CHECK_CALLS * call_s
    return Limits(compile_s=compile_s, try_s=compile_s + check_s, call_s=call_s)
