"""The dispatch: turns frames that ask for a call into jobs, and outcomes of jobs into frames that answer.

One for each node. A frame that cannot be understood as a call breaks the protocol and costs its connection; one that can, but asks for
something that is not there, is answered with the error that says so.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping

from actors.errors import CallError, DecodeError, NotAMemberError, NotExecutedError
from runtime.calls.answers import Answers
from runtime.calls.format import KEEP_RESULT, REPEATABLE, STREAM, request
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
from runtime.links.link import Link
from runtime.wire.codec import Codec
from runtime.wire.frames import Frame, Kind

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
        self._faults = faults
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
        try:
            parts = self._codec.decode(frame.control, frame.segments)
        except DecodeError as error:
            refused = NotExecutedError(f"the arguments cannot be read here: {error}")
            self._post(link, "", self._replies.of_error(self._codec.peek_number(frame.control), link.peer.identity, refused))
            return
        call = request(parts, self._codec)
        if link.fenced and not call.actor.startswith("@"):
            self._post(link, call.method, self._replies.of_error(call.number, link.peer.identity, _outdated(link)))
            return
        if frame.flags & STREAM:
            self._produced.on_call(link, call)
            return
        if frame.flags & REPEATABLE:
            self._recorded.on_call(link, frame.flags, call)
            return
        number, name, epoch, method, args, kwargs, remaining, _, _ = call
        found = self._host.find(name, epoch, method)
        if isinstance(found, CallError):
            self._post(link, method, self._replies.of_error(number, link.peer.identity, found))
            return
        table = self._tables.get(link)
        if table is None:
            table = self._tables[link] = IncomingCalls()
        job = Job(found[0], found[1], args, kwargs, self, link, number, self._deadline(remaining))
        if frame.flags & KEEP_RESULT:
            self._kept.keep(job, link.peer.identity, call.kept)
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
            logger.warning("a one-way call from %s was dropped: its arguments cannot be read here: %s", link.peer.name, error)
            return
        _, name, epoch, method, args, kwargs, remaining, _, _ = request(parts, self._codec)
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
            logger.warning("a one-way call from %s was refused: %s", link.peer.name, refusal)

    def _on_cancel(self, link: Link, frame: Frame) -> None:
        number = self._codec.peek_number(frame.control)
        table = self._tables.get(link)
        job = table.cancel(number) if table is not None else None
        if job is not None:
            taken_back(job)
        elif not self._produced.cancel(link, number):
            self._recorded.cancel(link, number)

    def value(self, job: Job, value: object) -> None:
        """See `Sink.value`."""
        link: Link | None = job.link
        if link is not None and self._finish(link, job.number):
            self._post(link, job.definition.name, self._replies.of_value(job.number, job, value, link.peer.identity))

    def raised(self, job: Job, error: BaseException) -> None:
        """See `Sink.raised`."""
        link: Link | None = job.link
        if link is None:
            logger.error("%s.%s raised in a one-way call", job.cell.address.name, job.definition.name, exc_info=error)
        elif self._finish(link, job.number):
            self._post(link, job.definition.name, self._replies.of_raised(job.number, link.peer.identity, error))

    def refused(self, job: Job, error: CallError) -> None:
        """See `Sink.refused`."""
        link: Link | None = job.link
        if link is None:
            logger.warning("a one-way call was not run: %s", error)
        elif self._finish(link, job.number):
            self._post(link, job.definition.name, self._replies.of_error(job.number, link.peer.identity, error))

    def _deadline(self, remaining: float) -> float:
        return remaining if remaining == math.inf else self._environment.now() + remaining

    def _finish(self, link: Link, number: int) -> bool:
        table = self._tables.get(link)
        return table is not None and table.finish(number)

    def _post(self, link: Link, method: str, reply: Reply) -> None:
        if self._faults is None or not self._faults.strike("reply-lost", method):
            link.post(*reply, at_once=link.batch == 1)


def _outdated(link: Link) -> CallError:
    return NotAMemberError(
        f"node {link.peer.name} (incarnation {link.peer.incarnation}) is no member of the cluster any more: its lease has ended, and "
        "others may have taken over what it was doing"
    )
