"""A bench whose worker is a script: verdicts and times by plan, no process, no compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stored import query

from tuner.errors import WorkerDied, WorkerTimeout
from tuner.measurement import Policy
from tuner.plan import Groups, Plan, canonical_groups
from tuner.search.bench import Bench
from tuner.search.effort import Effort
from tuner.search.progress import Progress
from tuner.search.workloads import Resolved
from tuner.workload.graph import Graph

POLICY = Policy.for_cpu(1)
LEAVES = tuple(f"{i}:64|:ComputedBuffer.Pointwise:0" for i in range(4))
ONE_GROUP: Groups = (LEAVES,)
EFFORT = Effort("quick", trials=100, seconds=100.0, screen_samples=5, race_samples=5, final_samples=8)
GELU, SILU = "aten.gelu.default", "aten.silu.default"


def graph(native: tuple[str, ...] = ()) -> Graph:
    """A graph of no nodes, with a native form that calls `native`."""
    from tuner.workload.graph import Node

    form = Graph("inference", tuple(Node("call", name, [], {}, None) for name in native), [], (), ())
    return Graph("inference", (), [], (), (), native_form=form)


def resolved(native: tuple[str, ...] = ()) -> Resolved:
    return Resolved("made.py:up", graph(native), query(), None)


def progress() -> Progress:
    return Progress("made.py:up", "", EFFORT.trials, EFFORT.seconds)


class ScriptedBench(Bench):
    """ms: time of one call by plan (the default takes 1). verdict: what `try` answers for a plan, {} for "ok" with its own code.

    A verdict {"raise": error} is raised as by a lost worker. `tried` lists the plans that were asked for, in order.
    """

    def __init__(self, ms: Callable[[Plan], float], verdict: Callable[[Plan], dict[str, Any]] = lambda plan: {}):
        super().__init__(POLICY, seed=0)
        self.ms, self.verdict, self.tried, self.plans = ms, verdict, list[Plan](), {Plan().key: Plan()}
        self.opened, self.told = 0, dict[str, dict[str, Any]]()

    @property
    def process(self) -> str:
        return f"scripted {self.opened}"

    def open(self, resolved: Resolved) -> dict[str, Any]:
        self._resolved, self.live = resolved, {Plan().key}
        self._worker = object()  # type: ignore[assignment]
        self.opened += 1
        groups = [list(group) for group in ONE_GROUP]
        self.default = {"realised": groups, "code_key": "default", "default_ms": 1.0, "repetitions": 1, "peak_bytes": 1000}
        return self.default

    def _ask(self, timeout_s: float, **request: Any) -> Any:
        try:
            return self._answer(request)
        except (WorkerDied, WorkerTimeout):
            self.close()
            raise

    def _answer(self, request: dict[str, Any]) -> Any:
        if request["do"] == "time":
            assert set(request["keys"]) <= self.live, "a worker can only time what it has compiled"
            for key in request["keys"]:
                if error := self.told[key].get("raise when timed"):
                    raise error
            return {key: self._samples(key, request["samples"]) for key in (Plan().key, *request["keys"])}
        plan = Plan.from_json(request["plan"])
        self.tried.append(plan)
        self.plans[plan.key] = plan
        groups = [list(group) for group in canonical_groups(plan.groups or ONE_GROUP)]
        told = self.told[plan.key] = self.verdict(plan)
        if "raise" in told:
            raise told["raise"]
        answer = {"status": "ok", "realised": groups, "code_key": plan.key, "error": 0.1, "peak_bytes": 1000}
        answer |= {name: value for name, value in told.items() if not name.startswith("raise")}
        if answer["status"] == "ok" and answer["code_key"] in request["seen_codes"]:
            return {"status": "duplicate", "code_key": answer["code_key"]}
        return answer

    def _samples(self, key: str, samples: int) -> list[float]:
        ms = 1.0 if key == Plan().key else self.ms(self.plans[key])
        return [ms * (1 + 0.001 * (i % 3)) for i in range(samples)]

    def close(self) -> None:
        self.live, self._worker = set(), None
