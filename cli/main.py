"""`tuner`: the group of all commands, and the one place where an error becomes a line and an exit code."""

from __future__ import annotations

import importlib
import traceback
from typing import Any

import click

from tuner import __version__
from tuner.errors import TunerError

# name -> where the command is; imported when it is asked for, in the order in which a user meets them
COMMANDS = {
    "sweep": "tuner.cli.sweep:sweep",
    "capture": "tuner.cli.capture:capture",
    "serve": "tuner.cli.serve:serve",
    "status": "tuner.cli.status:status",
    "jobs": "tuner.cli.jobs:jobs",
    "stats": "tuner.cli.stats:stats",
    "lookup": "tuner.cli.lookup:lookup",
    "show": "tuner.cli.show:show",
}

EPILOG = """\b
Exit codes:
  0    done; a look-up that finds nothing is also done
  1    an error that has no code of its own
  2    an option or argument that makes no sense
  3    a SPEC that cannot be loaded, run, captured or tuned
  4    the store cannot be opened, read or written, or is in use
  5    the daemon cannot start or does not answer
  6    a plan that does not validate, or is not realised
  7    the measuring process failed
  8    the machine was too busy to be measured
  130  interrupted by Ctrl-C
"""


class LazyGroup(click.Group):
    """Imports a command when it is used; reports what it raises as one line, with the exit code of `tuner.errors`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name].split(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        debug = bool(ctx.params.get("debug"))
        try:
            return super().invoke(ctx)
        except TunerError as error:
            _report(f"Error: {error}", debug)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            _report("Interrupted", debug)
            ctx.exit(130)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise  # click's own
        except Exception as error:
            _report(f"Error: {_line(error)} (unexpected; --debug shows the traceback)", debug)
            ctx.exit(1)


def _report(line: str, debug: bool) -> None:
    if debug:
        click.echo(traceback.format_exc(), err=True, nl=False)
    click.echo(line, err=True)


def _line(error: Exception) -> str:
    """The error in one line; the first line of its text where there are several."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(__version__, prog_name="tuner", help="Show the version and exit.")
def main(debug: bool) -> None:
    """Search fusion groupings and kernel configs per graph and architecture, and serve the winners to torch.compile."""


if __name__ == "__main__":
    main()
