"""Measuring processes that are a script: verdicts and times by plan, no process, no compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from splits import single_splits
from stored import program, query

from tuner.anatomy import Anatomy, Leaf
from tuner.cache.sqlite import SqliteStore
from tuner.errors import WorkerDied, WorkerTimeout
from tuner.measurement import Policy
from tuner.plan import Groups, Plan, canonical_groups
from tuner.search.bench import DEFAULT, Bench
from tuner.search.effort import Effort
from tuner.search.progress import Progress
from tuner.search.rules import SEED, Rules
from tuner.search.workloads import Resolved
from tuner.search_spaces.inductor_knobs import knobs_for
from tuner.search_spaces.lowering import first_choices
from tuner.search_spaces.space import Candidate, knob_candidates
from tuner.workload.graph import Graph, Node

POLICY = Policy.for_cpu(1)
LEAVES = tuple(f"{i}:64|:ComputedBuffer.Pointwise:0" for i in range(4))
ONE_GROUP: Groups = (LEAVES,)
EFFORT = Effort("quick", trials=100, seconds=100.0, race_samples=20, final_samples=20)
GELU, SILU = "aten.gelu.default", "aten.silu.default"
A = Plan(native=(GELU,))
ONE_CANDIDATE = Rules(jobs=1, space=lambda groups, native: [Candidate("the only one", A)])
KNOBS = knobs_for("cpu", calls=())
CONDITIONS = {"conditions": {"clock_mhz": 3000}}
Told = dict[str, Any]


def listed(groups: Groups, native: Iterable[str]) -> list[Candidate]:
    """Not a search: what is tried is known beforehand. What is tried first, but for cuts; then each split of one group."""
    splits = [Candidate("split", Plan(groups=split)) for split in single_splits(groups)]
    return [*first_choices(groups, native, [], knob_candidates(KNOBS)), *splits]


LISTED = Rules(space=listed)


def resolved(native: tuple[str, ...] = (), name: str = "a", spec: str = "made.py:up", made_by: str | None = None) -> Resolved:
    """A graph of no nodes that the scripts know by `name`; ops that may stay native; the name of the program it comes of."""
    calls = tuple(Node("call", target, [], {}, None) for target in (*native, name))
    form = Graph("inference", calls, [], (), ())
    made = Graph("inference", (), [], (), (), native_form=form)
    return Resolved(spec, made, query(name), None if made_by is None else program(made_by))


def bench(process: int = 0, patience: int = EFFORT.patience) -> Bench:
    return Bench(POLICY, SEED + process, patience)


def progress() -> Progress:
    return Progress("made.py:up", "", EFFORT.trials, EFFORT.seconds)


def taking(times: dict[Plan, float], otherwise: float = 1.0) -> Callable[[Plan], float]:
    return lambda plan: times.get(plan, otherwise)


def telling(told: dict[Plan, Told]) -> Callable[[Plan], Told]:
    return lambda plan: told.get(plan, {})


class Script:
    """What all measuring processes of a test answer, and what they were asked.

    ms: time of one call by plan; the default takes 1. verdict: what "try" answers, {} for "ok" with code of its own. odd: by how
    much a plan is slower in the process of this number, counted from 0, for as long as that lives. An answer {"raise": error} is
    raised, as by a lost worker; {"raise when timed": error} when the plan is timed. opening: what differs in the answer to
    "open", by the graph's name. busy: what makes a stretch of these plans untrustworthy, if anything. whole: what differs in the
    answer to "open whole" or "open sequence", with "ms", the times of default and planned, one pair for each process. at: by how
    much a plan, or the default, takes longer at one of a symbolic graph's sizes. profiled: a verdict on a plan whose
    kernels have no times, or {"raise": error}; or {"compile_s": seconds that compiling it took}. anatomy: what differs in its
    answer. limits_s: of each "time"; opening_limits_s: of each "open".
    """

    def __init__(
        self,
        ms: Callable[[Plan], float] = lambda plan: 1.0,
        verdict: Callable[[Plan], Told] = lambda plan: {},
        *,
        odd: Callable[[Plan, int], float] = lambda plan, process: 1.0,
        opening: Callable[[str], Told] = lambda graph: {},
        busy: Callable[[Sequence[Plan]], str | None] = lambda plans: None,
        whole: Callable[[str, int], Told] = lambda spec, process: {},
        at: Callable[[Plan, tuple[int, ...]], float] = lambda plan, size: 1.0,
        profiled: Callable[[Plan], Told] = lambda plan: {},
        anatomy: Callable[[Plan], Told] = lambda plan: {},
    ):
        self.at, self.profiled, self.anatomy = at, profiled, anatomy
        self.ms, self.verdict, self.odd, self.opening, self.busy, self.whole = ms, verdict, odd, opening, busy, whole
        self.requests: list[Told] = []
        self.limits_s: list[float] = []
        self.opening_limits_s: list[float] = []
        self.workers: list[ScriptedWorker] = []

    def play(self, monkeypatch: pytest.MonkeyPatch) -> Script:
        """From now on each measuring process is one of this script's."""
        monkeypatch.setattr("tuner.search.bench.Worker", self._start)
        monkeypatch.setattr("tuner.search.whole.Worker", self._start)
        return self

    def worker(self, number: int, environment: Told) -> ScriptedWorker:
        return ScriptedWorker(self, number, environment)

    def _start(self, threads: int, device: str = "cpu", module: str = "", environment: Told | None = None) -> ScriptedWorker:
        self.workers.append(self.worker(len(self.workers), environment or {}))
        return self.workers[-1]

    def asked(self, do: str) -> list[Told]:
        return [request for request in self.requests if request["do"] == do]

    @property
    def tried(self) -> list[Plan]:
        return [Plan.from_json(request["plan"]) for request in self.asked("try")]

    @property
    def timed(self) -> list[tuple[str, ...]]:
        return [tuple(request["keys"]) for request in self.asked("time")]


