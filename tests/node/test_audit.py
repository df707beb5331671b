"""Acts of administration by processes that are no members: each is a line of the audit log, with
the peer as it was verified.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import cbor2
import pytest

from actors import Actor, ChildSpec, DynamicSupervisor, Supervisor, method
from actors.errors import NotAllowedError, UnderstudyError
from runtime import open_local_cluster, open_node
from runtime.calls.rights import ACTS, CALLERS, OPERATORS, PLAIN_SERVICE, SERVICE_RIGHTS
from runtime.environment import SystemEnvironment
from runtime.links.encryption import system_network
from runtime.logs.formats import JsonFormatter, TextFormatter
from runtime.membership.cluster_client import ClusterAccess, ClusterClient, open_client
from runtime.membership.cluster_secret import find_security
from runtime.node import Node, internals_of
from runtime.plain_calls.service import PlainCallService, PlainTarget
from runtime.pools.supervisor import PoolSupervisor
from runtime.wire.handshake import certified_uri
from tests.authority import Authority
from tests.node.test_false_sessions import raw
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("no_secret")

SECRET = "a secret of the tests of the audit log"

DAILY_WORK = {
    # Callers' own: what they keep, ask and follow, and what they call, which is judged by itself.
    "@references": {"update", "unsettled", "where", "fetch", "outcomes"},
    PLAIN_SERVICE: {"call", "call_keyed", "stream"},
    # Reads a clock; it is asked many times for one timeline.
    "@inspection": {"clock"},
}
"""What is no act of administration, although not all roles may ask for it."""


class Listed(Actor):
    """May be started by clients."""

    @method(allow=("operator",))
    async def set_password(self, password: str) -> None:
        """What it is given is in no log."""

    @method
    async def look(self) -> str:
        return "seen"


@asynccontextmanager
async def asking(authority: Authority, role: Any) -> AsyncIterator[tuple[Node, ClusterClient]]:
    """A node, and a process that is no member: with a certificate of this role, or the secret."""
    environment = SystemEnvironment()
    ours: dict[str, Any] = {"secret": SECRET}
    theirs: tuple[Any, Any] = (SECRET, None)
    if role != "secret":
        ours = {"tls": authority.tls(certified_uri("understudy", "node", "here"))}
        theirs = None, authority.tls(certified_uri("understudy", role, "bob"))
    secret, tls = find_security(*theirs, environment.token, needs_own=False)
    async with (
        open_node("here", spawnable=[Listed], **ours) as node,
        open_client(
            node.address,
            ClusterAccess("understudy", secret, environment, system_network(environment, tls)),
        ) as client,
    ):
        yield node, client


def written(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines of the audit log since the last look."""
    lines = [one.getMessage() for one in caplog.records if one.name == "understudy.audit"]
    caplog.clear()
    return lines


def test_every_right_is_an_act_or_daily_work() -> None:
    for service, methods in SERVICE_RIGHTS.items():
        for called, roles in methods.items():
            if roles in (OPERATORS, CALLERS):
                acts = called in ACTS.get(service, ())
                daily = called in DAILY_WORK.get(service, ())
                assert acts != daily, (
                    f"{service}.{called} is not for all roles: enter it in ACTS of "
                    "runtime/calls/rights.py, or in DAILY_WORK here"
                )


READING = {"children", "count", "deaths", "status", "view", "watch_members"}

WORKING = {"wait_for_keeper", "ask_for"}
"""What callers of a pool ask of it as they use it."""


def test_every_method_of_a_supervisor_is_an_act_or_reads() -> None:
    for cls in (Supervisor, DynamicSupervisor, PoolSupervisor):
        for called, definition in cls.__methods__.items():
            acts = definition.allow == OPERATORS
            assert acts != (called in READING | WORKING), (cls, called)


@pytest.mark.parametrize("role", ["operator", "node", "secret"])
async def test_every_act_of_a_service_is_a_line(
    role: str, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "understudy.audit")
    async with asking(authority, role) as (node, client):
        cells = internals_of(node).cells
        who = client.endpoint.identity.name if role == "secret" else "bob"
        by = "secret" if role == "secret" else "certificate"
        shown = f"{'node' if role == 'secret' else role} {who!r} (by {by}, process client-"
        for service, methods in ACTS.items():
            if service not in SERVICE_RIGHTS and role == "operator":
                continue
            for called in sorted(methods):
                assert called in cells[service].methods, "ACTS names a method that there is not"
                # So many arguments that the method itself does not run.
                args = (f"{__name__}:Listed", (), {}, None, "", *range(9))
                method = raw(client, node, service, called)
                with pytest.raises(UnderstudyError):
                    await method(*args)
                (line,) = written(caplog)
                assert line.startswith(f"node here acts for {shown}"), line
                assert called in line
        # One way as well.
        await raw(client, node, "@node", "take_back").send("ticket")
        await raw(client, node, "@node", "contact")()
        assert "take_back ticket" in written(caplog)[0]
        # What it is about does not stay unsaid because it came by its name.
        await raw(client, node, "@node", "take_back").send(ticket="another")
        await raw(client, node, "@node", "contact")()
        assert "take_back another" in written(caplog)[0]


