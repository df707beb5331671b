"""One session of a console: from the first line to its end, in one trio run, and in order however
it ends.
"""

from __future__ import annotations

import builtins
import inspect
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import trio

from runtime.console.completion import Completer
from runtime.console.evaluation import BackgroundTasks, Interrupts, evaluate
from runtime.console.lines import InterruptedLineError, Lines, UnreadableLineError
from runtime.console.namespace import ConsoleCluster, console_namespace
from runtime.console.statements import Statement, Statements
from runtime.console.tracebacks import users_traceback
from runtime.environment import Environment
from runtime.node import Node
from runtime.observation.tree import Tree, draw_tree, lines_for
from runtime.printable import many
from runtime.user_errors import text_of

PROMPT, MORE = ">>> ", "... "

NAMES_SECONDS = 0.5
"""How long TAB, and the banner, wait for the names of actors."""

END_SECONDS = 2.0
"""How long background tasks may take to end when the console does."""

INTERRUPTED = 128 + signal.SIGINT


class ConsoleSession:
    """A console whose statements run beside `node`. `nursery`: of background tasks, which is closed
    after the node has left.
    """

    def __init__(self, node: Node, environment: Environment, nursery: trio.Nursery) -> None:
        self._node = node
        self._environment = environment
        self._interrupts = Interrupts(_say)
        self.background = BackgroundTasks(nursery, self._report_background)
        self.cluster = ConsoleCluster(node)
        self.namespace = console_namespace(self.cluster, node, self.background)
        self._status = 0

    def completer(self) -> Completer:
        """Completes lines, in the thread that reads them."""
        return Completer(self.namespace, lambda: trio.from_thread.run(self._names_soon))

    async def banner(self) -> str:
        """Return the text that greets the user: the cluster, the names, and how to use them."""
        names, members = await self._names_soon(), self.cluster.members()
        me = self._node._introduction.peer
        who = f"node {me.name}" if me.role == "node" else f"{me.name}, with the role {me.rights!r}"
        return (
            f"cluster {self.cluster.name}: {many(len(members), 'node')}, "
            f"{many(len(names), 'actor')} with names; this shell is {who}\n"
            'Here are cluster, node, lookup("NAME"), spawn(CLASS, ...), options(...), nursery,\n'
            "enter(BLOCK) and trio; use await. TAB completes, Ctrl-C ends a statement, "
            "Ctrl-D the shell."
        )

    async def run_one(self, statement: Statement) -> BaseException | None:
        """Run a statement; returns what it raised. None also if the console had to end before."""
        failure: BaseException | None = None
        async with self._open():
            failure = await evaluate(statement, self.namespace, self._interrupts)
        return failure

    async def run(self, lines: Lines, *, prompts: bool) -> int:
        """Run lines until their end; returns the exit status. At prompts errors are shown; without
        them the first one is the end.
        """
        try:
            async with self._open():
                self._status = await self._run(lines, prompts)
        finally:
            lines.close()
        return self._status

    @property
    def status(self) -> int:
        """The exit status of a session that had to end."""
        return self._status

    async def _run(self, lines: Lines, prompts: bool) -> int:
        statements = Statements(blank_line_ends=prompts)
        while True:  # noqa: ASYNC913  each turn waits for a line
            prompt = (MORE if statements.unfinished else PROMPT) if prompts else ""
            try:
                # Left to itself when the session ends: there is no way to end the reading.
                line = await self._environment.in_thread(partial(lines.read, prompt), abandon=True)
            except InterruptedLineError:
                statements.drop()
                _say("KeyboardInterrupt")
                continue
            except UnreadableLineError as error:
                _say(f"this line is not a text: {error}")
                if not prompts:
                    return 1
                continue
            for statement in statements.end() if line is None else statements.feed(line):
                failure = await evaluate(statement, self.namespace, self._interrupts)
                if failure is None:
                    continue
                if issubclass(type(failure), SystemExit):
                    return exit_status(failure)
                self._report(failure)
                if not prompts:
                    return INTERRUPTED if issubclass(type(failure), KeyboardInterrupt) else 1
                # What was pasted behind it is not run without it.
                break
            if line is None:
                if prompts:
                    _say("")
                return 0

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        """Within the block statements may run. It is left early, with `status`, when the node has
        to leave, or this process is asked to end.
        """
        with _handling(signal.SIGINT, self._interrupts.on_signal), trio.CancelScope() as session:
            async with trio.open_nursery() as watches:
                await watches.start(self._receive_signals, session)
                watches.start_soon(self._watch_node, session)
                try:
                    yield
                finally:
                    watches.cancel_scope.cancel()
                    self._interrupts.leave()
                    # Shielded: the session may be left because its task was cancelled, and the
                    # statements in the background must have ended before their node closes.
                    with trio.move_on_after(END_SECONDS, shield=True):
                        self.background.cancel()
                        await self.background.wait_ended()

    async def _receive_signals(
        self, session: trio.CancelScope, *, task_status: trio.TaskStatus[None]
    ) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                self._status = 128 + number
                # A second one ends the process at once.
                break
        session.cancel()

    async def _watch_node(self, session: trio.CancelScope) -> None:
        await self._node.asked_to_leave.wait()
        _say(f"node {self._node.name} leaves the cluster, and this shell ends with it")
        self._status = 1
        session.cancel()

    async def _names_soon(self) -> list[str]:
        with trio.move_on_after(NAMES_SECONDS):
            return await self.cluster.names()
        return []

    def _report(self, failure: BaseException) -> None:
        if issubclass(type(failure), KeyboardInterrupt):
            _say("KeyboardInterrupt")
        else:
            _say(users_traceback(failure).rstrip("\n"))

    def _report_background(self, name: str, failure: BaseException) -> None:
        _say(f"the background task {name} has failed:\n{users_traceback(failure)}".rstrip("\n"))


@contextmanager
def showing(show: Callable[[object], None]) -> Iterator[None]:
    """Within the block the values of expressions are shown so."""
    before, sys.displayhook = sys.displayhook, show
    try:
        yield
    finally:
        sys.displayhook = before


def show_value(value: object) -> None:
    """Print the value of an expression as Python's prompt does, and a tree as it is drawn."""
    if isinstance(value, Tree):
        setattr(builtins, "_", value)  # noqa: B010  as Python's prompt does
        sys.stdout.write(f"{draw_tree(value, lines=lines_for(sys.stdout.encoding))}\n")
        return
    sys.__displayhook__(value)
    if inspect.iscoroutine(value):
        _say("this is a coroutine: it runs when you await it")


def exit_status(failure: BaseException) -> int:
    """The exit status that a SystemExit asks for, which may be a text to print."""
    code: object = failure.args[0] if len(failure.args) == 1 else None
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    _say(text_of(failure))
    return 1


def leave_at_once(background: BackgroundTasks, status: int) -> None:
    """End the process if there are background tasks that do not end, which it would wait for."""
    if background.names:
        _say(f"left without background tasks that do not end: {', '.join(background.names)}")
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


@contextmanager
def _handling(number: signal.Signals, handler: signal._HANDLER) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def _say(text: str) -> None:
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except OSError:
        # No process reads it any more.
        return
