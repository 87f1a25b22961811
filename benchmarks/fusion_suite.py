"""What the stored winners are worth on the fixed list of graphs of fusion_graphs.py, beside eager, the default and max-autotune.

    fusion_suite.py --store FILE --threads 1 [--sweep] [--effort quick|normal|full] [--only NAME …] [--processes N] [--json]

--sweep: tune each graph first, with `tuner sweep`. What was swept before into this store is not swept again, so that a run that
    was interrupted goes on; what the sweeps took is kept beside the store, in FILE.fusion_suite.json.
--only NAME: of the list this graph alone, forward and backward. Repeatable.
--when-busy measure: on a machine that does other things too; the numbers are then worth less.

Each graph is timed in processes that only look winners up (fusion_peers.py), all four interleaved. Times are medians over all
processes; "backward" is a whole training step. speedup_low and speedup_high: 95% interval over processes. geomean_vs_best_peer:
over the fastest of eager, default and max-autotune of each graph. A graph that could not be swept or measured is a row with an
"error", in no mean; then it exits with 1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fusion_graphs import GRAPHS, Listed
from fusion_peers import NAMES

from tuner.measure.statistics import speedup_of
from tuner.workers.device_lock import hold_device

HERE = Path(__file__).parent
PEERS = tuple(name for name in NAMES if name != "tuned")
TUNER = "from tuner.cli.main import main; main(prog_name='tuner')"
SAMPLES, PATIENCE = 60, 5
# Of one measuring process, which compiles a model three times on what may be a busy machine.
PROCESS_S = 3600.0


def command_environment(store: Path) -> dict[str, str]:
    """Of a process that looks in this store and has no daemon."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TUNER_")}
    asked = {"TUNER_STORE": str(store), "TUNER_SOCKET": f"{store}.no-daemon", "TUNER_REPORT_MISSES": "0", "HF_HUB_OFFLINE": "1"}
    return {**kept, **asked, "TUNER_DEADLINE_MS": "60000"}


def swept(spec: str, phase: str, store: Path, threads: int, effort: str, when_busy: str, *more: str) -> dict[str, Any]:
    """What `tuner sweep --json` says of a SPEC, with its error if it had one."""
    options = ["--phase", phase, "--threads", str(threads), "--effort", effort, "--when-busy", when_busy, "--store", str(store)]
    command = [sys.executable, "-c", TUNER, "sweep", spec, *options, "--json", *more]
    done = subprocess.run(command, env=command_environment(store), capture_output=True, text=True, check=False)
    return told_by(done.stdout, done.stderr, done.returncode)


def told_by(stdout: str, stderr: str, code: int) -> dict[str, Any]:
    """What a sweep that ended so has said: its JSON, or that of one without results; with "error" where it failed."""
    try:
        told = json.loads(stdout)
    except ValueError:
        told = None
    failed = bool(code)
    if not isinstance(told, dict) or "results" not in told:
        told, failed = {"results": [], "seconds": None}, True
    if failed:
        told["error"] = stderr.strip().splitlines()[-1] if stderr.strip() else f"no answer, exit code {code}"
    return told


def evaluations(told: dict[str, Any]) -> int:
    """Candidates that were compiled and measured, or profiled, or failed: those that were refused beforehand cost nothing."""
    counts = ("candidates_measured", "candidates_profiled")
    return sum(sum(one.get(name, 0) for name in counts) + sum(one["candidates_failed"].values()) for one in told["results"])


class Notes:
    """What the sweeps of a store took, in a file beside it, written after each."""

    def __init__(self, store: Path):
        self.path = Path(f"{store}.fusion_suite.json")
        self.rows: dict[str, dict[str, Any]] = json.loads(self.path.read_text()) if self.path.exists() else {}

    def keep(self, name: str, row: dict[str, Any]) -> None:
        self.rows[name] = row
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.rows, indent=2))
        part.replace(self.path)


def note(listed: Listed, told: argparse.Namespace) -> str:
    return f"{listed.function}, {told.threads} threads, {told.effort}"


def sweep_once(listed: Listed, told: argparse.Namespace, notes: Notes) -> None:
    """Sweeps what no run before has swept into this store. Raises ValueError with the last words of a sweep that failed."""
    name = note(listed, told)
    if name in notes.rows:
        return
    found = swept(listed.spec, listed.phase, told.store, told.threads, told.effort, told.when_busy)
    if "error" in found:
        raise ValueError(f"the sweep failed: {found['error']}")
    winners = [one["plan"] for one in found["results"]]
    notes.keep(name, {"candidates": evaluations(found), "seconds": found["seconds"], "plans": winners})


