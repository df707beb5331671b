"""The peers of a node: one link to each incarnation it deals with, dialled, accepted, redialled and
kept warm.

Either side may dial, and often both do at once; `runtime.links.settlement` decides which connection
stands, and in either case both sides go on with the same session. A broken connection is redialled
with exponential back-off and full jitter (AWS's term) until the peer's incarnation is known to have
ended.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import trio

from actors.errors import (
    ExpelledError,
    HandshakeError,
    HandshakeTimeoutError,
    ProtocolError,
    WrongPeerError,
    WrongSecretError,
    WrongStoreError,
)
from actors.identifiers import NodeId
from actors.own_logger import own_logger
from actors.peers import VerifiedPeer
from runtime.environment import Environment, Process, process_start
from runtime.limited_log import LimitedLog
from runtime.links.client_names import quota_key
from runtime.links.dial_turns import DialTurns
from runtime.links.handshakes import (
    ClosedEarlyError,
    ProvenPeer,
    RefusedCertificateError,
    next_in_time,
    send_frame,
    shake_hands,
    verified_peer,
)
from runtime.links.keyring import Keyring
from runtime.links.link import Link, LinkCounters, Receiver
from runtime.links.loans import FEATURE, LendingPools
from runtime.links.settlement import (
    Offer,
    SettlementAnswer,
    SettlementAnswerKind,
    encode_answer,
    encode_offer,
    read_answer,
    read_offer,
)
from runtime.links.spinner import PollableConnection
from runtime.links.transports import Connection, Network, why_not_dialled
from runtime.statistics.call_statistics import reason_of
from runtime.statistics.counts import LabelledCount
from runtime.wire.frames import Frame, FrameReader, Kind, Limits, encode_frame
from runtime.wire.handshake import Acceptor, Dialer, Introduction, Peer

LEFT = "this node has left"
"""Why the links of a node end that leaves."""

WARNED_AFTER = 6
"""Failed dials after which a warning says that a node was never reached: perhaps others cannot dial
the addresses that it announces.
"""

WARNED_AFTER_BROKEN = 24
"""Failed dials, some seconds of them, after which the same warning is given if connections were
made but did not last. Fewer are normal while many nodes meet, or while the network is bad.
"""

WARNED_AFTER_SECONDS = 20.0
"""After so long it is given in any case: what is dialled may take a connection and say nothing."""

LINES_OF_PEER = 2
"""How many failed dials of one peer are logged in a minute. The same failure comes twice a second,
and those of one peer must not keep out those of another.
"""

MOST_STRANGERS = 1024
"""Sessions with clients and with nodes that are not known as members. Each may hold some megabytes
of records and answers.
"""

logger = own_logger("understudy.links")


@attrs.frozen
class PeerPolicy:
    """What the node decides about peers. `judge(peer)`: why a peer that has proven itself is
    refused, or None. `expelled(error)` is called when a peer that has proven the secret refuses
    this node for good; `cut_off(reason)`, again and again, while no node is connected and some have
    refused the certificate of this process for longer than a lease.
    """

    judge: Callable[[VerifiedPeer], HandshakeError | None] = lambda peer: None
    expelled: Callable[[ExpelledError], None] = lambda error: None
    cut_off: Callable[[str], None] = lambda reason: None


ADMIT_ALL: Final = PeerPolicy()


@attrs.frozen
class PeerMembership:
    """What the links ask of the members' view, and report to it. `is_member(peer)`: whether that
    incarnation is known to be a member; `is_outdated(peer)`: whether it is known to be none any
    more. The view reports the end of members, and of no others.

    `on_broken(link)` is called when a connection of a live link has broken; `on_departed(peer)`
    when the session of a peer that is no member has ended, and it has begun none for
    `Timings.departed`.
    """

    is_member: Callable[[Peer], bool] = lambda peer: True
    is_outdated: Callable[[Peer], bool] = lambda peer: False
    on_broken: Callable[[Link], None] = lambda link: None
    on_departed: Callable[[Peer], None] = lambda peer: None


ALL_MEMBERS: Final = PeerMembership()
"""Of a process that has no members' view: each peer is a member until its session ends."""


