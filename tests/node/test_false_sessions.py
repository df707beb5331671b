"""Processes with certificates of clients that claim to be others: nodes, or other clients. And what
a client may hand to methods and services that pass it on.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import attrs
import pytest
import trio

from actors import Actor, ChildSpec, DynamicSupervisor, method
from actors.errors import (
    ActorNotFoundError,
    BadArgumentsError,
    NotAllowedError,
    WrongCertificateError,
    WrongPeerError,
)
from actors.identifiers import NodeId
from actors.method import Address, BoundMethod, MethodDefinition
from actors.options import NO_CALL_OPTIONS
from actors.peers import VerifiedPeer
from runtime import open_node
from runtime.calls.rights import PLAIN_SERVICE, SERVICE_RIGHTS
from runtime.environment import SystemEnvironment
from runtime.links.encryption import system_network
from runtime.links.link import Link
from runtime.links.peers import Peers
from runtime.membership.cluster_client import ClusterAccess, ClusterClient, open_client
from runtime.membership.cluster_secret import find_security
from runtime.node import Node, internals_of
from runtime.plain_calls.service import PlainCallService, PlainTarget
from runtime.references.memory.values import SHARED_SIZE
from runtime.references.table import state_of
from runtime.references.values import SharedValue
from runtime.wire.frames import Kind
from runtime.wire.handshake import (
    Acceptor,
    Certified,
    Channel,
    Dialer,
    Introduction,
    Peer,
    certified_uri,
    check_certified,
)
from tests.authority import Authority
from tests.node.test_mutual_tls import pair

CLIENT = Certified("understudy", "client", "bob", ("understudy://understudy/client/bob",))
NODE = Certified("understudy", "node", "w1", ("understudy://understudy/node/w1",))


class Ledger(Actor):
    def __init__(self) -> None:
        self.entries: list[str] = []

    @method(allow=("operator",))
    async def erase(self, what: object = None) -> str:
        self.entries.append("erased")
        return "erased"

    @method
    async def note(self, what: object) -> int:
        self.entries.append("noted")
        return len(self.entries)


@asynccontextmanager
async def met(authority: Authority, role: Any) -> AsyncIterator[tuple[Node, ClusterClient]]:
    """A node with a ledger, and a client of it with a certificate of this role."""
    environment = SystemEnvironment()
    secret, tls = find_security(
        None,
        authority.tls(certified_uri("understudy", role, "bob")),
        environment.token,
        needs_own=False,
    )
    uri = certified_uri("understudy", "node", "here")
    async with open_node("here", tls=authority.tls(uri)) as node:
        await node.options(name="ledger").spawn(Ledger)
        async with open_client(
            node.address,
            ClusterAccess("understudy", secret, environment, system_network(environment, tls)),
        ) as client:
            yield node, client


def raw(client: ClusterClient, node: Node, name: str, called: str) -> Any:
    """A method as a changed program calls it: nothing is checked at the caller."""

    async def anything(self: object, *args: object, **kwargs: object) -> object:
        return None

    return BoundMethod[..., Any](
        client.endpoint.caller,
        Address(name, node.name, node.incarnation),
        MethodDefinition(name=called, function=anything),
        NO_CALL_OPTIONS,
    )


@pytest.mark.parametrize("role", ["operator", "client", "observer"])
async def test_a_role_has_the_rights_of_the_table_and_no_others(
    authority: Authority, role: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNDERSTUDY_SECRET", raising=False)
    admitted: set[tuple[str, str]] = set()
    every: set[tuple[str, str]] = set()
    async with met(authority, role) as (node, client):
        for name, cell in internals_of(node).cells.items():
            if not cell.system:
                continue
            for called, definition in cell.methods.items():
                place = name.partition("-")[0], called
                every.add(place)
                if definition.stream:
                    continue
                try:
                    with trio.move_on_after(0.3):
                        await raw(client, node, name, called)()
                except NotAllowedError:
                    continue
                except Exception:
                    # Admitted: it goes on to refuse the call, which has no arguments.
                    admitted.add(place)
                else:
                    admitted.add(place)
    table = {
        (service, called)
        for service, methods in SERVICE_RIGHTS.items()
        for called, roles in methods.items()
        if role in roles
    }
    # Starts are judged by their classes as well.
    assert admitted | {("@plain", "stream")} | {("@node", "spawn"), ("@node", "spawn_many")} == (
        table | {("@plain", "stream")} | {("@node", "spawn"), ("@node", "spawn_many")}
    )
    # Methods of values can write files, and these change what other nodes hold.
    for called in ("call_value", "call_and_keep", "adopt", "moved", "conclude"):
        assert ("@references", called) not in admitted
    assert not any(place[0] in ("@functions", "@isolation") for place in admitted)
    # Ends are told in the name of nodes, and links end actors.
    watching = {place[1] for place in admitted if place[0] == "@watching"}
    assert watching == {"ask", "take_back"}
    stale = {
        (service, called) for service, methods in SERVICE_RIGHTS.items() for called in methods
    } - every
    assert not stale, "the table names methods that there are not"


async def test_what_passes_calls_on_passes_no_rights_on(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNDERSTUDY_SECRET", raising=False)
    async with met(authority, "client") as (node, client):
        ledger: Any = internals_of(node).cells["ledger"].instance
        # By a batch of items, by the service of the gateway, one way, and for a reference.
        with pytest.raises(NotAllowedError, match="may not call 'erase'"):
            await raw(client, node, "ledger", "@items")("erase", "b", [[]])
        plain = client.endpoint.system_handle(
            PlainCallService, PLAIN_SERVICE, node.name, node.incarnation
        )
        target = PlainTarget("ledger", 0, "erase", True)
        for answer in (
            await plain.call(target, b"", None),
            await plain.call_keyed(target, b"", None, "key", False),
        ):
            assert answer.error["type"] == "NotAllowedError"
        await raw(client, node, "ledger", "erase").send()
        reference = await raw(client, node, "ledger", "erase").remote()
        with pytest.raises(NotAllowedError):
            await reference.fetch()
        # In order behind them all.
        assert await raw(client, node, "ledger", "note")("end") == 1
        assert ledger.entries == ["noted"]


async def test_a_client_has_nothing_started_or_imported_through_what_it_hands_over(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNDERSTUDY_SECRET", raising=False)
    async with met(authority, "operator") as (node, client):
        await node.options(name="supervisor").spawn(DynamicSupervisor)
        spec = ChildSpec(id="x", actor="antigravity:Anything")
        for name, called, arguments in (
            ("supervisor", "start_child", (spec,)),
            ("ledger", "note", ([{"deep": (spec,)}],)),
            ("@node", "spawn", ("antigravity:Anything", (), {}, None)),
            # No text, and not to be looked up: refused as well, and not the end of the link.
            ("@node", "spawn", (["antigravity:Anything"], (), {}, None)),
            ("@node", "spawn_many", ({"a": "antigravity:Anything"}, [()], [], None)),
        ):
            with pytest.raises(NotAllowedError, match="antigravity:Anything"):
                await raw(client, node, name, called)(*arguments)
        assert "antigravity" not in sys.modules
        with pytest.raises(NotAllowedError):
            await raw(client, node, "@functions", "run")("os:getcwd", (), {}, None)
        with pytest.raises(ActorNotFoundError):
            await raw(client, node, "FunctionWorker-1@here.1", "call")("os:getcwd", (), {})


def test_a_client_cannot_name_its_process_as_a_node() -> None:
    check_certified(CLIENT, "understudy", "client", "client-1")
    for name in ("client-1", "process-0123456789ab"):
        check_certified(NODE, "understudy", "client", name)
    with pytest.raises(WrongCertificateError, match="'client-' in front"):
        check_certified(CLIENT, "understudy", "client", "w1")
    for name in ("client-1", "process-0123456789ab"):
        with pytest.raises(ValueError, match="only names of clients"):
            trio.run(_opened, name)


async def _opened(name: str) -> None:
    async with open_node(name):
        pytest.fail("opened")


@pytest.mark.parametrize("certificate", ["w2", "*"])
def test_a_node_does_not_come_as_a_client_under_the_name_of_another(certificate: str) -> None:
    certified = attrs.evolve(NODE, name=certificate)
    for name in ("w1", "w2", "process-1", "process-0123456789ab\n"):
        with pytest.raises(WrongCertificateError, match="a name that a node may have"):
            check_certified(certified, "understudy", "client", name)


@pytest.mark.parametrize("life", ["heard of", "made up"])
async def test_a_node_that_comes_as_a_client_ends_no_session_of_another(
    authority: Authority, life: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNDERSTUDY_SECRET", raising=False)
    environment = SystemEnvironment()
    secret, tls = find_security(
        None,
        authority.tls(certified_uri("understudy", "node", "evil")),
        environment.token,
        needs_own=False,
    )
    # It asserts at the end that the session between its nodes goes on over the same connection.
    async with pair(authority) as here, trio.open_nursery() as nursery:
        (link,) = (one for one in internals_of(here).links.values() if one.peer.name == "there")
        known = link.peer
        false = attrs.evolve(
            known, role="client", addresses=(), life=known.life if life == "heard of" else "other"
        )
        network = system_network(environment, tls)
        peers = Peers(
            Introduction("understudy", false), secret, environment, network, Sink(), nursery, {}
        )
        with pytest.raises(WrongCertificateError, match="a name that a node may have"):
            await peers.first_contact(here.address)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("certified", [CLIENT, NODE])
def test_who_is_dialled_must_have_the_certificate_of_a_node(certified: Certified) -> None:
    def introduced(name: str, role: Any) -> Introduction:
        return Introduction("understudy", Peer(name, 1, role))

    # It answers for w1, whose address it has, and says that it is a client.
    acceptor = Acceptor(introduced("w1", "client"), b"secret", b"a" * 32)
    dialer = Dialer(
        introduced("here", "node"), b"secret", b"b" * 32, NodeId("w1", 1), Channel(b"", certified)
    )
    challenge = acceptor.receive(*dialer.start())
    assert challenge is not None
    if certified is NODE:
        answer = dialer.receive(*challenge)
        assert answer is not None
        assert answer[0] == Kind.PROOF
    else:
        with pytest.raises(WrongCertificateError, match="comes as a node"):
            dialer.receive(*challenge)


@attrs.define
class Sink:
    """Takes frames, of which there are none."""

    ended: list[str] = attrs.field(factory=list)
    handlers: Any = attrs.field(factory=dict)

    def link_ended(self, link: Link, reason: str) -> None:
        self.ended.append(reason)


async def test_a_session_goes_on_with_its_own_peer_only() -> None:
    sink = Sink()
    environment = SystemEnvironment()
    own = Introduction("understudy", Peer("here", 1, "node"))
    async with trio.open_nursery() as nursery:
        peers = Peers(own, b"secret", environment, cast("Any", None), sink, nursery, {})
        peer = Peer("client-1", 7, "client", life="heard of")

        def proven(role: Any, name: str) -> VerifiedPeer:
            return VerifiedPeer(role, name, "client-1", 7, "certificate")

        link = peers.passive_link(peer)
        link.on_verified(proven("client", "alice"))
        peers.check_session(peer, proven("client", "alice"))
        for role, name in (("client", "bob"), ("operator", "alice"), ("observer", "bob")):
            with pytest.raises(WrongPeerError, match="client 'alice'"):
                peers.check_session(peer, proven(role, name))
            assert link.ended is None
        # Nor has it a node that comes as a client, by the certificate of a node.
        with pytest.raises(WrongPeerError, match="client 'alice'"):
            peers.check_session(peer, proven("node", "w2"))
        # A node is not kept from its place by one that was there first.
        node = attrs.evolve(peer, role="node")
        peers.check_session(node, proven("node", "client-1"))
        assert link.ended is not None
        assert peer.identity not in peers.links


async def test_a_process_with_the_certificate_of_a_node_keeps_its_session() -> None:
    environment = SystemEnvironment()
    own = Introduction("understudy", Peer("here", 1, "node"))
    async with trio.open_nursery() as nursery:
        peers = Peers(own, b"secret", environment, cast("Any", None), Sink(), nursery, {})
        peer = Peer("client-1", 7, "client", life="heard of")
        shown = VerifiedPeer("node", "w1", "client-1", 7, "certificate")
        unshown = VerifiedPeer("node", "client-1", "client-1", 7, "secret")
        link = peers.passive_link(peer)
        link.on_verified(shown)
        with pytest.raises(WrongPeerError, match="node 'w1'"):
            peers.check_session(peer, attrs.evolve(shown, name="w2"))
        # Over a Unix socket no certificate is shown.
        peers.check_session(peer, unshown)
        link.on_verified(unshown)
        peers.check_session(peer, shown)
        assert link.ended is None


async def test_a_client_keeps_no_memory_by_the_name_of_a_process(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNDERSTUDY_SECRET", raising=False)
    async with met(authority, "client") as (node, client):
        reference = await node.put(b"x" * SHARED_SIZE)
        identity = list(state_of(reference).identity)
        host = SystemEnvironment().process().host
        fetch = raw(client, node, "@references", "fetch")
        # Process 1 never ends, and this one says that it is process 1.
        reader = [*client.endpoint.identity, host, 1, "0"]
        values = internals_of(node).endpoint.references.owned
        for _ in range(2):
            found = await fetch(identity, reader)
            assert not isinstance(found, SharedValue)
            assert values.shared_with(state_of(reference), client.endpoint.identity) is None
        with pytest.raises(BadArgumentsError, match="in its own name only"):
            await fetch(identity, ["there", 7, host, 1, "0"])
        with pytest.raises(BadArgumentsError, match="in its own name only"):
            await fetch(identity, "there")
