"""`model.pt2` as a SPEC: a program that torch.export.save wrote, with the example inputs that it was exported with.

Loading one runs code, as any SPEC does: torch unpickles what the archive holds. Load your own files only.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tuner.errors import SpecError, one_line

SUFFIX = ".pt2"


def load_pt2(path: Path) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The module of an exported program, as for inference, and its example inputs, those by keyword last.

    Sizes that were exported as dynamic are those of the example inputs. Raises SpecError with one line.
    """
    _check_archive(path)
    try:
        program = torch.export.load(path)
    # As where a SPEC is loaded: whatever comes of it is told in one line.
    except Exception as error:
        raise SpecError(f"{path} cannot be loaded by torch {torch.__version__}: {one_line(error)}") from error
    if program.example_inputs is None:
        raise SpecError(f"{path} holds no example inputs: export it again, with torch.export.export and torch.export.save")
    args, kwargs = program.example_inputs
    module: torch.nn.Module = program.module()
    if kwargs:
        module = _Positional(module, len(args), tuple(kwargs))
    for part in module.modules():
        # Exported modules refuse eval(): how they were exported is in the graph. What reads the flag is to see inference.
        part.training = False
    return module, (*args, *kwargs.values())


class _Positional(torch.nn.Module):
    """`module` with the inputs that it takes by keyword after the others."""

    def __init__(self, module: torch.nn.Module, positional: int, names: tuple[str, ...]):
        super().__init__()
        self.called, self.positional, self.names = module, positional, names

    def forward(self, *values: Any) -> Any:
        named = dict(zip(self.names, values[self.positional :], strict=True))
        return self.called(*values[: self.positional], **named)


def _check_archive(path: Path) -> None:
    """Raises SpecError for what is no archive of torch.export.save's."""
    if not path.is_file():
        raise SpecError(f"{path} is not a file")
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        raise SpecError(f"{path} is no archive of torch.export.save's: {one_line(error)}") from error
    # Each archive holds one folder, named for the file that it was saved as.
    inside = [name.partition("/")[2] for name in names]
    if any(name.startswith("models/") for name in inside) or "serialized_exported_program.json" in names:
        return
    if any(name.startswith("data/aotinductor/") for name in inside):
        raise SpecError(
            f"{path} is a compiled package and holds no graph: name the file of torch.export.save that it was made of"
        )
    raise SpecError(f"{path} is no archive of torch.export.save's")
