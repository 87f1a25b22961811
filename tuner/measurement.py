"""How a number was got, and the number: policy, timing samples, measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

from tuner.canonical import digest
from tuner.json_fields import points_of
from tuner.plan import Groups, Plan
from tuner.target import Query

Status = Literal["ok", "wrong", "compile_error", "out_of_resources", "timeout", "crash", "busy"]
STATUSES: tuple[Status, ...] = ("ok", "wrong", "compile_error", "out_of_resources", "timeout", "crash", "busy")
# verdicts that keep a candidate from being tried again, see tuner/lookup/quarantine.py
QUARANTINE: tuple[Status, ...] = ("wrong", "crash", "timeout")
Stage = Literal["screen", "race", "final"]


@dataclass(frozen=True)
class Policy:
    """How times are taken; part of every measurement's identity.

    clock: "thread" (CPU time of the measuring thread), "wall", "cuda_event". threads: intra-op threads. mode: "eager" or
    "cuda_graph". cache: "warm", or "cold": the last-level cache is flushed before every call. statistic: what sums up the samples
    of one process. warm_up: "stable" (until two blocks of calls agree); None in rows of the first version: one sample.
    sample_ms: a sample is as many calls as the default needs for this long, 0: one call; None in rows of the first version: 2 ms.
    sizes: of a graph with symbolic sizes, at which values of its symbols s0, s1, … times are taken, one tuple for each; every
    process measures at all of them. Not in the key of a graph without symbols.
    """

    clock: str
    threads: int
    mode: str = "eager"
    cache: str = "warm"
    statistic: str = "median"
    warm_up: str | None = None
    sample_ms: float | None = None
    sizes: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        # As JSON has them they are lists.
        object.__setattr__(self, "sizes", points_of(self.sizes))

    @staticmethod
    def for_cpu(threads: int, cache: str = "warm") -> Policy:
        """Thread time where one thread does the work: it does not count what other processes take. Else wall time."""
        return Policy("thread" if threads == 1 else "wall", threads, cache=cache, warm_up="stable", sample_ms=_sample_ms(cache))

    @staticmethod
    def for_cuda(mode: str = "eager", cache: str = "warm") -> Policy:
        """Time between two events on the device, of a call as it is or of the replay of its CUDA graph."""
        return Policy("cuda_event", 1, mode, cache, warm_up="stable", sample_ms=_sample_ms(cache))

    def fields(self) -> dict[str, Any]:
        """JSON for the store; `Policy(**fields)` gives the policy back."""
        fields = asdict(self)
        if not self.sizes:
            del fields["sizes"]
        return fields

    @property
    def size_count(self) -> int:
        """How many sizes the samples are of: sample i is of size i % size_count."""
        return max(1, len(self.sizes))

    @cached_property
    def key(self) -> str:
        return digest("policy", self.fields())

    def describe(self) -> str:
        """One line for people."""
        threads = f"{self.threads} thread{'s' if self.threads != 1 else ''}"
        text = f"{self.statistic} of interleaved samples, {self.clock} clock, {threads}, {self.cache} cache, {self.mode}"
        if self.sample_ms is not None:
            text += f", samples of {f'{self.sample_ms:g} ms' if self.sample_ms else 'one call'}"
        text += f", warmed up until {self.warm_up}" if self.warm_up else ""
        return text + (f", at {describe_sizes(self.sizes)}" if self.sizes else "")


def describe_sizes(sizes: Sequence[Sequence[int]]) -> str:
    """Values of the symbols s0, s1, … at which something is so, for people: "s0=1, s1=8; s0=64, s1=8"."""
    return "; ".join(", ".join(f"s{i}={value}" for i, value in enumerate(point)) for point in sizes)


def _sample_ms(cache: str) -> float:
    """Clocks cost about a microsecond, so a warm sample lasts longer; after the first call a cold cache is cold no more."""
    return 0.0 if cache == "cold" else 2.0


@dataclass(frozen=True)
class Measurement:
    """One trial of one candidate in one process, or the verdict that kept it from being timed.

    query: the exact match it belongs to; program_key: the program it was captured from, if known.
    samples_ms, default_samples_ms: paired, interleaved, milliseconds for one call each; empty unless status is "ok". Where the
    policy has sizes, each round has one sample of each, in the policy's order, and the peaks are those of the size at which the
    candidate's is largest relative to the default's.
    realised: groups that the compiler made; code_key: sha256 of the generated code.
    error: largest deviation from the reference in units of the tolerance (1 is the limit); peak_bytes: peak of allocated memory.
    process: distinguishes the processes of one final. provenance: who, when, where, load, versions.
    """

    query: Query
    policy: Policy
    plan: Plan
    stage: Stage
    status: Status
    label: str = ""
    samples_ms: tuple[float, ...] = ()
    default_samples_ms: tuple[float, ...] = ()
    realised: Groups | None = None
    code_key: str | None = None
    error: float | None = None
    peak_bytes: int | None = None
    default_peak_bytes: int | None = None
    message: str = ""
    process: str = ""
    program_key: str | None = None
    region_key: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def memory_ratio(self) -> float:
        """Peak memory relative to the default's; infinite where only the default is known to need none."""
        peak, default = self.peak_bytes or 0, self.default_peak_bytes or 0
        return peak / default if default else float("inf") if peak else 0.0


@dataclass(frozen=True)
class GroupTime:
    """How long the kernel of a group of leaves ran in one process.

    key: the group's, from what it computes and on what, whatever the graph. ms: median over calls, milliseconds for one.
    process: distinguishes the processes, whose clocks and memory differ: times of one process can be compared as they are.
    """

    key: str
    ms: float
    process: str


@dataclass(frozen=True)
class Winner:
    """What a sweep concluded for one exact match: a plan that beat the default, or the default, settled.

    kind: "plan" or "default". speedup: default time / winner time, with the bounds of its 95% interval; 1 for "default".
    default_ms, winner_ms: medians of the final's samples; of several sizes, the geometric mean over them. groups: as realised by
    the compiler in the final. effort, space_version: what was searched. evidence: how it was measured, for people and audits;
    its "kernels" are told by tuner/search/kernels.py.
    """

    query: Query
    kind: Literal["plan", "default"]
    plan: Plan
    groups: Groups | None
    default_ms: float
    winner_ms: float
    speedup: float
    speedup_low: float
    speedup_high: float
    policy: Policy
    effort: str
    space_version: int
    program_key: str | None = None
    region_key: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict, hash=False)
    provenance: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class ProgramFinal:
    """What the final of a whole callable said of the plans of its graphs, all in force together.

    query: of kind "program". plans: which plans those were (`tuner.answer.digest_of_plans`). verdict: "vetoed" keeps exactly
    these plans from being served to this program. speedup: default time / planned time, with the bounds of its 95% interval.
    default_ms, planned_ms: medians of the final's samples, milliseconds for one call of the whole. evidence: as a winner's.
    Plans with which the callable is wrong or dies are vetoed with speed-ups of 0; evidence["error"] says what was wrong.
    """

    query: Query
    plans: str
    verdict: Literal["confirmed", "vetoed"]
    speedup: float
    speedup_low: float
    speedup_high: float
    default_ms: float
    planned_ms: float
    policy: Policy
    evidence: Mapping[str, Any] = field(default_factory=dict, hash=False)
    provenance: Mapping[str, Any] = field(default_factory=dict, hash=False)


def what_was_wrong(evidence: Mapping[str, Any]) -> str:
    """Why a whole callable's plans were vetoed without being timed, in one line; "" where they were timed."""
    error = evidence.get("error")
    return f"with its plans {str(error).splitlines()[0][:300]}" if error else ""
