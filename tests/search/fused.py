"""Graphs whose kernels have known costs, and measuring processes that know them, to hold what a search finds against the truth.

No process, no compiler: a group of leaves costs what a formula says, and there are groups that the compiler does not make, groups
over which it fails, and noise.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from random import Random
from typing import Any

from scripted import Script, ScriptedWorker, Told

from tuner.anatomy import Anatomy, Buffer, Leaf
from tuner.plan import Groups, Plan, canonical_groups
from tuner.search.bench import DEFAULT
from tuner.search_spaces.fusion import Region, convex_groups, lifted, no_fusion, regions

KIB = 1024
# milliseconds: of a kernel, of a byte that it moves, of an operation
LAUNCH, PER_BYTE, PER_WORK = 0.004, 2e-8, 1e-9
Groups_ = Iterable[frozenset[int]]


@dataclass
class Built:
    """An anatomy under construction."""

    leaves: list[Leaf] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    filled: dict[int, int] = field(default_factory=dict)

    def buffer(self, kib: int, source: str = "input", escapes: bool = False) -> int:
        self.buffers.append(Buffer(f"float32[{kib * 256}]{{1}}", kib * KIB, source, escapes))
        return len(self.buffers) - 1

    def leaf(self, content: str, reads: Iterable[int], kib: int, fusable: bool = True, escapes: bool = False) -> int:
        """The buffer that a new leaf fills."""
        number, out, reads = len(self.leaves), self.buffer(kib, "leaf", escapes), tuple(reads)
        after = tuple(sorted({self.filled[read] for read in reads if read in self.filled}))
        kind = "ComputedBuffer.Pointwise" if fusable else "ExternKernelOut"
        name = f"{number}:{kib * 256}|:{kind}:0"
        self.leaves.append(Leaf(name, kind, fusable, content, reads, (out,), after, ()))
        self.filled[out] = number
        return out

    def anatomy(self) -> Anatomy:
        return Anatomy(tuple(self.leaves), tuple(self.buffers), (), ())


def layered(layers: int, wide: int = 400) -> Anatomy:
    """Equal layers with a library call between each two: ten leaves each, of a normalisation, an activation, a mask and sums."""
    made = Built()
    value = made.buffer(wide)
    for _ in range(layers):
        weight, bias, mask = made.buffer(4), made.buffer(4), made.buffer(wide)
        mean = made.leaf("mean", [value], 4)
        spread = made.leaf("spread", [value, mean], 4)
        scaled = made.leaf("scale", [value, mean, spread, weight, bias], wide)
        active = made.leaf("gelu", [scaled], wide)
        masked = made.leaf("mask", [active, mask], wide)
        made.leaf("row sum", [masked], 4, escapes=True)
        made.leaf("column sum", [masked], 4, escapes=True)
        added = made.leaf("add", [masked, value], wide)
        made.leaf("sign", [added], wide // 4, escapes=True)
        halved = made.leaf("half", [added], wide)
        value = made.leaf("mm", [halved, made.buffer(64)], wide, fusable=False)
    made.leaf("last", [value], wide, escapes=True)
    anatomy = made.anatomy()
    return replace(anatomy, groups=greedy(anatomy))


def calls_only() -> Anatomy:
    """Two library calls, one after the other."""
    made = Built()
    value = made.leaf("mm", [made.buffer(64), made.buffer(64)], 64, fusable=False)
    made.leaf("mm", [value, made.buffer(64)], 64, fusable=False, escapes=True)
    anatomy = made.anatomy()
    return replace(anatomy, groups=greedy(anatomy))


def greedy(anatomy: Anatomy) -> Groups:
    """The grouping of a compiler that fuses whatever it can: each run of leaves between library calls."""
    groups: list[list[int]] = [[]]
    for number, leaf in enumerate(anatomy.leaves):
        if leaf.fusable:
            groups[-1].append(number)
        else:
            groups += [[number], []]
    return named(anatomy, filter(None, groups))


def named(anatomy: Anatomy, groups: Iterable[Iterable[int]]) -> Groups:
    return canonical_groups([anatomy.leaves[number].id for number in group] for group in groups)


def luck(key: str, low: float, high: float) -> float:
    """A number in [low, high) that looks random, always the same for a key."""
    return low + (high - low) * int(sha256(key.encode()).hexdigest()[:8], 16) / 2**32


@dataclass
class Truth:
    """What a graph costs.

    seed: whose luck. library_ms: of each library call. odd: by how much groups differ from the formula, at most. crowded: by how
    much a kernel is slower for each of its leaves beyond three, so that fusing everything is not best. unreachable: of groups of
    three leaves and more, by key; failing: of two and more.
    """

    anatomy: Anatomy
    seed: int = 0
    library_ms: float = 0.05
    odd: float = 0.25
    crowded: float = 0.25
    unreachable: Callable[[str], bool] = lambda key: False
    failing: Callable[[str], bool] = lambda key: False

    def cost(self, group: frozenset[int]) -> float:
        if not all(self.anatomy.leaves[number].fusable for number in group):
            return self.library_ms
        formula = LAUNCH + PER_BYTE * self.anatomy.bytes_of(group) + PER_WORK * self.anatomy.work_of(group)
        formula *= 1 + self.crowded * max(0, len(group) - 3)
        return formula * luck(f"{self.seed}{self.anatomy.group_key(group)}", 1 - self.odd, 1 + self.odd)

    def ms(self, groups: Groups) -> float:
        return sum(self.cost(group) for group in self.numbers(groups))

    def numbers(self, groups: Groups) -> list[frozenset[int]]:
        return [frozenset(self.anatomy.number[leaf] for leaf in group) for group in groups]

    def realised(self, wanted: Groups | None) -> Groups:
        """What the compiler makes of it: groups that it cannot make fall into single leaves."""
        made: list[Iterable[int]] = []
        for group in self.numbers(self.anatomy.groups if wanted is None else wanted):
            made += [group] if self._reachable(group) else [[number] for number in group]
        return named(self.anatomy, made)

    def _reachable(self, group: frozenset[int]) -> bool:
        return group in self.anatomy.grouped or len(group) < 3 or not self.unreachable(self.anatomy.group_key(group))

    def fails(self, groups: Groups) -> bool:
        return any(map(self._failing, self.numbers(groups)))

    def best(self) -> tuple[Groups, float]:
        """The fastest grouping that the compiler makes and that does not fail, and its milliseconds: all partitions are tried."""
        chosen: list[frozenset[int]] = []
        for region in regions(self.anatomy):
            found = min(self.partitions(region), key=lambda groups: sum(map(self.cost, groups)))
            chosen += lifted(self.anatomy, region, found)
        inside = frozenset[int]().union(*chosen)
        others = [[number] for number in range(len(self.anatomy.leaves)) if number not in inside]
        groups = named(self.anatomy, [*chosen, *others])
        return groups, self.ms(groups)

    def allowed(self, region: Region) -> list[frozenset[int]]:
        groups = convex_groups(self.anatomy, region, 10_000)
        return [g for g in groups if len(g) == 1 or (self._reachable(g) and not self._failing(g))]

    def _failing(self, group: frozenset[int]) -> bool:
        return group not in self.anatomy.grouped and len(group) > 1 and self.failing(self.anatomy.group_key(group))

    def partitions(self, region: Region) -> Iterator[list[frozenset[int]]]:
        """All partitions of the first occurrence into allowed groups that can run one after the other."""
        allowed = self.allowed(region)

        def cover(left: frozenset[int]) -> Iterator[list[frozenset[int]]]:
            if not left:
                yield []
                return
            for group in allowed:
                if min(left) in group and group <= left:
                    yield from ([group, *rest] for rest in cover(left - group))

        for groups in cover(frozenset(region.occurrences[0])):
            if self._runs(groups):
                yield groups

    def _runs(self, groups: list[frozenset[int]]) -> bool:
        left = list(groups)
        while left:
            waiting = frozenset[int]().union(*left)
            ready = [g for g in left if not any(set(self.anatomy.leaves[n].after) & (waiting - g) for n in g)]
            if not ready:
                return False
            left.remove(ready[0])
        return True


class Fused(Script):
    """Measuring processes that know the truth of a graph under each lowering choice; plans with others have no effect.

    truths: by plan without groups; the default's at least. noise: of a sample, and of a kernel's time in a profile, relative.
    """

    def __init__(self, truths: dict[Plan, Truth], noise: float = 0.0, profiles: bool = True, seed: int = 0):
        super().__init__(self._ms, self._verdict)
        self.truths, self.noise, self.profiles, self.random = truths, noise, profiles, Random(seed)

    def worker(self, number: int, environment: Told) -> FusedWorker:
        return FusedWorker(self, number, environment)

    def truth(self, plan: Plan) -> Truth | None:
        return self.truths.get(replace(plan, groups=None))

    def _ms(self, plan: Plan) -> float:
        """Relative to the default."""
        default = self.truths[DEFAULT]
        truth = self.truth(plan) or default
        groups = plan.groups if plan.groups is not None and self.truth(plan) else truth.anatomy.groups
        return truth.ms(groups) / default.ms(default.anatomy.groups)

    def _verdict(self, plan: Plan) -> Told:
        if (truth := self.truth(plan)) is None:
            return {"code_key": "default", "realised": self.truths[DEFAULT].anatomy.groups}
        realised = truth.realised(plan.groups)
        if plan.groups is not None and realised != plan.groups:
            return {"status": "not_realised", "message": "", "realised": realised}
        if truth.fails(realised):
            return {"status": "compile_error", "message": "no"}
        return {"realised": realised}

    @property
    def kernels_timed(self) -> list[Plan]:
        return [Plan.from_json(plan) for request in self.asked("profile") for plan in request["plans"]]

    @property
    def evaluations(self) -> int:
        """Plans that were compiled, to be measured whole or kernel by kernel; without those whose code was there before."""
        return len(self.asked("time")) + max(len(self.kernels_timed), len(self.asked("profile")))


class FusedWorker(ScriptedWorker):
    script: Fused

    def __init__(self, script: Fused, number: int, environment: dict[str, str]):
        super().__init__(script, number, environment)
        # Those of another script are other processes.
        self.name = f"{id(script)} {number}"

    def _open(self, **request: Any) -> Told:  # type: ignore[override]
        anatomy = self.script.truths[DEFAULT].anatomy
        return {**super()._open(**request), "realised": [list(group) for group in anatomy.groups]}

    def _samples(self, plan: Plan, samples: int) -> list[float]:
        ms = 1.0 if plan.is_default else self.script.ms(plan)
        return [ms * (1 + self.script.random.gauss(0, self.script.noise)) for _ in range(samples)]

    def _anatomy(self, plan: Told) -> Told:
        wanted = Plan.from_json(plan)
        if (truth := self.script.truth(wanted)) is None:
            truth = self.script.truths[DEFAULT]
        anatomy = replace(truth.anatomy, groups=truth.realised(wanted.groups))
        return {"status": "ok", "anatomy": anatomy.to_json(), "resident_bytes": 1000}

    def _profile(self, plans: list[Told], rounds: int, seed: int) -> Told:
        answer: Told = {"status": "ok", "times": {}, "failed": {}, "conditions": {}, "resident_bytes": 1000}
        for plan in {one.key: one for one in (DEFAULT, *map(Plan.from_json, plans))}.values():
            truth = self.script.truth(plan)
            assert truth is not None, "a plan without effect is not profiled"
            groups = truth.realised(plan.groups)
            if not self.script.profiles:
                answer["failed"][plan.key] = {"status": "refused", "why": "not profiled", "message": "no clock"}
            elif truth.fails(groups):
                answer["failed"][plan.key] = {"status": "compile_error", "message": "no"}
            else:
                default = self.script.truths[DEFAULT]
                scale = 1.0 / default.ms(default.anatomy.groups)
                kernels = [(group, self._kernel_ms(truth, group) * scale) for group in groups if self._fusable(truth, group)]
                total = truth.ms(groups) * scale
                answer["times"][plan.key] = {"kernels": kernels, "library_ms": 0.0, "total_ms": total}
        return answer

    def _kernel_ms(self, truth: Truth, group: tuple[str, ...]) -> float:
        return truth.cost(truth.numbers((group,))[0]) * (1 + self.script.random.gauss(0, self.script.noise))

    def _fusable(self, truth: Truth, group: tuple[str, ...]) -> bool:
        return all(truth.anatomy.leaves[truth.anatomy.number[leaf]].fusable for leaf in group)


def random_best(truth: Truth, evaluations: int, seed: int) -> float:
    """The best of so many random groupings, milliseconds, each uniform among all partitions of each region."""
    random = Random(seed)
    spaces = [(region, list(truth.partitions(region))) for region in regions(truth.anatomy)]
    best = truth.ms(truth.anatomy.groups)
    for _ in range(evaluations):
        chosen = list(itertools.chain(*(lifted(truth.anatomy, region, random.choice(found)) for region, found in spaces)))
        inside = frozenset[int]().union(*chosen)
        others = [[number] for number in range(len(truth.anatomy.leaves)) if number not in inside]
        best = min(best, truth.ms(named(truth.anatomy, [*chosen, *others])))
    return best


def alone(truth: Truth) -> Groups:
    return no_fusion(truth.anatomy.groups)
