"""Says of each log record which actor and call it comes from, and keeps the latest in memory.

This is done where `logging` makes its records, in a record factory around the one that there was.
No handler is added: `logging.basicConfig` and what Python prints without any configuration go on
as if there were no node. The factory adds one attribute, `understudy`, because names such as
`actor` may be a user's own (`extra={"actor": ...}` would raise); `LogFilter` gives handlers the
single fields.

Which actor logs is found from the task that logs, when it logs. So calls that log nothing pay
nothing. A thread has no task: one that runs a plain method has the call in its context.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import attrs
import trio

from actors.call_context import CURRENT
from actors.identifiers import NodeId
from runtime.hosting.cell import ActorCell, Invocation
from runtime.hosting.host import ActorHost
from runtime.hosting.lazy_nursery import own_task_of
from runtime.hosting.starts import STARTING
from runtime.hosting.threads import invocation_of_thread
from runtime.logs.ring import LINE_BYTES, LogEntry, LogRing, cut
from runtime.user_errors import sendable

LOG_MEMORY_BYTES = 1024 * 1024
"""What a node keeps of its log by default."""

MOST_STEPS = 1000
"""Nurseries between a task and the root of its run that are looked at."""

_formatter = logging.Formatter()


@attrs.frozen
class LogFields:
    """The origin of a log record. Numbers are 0 and texts "" where it has none."""

    node: str = ""
    incarnation: int = 0
    actor: str = ""
    epoch: int = 0
    method: str = ""
    call: str = ""
    trace_id: str = ""
    span_id: str = ""

    def plain(self) -> dict[str, str | int]:
        """Return the fields that are set, as plain data."""
        return {name: value for name in FIELD_NAMES if (value := getattr(self, name))}


FIELD_NAMES: tuple[str, ...] = tuple(field.name for field in attrs.fields(LogFields))


class LogCapture:
    """The log of one node, or of the process of an isolated actor: finds the fields of its
    records, and keeps the latest. `nursery` is the one that all tasks of the node are in.

    `attach` and `detach` are called once each. Records may come from any thread.
    """

    def __init__(
        self,
        identity: NodeId,
        host: ActorHost,
        nursery: trio.Nursery,
        limit: int = LOG_MEMORY_BYTES,
    ) -> None:
        self.identity = identity
        self._host = host
        self._nursery = nursery
        self._ring = LogRing(limit)
        self._lock = threading.Lock()
        self._token: trio.lowlevel.TrioToken | None = None
        self._changed = trio.Event()
        self._woken = False

    def attach(self) -> None:
        """Begin. In the event loop of the node."""
        self._token = trio.lowlevel.current_trio_token()
        current = logging.getLogRecordFactory()
        if not isinstance(current, RecordFactory):
            current = RecordFactory(current)
            logging.setLogRecordFactory(current)
        current.captures = (*current.captures, self)

    def detach(self) -> None:
        """End. A factory that a user has set meanwhile, around ours, stays."""
        self._token = None
        current = logging.getLogRecordFactory()
        factory: object = current
        while isinstance(factory, RecordFactory):
            factory.captures = tuple(one for one in factory.captures if one is not self)
            factory = factory.around
        if isinstance(current, RecordFactory) and not current.captures:
            logging.setLogRecordFactory(current.around)

    def entries(self) -> tuple[LogEntry, ...]:
        """Return the lines that are kept, the oldest first. Any thread may call it."""
        with self._lock:
            return self._ring.entries()

    @property
    def last(self) -> int:
        """The number of the latest line."""
        return self._ring.last

    def add(self, entry: LogEntry) -> None:
        """Keep a line. From any thread, in the middle of a call of `logging`: never raises."""
        if not self._ring.limit:
            return
        with self._lock:
            self._ring.add(entry)
        self.wake()

    def wake(self) -> None:
        """Wake those who wait for something new. From any thread."""
        token = self._token
        if token is not None and not self._woken:
            # A race of two threads here costs a second wake-up.
            self._woken = True
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(self._wake)

    def _wake(self) -> None:
        self._woken = False
        # The new event is there before the old one wakes its waiters: they may wait again at once.
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def wait_changed(self) -> None:
        """Wait for the next line."""
        await self._changed.wait()

    def fields(self, source: Invocation | ActorCell | str | None) -> LogFields:
        """The fields of a record of this node; `source`: what runs, or the name of the actor whose
        own task it is.
        """
        node, incarnation = self.identity
        trace_id, span_id = _trace_ids()
        method = call = ""
        if isinstance(source, Invocation):
            method, call = source.definition.name, _id_of(source, node)
            source = source.cell
        elif isinstance(source, str):
            source = self._host.cells.get(source)
        elif source is not None:
            method = "on_start"
        if source is None or source.system:
            return LogFields(node, incarnation, trace_id=trace_id, span_id=span_id)
        address = source.address
        return LogFields(
            node, incarnation, address.name, address.epoch, method, call, trace_id, span_id
        )

    @property
    def acts(self) -> bool:
        """True if what runs now, in this event loop, handles what a link of this node has received,
        in a task that polls in the place of the link's reader. It may be any task.
        """
        spinner = self._host.workers.spinner
        return (
            spinner is not None
            and spinner.acts
            # Nodes in other threads have event loops of their own.
            and self._token is trio.lowlevel.current_trio_token()
        )

    def find(self, task: trio.lowlevel.Task) -> LogFields | None:
        """The fields for a record that this task makes; None if it is no task of this node's."""
        running: Mapping[trio.lowlevel.Task, Invocation] = self._host.workers.running
        source: Invocation | ActorCell | str | None = None
        inside: trio.lowlevel.Task | None = task
        for _ in range(MOST_STEPS):
            if inside is None:
                break
            if source is None:
                # The start first: of an actor that a service, or another actor's method, starts.
                source = self._start_of(inside) or running.get(inside) or own_task_of(inside)
            through = inside.parent_nursery
            if through is self._nursery:
                return self.fields(source)
            inside = through.parent_task if through is not None else None
        # A start may run in the task that spawns, which is a user's.
        return self.fields(source) if source is not None else None

    def _start_of(self, task: trio.lowlevel.Task) -> ActorCell | None:
        part = self._host.turns.starts.get(task)
        return None if part is None else self._host.cells.get(part.turn.actor)

    def owns(self, cell: ActorCell) -> bool:
        """True for an actor of this node."""
        return cell.address.node_id == self.identity


