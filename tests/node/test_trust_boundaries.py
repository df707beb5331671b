"""Lines of the security page's tables that say what a peer can do, rather than cannot."""

from __future__ import annotations

from typing import Any

import pytest

from actors import Actor, method
from actors.errors import NotAllowedError
from actors.options import SpawnOptions
from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.links.encryption import system_network
from runtime.membership.cluster_client import ClusterAccess, open_client
from runtime.membership.cluster_secret import find_security
from runtime.node import internals_of
from tests.authority import Authority, node_uri

SECRET = "a secret of the tests of trust"


class Unlisted(Actor):
    """Listed as spawnable nowhere."""

    @method(allow=())
    async def melt(self) -> str:
        return "melted"


async def test_the_secret_is_the_key_to_everything() -> None:
    environment = SystemEnvironment()
    secret, tls = find_security(SECRET, None, environment.token, needs_own=False)
    async with (
        open_node("w1", secret=SECRET) as w1,
        open_client(
            w1.address,
            ClusterAccess("understudy", secret, environment, system_network(environment, tls)),
        ) as client,
    ):
        await client.store.put("anything", b"written")
        assert (await client.store.range("")).entries
        service = client.endpoint.node_service("w1", w1.incarnation)
        options = SpawnOptions(name="unlisted")
        address = await service.spawn(f"{__name__}:Unlisted", (), {}, options)
        assert await client.endpoint.make_handle(address).melt() == "melted"


@pytest.mark.parametrize("role", ["operator", "client", "observer"])
async def test_what_is_saved_is_read_by_operators_and_nodes(
    authority: Authority, role: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNDERSTUDY_SECRET", raising=False)
    environment = SystemEnvironment()
    tls = authority.tls(node_uri("ann", role=role))
    secret, tls = find_security(None, tls, environment.token, needs_own=False)
    network = system_network(environment, tls)
    async with (
        open_node("w1", tls=authority.tls(node_uri("w1"))) as w1,
        open_client(
            w1.address, ClusterAccess("understudy", secret, environment, network)
        ) as client,
    ):
        store = internals_of(w1).own_store
        assert store is not None
        await store.put("state/ledger", b"what the application has saved")
        try:
            entry = await client.store.get("state/ledger")
        except NotAllowedError:
            entry = None
        assert (entry is not None) == (role == "operator")
        with pytest.raises(NotAllowedError):
            await client.store.put("state/ledger", b"changed")
        assert await client.store.range("nodes/")
