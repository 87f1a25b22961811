"""`tuner status`: what the daemon says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tuner.cli.output import json_option, print_block, print_json, settings_for, socket_option, store_option
from tuner.errors import DaemonError

TIMEOUT_S = 5.0


@click.command(short_help="Ask the daemon how it is.")
@store_option
@socket_option
@json_option
def status(store: Path | None, socket: Path | None, as_json: bool) -> None:
    """Ask the daemon what it serves and how its look-ups ended. Exit code 5 where none answers."""
    answer = ask_status(settings_for(store, socket).socket)
    if as_json:
        print_json(answer)
        return
    counts = answer["counts"]
    hits, misses = counts["hit"], sum(counts["miss"].values())
    print_block(
        f"daemon {answer['pid']} on {answer['socket']}",
        [
            ("up", f"{answer['uptime_s']:.0f} s"),
            ("store", answer["store"]),
            ("generation", str(answer["generation"])),
            ("stored", f"{answer['winners']} winners, {answer['measurements']} measurements, {answer['graphs']} graphs"),
            ("look-ups", f"{hits} hits, {misses} misses"),
            ("misses", _by_reason(counts["miss"])),
            ("programs", f"{counts['program_hit']} known, {counts['program_miss']} unknown"),
            ("errors", _by_reason(counts["errors"])),
        ],
    )


def ask_status(socket: Path) -> dict[str, Any]:
    """The status of the daemon at `socket`, with the socket's path. Raises DaemonError."""
    from tuner.lookup.unix_http import request, socket_trouble
    from tuner.settings import PROTOCOL

    trouble = socket_trouble(socket)
    if trouble is not None:
        raise DaemonError(trouble or f"no daemon on {socket}: `tuner serve` starts one")
    try:
        answer = request(socket, "GET", f"/v{PROTOCOL}/status", timeout_s=TIMEOUT_S)
    except OSError as error:
        raise DaemonError(f"no daemon answers on {socket} ({error.strerror or error}): `tuner serve` starts one") from error
    return {"socket": str(socket), **answer}


def _by_reason(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in sorted(counts.items()))
