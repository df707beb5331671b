"""The dedup server: runs repeatable calls, which their caller may send again, at most once. The
trio shell around `dedup_table`.

A call goes on when the link that brought it is lost, for its repeat may come over the next one; it
is given up when its client says so, is known to be dead, or has not been heard of for
`Timings.orphans`.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import trio

from actors.errors import CallError
from actors.identifiers import NodeId
from actors.method import MethodDefinition
from actors.peers import VerifiedPeer
from runtime.calls.admission import CallAdmission
from runtime.calls.dedup_table import CallRecord, DedupTable, RecordsTotal, evicted
from runtime.calls.incoming_calls import ResultRetention, caller_gone, invocation_of, taken_back
from runtime.calls.protocol import KEEP_RESULT, REPEAT, CallRequest, confirmation
from runtime.calls.replies import Reply, ReplyEncoder
from runtime.environment import Environment
from runtime.faults import Faults
from runtime.hosting.cell import ActorCell, Invocation
from runtime.hosting.completion_records import RequestClient, RequestId, request_origin
from runtime.hosting.host import ActorHost
from runtime.hosting.requesters import not_its_own
from runtime.links.link import Link
from runtime.links.peers import LEFT
from runtime.links.transfers import QueuedFrame
from runtime.wire.codec import Codec
from runtime.wire.frames import Frame
from runtime.wire.handshake import Role

MOST_ORPHANS = 1024
"""Clients without a link whose calls go on. Of more than these, the one that has been without for
the longest time is given up.
"""


class _DedupClient:
    """The calls of one client incarnation, and the links that it has now."""

    __slots__ = ("identity", "links", "links_made", "orphaned", "over", "records", "role")

    def __init__(self, identity: RequestClient, role: Role, total: RecordsTotal) -> None:
        self.identity = identity
        self.role = role
        self.records: DedupTable[Invocation] = DedupTable(total=total)
        self.links: set[Link] = set()
        self.links_made = 0
        """How many links it has had, so that one that came and went meanwhile is noticed."""
        self.over = trio.Event()
        """Set when it is given up."""
        self.orphaned = False
        """True while a task waits to give its calls up: one for each client, however often its
        links end.
        """


class _Asked:
    """The record of a repeatable call, and the link over which its latest attempt has arrived."""

    __slots__ = ("client", "link", "record")

    def __init__(self, client: _DedupClient, record: CallRecord[Invocation], link: Link) -> None:
        self.client = client
        self.record = record
        self.link = link

    @property
    def verified(self) -> VerifiedPeer | None:
        """The caller, as the link has proven it."""
        return self.link.verified


class _AnswerTransfer(NamedTuple):
    """A large answer, which travels in parts over a link."""

    link: Link
    frame: QueuedFrame

    def is_under_way_on(self, link: Link) -> bool:
        """Return True if the caller cannot have it yet, and will get it over this link."""
        return link is self.link and link.certainly_not_received(self.frame)


class DedupServer:
    """Takes repeatable calls of all clients of a node. The `ReplySink` of their invocations."""

    def __init__(
        self,
        host: ActorHost,
        codec: Codec,
        reply_encoder: ReplyEncoder,
        environment: Environment,
        nursery: trio.Nursery,
        retention: ResultRetention,
        admission: CallAdmission,
        faults: Faults | None,
    ) -> None:
        self._admission = admission
        self._host = host
        self._codec = codec
        self._reply_encoder = reply_encoder
        self._environment = environment
        self._nursery = nursery
        self._retention = retention
        self._faults = faults
        self.clients: dict[NodeId, _DedupClient] = {}
        self._of_links: dict[Link, _DedupClient] = {}
        """The same by their links."""
        self._orphans: dict[NodeId, None] = {}
        """Clients without a link, those first that have been without for the longest time."""
        self.total = RecordsTotal()

    def on_call(self, link: Link, flags: int, call: CallRequest) -> None:
        """A repeatable call has arrived."""
        client = self._of_links.get(link)
        # Inline, for each repeatable call; see `_client`.
        if client is None or client.identity.life != link.life:
            client = self._client(link)
        record = client.records.arrive(
            call.number, (call.actor, call.epoch), repeat=bool(flags & REPEAT)
        )
        if isinstance(record, CallError):
            self._refuse(link, call, record)
        elif record.state == "new":
            self._run(link, client, record, flags, call)
        elif record.state != "running":
            self._host.counts.repeats += 1
            self._repeat_answer(link, client, record, call)
        else:
            # The repeat joins the run: its answer goes over the link of the latest attempt.
            assert record.invocation is not None
            self._host.counts.repeats += 1
            asked: _Asked = record.invocation.link
            asked.link = link

    def on_forget(self, link: Link, frame: Frame) -> None:
        """Handle a FORGET frame: `[watermark, numbers beyond it]`."""
        watermark, beyond, everywhere = confirmation(
            self._codec.decode(frame.control, frame.segments)
        )
        client, log = self._client(link), self._host.completion_log
        log.confirm(client.identity, everywhere)
        covered = client.records.covered(watermark, beyond)
        if log.has_tables:
            for record in covered:
                cell = self._host.cells.get(record.target[0])
                log.on_over(cell, RequestId(client.identity, record.number))
        for invocation in client.records.forget(watermark, covered):
            taken_back(invocation)

    def cancel(self, link: Link, number: int) -> None:
        """Handle that the caller of a call gave up, if the call is on record."""
        client = self.clients.get(link.peer.identity)
        invocation = client.records.give_up(number) if client is not None else None
        if invocation is not None:
            taken_back(invocation)

    def link_ended(self, link: Link) -> None:
        """A link has ended. Its calls go on for now: their repeats may come over the next link."""
        identity = link.peer.identity
        client = self.clients.get(identity)
        self._of_links.pop(link, None)
        if client is not None:
            client.links.discard(link)
            if not client.links:
                if link.ended == LEFT:
                    # No other link follows. And code of an actor may have ended the nursery.
                    self.on_ended(identity)
                    return
                self._orphans[identity] = None
                if not client.orphaned:
                    client.orphaned = True
                    self._nursery.start_soon(self._give_up_orphans, identity, client)
                if len(self._orphans) > MOST_ORPHANS:
                    self.on_ended(next(iter(self._orphans)))

    def on_ended(self, identity: NodeId) -> None:
        """The client has ended, so its calls have no waiting caller."""
        client = self.clients.pop(identity, None)
        self._orphans.pop(identity, None)
        if client is not None:
            for link in client.links:
                self._of_links.pop(link, None)
            client.over.set()
            self._host.completion_log.on_silent(client.identity)
            for invocation in client.records.end():
                caller_gone(invocation)

    def value(self, invocation: Invocation, value: object) -> None:
        """The method has returned: record the answer and send it to the latest attempt's link."""
        asked: _Asked = invocation.link
        # No caller waits any more, and the record may be gone.
        if asked.record.given_up:
            return
        self._answer(
            invocation,
            asked,
            self._reply_encoder.of_value(asked.record.number, invocation, value, asked.link),
        )

    def raised(self, invocation: Invocation, error: BaseException) -> None:
        """The method has raised: record the answer and send it to the latest attempt's link."""
        asked: _Asked = invocation.link
        if not asked.record.given_up:
            self._answer(
                invocation,
                asked,
                self._reply_encoder.of_raised(asked.record.number, asked.link, error),
            )

    def refused(self, invocation: Invocation, error: CallError) -> None:
        """The runtime has ended the call. If it certainly did not run, its record goes, so that a
        repeat may run.
        """
        asked: _Asked = invocation.link
        if asked.record.given_up:
            return
        reply = self._reply_encoder.of_error(asked.record.number, asked.link, error)
        # Taken off the record: it did not run, so a repeat of the same number may.
        if error.outcome == "not executed":
            asked.client.records.on_not_executed(asked.record)
            self._send(asked.link, invocation.definition.name, reply)
        else:
            self._answer(invocation, asked, reply, unknown=True)

    def _run(
        self,
        link: Link,
        client: _DedupClient,
        record: CallRecord[Invocation],
        flags: int,
        call: CallRequest,
    ) -> None:
        found: tuple[ActorCell, MethodDefinition] | CallError | None = None
        if link.audited or self._admission.authorize is not None:
            found = self._admission.of_call(link, "call", call)
        if found is None:
            found = self._host.find(call.actor, call.epoch, call.method)
        if isinstance(found, CallError):
            client.records.on_not_executed(record)
            self._refuse(link, call, found)
            return
        cell = found[0]
        if cell.system:
            refused = not_its_own(cell.instance, call.method, call.args, call.kwargs, link.peer)
            self._admission.on_service_call(link, call)
            if refused is not None:
                client.records.on_not_executed(record)
                self._refuse(link, call, refused)
                return
        asked = _Asked(client, record, link)
        invocation = invocation_of(found, call, self, asked, self._environment.now)
        if flags & KEEP_RESULT:
            self._retention.keep(invocation, link, flags, call, self._admission.values_of(link))
        if self._retention.references_arrived:
            self._retention.prepare(invocation)
        elsewhere = call.first > 0
        repeated = elsewhere or bool(flags & REPEAT)
        invocation.call = request_origin(
            client.identity, call.first or call.number, repeated=repeated, elsewhere=elsewhere
        )
        # Before it is delivered: the invocation may end within `deliver`.
        client.records.on_started(record, invocation)
        refusal = self._host.deliver(invocation)
        if refusal is not None:
            invocation.sink.refused(invocation, refusal)

    def _repeat_answer(
        self,
        link: Link,
        client: _DedupClient,
        record: CallRecord[Invocation],
        call: CallRequest,
    ) -> None:
        """Answer a repeat from the record."""
        transfer = record.transfer
        if isinstance(transfer, _AnswerTransfer) and transfer.is_under_way_on(link):
            # The attempt was shorter than the answer takes. Copies would fill the link, and an
            # error, which is small, would overtake the answer.
            return
        if record.state == "sent":
            # Over the same link this comes behind the answer, which ends the call.
            self._refuse(link, call, evicted())
            return
        head, *segments = record.answer
        found = self._send(link, call.method, (cast("bytes", head), tuple(segments)))
        client.records.on_sent_again(record, found)

    def _answer(
        self, invocation: Invocation, asked: _Asked, reply: Reply, *, unknown: bool = False
    ) -> None:
        link = asked.link
        head, segments = reply
        if link.ended is None and self._faults is None and not segments:
            # Inline, for each repeatable call; see `_send`.
            link.post(head, at_once=link.batch == 1)
            transfer = None
        else:
            transfer = self._send(link, invocation.definition.name, reply)
        answer = (head, *segments) if segments else (head,)
        asked.client.records.on_answered(asked.record, answer, unknown=unknown, transfer=transfer)
        if self.total.is_over:
            self._make_room()

    def _refuse(self, link: Link, call: CallRequest, error: CallError) -> None:
        """Answer a call that is not run with an error."""
        self._send(link, call.method, self._reply_encoder.of_error(call.number, link, error))

    def _send(self, link: Link, method: str, reply: Reply) -> _AnswerTransfer | None:
        """Send a reply, unless the link has ended or a planned fault takes it. Returns its
        transfer, if it travels in parts.
        """
        if link.ended is not None or (
            self._faults is not None and self._faults.strike("reply-lost", method)
        ):
            return None
        ticket = link.post(*reply, at_once=link.batch == 1)
        return _AnswerTransfer(link, ticket) if isinstance(ticket, QueuedFrame) else None

    def _client(self, link: Link) -> _DedupClient:
        client = self._of_links.get(link)
        if client is not None and client.identity.life == link.life:
            return client
        identity = link.peer.identity
        client = self.clients.get(identity)
        if client is not None and client.identity.life != link.life:
            # Its numbers are another process's, and so are the answers.
            self.on_ended(identity)
            self._host.completion_log.on_ended(client.identity)
            client = None
        if client is None:
            client = self.clients[identity] = _DedupClient(
                RequestClient(*identity, link.life), link.peer.role, self.total
            )
        assert link not in client.links, "it would have been found by its link"
        self._of_links[link] = client
        self._orphans.pop(identity, None)
        client.links.add(link)
        client.links_made += 1
        return client

    def _make_room(self) -> None:
        """Forget answers, of one client after another: of those without a link, of other clients
        than nodes, and of who has the most.
        """
        clients = [client for client in self.clients.values() if client.records.kept]
        for client in sorted(
            clients,
            key=lambda one: (not one.links, one.role == "client", one.records.size),
            reverse=True,
        ):
            client.records.make_room()
            if not self.total.is_over:
                break

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. Looks at every record: for tests and
        simulations.
        """
        for link, its_client in self._of_links.items():
            assert self.clients.get(link.peer.identity) is its_client
            assert link in its_client.links
        for identity, client in self.clients.items():
            client.records.check_invariants()
            assert all(self._of_links.get(link) is client for link in client.links)
            assert (identity in self._orphans) == (not client.links), "an orphan has no link"
            assert not client.over.is_set(), "a client that was given up is forgotten"
            assert client.links_made >= len(client.links)
            assert client.links or client.orphaned, "a task waits to give up each orphan"
        assert self._orphans.keys() <= self.clients.keys()
        assert len(self._orphans) <= MOST_ORPHANS
        tables = [client.records for client in self.clients.values()]
        assert self.total.records == sum(len(table.records) for table in tables)
        assert self.total.bytes == sum(table.size for table in tables)

    async def _give_up_orphans(self, identity: NodeId, client: _DedupClient) -> None:
        while True:
            seen = client.links_made
            with trio.move_on_after(self._environment.timings.orphans):
                await client.over.wait()
                return
            # A link that came and went meanwhile gives the client its whole time again.
            if client.links or client.links_made == seen:
                break
        client.orphaned = False
        if not client.links and self.clients.get(identity) is client:
            self.on_ended(identity)
