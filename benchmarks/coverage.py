"""Coverage: many small models with random weights, compiled through the back end and by Inductor alone, and compared.

    python benchmarks/coverage.py [--json] [--models A,B] [--own] [--seeds N,N] [--plans] [--draws N] [--jobs N] [--verbose]

Each model runs in a process of its own: for inference and as a training step, at one batch size and then at another, by which its
graphs become symbolic. Outputs, gradients and buffers must be Inductor's bit for bit while the store knows nothing, and again
when it holds the default as the winner of every graph. --plans: also with every graph under a legal plan drawn at random; values
must then be right within the tolerance of a sweep. --draws N: only that, of N models and seeds drawn at random. --own: only
models that need nothing but torch. It exits with 1 where there was an error.

`served`: models of which every graph was asked for by its key; `default_with_reason`: in how many models a reason came up.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import coverage_families
import coverage_models

PHASES = ("inference", "training")
# Wall time of one model: it compiles some eight graphs, on what may be a busy machine.
MODEL_S = 1800.0
MODELS = {**coverage_models.MODELS, **coverage_families.MODELS}


@dataclass
class Row:
    """What was found in one model. graphs: compiled through the back end while the store knew nothing, keyed: of them with a key.

    reasons: why something was compiled by default, or had no key; outcomes: of graphs under plans drawn at random.
    """

    model: str
    seed: int
    phases: tuple[str, ...]
    graphs: int = 0
    keyed: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    plans: int = 0
    worst: float = 0.0
    errors: list[str] = field(default_factory=list)

    @property
    def served(self) -> bool:
        return not self.errors and not self.reasons and self.keyed == self.graphs > 0


def rows_of(asked: Sequence[tuple[str, int, tuple[str, ...], bool, bool]], jobs: int) -> Iterator[Row]:
    """A process for each (model, seed, phases, compare without plans, compare with plans); they share machine code."""
    with tempfile.TemporaryDirectory(prefix="tuner-coverage-") as folder, ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda one: _row_of(Path(folder), *one), asked)


def _row_of(folder: Path, model: str, seed: int, phases: tuple[str, ...], same: bool, plans: bool) -> Row:
    own = Path(tempfile.mkdtemp(dir=folder))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TUNER_")},
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor")),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TUNER_STORE": str(own / "store.db"),
        "TUNER_SOCKET": str(own / "no.sock"),
        "TUNER_DEADLINE_MS": "60000",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, __file__, "--one", model, "--seeds", str(seed), "--phases", ",".join(phases)]
    command += ["--same"] * same + ["--plans"] * plans
    row = Row(model, seed, phases)
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=MODEL_S)
    except subprocess.TimeoutExpired:
        row.errors.append(f"not done after {MODEL_S:.0f} s")
        return row
    if done.returncode:
        row.errors.append(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}")
        return row
    return Row(**{**json.loads(done.stdout.splitlines()[-1]), "phases": phases})


def check(model: str, seed: int, phases: Sequence[str], same: bool, plans: bool) -> Row:
    """In a process of its own: compares the model's outcomes."""
    from coverage_outcomes import outcomes, settle_all, what_differs, worst_deviation

    row = Row(model, seed, tuple(phases))
    make = MODELS[model]
    for phase in phases:
        wanted = outcomes(make, seed, phase, "inductor")
        if same:
            for stored in ("nothing stored", "the default stored"):
                found, report = _attempt(row, f"{phase}, {stored}", make, seed, phase)
                if found is not None and (difference := what_differs(found, wanted)):
                    row.errors.append(f"{phase}, {stored}: {difference}")
                if stored == "nothing stored":
                    _count(row, report)
                    settle_all(report["served"])
        if plans:
            os.environ["TUNER_RANDOM_PLANS"] = str(seed)
            found, report = _attempt(row, f"{phase}, random plans", make, seed, phase)
            row.plans += sum(graph.outcome == "random" for graph in report["served"])
            if found is not None:
                row.worst = max(row.worst, worst := worst_deviation(found, wanted, make, seed, phase))
                if not worst <= 1.0:
                    row.errors.append(f"{phase}, random plans: {worst:.3g} tolerances off")
            del os.environ["TUNER_RANDOM_PLANS"]
    return row


