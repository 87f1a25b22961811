"""The main job, end to end: sweep nine programs, a training step among them, store the winners, serve them to a second process.

Everything runs through the commands that a user types; each is printed before it runs. The store and the compile caches of the
demo are in a temporary folder, removed at the end.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tuner.plan import Plan

HERE = Path(__file__).parent
TUNER = [sys.executable, "-m", "tuner.cli.main"]
NAMES = (
    "encoder_layer",
    "layer_norm_residual_gelu",
    "masked_softmax",
    "int8_dequantise_gelu",
    "adamw_step",
    "rms_norm_swiglu",
    "group_norm_silu",
    "row_statistics",
    "layer_norm_step",
)
READY_S = 30.0


def main() -> None:
    started = time.monotonic()
    specs = [f"{os.path.relpath(HERE / 'graphs.py')}:{name}" for name in NAMES]
    with tempfile.TemporaryDirectory(prefix="tuner-demo-") as folder:
        os.environ.update(
            TUNER_STORE=f"{folder}/store.db",
            TUNER_SOCKET=f"{folder}/daemon.sock",
            TORCHINDUCTOR_CACHE_DIR=f"{folder}/sweep-cache",
            OMP_NUM_THREADS="1",
        )
        say("1. Sweep: capture, enumerate, measure, store the winners")
        # On a loud machine the demo goes on: what is not clear beyond the noise ends with the default.
        run("sweep", *specs, "--effort", "quick", "--threads", "1", "--when-busy", "measure")
        winners = {row["workload_key"]: row for row in ask("show", "--json")}
        say("2. What the store holds now")
        table(
            ("graph", "default ms", "winner ms", "speed-up", "95% interval", "winning plan"),
            [
                (
                    row["spec"].rpartition(":")[2] + ("" if row["phase"] == "inference" else f", {row['phase']}"),
                    f"{row['default_ms']:.3f}",
                    f"{row['winner_ms']:.3f}",
                    f"{row['speedup']:.2f}",
                    f"{row['speedup_low']:.2f} to {row['speedup_high']:.2f}",
                    Plan.from_json(row["plan"]).describe() if row["plan"] else "default",
                )
                for row in winners.values()
            ],
        )
        say('3. A daemon serves it; a second process, with empty compile caches, compiles all graphs with backend="tuner"')
        daemon = subprocess.Popen([*TUNER, "serve", "--no-tune"])
        try:
            measured = wait_for_daemon(daemon)["measurements"]
            os.environ.update(TORCHINDUCTOR_CACHE_DIR=f"{folder}/served-cache", TUNER_READ_BACK="1")
            rows = served(specs)
            after = ask("status", "--json")
        finally:
            daemon.send_signal(signal.SIGTERM)
            stopped = daemon.wait(timeout=READY_S)
        table(
            ("graph", "tier", "winner", "from", "groups as stored", "served against default", "95% interval"),
            [
                (
                    row["spec"].rpartition(":")[2],
                    ", ".join(row["tiers"]),
                    ", ".join(row["winners"]),
                    ", ".join(row["sources"]),
                    "yes" if row["groups_as_stored"] else "NO",
                    f"{row['speedup']:.2f}x",
                    f"{row['speedup_low']:.2f} to {row['speedup_high']:.2f}",
                )
                for row in rows
            ],
        )
        print(f"\nmeasured by the second process: {after['measurements'] - measured}; answered by the daemon: {after['counts']}")
        print(f"the daemon stopped on SIGTERM with exit code {stopped}; the demo took {time.monotonic() - started:.0f} s")
    failed = [row["spec"] for row in rows if row["tiers"] != ["exact"] or not row["groups_as_stored"]]
    if failed or stopped or after["measurements"] != measured:
        sys.exit(f"the demo failed: {failed or 'the daemon'}")


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def run(*arguments: str) -> None:
    print(f"$ tuner {shlex.join(arguments)}", flush=True)
    subprocess.run([*TUNER, *arguments], check=True)


def ask(*arguments: str) -> Any:
    """What a command with --json prints."""
    return json.loads(subprocess.run([*TUNER, *arguments], check=True, stdout=subprocess.PIPE).stdout)


def wait_for_daemon(daemon: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The daemon's status, once it answers."""
    deadline = time.monotonic() + READY_S
    while daemon.poll() is None and time.monotonic() < deadline:
        answer = subprocess.run([*TUNER, "status", "--json"], capture_output=True)
        if answer.returncode == 0:
            return json.loads(answer.stdout)
        time.sleep(0.1)
    sys.exit("the daemon did not start")


def served(specs: list[str]) -> list[dict[str, Any]]:
    """What the second process reports for each SPEC."""
    command = [sys.executable, str(HERE / "served.py"), *specs]
    print(f"$ python examples/served.py {shlex.join(specs)}", flush=True)
    return [
        json.loads(line) for line in subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    ]


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
