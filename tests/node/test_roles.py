"""What processes with certificates of the roles operator, client and observer may do: methods with
`allow`, the runtime's services, starts of actors, and `open_node(authorize=...)`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from actors import Actor, method
from actors.errors import NotAllowedError, NotExecutedError, RemoteError, WrongCertificateError
from actors.filters import Call
from actors.messages import import_path
from actors.options import SpawnOptions
from actors.peers import PeerRole
from runtime import open_node
from runtime.calls.spawnable import application_classes, checked_spawnable
from runtime.command_line.main import main
from runtime.environment import SystemEnvironment
from runtime.hosting.authorization import Authorize
from runtime.links.encryption import Tls, system_network
from runtime.membership.cluster_client import ClusterAccess, ClusterClient, open_client
from runtime.membership.cluster_secret import find_security
from runtime.membership.keyring_service import keyring_of_node
from runtime.node import Node, internals_of
from tests.authority import Authority, node_uri

pytestmark = pytest.mark.usefixtures("no_secret")

ROLES: tuple[PeerRole, ...] = ("operator", "client", "observer")


class Vault(Actor):
    """Methods for different roles."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    @method
    async def look(self) -> str:
        self.opened.append("look")
        return "gold"

    @method(allow=("operator",))
    async def open(self) -> str:
        self.opened.append("open")
        return "open"

    @method(allow=("observer", "operator"))
    async def weigh(self) -> int:
        self.opened.append("weigh")
        return 7

    @method(allow=())
    async def melt(self) -> None:
        self.opened.append("melt")

    @method
    async def list(self) -> AsyncIterator[int]:
        self.opened.append("list")
        yield 1

    @method
    async def ask(self, other: Vault) -> str:
        return await other.open()


class Other(Actor):
    """A class that is not listed as spawnable."""


@asynccontextmanager
async def client(authority: Authority, node: Node, role: str) -> AsyncIterator[ClusterClient]:
    """A process with a certificate of this role."""
    environment = SystemEnvironment()
    tls: Tls = authority.tls(node_uri("someone", role=role))
    secret, tls = find_security(None, tls, environment.token, needs_own=False)
    async with open_client(
        node.address,
        ClusterAccess("understudy", secret, environment, system_network(environment, tls)),
    ) as opened:
        yield opened


async def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(NotAllowedError) as refused:
        await call()
    assert isinstance(refused.value, NotExecutedError)
    return str(refused.value)


async def outcome(call: Callable[[], Any]) -> object:
    try:
        return await call()
    except NotAllowedError:
        return "refused"


@asynccontextmanager
async def vault_on_node(
    authority: Authority, *, authorize: Authorize | None = None, spawnable: tuple[Any, ...] = ()
) -> AsyncIterator[tuple[Node, Vault]]:
    async with open_node(
        "here", tls=authority.tls(node_uri("here")), authorize=authorize, spawnable=spawnable
    ) as node:
        yield node, await node.options(name="vault").spawn(Vault)


@pytest.mark.parametrize("role", ROLES)
async def test_methods_are_for_the_roles_that_they_allow(authority: Authority, role: str) -> None:
    async with vault_on_node(authority) as (node, own), client(authority, node, role) as peer:
        vault: Vault = peer.endpoint.make_handle((await peer.lookup("vault")).address, Vault)
        found = {
            "look": await outcome(vault.look),
            "open": await outcome(vault.open),
            "weigh": await outcome(vault.weigh),
            "melt": await outcome(vault.melt),
            "list": await outcome(lambda: anext(vault.list())),
        }
        assert found == {
            "operator": {"look": "gold", "open": "open", "weigh": 7, "melt": "refused", "list": 1},
            "client": {
                "look": "gold", "open": "refused", "weigh": "refused", "melt": "refused", "list": 1,
            },
            "observer": {
                "look": "refused", "open": "refused", "weigh": 7, "melt": "refused",
                "list": "refused",
            },
        }[role]  # fmt: skip
        # What was refused has never run, and a one-way call is refused in silence.
        if role != "operator":
            await vault.open.send()
        instance: Any = internals_of(node).cells["vault"].instance
        ran = [name for name, value in found.items() if value != "refused"]
        assert sorted(instance.opened) == sorted(ran)
        # A node may call everything.
        assert await own.open() == "open"


