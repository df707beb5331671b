"""What programs may do at the three doors with certificates of each role, and with roles that they
choose.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from actors import Actor, method
from actors.errors import (
    JoinError,
    NotAllowedError,
    SpawnManyError,
    WrongCertificateError,
)
from actors.handle import Handle
from actors.peers import PeerRole
from runtime import Tls, aio, blocking, open_node
from runtime.node import Node, internals_of
from tests.authority import Authority, node_uri
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("no_secret")

ROLES: tuple[PeerRole, ...] = ("node", "operator", "client", "observer")


class Till(Actor):
    """A class that is listed as spawnable."""

    def __init__(self, held: int = 0) -> None:
        self.held = held

    @method
    async def add(self, amount: int) -> int:
        self.held += amount
        return self.held

    @method
    async def coins(self, count: int) -> AsyncIterator[int]:
        for number in range(count):
            yield number

    @method(allow=("operator", "observer"))
    async def audit(self) -> str:
        return "right"


class Vault(Actor):
    """A class that is not listed."""


def double(number: int) -> int:
    return 2 * number


MEANT: dict[str, tuple[object, str]] = {
    "lookup": ("till", "node operator client observer"),
    "members": (["w1"], "node operator client observer"),
    "tree": ("understudy", "node operator client observer"),
    "add": (5, "node operator client"),
    "stream": ([0, 1, 2], "node operator client"),
    "remote": (5, "node operator client"),
    "audit": ("right", "node operator observer"),
    "spawn": ("Till", "node operator client"),
    "spawn_many": (2, "node operator client"),
    "spawn what is not listed": ("Vault", "node"),
    "run": (6, "node"),
    "put": (b"kept", "node"),
    "pool": ("pool", "node"),
    "stop": (None, "node operator"),
}
"""What each attempt comes to, and for whom. All others are refused with `NotAllowedError`."""


@asynccontextmanager
async def till_on_node(authority: Authority) -> AsyncIterator[Node]:
    tls = authority.tls(node_uri("w1"))
    async with open_node("w1", tls=tls, spawnable=[Till]) as node:
        await node.options(name="till").spawn(Till)
        yield node


def of_role(authority: Authority, role: str) -> Tls:
    return authority.tls(node_uri("*" if role == "node" else "ann", role=role))


def handle_of(handle: object) -> Handle:
    assert isinstance(handle, Handle)
    return handle


def kind(handle: object) -> str:
    return str(handle_of(handle).address.class_path.rpartition(":")[2])


def is_refusal(error: Exception) -> bool:
    """Also of many at once, whose errors are gathered."""
    if isinstance(error, SpawnManyError):
        return all(isinstance(one, NotAllowedError) for one in error.errors.values())
    return isinstance(error, NotAllowedError)


async def attempts(door: Any) -> dict[str, object]:
    """What each attempt comes to at a door whose calls are awaited."""
    till: Any = await door.lookup("till", Till)

    async def members() -> list[str]:
        found = door.members()
        listed = found if isinstance(found, tuple) else await found
        return [one.name for one in listed if one.name == "w1"]

    async def remote() -> object:
        reference = await till.add.remote(0)
        return await reference.fetch()

    async def put() -> object:
        return await (await door.put(b"kept")).fetch()

    async def spawned(cls: type[Actor]) -> str:
        return kind(await door.options(on="w1").spawn(cls))

    async def spawned_many() -> int:
        return len(await door.options(on="w1").spawn_many(Till, [(1,), (2,)]))

    async def pool() -> str:
        opened = await door.pool("pool", Till, size=1)
        await opened.stop()
        return str(opened.name)

    async def tree() -> str:
        return str((await door.tree()).cluster)

    async def name() -> str:
        return str(till.address.name)

    asked: dict[str, Callable[[], Awaitable[object]]] = {
        "lookup": name,
        "members": members,
        "tree": tree,
        "add": lambda: till.add(5),
        "stream": lambda: coins(till),
        "remote": remote,
        "audit": lambda: till.audit(),
        "spawn": lambda: spawned(Till),
        "spawn_many": spawned_many,
        "spawn what is not listed": lambda: spawned(Vault),
        "run": lambda: door.run(double, 3),
        "put": put,
        "pool": pool,
        "stop": lambda: door.stop(till),
    }
    assert asked.keys() == MEANT.keys()
    found: dict[str, object] = {}
    for what, ask in asked.items():
        try:
            found[what] = await ask()
        except Exception as error:
            found[what] = "refused" if is_refusal(error) else repr(error)
    return found


async def coins(till: Any) -> list[int]:
    return [coin async for coin in till.coins(3)]


def blocking_attempts(door: blocking.BlockingCluster) -> dict[str, object]:
    """What each attempt comes to at the blocking door."""
    till = door.lookup("till", Till)
    here = door.options(on="w1")

    def pool() -> str:
        with door.pool("pool", Till, size=1) as opened:
            return opened.name

    asked: dict[str, Callable[[], object]] = {
        "lookup": lambda: handle_of(till).address.name,
        "members": lambda: [one.name for one in door.members() if one.name == "w1"],
        "tree": lambda: door.tree().cluster,
        "add": lambda: till.add(5),
        "stream": lambda: list(till.coins(3)),
        "remote": lambda: till.add.remote(0).fetch(),
        "audit": lambda: till.audit(),
        "spawn": lambda: kind(here.spawn(Till)),
        "spawn_many": lambda: len(here.spawn_many(Till, [(1,), (2,)])),
        "spawn what is not listed": lambda: kind(here.spawn(Vault)),
        "run": lambda: door.run(double, 3),
        "put": lambda: door.put(b"kept").fetch(),
        "pool": pool,
        "stop": lambda: door.stop(till),
    }
    assert asked.keys() == MEANT.keys()
    found: dict[str, object] = {}
    for what, ask in asked.items():
        try:
            found[what] = ask()
        except Exception as error:
            found[what] = "refused" if is_refusal(error) else repr(error)
    return found


def meant(role: str) -> dict[str, object]:
    return {
        what: value if role in roles.split() else "refused"
        for what, (value, roles) in MEANT.items()
    }


async def by_trio(address: str, tls: Tls, role: PeerRole | None) -> dict[str, object]:
    async with open_node(join=address, tls=tls, role=role) as node:
        return await attempts(node)


async def by_asyncio(address: str, tls: Tls, role: PeerRole | None) -> dict[str, object]:
    async def run() -> dict[str, object]:
        async with aio.connect(address, tls=tls, role=role) as cluster:
            return await attempts(cluster)

    return await trio.to_thread.run_sync(asyncio.run, run())


async def by_blocking(address: str, tls: Tls, role: PeerRole | None) -> dict[str, object]:
    def run() -> dict[str, object]:
        with blocking.connect(address, tls=tls, role=role) as cluster:
            return blocking_attempts(cluster)

    return await trio.to_thread.run_sync(run)


DOORS = {"trio": by_trio, "asyncio": by_asyncio, "blocking": by_blocking}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("door", DOORS)
async def test_a_door_has_the_rights_of_its_certificate(
    authority: Authority, door: str, role: PeerRole
) -> None:
    async with till_on_node(authority) as node:
        found = await DOORS[door](node.address, of_role(authority, role), None)
        assert found == meant(role)
        # Only a node is a member, and leaves in order.
        assert [one.name for one in node.members()] == ["w1"]


@pytest.mark.parametrize("role", ["operator", "client", "observer"])
async def test_a_role_may_be_chosen_below_that_of_the_certificate(
    authority: Authority, role: PeerRole
) -> None:
    async with till_on_node(authority) as node:
        assert await by_trio(node.address, of_role(authority, "node"), role) == meant(role)


@pytest.mark.parametrize(
    ("certified", "asked"),
    [
        ("client", "operator"),
        ("client", "observer"),
        ("client", "node"),
        ("observer", "client"),
        ("operator", "node"),
    ],
)
async def test_no_role_is_had_beyond_the_certificate(
    authority: Authority, certified: str, asked: PeerRole
) -> None:
    async with till_on_node(authority) as node:
        with pytest.raises(WrongCertificateError, match=f"for the role '{certified}'"):
            await by_trio(node.address, of_role(authority, certified), asked)


async def test_with_the_secret_alone_every_role_may_be_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So it is no more than a promise of the process itself, which the nodes hold it to."""
    monkeypatch.setenv("UNDERSTUDY_SECRET", "known to all")
    async with open_node("w1", spawnable=[Till]) as node:
        await node.options(name="till").spawn(Till)
        assert await by_trio(node.address, Tls(), "client") == meant("client")
        await node.stop(await node.lookup("till", Till))
        await node.options(name="till").spawn(Till)
        assert await by_trio(node.address, Tls(), None) == meant("node")


