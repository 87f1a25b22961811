"""`tuner serve`: answer look-ups until stopped, and tune what is not known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tuner.cli.output import json_option, print_json, settings_for, socket_option, store_option
from tuner.search.effort import EFFORTS


@click.command(short_help="Serve the winners of a store to compiling processes, and tune what is not in it.")
@click.option("--no-tune", is_flag=True, help="Only serve: ask for no graphs, tune none, load no torch.")
@click.option("--effort", type=click.Choice(list(EFFORTS)), default="quick", show_default=True, help="How much to search.")
@click.option(
    "--when-busy",
    type=click.Choice(["wait", "measure"]),
    default="wait",
    show_default=True,
    help="What to do while the machine is not quiet: wait, or measure all the same.",
)
@store_option
@socket_option
@json_option
def serve(no_tune: bool, effort: str, when_busy: Any, store: Path | None, socket: Path | None, as_json: bool) -> None:
    """Serve the winners of a store on a Unix socket, until SIGTERM or Ctrl-C.

    A program that is compiled and not known is tuned in the background, while the machine is quiet: `tuner jobs` shows how far
    it is. A sweep that a user starts goes first, and what it finds is served at once. One daemon per socket; only this user can
    reach it. It is ready when `tuner status` answers; one line says what it serves and where.
    """
    from tuner.daemon.background import TuningSettings
    from tuner.daemon.server import serve as serve_store

    settings = settings_for(store, socket)

    def announce(started: dict[str, Any]) -> None:
        if as_json:
            print_json(started)
        else:
            click.echo(f"serving {started['store']} (generation {started['generation']}) on {started['socket']}", err=True)

    tuning = None if no_tune else TuningSettings(settings.store, effort, when_busy)
    serve_store(settings.store, settings.socket, announce, tuning)
