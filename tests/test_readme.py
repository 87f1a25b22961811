"""The README's tables are true."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import click

from tuner import errors
from tuner.cli.main import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def first_cells(header: str) -> list[str]:
    """The first column of the table whose header row starts with `header`."""
    table = README.split(f"\n| {header} |", 1)[1].split("\n\n", 1)[0]
    return [row.split("|")[1].strip() for row in table.splitlines()[2:]]


def test_the_table_of_settings_lists_every_variable_and_no_other():
    read = set(re.findall(r"TUNER_[A-Z0-9_]+", (ROOT / "tuner/settings.py").read_text()))
    assert read
    assert {cell.strip("`") for cell in first_cells("variable")} == read


def test_the_table_of_commands_lists_every_command_and_no_other():
    registered = set(main.list_commands(click.Context(main)))
    assert registered
    assert {cell.split()[1].strip("`") for cell in first_cells("command")} == registered


def test_every_option_that_the_readme_shows_exists():
    context = click.Context(main)
    missing = []
    for name, rest in re.findall(r"tuner (\w+)([^\n`]*)", README):
        command = main.get_command(context, name) if name in main.list_commands(context) else None
        known = {text for parameter in command.params for text in parameter.opts} if command else set()
        missing += [f"{name} {option}" for option in re.findall(r"--[a-z-]+", rest) if option not in {*known, "--help"}]
    assert missing == []


def test_the_table_of_exit_codes_lists_every_code_and_no_other():
    used = {kind.exit_code for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.TunerError)}
    assert {int(cell) for cell in first_cells("exit code")} == used | {0, 130}


def test_every_make_target_that_the_readme_names_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {word for line in re.findall(r"^make ([a-z ]+)", README, re.MULTILINE) for word in line.split()}
    assert {"demo", "test"} <= named
    assert named <= targets


def test_every_file_and_folder_that_the_readme_names_exists():
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    spec_files = re.findall(r"([\w/]+\.py):\w+", README.replace("`file.py:function`", ""))
    layout = README.split("\n## Layout\n", 1)[1].split("```")[1]
    folders = re.findall(r"^(\w+/)", layout, re.MULTILINE)
    assert links
    assert spec_files
    assert folders
    assert [name for name in (*links, *spec_files, *folders) if not (ROOT / name).exists()] == []


def test_the_readme_is_short():
    assert len(README.splitlines()) < 250