def timed(listed: Listed, told: argparse.Namespace, process: int) -> dict[str, Any]:
    """What one process measures. Raises ValueError with the last of its words."""
    patience = 0 if told.when_busy == "measure" else PATIENCE
    command = [sys.executable, str(HERE / "fusion_peers.py"), listed.spec, "--phase", listed.phase]
    command += [
        "--threads",
        str(told.threads),
        "--samples",
        str(told.samples),
        "--seed",
        str(process),
        "--patience",
        str(patience),
    ]
    environment = {**command_environment(told.store), "OMP_NUM_THREADS": str(told.threads)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PROCESS_S, check=False)
    if done.returncode:
        raise ValueError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def row_of(listed: Listed, found: Sequence[dict[str, Any]], swept_row: dict[str, Any]) -> dict[str, Any]:
    times = {name: [one["times"][name] for one in found] for name in NAMES}
    median_ms = {name: statistics.median(ms for samples in of for ms in samples) for name, of in times.items()}
    speedup = speedup_of(list(zip(times["default"], times["tuned"], strict=True)))
    best = min(PEERS, key=lambda name: median_ms[name])
    against_best = speedup_of(list(zip(times[best], times["tuned"], strict=True)))
    return {
        "name": listed.name,
        "kind": listed.kind,
        "class": listed.group,
        **{f"{name}_ms": median_ms[name] for name in NAMES},
        "speedup_vs_default": speedup.value,
        "speedup_low": speedup.low,
        "speedup_high": speedup.high,
        "candidates": swept_row.get("candidates"),
        "seconds": swept_row.get("seconds"),
        "best_peer": best,
        "speedup_vs_best_peer": against_best.value,
        "outcomes": found[0]["outcomes"],
        "deviation": {name: max(one["deviation"][name] for one in found) for name in NAMES},
        "processes": len(found),
        "busy": next((one["busy"] for one in found if one["busy"]), None),
    }


def geomean(values: Iterable[float]) -> float | None:
    logs = [math.log(value) for value in values]
    return math.exp(statistics.fmean(logs)) if logs else None


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """geomeans over the graphs that were measured; worst: the lowest speed-up over the default."""
    held = [row for row in rows if "error" not in row]
    by_class = {group: [row["speedup_vs_default"] for row in held if row["class"] == group] for group in ("memory", "model")}
    worst = min(held, key=lambda row: row["speedup_vs_default"], default=None)
    return {
        "graphs": list(rows),
        "geomean_vs_default": geomean(row["speedup_vs_default"] for row in held),
        "geomean_memory": geomean(by_class["memory"]),
        "geomean_model": geomean(by_class["model"]),
        "geomean_vs_best_peer": geomean(row["speedup_vs_best_peer"] for row in held),
        "worst": None if worst is None else worst["speedup_vs_default"],
        "worst_graph": None if worst is None else f"{worst['name']} {worst['kind']}",
    }


def measured(listed: Listed, told: argparse.Namespace, notes: Notes) -> dict[str, Any]:
    try:
        if told.sweep:
            sweep_once(listed, told, notes)
        with hold_device("cpu", say):
            found = [timed(listed, told, process) for process in range(told.processes)]
    except (ValueError, subprocess.TimeoutExpired) as error:
        return {"name": listed.name, "kind": listed.kind, "class": listed.group, "error": str(error)}
    return row_of(listed, found, notes.rows.get(note(listed, told), {}))


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['name']:32} {row['kind']:9} {row['error']}"
    times = "".join(f"{row[f'{name}_ms']:14.4f}" for name in NAMES)
    interval = f"{row['speedup_vs_default']:8.3f} ({row['speedup_low']:.3f} to {row['speedup_high']:.3f})"
    return f"{row['name']:32} {row['kind']:9}{times} {interval}{'  busy' if row['busy'] else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--effort", choices=("quick", "normal", "full"), default="normal")
    parser.add_argument("--only", action="append", choices=sorted({listed.name for listed in GRAPHS}), default=[], metavar="NAME")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--when-busy", choices=("wait", "measure"), default="wait")
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    told.store = told.store.absolute()
    notes, rows, started = Notes(told.store), [], time.monotonic()
    columns = "".join(f"{name + ' ms':>14}" for name in NAMES)
    say(f"{'graph':32} {'kind':9}{columns} speed-up of tuned over default")
    for listed in GRAPHS:
        if not told.only or listed.name in told.only:
            rows.append(measured(listed, told, notes))
            say(line(rows[-1]))
    report = {**summary(rows), "threads": told.threads, "seconds": round(time.monotonic() - started)}
    if told.json:
        print(json.dumps(report, indent=2))
    else:
        print(", ".join(f"{name} {value:.3f}" for name, value in report.items() if isinstance(value, float)))
    sys.exit(int(any("error" in row for row in rows)))


if __name__ == "__main__":
    main()