class Peers:
    """All links of one node, in `links`, which is empty at first and read by others as well.

    `membership`: see `PeerMembership`. `policy`: see `PeerPolicy`.
    """

    def __init__(
        self,
        introduction: Introduction,
        secret: bytes | Keyring,
        environment: Environment,
        network: Network,
        receiver: Receiver,
        nursery: trio.Nursery,
        links: dict[NodeId, Link],
        membership: PeerMembership = ALL_MEMBERS,
        limits: Limits | None = None,
        policy: PeerPolicy = ADMIT_ALL,
    ) -> None:
        self.introduction = introduction
        self.links = links
        self._keyring = Keyring.of(secret)
        self._environment = environment
        self._timings = environment.timings
        self.network = network
        self.receiver = receiver
        self._nursery = nursery
        self._membership = membership
        self.lending_pools = LendingPools(environment)
        """Of the memory that its links lend. A simulation sets others."""
        self._policy = policy
        self._departures: deque[tuple[float, Peer]] = deque()
        """Strangers whose sessions have ended, with the times from which they count as gone."""
        self._began: dict[NodeId, VerifiedPeer] = {}
        """Who began the sessions of the processes that are no nodes, until these have departed:
        what they have here outlasts their sessions.
        """
        self.limits = limits or Limits()
        self._log = LimitedLog(logger, environment.now)
        self._dial_log = LimitedLog(logger, environment.now, burst=LINES_OF_PEER)
        self._latest_link = 0
        """The number of the latest link: later ones have higher numbers."""
        self.ended_links = LinkCounters()
        """The counters of all links that have ended."""
        self.refused = LabelledCount()
        """Connections that were refused, by reason."""
        self._dialling: dict[Link, trio.CancelScope] = {}
        """The dials under way. An accepted connection of the same session cancels its dial."""
        self._turns = DialTurns(environment.now, environment.random)
        self._kept: set[Link] = set()
        """Links that have a task in `_redial`."""
        self._refusals: dict[Link, tuple[float, str]] = {}
        """Since when, and why, peers have refused the certificate of this process. Of links that
        are dialled.
        """
        self._closing = False
        self._leaving = False

    @property
    def identity(self) -> NodeId:
        """This side's name and incarnation."""
        return self.introduction.peer.identity

    def link(self, peer: Peer) -> Link:
        """The link to `peer`, dialled from now on if it is new. It may be used at once."""
        self._end_false(peer)
        link = self.passive_link(peer)
        link.wanted = True
        self._keep_connected(link)
        return link

    async def first_contact(self, address: str, seconds: float | None = None) -> Link:
        """Dial `address` and take any node that answers. `seconds`: until a connection must have
        come about; `Timings.dial` by default.

        Raises OSError (TimeoutError after `seconds`), ValueError, `HandshakeError`,
        `WrongStoreError` for a node of another store, and `ClosedEarlyError` or another
        ProtocolError.
        """
        count = len(self._keyring.secrets())
        for turn in range(count):
            try:
                return await self._first_contact(address, seconds, turn)
            except WrongSecretError:
                # The node may not know the first of the secrets yet, or not any more.
                if turn == count - 1:
                    raise
        raise AssertionError("a keyring has at least one secret")

    async def _first_contact(self, address: str, seconds: float | None, turn: int) -> Link:
        connection = await self._connected(address, seconds)
        try:
            dialer = self._dialer(connection, None, turn)
            settled = await self._shake_hands(connection, dialer)
            self._check_store(settled.peer)
            self.check_session(settled.peer, settled.verified)
            peer = attrs.evolve(
                settled.peer, addresses=tuple(dict.fromkeys((*settled.peer.addresses, address)))
            )
            link = self.passive_link(peer)
            # Another process had this name and incarnation: `_is_same` has ended its link, and the
            # new process gets a new one.
            if not self._is_same(link, peer):
                link = self.passive_link(peer)
                link.life = peer.life
        except BaseException:
            connection.close()
            raise
        link.wanted = True
        self._nursery.start_soon(self._carry_first, link, connection, settled)
        return link

    async def accept(self, connection: Connection) -> None:
        """Serve a connection that another process dialled: nothing it sends is acted upon before it
        has proven itself.
        """
        try:
            secret, *others = self._keyring.secrets()
            acceptor = Acceptor(
                self.introduction,
                secret,
                self._environment.token(32),
                connection.channel,
                others,
                lambda peer: self._judge(peer, verified_peer(peer, connection.channel)),
            )
            settled = await self._shake_hands(connection, acceptor)
            connection.channel.on_proven()
            self._check_store(settled.peer)
            await self._carry_accepted(settled, connection)
        except HandshakeTimeoutError as error:
            self.refused.add(reason_of(error))
            # A health check, a scan, a machine under load: not worth a warning.
            self._log.log(logging.INFO, "closed a silent connection: %s", error)
        except WrongStoreError as error:
            self.refused.add(reason_of(error))
            # It learns the same from its own dial, and leaves.
            self._log.log(logging.INFO, "refused a connection: %s", error)
        except HandshakeError as error:
            self.refused.add(reason_of(error))
            self._log.warning("refused a connection: %s", error)
        except ClosedEarlyError as error:
            logger.debug("a connection ended while it was being set up: %s", error)
        except ProtocolError as error:
            self.refused.add(reason_of(error))
            self._log.warning("closed a connection: %s", error)
        except (OSError, MemoryError, trio.ClosedResourceError) as error:
            logger.debug("a connection broke while it was being set up: %s", error)
        finally:
            connection.close()

    def _judge(self, peer: Peer, verified: VerifiedPeer) -> HandshakeError | None:
        """Why a peer that has proven itself is refused, None if it is not. In the handshake, so
        that the peer is sent the reason: afterwards it would wait for answers.
        """
        refused = self._policy.judge(verified) or self._refused_session(peer, verified)
        if refused is not None:
            return refused
        link = self.links.get(peer.identity)
        return (
            self._refused_for_room(peer, verified)
            if link is None or link.ended is not None
            else None
        )

    def on_peer_ended(self, name: str, incarnation: int, reason: str) -> None:
        """Note that an incarnation has ended: end its link, and the calls that wait on it."""
        link = self.links.pop(NodeId(name, incarnation), None)
        if link is not None:
            link.end(reason, peer_ended=True)

    def on_peer_left(self, node: NodeId) -> Link | None:
        """Note that this incarnation has left in order. Returns its link if a connection stands:
        what the peer has sent before its GOODBYE is read when none does.
        """
        link = self.links.get(node)
        if link is None:
            return None
        link.peer_left = True
        return link if link.connected else None

    def _end_false(self, peer: Peer) -> None:
        """End the session of a process that has taken the name and incarnation of a node without
        the role of one: calls to the node must not go there.
        """
        link = self.links.get(peer.identity)
        if link is not None and link.restricted:
            self.give_up(link, f"{link.verified} had the name and incarnation of a node")

    def check_session(self, peer: Peer, new: VerifiedPeer) -> None:
        """Raise `WrongPeerError` for `_refused_session`. The session of a process that has a node's
        place without being one ends.
        """
        refused = self._refused_session(peer, new)
        if refused is not None:
            raise refused
        link = self.links.get(peer.identity)
        known = link.verified if link is not None else None
        if known is not None and (known.role, known.name) != (new.role, new.name):
            # A session keeps its role.
            self._end_false(peer)

    def _refused_session(self, peer: Peer, new: VerifiedPeer) -> WrongPeerError | None:
        """Why `peer`, proven to be `new`, is refused: it comes as a process whose session another
        identity has begun. Its name, incarnation and life are claims of the peer, and it may know
        those of others.
        """
        link = self.links.get(peer.identity)
        if link is not None and link.ended is None:
            known = link.verified
        else:
            # The session is over. The process has references and records of calls here until it
            # has departed.
            known = self._began.get(peer.identity)
        if known is None or (known.role, known.name) == (new.role, new.name):
            return None
        if new.role == "node" and (peer.role == "node" or "secret" in (known.proof, new.proof)):
            # A node's place, or the same process over a Unix socket, where no certificate is shown.
            # In any other case the certificate is that of another node, which comes as a client.
            return None
        return WrongPeerError(
            f"{new} asked for the session that {known} has on this node: each process has a name "
            "and an incarnation of its own; connect again"
        )

    def end_refused(self) -> None:
        """End the sessions of all peers that the policy refuses by now."""
        for link in tuple(self.links.values()):
            refused = self._policy.judge(link.verified) if link.verified is not None else None
            if refused is not None:
                self.give_up(link, str(refused))

    def prove_again(self) -> None:
        """Drop all connections. Nothing is lost by it: the sessions go on with those peers that
        prove a secret which is accepted now.

        The connections to own processes stay: this node has started them, and one that is busy or
        stopped could not dial again in time.
        """
        for link in tuple(self.links.values()):
            if not link.watched:
                link.drop_connection()

    def _check_still_admitted(self, settled: ProvenPeer) -> None:
        """Refuse a peer that was expelled, or whose secret was removed, since its handshake: it may
        draw that out. Without an await before the session opens. Raises HandshakeError.
        """
        refused = self._policy.judge(settled.verified)
        if refused is not None:
            raise refused
        if settled.secret not in self._keyring.secrets():
            raise WrongSecretError(
                f"{settled.peer.name} has proven a secret that is not accepted any more"
            )

    def give_up(self, link: Link, reason: str) -> None:
        """End a link whose peer may live: the session is over, its calls do not report a death, and
        a later link may begin.
        """
        self.forget(link)
        link.end(reason)

    def forget(self, link: Link) -> None:
        """Take a link that has ended, or is to end, out of the table."""
        # A later link of the same peer may have its place already.
        if self.links.get(link.peer.identity) is link:
            del self.links[link.peer.identity]

    def is_unreachable(self, peer: NodeId) -> bool:
        """True if the peer could not be reached for longer than a redial takes. It may be alive:
        only the store decides that a node is dead.
        """
        return self.unreachable_since(peer) is not None

    def unreachable_since(self, peer: NodeId) -> float | None:
        """Since when a peer that `is_unreachable` could not be reached; None for any other.

        A peer that was never connected counts from its first dial that no address has answered. A
        dial with neither a connection nor a refusal may take as long as a connection may be silent.
        """
        link = self.links.get(peer)
        if link is None or link.connected:
            return None
        now = self._environment.now()
        since = link.failed_at if link.lost_at is None else link.lost_at
        if since is not None and now - since > self._timings.unreachable_after:
            return since
        # Also while handshakes fail: connections that do not last are normal where many nodes meet.
        began = link.dialled_at
        return began if began is not None and now - began > self._timings.silence else None

    def unsent_since(self, peer: NodeId) -> float:
        """What was posted to the peer after this time, and is not answered, was handed to no
        connection: none has stood since. Infinite while one stands, or if there is no link.
        """
        link = self.links.get(peer)
        if link is None or link.connected:
            return math.inf
        return -math.inf if link.lost_at is None else link.lost_at

    async def beat(self) -> None:
        """Acknowledge, ping and watch for silence, for ever. A late turn of our own loop is not
        held against the peers.
        """
        beat = self._timings.beat
        due = self._environment.now()
        while True:
            due = self._next_look(due)
            await trio.sleep_until(due)
            now = self._environment.now()
            late = now - due > beat
            due = max(due, now)
            self._look(now, late=late)

    def _look(self, now: float, *, late: bool) -> None:
        """Acknowledge, ping and watch for silence. Apart from the loop, which must keep no link
        between two looks.
        """
        beat, silence = self._timings.beat, self._timings.silence
        answering_beat = self._timings.answering_beat
        while self._departures and self._departures[0][0] <= now:
            peer = self._departures.popleft()[1]
            # It may have begun another session meanwhile: then it has not departed.
            if peer.identity not in self.links:
                self._began.pop(peer.identity, None)
                self._membership.on_departed(peer)
        # A copy: ending a link removes it from the table.
        for link in tuple(self.links.values()):
            link.on_beat()
            if not link.connected:
                continue
            if lapsed := link.lapsed():
                # The session goes on over another connection, if the peer is accepted again.
                self._log.log(logging.INFO, "connecting to %s again: %s", link.peer.name, lapsed)
                link.drop_connection()
                continue
            if late:
                # This process was stopped, or its loop blocked: what peers sent waits unread.
                link.last_heard = max(link.last_heard, now - beat)
            if now - link.last_heard > silence and not link.watched:
                link.drop_connection()
            # One end asks first: its ping and the answer show both ends that the other lives.
            elif now - link.last_heard > (beat if link.settlement.leads else answering_beat):
                link.send_control(Kind.PING, at_once=True)
        if reason := self.refusal(self._timings.lease):
            self._policy.cut_off(reason)

    def refusal(self, seconds: float = 0.0) -> str:
        """Why this process is cut off: no node is connected, and one has refused its certificate
        for `seconds`. "" if it is not cut off.
        """
        for link in tuple(self._refusals):
            if link.connected or link.ended is not None:
                del self._refusals[link]
        if not self._refusals:
            return ""
        nodes = [link for link in self.links.values() if link.peer.role == "node"]
        # One that has not been dialled in vain yet may accept it.
        if any(link.connected or not link.dial_errors for link in nodes):
            return ""
        since, reason = min(self._refusals.values())
        return reason if self._environment.now() - since >= seconds else ""

    def _next_look(self, now: float) -> float:
        """Return the time at which the first link may have been silent long enough to need a beat;
        at least `Timings.link_look` from now.
        """
        silent = min(
            (link.last_heard for link in self.links.values() if link.connected), default=now
        )
        return max(silent + self._timings.beat, now) + self._timings.link_look

    def on_leaving(self) -> None:
        """Note that this node begins to leave: others may be gone by now that leave as well, and
        addresses that lead to none are not to be looked into.
        """
        self._leaving = True

    async def close(self, seconds: float) -> None:
        """Send all that was posted, then a GOODBYE to each peer, and wait until it was read: within
        `seconds`.
        """
        self._closing = True
        with trio.CancelScope(shield=True), trio.move_on_after(seconds):
            # GOODBYE proves to the peers that this incarnation has ended. Without it they would
            # wait for the lease.
            standing = [link for link in self.links.values() if link.connected]
            for link in standing:
                link.say_goodbye()
            for link in standing:
                await link.flushed()
            for link in standing:
                # A peer that has read it closes the connection. Closed here while requests of the
                # peer arrive, it would be reset: a peer that writes at that moment would redial,
                # and not read the answers and the GOODBYE that it has.
                await link.disconnected()
        for link in tuple(self.links.values()):
            link.end(LEFT)
        self.links.clear()

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. Looks at every link: for tests and
        simulations.
        """
        for identity, link in self.links.items():
            assert identity == link.peer.identity
            assert 0 < link.settlement.number <= self._latest_link
            link.check_invariants()
        numbers = [link.settlement.number for link in self.links.values()]
        assert len(set(numbers)) == len(numbers), "a later link has a higher number"
        times = [time for time, _ in self._departures]
        assert times == sorted(times), "only the first is looked at"

    def passive_link(self, peer: Peer) -> Link:
        """The link to `peer`, made if there is none, but not dialled: it waits for a connection."""
        key = peer.identity
        link = self.links.get(key)
        if link is None or link.ended is not None:
            self._latest_link += 1
            link = self.links[key] = Link(
                peer,
                self.receiver,
                self._latest_link,
                leads=self.identity < key,
                ended_links=self.ended_links,
                log=self._log,
            )
            link.last_heard = self._environment.now()
        return link

    def _on_proven(
        self, link: Link, settled: ProvenPeer, connection: Connection, *, dialled: bool
    ) -> None:
        """The peer has proven who it is: before each connection carries the session."""
        link.on_verified(settled.verified)
        if settled.peer.role == "client":
            self._began[settled.peer.identity] = settled.verified
        # By what the kernel says, not the peer: a process elsewhere must not have the memory of one
        # here mapped by naming it, nor be taken for dead with another one.
        pid = connection.peer_process() if isinstance(connection, PollableConnection) else None
        if pid is None:
            return
        link.process = Process(self._environment.process().host, pid, process_start(pid))
        if FEATURE in self.introduction.peer.features & settled.peer.features:
            link.share_memory(self.lending_pools, pid, dialled=dialled)

    def _keep_connected(self, link: Link) -> None:
        if link not in self._kept and not self._closing:
            self._kept.add(link)
            self._nursery.start_soon(self._redial, link, name=f"link to {link.peer.name}")

    async def _redial(self, link: Link) -> None:
        """Dial until the link ends; wait while a connection stands."""
        failures, since, logged = 0, self._environment.now(), False
        first, most = self._timings.redial_first, self._timings.redial_most
        try:
            while link.ended is None:
                if link.connected:
                    await link.disconnected()
                    failures, since = 0, self._environment.now()
                    continue
                if self._is_stranger(link):
                    await self._expire(link)
                    continue
                if await self._dial(link, self._addresses(link.peer)):
                    failures, since = 0, self._environment.now()
                else:
                    failures += 1
                    logged = logged or self._warn_of_unreached(link, failures, since)
                # The exponent is bounded as well, because 2.0 ** 1024 overflows. Full jitter: after
                # a partition many nodes redial at the same moment.
                longest = min(most, first * 2.0 ** min(failures, 10))
                with trio.move_on_after(longest * self._environment.random()):
                    await link.connected_again()
            if self._is_stranger(link):
                gone_at = self._environment.now() + self._timings.departed
                self._departures.append((gone_at, link.peer))
        finally:
            self._kept.discard(link)

    def _warn_of_unreached(self, link: Link, failures: int, since: float) -> bool:
        """Log a warning, once, that a node was never reached in `failures` dials `since` then,
        where its addresses may be wrong; True if it was logged.
        """
        # Of links that were connected before, the end of the node is reported by the members' view.
        if (
            not link.dial_errors
            or link.counters.connections
            or (
                link.unanswered < WARNED_AFTER
                and failures < WARNED_AFTER_BROKEN
                and self._environment.now() - since < WARNED_AFTER_SECONDS
            )
        ):
            return False
        logger.log(
            logging.INFO if self._leaving else logging.WARNING,
            "node %s has not been reached yet, and calls to it wait: %s",
            link.peer.name,
            link.undialled(),
        )
        return True

    def _is_stranger(self, link: Link) -> bool:
        """True for a peer that this node has not asked for and whose end the members' view will not
        report: a client, or what calls itself a node.
        """
        return (
            link.peer.role == "client"
            or link.fenced
            or not (link.wanted or self._membership.is_member(link.peer))
        )

    async def _expire(self, link: Link) -> None:
        """Expire the link of a client, or of a node that is not known as a member: it is not
        dialled, and does not stay for ever without a connection.
        """
        patience = self._timings.client_patience
        with trio.move_on_after(patience):
            await link.connected_again()
            return
        # The members' view may have learned of a node that has just joined.
        if self._is_stranger(link):
            self.give_up(
                link,
                f"{link.peer.name} is not a member of the cluster, and did not come back within "
                f"{patience:g} s",
            )

    def _competing(self, peer: Peer, verified: VerifiedPeer) -> tuple[list[Link], str]:
        """The sessions of which one has to end before `peer` may have a new one, and how the limit
        that they have reached is called; none if there is room. So the number of strangers is
        bounded.

        The sessions of one client, by its certificate, may be as many as there is room for more: by
        themselves half of all, so that one client keeps no other out.
        """
        # While half of the places are free, no client has more than are left.
        if 2 * len(self.links) < MOST_STRANGERS or (
            peer.role == "node" and self._membership.is_member(peer)
        ):
            return [], ""
        strangers = [link for link in self.links.values() if self._is_stranger(link)]
        free = MOST_STRANGERS - len(strangers)
        if free <= 0:
            return strangers, f"{len(strangers)} clients already, the limit"
        own = [link for link in strangers if _is_same_client(link.verified, verified)]
        if len(own) < free:
            return [], ""
        share = f"its share of {MOST_STRANGERS} for all clients"
        return own, f"{len(own)} sessions of {verified} already, {share}"

    def _refused_for_room(self, peer: Peer, verified: VerifiedPeer) -> HandshakeError | None:
        """Why `peer` cannot have a new session; None if it can. Only sessions without a connection
        are ended for it: the outcomes of a session's calls are lost with it.
        """
        competing, limit = self._competing(peer, verified)
        if not competing or not all(link.connected for link in competing):
            return None
        return HandshakeError(f"{peer.name} is refused: this node serves {limit}")

    def _make_room_for(self, peer: Peer, verified: VerifiedPeer) -> None:
        """End the session that has been without a connection for the longest time, if `peer` needs
        its room. Raises HandshakeError if there is none.
        """
        if (refused := self._refused_for_room(peer, verified)) is not None:
            raise refused
        competing, _ = self._competing(peer, verified)
        if competing:
            lost = [link for link in competing if not link.connected]
            longest = min(lost, key=lambda link: link.lost_at or 0.0)
            self.give_up(
                longest,
                f"{longest.peer.name} was without a connection for the longest time when another "
                "client needed its room",
            )

    async def _dial(self, link: Link, addresses: Sequence[str]) -> bool:
        """Try the addresses in turn; True if a connection stood."""
        link.unanswered += 1
        for address in addresses:
            if await self._dialled(link, address):
                return True
        # Without an error the dial was cancelled: a connection that the peer has made is near.
        if link.unanswered and link.dial_errors:
            link.on_unanswered()
        return False

    async def _dialled(self, link: Link, address: str) -> bool:
        """Dial one address and carry the link over it until it breaks; False if it did not come to
        that.
        """
        connection: Connection | None = None
        opened: tuple[FrameReader, list[Frame]] | None = None
        scope = trio.CancelScope()
        try:
            with scope:
                # By this scope an accepted connection of the same session cancels the dial, see
                # `_carry_accepted`.
                self._dialling[link] = scope
                await self._turns.wait()
                with self._turns.begin() as turn:
                    link.on_dialled()
                    connection = await self._connected(address)
                    self._turns.on_connected(turn)
                    link.unanswered = 0
                    dialer = self._dialer(connection, link.peer.identity, link.secret_turn)
                    settled = await self._shake_hands(connection, dialer)
                    # During the handshake the peer's own dial may have been accepted.
                    if self._is_same(link, settled.peer) and not link.connected:
                        opened = await self._offer(link, connection, settled)
            if connection is not None and opened is not None:
                # From here on the connection is the session's, and no accepted connection may
                # cancel it.
                self._dial_is_over(link, scope)
                await self._run(link, connection, *opened)
                return True
        except (HandshakeError, ProtocolError) as error:
            if isinstance(error, WrongSecretError):
                # While the secret is being changed: the peer may know another one of ours.
                link.secret_turn += 1
            self._log_failed_dial(link, error)
            if isinstance(error, ExpelledError) and error.proven:
                # For good: what waits for this peer would wait until the block of the node ends.
                self.give_up(link, LEFT)
            if isinstance(error, RefusedCertificateError):
                self._refusals.setdefault(link, (self._environment.now(), str(error)))
            if isinstance(error, ClosedEarlyError):
                # Where there is a better reason from before, that stays.
                link.dial_errors.setdefault(address, str(error))
            else:
                link.dial_errors[address] = str(error)
        except (OSError, ValueError, MemoryError, trio.ClosedResourceError) as error:
            link.dial_errors[address] = why_not_dialled(error)
        finally:
            self._dial_is_over(link, scope)
            if connection is not None:
                connection.close()
        # If the peer dialled us at the same time, its connection may be the one that stands.
        return link.connected

    def _dial_is_over(self, link: Link, scope: trio.CancelScope) -> None:
        """Forget the dial in `scope`: no incoming connection needs to cancel it any more. A later
        dial of the same link stays known.
        """
        if self._dialling.get(link) is scope:
            del self._dialling[link]

    def _log_failed_dial(self, link: Link, error: HandshakeError | ProtocolError) -> None:
        """Log what went wrong with a dial. What passes by itself is no warning: the dial is
        repeated in any case.
        """
        passing = isinstance(error, (WrongPeerError, HandshakeTimeoutError, ClosedEarlyError))
        self._dial_log.log(
            logging.INFO if passing else logging.WARNING,
            "could not settle with %s: %s",
            link.peer.name,
            error,
            about=link.peer.name,
        )

    async def _connected(self, address: str, seconds: float | None = None) -> Connection:
        if seconds is None:
            seconds = self._timings.dial
        with trio.move_on_after(seconds):
            return await self.network.connect(address)
        raise TimeoutError(f"no connection within {seconds:g} s")

    def _dialer(self, connection: Connection, expected: NodeId | None, turn: int) -> Dialer:
        """`turn`: counts which of the secrets proves this side."""
        secrets = self._keyring.secrets()
        return Dialer(
            self.introduction,
            secrets[turn % len(secrets)],
            self._environment.token(32),
            expected,
            connection.channel,
        )

    def _addresses(self, peer: Peer) -> list[str]:
        """Return the addresses to dial, in order: on the same host Unix sockets come first."""
        same_host = bool(peer.host) and peer.host == self.introduction.peer.host
        usable = [
            address for address in peer.addresses if same_host or not address.startswith("unix:")
        ]
        return sorted(usable, key=lambda address: not address.startswith("unix:"))

    async def _shake_hands(self, connection: Connection, side: Dialer | Acceptor) -> ProvenPeer:
        seconds = self._timings.handshake
        proven = await shake_hands(connection, side, seconds, self._policy.expelled)
        proven.reader.limits = self.limits
        return proven

    async def _offer(
        self, link: Link, connection: Connection, settled: ProvenPeer
    ) -> tuple[FrameReader, list[Frame]] | None:
        """Offer to go on with the session over a connection that we dialled; opens it and returns
        the frames that came along.

        None if it does not stand: the peer prefers another connection, or has given up its end of
        the session.
        """
        assert not link.connected, "what has been received must not change while it is on offer"
        offer = link.settlement.dial(link.session.acknowledgement())
        try:
            await send_frame(connection, Kind.RESUME, encode_offer(offer))
            frame, *early = await next_in_time(
                connection, settled.reader, self._timings.handshake, "answer to the resume offer"
            )
            answer = read_answer(frame)
            # It was given up where a dial of the peer's was accepted in the very pass of the
            # scheduler in which the answer arrived.
            if not link.settlement.is_open(offer) or link.ended is not None:
                return None
            self._check_still_admitted(settled)
            # No await from here to the opening.
            if link.settlement.on_answered(offer, answer):
                self._on_proven(link, settled, connection, dialled=True)
                link.open(connection, answer.received)
                return settled.reader, early
        finally:
            link.settlement.give_up(offer)
        if answer.kind == SettlementAnswerKind.FORGOTTEN:
            self.give_up(link, f"{link.peer.name} has given up the session")
        return None

    def _is_same(self, link: Link, peer: Peer) -> bool:
        """True if the process at the other end is the one of before, or the first. If not, that one
        is no more: the link ends.
        """
        if link.life not in ("", peer.life) or self._is_foreign(peer):
            self.on_peer_ended(
                link.peer.name,
                link.peer.incarnation,
                "another process has its name and incarnation now: its store was begun anew",
            )
            return False
        link.life = peer.life
        return True

    def _is_foreign(self, peer: Peer) -> bool:
        """True for a node of another store. Its name and incarnation mean nothing here: each new
        store counts incarnations from the beginning, so a member of ours may have both. No link to
        such a node is kept.
        """
        return peer.store != self.introduction.peer.store and "" not in (
            peer.store,
            self.introduction.peer.store,
        )

    def _check_store(self, peer: Peer) -> None:
        """Raise `WrongStoreError` for a node of another store. Call it only after the handshake: a
        peer that has not proven itself may claim anything.
        """
        if self._is_foreign(peer):
            raise WrongStoreError(
                f"node {peer.name!r} (incarnation {peer.incarnation}) and node "
                f"{self.introduction.peer.name!r} know different stores: one "
                "of the two was lost and created again, and the nodes that know the lost one leave "
                "the cluster"
            )

    async def _carry_first(self, link: Link, connection: Connection, settled: ProvenPeer) -> None:
        """Carry a link over the connection of a first contact; from then on it is redialled like
        any other.
        """
        opened: tuple[FrameReader, list[Frame]] | None = None
        scope = trio.CancelScope()
        try:
            with scope:
                other = self._dialling.get(link)
                if other is not None:
                    # It got less far than this one.
                    other.cancel()
                self._dialling[link] = scope
                if not link.connected:
                    opened = await self._offer(link, connection, settled)
            if opened is not None:
                self._dial_is_over(link, scope)
                await self._run(link, connection, *opened)
        except (HandshakeError, ProtocolError) as error:
            self._log_failed_dial(link, error)
        except (OSError, MemoryError, trio.ClosedResourceError) as error:
            logger.debug(
                "the connection to %s broke while it was being set up: %s", link.peer.name, error
            )
        finally:
            self._dial_is_over(link, scope)
            connection.close()
            if link.ended is None:
                self._keep_connected(link)

    async def _carry_accepted(self, settled: ProvenPeer, connection: Connection) -> None:
        frame, *early = await next_in_time(
            connection, settled.reader, self._timings.handshake, "resume offer"
        )
        offer = read_offer(frame)
        link = await self._free_link(settled, offer)
        if isinstance(link, SettlementAnswerKind):
            await send_frame(connection, Kind.RESUME, encode_answer(SettlementAnswer(link)))
            return
        self._check_still_admitted(settled)
        # No await from the judgement to the opening: two connections never carry one session.
        answer = link.settlement.accept(offer, link.session.acknowledgement())
        dialling = self._dialling.get(link)
        if dialling is not None:
            dialling.cancel()
        link.life = settled.peer.life
        # Not of links that we dial: a node that serves our store, or did, is asked over one in any
        # case.
        link.fenced = self._membership.is_outdated(settled.peer)
        self._on_proven(link, settled, connection, dialled=False)
        try:
            link.open(connection, offer.received, encode_frame(Kind.RESUME, encode_answer(answer)))
        except ProtocolError as error:
            # It says that it has what was never sent: whatever is on this session is not what the
            # peer takes it for. Nothing else would end the session.
            self.give_up(link, f"{link.peer.name} broke the protocol: {error}")
            raise
        self._keep_connected(link)
        await self._run(link, connection, settled.reader, early)

    async def _free_link(self, settled: ProvenPeer, offer: Offer) -> Link | SettlementAnswerKind:
        """The link that an offer is for, with no connection any more; or why the offer is refused.
        Raises `WrongPeerError`.
        """
        peer = settled.peer
        while True:  # noqa: ASYNC913  each turn ends a link or a connection
            # Looked up again in each turn: the awaits below let other connections of this peer
            # proceed.
            self.check_session(settled.peer, settled.verified)
            link = self.links.get(peer.identity)
            if self._closing:
                return SettlementAnswerKind.STALE
            if link is None or link.ended is not None:
                if offer.peer_link:
                    # Made here only for offers that can be accepted: this side would not dial it,
                    # and what is posted on it would wait for ever.
                    return SettlementAnswerKind.FORGOTTEN
                self._make_room_for(peer, settled.verified)
                link = self.passive_link(peer)
                link.life = peer.life
            elif not self._is_same(link, peer):
                continue
            elif link.settlement.is_superseded(offer):
                self.give_up(link, f"{peer.name} has given up the session, and began another")
                continue
            kind = link.settlement.judge(offer)
            if kind != SettlementAnswerKind.ACCEPTED:
                return kind
            if not link.connected:
                return link
            # What still arrives on it counts: the answer says what has been received by the time
            # that it is down.
            link.drop_connection()
            await link.disconnected()

    async def _run(
        self, link: Link, connection: Connection, reader: FrameReader, early: list[Frame]
    ) -> None:
        try:
            await link.run(connection, reader, early)
        except ProtocolError as error:
            self._log.log(
                logging.ERROR,
                "%s broke the protocol: %s; the link is given up",
                link.peer.name,
                error,
            )
            self.give_up(link, f"{link.peer.name} broke the protocol: {error}")
        if link.ended is not None:
            self.forget(link)
        elif not self._closing:
            self._membership.on_broken(link)


def _is_same_client(one: VerifiedPeer | None, other: VerifiedPeer) -> bool:
    """True for two sessions with certificates of one client. Nodes may do everything anyway."""
    return (
        one is not None
        and one.proof == other.proof == "certificate"
        and "node" not in (one.role, other.role)
        and quota_key(one) == quota_key(other)
    )
