"""mode= and options= of torch.compile, for what is tuned without a torch.compile of the user's."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tuner.compilers.inductor.hooks import inductor_config
from tuner.errors import UsageError


@contextlib.contextmanager
def compile_options(mode: str | None, options: Sequence[str]) -> Iterator[None]:
    """Inductor's settings as torch.compile(mode=mode, options=…) makes them; options: "NAME=VALUE", JSON values or bare words.

    Raises UsageError for a mode or an option that Inductor does not have, and for both at once, as torch.compile does.
    """
    if mode is not None and options:
        raise UsageError("give --mode or --option, not both")
    try:
        patches = torch._TorchCompileInductorWrapper(mode, dict(map(_option, options)), None).config
    except RuntimeError as error:
        # Inductor goes on to list all that it knows.
        raise UsageError(str(error).partition(", known options are")[0]) from error
    with inductor_config.patch(patches) if patches else contextlib.nullcontext():
        yield


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"--option takes NAME=VALUE, not {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