async def test_what_a_method_calls_is_called_by_its_node(authority: Authority) -> None:
    async with vault_on_node(authority) as (node, own), client(authority, node, "client") as peer:
        vault: Vault = peer.endpoint.make_handle((await peer.lookup("vault")).address, Vault)
        second = await node.spawn(Vault)
        assert await vault.ask(second) == "open"
        assert "may not call 'open'" in await refusal(vault.open)
        assert await own.look() == "gold"


@pytest.mark.parametrize("role", ROLES)
async def test_the_store_is_not_written_but_by_nodes(authority: Authority, role: str) -> None:
    async with vault_on_node(authority) as (node, _), client(authority, node, role) as peer:
        await refusal(lambda: peer.store.put("names/vault", b"mine"))
        await refusal(lambda: peer.store.grant(5.0))
        # Nor are states read, but by operators.
        found = await outcome(lambda: peer.store.get("states/vault"))
        assert (found == "refused") == (role != "operator")


@pytest.mark.parametrize("role", ROLES)
async def test_actors_and_nodes_are_stopped_by_operators_only(
    authority: Authority, role: str
) -> None:
    async with vault_on_node(authority) as (node, _), client(authority, node, role) as peer:
        service = peer.endpoint.node_service("here", node.incarnation)
        found = await outcome(service.leave_cluster)
        assert (found == "refused") == (role != "operator")
        assert node.asked_to_leave.is_set() == (role == "operator")


@pytest.mark.parametrize("role", ROLES)
async def test_the_secrets_of_a_cluster_are_changed_by_nodes_only(
    authority: Authority, role: str
) -> None:
    async with vault_on_node(authority) as (node, _), client(authority, node, role) as peer:
        keyring = keyring_of_node(peer.endpoint, "here", node.incarnation)
        for call in (
            keyring.facts,
            partial(keyring.install, b"a secret of the client's"),
            partial(keyring.use, "0123456789abcdef"),
            partial(keyring.keep, "0123456789abcdef"),
        ):
            await refusal(call)


async def test_clients_start_only_what_is_listed(authority: Authority) -> None:
    listed = f"{Vault.__module__}:Vault"
    other = f"{Other.__module__}:Other"
    async with (
        vault_on_node(authority, spawnable=(listed,)) as (node, _),
        client(authority, node, "client") as peer,
    ):
        service = peer.endpoint.node_service("here", node.incarnation)
        options = SpawnOptions(name="second")
        assert "--spawnable" in await refusal(lambda: service.spawn(other, (), {}, options))
        assert "--spawnable" in await refusal(lambda: service.spawn("os:system", (), {}, options))
        assert "supervisor" in await refusal(lambda: service.spawn(listed, (), {}, options, "boss"))
        assert (await service.spawn(listed, (), {}, options)).name == "second"


async def test_an_application_lists_the_classes_that_it_defines_and_no_others(
    authority: Authority,
) -> None:
    application = sys.modules[__name__]
    listed = checked_spawnable([application])
    assert f"{__name__}:Vault" in listed
    # Imported here, as most modules import `Actor`; and a class of another application.
    assert {"actors.actor:Actor", import_path(Authority)}.isdisjoint(listed)
    async with (
        vault_on_node(authority, spawnable=(application,)) as (node, _),
        client(authority, node, "client") as peer,
    ):
        service = peer.endpoint.node_service("here", node.incarnation)
        options = SpawnOptions(name="third")
        assert (await service.spawn(f"{__name__}:Other", (), {}, options)).name == "third"
        actor = "actors.actor:Actor"
        assert "--spawnable" in await refusal(lambda: service.spawn(actor, (), {}, options))


