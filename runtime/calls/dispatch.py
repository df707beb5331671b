"""The dispatch: turns frames that ask for a call into invocations, and outcomes of invocations into
frames that answer.

One for each node. A frame that cannot be understood as a call breaks the protocol and costs its
connection; one that can, but asks for something that is not there, is answered with the error that
says so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from actors.errors import (
    AnswersUnreadError,
    CallError,
    DecodeError,
    MailboxFullError,
    NodeDrainingError,
    NotAMemberError,
    ProtocolError,
    outcome_of,
)
from actors.filters import CallKind
from actors.own_logger import own_logger
from runtime.calls.admission import CallAdmission
from runtime.calls.dedup_server import DedupServer
from runtime.calls.imports import Imports
from runtime.calls.incoming_calls import (
    IncomingCalls,
    ResultRetention,
    caller_gone,
    invocation_of,
    taken_back,
)
from runtime.calls.one_way_failures import log_one_way_failure
from runtime.calls.protocol import (
    KEEP_RESULT,
    REPEAT,
    REPEATABLE,
    STREAM,
    TELL_DEPTH,
    CallRequest,
    ReadContexts,
    request,
    with_depth,
)
from runtime.calls.replies import Reply, ReplyEncoder
from runtime.calls.reply_handler import ReplyHandler, StreamItemHandler
from runtime.calls.returned_calls import CallReturns
from runtime.calls.rights import PLAIN_SERVICE
from runtime.calls.stream_server import StreamServer
from runtime.calls.unreadable_arguments import unreadable_arguments
from runtime.environment import Environment
from runtime.faults import Faults
from runtime.hosting.cell import ActorCell, Invocation, ReplySink
from runtime.hosting.client_quotas import CALL_BYTES, REFERENCE_BYTES
from runtime.hosting.held_bytes import COUNTED_FROM, HeldBytes
from runtime.hosting.host import ActorHost
from runtime.hosting.requesters import not_its_own
from runtime.limited_log import LimitedLog
from runtime.links.link import Link
from runtime.links.outbound import BACKLOG_FRAMES
from runtime.references.values import StoredValue
from runtime.wire.arrays import first_number
from runtime.wire.codec import Codec
from runtime.wire.frames import Frame, Kind

MOST_SERVICE_CALLS = 20_000
"""Calls of one peer that may run when it calls one of the runtime's own services: their cells have
one limit for all peers together.
"""

DECODED = 16
"""Bytes of memory that a byte of a control part may take when it is decoded: a small number in a
list takes 8 bytes, an empty list 56. Arguments that are bytes take what they took there, and so do
bytes and arrays beside the control part.
"""

MOST_UNREAD = 2 * BACKLOG_FRAMES
"""Frames that a peer may leave unread. Beyond `BACKLOG_FRAMES` they are refusals, and a peer that
reads stops far below.
"""

logger = own_logger("understudy.calls")


class Dispatch:
    """Handles the frames that arrive on the links of one identity; see
    `runtime.links.link.Receiver`. Also the `ReplySink` of invocations from other nodes.
    """

    def __init__(
        self,
        host: ActorHost,
        codec: Codec,
        environment: Environment,
        reply_handler: ReplyHandler,
        reply_encoder: ReplyEncoder,
        dedup_server: DedupServer,
        stream_server: StreamServer,
        item_handler: StreamItemHandler,
        retention: ResultRetention,
        imports: Imports,
        admission: CallAdmission,
        returns: CallReturns,
        faults: Faults | None,
    ) -> None:
        self._host = host
        self._returns = returns
        self._codec = codec
        self._environment = environment
        self._reply_handler = reply_handler
        self._reply_encoder = reply_encoder
        self._dedup_server = dedup_server
        self._stream_server = stream_server
        self._retention = retention
        self._imports = imports
        self._admission = admission
        self._faults = faults
        self._log = LimitedLog(logger, environment.now)
        self._depth_sink = _DepthSink(self)
        self._tables: dict[Link, IncomingCalls[Invocation]] = {}
        self._contexts = ReadContexts()
        self.one_way: Counter[Link] = Counter()
        """One-way calls of services that run; only of links that have any."""
        self._handlers: dict[int, Callable[[Link, Frame], None]] = {
            Kind.CALL: self._on_call,
            Kind.SEND: self._on_send,
            Kind.CANCEL: self._on_cancel,
            Kind.FORGET: dedup_server.on_forget,
            Kind.REPLY: reply_handler.on_reply,
            Kind.ERROR: reply_handler.on_error,
            Kind.ITEM: item_handler.on_item,
            Kind.CREDIT: stream_server.on_credit,
        }

    @property
    def handlers(self) -> Mapping[int, Callable[[Link, Frame], None]]:
        """The handler of each kind of frame that a link passes on."""
        return self._handlers

    def link_ended(self, link: Link, reason: str) -> None:
        """A link has ended: cancel the calls that the peer has made, and end those that this node
        has made over it.
        """
        # Removed first: an invocation that ends because of this finds no table, and answers
        # nothing.
        table = self._tables.pop(link, None)
        if table is not None:
            for invocation in table.end():
                caller_gone(invocation)
        self.one_way.pop(link, None)
        self._stream_server.link_ended(link)
        self._dedup_server.link_ended(link)
        self._reply_handler.link_ended(link)

    def close(self) -> None:
        """The node has left, and its host is closed: refuse the requests that wait for an import,
        which nothing else would answer before the goodbye.
        """
        left = NodeDrainingError(f"node {self._host.node.name} has left the cluster")
        for link, number in self._imports.close():
            if link.ended is None:
                self._refuse(link, number, "", left)

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps of a task. Looks at all calls that run for
        other nodes: for tests and simulations.
        """
        for link, table in self._tables.items():
            assert link.ended is None, "the calls of a peer end with its link"
            for number, invocation in table.running.items():
                assert invocation.number == number
                assert invocation.link is link
        for link, running in self.one_way.items():
            assert link.ended is None
            assert 0 < running <= MOST_SERVICE_CALLS

    def _on_call(self, link: Link, frame: Frame) -> None:
        control = frame.control
        # For one of the runtime's services, whose names begin like this; behind a long number that
        # is not looked for here. What others than nodes ask for imports nothing.
        if (
            (control[7:8] == b"@" or control[1:2] == b"\x1b")
            and not link.restricted
            and self._imports.begin(link, frame, self._on_readable_call)
        ):
            return
        self._on_readable_call(link, frame)

    def _on_readable_call(self, link: Link, frame: Frame) -> None:
        """Handle a CALL frame. The modules of the classes that it names have been imported."""
        try:
            parts = self._codec.decode(frame.control, frame.segments)
        except DecodeError as error:
            unreadable = unreadable_arguments(self._host, self._codec, frame, error)
            self._refuse(link, first_number(frame.control), "", unreadable)
            return
        call = request(parts, self._codec, self._contexts, held_bytes(frame, link))
        if link.restricted:
            # Before the call waits for anything.
            refused = self._over_budget(link, frame, call)
            if refused is not None:
                self._refuse(link, call.number, call.method, refused)
                return
            if call.chain is not None:
                # Only methods wait for other methods, and nodes run them: what it says of a chain
                # could let its calls into turns of others.
                call = call._replace(chain=None)
        # The store may name this node as the actor's already, while its cell does not exist yet: a
        # refusal now would send the caller in circles.
        awaited = self._host.awaited_claims
        if awaited.by_name and awaited.takes(call.actor):
            arrived = self._retention.forget_arrivals()
            later = partial(self._start_later, link, frame.flags, call, arrived)
            awaited.add(call.actor, later)
        else:
            self._start(link, frame.flags, call)

    def _start_later(self, link: Link, flags: int, call: CallRequest, references: bool) -> None:
        # A call that waited for a claim may outlast its link. Its entries would then stay in the
        # tables: the end of the link, which removes them, has passed.
        if link.ended is None:
            self._retention.remember_arrivals(references)
            self._start(link, flags, call)

    def _start(self, link: Link, flags: int, call: CallRequest) -> None:
        # The peer may not know yet that its lease has ended. Services answer it, so that it learns.
        if link.fenced and not call.actor.startswith("@"):
            self._refuse(link, call.number, call.method, _outdated(link))
            return
        # Not of repeats: they may have run before, so that they must not be called unexecuted;
        # their records bound their number.
        if not link.takes_calls and not flags & REPEAT and not call.actor.startswith("@"):
            self._refuse(link, call.number, call.method, _unread(link))
            return
        if flags & REPEATABLE and not flags & STREAM:
            # It asks for admission itself: what is on record has run, and was admitted.
            self._dedup_server.on_call(link, flags, call)
            return
        if link.audited or self._admission.authorize is not None:
            kind: CallKind = "stream" if flags & STREAM else "call"
            barred = self._admission.of_call(link, kind, call)
            if barred is not None:
                self._refuse(link, call.number, call.method, barred)
                return
        if flags & STREAM:
            self._stream_server.on_call(link, call)
            return
        found = self._host.find(call.actor, call.epoch, call.method)
        if isinstance(found, CallError):
            self._refuse(link, call.number, call.method, found)
            return
        table = self._tables.get(link)
        if table is None:
            table = self._tables[link] = IncomingCalls()
        if found[0].system:
            refused = self._refused_service(link, found[0], call, len(table.running))
            if refused is not None:
                self._refuse(link, call.number, call.method, refused)
                return
        invocation = invocation_of(found, call, self, link, self._environment.now)
        if flags & TELL_DEPTH:
            invocation.sink = self._depth_sink
        if flags & KEEP_RESULT:
            self._retention.keep(invocation, link, flags, call, self._admission.values_of(link))
        if self._retention.references_arrived:
            self._retention.prepare(invocation)
            # The sender holds a fork for each reference until it knows that this message has
            # arrived.
            link.acknowledge(anyway=True)
        # Entered before it is delivered: the invocation may end within `deliver`.
        table.accept(call.number, invocation)
        refusal = self._host.deliver(invocation)
        if refusal is not None:
            invocation.sink.refused(invocation, refusal)

    def _over_budget(self, link: Link, frame: Frame, call: CallRequest) -> CallError | None:
        """Count the arguments of a client's call; return an error if it may hold no more. Raises
        ProtocolError for a repeat then: it may have run, so that it cannot be refused unexecuted.
        """
        assert call.held_bytes is not None, "calls of clients are counted"
        assert link.verified is not None, "no frame arrives before the handshake"
        # Not of repeats: what they keep may be here already.
        if frame.flags & KEEP_RESULT and not frame.flags & REPEAT:
            values = self._admission.quotas.values_of(link.verified)
            if values.held + REFERENCE_BYTES > values.limit:
                return MailboxFullError(
                    f"results that {link.verified} keeps on node {self._host.node.name} take "
                    f"{values.held:,} bytes, of {values.limit:,} that one client may keep; release "
                    "some references, or await the method instead"
                )
        questions = self._admission.quotas.questions_of(link.verified)
        if (
            call.actor.startswith("@")
            # Those are calls of actors, and counted as such: by their bytes.
            and call.actor != PLAIN_SERVICE
            and not call.held_bytes.count_in(questions, 1)
        ):
            text = (
                f"{questions.limit:,} questions of {link.verified} wait for answers on node "
                f"{self._host.node.name}, the limit for one client"
            )
            if frame.flags & REPEAT:
                raise ProtocolError(f"a repeated call, where {text}")
            return MailboxFullError(f"{text}; wait for some of them first")
        budget = self._admission.quotas.budget_of(link.verified)
        # Where there are segments, bytes among the arguments may be from there.
        plain = 0 if frame.segments else sum(len(a) for a in call.args if type(a) is bytes)
        size = CALL_BYTES + call.held_bytes.size + (DECODED - 1) * (len(frame.control) - plain)
        if call.held_bytes.count_in(budget, size):
            return None
        text = (
            f"calls of {link.verified} hold {budget.held:,} bytes of arguments on node "
            f"{self._host.node.name}, of {budget.limit:,} that one client may hold"
        )
        if frame.flags & REPEAT:
            raise ProtocolError(f"a repeated call, where {text}")
        return MailboxFullError(f"{text}; wait for some of their answers first")

    def _refused_service(
        self, link: Link, cell: ActorCell, call: CallRequest, running: int
    ) -> CallError | None:
        """Return the error with which a peer's call of one of the runtime's own services is
        refused, or None. `running`: how many such calls of the peer run already.
        """
        if running >= MOST_SERVICE_CALLS:
            return _too_many(link)
        self._admission.on_service_call(link, call)
        return not_its_own(cell.instance, call.method, call.args, call.kwargs, link.peer)

    def _on_send(self, link: Link, frame: Frame) -> None:
        try:
            parts = self._codec.decode(frame.control, frame.segments)
        except DecodeError as error:
            self._log.warning(
                "a one-way call from %s was dropped: its arguments cannot be read here: %s",
                link.peer.name,
                error,
            )
            return
        call = request(parts, self._codec, self._contexts, held_bytes(frame, link))
        if link.restricted and (refused := self._over_budget(link, frame, call)) is not None:
            self._log.warning("a one-way call from %s was refused: %s", link.peer.name, refused)
            return
        awaited = self._host.awaited_claims
        if awaited.by_name and awaited.takes(call.actor):
            later = partial(self._send_later, link, call, self._retention.forget_arrivals())
            awaited.add(call.actor, later)
        else:
            self._start_one_way(link, call)

    def _send_later(self, link: Link, call: CallRequest, references: bool) -> None:
        self._retention.remember_arrivals(references)
        self._start_one_way(link, call)

    def _start_one_way(self, link: Link, call: CallRequest) -> None:
        _, name, epoch, method, args, kwargs, remaining, *_ = call
        found = self._host.find(name, epoch, method)
        refusal: CallError | None
        if link.fenced and not name.startswith("@"):
            refusal = _outdated(link)
        elif isinstance(found, CallError):
            refusal = found
        elif (link.audited or self._admission.authorize is not None) and (
            refusal := self._admission.of_call(link, "send", call)
        ) is not None:
            # In the audit log already.
            return
        elif (
            not found[0].system
            or (refusal := self._refused_service(link, found[0], call, self.one_way[link])) is None
        ):
            invocation = Invocation(
                found[0], found[1], args, kwargs, self, None, 0, self._deadline(remaining)
            )
            invocation.context = call.context
            invocation.held_bytes = call.held_bytes
            # Without the link: it has no answer.
            invocation.peer = link.verified
            if found[0].system:
                self.one_way[link] += 1
                invocation.sink = _OneWay(self, link, self.one_way)
            if self._retention.references_arrived:
                self._retention.prepare(invocation)
            refusal = self._host.deliver(invocation)
        if refusal is not None:
            self._returns.refuse(call, refusal, link.peer.identity)

    def _on_cancel(self, link: Link, frame: Frame) -> None:
        number = first_number(frame.control)
        table = self._tables.get(link)
        # The call is at one of four places: running, waiting for an import, a stream, or on record.
        invocation = table.cancel(number) if table is not None else None
        if invocation is not None:
            taken_back(invocation)
        elif not self._imports.cancel(link, number) and not self._stream_server.cancel(
            link, number
        ):
            self._dedup_server.cancel(link, number)

    def value(self, invocation: Invocation, value: object) -> None:
        """The method has returned: answer the caller, unless it has cancelled the call or wants no
        answer.
        """
        link: Link | None = invocation.link
        if link is not None and self._finish(link, invocation.number):
            number = invocation.number
            reply = self._reply_encoder.of_value(number, invocation, value, link, copied=False)
            if reply[1] or self._faults is not None:
                self._post_value(link, invocation, value, reply)
            else:
                # Inline, for the hot path; see `_post`.
                link.post(reply[0], at_once=link.batch == 1)

    def value_and_depth(self, invocation: Invocation, value: object) -> None:
        """Like `value`, with the number of other calls that the actor has."""
        link: Link = invocation.link
        if self._finish(link, invocation.number):
            head, segments = self._reply_encoder.of_value(
                invocation.number, invocation, value, link, copied=False
            )
            head = with_depth(head, invocation.cell.depth_beside(invocation))
            self._post_value(link, invocation, value, (head, segments))

    def raised(self, invocation: Invocation, error: BaseException) -> None:
        """The method has raised: answer the caller; for a one-way call, log the error."""
        link: Link | None = invocation.link
        if link is None:
            log_one_way_failure(self._log, invocation, error)
        elif self._finish(link, invocation.number):
            self._post(
                link,
                invocation.definition.name,
                self._reply_encoder.of_raised(invocation.number, link, error),
            )

    def refused(self, invocation: Invocation, error: CallError) -> None:
        """The runtime has ended the call: answer the caller; for a one-way call, log that."""
        link: Link | None = invocation.link
        if link is None:
            what = "was not run" if outcome_of(error) == "not executed" else "may have run"
            self._log.warning("a one-way call %s: %s", what, error)
        elif self._finish(link, invocation.number):
            self._refuse(link, invocation.number, invocation.definition.name, error)

    def _deadline(self, remaining: float) -> float:
        return remaining if remaining == math.inf else self._environment.now() + remaining

    def _finish(self, link: Link, number: int) -> bool:
        table = self._tables.get(link)
        return table is not None and table.finish(number)

    def _post_value(self, link: Link, invocation: Invocation, value: object, reply: Reply) -> None:
        # The actor may go on changing what it has returned, but for what is kept for references.
        self._post(
            link,
            invocation.definition.name,
            reply,
            # By its type: `isinstance` reads `__class__`, which is code of the user's.
            changing=not issubclass(type(value), StoredValue),
        )

    def _refuse(self, link: Link, number: int, method: str, error: CallError) -> None:
        """Answer a call of the peer with an error of the runtime."""
        self._post(link, method, self._reply_encoder.of_error(number, link, error))

    def _post(self, link: Link, method: str, reply: Reply, *, changing: bool = False) -> None:
        # `at_once` if the receive had one frame only: then there is no other answer to gather this
        # one with.
        if self._faults is None or not self._faults.strike("reply-lost", method):
            link.post(*reply, at_once=link.batch == 1, changing=changing)


