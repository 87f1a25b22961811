"""Folders that are this user's own."""

from __future__ import annotations

import os
from pathlib import Path


def make_folder(folder: Path) -> bool:
    """Make `folder`, if missing, and the missing ones above it, each for this user alone. Raises OSError.

    Gives whether nobody else can write to it, which one that was there before may not promise.
    """
    missing = [above for above in folder.parents if not above.exists()]
    for one in (*reversed(missing), folder):
        # not Path.mkdir's own `parents`, which makes those for everybody
        one.mkdir(mode=0o700, exist_ok=True)
    status = folder.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022
