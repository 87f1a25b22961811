"""The entry point `torch.backends: tuner`, which torch calls at the end of `import torch`, in every process that imports it."""

from __future__ import annotations

import os


def main() -> None:
    """Does what the environment asks for, which is nothing as a rule. Never raises: torch could not be imported then."""
    if folder := os.environ.get("TUNER_CAPTURE"):
        try:
            from pathlib import Path

            from tuner.compilers.script_hooks import install

            install(Path(folder))
        except Exception as error:
            _warn("nothing can be captured here", error)
    if os.environ.get("TUNER_INDUCTOR", "") not in ("", "0"):
        try:
            from tuner.compilers.inductor.doors import enable

            enable()
        except Exception as error:
            _warn("Inductor is not served here", error)


def _warn(what: str, error: Exception) -> None:
    import logging

    logging.getLogger("tuner").warning("tuner: %s: %s: %s", what, type(error).__name__, error)
