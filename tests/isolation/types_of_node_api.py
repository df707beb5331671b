"""Right and wrong uses of the node API through its proxy, for type checkers; nobody runs this. See
`tests.actors.types_of_streams`.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import assert_type

from actors import Ended, Reference, SpawnOptions
from actors.actor import Member
from actors.identifiers import NodeId
from actors.method import Address
from runtime.calls.endpoint import RpcEndpoint
from runtime.isolation.node_api import NodeApiProxy


async def asks(endpoint: RpcEndpoint, address: Address) -> None:
    api = NodeApiProxy.of(endpoint, NodeId("node", 1))
    assert_type(await api.lookup("name", None), Address)
    await api.lookup(5, None)  # type: ignore[arg-type]
    await api.lookup()  # type: ignore[call-arg]
    await api.look_up("name")  # type: ignore[attr-defined]
    assert_type(await api.find("name", True), Address | None)
    assert_type(await api.place("node", 1), Member | None)
    assert_type(await api.start("module:Class", (), {}, SpawnOptions(), ""), Address)
    await api.start("module:Class", (), {}, "options", "")  # type: ignore[arg-type]
    assert_type(await api.put(1), Reference[object])
    assert_type(await api.wait_ended(address), Ended)
    assert_type(await api.watch("name", 1, address), tuple[int, str, int])
    assert_type(await api.leave("name", 1, "group"), bool)
    async for members in api.watch_members():
        assert_type(members, tuple[Member, ...])
    async for addresses in api.watch_group("group"):
        assert_type(addresses, tuple[Address, ...])