class ScriptedWorker:
    """Raises AssertionError where it is asked for what a real one could not give."""

    def __init__(self, script: Script, number: int, environment: dict[str, str]):
        self.script, self.number, self.name, self.alive = script, number, f"scripted {number}", True
        self.environment = environment
        self.plans: dict[str, Plan] = {}
        self.sizes: tuple[tuple[int, ...], ...] = ()
        self.told: dict[str, Told] = {}
        self.whole: Told | None = None
        self.graph, self.resident = "", 1000

    def ask(self, timeout_s: float, **request: Any) -> Told:
        assert self.alive, "a worker that was killed cannot be asked"
        assert timeout_s > 0
        self.script.requests.append({**request, "process": self.number, "limit_s": timeout_s})
        if request["do"] in (limits := {"time": self.script.limits_s, "open": self.script.opening_limits_s}):
            limits[request["do"]].append(timeout_s)
        answers = {"open": self._open, "try": self._try, "time": self._time, "open whole": self._open_whole}
        answers |= {"open sequence": self._open_sequence, "profile": self._profile, "anatomy": self._anatomy}
        return answers[request["do"]](**{name: value for name, value in request.items() if name != "do"})

    def _raising(self, told: Told) -> Told:
        if "raise" in told:
            self.alive = type(told["raise"]) not in (WorkerTimeout, WorkerDied)
            raise told["raise"]
        return told

    def _open(self, graph: Told, policy: Told, **_: Any) -> Told:
        self.plans, self.sizes = {DEFAULT.key: DEFAULT}, Policy(**policy).sizes
        groups = [list(group) for group in ONE_GROUP]
        answer = {"status": "ok", "realised": groups, "code_key": "default", "error": 0.0, "peak_bytes": 1000}
        if self.sizes:
            answer["peak_bytes"] = [1000] * len(self.sizes)
        answer |= {"default_ms": 1.0, "repetitions": 1, "compile_s": 0.1, "check_s": 0.1, "call_s": 0.001, "checkable": True}
        self.graph = graph["native_form"]["nodes"][-1][1]
        return self._raising({**answer, "resident_bytes": 1000, **self.script.opening(self.graph)})

    def _try(self, plan: Told, expected: Any, seen_codes: list[str], own_copy: str) -> Told:
        wanted = Plan.from_json(plan)
        told = self.told[wanted.key] = self._raising(self.script.verdict(wanted))
        groups = [list(group) for group in canonical_groups(wanted.groups or ONE_GROUP)]
        answer = {"status": "ok", "realised": groups, "code_key": own_copy or wanted.key, "error": 0.1, "peak_bytes": 1000}
        if self.sizes:
            answer["peak_bytes"] = [1000] * len(self.sizes)
        answer |= {"resident_bytes": self.resident, **told}
        self.resident = answer["resident_bytes"]
        if answer["status"] == "ok" and answer["code_key"] in seen_codes:
            return {"status": "duplicate", "code_key": answer["code_key"], "resident_bytes": self.resident}
        if answer["status"] == "ok":
            self.plans[wanted.key] = wanted
        return answer

    def _time(self, keys: list[str], samples: int, seed: int, patience: int) -> Told:
        if self.whole is not None:
            return self._time_whole(samples)
        assert set(keys) <= set(self.plans), "a worker can only time what it has compiled"
        plans = [self.plans[key] for key in (DEFAULT.key, *keys)]
        for plan in plans:
            if error := self.told.get(plan.key, {}).get("raise when timed"):
                self._raising({"raise": error})
        times = {plan.key: self._samples(plan, samples) for plan in plans}
        return {**CONDITIONS, "times": times, "busy": self.script.busy(plans[1:]), "resident_bytes": self.resident}

    def _anatomy(self, plan: Told) -> Told:
        """Leaves that read and write nothing, grouped as the plan wants."""
        wanted = Plan.from_json(plan)
        groups = canonical_groups(wanted.groups or ONE_GROUP)
        leaves = tuple(Leaf(leaf, "ComputedBuffer.Pointwise", True, "", (), (), (), ()) for group in groups for leaf in group)
        told = self._raising({**self.script.anatomy(wanted)})
        return {"status": "ok", "anatomy": Anatomy(leaves, (), (), groups).to_json(), "resident_bytes": self.resident, **told}

    def _profile(self, plans: list[Told], rounds: int, seed: int) -> Told:
        """One kernel in which all the time is spent."""
        times, failed, compile_s = {}, {}, 0.0
        for plan in (DEFAULT, *map(Plan.from_json, plans)):
            told = self._raising({**self.script.profiled(plan)})
            compile_s += told.get("compile_s", 0.0)
            leaves = [leaf for group in ONE_GROUP for leaf in group]
            ms = 1.0 if plan.is_default else self.script.ms(plan)
            if "status" in told:
                failed[plan.key] = told
            else:
                times[plan.key] = {"kernels": [[leaves, ms]], "library_ms": 0.0, "total_ms": ms}
        told = {"status": "ok", "times": times, "failed": failed, "compile_s": compile_s}
        return {**CONDITIONS, **told, "resident_bytes": self.resident}

    def _samples(self, plan: Plan, samples: int) -> list[float]:
        made = noisy(1.0 if plan.is_default else self.script.ms(plan) * self.script.odd(plan, self.number), samples)
        return [ms * self.script.at(plan, size) for ms in made for size in self.sizes] if self.sizes else made

    def _open_whole(self, spec: str, policy: Told, **_: Any) -> Told:
        self.sizes = Policy(**policy).sizes
        process = sum(request["spec"] == spec for request in self.script.asked("open whole")) - 1
        self.whole = {"error": 0.1, "ms": (1.0, 0.9), "busy": None, **self.script.whole(spec, process)}
        with SqliteStore(self.environment["TUNER_STORE"], read_only=True) as store:
            outcomes = [(won.query.workload_key, "served" if won.kind == "plan" else "default") for won, _ in store.winners()]
        told = {"default_ms": 1.0, "repetitions": 1, "compile_s": 0.0, "check_s": 0.0, "call_s": 0.001, "outcomes": outcomes}
        return self._raising({**told, **self.whole})

    def _open_sequence(self, rows: list[Told], policy: Told, **_: Any) -> Told:
        self.sizes = Policy(**policy).sizes
        process = len(self.script.asked("open sequence")) - 1
        self.whole = {"error": 0.1, "ms": (1.0, 0.9), "busy": None, **self.script.whole("", process)}
        plans = [Plan.from_json(row["plan"]) for row in rows]
        outcomes = [(query(row["graph"]["native_form"]["nodes"][-1][1]).workload_key, "served") for row in rows]
        told = {"default_ms": 1.0, "repetitions": 1, "compile_s": 0.0, "check_s": 0.0, "call_s": 0.001}
        told["outcomes"] = [told for told, plan in zip(outcomes, plans, strict=True) if not plan.is_default]
        return self._raising({**told, **self.whole})

    def _time_whole(self, samples: int) -> Told:
        assert self.whole is not None
        if error := self.whole.get("raise when timed"):
            self._raising({"raise": error})
        samples *= max(1, len(self.sizes))
        times = {name: noisy(ms, samples) for name, ms in zip(("default", "planned"), self.whole["ms"], strict=True)}
        return {**CONDITIONS, "times": times, "busy": self.whole["busy"]}

    def __enter__(self) -> ScriptedWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.alive = False


def noisy(ms: float, samples: int) -> list[float]:
    return [ms * (1 + 0.001 * (i % 3)) for i in range(samples)]
