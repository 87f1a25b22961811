"""A measuring process in which one call of a candidate is several calls: a true speed-up that is known exactly.

Run as a worker's child with TUNER_SLOWED="CALLS FAST_KEY FAST_CALLS": the default and every plan make CALLS calls at a time, the
plan whose key is FAST_KEY makes FAST_CALLS.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tuner.measure.timing import repetitions_for
from tuner.workers import child


def several(run: Callable[[], Any], calls: int) -> Callable[[], Any]:
    def repeated() -> Any:
        for _ in range(calls - 1):
            run()
        return run()

    return repeated


class SlowedHandler(child.Handler):
    def open(self, request: dict[str, Any]) -> Any:
        calls, fast_key, fast_calls = os.environ["TUNER_SLOWED"].split()
        told = super().open(request)
        if request.get("compile_only", False):
            return told
        session = self.session
        default = session.entries[next(iter(session.entries))]
        default.run = several(default.run, int(calls))
        session.default_ms, session.call_s = session._rough(default)
        session.repetitions = repetitions_for(session.default_ms, session.policy)
        try_plan = session.try_plan

        def slowed(plan: Any, *rest: Any) -> Any:
            verdict = try_plan(plan, *rest)
            if plan.key in session.entries:
                entry = session.entries[plan.key]
                entry.run = several(entry.run, int(fast_calls if plan.key == fast_key else calls))
            return verdict

        session.try_plan = slowed
        return session.describe_default()


if __name__ == "__main__":
    child.Handler = SlowedHandler  # type: ignore[misc]
    child.main()
