"""The dispatch: turns frames that ask for a call into jobs, and outcomes of jobs into frames that answer.

One for each node. A frame that cannot be understood as a call breaks the protocol and costs its connection; one that can, but asks for
something that is not there, is answered with the error that says so.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from functools import partial

from actors.errors import (
    AnswersUnreadError,
    CallError,
    DecodeError,
    MailboxFullError,
    NotAMemberError,
    NotExecutedError,
    ProtocolError,
)
from runtime.calls.answers import Answers
from runtime.calls.format import KEEP_RESULT, REPEAT, REPEATABLE, STREAM, TENTATIVE, Request, request
from runtime.calls.imports import Imports
from runtime.calls.incoming import IncomingCalls
from runtime.calls.keeping import KeptResults, caller_gone, taken_back
from runtime.calls.production import ProducedStreams
from runtime.calls.reading import ArrivingItems
from runtime.calls.recorded import RecordedCalls
from runtime.calls.replies import Replies, Reply
from runtime.environment import Environment
from runtime.faults import Faults
from runtime.hosting.cell import Job
from runtime.hosting.host import Host
from runtime.limited_log import LimitedLog
from runtime.links.link import Link
from runtime.links.outbound import BACKLOG_FRAMES
from runtime.user_errors import traceback_of
from runtime.wire.codec import Codec
from runtime.wire.frames import Frame, Kind

MOST_SERVICE_CALLS = 20_000
"""Calls of one peer that may run when it calls one of the runtime's own services: their cells have one limit for all peers together."""

MOST_UNREAD = 2 * BACKLOG_FRAMES
"""Frames that a peer may leave unread. Beyond `BACKLOG_FRAMES` they are refusals, and a peer that reads stops far below."""

logger = logging.getLogger("understudy.calls")


