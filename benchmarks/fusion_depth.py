"""What a search costs as a model grows deeper: the same model with 2, 4, 8 and 16 equal layers, each swept into an empty store.

    fusion_depth.py [--threads N] [--effort E] [--layers 2,4,8,16] [--when-busy wait|measure] [--json]

evaluations: candidates that were compiled and run, whole or kernel by kernel. seconds_measuring: without the finals, those of
the graphs and of the whole callable, which take as much longer as the model runs longer: they are seconds_finals. ratio: over the
shallowest. Aims: two layers settle within 60 evaluations, 16 within 1.3 times that, in evaluations and in measuring seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from fusion_suite import HERE, evaluations, say, swept

LAYERS = "2,4,8,16"


def searched(layers: int, told: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tuner-depth-") as folder:
        spec = f"{HERE / 'fusion_graphs.py'}:depth_{layers}"
        found = swept(spec, "inference", Path(folder) / "store.db", told.threads, told.effort, told.when_busy)
    results = found["results"]
    row: dict[str, Any] = {
        "layers": layers,
        "evaluations": evaluations(found),
        "duplicates": sum(one["candidates_duplicate"] for one in results),
        "refused": sum(sum(one["candidates_refused"].values()) for one in results),
        "seconds_measuring": found["seconds_measuring"] - found["seconds_finals"] if "seconds_finals" in found else None,
        "seconds_finals": found.get("seconds_finals"),
        "seconds_compiling": found.get("seconds_compiling"),
        "seconds": found["seconds"],
        "winners": [one["winner"] for one in results],
        "speedups": [one["speedup"] for one in results],
    }
    return row | ({"error": found["error"]} if "error" in found else {})


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each row with what it took over what the first took."""
    first = rows[0]
    for row in rows:
        for name in ("evaluations", "seconds_measuring"):
            known = row[name] is not None and first[name]
            row[f"{name}_ratio"] = row[name] / first[name] if known else None
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--effort", choices=("quick", "normal", "full"), default="normal")
    parser.add_argument("--layers", default=LAYERS)
    parser.add_argument("--when-busy", choices=("wait", "measure"), default="wait")
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    rows = []
    for layers in map(int, told.layers.split(",")):
        rows.append(searched(layers, told))
        row = ratios(rows)[-1]
        say(", ".join(f"{name} {value}" for name, value in row.items()))
    if told.json:
        print(json.dumps({"depths": rows, "threads": told.threads, "effort": told.effort}, indent=2))
    sys.exit(int(any("error" in row for row in rows)))


if __name__ == "__main__":
    main()
