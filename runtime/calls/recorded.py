"""Recorded calls: those that their caller may send again. The shell around `records`.

A call goes on when the link that brought it is lost, for its repeat may come over the next one; it is given up when its client says so,
is known to be dead, or has not been heard of for `ORPHAN_SECONDS`.
"""

from __future__ import annotations

import math
from typing import cast

import trio

from actors.errors import CallError
from runtime.calls.format import KEEP_RESULT, REPEAT, TENTATIVE, Request, confirmation
from runtime.calls.keeping import KeptResults, caller_gone, taken_back
from runtime.calls.records import CallRecords, Record
from runtime.calls.replies import Replies, Reply
from runtime.environment import Environment
from runtime.faults import Faults
from runtime.hosting.applied import CallIdentity, Client, Origin
from runtime.hosting.cell import Job
from runtime.hosting.host import Host
from runtime.links.link import Link
from runtime.wire.codec import Codec
from runtime.wire.frames import Frame

ORPHAN_SECONDS = 10.0
"""How long the calls of a client without a link go on, and their answers are kept."""


class _Client:
    """The calls of one client incarnation, and the links that it has now."""

    __slots__ = ("identity", "links", "links_made", "orphaned", "records")

    def __init__(self, identity: Client) -> None:
        self.identity = identity
        self.records: CallRecords[Job] = CallRecords()
        self.links: set[Link] = set()
        self.links_made = 0
        """How many links it has had, so that one that came and went meanwhile is noticed."""
        self.orphaned = False
        """True while a task waits to give its calls up: one for each client, however often its links end."""


class _Asked:
    """What a recorded job carries: its record, and over which link it was asked for last."""

    __slots__ = ("client", "link", "record")

    def __init__(self, client: _Client, record: Record[Job], link: Link) -> None:
        self.client = client
        self.record = record
        self.link = link


