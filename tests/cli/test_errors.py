"""Every error is one line on standard error and an exit code."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from tuner import errors
from tuner.cli import main as module
from tuner.cli.main import main


@pytest.fixture
def failing(monkeypatch):
    """Makes `tuner status` raise what is given."""

    def make(error: BaseException) -> None:
        @click.command()
        def status() -> None:
            """Fails."""
            raise error

        monkeypatch.setattr(module, "failing", status, raising=False)
        monkeypatch.setitem(module.COMMANDS, "status", "tuner.cli.main:failing")

    return make


def run(*arguments: str):
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.TunerError("x"), 1),
        (errors.UsageError("x"), 2),
        (errors.SpecError("x"), 3),
        (errors.UnsupportedGraph("complex", "x"), 3),
        (errors.StoreError("x"), 4),
        (errors.StoreBusy("x"), 4),
        (errors.DaemonError("x"), 5),
        (errors.PlanError("x"), 6),
        (errors.WorkerError("x"), 7),
        (errors.WorkerDied("x"), 7),
        (errors.DeviceBusy("x"), 8),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_of_ours_is_one_line_and_its_exit_code(failing, error, code):
    failing(error)
    result = run("status")
    assert (result.exit_code, result.stderr, result.stdout) == (code, "Error: x\n", "")


def test_an_unexpected_error_is_one_line_too(failing):
    failing(ZeroDivisionError("division by zero\nin the second line"))
    result = run("status")
    assert result.exit_code == 1
    assert result.stderr == "Error: ZeroDivisionError: division by zero (unexpected; --debug shows the traceback)\n"


@pytest.mark.parametrize(("error", "code"), [(ZeroDivisionError("x"), 1), (errors.StoreError("x"), 4)])
def test_debug_shows_the_traceback_and_keeps_the_exit_code(failing, error, code):
    failing(error)
    result = run("--debug", "status")
    assert result.exit_code == code
    assert "Traceback (most recent call last)" in result.stderr
    assert "in status" in result.stderr


def test_ctrl_c_is_130(failing):
    failing(KeyboardInterrupt())
    result = run("status")
    assert (result.exit_code, result.stderr) == (130, "Interrupted\n")


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["status", "--nonsense"], ["lookup"], ["lookup", "x.py:f", "--threads", "0"]]
)
def test_a_wrong_use_is_exit_code_2(arguments):
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Error: " in result.stderr
    assert "Traceback" not in result.stderr


def test_a_deadline_that_is_no_number_is_exit_code_2(monkeypatch):
    monkeypatch.setenv("TUNER_DEADLINE_MS", "soon")
    result = run("show")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
