"""Calls that a service passes on have the rights of those who ask for them, and no others: the
service `@plain`, behind which gateways are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import cbor2
import pytest

from actors import Actor, Call, Filter, method
from actors.filters import Next
from actors.peers import VerifiedPeer
from runtime import open_node
from runtime.calls.rights import PLAIN_SERVICE
from runtime.environment import SystemEnvironment
from runtime.links.encryption import system_network
from runtime.membership.cluster_client import ClusterAccess, open_client
from runtime.membership.cluster_secret import find_security
from runtime.node import Node
from runtime.plain_calls.keyed_calls import KeyedCalls
from runtime.plain_calls.service import PlainCallService, PlainTarget
from runtime.wire.handshake import certified_uri
from tests.authority import Authority

pytestmark = pytest.mark.usefixtures("no_secret")


class Vault(Actor):
    def __init__(self) -> None:
        self.opened = 0

    @method(allow=("operator",), http=True)
    async def open(self, door: str) -> str:
        self.opened += 1
        return f"what is behind {door}"

    @method(http=True)
    async def look(self, door: str) -> str:
        return f"the door {door}"

    @method(http=True)
    async def doors(self) -> AsyncIterator[str]:
        yield "the door"


class Seen(Filter):
    """Notes who calls, as the actor's side knows it."""

    sides = ("server",)

    def __init__(self) -> None:
        self.peers: list[tuple[str, VerifiedPeer | None]] = []

    async def call(self, next: Next, call: Call) -> object:
        if call.actor == "vault":
            self.peers.append((call.method, call.peer))
        return await next(call)


@asynccontextmanager
async def services(
    authority: Authority, *peers: tuple[Any, str], **options: Any
) -> AsyncIterator[tuple[Node, list[Any]]]:
    """A node with a vault, and the service of it as each of these roles and names reaches it."""
    environment = SystemEnvironment()
    async with AsyncExitStack() as stack:
        tls = authority.tls(certified_uri("understudy", "node", "here"))
        node = await stack.enter_async_context(open_node("here", tls=tls, **options))
        await node.options(name="vault").spawn(Vault)
        found: list[Any] = []
        for role, name in peers:
            secret, shown = find_security(
                None,
                authority.tls(certified_uri("understudy", role, name)),
                environment.token,
                needs_own=False,
            )
            network = system_network(environment, shown)
            client = await stack.enter_async_context(
                open_client(node.address, ClusterAccess("understudy", secret, environment, network))
            )
            found.append(
                client.endpoint.system_handle(
                    PlainCallService, PLAIN_SERVICE, node.name, node.incarnation
                )
            )
        yield node, found


def target(called: str) -> PlainTarget:
    return PlainTarget("vault", 0, called, True)


BODY = cbor2.dumps({"door": "one"})


async def test_the_answer_to_a_key_is_for_those_who_may_make_the_call(
    authority: Authority,
) -> None:
    peers = ("operator", "ann"), ("client", "bob")
    async with services(authority, *peers) as (node, (ann, bob)):
        answer = await ann.call_keyed(target("open"), BODY, None, "key", False)
        assert answer.outcome == "value"
        assert cbor2.loads(answer.body) == "what is behind one"
        for _ in range(2):
            refused = await bob.call_keyed(target("open"), BODY, None, "key", True)
            # It was made: to say that it certainly was not would have it made again.
            assert refused.outcome == "unknown"
            assert refused.body == b""
            assert "may not call 'open'" in refused.error["message"]
        # Of a call that both may make, any of them may repeat it: they may be two gateways.
        assert (await ann.call_keyed(target("look"), BODY, None, "k", False)).outcome == "value"
        assert (await bob.call_keyed(target("look"), BODY, None, "k", True)).outcome == "value"
        # Nor is the answer told after the end of the actor.
        vault = await node.lookup("vault", Vault)
        await node.stop(vault)
        refused = await bob.call_keyed(target("open"), BODY, None, "key", True)
        assert (refused.outcome, refused.body) == ("unknown", b"")
        again = await ann.call_keyed(target("open"), BODY, None, "key", True)
        assert cbor2.loads(again.body) == "what is behind one"


async def test_the_answer_to_a_key_is_for_those_whom_the_application_admits(
    authority: Authority,
) -> None:
    def only_ann(call: Call) -> bool:
        assert call.peer is not None
        return call.peer.role == "node" or call.peer.name == "ann" or call.args != ("one",)

    peers = ("client", "ann"), ("client", "bob")
    async with services(authority, *peers, authorize=only_ann) as (_, (ann, bob)):
        assert (await ann.call_keyed(target("look"), BODY, None, "key", False)).outcome == "value"
        refused = await bob.call_keyed(target("look"), BODY, None, "key", True)
        assert (refused.outcome, refused.body) == ("unknown", b"")


async def test_one_client_leaves_room_for_the_keys_of_others(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    few: Any = partial(KeyedCalls, most_calls=8)
    monkeypatch.setattr("runtime.plain_calls.service.KeyedCalls", few)
    peers = ("client", "ann"), ("client", "ann"), ("client", "ben")
    async with services(authority, *peers) as (_, (ann, again, ben)):

        async def outcome(client: Any, key: str) -> str:
            told = await client.call_keyed(target("look"), BODY, None, key, False)
            return str(told.error["type"] if told.error else told.outcome)

        # One client in two processes has one share.
        made = [await outcome(ann, f"a{number}") for number in range(3)]
        made += [await outcome(again, f"b{number}") for number in range(3)]
        assert made == [*["value"] * 4, *["MailboxFullError"] * 2]
        assert [await outcome(ben, f"c{number}") for number in range(2)] == ["value"] * 2
        # A key is no place to keep much either.
        assert await outcome(ben, "k" * 256) == "BadArgumentsError"


async def test_a_stream_that_is_passed_on_is_that_of_the_peer_which_asks(
    authority: Authority,
) -> None:
    asked: list[VerifiedPeer | None] = []

    def authorize(call: Call) -> bool:
        if call.actor == "vault":
            asked.append(call.peer)
        return True

    seen = Seen()
    options: dict[str, Any] = {"authorize": authorize, "filters": (seen,)}
    async with services(authority, ("client", "bob"), **options) as (_, (bob,)):
        assert (await bob.call(target("look"), BODY, None)).outcome == "value"
        items = [item async for item in bob.stream(target("doors"), b"", None)]
        assert [cbor2.loads(item.body) for item in items] == ["the door"]
    for method_, peer in seen.peers:
        assert peer is not None, method_
        assert (peer.role, peer.name) == ("client", "bob")
    assert [one[0] for one in seen.peers] == ["look", "doors"]
    # Once each, and never in the name of the node.
    assert [(one.role, one.name) for one in asked if one is not None] == [("client", "bob")] * 2