class RecordedCalls:
    """Takes repeatable calls of all clients of a node. The `Sink` of their jobs."""

    def __init__(
        self,
        host: Host,
        codec: Codec,
        replies: Replies,
        environment: Environment,
        nursery: trio.Nursery,
        kept: KeptResults,
        faults: Faults | None,
    ) -> None:
        self._host = host
        self._codec = codec
        self._replies = replies
        self._environment = environment
        self._nursery = nursery
        self._kept = kept
        self._faults = faults
        self._clients: dict[tuple[str, int], _Client] = {}

    def on_call(self, link: Link, flags: int, call: Request) -> None:
        """A repeatable call has arrived."""
        client = self._client(link)
        record = client.records.arrive(call.number, (call.actor, call.epoch), repeat=bool(flags & REPEAT))
        if isinstance(record, CallError):
            self._send(link, call.method, self._replies.of_error(call.number, link, record))
        elif record.state == "answered":
            head, *segments = record.answer
            self._send(link, call.method, (cast("bytes", head), tuple(segments)))
        elif record.state == "running":
            assert record.job is not None
            cast("_Asked", record.job.link).link = link
        else:
            self._run(link, client, record, flags, call)

    def on_forget(self, link: Link, frame: Frame) -> None:
        """Handle a FORGET frame: `[watermark, numbers beyond it]`."""
        watermark, beyond, everywhere = confirmation(self._codec.decode(frame.control, frame.segments))
        client = self._client(link)
        self._host.once.confirm(client.identity, everywhere)
        for record in client.records.covered(watermark, beyond):
            self._host.once.over(self._host.cells.get(record.target[0]), CallIdentity(client.identity, record.number))
        for job in client.records.confirm(watermark, beyond):
            taken_back(job)

    def cancel(self, link: Link, number: int) -> None:
        """The caller of a call gave up, if it is a recorded one."""
        client = self._clients.get((link.peer.name, link.peer.incarnation))
        job = client.records.give_up(number) if client is not None else None
        if job is not None:
            taken_back(job)

    def link_ended(self, link: Link) -> None:
        """A link is over, its calls are not; yet."""
        identity = (link.peer.name, link.peer.incarnation)
        client = self._clients.get(identity)
        if client is not None:
            client.links.discard(link)
            if not client.links and not client.orphaned:
                client.orphaned = True
                self._nursery.start_soon(self._give_up_orphans, identity, client)

    def ended(self, identity: tuple[str, int]) -> None:
        """That client is no more: nobody waits for its calls."""
        client = self._clients.pop(identity, None)
        if client is not None:
            self._host.once.silent(client.identity)
            for job in client.records.end():
                caller_gone(job)

    def value(self, job: Job, value: object) -> None:
        """See `Sink.value`."""
        asked = cast("_Asked", job.link)
        if asked.record.given_up:
            return
        self._answer(job, asked, self._replies.of_value(asked.record.number, job, value, asked.link))

    def raised(self, job: Job, error: BaseException) -> None:
        """See `Sink.raised`."""
        asked = cast("_Asked", job.link)
        if not asked.record.given_up:
            self._answer(job, asked, self._replies.of_raised(asked.record.number, asked.link, error))

    def refused(self, job: Job, error: CallError) -> None:
        """See `Sink.refused`."""
        asked = cast("_Asked", job.link)
        if asked.record.given_up:
            return
        reply = self._replies.of_error(asked.record.number, asked.link, error)
        if error.outcome == "not executed":
            asked.client.records.not_executed(asked.record)
            self._send(asked.link, job.definition.name, reply)
        else:
            self._answer(job, asked, reply, unknown=True)

    def _run(self, link: Link, client: _Client, record: Record[Job], flags: int, call: Request) -> None:
        found = self._host.find(call.actor, call.epoch, call.method)
        if isinstance(found, CallError):
            client.records.not_executed(record)
            self._send(link, call.method, self._replies.of_error(call.number, link, found))
            return
        cell, definition = found
        deadline = call.remaining if call.remaining == math.inf else self._environment.now() + call.remaining
        job = Job(cell, definition, call.args, call.kwargs, self, _Asked(client, record, link), call.number, deadline)
        job.chain = call.chain
        if flags & KEEP_RESULT:
            self._kept.keep(job, link.peer.identity, call.kept, tentative=bool(flags & TENTATIVE))
        if self._kept.references_arrived:
            self._kept.prepare(job)
        repeated = bool(flags & REPEAT) or call.first > 0
        job.call = Origin(CallIdentity(client.identity, call.first or call.number), repeated, call.first > 0)
        client.records.started(record, job)
        refusal = self._host.deliver(job)
        if refusal is not None:
            job.sink.refused(job, refusal)

    def _answer(self, job: Job, asked: _Asked, reply: Reply, *, unknown: bool = False) -> None:
        head, segments = reply
        asked.client.records.answered(asked.record, (head, *segments), unknown=unknown)
        self._send(asked.link, job.definition.name, reply)

    def _send(self, link: Link, method: str, reply: Reply) -> None:
        if link.ended is None and (self._faults is None or not self._faults.strike("reply-lost", method)):
            link.post(*reply, at_once=link.batch == 1)

    def _client(self, link: Link) -> _Client:
        identity = (link.peer.name, link.peer.incarnation)
        client = self._clients.get(identity)
        if client is not None and client.identity.life != link.life:
            # Its numbers are another process's, and so are the answers.
            self.ended(identity)
            self._host.once.ended(client.identity)
            client = None
        if client is None:
            client = self._clients[identity] = _Client(Client(*identity, link.life))
        if link not in client.links:
            client.links.add(link)
            client.links_made += 1
        return client

    async def _give_up_orphans(self, identity: tuple[str, int], client: _Client) -> None:
        while True:
            seen = client.links_made
            await trio.sleep(ORPHAN_SECONDS)
            if client.links or client.links_made == seen:
                break
        client.orphaned = False
        if not client.links and self._clients.get(identity) is client:
            self.ended(identity)
