"""`understudy shell`: Python's prompt inside a cluster."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack

import click
import trio

from actors.errors import UnderstudyError
from runtime.command_line.call import plain
from runtime.command_line.connect import (
    ChosenCluster,
    chosen_role,
    chosen_tls,
    cluster_options,
    secret_for,
)
from runtime.command_line.imports import import_modules, import_option
from runtime.command_line.main import one_line
from runtime.command_line.units import Readable
from runtime.console.lines import Lines, PipedLines, Terminal, is_terminal
from runtime.console.session import (
    INTERRUPTED,
    ConsoleSession,
    exit_status,
    leave_at_once,
    show_value,
    showing,
)
from runtime.console.statements import one_liner
from runtime.console.tracebacks import in_one_line, users_traceback
from runtime.environment import SystemEnvironment, first_leaf
from runtime.membership.cluster_secret import shared_secret_path
from runtime.node.opening import open_node
from runtime.supervision.placement import CALLS_ONLY


@click.command(epilog="Example:  understudy shell -c 'await (await lookup(\"counter\")).add(5)'")
@click.option(
    "-c",
    "code",
    type=Readable(),
    metavar="CODE",
    help="Run CODE, and print its last expression's value.",
)
@import_option
@cluster_options
def shell(code: str | None, modules: tuple[str, ...], chosen: ChosenCluster, as_json: bool) -> None:
    """Open Python's prompt inside a cluster, with `await`.

    It runs lines of its standard input if that is not a terminal, until one fails. `cluster`,
    `node`, `lookup`, `spawn`, `options`, `nursery` and `trio` are there. Exit status 1 if CODE, or
    a piped line, raises.
    """
    if as_json and code is None:
        raise click.UsageError("--json prints the value of -c CODE: give both")
    import_modules(modules)
    with showing(_show_json if as_json else show_value):
        status = trio.run(_run, code, chosen)
        # An error of what is still buffered is one line here, and Python's when the process ends.
        sys.stdout.flush()
        raise SystemExit(status)


async def _run(code: str | None, chosen: ChosenCluster) -> int:
    environment = SystemEnvironment()
    # The terminal is put in order again at the very end, too: when the session ends, a thread may
    # just begin to read a line, which changes the terminal.
    with ExitStack() as at_the_end:
        async with trio.open_nursery() as nursery:
            async with open_node(
                f"shell-{os.getpid()}-{environment.token(3).hex()}",
                join=chosen.address,
                cluster=chosen.name,
                secret=secret_for(chosen.address, chosen.secret_file),
                labels={CALLS_ONLY: "true"},
                tls=chosen_tls(),
                role=chosen_role(),
            ) as node:
                session = ConsoleSession(node, environment, nursery)
                if code is not None:
                    status = await _one(session, code)
                else:
                    lines = _lines(session)
                    at_the_end.callback(lines.close)
                    if isinstance(lines, Terminal):
                        click.echo(await session.banner(), err=True)
                    status = await session.run(lines, prompts=isinstance(lines, Terminal))
            leave_at_once(session.background, status)
    return status


async def _one(session: ConsoleSession, code: str) -> int:
    failure = await session.run_one(one_liner(code))
    if failure is None:
        return session.status
    if issubclass(type(failure), SystemExit):
        return exit_status(failure)
    if issubclass(type(failure), KeyboardInterrupt):
        return INTERRUPTED
    context = click.get_current_context()
    if context.find_root().params.get("debug"):
        click.echo(users_traceback(failure), err=True, nl=False)
        return 1
    what = first_leaf(failure)
    text = one_line(what) if isinstance(what, UnderstudyError) else in_one_line(what)
    click.echo(f"error: {text}", err=True)
    return 1


def _lines(session: ConsoleSession) -> Lines:
    if not is_terminal():
        return PipedLines(sys.stdin)
    try:
        history = shared_secret_path().with_name("shell_history")
    except OSError:
        # A user without a home directory keeps no history.
        history = None
    return Terminal(session.completer(), history)


def _show_json(value: object) -> None:
    click.echo(json.dumps(plain(value)))
