"""`tuner serve`: answer look-ups until stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tuner.cli.output import json_option, print_json, settings_for, socket_option, store_option


@click.command(short_help="Serve the winners of a store to compiling processes.")
@store_option
@socket_option
@json_option
def serve(store: Path | None, socket: Path | None, as_json: bool) -> None:
    """Serve the winners of a store on a Unix socket, until SIGTERM or Ctrl-C.

    The store is only read: a sweep may write it at the same time, and what it finds is served at once. One daemon per socket;
    only this user can reach it. It is ready when `tuner status` answers; one line says what it serves and where.
    """
    from tuner.daemon.server import serve as serve_store

    settings = settings_for(store, socket)

    def announce(started: dict[str, Any]) -> None:
        if as_json:
            print_json(started)
        else:
            click.echo(f"serving {started['store']} (generation {started['generation']}) on {started['socket']}", err=True)

    serve_store(settings.store, settings.socket, announce)
