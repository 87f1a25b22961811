"""Which room may import which. The rooms stand in layers; a room may import itself and every layer below it, no other.

    cli -> daemon -> search -> workers -> {compilers, measure, cost} -> {cache -> lookup -> search_spaces} -> workload -> values

The door, `tuner/__init__.py`, may import anything; the rooms take only the version from it. Imports inside functions count too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = (
    ("cli",),
    ("daemon",),
    ("search",),
    ("workers",),
    ("compilers", "measure", "cost"),
    ("cache",),
    ("lookup",),
    ("search_spaces",),
    ("workload",),
    ("values",),
)
LAYER = {room: depth for depth, layer in enumerate(LAYERS) for room in layer}
SIDE_ROOMS = ("cache", "cli", "search_spaces")  # top-level folders that package-dir maps into `tuner`
HEAVY = {"torch", "optuna", "sqlite_utils", "numpy"}
NEVER_IMPORTS = {"values": HEAVY, "search_spaces": HEAVY, "lookup": HEAVY, "cache": {"torch"}}
STANDARD_LIBRARY_ONLY = {"lookup"}
COMPILER_INTERNALS = ("torch._inductor", "torch._dynamo", "torch._functorch")
MAX_LINES = 600


@dataclass(frozen=True)
class Module:
    """A source file of the package: `path` relative to the root, `name` as imported, `room` that it belongs to."""

    path: Path
    name: str
    room: str
    tree: ast.Module
    lines: int


@dataclass(frozen=True)
class Import:
    """One imported name, absolute; `lazy` where it does not run when the module is imported."""

    name: str
    line: int
    lazy: bool


def load(root: Path) -> list[Module]:
    """Every module of the package whose rooms lie side by side in `root`."""
    modules = []
    for top in ("tuner", *SIDE_ROOMS):
        for file in sorted((root / top).rglob("*.py")):
            path = file.relative_to(root)
            parts = (() if top == "tuner" else ("tuner",)) + path.with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            room = "door" if name == "tuner" else parts[1] if len(parts) > 2 else "values"
            text = file.read_text()
            modules.append(Module(path, name, room, ast.parse(text, str(path)), text.count("\n")))
    return modules


def imports(module: Module, known: Iterable[str]) -> Iterator[Import]:
    """All that a module imports: statements, `import_module("...")`, and what it reaches as attributes of torch and tuner."""
    later = [
        block
        for block in ast.walk(module.tree)
        if isinstance(block, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test))
    ]
    lazy = {id(node) for block in later for node in ast.walk(block)}
    names = set(known)
    for node in ast.walk(module.tree):
        for name in imported_names(node, module, names):
            yield Import(name, getattr(node, "lineno", 0), id(node) in lazy)


def imported_names(node: ast.AST, module: Module, known: set[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = absolute(node, module)
        # in `from tuner import plan` the module is tuner.plan; in `from tuner.plan import Plan` it is tuner.plan as well
        return [full if (full := f"{base}.{alias.name}") in known or base == "tuner" else base for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return [str(node.args[0].value)] if called in ("import_module", "__import__") else []
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        full = f"{node.value.id}.{node.attr}"
        return [full] if full in COMPILER_INTERNALS or node.value.id == "tuner" else []
    return []


def absolute(node: ast.ImportFrom, module: Module) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    climbs = node.level - (module.path.name == "__init__.py")
    return ".".join([*parts[: len(parts) - climbs], *([node.module] if node.module else [])])


def complaint(module: Module, imported: str, rooms: dict[str, str]) -> str | None:
    """Why `module` may not import the name, or None."""
    top = imported.split(".")[0]
    if top in SIDE_ROOMS:
        return f"imports {imported}, which may be a user's own: write tuner.{imported}"
    if imported.startswith(COMPILER_INTERNALS) and module.room != "compilers":
        return f"{module.room} -> {imported}: compiler internals are for tuner/compilers only"
    if module.room == "door":
        return None
    if top != "tuner":
        if top in NEVER_IMPORTS.get(module.room, ()):
            return f"{module.room} -> {top}: this room never imports it"
        if module.room in STANDARD_LIBRARY_ONLY and top not in sys.stdlib_module_names:
            return f"{module.room} -> {top}: this room uses the standard library only"
        return None
    if imported in ("tuner", "tuner.__version__"):
        return None
    parts = imported.split(".")
    room = parts[1] if len(parts) > 1 and parts[1] in LAYER else rooms.get(imported, "door")
    if room == module.room or (room != "door" and LAYER[module.room] < LAYER[room]):
        return None
    return f"{module.room} -> {room}: {imported} is not below {module.room}"


def heavy_chain(start: Module, modules: dict[str, Module], forbidden: set[str]) -> str | None:
    """The chain of imports at module level by which `start`, once imported, loads a forbidden package; None if there is none."""
    queue, seen = [(start, start.name)], {start.name}
    for module, chain in queue:
        for found in imports(module, modules):
            if found.lazy:
                continue
            if found.name.split(".")[0] in forbidden:
                return f"{chain} -> {found.name}"
            # importing a.b.c runs a and a.b too
            parts = found.name.split(".")
            for name in (".".join(parts[: i + 1]) for i in range(len(parts))):
                if name in modules and name not in seen:
                    seen.add(name)
                    queue.append((modules[name], f"{chain} -> {name}"))
    return None


def violations(root: Path) -> list[str]:
    """Every breach, as `file:line: what`."""
    modules = load(root)
    named = {module.name: module for module in modules}
    rooms = {module.name: module.room for module in modules}
    found = []
    for module in modules:
        if module.room not in (*LAYER, "door"):
            found.append(f"{module.path}:1: {module.room} is not one of the rooms")
            continue
        if module.lines > MAX_LINES:
            found.append(f"{module.path}:{module.lines}: longer than {MAX_LINES} lines")
        for item in imports(module, named):
            if why := complaint(module, item.name, rooms):
                found.append(f"{module.path}:{item.line}: {why}")
        forbidden = HEAVY if module.room == "door" else NEVER_IMPORTS.get(module.room, set())
        if forbidden and (chain := heavy_chain(module, named, forbidden)):
            found.append(f"{module.path}:1: importing it loads a package that it must not: {chain}")
    return found


def test_every_import_follows_the_arrows():
    assert len(load(ROOT)) > 20, "the package was not found"
    breaches = violations(ROOT)
    assert not breaches, "\n" + "\n".join(breaches)


def tree(root: Path, files: dict[str, str]) -> Path:
    """A made-up package: text by path, and an empty door where none is given."""
    for name, text in {"tuner/__init__.py": "", **files}.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        (
            "tuner/workload/graph.py",
            "import os\nimport tuner.search\n",
            "tuner/workload/graph.py:2: workload -> search",
        ),
        ("tuner/measure/clock.py", "def f():\n    import tuner.workers.pool\n", "tuner/measure/clock.py:2: measure -> workers"),
        ("tuner/measure/clock.py", "from tuner.compilers import inductor\n", "tuner/measure/clock.py:1: measure -> compilers"),
        ("tuner/lookup/reader.py", "from tuner.cache.sqlite import open\n", "tuner/lookup/reader.py:1: lookup -> cache"),
        ("tuner/lookup/reader.py", "from ..cache import sqlite\n", "tuner/lookup/reader.py:1: lookup -> cache"),
        ("tuner/lookup/reader.py", "import rich\n", "tuner/lookup/reader.py:1: lookup -> rich"),
        ("search_spaces/space.py", "from tuner.lookup import client\n", "search_spaces/space.py:1: search_spaces -> lookup"),
        ("search_spaces/space.py", "import numpy as np\n", "search_spaces/space.py:1: search_spaces -> numpy"),
        ("cache/sqlite.py", "import torch\n", "cache/sqlite.py:1: cache -> torch"),
        ("cache/sqlite.py", "from cache.schema import x\n", "cache/sqlite.py:1: imports cache.schema"),
        ("tuner/plan.py", "from tuner import report\n", "tuner/plan.py:1: values -> door"),
        ("tuner/plan.py", "import tuner\ntuner.report()\n", "tuner/plan.py:2: values -> door"),
        ("tuner/plan.py", "from tuner.workload import graph\n", "tuner/plan.py:1: values -> workload"),
        ("tuner/search/loop.py", "import torch._inductor.config\n", "tuner/search/loop.py:1: search -> torch._inductor"),
        ("tuner/search/loop.py", "import torch\nx = torch._dynamo.reset\n", "tuner/search/loop.py:2: search -> torch._dynamo"),
        ("tuner/search/loop.py", "import_module('tuner.cli.main')\n", "tuner/search/loop.py:1: search -> cli"),
        ("tuner/attic/x.py", "", "tuner/attic/x.py:1: attic is not one of the rooms"),
        ("tuner/search/long.py", "x = 1\n" * 601, "tuner/search/long.py:601: longer than 600 lines"),
    ],
)
def test_a_breach_is_reported_with_its_place_and_arrow(tmp_path, file, text, expected):
    breaches = violations(tree(tmp_path, {file: text}))
    assert len(breaches) >= 1
    assert breaches[0].startswith(expected)


def test_a_package_loaded_by_way_of_another_room_is_found(tmp_path):
    root = tree(
        tmp_path,
        {
            "tuner/workload/fx.py": "import torch\n",
            "tuner/lookup/reader.py": "from tuner.workload import fx\n",
            "tuner/lookup/client.py": "def late():\n    from tuner.workload import fx\n",
        },
    )
    chain = "tuner.lookup.reader -> tuner.workload.fx -> torch"
    assert violations(root) == [f"tuner/lookup/reader.py:1: importing it loads a package that it must not: {chain}"]


def test_imports_along_the_arrows_are_allowed(tmp_path):
    root = tree(
        tmp_path,
        {
            "tuner/__init__.py": "def __getattr__(name):\n    from tuner.compilers import events\n",
            "tuner/plan.py": "import json\nfrom tuner.errors import PlanError\n",
            "tuner/errors.py": "",
            "tuner/search/loop.py": "import torch\nfrom tuner import __version__, plan\nfrom tuner.measure import clock\n",
            "tuner/measure/clock.py": "import torch\nfrom tuner.cache.sqlite import Store\n",
            "tuner/compilers/events.py": "import torch._inductor\n",
            "cache/sqlite.py": "import sqlite_utils\nfrom tuner.lookup.reader import R\nfrom tuner.search_spaces import space\n",
            "tuner/lookup/reader.py": "import sqlite3\nfrom tuner.search_spaces.space import declared\n",
            "search_spaces/space.py": "from tuner.plan import Plan\n",
            "cli/main.py": "import tuner, tuner.cli.output\ntuner.__version__\nfrom tuner.daemon import app\n",
            "cli/output.py": "",
            "tuner/daemon/app.py": "",
        },
    )
    assert violations(root) == []
