"""How near the search for groupings comes to the best there is, where that can be known: every grouping of small graphs is tried.

    fusion_oracle.py [--table FILE] [--only GRAPH …] [--share 0.25] [--when-busy wait|measure] [--json]

Of each graph in fusion_oracle_graphs.py all groupings that the compiler makes are compiled, checked and timed once, beside the
default (kept in FILE, so that a run that was interrupted goes on; one of another torch or CPU is refused). Then the search, which
knows nothing of that, has `--share` of as many evaluations: each whole measurement is one, each profile of a grouping, and each
that races at the end. What it chooses, the best few of all, and what random draws choose are timed anew, interleaved, in fresh
processes: the first says which of these is the best, the others the regret.

regret: time of the chosen over that of the best, less 1; below 0 where the noise says so. share_of_evaluations: of the groupings
there are; raced: of the evaluations, those in the race. random_regret: the same of random choices, mean of several: each is the
best, by the table, of as many groupings as the search had evaluations, drawn without repetition. complete: whether all groupings
that can be asked for were asked for, or a sample. Aims: a regret of 0.01 on average with a quarter of the evaluations.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fusion_oracle_graphs import GRAPHS
from fusion_oracle_space import realised, requests

from tuner.anatomy import Anatomy
from tuner.cache.sqlite import SqliteStore
from tuner.compilers.inductor.ambient import cpu_target, cpu_toolchain
from tuner.measure.statistics import median_of, median_ratio
from tuner.measurement import Policy
from tuner.plan import Groups, Plan, canonical_groups
from tuner.search.bench import DEFAULT, Bench, open_request
from tuner.search.budget import Budget
from tuner.search.effort import EFFORTS
from tuner.search.groupings import GroupSearch
from tuner.search.heats import race, racers_of
from tuner.search.kernel_costs import KernelCosts
from tuner.search.progress import Progress
from tuner.search.rules import SEED, Rules
from tuner.search.screened import Screening
from tuner.search.trials import Trials
from tuner.search.workloads import Resolved, resolve
from tuner.workers.device_lock import hold_device
from tuner.workers.pool import CompilePool

HERE = Path(__file__).parent
# Groupings asked for, at most; compiled ahead at a time.
MOST, BATCH = 4000, 16
SAMPLES, FINAL_SAMPLES, PROCESSES, CONTENDERS = 7, 60, 3, 5
# Random choices that are timed anew.
RANDOM_CHOICES = 8
SECONDS = 36_000.0


@dataclass
class Table:
    """What was measured of a graph's groupings: speed-up over the default by grouping, None where it is wrong or fails.

    made_on: "torch", its version, and "cpu", its model.
    """

    path: Path | None
    made_on: Mapping[str, str]
    rows: dict[str, dict[str, float | None]] = field(default_factory=dict)

    @staticmethod
    def at(path: Path | None, here: Mapping[str, str]) -> Table:
        """That of the file, if there is one. Raises ValueError where it was made with another torch, or on another CPU."""
        if path is None or not path.exists():
            return Table(path, here)
        told = json.loads(path.read_text())
        if (made_on := told.get("made_on")) != here:
            raise ValueError(f"{path} was made on {made_on or 'nobody knows what'}, and this is {dict(here)}: name another file")
        return Table(path, here, told["graphs"])

    def of(self, graph: str) -> dict[Groups, float | None]:
        return {canonical_groups(json.loads(text)): ratio for text, ratio in self.rows.get(graph, {}).items()}

    def keep(self, graph: str, found: dict[Groups, float | None]) -> None:
        self.rows.setdefault(graph, {}).update({json.dumps(groups): ratio for groups, ratio in found.items()})
        if self.path is not None:
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps({"made_on": dict(self.made_on), "graphs": self.rows}))
            part.replace(self.path)


def this_machine() -> dict[str, str]:
    return {"torch": str(cpu_toolchain()["torch"]), "cpu": cpu_target().sku}


def workload(name: str) -> Resolved:
    """The one graph of a SPEC, without its program."""
    (found,) = resolve(f"{HERE / 'fusion_oracle_graphs.py'}:{name}", threads=1, forms=lambda _: None, find=lambda _: [])
    return replace(found, program_query=None)


def enumerated(name: str, resolved: Resolved, table: Table, patience: int, most: int) -> tuple[dict[Groups, float], bool]:
    """The speed-up of every grouping that the compiler makes, and whether that is all."""
    policy = Policy.for_cpu(1)
    with Bench(policy, SEED, patience) as bench, CompilePool(1, 2) as pool:
        default = bench.open(resolved)
        pool.open(open_request(resolved, bench.policy, bench.seed))
        anatomy = bench.anatomy(DEFAULT)
        assert isinstance(anatomy, Anatomy), anatomy
        wanted, complete = requests(anatomy, most)

        def make(groups: Groups) -> Groups | None:
            made = bench.anatomy(Plan(groups=groups))
            return made.groups if isinstance(made, Anatomy) else None

        everything = realised(wanted, make)
        known = table.of(name)
        left = [groups for groups in everything if groups not in known]
        leaves = f"{len(anatomy.leaves)} leaves, {len(wanted)} groupings asked for"
        say(f"{name}: {leaves}, {len(everything)} made, {len(left)} to measure")
        for start in range(0, len(left), BATCH):
            batch = left[start : start + BATCH]
            for _ in pool.compile([(Plan(groups=groups), groups, "") for groups in batch], [], default):
                pass
            table.keep(name, {groups: ratio_of(bench, Plan(groups=groups), groups) for groups in batch})
            bench.replace_if_leaking()
            say(f"{name}: {start + len(batch)} of {len(left)} measured")
    ratios = table.of(name)
    return {groups: ratio for groups in everything if (ratio := ratios[groups]) is not None}, complete


def ratio_of(bench: Bench, plan: Plan, groups: Groups) -> float | None:
    if bench.try_plan(plan, groups, ())["status"] != "ok":
        return None
    times = bench.time([plan], SAMPLES).times
    return median_ratio(times[DEFAULT.key], times[plan.key])


def shared(evaluations: int, racers: int) -> tuple[int, int]:
    """Of so many evaluations those of the search, and of the race: as many as it takes, a quarter at most."""
    racing = max(1, min(racers, evaluations // 4))
    return evaluations - racing, racing


def searched(resolved: Resolved, evaluations: int, patience: int) -> tuple[Groups, int, int]:
    """What the search for groupings chooses with so many evaluations, how many it took, and how many more the race."""
    normal = EFFORTS["normal"]
    trying, racing = shared(evaluations, normal.racers)
    effort = replace(normal, trials=trying, seconds=SECONDS, patience=patience, racers=racing)
    progress, rules, policy = Progress(resolved.spec, "", trying, SECONDS), Rules(), Policy.for_cpu(1)
    with SqliteStore(":memory:") as store:
        with Bench(policy, SEED + 1, patience) as bench:
            default = bench.open(resolved)
            budget = Budget(trying, SECONDS)
            trials = Trials(bench, resolved, store, effort, progress, rules, budget)
            trials.open(default)
            search = GroupSearch(trials, KernelCosts(trials), DEFAULT, 1.0, default["default_ms"])
            while budget.left() and (batch := trials.admitted(search, 1)):
                for candidate in batch:
                    search.told(candidate, trials.trial(candidate, None))
                bench.replace_if_leaking()
        groups = canonical_groups(default["realised"])
        screening = Screening(resolved, default["default_ms"], groups, trials.passed)
        with Bench(policy, SEED + 2, patience) as bench:
            finalists = race(bench, screening, store, effort, progress)
        raced = len(racers_of(screening, effort))
    chosen = finalists[0].screened.realised if finalists else groups
    assert chosen is not None
    return chosen, budget.trials, raced


def timed_anew(resolved: Resolved, groupings: Sequence[Groups], patience: int) -> list[list[float]]:
    """Median milliseconds of each, interleaved, in each of several fresh processes."""
    found = []
    plans = [Plan(groups=groups) for groups in groupings]
    for process in range(PROCESSES):
        with Bench(Policy.for_cpu(1), SEED + 10 + process, patience) as bench:
            bench.open(resolved)
            bench.prepare([(plan, plan.groups) for plan in plans])
            times = bench.time(plans, FINAL_SAMPLES, known=True).times
        found.append([median_of(times[plan.key]) for plan in plans])
    return found


def regret_of(times_ms: Sequence[Sequence[float]], chosen: int = 0) -> float:
    """Of one over the best: which is the best the first process says, by how much the others."""
    best = min(range(len(times_ms[0])), key=lambda i: times_ms[0][i])
    return statistics.fmean(times[chosen] / times[best] for times in times_ms[1:]) - 1


def random_choices(ratios: Mapping[Groups, float], draws: int, seed: int = SEED) -> list[Groups]:
    """Each the best, as measured, of so many that are drawn without repetition; RANDOM_CHOICES of them."""
    drawing, everything = random.Random(seed), sorted(ratios)
    drawn = (drawing.sample(everything, min(draws, len(everything))) for _ in range(RANDOM_CHOICES))
    return [max(of, key=lambda groups: ratios[groups]) for of in drawn]


def row_of(name: str, table: Table, told: argparse.Namespace) -> dict[str, Any]:
    resolved = workload(name)
    patience = 0 if told.when_busy == "measure" else 5
    with hold_device("cpu", say):
        ratios, complete = enumerated(name, resolved, table, patience, told.most)
        chosen, tried, raced = searched(resolved, int(told.share * len(ratios)), patience)
        evaluations = tried + raced
        best = sorted(ratios, key=lambda groups: -ratios[groups])[:CONTENDERS]
        drawn = random_choices(ratios, evaluations)
        anew = list(dict.fromkeys([chosen, *best, *drawn]))
        times_ms = timed_anew(resolved, anew, patience)
    return {
        "name": name,
        "plans": len(ratios),
        "complete": complete,
        "evaluations": evaluations,
        "raced": raced,
        "share_of_evaluations": evaluations / len(ratios),
        "regret": regret_of(times_ms),
        "random_regret": statistics.fmean(regret_of(times_ms, anew.index(groups)) for groups in drawn),
        "best_speedup": max(ratios.values()),
        "chosen_speedup": ratios.get(chosen),
        "chosen_in_space": chosen in ratios,
    }


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def main() -> None:
    names = [function.__name__ for function in GRAPHS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--only", action="append", choices=names, default=[], metavar="GRAPH")
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--most", type=int, default=MOST, help="groupings that the compiler is asked for, of each graph")
    parser.add_argument("--when-busy", choices=("wait", "measure"), default="wait")
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    try:
        table = Table.at(told.table, this_machine())
    except ValueError as error:
        parser.error(str(error))
    rows = []
    for name in told.only or names:
        rows.append(row_of(name, table, told))
        say(json.dumps(rows[-1]))
    report = {
        "graphs": rows,
        "mean_regret": statistics.fmean(row["regret"] for row in rows),
        "mean_share_of_evaluations": statistics.fmean(row["share_of_evaluations"] for row in rows),
        "random_regret": statistics.fmean(row["random_regret"] for row in rows),
    }
    print(json.dumps(report, indent=2) if told.json else "\n".join(f"{name} {value}" for name, value in report.items()))


if __name__ == "__main__":
    main()