async def test_what_makes_no_sense_for_a_client_is_refused(authority: Authority) -> None:
    with pytest.raises(ValueError, match="give join"):
        async with open_node(role="client"):
            pass
    with pytest.raises(ValueError, match="leave out listen"):
        async with open_node(join="127.0.0.1:1", listen="127.0.0.1:0", role="client"):
            pass
    with pytest.raises(ValueError, match="leave metrics out"):
        async with open_node(join="127.0.0.1:1", metrics="0", role="client"):
            pass
    bad: Any = "king"
    with pytest.raises(ValueError, match="is not a role"):
        async with open_node(join="127.0.0.1:1", role=bad):
            pass
    with pytest.raises(JoinError):
        async with open_node(join="127.0.0.1:1", role="client", tls=of_role(authority, "client")):
            pass


async def test_a_client_learns_of_ends_and_is_forgotten_when_it_goes(authority: Authority) -> None:
    tls = of_role(authority, "client")
    async with till_on_node(authority) as node:
        async with open_node(join=node.address, tls=tls, role=None) as me:
            till = await me.lookup("till", Till)
            async with trio.open_nursery() as nursery:

                async def stop() -> None:
                    await until(
                        lambda: internals_of(node).watcher.loads()["watched"],
                        "it watches",
                        lambda count: count,
                    )
                    await node.stop(await node.lookup("till", Till))

                nursery.start_soon(stop)
                ended = await me.wait_ended(till)
            assert ended.reason.kind == "stopped"
            reference = await (await me.spawn(Till, 3)).add.remote(4)
            assert await reference.fetch() == 7
            assert len(internals_of(node).references.table) == 1
            del reference
            gc.collect()
            await until(
                lambda: len(internals_of(node).references.table), "freed", lambda count: not count
            )
        await until(
            lambda: [
                link for link in internals_of(node).links.values() if link.peer.role == "client"
            ],
            "the nodes forget it",
            lambda links: not links,
        )


