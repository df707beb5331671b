"""The group of all commands, and how errors look: one line, exit status 1 (2 for wrong usage, 77
where the cluster has expelled the node); `--debug` shows the traceback.
"""

from __future__ import annotations

import difflib
import gc
import importlib
import logging
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click

from runtime.command_line.interrupts import INTERRUPTED_STATUS, raise_interrupts
from runtime.command_line.locales import readable, unreadable, write_all
from runtime.command_line.usage import NamingGroup
from runtime.printable import plain
from runtime.version import __version__

ELSEWHERE = {
    "actors": "list actors",
    "console": "shell",
    "deaths": "list deaths",
    "events": "timeline",
    "groups": "list groups",
    "health": "doctor",
    "help": "--help",
    "join": "node --join",
    "kill": "stop",
    "links": "list links",
    "ls": "list nodes",
    "metrics": "top",
    "nodes": "list nodes",
    "ps": "list actors",
    "repl": "shell",
    "server": "node",
    "spawn": "shell",
    "start": "node",
    "trace": "timeline",
    "version": "--version",
    "worker": "node",
}
"""What a word may mean that is no command, but one of other systems, or a word for something that
has a command of another name.
"""

COMMANDS = {
    "call": (
        "Call METHOD of ACTOR and print its result; of a stream each item, on a line of its own."
    ),
    "dashboard": "Serve pages about a cluster, until Ctrl-C or SIGTERM.",
    "debug": (
        "Debug a method of ACTOR that waits at a breakpoint(), or else its last failure: the "
        "frames, their source and variables."
    ),
    "demo": (
        "Index every identifier of the standard library on a cluster while its nodes join, "
        "leave and are killed."
    ),
    "doctor": "Check Python, packages, shadowed imports, sockets, TLS, the secret and the store.",
    "expel": (
        "Shut NODE out of the cluster for good, when its machine is not to be trusted any more."
    ),
    "explain": (
        "Explain an ERROR by the name of its class: its cause, what is certain about your call, "
        "and what to do."
    ),
    "gateway": "Serve the actors of a cluster over HTTP, until Ctrl-C or SIGTERM.",
    "inspect": (
        "Show where ACTOR is, what it runs since when and for which caller, and what waits in "
        "its mailbox."
    ),
    "list": (
        "List nodes, actors, calls, methods, links, groups, pools, elastic jobs or deaths of a "
        "cluster."
    ),
    "logs": "Show the latest log lines of the node or actor NAME, or of all nodes.",
    "node": (
        "Run a node until Ctrl-C, SIGTERM or `understudy stop`: then it drains and leaves; a "
        "second signal stops it at once."
    ),
    "pools": (
        "Show the pools of a cluster: what their members are, how many there should be and are, "
        "and on which nodes."
    ),
    "profile": (
        "Sample what the threads of the node or actor NAME run, and write a file for "
        "https://www.speedscope.app."
    ),
    "refs": "Show the values that nodes keep because references to them exist, the largest first.",
    "reopen": (
        "Open the rendezvous of a job again that was closed because the job had failed, "
        "finished or was shut down."
    ),
    "run": (
        "Run SCRIPT as the workers of an elastic job, with the environment that torchrun gives "
        "(RANK, WORLD_SIZE, MASTER_ADDR, ...)."
    ),
    "secret": "Change the secret of a running cluster, and see which nodes have which.",
    "shell": "Open Python's prompt inside a cluster, with `await`.",
    "simulate": (
        "Run a whole cluster in this process on a virtual clock, under the faults that a seed "
        "draws, and check the promises."
    ),
    "stack": (
        "Show where the tasks of the node or actor NAME wait, line by line, and what its "
        "threads run."
    ),
    "status": "Show the nodes of a cluster, their actors and links.",
    "stop": (
        "Ask the node NAME to drain and leave, or stop the actor NAME, and wait until it has."
    ),
    "timeline": (
        "Record what all nodes do in the next seconds, and write a file for "
        "https://ui.perfetto.dev: the turns and calls of actors, their starts and ends, and "
        "pauses of event loops."
    ),
    "tls": "Make certificates, look at them, and find those that end soon.",
    "top": "Show the actors of all nodes that have most to do.",
    "tree": (
        "Show the supervisors of a cluster and their children; with NAME only what is below "
        "that supervisor."
    ),
    "why": (
        "Say what ACTOR waits for: the call that it runs, the call that this one awaits, and so "
        "on, over all nodes."
    ),
}
"""Each is in a module of its name beside this one, and loaded when it is wanted: most take long to
load, and each run needs one. What `understudy --help` says of it is the first sentence of its own
help.
"""

EXPELLED_STATUS = 77
"""Of a process that the cluster has expelled, or does not let join for that: EX_NOPERM of
sysexits.h. A setting of systemd keeps it from starting the node again
(`RestartPreventExitStatus=NOPERM`).
"""

ALONE = object()
"""The `obj` of a run in a process that runs this one command and then ends."""

INDENT = 6
"""What click leaves free in a line of a command besides its name and its help."""

MODULES = {"list": "listing"}
"""Commands whose module and function are called otherwise: the name would hide one of Python's."""


class OneLineUsageError(click.UsageError):
    """Options or arguments that do not fit, printed in one line like all other mistakes."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Write it to stderr, or to `file`."""
        text = readable(plain(" ".join(self.format_message().split()))).removesuffix(".")
        more = f" (more: {self.ctx.command_path} --help)" if self.ctx is not None else ""
        click.echo(f"error: {text}{more}", file=file or sys.stderr)