class Dispatch:
    """What the frames of all links of a node are for; see `runtime.links.link.Receiver`. Also the `Sink` of jobs from other nodes."""

    def __init__(
        self,
        host: Host,
        codec: Codec,
        environment: Environment,
        answers: Answers,
        replies: Replies,
        recorded: RecordedCalls,
        produced: ProducedStreams,
        arriving: ArrivingItems,
        kept: KeptResults,
        imports: Imports,
        faults: Faults | None,
    ) -> None:
        self._host = host
        self._codec = codec
        self._environment = environment
        self._answers = answers
        self._replies = replies
        self._recorded = recorded
        self._produced = produced
        self._kept = kept
        self._imports = imports
        self._faults = faults
        self._log = LimitedLog(logger, environment.now)
        self._tables: dict[Link, IncomingCalls[Job]] = {}
        self._handlers: dict[int, Callable[[Link, Frame], None]] = {
            Kind.CALL: self._on_call,
            Kind.SEND: self._on_send,
            Kind.CANCEL: self._on_cancel,
            Kind.FORGET: recorded.on_forget,
            Kind.REPLY: answers.on_reply,
            Kind.ERROR: answers.on_error,
            Kind.ITEM: arriving.on_item,
            Kind.CREDIT: produced.on_credit,
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
                caller_gone(job)
        self._produced.link_ended(link)
        self._recorded.link_ended(link)
        self._answers.link_ended(link)

    def _on_call(self, link: Link, frame: Frame) -> None:
        control = frame.control
        # For one of the runtime's services, whose names begin like this; behind a long number that is not looked for here.
        if (control[7:8] == b"@" or control[1:2] == b"\x1b") and self._imports.begin(link, frame, self._on_readable_call):
            return
        self._on_readable_call(link, frame)

    def _on_readable_call(self, link: Link, frame: Frame) -> None:
        """Handle a CALL frame; what it names to be imported has been."""
        try:
            parts = self._codec.decode(frame.control, frame.segments)
        except DecodeError as error:
            refused = NotExecutedError(f"node {self._host.node.name} cannot read the arguments: {error}")
            self._post(link, "", self._replies.of_error(self._codec.peek_number(frame.control), link, refused))
            return
        call = request(parts, self._codec)
        if self._host.claiming and self._host.is_about_to_start(call.actor):
            self._host.claiming[call.actor].append(partial(self._start_later, link, frame.flags, call, self._kept.forget_arrivals()))
        else:
            self._start(link, frame.flags, call)

    def _start_later(self, link: Link, flags: int, call: Request, references: bool) -> None:
        if link.ended is None:
            self._kept.remember_arrivals(references)
            self._start(link, flags, call)

    def _start(self, link: Link, flags: int, call: Request) -> None:
        if link.fenced and not call.actor.startswith("@"):
            self._post(link, call.method, self._replies.of_error(call.number, link, _outdated(link)))
            return
        # Not of repeats: they may have run before, so that nobody may call them unexecuted; their records bound their number.
        if not link.takes_calls and not flags & REPEAT and not call.actor.startswith("@"):
            self._post(link, call.method, self._replies.of_error(call.number, link, _unread(link)))
            return
        if flags & STREAM:
            self._produced.on_call(link, call)
            return
        if flags & REPEATABLE:
            self._recorded.on_call(link, flags, call)
            return
        number, name, epoch, method, args, kwargs, remaining, _, _, chain = call
        found = self._host.find(name, epoch, method)
        if isinstance(found, CallError):
            self._post(link, method, self._replies.of_error(number, link, found))
            return
        table = self._tables.get(link)
        if table is None:
            table = self._tables[link] = IncomingCalls()
        if found[0].system and len(table.running) >= MOST_SERVICE_CALLS:
            self._post(link, method, self._replies.of_error(number, link, _too_many(link)))
            return
        job = Job(found[0], found[1], args, kwargs, self, link, number, self._deadline(remaining))
        job.chain = chain
        if flags & KEEP_RESULT:
            self._kept.keep(job, link.peer.identity, call.kept, tentative=bool(flags & TENTATIVE))
        if self._kept.references_arrived:
            self._kept.prepare(job)
            link.acknowledge(anyway=True)
        table.accept(number, job)
        refusal = self._host.deliver(job)
        if refusal is not None:
            job.sink.refused(job, refusal)

    def _on_send(self, link: Link, frame: Frame) -> None:
        try:
            parts = self._codec.decode(frame.control, frame.segments)
        except DecodeError as error:
            self._log.warning("a one-way call from %s was dropped: its arguments cannot be read here: %s", link.peer.name, error)
            return
        call = request(parts, self._codec)
        if self._host.claiming and self._host.is_about_to_start(call.actor):
            self._host.claiming[call.actor].append(partial(self._send_later, link, call, self._kept.forget_arrivals()))
        else:
            self._start_one_way(link, call)

    def _send_later(self, link: Link, call: Request, references: bool) -> None:
        self._kept.remember_arrivals(references)
        self._start_one_way(link, call)

    def _start_one_way(self, link: Link, call: Request) -> None:
        _, name, epoch, method, args, kwargs, remaining, *_ = call
        found = self._host.find(name, epoch, method)
        refusal: CallError | None
        if link.fenced and not name.startswith("@"):
            refusal = _outdated(link)
        elif isinstance(found, CallError):
            refusal = found
        else:
            job = Job(found[0], found[1], args, kwargs, self, None, 0, self._deadline(remaining))
            if self._kept.references_arrived:
                self._kept.prepare(job)
            refusal = self._host.deliver(job)
        if refusal is not None:
            self._log.warning("a one-way call from %s was refused: %s", link.peer.name, refusal)

    def _on_cancel(self, link: Link, frame: Frame) -> None:
        number = self._codec.peek_number(frame.control)
        table = self._tables.get(link)
        job = table.cancel(number) if table is not None else None
        if job is not None:
            taken_back(job)
        elif not self._imports.cancel(link, number) and not self._produced.cancel(link, number):
            self._recorded.cancel(link, number)

    def value(self, job: Job, value: object) -> None:
        """See `Sink.value`."""
        link: Link | None = job.link
        if link is not None and self._finish(link, job.number):
            self._post(link, job.definition.name, self._replies.of_value(job.number, job, value, link))

    def raised(self, job: Job, error: BaseException) -> None:
        """See `Sink.raised`."""
        link: Link | None = job.link
        if link is None:
            self._log.log(
                logging.ERROR, "%s.%s raised in a one-way call\n%s", job.cell.address.name, job.definition.name, traceback_of(error)
            )
        elif self._finish(link, job.number):
            self._post(link, job.definition.name, self._replies.of_raised(job.number, link, error))

    def refused(self, job: Job, error: CallError) -> None:
        """See `Sink.refused`."""
        link: Link | None = job.link
        if link is None:
            self._log.warning("a one-way call was not run: %s", error)
        elif self._finish(link, job.number):
            self._post(link, job.definition.name, self._replies.of_error(job.number, link, error))

    def _deadline(self, remaining: float) -> float:
        return remaining if remaining == math.inf else self._environment.now() + remaining

    def _finish(self, link: Link, number: int) -> bool:
        table = self._tables.get(link)
        return table is not None and table.finish(number)

    def _post(self, link: Link, method: str, reply: Reply) -> None:
        if self._faults is None or not self._faults.strike("reply-lost", method):
            link.post(*reply, at_once=link.batch == 1)


def _unread(link: Link) -> CallError:
    """Raises ProtocolError where even refusals have piled up."""
    if link.backlog_frames > MOST_UNREAD:
        raise ProtocolError(f"it goes on calling and does not read: {link.backlog_frames} frames to it are not acknowledged")
    return AnswersUnreadError(
        f"node {link.peer.name} has left {link.backlog} bytes in {link.backlog_frames} frames unread: no more calls of it are taken until "
        "it reads"
    )


def _too_many(link: Link) -> CallError:
    return MailboxFullError(
        f"{MOST_SERVICE_CALLS} calls of node {link.peer.name} are running here, the limit for calls of the runtime's own services; slow "
        "down"
    )


def _outdated(link: Link) -> CallError:
    return NotAMemberError(
        f"node {link.peer.name} (incarnation {link.peer.incarnation}) is no member of the cluster any more: its lease has ended, and "
        "others may have taken over what it was doing"
    )
