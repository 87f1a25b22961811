"""Where and when a number was got."""

from __future__ import annotations

import getpass
import os
import platform
from datetime import UTC, datetime
from typing import Any

import tuner


def provenance(**more: Any) -> dict[str, Any]:
    """Date (UTC), host, user, host load over one minute, kernel and versions, as JSON values; and what else is not empty."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "user": user,
        "load_1min": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "tuner": tuner.__version__,
        **{name: value for name, value in more.items() if value},
    }