class OneLineError(click.ClickException):
    """What a command refuses to do, printed like all other mistakes."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Write it to stderr, or to `file`."""
        click.echo(
            f"error: {readable(plain(' '.join(self.message.split())))}", file=file or sys.stderr
        )


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        # It is the help.
        raise
    except click.UsageError as error:
        # How it shows itself: four lines, three of them the usage.
        raise OneLineUsageError(error.format_message(), error.ctx) from None
    except click.ClickException as error:
        # Those of click itself begin with a capital letter.
        raise OneLineError(error.format_message()) from None


class Commands(NamingGroup):
    """A group that loads its commands late, suggests the nearest and turns our errors into one
    line.
    """

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Read the options; `--help` and `--version` print what they have here, and may fail as
        any command does.
        """
        try:
            return super().make_context(info_name, args, parent, **extra)
        except BrokenPipeError:
            # click ends without a line.
            raise
        except OSError as error:
            raise OneLineError(_reported(error)) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names, in the order of help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one; None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        name = MODULES.get(cmd_name, cmd_name)
        if ctx.obj is ALONE:
            # All that is loaded stays until the process ends. Collections meanwhile, and Python's
            # last ones, would visit each object of it, which takes longer than most commands.
            gc.disable()
        try:
            module = importlib.import_module(f"runtime.command_line.{name}")
        finally:
            if ctx.obj is ALONE:
                gc.freeze()
                gc.enable()
                raise_interrupts()
        command: click.Command = getattr(module, name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands in the help without loading any."""
        room = formatter.width - INDENT - max(map(len, COMMANDS))
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, click.Command(name, help=text).get_short_help_str(room))
                    for name, text in COMMANDS.items()
                ]
            )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or fail with a suggestion."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            meant = ELSEWHERE.get(args[0]) or (near[0] if near else "")
            if meant:
                raise click.UsageError(f"{error.message} Did you mean {meant!r}?", ctx) from None
            raise

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options before the command."""
        with _one_line_errors():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; whatever it raises is one line, but with `--debug`."""
        try:
            with _one_line_errors():
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            # How click itself shows what is wrong with options and arguments, and ends.
            raise
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED_STATUS)
        except (Exception, BaseExceptionGroup) as error:
            # Not at the top of the file: they load much, and help does not need them.
            from actors.errors import ExpelledError, UnderstudyError, explained
            from runtime.environment import first_leaf
            from runtime.stderr_writer import flush_stderr

            what = first_leaf(error)
            if isinstance(what, KeyboardInterrupt):
                sys.exit(INTERRUPTED_STATUS)
            if not isinstance(what, Exception):
                raise what from None
            if isinstance(what, BrokenPipeError) and _reader_is_gone():
                # `understudy ... | head -1`: the reader has enough. click ends without a line.
                raise what from None
            if ctx.params.get("debug"):
                raise
            text = _reported(what)
            # After what was logged. Where stderr takes nothing, this line would wait for ever too.
            if flush_stderr():
                more = explained(type(what)) if isinstance(what, UnderstudyError) else ""
                if more:
                    more = f" ({more.replace('More', 'more')})"
                # It may be of a peer, or of a method: it must not control the terminal.
                click.echo(f"error: {readable(plain(text))}{more}", err=True)
            sys.exit(EXPELLED_STATUS if isinstance(what, ExpelledError) else 1)


def _open_standard_files() -> None:
    """Open those of stdin, stdout and stderr that this process was started without (`>&-`), to read
    and write nothing. Otherwise the next file or socket would get the number, and with it what is
    written there; and `sys.stdout` is None.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            # For child processes too.
            os.set_inheritable(number, True)
            if getattr(sys, name) is None:
                mode = "r" if number == 0 else "w"
                setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _reader_is_gone() -> bool:
    """Return True if stdout is a pipe, or a socket, that is no longer read."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
        return any(happened & (select.POLLERR | select.POLLHUP) for _, happened in poll.poll(0))
    except (OSError, ValueError):
        return False


def _reported(error: Exception) -> str:
    """The line for an error that ends the command. Drops what stdout does not take."""
    unwritten = _drop_unwritten()
    # Where stdout is not buffered (PYTHONUNBUFFERED), nothing of it is left to fail once more.
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    echoed = place is not None and place.tb_frame.f_code is click.echo.__code__
    if (
        (unwritten or echoed)
        and isinstance(error, OSError)
        and error.strerror
        and error.filename is None
    ):
        from runtime.command_line.system_errors import text_of_file

        return text_of_file(error, "stdout")
    return one_line(error)


def _drop_unwritten() -> bool:
    """Where stdout takes nothing, for example on a full disk, drop what is still buffered: it would
    fail once more when the process ends, with lines of Python's own. Returns True if so.
    """
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return True
    return False


def one_line(error: BaseException) -> str:
    """The error's text without line breaks; with the name of its type if that tells more."""
    from actors.errors import RemoteError, UnderstudyError

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
    if isinstance(error, UnicodeEncodeError) and (problem := unreadable(error.object)):
        return problem.removesuffix(".")
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        from runtime.command_line.system_errors import text_of_file

        return text_of_file(error, str(error.filename))
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
    # Every command needs it; the help of the group does not.
    from runtime.logs.formats import write_logs

    level = logging.DEBUG if debug else logging.INFO if verbose else logging.WARNING
    write_logs(level, "text")


def run(prog_name: str | None = None) -> None:
    """Run the command that the arguments of this process name, and end the process."""
    _open_standard_files()
    write_all(sys.stdout)
    main(prog_name=prog_name, obj=ALONE)
