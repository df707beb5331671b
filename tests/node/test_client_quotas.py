"""What one client can take of a node: how many actors it has there, and how many bytes the
arguments of its calls hold, in mailboxes and while they run.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from actors import Actor, RetryPolicy, method
from actors.errors import (
    HandshakeError,
    MailboxFullError,
    NotAllowedError,
    NotExecutedError,
    RemoteError,
    ReplyEncodeError,
    SpawnManyError,
)
from actors.options import SpawnOptions
from actors.supervision import ExitReason
from runtime import open_node
from runtime.hosting import client_quotas
from runtime.hosting.client_quotas import ClientQuotas
from runtime.hosting.start_tickets import MOST_TICKET
from runtime.links import peers
from runtime.node import Node
from runtime.node.internals import internals_of
from tests.authority import Authority, node_uri
from tests.live_pair import Pair
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("no_secret")

MEBIBYTE = 1024 * 1024
ONCE = RetryPolicy(max_retries=0)


class Gate(Actor):
    """Its methods wait until it is opened."""

    def __init__(self) -> None:
        self.opened = trio.Event()
        self.passed: list[int] = []

    @method
    async def hand_in(self, data: bytes) -> int:
        await self.opened.wait()
        self.passed.append(len(data))
        return len(data)

    @method(concurrent=True)
    async def hand_in_beside(self, data: bytes) -> int:
        await self.opened.wait()
        return len(data)

    @method(concurrent=True, idempotent=True)
    async def repeatable(self, data: bytes) -> int:
        await self.opened.wait()
        return len(data)

    @method(concurrent=True)
    async def stream(self, data: bytes) -> AsyncIterator[int]:
        await self.opened.wait()
        yield len(data)

    @method(concurrent=True)
    async def open(self) -> None:
        self.opened.set()

    @method
    async def make(self, size: int) -> bytes:
        return b"x" * size

    @method(idempotent=True)
    async def make_again(self, size: int) -> bytes:
        return b"x" * size


@asynccontextmanager
async def node_with_clients(
    authority: Authority, *names: str, most: int = 2
) -> AsyncIterator[tuple[Node, list[Node]]]:
    """A node, and clients with certificates of these names."""
    async with (
        open_node(
            "here", tls=authority.tls(node_uri("here")), spawnable=[Gate], client_actors=most
        ) as node,
        open_clients(authority, node, *names) as clients,
    ):
        yield node, clients


@asynccontextmanager
async def open_clients(authority: Authority, node: Node, *names: str) -> AsyncIterator[list[Node]]:
    """Clients with certificates of these names."""
    if not names:
        yield []
        return
    async with (
        open_node(
            join=node.address, tls=authority.tls(node_uri(names[0], role="client")), role=None
        ) as first,
        open_clients(authority, node, *names[1:]) as rest,
    ):
        yield [first, *rest]


def quotas_of(node: Node) -> ClientQuotas:
    return internals_of(node).endpoint.admission.quotas


async def refused(asked: Any, error: type[NotExecutedError] = NotAllowedError) -> str:
    with pytest.raises(error) as caught:
        await asked
    return str(caught.value)


async def test_a_client_has_so_many_actors_and_no_more_until_one_ends(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "understudy.audit")
    async with node_with_clients(authority, "ann", "ann", "ben") as (node, (one, again, other)):
        first = await one.options(on="here").spawn(Gate)
        await again.options(on="here", name="second").spawn(Gate)
        # The same person in two processes is one client.
        for process in (one, again):
            text = await refused(process.options(on="here").spawn(Gate))
            assert "2 actors here and asks for 1 more" in text
            assert "--client-actors" in text
        with pytest.raises(SpawnManyError):
            await one.options(on="here").spawn_many(Gate, [()])
        assert caplog.text.count("refused a call of client 'ann'") == 3
        # Others have a quota of their own, and nodes none.
        theirs = await other.options(on="here").spawn_many(Gate, [(), ()])
        for _ in range(5):
            await node.spawn(Gate)
        quotas = quotas_of(node)
        assert quotas.actors == 4
        # It stops what it has started, also from its other process, and nothing else.
        for actor in theirs:
            await refused(one.stop(actor))
        await again.stop(first)
        await one.options(on="here").spawn(Gate)
        await refused(one.options(on="here").spawn(Gate))
        assert quotas.actors == 4


async def test_actors_live_on_when_their_client_goes_and_count_when_it_comes_back(
    authority: Authority,
) -> None:
    async with node_with_clients(authority) as (node, _):
        async with open_clients(authority, node, "ann") as (client,):
            await client.options(on="here", name="gate").spawn(Gate)
            await client.options(on="here", idle_timeout=0.05).spawn(Gate)
            await refused(client.options(on="here").spawn(Gate))
        async with open_clients(authority, node, "ann") as (client,):
            quotas = quotas_of(node)
            await until(lambda: quotas.actors == 1, "the idle one has ended")
            gate = await client.lookup("gate", Gate)
            await client.options(on="here").spawn(Gate)
            await refused(client.options(on="here").spawn(Gate))
            await client.stop(gate)
            await client.options(on="here").spawn(Gate)


async def test_one_client_leaves_room_for_the_sessions_of_others(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "MOST_STRANGERS", 4)
    async with node_with_clients(authority, "ann", "ann") as (node, _):
        # One session more than as many as there is room for. It is sent the reason.
        with pytest.raises(HandshakeError, match=r"sessions of .* already"):
            async with open_clients(authority, node, "ann"):
                pass
        await node.options(name="gate").spawn(Gate)
        async with open_clients(authority, node, "ben") as (ben,):
            assert await (await ben.lookup("gate", Gate)).make(1) == b"x"
        # Those that have ended count no more.
        async with open_clients(authority, node, "ben"):
            pass


async def test_starts_that_fail_leave_the_quota_as_it_was(authority: Authority) -> None:
    async with node_with_clients(authority, "ann") as (node, (client,)):
        await node.options(name="taken").spawn(Gate)
        for _ in range(5):
            with pytest.raises(Exception, match="taken"):
                await client.options(on="here", name="taken").spawn(Gate)
            with pytest.raises(SpawnManyError):
                await client.options(on="here").spawn_many(Gate, [()], names=["taken"])
        await client.options(on="here").spawn_many(Gate, [(), ()])
        with pytest.raises(SpawnManyError):
            await client.options(on="here").spawn_many(Gate, [()])
        internals_of(node).endpoint.check_invariants()


async def test_a_client_that_asks_in_false_forms_stops_nothing(authority: Authority) -> None:
    async with node_with_clients(authority, "ann") as (node, (client,)):
        own = await client.options(on="here").spawn(Gate)
        other = await node.spawn(Gate)
        service = internals_of(client).endpoint.node_service("here", node.incarnation)
        mine, theirs = ((one.address.name, one.address.epoch) for one in (own, other))
        for asked in ([mine, theirs], [], "ab", [(*mine, 1)], [[*mine, *theirs]], [None]):
            await refused(service.stop_many(asked, None))
        await refused(service.stop_actor(theirs[0], mine[1], None))
        assert quotas_of(node).actors == 1


async def test_arguments_that_wait_or_run_are_bounded_in_bytes(pair: Pair) -> None:
    gate = await pair.there.options(on="here", mailbox_bytes=MEBIBYTE).spawn(Gate)
    cell = internals_of(pair.here).endpoint.host.cells[gate.address.name]
    ended: list[int] = []

    async def hand_in(size: int) -> None:
        ended.append(await gate.hand_in(bytes(size)))

    def held() -> int:
        return 0 if cell.arguments is None else cell.arguments.held

    async with trio.open_nursery() as nursery:
        # What finds nothing there is taken, however large.
        nursery.start_soon(hand_in, 2 * MEBIBYTE)
        await until(lambda: held() > 2 * MEBIBYTE, "the first has arrived")
        for refusing in (gate.hand_in, gate.hand_in_beside, gate.repeatable):
            text = await refused(refusing(bytes(8192)), MailboxFullError)
            assert "mailbox_bytes" in text
        with pytest.raises(MailboxFullError):
            await anext(gate.stream(bytes(8192)))
        await gate.hand_in.send(bytes(8192))
        # Small ones are bounded by their number.
        nursery.start_soon(hand_in, 100)
        await until(lambda: cell.waiting == 1, "the small one waits")
        await gate.open()
    # Both answers may come in one pass, and their callers wake in any order.
    assert sorted(ended) == [100, 2 * MEBIBYTE]
    assert isinstance(cell.instance, Gate)
    assert cell.instance.passed == [2 * MEBIBYTE, 100]
    assert held() == 0
    assert internals_of(pair.here).endpoint.host.arguments.held == 0


@pytest.mark.parametrize("end", ["cancelled", "stopped", "link"])
async def test_the_bytes_of_calls_that_come_to_nothing_are_given_back(pair: Pair, end: str) -> None:
    gate = await pair.there.options(on="here").spawn(Gate)
    host = internals_of(pair.here).endpoint.host
    cell = host.cells[gate.address.name]

    async def hand_in(call: Any) -> None:
        # As the link ends, or the actor: unknown, or not executed.
        with trio.CancelScope(), pytest.raises((NotExecutedError, Exception)):
            await call(bytes(100_000))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for call in (gate.hand_in, gate.hand_in, gate.hand_in_beside):
                nursery.start_soon(hand_in, call)
            await until(lambda: host.arguments.held > 300_000, "all have arrived")
            if end == "cancelled":
                nursery.cancel_scope.cancel()
            elif end == "stopped":
                reason = ExitReason("killed", "by the test")
                await host.stop(cell.address.name, cell.address.epoch, reason, "kill")
            else:
                internals_of(pair.here).endpoint.peers.on_peer_ended(
                    "there", pair.there.incarnation, "ended by the test"
                )
                nursery.cancel_scope.cancel()
        if end == "cancelled":
            # What was cancelled in the mailbox stays there until its turn, or until there is no
            # room.
            await gate.open()
        await until(lambda: host.arguments.held == 0, "nothing is held any more")
        assert cell.arguments is not None
        assert cell.arguments.held == 0


async def test_a_client_holds_so_many_bytes_over_all_actors_and_others_are_served(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_quotas, "CLIENT_BYTES", MEBIBYTE)
    async with node_with_clients(authority, "ann", "ann", "ben") as (node, (one, again, other)):
        gates = [await node.options(name=f"gate-{number}").spawn(Gate) for number in range(3)]
        results: list[object] = []

        async def hand_in(client: Node, number: int, size: int) -> None:
            gate = await client.lookup(f"gate-{number}", Gate)
            try:
                # Where it is not refused, it waits for a gate that nobody opens.
                with trio.fail_after(60):
                    results.append(await gate.hand_in(bytes(size)))
            except MailboxFullError as error:
                results.append(str(error))

        async with trio.open_nursery() as nursery:
            held = quotas_of(node).held
            nursery.start_soon(hand_in, one, 0, 700_000)
            await until(lambda: held().get("ann", 0) > 700_000, "it holds much")
            await hand_in(again, 1, 700_000)
            assert "that one client may hold" in str(results.pop())
            nursery.start_soon(hand_in, other, 1, 700_000)
            nursery.start_soon(hand_in, again, 2, 1000)
            await until(lambda: held().get("ben", 0) > 700_000, "another's came")
            for gate in gates:
                await gate.open()
        assert sorted(map(str, results)) == ["1000", "700000", "700000"]
        # Of the runtime's own questions some are always on their way.
        await until(lambda: all(one < 100_000 for one in held().values()), "the arguments are gone")


async def test_questions_of_a_client_are_bounded_over_its_sessions_and_others_are_answered(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_quotas, "CLIENT_QUESTIONS", 20)
    async with node_with_clients(authority, "ann", "ann", "ben") as (node, clients):
        gate = await node.options(name="gate").spawn(Gate)
        epoch = gate.address.epoch
        services = [
            internals_of(one).endpoint.node_service("here", node.incarnation) for one in clients
        ]
        refusals: list[str] = []

        async def ask(service: Any, *, repeated: bool) -> None:
            # As a changed program asks, which repeats nothing; and as ours do.
            retry = RetryPolicy(max_retries=0, repeat_unknown=repeated)
            asked = service.watch_actor.options(retry=retry)
            try:
                await asked("gate", epoch)
            except MailboxFullError as error:
                refusals.append(str(error))

        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(partial(ask, services[number % 2], repeated=number % 4 < 2))
            await until(lambda: len(refusals) >= 20, "what is beyond the limit was refused")
            assert all("questions of client 'ann' wait" in text for text in refusals)
            assert "members" in await services[2].contact()
            nursery.cancel_scope.cancel()
        with trio.fail_after(30):
            # Those that were taken back count no more.
            await until_answered(services[0])


async def until_answered(service: Any) -> None:
    while True:
        try:
            await service.contact.options(retry=ONCE)()
        except MailboxFullError:
            await trio.lowlevel.checkpoint()
        else:
            return


async def test_a_call_without_arguments_counts_for_what_it_takes(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_quotas, "CLIENT_BYTES", 10 * client_quotas.CALL_BYTES)
    async with node_with_clients(authority, "ann") as (node, (client,)):
        await node.options(name="gate").spawn(Gate)
        gate = await client.lookup("gate", Gate)
        refusals: list[str] = []

        async def hand_in() -> None:
            try:
                await gate.hand_in_beside.options(retry=ONCE)(b"")
            except MailboxFullError as error:
                refusals.append(str(error))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(hand_in)
            await until(lambda: len(refusals) >= 10, "some were refused")
            assert all("that one client may hold" in text for text in refusals)
            await (await node.lookup("gate", Gate)).open()


async def test_a_long_ticket_is_not_kept(authority: Authority) -> None:
    async with node_with_clients(authority, "ann") as (node, (client,)):
        service = internals_of(client).endpoint.node_service("here", node.incarnation)
        path = f"{Gate.__module__}:Gate"
        for ticket in ("t" * 10_000, "t" * (MOST_TICKET + 1)):
            with pytest.raises(RemoteError, match="64 characters"):
                await service.spawn(path, (), {}, SpawnOptions(), "", ticket)
            with pytest.raises(RemoteError, match="64 characters"):
                await service.spawn_many(path, [()], [], SpawnOptions(), ticket)
        assert quotas_of(node).actors == 0


async def test_bytes_count_once_and_what_is_decoded_from_few_bytes_counts_many_times(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_quotas, "CLIENT_BYTES", MEBIBYTE)
    async with node_with_clients(authority, "ann") as (node, (client,)):
        held = quotas_of(node).held
        for name, count, argument in (("bytes", 10, bytes(60_000)), ("list", 2, [0] * 20_000)):
            await node.options(name=name).spawn(Gate)
            gate: Any = await client.lookup(name, Gate)
            async with trio.open_nursery() as nursery:
                for _ in range(count):
                    nursery.start_soon(gate.hand_in, argument)
                await until(lambda: 600_000 < held().get("ann", 0) < MEBIBYTE, "all are held")
                await gate.open()
            await until(lambda: held().get("ann", 0) < 100_000, "the arguments are gone")


def test_the_options_say_what_they_take() -> None:
    assert SpawnOptions().mailbox_bytes == 1024**3
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="mailbox_bytes"):
            SpawnOptions(mailbox_bytes=wrong)
    with pytest.raises(TypeError, match="mailbox_bytes"):
        SpawnOptions(mailbox_bytes="1M")  # type: ignore[arg-type]


@pytest.mark.parametrize("called", ["make", "make_again"])
async def test_a_client_keeps_so_many_bytes_of_results_until_it_lets_go_of_them(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, called: str
) -> None:
    monkeypatch.setattr(client_quotas, "CLIENT_VALUES", MEBIBYTE)
    async with node_with_clients(authority, "alice", "bob") as (node, (alice, bob)):
        await node.options(name="gate").spawn(Gate)
        of_alice: Any = getattr(await alice.lookup("gate", Gate), called)
        of_bob: Any = getattr(await bob.lookup("gate", Gate), called)
        kept = [await of_alice.remote(MEBIBYTE // 4) for _ in range(3)]
        sizes = [len(await one.fetch()) for one in kept]
        assert sizes == [MEBIBYTE // 4] * 3
        # It ran, and is not there: that is said to all who ask.
        too_large = await of_alice.remote(MEBIBYTE // 2)
        with pytest.raises(ReplyEncodeError, match="are not kept, where the results"):
            await too_large.fetch()
        # References count as well, whose results are small.
        many: list[Any] = []

        async def keep_many() -> None:
            for _ in range(MEBIBYTE // client_quotas.REFERENCE_BYTES):
                many.append(await of_alice.options(retry=ONCE).remote(0))
                await many[-1].fetch()

        with pytest.raises(MailboxFullError, match="release some references"):
            await keep_many()
        # Neither do others pay for it, nor its other calls.
        assert len(await (await of_bob.remote(MEBIBYTE // 2)).fetch()) == MEBIBYTE // 2
        assert len(await of_alice(MEBIBYTE // 2)) == MEBIBYTE // 2
        quotas = internals_of(node).endpoint.admission.quotas
        peers = [link.verified for link in internals_of(node).links.values()]
        (of_alices,) = (one for one in peers if one is not None and one.name == "alice")
        values = quotas.values_of(of_alices)
        assert values.held
        many.clear()
        del kept, too_large
        await until(lambda: not values.held, "what alice kept is given back")
        assert len(await (await of_alice.remote(MEBIBYTE // 2)).fetch()) == MEBIBYTE // 2