def _attempt(row: Row, what: str, make: Any, seed: int, phase: str) -> tuple[Any, dict[str, Any]]:
    """The outcomes through the back end, None where it raises, and what the back end reports of it."""
    from coverage_outcomes import outcomes

    import tuner
    from tuner.compilers import dynamo

    dynamo.reset()
    tuner.reset_report()
    found = None
    # Inductor alone did not raise: whatever is raised here is a finding, and the other comparisons go on.
    try:
        found = outcomes(make, seed, phase, "tuner")
    except Exception as error:
        row.errors.append(f"{what}: {type(error).__name__}: {' '.join(str(error).split())[:400]}")
    report = tuner.report()
    if wrong := [name for name in report["counts"] if "error" in name]:
        row.errors.append(f"{what}: {', '.join(wrong)}")
    return found, report


def _count(row: Row, report: dict[str, Any]) -> None:
    row.graphs += len(report["served"])
    row.keyed += sum(bool(graph.workload_key) for graph in report["served"])
    reasons = Counter(row.reasons)
    reasons.update({name.removeprefix("default: "): n for name, n in report["counts"].items() if name.startswith("default: ")})
    reasons.update(graph.reason for graph in report["served"] if not graph.workload_key)
    row.reasons = dict(reasons)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    reasons = Counter(reason for row in rows for reason in row.reasons)
    return {
        "models": len({row.model for row in rows}),
        "served": len({row.model for row in rows} - {row.model for row in rows if not row.served}),
        "default_with_reason": dict(reasons.most_common()),
        "errors": sum(len(row.errors) for row in rows),
        "graphs": sum(row.graphs for row in rows),
        "random_plans": sum(row.plans for row in rows),
        "worst_deviation": max((row.worst for row in rows), default=0.0),
        "rows": [asdict(row) for row in rows],
    }


def drawn(names: Sequence[str], count: int, seed: int) -> list[tuple[str, int, tuple[str, ...], bool, bool]]:
    """Models, seeds and a phase each, drawn at random; `seed` decides which."""
    draw = random.Random(seed)
    return [(draw.choice(names), draw.randrange(10**6), (draw.choice(PHASES),), False, True) for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--models", help="names, separated by commas")
    parser.add_argument("--own", action="store_true")
    parser.add_argument("--seeds", default="0", help="of weights, data and plans; with --draws, of what is drawn")
    parser.add_argument("--phases", default=",".join(PHASES))
    parser.add_argument("--plans", action="store_true")
    parser.add_argument("--draws", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="with --json, a line for each model on standard error")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--same", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    seeds, phases = [int(seed) for seed in asked.seeds.split(",")], tuple(asked.phases.split(","))
    if asked.one:
        print(json.dumps(asdict(check(asked.one, seeds[0], phases, asked.same, asked.plans))))
        return
    if not asked.own and not asked.models and importlib.util.find_spec("transformers") is None:
        parser.error("transformers is not installed (extra `bench`): only --own models can be run")
    names = asked.models.split(",") if asked.models else list(coverage_models.MODELS if asked.own else MODELS)
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"no such model: {', '.join(unknown)}; there are {', '.join(MODELS)}")
    wanted = [(name, seed, phases, True, asked.plans) for seed in seeds for name in names]
    rows = []
    for row in rows_of(drawn(names, asked.draws, seeds[0]) if asked.draws else wanted, asked.jobs):
        rows.append(row)
        if not asked.json or row.errors or asked.verbose:
            told = f"{row.keyed}/{row.graphs} graphs keyed, {row.plans} random plans, {row.worst:.2g} tolerances"
            ended = "; ".join(row.errors) or "ok"
            print(f"{row.model:<26}{row.seed:>7}  {told}  {row.reasons or ''}  {ended}", file=sys.stderr, flush=True)
    made = summary(rows)
    if asked.json:
        print(json.dumps(made))
    else:
        print(json.dumps({name: value for name, value in made.items() if name != "rows"}))
    sys.exit(1 if made["errors"] else 0)


if __name__ == "__main__":
    main()
