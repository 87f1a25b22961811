"""`tuner stats`: look-ups, jobs and the store, in numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tuner.cli.output import json_option, print_block, print_json, settings_for, socket_option, store_option
from tuner.cli.status import ask_if_there, by_reason


@click.command(short_help="Show what was asked, tuned and stored, in numbers.")
@store_option
@socket_option
@json_option
def stats(store: Path | None, socket: Path | None, as_json: bool) -> None:
    """Show how look-ups ended since the daemon started, its jobs by state, and what the store holds.

    Where no daemon serves the store, its numbers are read directly, and there are no look-ups to count.
    """
    from tuner.daemon.jobs import Jobs, jobs_folder
    from tuner.lookup.reader import StoreReader

    settings = settings_for(store, socket)
    answer = ask_if_there(settings.socket, "stats")
    if answer is None:
        path = settings.store
        kept, stored = Jobs(jobs_folder(path)).count(), StoreReader(path).stats()
        answer = {"store": str(path.absolute()), "counts": None, "jobs": kept, "stored": stored}
    if as_json:
        print_json(answer)
        return
    if answer["counts"] is not None:
        print_block("look-ups", _lookups(answer["counts"]))
    print_block("jobs", [("by state", by_reason(answer["jobs"]) or "none")])
    print_block(f"store {answer['store']}", _stored(answer["stored"]))


def _lookups(counts: dict[str, Any]) -> list[tuple[str, str]]:
    hits, misses = counts["hit"], sum(counts["miss"].values())
    share = f" ({hits / (hits + misses):.0%})" if hits + misses else ""
    return [
        ("hits", f"{hits}{share}"),
        ("misses", str(misses)),
        ("by reason", by_reason(counts["miss"])),
        ("programs", f"{counts['program_hit']} known, {counts['program_miss']} unknown"),
        ("errors", by_reason(counts["errors"]) or "0"),
    ]


def _stored(stored: dict[str, Any]) -> list[tuple[str, str]]:
    seconds = {name: value for name, value in stored["winner_seconds"].items() if value}
    return [
        ("generation", str(stored["generation"])),
        ("size", f"{stored['bytes'] / 1e6:.1f} MB"),
        ("graphs", str(stored["graphs"])),
        ("programs", f"{stored['programs']}" + (f", {stored['programs_vetoed']} vetoed" if stored["programs_vetoed"] else "")),
        ("winners", by_reason(stored["winners"]) or "0"),
        ("measurements", by_reason(stored["measurements"]) or "0"),
        ("quarantined", str(stored["quarantined"])),
        ("behind winners", ", ".join(f"{value:.0f} s {name}" for name, value in seconds.items())),
    ]