def test_a_package_lists_what_it_takes_from_its_own_modules() -> None:
    package = ModuleType("shop")
    # As `from shop.carts import Cart` in the package does.
    cart, stock, other = (type(name, (Actor,), {}) for name in ("Cart", "Stock", "Other"))
    cart.__module__, stock.__module__, other.__module__ = "shop.carts", "shop", "shopping"
    hidden = type("Hidden", (Actor,), {"__module__": "shop"})
    vars(package).update(Cart=cart, Stock=stock, Other=other, _Hidden=hidden, number=7, text=str)
    assert application_classes(package) == {"shop.carts:Cart", "shop:Stock"}
    with pytest.raises(ValueError, match="defines no class of actors"):
        application_classes(ModuleType("empty"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--app", "nowhere.to.be.found"], "--app nowhere.to.be.found: "),
        (["--app", "shop.py:Cart"], "without .py"),
        (["--app", "json"], "the module json defines no class of actors"),
        (["--spawnable", "json:JSONDecoder"], "is not a subclass of actors.Actor"),
        (["--spawnable", f"{__name__}:Vautl"], "has no class Vautl; did you mean Vault?"),
        (
            ["--spawnable", f"{__name__}:Nope"],
            "the classes of actors in tests.node.test_roles are ",
        ),
        (["--spawnable", f"{__name__}:ROLES"], "has no class ROLES"),
        (["--spawnable", "json:Nope"], "has no class Nope; json defines no class of actors"),
        (["--spawnable", "nowhere:Nope"], "No module named 'nowhere'; check that name"),
        (["--spawnable", "tests.processes.broken_import:X"], "correct the module"),
        (["--spawnable", "json"], "write module:Class"),
        (["--spawnable", ":"], "write module:Class"),
        (["--spawnable", ""], "write module:Class"),
        (["--spawnable", "json:\x1b[31mX\nY"], "has no class \\x1b[31mX"),
    ],
)
def test_an_application_that_is_none_is_refused_in_one_line(words: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["node", *words])
    assert result.exit_code in (1, 2)
    assert said in result.output
    assert "Traceback" not in result.output
    assert len(result.output.splitlines()) == 1


async def test_authorize_decides_before_the_mailbox_and_sees_the_verified_peer(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[str, str, str]] = []

    def authorize(call: Call) -> bool:
        assert call.peer is not None
        seen.append((call.method, call.peer.role, call.peer.name))
        if call.method == "weigh":
            raise ValueError("the secret of the scales")
        return call.method != "look" or call.peer.role == "node"

    async with (
        vault_on_node(authority, authorize=authorize) as (node, own),
        client(authority, node, "operator") as peer,
    ):
        vault: Vault = peer.endpoint.make_handle((await peer.lookup("vault")).address, Vault)
        with caplog.at_level(logging.WARNING, "understudy.audit"):
            assert "authorize did not return True" in await refusal(vault.look)
        assert "vault.look" in caplog.text
        assert "operator 'someone'" in caplog.text
        # What it raises refuses the call, and does not reach the caller.
        assert "scales" not in await refusal(vault.weigh)
        assert await vault.open() == "open"
        assert await own.look() == "gold"
        assert ("look", "operator", "someone") in seen
        assert ("look", "node", "here") in seen


async def test_an_authorize_that_is_none_is_refused_at_once() -> None:
    async def later(call: Call) -> bool:
        return True

    wrong: Any
    for wrong in (later, 5):
        with pytest.raises(TypeError, match="authorize"):
            async with open_node(authorize=wrong):
                pytest.fail("opened")
    for wrong in ("actors:Actor", [5], ["no.such.module:Class"], ["os:getcwd"]):
        with pytest.raises((TypeError, ValueError), match="spawnable"):
            async with open_node(spawnable=wrong):
                pytest.fail("opened")


async def test_a_client_cannot_take_the_session_of_a_node(authority: Authority) -> None:
    async with vault_on_node(authority) as (node, _):
        with pytest.raises((WrongCertificateError, RemoteError, OSError)):
            async with open_node(
                "mallory", join=node.address, tls=authority.tls(node_uri("mallory", role="client"))
            ):
                pytest.fail("joined")
        assert await trio.to_thread.run_sync(lambda: [one.name for one in node.members()]) == [
            "here"
        ]
