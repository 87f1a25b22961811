"""SPEC, the way a user names what to tune: `file.py:function`, `model.pt2`, or the key of a stored graph."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tuner.errors import SpecError, one_line
from tuner.workload.pt2 import SUFFIX, load_pt2

# What the function of a SPEC is to return, in words; and of what it returned instead, so many are told.
WANTED = "a callable, and a tuple of its example inputs (and maybe, as a third, a dict that names sizes)"
SHOWN = 6


@dataclass(frozen=True)
class Loaded:
    """What a SPEC names. dims: names of sizes that may vary, each with where it stands, see `tuner.workload.shapes.Place`."""

    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    dims: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)


def load_spec(spec: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The callable and the example inputs of `load`."""
    loaded = load(spec)
    return loaded.function, loaded.inputs


def load(spec: str) -> Loaded:
    """What the function named by `file.py:function` returns: a callable, its example inputs and, if it likes, names of sizes.

    Of `model.pt2` the exported program with its example inputs, see `tuner.workload.pt2`.
    The callable has run once in eager mode, without gradients, on copies of the inputs. Raises SpecError with one line.
    """
    loaded = Loaded(*load_pt2(Path(spec))) if spec.endswith(SUFFIX) else _from_function(spec)
    target, inputs = loaded.function, loaded.inputs
    tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    if not tensors and not isinstance(target, torch.nn.Module):
        raise SpecError(f"{spec}: the example inputs hold no tensor")
    if elsewhere := sorted({tensor.device.type for tensor in tensors} - {"cpu"}):
        raise SpecError(f"{spec}: an input is on {elsewhere[0]}; only the CPU is supported yet")
    try:
        with torch.no_grad():
            target(*pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, inputs))
    except (Exception, SystemExit) as error:
        raise SpecError(f"{spec}: it fails in eager mode: {one_line(error)}") from error
    return loaded


def _from_function(spec: str) -> Loaded:
    path, separator, name = spec.rpartition(":")
    if not separator or not path or not name:
        raise SpecError(f"{spec!r} is neither file.py:function, nor model.pt2, nor the key of a stored workload")
    function = _load_function(Path(path), name)
    try:
        made = function()
    except (Exception, SystemExit) as error:
        raise SpecError(f"{spec}: {name}() raised {one_line(error)}") from error
    if not (isinstance(made, tuple | list) and len(made) in (2, 3) and callable(made[0])):
        raise SpecError(f"{spec}: {name}() returned {_described(made)}; wanted are two: {WANTED}")
    target, inputs, *rest = made
    dims = _dims(spec, name, rest[0] if rest else {})
    return Loaded(target, tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), dims)


def _described(made: Any) -> str:
    """What a function returned, for people: "a tuple of 4 (Linear, Tensor, Tensor, int)"."""
    if not isinstance(made, tuple | list):
        return type(made).__name__
    kinds = [type(one).__name__ for one in made]
    shown = ", ".join([*kinds[:SHOWN], *(["…"] if len(kinds) > SHOWN else [])])
    return f"a {type(made).__name__} of {len(made)}{f' ({shown})' if shown else ''}"


def _dims(spec: str, name: str, declared: Any) -> dict[str, tuple[tuple[int, int], ...]]:
    try:
        return {str(dim): tuple((int(position), int(axis)) for position, axis in places) for dim, places in declared.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise SpecError(
            f"{spec}: the third that {name}() returned is no dict of names of sizes, each with its (position of an input, axis)"
        ) from error


def _load_function(path: Path, name: str) -> Callable[..., Any]:
    if not path.is_file():
        raise SpecError(f"{path} is not a file")
    module_spec = importlib.util.spec_from_file_location(f"tuner_spec_{path.stem}", path)
    if module_spec is None or module_spec.loader is None:
        raise SpecError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module
    # As for a script, and for good: its functions may import what lies beside it later.
    sys.path.insert(0, str(path.parent.absolute()))
    try:
        module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise SpecError(f"{path} cannot be imported: {one_line(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise SpecError(f"{path} has no function {name!r}")
    return function
