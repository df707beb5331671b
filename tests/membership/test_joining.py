"""Joining while others cannot wait: a node is called from the moment its name is in the store. And
joining where others have much to do.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from actors import Actor, method
from actors.errors import JoinError, LeaseLostError, StoreUnavailableError
from runtime import Node, open_node
from runtime.environment import SystemEnvironment
from runtime.links.transports import Connection, SocketConnection, SocketNetwork
from runtime.membership import cluster_client as cluster_client_module
from runtime.membership.members import PREFIX, NodeRecord, Registration
from runtime.node import internals_of
from runtime.store.embedded_store import EmbeddedStore
from runtime.store.interface import WatchBatch
from runtime.testing import Platform
from runtime.timings import Timings
from runtime.wire.codec import Codec
from tests.live_pair import SECRET
from tests.scheduling import SeededEnvironment
from tests.waiting import until


class Greeter(Actor):
    """Says where it is."""

    @method
    async def where(self) -> str:
        return self.node.name


class Hesitant(SocketNetwork):
    """Joins at once, but dials as a node only after another node has dialled it."""

    def __init__(self) -> None:
        super().__init__()
        self.dials = 0
        self.dialled = trio.Event()

    async def connect(self, address: str) -> Connection:
        self.dials += 1
        if self.dials > 1:
            await self.dialled.wait()
        return await super().connect(address)

    async def listen(  # noqa: ASYNC128  passed on
        self,
        address: str,
        handler: Callable[[Connection], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        async def handle(connection: Connection) -> None:
            self.dialled.set()
            await handler(connection)

        await super().listen(address, handle, task_status=task_status)


async def test_a_node_that_is_called_while_it_still_joins_answers() -> None:
    """Both dial each other then; the connection that stands must not be the one that waits for the
    join to be over.
    """
    answers: list[str] = []

    async def call(founder: Node) -> None:
        async for members in founder.watch_members():
            if len(members) == 2:
                break
        answers.append(await (await founder.options(on="newcomer").spawn(Greeter)).where())

    with trio.fail_after(60):
        async with open_node("founder", secret=SECRET) as founder, trio.open_nursery() as nursery:
            nursery.start_soon(call, founder)
            async with open_node(
                "newcomer",
                join=founder.address,
                secret=SECRET,
                platform=Platform(network=Hesitant()),
            ):
                await until(lambda: answers, "the newcomer was called")
    assert answers == ["newcomer"]


class Unlucky(SocketNetwork):
    """Its first connections come about and get no further: `how` they end."""

    def __init__(self, how: str, times: int) -> None:
        super().__init__()
        self.how = how
        self.left = times
        self.dials = 0

    async def connect(self, address: str) -> Connection:
        self.dials += 1
        connection = await super().connect(address)
        if self.left and isinstance(connection, SocketConnection):
            self.left -= 1
            connection.receive = self._receive  # type: ignore[method-assign]
        return connection

    async def _receive(self) -> bytes:
        if self.how == "silent":
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        if self.how == "reset":
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        return b""


@pytest.mark.parametrize("how", ["silent", "reset", "closed"])
async def test_a_joiner_whose_first_connections_come_to_nothing_dials_again(how: str) -> None:
    async with open_node("founder", secret=SECRET) as founder:
        network = Unlucky(how, cluster_client_module.ATTEMPTS - 1)
        # Long enough for a handshake on a loaded machine, which the last attempt needs.
        platform = Platform(environment=SystemEnvironment(Timings(handshake=1.0)), network=network)
        async with open_node("newcomer", join=founder.address, secret=SECRET, platform=platform):
            assert [member.name for member in founder.members()] == ["founder", "newcomer"]


@pytest.mark.parametrize("how", ["reset", "closed"])
async def test_a_joiner_that_never_gets_through_gets_an_error_after_some_attempts(how: str) -> None:
    async with open_node("founder", secret=SECRET) as founder:
        network = Unlucky(how, 1000)
        with pytest.raises(JoinError, match=founder.address):
            async with open_node(
                "newcomer", join=founder.address, secret=SECRET, platform=Platform(network=network)
            ):
                pass
        assert network.dials == cluster_client_module.ATTEMPTS


async def test_a_store_that_takes_long_is_waited_for_while_its_node_is_connected() -> None:
    gate = trio.Event()
    looks = iter([True, True])

    def connected() -> bool:
        gate.set()
        return next(looks)

    async def ask() -> str:
        await gate.wait()
        return "entered"

    assert await cluster_client_module.answered(ask, connected, 0.2) == "entered"


async def test_an_answer_that_does_not_come_is_waited_for_neither_unconnected_nor_for_ever() -> (
    None
):
    looks: list[bool] = []

    async def never() -> str:
        await trio.sleep_forever()
        raise AssertionError

    def connected(answer: bool) -> bool:
        looks.append(answer)
        return answer

    assert await cluster_client_module.answered(never, lambda: connected(False), 0.01) is None
    assert looks == [False]
    assert await cluster_client_module.answered(never, lambda: connected(True), 0.01) is None
    assert looks == [False] + [True] * cluster_client_module.PATIENCE


class Refusing(SocketNetwork):
    """Counts dials; nothing answers."""

    def __init__(self) -> None:
        super().__init__()
        self.dialled: list[str] = []

    async def connect(self, address: str) -> Connection:
        self.dialled.append(address)
        await trio.lowlevel.checkpoint()
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


async def test_a_node_in_a_new_container_waits_for_the_lease_of_the_one_before_at_its_address(
    autojump_clock: MockClock,
) -> None:
    """It listens at that address by now: dialled, it would answer itself, and take the dead one
    for alive.
    """
    network, environment = Refusing(), SeededEnvironment(random.Random(1))
    store = EmbeddedStore(environment)
    addresses = ("tcp:10.0.0.1:7400", "unix:@one")
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        for container in ("first", "second", "third"):
            record = NodeRecord("worker", addresses, container, 1, "now", 0, 0.0)
            began = trio.current_time()
            # Its lease is renewed by nobody: it was killed at once.
            await Registration(store, environment, record).enter(network)
            waited = trio.current_time() - began
            assert waited <= environment.timings.succession
            assert bool(waited) == (container != "first")
        assert network.dialled == []
        # Another machine's node of the same name is dialled.
        elsewhere = NodeRecord("worker", ("tcp:10.0.0.2:7400",), "fourth", 1, "now", 0, 0.0)
        await Registration(store, environment, elsewhere).enter(network)
        assert set(network.dialled) == {"tcp:10.0.0.1:7400"}
        store.close()
        nursery.cancel_scope.cancel()


async def test_a_node_that_joins_gets_the_place_of_the_store_and_not_all_members() -> None:
    with trio.fail_after(60):
        async with (
            open_node("founder", secret=SECRET) as founder,
            open_node("second", join=founder.address, secret=SECRET) as second,
            open_node("third", join=founder.address, secret=SECRET) as third,
        ):
            await third.wait_for(3)
            service = internals_of(third).endpoint.node_service("second", second.incarnation)
            place = await service.store_place()
            assert [one["name"] for one in place["members"]] == ["second", "founder"]
            assert place["store"]["node"] == "founder"
            assert "links" not in place
            # By a member that does not serve the store.
            async with open_node("fourth", join=second.address, secret=SECRET) as fourth:
                assert {one.name for one in fourth.members()} == {
                    "founder",
                    "second",
                    "third",
                    "fourth",
                }


async def test_a_node_joins_by_a_member_of_an_earlier_version() -> None:
    """That one answers with all members, by `contact`."""
    with trio.fail_after(60):
        async with open_node("founder", secret=SECRET) as founder:
            cell = internals_of(founder).endpoint.host.cells["@node"]
            cell.methods = {
                name: definition
                for name, definition in cell.methods.items()
                if name != "store_place"
            }
            async with open_node("second", join=founder.address, secret=SECRET) as second:
                assert {one.name for one in second.members()} == {"founder", "second"}


def tells_no_changes(store: EmbeddedStore) -> None:
    """The store takes writes from now on, and its answers about changes get lost."""

    async def poll(prefix: str, from_revision: int) -> WatchBatch:
        await trio.sleep_forever()
        raise AssertionError

    store.poll = poll  # type: ignore[method-assign]


async def test_a_node_that_is_given_up_while_it_joins_ends_with_the_reason() -> None:
    """It is in the store, and waits to see that in its own view: as if the store's node had ended
    in between, with another store in its place.
    """
    codec = Codec(sentinel=os.urandom(8))

    async def end_the_lease(founder: Node) -> None:
        store = internals_of(founder).store

        async def up() -> NodeRecord | None:
            entry = await store.get(f"{PREFIX}newcomer")
            record = None if entry is None else codec.decode_stored(entry.value)
            return record if isinstance(record, NodeRecord) and record.state == "up" else None

        found = await until(up, "the newcomer has written that it is up")
        assert found is not None
        await store.revoke(found.lease)

    with trio.fail_after(60):
        async with (
            open_node("founder", secret=SECRET) as founder,
            trio.open_nursery() as nursery,
        ):
            own = internals_of(founder).own_store
            assert isinstance(own, EmbeddedStore)
            tells_no_changes(own)
            nursery.start_soon(end_the_lease, founder)
            with pytest.raises(LeaseLostError, match="newcomer as dead"):
                async with open_node("newcomer", join=founder.address, secret=SECRET):
                    raise AssertionError("it was never ready")


async def test_a_node_does_not_wait_for_ever_for_the_answer_that_it_has_joined() -> None:
    with trio.fail_after(60):
        async with open_node("founder", secret=SECRET) as founder:
            own = internals_of(founder).own_store
            assert isinstance(own, EmbeddedStore)
            tells_no_changes(own)
            platform = Platform(
                environment=SystemEnvironment(Timings(store_call=1.0, etcd_attempt=0.5))
            )
            with pytest.raises(StoreUnavailableError, match="the cluster's store, which did not"):
                async with open_node(
                    "newcomer", join=founder.address, secret=SECRET, platform=platform
                ):
                    raise AssertionError("it was never ready")
