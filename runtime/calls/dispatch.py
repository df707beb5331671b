"""The dispatch: turns frames that ask for a call into jobs, and outcomes of jobs into frames that answer.

One for each node. A frame that cannot be understood as a call breaks the protocol and costs its connection; one that can, but asks for
something that is not there, is answered with the error that says so.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import cast

from actors.errors import CallError, DecodeError, EncodeError, NotExecutedError, ProtocolError, ReplyEncodeError
from actors.reference import ReferenceAddress
from runtime.calls.caller import KEEP_RESULT, Caller, array_head, kept
from runtime.calls.failures import Plain, describe, raised_by_method
from runtime.calls.incoming import IncomingCalls
from runtime.environment import Environment
from runtime.hosting.cell import Job
from runtime.hosting.host import Host
from runtime.links.link import Link
from runtime.links.session import Buffer
from runtime.wire.codec import Codec
from runtime.wire.frames import Frame, Kind, encode_frame

MAX_NUMBER = 1 << 64
"""The numbers of calls are below this; see `array_head`."""

logger = logging.getLogger("understudy.calls")


class Dispatch:
    """What the frames of all links of a node are for; see `runtime.links.link.Receiver`. Also the `Sink` of jobs from other nodes."""

    def __init__(
        self,
        host: Host,
        caller: Caller,
        codec: Codec,
        environment: Environment,
        keep: Callable[[object, tuple[str, int]], ReferenceAddress],
    ) -> None:
        self._host = host
        self._caller = caller
        self._codec = codec
        self._environment = environment
        self._keep = keep
        self._tables: dict[Link, IncomingCalls[Job]] = {}
        self._handlers: dict[int, Callable[[Link, Frame], None]] = {
            Kind.CALL: self._on_call,
            Kind.SEND: self._on_send,
            Kind.CANCEL: self._on_cancel,
            Kind.REPLY: caller.on_reply,
            Kind.ERROR: caller.on_error,
        }

    @property
    def handlers(self) -> Mapping[int, Callable[[Link, Frame], None]]:
        """See `Receiver.handlers`."""
        return self._handlers

    def link_ended(self, link: Link, reason: str) -> None:
        """See `Receiver.link_ended`: nobody waits for what the peer had asked for; what we had asked for ends."""
        table = self._tables.pop(link, None)
        if table is not None:
            for job in table.end():
                job.cancel()
        self._caller.link_ended(link)

    def _on_call(self, link: Link, frame: Frame) -> None:
        try:
            parts = self._codec.decode(frame.control, frame.segments)
        except DecodeError as error:
            self._post_error(link, self._codec.peek_number(frame.control), NotExecutedError(f"the arguments cannot be read here: {error}"))
            return
        number, name, epoch, method, args, kwargs, deadline = self._parts(parts)
        found = self._host.find(name, epoch, method)
        if isinstance(found, CallError):
            self._post_error(link, number, found)
            return
        table = self._tables.get(link)
        if table is None:
            table = self._tables[link] = IncomingCalls()
        job = Job(found[0], found[1], args, kwargs, self, link, number, deadline)
        job.keeps_result = bool(frame.flags & KEEP_RESULT)
        table.accept(number, job)
        refusal = self._host.deliver(job)
        if refusal is not None:
            self.refused(job, refusal)

    def _on_send(self, link: Link, frame: Frame) -> None:
        try:
            parts = self._codec.decode(frame.control, frame.segments)
        except DecodeError as error:
            logger.warning("a one-way call from %s was dropped: its arguments cannot be read here: %s", link.peer.name, error)
            return
        _, name, epoch, method, args, kwargs, deadline = self._parts(parts)
        found = self._host.find(name, epoch, method)
        refusal: CallError | None
        if isinstance(found, CallError):
            refusal = found
        else:
            refusal = self._host.deliver(Job(found[0], found[1], args, kwargs, self, None, 0, deadline))
        if refusal is not None:
            logger.warning("a one-way call from %s was refused: %s", link.peer.name, refusal)

    def _on_cancel(self, link: Link, frame: Frame) -> None:
        number = self._codec.peek_number(frame.control)
        table = self._tables.get(link)
        if table is not None:
            job = table.cancel(number)
            if job is not None:
                job.cancel()

    def _parts(self, parts: object) -> tuple[int, str, int, str, tuple[object, ...], dict[str, object], float]:
        """The items of a call frame, checked. More items than we know are ignored: a newer peer may send them."""
        if not isinstance(parts, list) or len(parts) < 5:
            raise ProtocolError("a call is an array of at least five items")
        items = cast("list[object]", parts)
        number, name, epoch, method = items[:4]
        if not (type(number) is int and isinstance(name, str) and type(epoch) is int and isinstance(method, str)):
            raise ProtocolError("a call begins with number, name, epoch and method")
        if not 0 <= number < MAX_NUMBER:
            raise ProtocolError(f"{number} is no number of a call")
        args, kwargs = self._codec.decode_arguments(items[4])
        deadline = math.inf
        if len(items) > 5 and items[5] is not None:
            remaining = items[5]
            if not isinstance(remaining, float) or math.isnan(remaining):
                raise ProtocolError("a call's remaining time is a number of seconds")
            deadline = self._environment.now() + remaining
        return number, name, epoch, method, args, kwargs, deadline

    def value(self, job: Job, value: object) -> None:
        """See `Sink.value`."""
        link = cast("Link | None", job.link)
        if link is None or not self._finish(link, job.number):
            return
        segments: list[Buffer] = []
        try:
            if job.keeps_result:
                # Copied, or the actor's later changes would show through the reference.
                value = self._keep(self._codec.copy(value, "result"), (link.peer.name, link.peer.incarnation))
            encoded = self._codec.encode(value, segments, "result")
        except EncodeError as error:
            name = f"{job.cell.address.name}.{job.definition.name}"
            self._post_error(link, job.number, ReplyEncodeError(f"{name} ran, but its result cannot be sent: {error}"))
            return
        link.post(encode_frame(Kind.REPLY, array_head(2, job.number) + encoded, segments), kept(segments), at_once=link.batch == 1)

    def raised(self, job: Job, error: BaseException) -> None:
        """See `Sink.raised`."""
        link = cast("Link | None", job.link)
        if link is None:
            logger.error("%s.%s raised in a one-way call", job.cell.address.name, job.definition.name, exc_info=error)
        elif self._finish(link, job.number):
            self._post(link, job.number, *raised_by_method(error, self._codec.encodable))

    def refused(self, job: Job, error: CallError) -> None:
        """See `Sink.refused`."""
        link = cast("Link | None", job.link)
        if link is None:
            logger.warning("a one-way call was not run: %s", error)
        elif self._finish(link, job.number):
            self._post_error(link, job.number, error)

    def _finish(self, link: Link, number: int) -> bool:
        table = self._tables.get(link)
        return table is not None and table.finish(number)

    def _post_error(self, link: Link, number: int, error: CallError) -> None:
        self._post(link, number, *describe(error, self._codec.encodable))

    def _post(self, link: Link, number: int, code: str, plain: Plain) -> None:
        segments: list[Buffer] = []
        control = array_head(3, number) + self._codec.encode(code, segments) + self._codec.encode(plain, segments)
        link.post(encode_frame(Kind.ERROR, control, segments), kept(segments), at_once=link.batch == 1)
