"""Calling back when a module is imported, without importing it."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


def after_import(name: str, call: Callable[[ModuleType], None]) -> None:
    """Calls `call` with the module `name`: now if it has been imported, else when it has been."""
    if name in sys.modules:
        # Waits for the thread that may be importing it.
        call(importlib.import_module(name))
    else:
        sys.meta_path.insert(0, _AfterImport(name, call))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds one module, by asking the other finders, and calls back when it was executed."""

    def __init__(self, name: str, call: Callable[[ModuleType], None]):
        self.name, self.call, self.asking = name, call, False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name or self.asking:
            return None
        self.asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.asking = False
        if spec is None or spec.loader is None:
            return spec
        loader, execute = spec.loader, spec.loader.exec_module

        # Whoever only asks where the module is does not execute it: until somebody does, this stays in its place.
        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self.call(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