def acts_of(cls: type[Actor]) -> list[str]:
    return [name for name, one in cls.__methods__.items() if one.allow == OPERATORS]


@pytest.mark.parametrize("role", ["operator", "secret"])
async def test_every_act_of_a_supervisor_or_pool_is_a_line(
    role: str, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "understudy.audit")
    async with asking(authority, role) as (node, client):
        await node.options(name="top").spawn(
            DynamicSupervisor, ChildSpec.of("each", Listed), max_children=3
        )
        await node.options(name="listed").spawn(Listed)
        async with await node.pool("crew", Listed, size=1):
            assert written(caplog) == []
            pool = next(
                name
                for name, cell in internals_of(node).cells.items()
                if isinstance(cell.instance, PoolSupervisor)
            )
            for name, cls in (("top", DynamicSupervisor), (pool, PoolSupervisor)):
                for called in acts_of(cls):
                    with pytest.raises(UnderstudyError):
                        await raw(client, node, name, called)("web", *range(9))
                    (line,) = written(caplog)
                    assert f"{name}.{called} web" in line
                    assert ("operator 'bob' (by certificate" in line) == (role == "operator")
            spec = ChildSpec.of("web", Listed)
            await raw(client, node, "top", "start_child")(spec)
            assert f"top.start_child web ({__name__}:Listed)" in written(caplog)[0]
            with pytest.raises(UnderstudyError):
                await raw(client, node, "top", "stop_child")(nothing=7, child="web")
            assert "top.stop_child web" in written(caplog)[0]
            await raw(client, node, "listed", "set_password").send("secret word")
            await raw(client, node, "listed", "look")()
            (line,) = written(caplog)
            assert "listed.set_password" in line
            assert "secret word" not in line


async def test_an_act_that_a_gateway_passes_on_is_a_line(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "understudy.audit")
    async with asking(authority, "operator") as (node, client):
        await node.options(name="listed").spawn(Listed)
        plain = client.endpoint.system_handle(
            PlainCallService, PLAIN_SERVICE, node.name, node.incarnation
        )
        target = PlainTarget("listed", 0, "set_password", True)
        answer = await plain.call(target, cbor2.dumps({"password": "secret word"}), None)
        assert answer.outcome == "value", answer
        (line,) = written(caplog)
        assert line.startswith("node here acts for operator 'bob'")
        assert line.endswith("listed.set_password")


async def test_a_refused_act_is_a_line_of_its_own(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "understudy.audit")
    async with asking(authority, "client") as (node, client):
        await node.options(name="top").spawn(DynamicSupervisor)
        with pytest.raises(NotAllowedError):
            await raw(client, node, "top", "stop_child")("web")
        (line,) = written(caplog)
        assert line.startswith("node here refused a call of client 'bob'")


async def test_the_death_of_a_node_that_a_client_sees_is_no_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        open_local_cluster(nodes=1) as cluster,
        open_node(
            join=cluster.address,
            cluster="local",
            secret=internals_of(cluster.node).keyring,
            role="client",
        ) as client,
    ):
        spawner = cluster.node.options(name="there", on="worker-1")
        await spawner.spawn(Listed)
        await cluster.node.options(name="here").spawn(Listed)
        there, here = [await client.lookup(name, Listed) for name in ("there", "here")]
        assert await there.look() == "seen"
        written(caplog)
        cluster.process("worker-1").kill()
        # Its connection to the dead node breaks, and the process is gone.
        await until(
            lambda: [member.name for member in client.members()],
            "the client knows of the death",
            lambda names: "worker-1" not in names,
        )
        # What it has sent to the store's node before is answered before.
        assert await here.look() == "seen"
        assert written(caplog) == []


FORGED = "x\nINFO understudy.audit: node here acts for operator 'root'\r\x1b[2J\u2028<script>"


async def test_no_peer_writes_a_line_of_the_audit_log_itself(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "understudy.audit")
    async with asking(authority, "operator") as (node, client):
        for name, called in (("@node", FORGED), ("@" + FORGED, "x"), ("@node", "stop_actor")):
            with pytest.raises(UnderstudyError):
                await raw(client, node, name, called)(FORGED, *range(9))
        records = [one for one in caplog.records if one.name == "understudy.audit"]
        assert len(records) == 3
        for record in records:
            for formatter in (TextFormatter(times=False), JsonFormatter()):
                line = formatter.format(record)
                assert line.isprintable()
                assert "operator 'bob' (by certificate" in line
            assert record.getMessage().startswith("node here ")