async def test_a_client_uses_the_pools_that_nodes_have_opened(authority: Authority) -> None:
    async with till_on_node(authority) as node:
        pool = await node.pool("tills", Till, size=2)
        for role, works in (("client", True), ("observer", False)):
            async with open_node(join=node.address, tls=of_role(authority, role), role=None) as me:
                found = await me.lookup_pool("tills", Till)

                async def added(used: Any = found) -> list[int]:
                    return [total async for total in used.map(Till.add, [0, 0, 0, 0])]

                if works:
                    assert await added() == [0, 0, 0, 0]
                else:
                    with pytest.raises(NotAllowedError):
                        await added()
        await pool.stop()


@asynccontextmanager
async def node_of_its_own(*args: Any, **kwargs: Any) -> AsyncIterator[tuple[Node, trio.Event]]:
    """A node in a task of its own, which leaves when the event is set."""

    async def run(*, task_status: trio.TaskStatus[tuple[Node, trio.Event]]) -> None:
        over = trio.Event()
        async with open_node(*args, **kwargs) as node:
            task_status.started((node, over))
            await over.wait()

    async with trio.open_nursery() as nursery:
        node, over = await nursery.start(run)
        yield node, over
        over.set()


@pytest.mark.parametrize("external", [False, True], ids=["embedded", "etcd"])
async def test_a_client_goes_on_when_the_node_that_it_has_joined_by_leaves(
    authority: Authority, external: bool, request: pytest.FixtureRequest
) -> None:
    store = request.getfixturevalue("etcd").address if external else None
    first = {"tls": authority.tls(node_uri("w1")), "store": store, "spawnable": [Till]}
    async with node_of_its_own("w1", **first) as (node, _):
        await node.options(name="till").spawn(Till)
        place = {"store": store} if external else {"join": node.address}
        second = node_of_its_own("w2", tls=authority.tls(node_uri("w2")), **place)
        async with second as (other, leave):
            await other.options(name="there").spawn(Till)
            tls = of_role(authority, "client")
            async with open_node(join=other.address, tls=tls, role=None) as me:
                till = await me.lookup("till", Till)
                assert await (await me.lookup("there", Till)).add(1) == 1
                leave.set()
                await me.wait_gone("w2")
                assert await till.add(1) == 1
                # Of the store, by way of the node that is left.
                assert await (await me.options(name="new").spawn(Till, 1)).add(1) == 2
                assert await (await me.lookup("new", Till)).add(1) == 3
                assert [one.name for one in me.members()] == ["w1"]
