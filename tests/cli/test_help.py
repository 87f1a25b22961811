"""Every command and option explains itself, and asking for help is quick."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import tuner
from tuner.cli.main import COMMANDS, main


def command(name: str) -> click.Command:
    found = main.get_command(click.Context(main), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name):
    assert command(name).help
    assert command(name).get_short_help_str(limit=100)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        (name, option.opts[0])
        for name, owner in [("tuner", main), *((name, command(name)) for name in COMMANDS)]
        for option in owner.params
        if isinstance(option, click.Option)
    ],
)
def test_every_option_has_help(name, option):
    owner = main if name == "tuner" else command(name)
    (found,) = [one for one in owner.params if option in one.opts]
    assert found.help


def test_help_lists_the_commands_and_the_exit_codes():
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in result.output
    for code in ("0 ", "1 ", "2 ", "3 ", "4 ", "5 ", "6 ", "7 ", "8 ", "130 "):
        assert f"\n    {code}" in result.output


def test_the_version_is_told():
    assert CliRunner().invoke(main, ["--version"]).output == f"tuner, version {tuner.__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["sweep", "--help"], ["serve", "--help"], ["show", "--help"]])
def test_help_loads_no_heavy_package(arguments):
    heavy = ("torch", "optuna", "sqlite_utils", "numpy", "scipy", "starlette", "rich")
    code = (
        "import sys, contextlib, io, tuner.cli.main\n"
        "with contextlib.redirect_stdout(io.StringIO()): tuner.cli.main.main(sys.argv[1:], standalone_mode=False)\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")
