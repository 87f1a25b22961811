"""`tuner status`: what the daemon says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tuner.cli.output import SHORT_KEY, json_option, print_block, print_json, settings_for, socket_option, store_option
from tuner.errors import DaemonError

TIMEOUT_S = 5.0


@click.command(short_help="Ask the daemon how it is.")
@store_option
@socket_option
@json_option
def status(store: Path | None, socket: Path | None, as_json: bool) -> None:
    """Ask the daemon what it serves, how its look-ups ended, and what it tunes. Exit code 5 where none answers."""
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
            ("misses", by_reason(counts["miss"])),
            ("programs", f"{counts['program_hit']} known, {counts['program_miss']} unknown"),
            ("tuning", tuning_in_words(answer.get("tuning"))),
            ("errors", by_reason(counts["errors"])),
        ],
    )


def ask_status(socket: Path) -> dict[str, Any]:
    """The status of the daemon at `socket`, with the socket's path. Raises DaemonError."""
    return {"socket": str(socket), **ask(socket, "status")}


def ask(socket: Path, what: str) -> dict[str, Any]:
    """What the daemon at `socket` answers to GET `what`. Raises DaemonError."""
    from tuner.lookup.unix_http import request, socket_trouble
    from tuner.settings import PROTOCOL

    trouble = socket_trouble(socket)
    if trouble is not None:
        raise DaemonError(trouble or f"no daemon on {socket}: `tuner serve` starts one")
    try:
        answer: dict[str, Any] = request(socket, "GET", f"/v{PROTOCOL}/{what}", timeout_s=TIMEOUT_S)
    except OSError as error:
        raise DaemonError(f"no daemon answers on {socket} ({error.strerror or error}): `tuner serve` starts one") from error
    return answer


def ask_if_there(socket: Path, what: str) -> dict[str, Any] | None:
    """What the daemon at `socket` answers; None where there is none. Raises DaemonError where one answers otherwise."""
    from tuner.lookup.unix_http import socket_trouble

    if socket_trouble(socket) == "":
        return None
    try:
        return ask(socket, what)
    except DaemonError as error:
        if isinstance(error.__cause__, ConnectionRefusedError):  # the socket of a killed daemon
            return None
        raise


def tuning_in_words(tuning: dict[str, Any] | None) -> str:
    """What the daemon's background tuner does, in one line."""
    if tuning is None:
        return "no (--no-tune)"
    how = f"effort {tuning['effort']}"
    job = tuning["job"]
    if job is not None:
        return f"{job['program_key'][:SHORT_KEY]}, {job['phase']}, best {job['best']:.2f}x ({how})"
    return f"waiting: {tuning['reason']} ({how})" if tuning["reason"] else f"nothing to do ({how})"


def by_reason(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in sorted(counts.items()))