def held_bytes(frame: Frame, link: Link) -> HeldBytes | None:
    """Return the bytes of a call's arguments if they are counted: those of clients always, those of
    nodes if they are large; otherwise None.
    """
    size = len(frame.control)
    if frame.segments:
        size += sum(map(len, frame.segments))
    return HeldBytes(size) if size >= COUNTED_FROM or link.restricted else None


class _DepthSink:
    """The reply sink of a call that asks how many other calls the actor has."""

    def __init__(self, sink: Dispatch) -> None:
        self._sink = sink

    def value(self, invocation: Invocation, value: object) -> None:
        """Answer with the value and the actor's number of other calls."""
        self._sink.value_and_depth(invocation, value)

    def raised(self, invocation: Invocation, error: BaseException) -> None:
        """Answer with the error alone."""
        self._sink.raised(invocation, error)

    def refused(self, invocation: Invocation, error: CallError) -> None:
        """Answer with the error alone."""
        self._sink.refused(invocation, error)


class _OneWay:
    """The reply sink of a one-way call of a service: takes it off the count of running calls when
    it has ended.
    """

    def __init__(self, sink: ReplySink, link: Link, running: Counter[Link]) -> None:
        self._sink = sink
        self._link = link
        self._running = running

    def value(self, invocation: Invocation, value: object) -> None:
        """The call has ended: count it no longer."""
        self._over()
        self._sink.value(invocation, value)

    def raised(self, invocation: Invocation, error: BaseException) -> None:
        """The call has ended: count it no longer, and have the error logged."""
        self._over()
        self._sink.raised(invocation, error)

    def refused(self, invocation: Invocation, error: CallError) -> None:
        """The call was not run: count it no longer, and have that logged."""
        self._over()
        self._sink.refused(invocation, error)

    def _over(self) -> None:
        # Nothing is counted of a link that has ended: a Counter has 0 for it, and deletes nothing.
        if self._running[self._link] > 1:
            self._running[self._link] -= 1
        else:
            del self._running[self._link]


def _unread(link: Link) -> CallError:
    """Raises ProtocolError where even refusals have piled up."""
    if link.backlog_frames > MOST_UNREAD:
        raise ProtocolError(
            f"the peer sends calls but does not read their answers: {link.backlog_frames} frames "
            "to it are not acknowledged"
        )
    return AnswersUnreadError(
        f"node {link.peer.name} has left {link.backlog} bytes in {link.backlog_frames} frames "
        "unread: this node takes no more calls from it until it reads them"
    )


def _too_many(link: Link) -> CallError:
    return MailboxFullError(
        f"{MOST_SERVICE_CALLS} calls of node {link.peer.name} are running here, the limit for "
        "calls of the runtime's own services; slow down"
    )


def _outdated(link: Link) -> CallError:
    return NotAMemberError(
        f"node {link.peer.name} (incarnation {link.peer.incarnation}) is no longer a member of "
        "the cluster: its lease has ended, and other nodes may have taken over its work"
    )
