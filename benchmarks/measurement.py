"""How far measurements can be trusted: false winners, found effects, regret.

    benchmarks/measurement.py --aa 60 --effect 20 --replay --json

--aa N: N whole sweeps (screening, race, final) over 20 candidates that are equivalent: settings that leave the generated code as
    it is, each compiled to a binary of its own. A winner that is not the default is a false one. Once alone, once beside a
    neighbour process that keeps one core busy. Sweeps that were refused as busy are counted apart.
--effect N: N such sweeps for each of the true speed-ups 1.03, 1.05 and 1.10: one call of the default and of 19 candidates is made
    of 34, 21 or 11 calls of the compiled graph, that of the 20th of one fewer.
--replay: screening and race over the raw repetitions of the Kernel Tuner files in $TUNER_SHARED/data (default ../shared/data):
    the regret is the time of the chosen config over that of the best, less 1; times are medians of all raw repetitions.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import betaincinv

from tuner.cache.sqlite import SqliteStore
from tuner.errors import DeviceBusy
from tuner.measurement import Policy
from tuner.plan import Plan
from tuner.search.bench import Bench
from tuner.search.effort import EFFORTS
from tuner.search.race import run_race
from tuner.search.rules import Rules
from tuner.search.sweep import plan_sweep, run_sweep
from tuner.search.workloads import Resolved, resolve
from tuner.search_spaces.space import Candidate

ROOT = Path(__file__).parent.parent
SHARED = Path(os.environ.get("TUNER_SHARED", ROOT.parent / "shared"))
GRAPHS = (
    *("layer_norm_residual_gelu", "masked_softmax", "int8_dequantise_gelu", "adamw_step"),
    *("rms_norm_swiglu", "group_norm_silu", "row_statistics", "encoder_layer"),
)
SMALL_GRAPHS = ("layer_norm_residual_gelu", "adamw_step", "rms_norm_swiglu", "row_statistics")
# No graph of the examples comes near this threshold, so values beyond it change nothing.
EQUIVALENT = [Plan(config=(("realize_opcount_threshold", value),)) for value in range(501, 521)]
CALLS = {1.03: 34, 1.05: 21, 1.10: 11}
NEIGHBOUR = """
import os
import numpy as np
a, parent = np.random.rand(2000, 2000), os.getppid()
while os.getppid() == parent:
    a = (a * 1.0001) % 1.0
    b = a[:600, :600] @ a[:600, :600]
"""
REPLAYS, SCREEN_REPETITIONS = 20, 3


def upper_bound(failures: int, trials: int) -> float:
    """Upper end of the one-sided 95% interval for a rate (Clopper and Pearson)."""
    return float(betaincinv(failures + 1, trials - failures, 0.95)) if trials > failures else 1.0


def graphs(names: tuple[str, ...]) -> list[Resolved]:
    specs = [f"{ROOT / 'examples' / 'graphs.py'}:{name}" for name in names]
    # Without its program a graph is judged by its own final alone: the default of a whole callable is another compilation.
    found = [graph for spec in specs for graph in resolve(spec, threads=1, forms=lambda _: None, find=lambda _: [])]
    return [Resolved(graph.query.workload_key, graph.graph, graph.query, None) for graph in found]


def check_equivalent(workloads: list[Resolved]) -> None:
    """Raises SystemExit where a candidate's code is not the default's."""
    with Bench(Policy.for_cpu(1), 0) as bench:
        for workload in workloads:
            default = bench.open(workload)
            verdicts = {bench.try_plan(plan, None, [default["code_key"]])["status"] for plan in EQUIVALENT}
            if verdicts != {"duplicate"}:
                sys.exit(f"candidates of {workload.spec} are not equivalent: {verdicts}")


def sweeps(workloads: list[Resolved], count: int, effort: str, note: str) -> Iterator[dict[str, Any]]:
    """What `count` whole sweeps over the equivalent candidates conclude, several graphs at a time."""
    rules = Rules(own_copies=True, space=lambda *_: [Candidate("equivalent", plan) for plan in EQUIVALENT])
    done = 0
    while done < count:
        batch = [workloads[(done + i) % len(workloads)] for i in range(min(len(workloads), count - done))]
        started = time.monotonic()
        with SqliteStore(":memory:") as store:
            sweep = plan_sweep(batch, EFFORTS[effort], lambda: None)
            run_sweep(sweep, store, Policy.for_cpu(1), EFFORTS[effort], again=True, rules=rules)
        for outcome in sweep.outcomes:
            winner = outcome.winner
            yield {
                "graph": outcome.resolved.spec[:12],
                "busy": isinstance(outcome.error, DeviceBusy),
                "error": None if outcome.error is None else str(outcome.error),
                "winner": None if winner is None else winner.plan.key if winner.kind == "plan" else "default",
                "speedup": None if winner is None else winner.speedup,
                "finalists": 0 if winner is None else len(winner.evidence["finalists"]),
                "measured": outcome.progress.measured,
                "spent_s": {name: round(seconds, 1) for name, seconds in sweep.spent.items()},
            }
        done += len(batch)
        print(f"{note}: {done} of {count} sweeps, {time.monotonic() - started:.0f} s for the last {len(batch)}", file=sys.stderr)


def judged(found: list[dict[str, Any]]) -> dict[str, Any]:
    # One that ran out of seconds before it had measured all is no whole sweep.
    held = [row for row in found if row["error"] is None and row["measured"] == len(EQUIVALENT)]
    false = [row for row in held if row["winner"] != "default"]
    return {
        "sweeps": len(held),
        "candidates_measured": sum(row["measured"] for row in held),
        "sweeps_with_finalists": sum(row["finalists"] > 0 for row in held),
        "false_winners": len(false),
        "rate": len(false) / len(held) if held else None,
        "rate_upper_95": upper_bound(len(false), len(held)) if held else None,
        "refused_as_busy": sum(row["busy"] for row in found),
        "cut_short": sum(row["error"] is None for row in found) - len(held),
        "failed": [row["error"] for row in found if row["error"] is not None and not row["busy"]],
        "false": false,
    }


@contextmanager
def busy_neighbour() -> Iterator[None]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", NEIGHBOUR], env=environment)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def effect(count: int, effort: str) -> list[dict[str, Any]]:
    workloads = graphs(SMALL_GRAPHS)
    rows = []
    for speedup, calls in CALLS.items():
        os.environ["TUNER_SLOWED"] = f"{calls} {EQUIVALENT[7].key} {calls - 1}"
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
        Bench.module = "slowed_child"
        found = list(sweeps(workloads, count, effort, f"effect {speedup}"))
        Bench.module = "tuner.workers.child"
        held = [row for row in found if row["error"] is None]
        hits = [row for row in held if row["winner"] == EQUIVALENT[7].key]
        rows.append(
            {
                "true_speedup": speedup,
                "exactly": calls / (calls - 1),
                "sweeps": len(held),
                "found": len(hits) / len(held) if held else None,
                "false_winners": sum(row["winner"] not in ("default", EQUIVALENT[7].key) for row in held),
                "measured_speedup": [round(statistics.median(r["speedup"] for r in hits), 4)] if hits else [],
                "refused_as_busy": sum(row["busy"] for row in found),
            }
        )
    return rows


def raw_repetitions(file: Path) -> np.ndarray:
    """Configs that ran, by repetitions; milliseconds. Kernel Tuner's cache format and the T4 results format."""
    data = json.loads(gzip.decompress(file.read_bytes()))
    if "cache" in data:
        return np.array([row["times"] for row in data["cache"].values() if row.get("times")])
    return np.array([row["times"]["runtimes"] for row in data["results"] if row["invalidity"] == "correct"])