class RecordFactory:
    """Makes log records as `around` does, and tells the nodes of this process of them. It has no
    state but the nodes that are open.
    """

    def __init__(self, around: Callable[..., logging.LogRecord]) -> None:
        self.around = around
        self.captures: tuple[LogCapture, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        """Make a record."""
        record = self.around(*args, **kwargs)
        try:
            _tell(record, self.captures)
        except Exception:
            # What a user's object raises as text ends no log call; handlers meet it by themselves.
            # This is inside `logging`: to log it would come back here.
            return record
        return record


def _tell(record: logging.LogRecord, captures: tuple[LogCapture, ...]) -> None:
    fields, owners = _origin(captures)
    # Plain data: handlers write all attributes as JSON, or pickle them for programs that do not
    # know our classes.
    record.__dict__["understudy"] = fields.plain()
    logger = logging.root.manager.loggerDict.get(record.name)
    if not owners or (isinstance(logger, logging.Logger) and logger.disabled):
        return
    # Outside of all locks: the text is made by code of the user's, which may take long.
    entry = entry_from(record, fields)
    for owner in owners:
        owner.add(entry)


def _origin(captures: tuple[LogCapture, ...]) -> tuple[LogFields, tuple[LogCapture, ...]]:
    """The fields of a record that is being made, and whose log it belongs to: that of the node
    whose task or thread makes it; what no node's does belongs to all nodes of the process.
    """
    source: Invocation | ActorCell | None = None
    if trio.lowlevel.in_trio_task():
        task = trio.lowlevel.current_task()
        for capture in captures:
            if capture.acts:
                return capture.fields(None), (capture,)
        for capture in captures:
            found = capture.find(task)
            if found is not None:
                return found, (capture,)
    elif not trio.lowlevel.in_trio_run():
        # The turn first: a thread's context may also have the start that its worker began in.
        source = invocation_of_thread() or STARTING.get(None)
    if source is not None:
        cell = source.cell if isinstance(source, Invocation) else source
        for capture in captures:
            if capture.owns(cell):
                return capture.fields(source), (capture,)
    if len(captures) == 1:
        return captures[0].fields(None), captures
    return LogFields(), captures


def entry_from(record: logging.LogRecord, fields: LogFields) -> LogEntry:
    """The line of a record, cut. Its text is made of what the user has given: this may raise."""
    try:
        text = record.getMessage()
    except Exception as error:
        text = f"{record.msg!s:.200} [its arguments do not make a text: {type(error).__name__}]"
    # Before anything is appended: a copy of 10 MiB more would be waste.
    text = cut(text)
    if record.exc_info and record.exc_info[1] is not None:
        text = f"{text}\n{_formatter.formatException(record.exc_info)}"
    return LogEntry(
        number=0,
        time=record.created,
        level=record.levelno,
        # One character that UTF-8 cannot say would keep all lines of the node from being sent.
        logger=sendable(record.name),
        text=sendable(cut(text, 2 * LINE_BYTES)),
        actor=fields.actor,
        epoch=fields.epoch,
        method=fields.method,
        call=fields.call,
        trace_id=fields.trace_id,
        span_id=fields.span_id,
        pid=os.getpid(),
    )


def _id_of(invocation: Invocation, node: str) -> str:
    """The call's id: the client and number that stay the same when it is repeated, or, for a call
    that is not, the node that made it and its number there.
    """
    if invocation.call is not None:
        identity = invocation.call.identity
        return f"{identity.client.name}/{identity.number}"
    peer = getattr(invocation.link, "peer", None)
    return f"{node if peer is None else peer.name}/{invocation.number}"


def _trace_ids() -> tuple[str, str]:
    """Trace and span of the running call, of its `traceparent` (`00-TRACE-SPAN-FLAGS`); "" if it
    has none.
    """
    context = CURRENT.get()
    if context is None or not context.traceparent:
        return "", ""
    _, trace, span, _ = context.traceparent.split("-", 3)
    return trace, span
