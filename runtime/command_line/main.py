"""The group of all commands, and how errors look: one line, exit status 1 (2 for wrong usage, 77
where the cluster has expelled the node); `--debug` shows the traceback.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import sys
from typing import Any

import click

from actors.errors import ExpelledError, RemoteError, UnderstudyError
from runtime.environment import first
from runtime.logs.formats import write_logs
from runtime.stderr_writer import flush_stderr
from runtime.version import __version__

COMMANDS = (
    "call",
    "dashboard",
    "debug",
    "demo",
    "doctor",
    "expel",
    "gateway",
    "inspect",
    "list",
    "logs",
    "node",
    "pools",
    "profile",
    "refs",
    "reopen",
    "run",
    "secret",
    "shell",
    "simulate",
    "stack",
    "status",
    "stop",
    "timeline",
    "tls",
    "top",
    "tree",
    "why",
)
"""Each is in a module of its name beside this one, and loaded when it is wanted: most take long to
load, and each run needs one.
"""

EXPELLED_STATUS = 77
"""Of a process that the cluster has expelled, or does not let join for that: EX_NOPERM of
sysexits.h. Service managers can be told not to start it again (`RestartPreventExitStatus=NOPERM`).
"""

MODULES = {"list": "listing"}
"""Commands whose module and function are called otherwise: the name would hide one of Python's."""


class Commands(click.Group):
    """A group that loads its commands late, suggests the nearest and turns our errors into one
    line.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names, in the order of help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one; None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        name = MODULES.get(cmd_name, cmd_name)
        module = importlib.import_module(f"runtime.command_line.{name}")
        command: click.Command = getattr(module, name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or fail with a suggestion."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if near:
                raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from None
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; whatever it raises is one line, but with `--debug`."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            # How click itself shows what is wrong with options and arguments, and ends.
            raise
        except KeyboardInterrupt:
            sys.exit(130)
        except (Exception, BaseExceptionGroup) as error:
            what = first(error)
            if isinstance(what, KeyboardInterrupt):
                sys.exit(130)
            if not isinstance(what, Exception):
                raise what from None
            if ctx.params.get("debug"):
                raise
            # After what was logged. Where stderr takes nothing, this line would wait for ever too.
            if flush_stderr():
                click.echo(f"error: {one_line(what)}", err=True)
            sys.exit(EXPELLED_STATUS if isinstance(what, ExpelledError) else 1)


def one_line(error: BaseException) -> str:
    """The error's text without line breaks; with the name of its type if that tells more."""
    lines = (
        str(error.args[0] if isinstance(error, RemoteError) and error.args else error)
        .strip()
        .splitlines()
    )
    text = lines[0] if lines else ""
    if isinstance(error, RemoteError):
        kind = error.remote_type.rpartition(":")[2]
        # Of a type that is not known here, the text begins with its name.
        return (
            f"{error.actor}.{error.method} raised "
            f"{text if text.startswith(kind) else f'{kind}: {text}'.rstrip(': ')}"
        )
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, UnderstudyError | ValueError | OSError):
        return text or type(error).__name__
    return (
        f"{type(error).__name__}: {text}; this should not happen: `understudy --debug` before "
        "the command shows where it did"
    )


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example:  understudy demo",
)
@click.version_option(__version__, prog_name="understudy")
@click.option("--debug", is_flag=True, help="Show debug logs, and tracebacks of errors.")
@click.option("--verbose", "-v", is_flag=True, help="Show info logs.")
def main(debug: bool, verbose: bool) -> None:
    """Named actors on many nodes, awaited like local objects, replaced when they die."""
    level = logging.DEBUG if debug else logging.INFO if verbose else logging.WARNING
    write_logs(level, "text")
