"""Settings of a process, read once from the environment. The README's table of settings lists them all.

`tuner.compilers.autoload`, which runs at every `import torch`, reads TUNER_INDUCTOR by itself.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Raised with what an older client or daemon could not read: those then find no daemon, and read the store themselves.
PROTOCOL = 2


@dataclass(frozen=True)
class Settings:
    """disabled: compile by default, ask nobody. store: path of the store. socket: the daemon's Unix socket.

    deadline_ms: milliseconds that look-ups may take in this process, all together, before it stops asking. read_back: report the
    groups also of graphs that are compiled by default; those then have entries of their own in the compile caches. report_misses:
    give a daemon that tunes the graphs that it does not know. random_plans: a seed, for tests; plans are drawn, nobody is asked.
    """

    disabled: bool
    store: Path
    socket: Path
    deadline_ms: float = 250.0
    read_back: bool = False
    report_misses: bool = True
    random_plans: str = ""

    @staticmethod
    def from_environment(environ: Mapping[str, str] = os.environ, store: Path | None = None) -> Settings:
        """`store`, where given, outranks TUNER_STORE, and TUNER_SOCKET too: whose daemon may serve another store.

        Raises ValueError on a deadline that is not a positive number.
        """
        path = store or Path(environ["TUNER_STORE"] if environ.get("TUNER_STORE") else default_store(environ))
        named = environ.get("TUNER_SOCKET") if store is None else None
        socket = Path(named) if named else default_socket(path, environ)
        try:
            deadline_ms = float(environ.get("TUNER_DEADLINE_MS") or 250.0)
        except ValueError:
            deadline_ms = 0.0
        if not deadline_ms > 0:
            raise ValueError("TUNER_DEADLINE_MS must be a positive number of milliseconds")
        return Settings(
            disabled=environ.get("TUNER_DISABLE", "") not in ("", "0"),
            read_back=environ.get("TUNER_READ_BACK", "") not in ("", "0"),
            report_misses=environ.get("TUNER_REPORT_MISSES", "") != "0",
            random_plans=environ.get("TUNER_RANDOM_PLANS", ""),
            store=path,
            socket=socket,
            deadline_ms=deadline_ms,
        )


def default_store(environ: Mapping[str, str]) -> Path:
    """$XDG_STATE_HOME/tuner/store.db, else ~/.local/state/tuner/store.db, else a folder of this user under /var/tmp."""
    if environ.get("XDG_STATE_HOME"):
        return Path(environ["XDG_STATE_HOME"]) / "tuner" / "store.db"
    if environ.get("HOME"):
        return Path(environ["HOME"]) / ".local" / "state" / "tuner" / "store.db"
    return Path(f"/var/tmp/tuner-{os.getuid()}") / "store.db"


def default_socket(store: Path, environ: Mapping[str, str]) -> Path:
    """The socket of the daemon that serves `store`: in a folder of this user's own, named for the store and the protocol."""
    folder = Path(environ["XDG_RUNTIME_DIR"]) / "tuner" if environ.get("XDG_RUNTIME_DIR") else Path(f"/tmp/tuner-{os.getuid()}")
    name = hashlib.sha256(str(store.expanduser().absolute().resolve()).encode()).hexdigest()[:12]
    return folder / f"{name}-v{PROTOCOL}.sock"
