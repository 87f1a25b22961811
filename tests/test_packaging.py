"""The wheel, as a user gets it: installed away from the sources, used from a folder with modules of the user's own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from test_arrows import imports, load

import tuner

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = {"sqlite_utils": "sqlite-utils", "pynvml": "nvidia-ml-py"}
ROOMS = ("tuner", "cache", "cli", "search_spaces")


def run(*command: str | Path, cwd: Path) -> str:
    """The standard output of a command that must succeed, without this process's Python settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources, so that the checkout stays clean."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    for room in ROOMS:
        shutil.copytree(ROOT / room, source / room, ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", source / "dist", cwd=source)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def user(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with a `cache.py` and a `cli.py`, and in `env` an environment in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("user")
    for name in ("cache", "cli"):
        (folder / f"{name}.py").write_text(f"owner = 'the user, {name}'\n")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "env", cwd=folder)
    pip = (sys.executable, "-m", "pip", "--python", folder / "env/bin/python")
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    # Dependencies come from the environment of the tests. A path in a .pth file is searched, but the .pth files in it are not
    # read: the editable install of that environment stays out.
    (site,) = (folder / "env/lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def test_the_wheel_holds_every_module_and_the_marker_of_types_and_nothing_else(wheel):
    source = wheel.parents[1]
    modules = {
        ("" if room == "tuner" else "tuner/") + str(file.relative_to(source))
        for room in ROOMS
        for file in (source / room).rglob("*.py")
    }
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == {*modules, "tuner/py.typed"}


def test_every_package_that_is_imported_is_a_declared_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [named for extra, group in project["optional-dependencies"].items() if extra != "test" for named in group]
    declared = {re.split(r"[^\w.-]", named)[0].lower() for named in (*project["dependencies"], *extras)}
    modules = load(ROOT)
    imported = {found.name.split(".")[0] for module in modules for found in imports(module, [one.name for one in modules])}
    third_party = imported - sys.stdlib_module_names - {"tuner", "__future__"}
    assert third_party >= {"torch", "click", "pynvml"}
    assert sorted({DISTRIBUTIONS.get(name, name) for name in third_party} - declared) == []


def test_modules_of_the_user_named_like_our_rooms_do_not_collide(user):
    script = """
import json, cache, cli
import tuner, tuner.cache, tuner.cli.main, tuner.search_spaces.space
ours = [tuner, tuner.cache, tuner.cli.main, tuner.search_spaces.space]
print(json.dumps([[cache.owner, cli.owner], [module.__file__ for module in ours]]))
"""
    owners, files = json.loads(run("env/bin/python", "-c", script, cwd=user))
    assert owners == ["the user, cache", "the user, cli"]
    assert [file for file in files if not file.startswith(f"{user}/env/lib")] == []


def test_the_console_script_tells_the_version(user):
    assert tuner.__version__ in run("env/bin/tuner", "--version", cwd=user)


def test_torch_finds_the_backend_by_name_where_the_wheel_is_installed(wheel, user):
    held = zipfile.ZipFile(wheel)
    (entry_points,) = (name for name in held.namelist() if name.endswith(".dist-info/entry_points.txt"))
    assert "[torch_dynamo_backends]\ntuner = " in held.read(entry_points).decode()
    script = """
import sys, torch._dynamo
backend = torch._dynamo.lookup_backend("tuner")
print(sys.modules[backend.__module__].__file__)
"""
    assert run("env/bin/python", "-c", script, cwd=user).startswith(f"{user}/env/lib")
