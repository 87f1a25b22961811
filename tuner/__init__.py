"""Search fusion groupings and kernel configs per graph and architecture, and serve the winners at compile time.

Importing this package loads none of torch, optuna, sqlite_utils or numpy; the names below load what they need when first used.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "disable", "enable", "report", "reset_report"]


def __getattr__(name: str) -> Any:
    if name in ("report", "reset_report"):
        import tuner.compilers.inductor.events as events

        return getattr(events, name)
    if name in ("enable", "disable"):
        import tuner.compilers.inductor.doors as doors

        return getattr(doors, name)
    raise AttributeError(f"module 'tuner' has no attribute {name!r}")