def replay(file: Path, seed: int) -> tuple[float, float]:
    """(regret, repetitions for each config, on average): medians of few repetitions, then a race of the best."""
    times, draw = raw_repetitions(file), np.random.default_rng(seed)
    truth = np.median(times, axis=1)
    effort = EFFORTS["full"]
    screened = np.median(draw.permuted(times, axis=1)[:, :SCREEN_REPETITIONS], axis=1)
    best = [int(config) for config in np.argsort(screened)[: effort.racers]]
    default, used = int(draw.integers(len(times))), SCREEN_REPETITIONS * len(times)

    def heat(configs: Any, rounds: int) -> dict[int, list[float]]:
        nonlocal used
        used += rounds * len(configs)
        return {config: draw.choice(times[default if config < 0 else config], rounds).tolist() for config in configs}

    places = run_race(best, -1, heat, rounds=effort.race_samples, rounds_per_heat=effort.heat_samples)
    return float(truth[places[0].key] / truth.min() - 1), used / len(times)


def replays() -> list[dict[str, Any]]:
    rows = []
    for file in sorted((SHARED / "data" / "kernel_tuner").glob("*/*.json.gz")):
        found = [replay(file, seed) for seed in range(REPLAYS)]
        regrets = [regret for regret, _ in found]
        rows.append(
            {
                "space": f"{file.parent.name}/{file.name.removesuffix('.json.gz')}",
                "replays": REPLAYS,
                "regret_mean": round(statistics.mean(regrets), 5),
                "regret_max": round(max(regrets), 5),
                "repetitions_per_config": round(statistics.mean(used for _, used in found), 3),
            }
        )
    return rows


class Report(dict[str, Any]):
    """Parts of the report; each is shown on standard error as soon as it is known, for the whole takes hours."""

    def __setitem__(self, part: str, value: Any) -> None:
        super().__setitem__(part, value)
        print(json.dumps({part: value}), file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aa", type=int, default=0, metavar="N")
    parser.add_argument("--effect", type=int, default=0, metavar="N")
    parser.add_argument("--replay", action="store_true")
    parser.add_argument("--effort", choices=list(EFFORTS), default="quick")
    parser.add_argument("--skip-alone", action="store_true", help="of --aa, only the sweeps beside a neighbour")
    parser.add_argument("--skip-busy", action="store_true", help="of --aa, only the sweeps without a neighbour")
    parser.add_argument("--json", action="store_true", help="the whole report on standard output")
    told = parser.parse_args()
    if told.replay and not (SHARED / "data" / "kernel_tuner").is_dir():
        sys.exit(f"no {SHARED / 'data' / 'kernel_tuner'}: TUNER_SHARED names the folder that holds data")
    started, report = time.monotonic(), Report()
    if told.aa:
        workloads = graphs(GRAPHS)
        check_equivalent(workloads)
        if not told.skip_alone:
            report["aa"] = judged(list(sweeps(workloads, told.aa, told.effort, "A/A alone")))
        if not told.skip_busy:
            with busy_neighbour():
                report["aa_busy"] = judged(list(sweeps(workloads, told.aa, told.effort, "A/A beside a neighbour")))
    if told.effect:
        report["effect"] = effect(told.effect, told.effort)
    if told.replay:
        report["replay"] = replays()
    report["seconds"] = round(time.monotonic() - started)
    if told.json:
        print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
