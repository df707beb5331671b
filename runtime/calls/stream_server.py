"""The stream server: runs generators, sends their items while there is credit, and closes them when
their readers have gone.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Hashable

import trio

from actors.class_names import is_one_of
from actors.errors import CallError, DecodeError, EncodeError
from actors.own_logger import own_logger
from runtime.calls.flow_control import SendingWindow
from runtime.calls.incoming_calls import IncomingCalls, ResultRetention, invocation_of
from runtime.calls.protocol import CallRequest, answer_items, item_frame, own_copies, reply_frame
from runtime.calls.replies import Reply, ReplyEncoder, not_sent
from runtime.calls.reply_handler import StreamCall
from runtime.environment import Environment
from runtime.hosting.cell import Invocation
from runtime.hosting.host import ActorHost
from runtime.limited_log import LimitedLog
from runtime.links.link import Link
from runtime.statistics.waits import WaitedSeconds
from runtime.user_errors import is_cancellation, is_interrupt, traceback_of
from runtime.wire.arrays import NULL
from runtime.wire.codec import Codec
from runtime.wire.frames import Buffer, Frame, Outgoing
from runtime.wire.plain_writer import ALIKE_FOR_ALL

NUMBER_BYTES = 9
"""Bytes that a number of a local stream counts for, about."""

_NUMBERS: frozenset[type] = frozenset((bool, int, float, type(None)))

logger = own_logger("understudy.calls")


class StreamProducer(ABC):
    """Sends one generator's items to its reader. `cleanup`: seconds that its clean-up may take once
    its reader has gone. `waits`: counts the time in which the reader takes nothing. `log`: gets
    what the clean-up raises.
    """

    def __init__(self, cleanup: float, waits: WaitedSeconds, log: LimitedLog) -> None:
        self._log = log
        self._cleanup = cleanup
        self._waits = waits
        self._window = SendingWindow()
        self._producer: trio.lowlevel.Task | None = None

    async def produce(self, invocation: Invocation, items: AsyncGenerator[object, None]) -> None:
        """Send all items of `items`, and close it, whatever happens. Runs in the worker that runs
        the invocation.
        """
        name = invocation.full_name
        done = False
        try:
            # Opened before any scope of the generator's own and closed after them, so that they
            # nest even if it yields inside one.
            with trio.CancelScope() as closing:
                try:
                    done = await self._send_all(name, invocation, items)
                finally:
                    closing.deadline = trio.current_time() + self._cleanup
                    closing.shield = True
                    # shielded and bounded by `closing`
                    await self._close(name, items)  # noqa: ASYNC102, ASYNC120
        except trio.Cancelled:  # noqa: ASYNC103
            # Raised again unless the scope that it belongs to is left already.
            if trio.current_effective_deadline() == -math.inf:
                raise
            # Not ours: a scope inside the generator was cancelled while the generator waited at its
            # `yield`, and has just been left.
        if not done:
            await trio.lowlevel.checkpoint_if_cancelled()
            raise RuntimeError(
                f"{name} yields inside a cancel scope or nursery that was cancelled meanwhile; "
                "leave it before you yield"
            )

    async def _close(self, name: str, items: AsyncGenerator[object, None]) -> None:
        try:
            await items.aclose()
        except BaseException as error:  # noqa: ASYNC103  cancellations and interrupts go on
            if is_cancellation(error) or is_interrupt(error):
                raise
            self._log.log(
                logging.ERROR, "%s raised while it was being closed\n%s", name, traceback_of(error)
            )

    def grant(self, consumed: object) -> None:
        """Note how many items in all the reader has consumed. Raises ProtocolError."""
        window = self._window
        window.grant(consumed)
        if window.open and self._producer is not None:
            producer, self._producer = self._producer, None
            trio.lowlevel.reschedule(producer)

    @abstractmethod
    async def send(self, item: object) -> None:
        """Send one item. Raises EncodeError, or DecodeError for one that cannot be copied."""

    async def _send_all(
        self, name: str, invocation: Invocation, items: AsyncGenerator[object, None]
    ) -> bool:
        """True when there is no more to send."""
        window = self._window
        async for item in items:
            try:
                await self.send(item)
            except (EncodeError, DecodeError) as error:
                invocation.sink.refused(invocation, not_sent(f"{name} yielded an item that", error))
                break
            if not window.open:
                # No await between this look and the parking: a credit that arrived in between would
                # wake no task, and the stream would wait for ever.
                assert self._producer is None, "one task produces the items"
                self._producer = trio.lowlevel.current_task()
                self._waits.begin(trio.current_time())
                try:
                    await trio.lowlevel.wait_task_rescheduled(self._abort_waiting)
                finally:
                    self._waits.end(trio.current_time())
        return True

    def _abort_waiting(self, raise_cancel: object) -> trio.lowlevel.Abort:
        self._producer = None
        return trio.lowlevel.Abort.SUCCEEDED


class RemoteStreamProducer(StreamProducer):
    """Sends the items of a stream to a reader on another node."""

    def __init__(
        self,
        codec: Codec,
        link: Link,
        number: int,
        cleanup: float,
        waits: WaitedSeconds,
        log: LimitedLog,
    ) -> None:
        super().__init__(cleanup, waits, log)
        self._codec = codec
        self._link = link
        self._number = number
        self._lane = _lane(number)

    async def send(self, item: object) -> None:
        """Send an item over the link; waits while the link has no room."""
        link = self._link
        alike = is_one_of(type(item), ALIKE_FOR_ALL)
        segments: list[Buffer] = [] if alike else Outgoing(link.peer.identity)
        frame, size = item_frame(self._number, self._codec.encode(item, segments, "item"), segments)
        if segments:
            # Generators fill the same buffer again.
            copied = own_copies(segments)
            await link.room(size)
            link.post(frame, copied, lane=self._lane)
        else:
            if not link.has_room:
                await link.room()
            link.post(frame, lane=self._lane)
        self._window.send(size)


class LocalStreamProducer(StreamProducer):
    """Gives the items of a stream to a reader on this node: as copies, like those of the wire."""

    def __init__(
        self,
        codec: Codec,
        call: StreamCall,
        cleanup: float,
        waits: WaitedSeconds,
        log: LimitedLog,
    ) -> None:
        super().__init__(cleanup, waits, log)
        self._codec = codec
        self._call = call

    async def send(self, item: object) -> None:
        """Hand a copy of the item to the reader on this node."""
        if is_one_of(type(item), _NUMBERS):
            size = NUMBER_BYTES
        else:
            segments: list[Buffer] = []
            size = len(self._codec.encode(item, segments, "item")) + sum(map(len, segments))
            item = self._codec.copy(item, "item")
        self._window.send(size)
        if not self._call.finished:
            self._call.arrive(item, size)


class StreamServer:
    """The streams that other nodes read from this one. The `ReplySink` of their invocations."""

    def __init__(
        self,
        host: ActorHost,
        codec: Codec,
        reply_encoder: ReplyEncoder,
        environment: Environment,
        retention: ResultRetention,
    ) -> None:
        self._host = host
        self._codec = codec
        self._reply_encoder = reply_encoder
        self._environment = environment
        self._log = LimitedLog(logger, environment.now)
        self._cleanup = environment.timings.stream_cleanup
        self._retention = retention
        self._tables: dict[Link, IncomingCalls[Invocation]] = {}

    def on_call(self, link: Link, call: CallRequest) -> None:
        """A stream is asked for."""
        found = self._host.find(call.actor, call.epoch, call.method, stream=True)
        if isinstance(found, CallError):
            self._post(link, call.number, self._reply_encoder.of_error(call.number, link, found))
            return
        table = self._tables.get(link)
        if table is None:
            table = self._tables[link] = IncomingCalls()
        invocation = invocation_of(found, call, self, link, self._environment.now)
        invocation.stream_output = RemoteStreamProducer(
            self._codec,
            link,
            call.number,
            self._cleanup,
            self._host.counts.credit_waits,
            self._log,
        )
        if self._retention.references_arrived:
            self._retention.prepare(invocation)
        table.accept(call.number, invocation)
        refusal = self._host.deliver(invocation)
        if refusal is not None:
            self.refused(invocation, refusal)

    def on_credit(self, link: Link, frame: Frame) -> None:
        """Handle a CREDIT frame: `[number, items consumed]`. Raises ProtocolError."""
        number, consumed, *_ = answer_items(self._codec.decode(frame.control, frame.segments), 2)
        table = self._tables.get(link)
        invocation = table.running.get(number) if table is not None else None
        # Otherwise it is late: the stream has ended.
        if invocation is not None and invocation.stream_output is not None:
            invocation.stream_output.grant(consumed)

    def cancel(self, link: Link, number: int) -> bool:
        """The reader of a stream has gone; False if there is none of that number."""
        table = self._tables.get(link)
        invocation = table.cancel(number) if table is not None else None
        if invocation is not None:
            invocation.cancel()
        return invocation is not None

    def link_ended(self, link: Link) -> None:
        """All its readers have gone."""
        table = self._tables.pop(link, None)
        if table is not None:
            for invocation in table.end():
                invocation.cancel()

    @property
    def count(self) -> int:
        """The number of streams that run for a reader."""
        return sum(len(table.running) for table in self._tables.values())

    def value(self, invocation: Invocation, value: object) -> None:
        """The generator has returned: end the stream at its reader."""
        if self._finish(invocation):
            self._post(
                invocation.link,
                invocation.number,
                (reply_frame(invocation.number, NULL, ()), ()),
            )

    def raised(self, invocation: Invocation, error: BaseException) -> None:
        """The generator has raised: end the stream at its reader with the error."""
        if self._finish(invocation):
            self._post(
                invocation.link,
                invocation.number,
                self._reply_encoder.of_raised(invocation.number, invocation.link, error),
            )

    def refused(self, invocation: Invocation, error: CallError) -> None:
        """The runtime has ended the stream: end it at its reader with the error."""
        if self._finish(invocation):
            self._post(
                invocation.link,
                invocation.number,
                self._reply_encoder.of_error(invocation.number, invocation.link, error),
            )

    def _finish(self, invocation: Invocation) -> bool:
        table = self._tables.get(invocation.link)
        return table is not None and table.finish(invocation.number)

    def _post(self, link: Link, number: int, reply: Reply) -> None:
        # In the lane of the items, so that none of them comes after the end.
        link.post(*reply, lane=_lane(number), at_once=link.batch == 1)


def _lane(number: int) -> Hashable:
    return "stream", number
