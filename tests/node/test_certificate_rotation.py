"""Certificates and the CA are replaced under nodes that work, and what does not hold any more ends
the connections that it had admitted.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from actors.errors import CallError, LeaseLostError, WrongCertificateError
from runtime import open_node
from runtime.links.link import Link
from runtime.links.tls import TlsConnection
from runtime.node import Node, internals_of
from runtime.testing import EtcdServer, Platform
from runtime.timings import Timings
from tests.authority import Authority, Elsewhere, node_uri
from tests.cluster.rotating_actors import Echo
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("no_secret")


FAST = Timings(lease=3.0, files_looked_at=0.05, trust_checked=0.2)
"""Where a node is to be given up."""

LASTING = attrs.evolve(FAST, lease=10.0)
"""Where none is: on a busy machine a lease of three seconds may end, and so may the patience of a
node that is refused.
"""


@attrs.frozen
class Machine:
    """A node, and the directory with its three files."""

    node: Node
    place: Path

    def link(self, other: Machine) -> Link:
        (found,) = (
            one
            for one in internals_of(self.node).links.values()
            if one.peer.name == other.node.name
        )
        return found

    def shown(self, other: Machine) -> int:
        """The serial number of the certificate that the other has shown, 0 if none stands."""
        connection = self.link(other).connection
        if connection is None:
            return 0
        assert isinstance(connection, TlsConnection)
        return int((connection.tls.getpeercert() or {})["serialNumber"], 16)  # type: ignore[arg-type]


@asynccontextmanager
async def machine(
    authority: Authority,
    place: Path,
    name: str,
    founder: Machine | None = None,
    store: str | None = None,
    timings: Timings = LASTING,
    **more: Any,
) -> AsyncIterator[Machine]:
    here = place / name
    here.mkdir()
    (here / "ca.pem").write_bytes(authority.pem)
    tls = authority.tls(node_uri(name), place=here, stem=name, **more)
    async with open_node(
        name,
        join=None if founder is None else founder.node.address,
        store=store,
        tls=tls,
        # Only one of them is on this machine, so that they meet over TCP.
        platform=Platform(environment=Elsewhere(timings, host=name)),
    ) as node:
        yield Machine(node, here)


def write_authorities(machines: list[Machine], *authorities: Authority) -> None:
    """A bundle, put in place of the file of before as a whole."""
    for each in machines:
        aside = each.place / "aside"
        aside.write_bytes(b"".join(authority.pem for authority in authorities))
        aside.rename(each.place / "ca.pem")


@asynccontextmanager
async def load(machines: list[Machine], handles: list[Echo]) -> AsyncIterator[list[int]]:
    """Calls all the time over all links, whose connections are cut now and then. A call that fails
    fails the test.
    """
    answered: list[int] = []
    async with trio.open_nursery() as nursery:

        async def call(echo: Echo) -> None:
            while True:
                assert await echo.echo(len(answered)) >= 0
                answered.append(1)

        async def cut() -> None:
            while True:
                await trio.sleep(0.1)
                for each in machines:
                    for link in tuple(internals_of(each.node).links.values()):
                        link.drop_connection()

        for echo in handles:
            nursery.start_soon(call, echo)
        nursery.start_soon(cut)
        yield answered
        reached = len(answered) + 20
        await until(lambda: len(answered) > reached, "calls go on")
        nursery.cancel_scope.cancel()


async def test_certificates_and_the_ca_are_replaced_under_load_and_no_call_fails(
    tmp_path: Path,
) -> None:
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(machine(old, tmp_path, "here"))
        there = await stack.enter_async_context(machine(old, tmp_path, "there", here))
        forgotten = await stack.enter_async_context(machine(old, tmp_path, "forgotten", here))
        rotated = [here, there]
        echo = await here.node.options(on="there").spawn(Echo)
        back = await there.node.options(on="here").spawn(Echo)
        third = await here.node.options(on="forgotten").spawn(Echo)
        await third.echo(1)
        links = here.link(there), there.link(here)

        def know_each_other(authority: Authority) -> bool:
            """By which certificates of this authority."""
            return all(
                one.shown(other) == authority.issued[other.node.name].serial_number
                for one, other in ((here, there), (there, here))
            )

        async with load(rotated, [echo, back]):
            # A new certificate of the same CA: seen at the next handshake.
            for each in rotated:
                old.tls(node_uri(each.node.name), place=each.place, stem=each.node.name)
            await until(lambda: know_each_other(old), "the new certificates are shown")
        write_authorities([*rotated, forgotten], old, new)
        async with load(rotated, [echo, back]):
            for each in rotated:
                new.tls(node_uri(each.node.name), place=each.place, stem=each.node.name)
            await until(lambda: know_each_other(new), "those of the new CA are shown")
        # From here on nothing but the change itself cuts a connection.
        made = [link.counters.connections for link in links]
        lost = here.link(forgotten)
        await until(lambda: lost.connected, "the last cut is over")
        async with load([], [echo, back]):
            write_authorities(rotated, new)
            await until(
                lambda: all(
                    link.counters.connections > before
                    for link, before in zip(links, made, strict=True)
                ),
                "each connection is made anew",
            )
            # Its certificate is one of the old CA.
            await until(lambda: bool(lost.dial_errors), "the forgotten one is refused")
            assert not lost.connected
        assert "not accepted here" in lost.undialled() or "does not know" in lost.undialled()
        assert links == (here.link(there), there.link(here)), "the sessions are those of before"


async def test_an_expired_certificate_ends_its_connection_and_a_new_one_brings_it_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "understudy")
    authority = Authority(tmp_path / "ca")
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(machine(authority, tmp_path, "here"))
        there = await stack.enter_async_context(machine(authority, tmp_path, "there", here))
        echo = await here.node.options(on="there").spawn(Echo)
        link, before = here.link(there), here.shown(there)
        # Only now, and read at once: to join may take longer than the certificate holds.
        authority.tls(node_uri("there"), place=there.place, stem="there", ends=3.0 / 86400)
        assert there.node._own_certificate()
        link.drop_connection()
        await until(
            lambda: here.shown(there),
            "the new one is shown",
            lambda shown: shown not in (0, before),
        )
        assert await echo.echo(1) == 1
        await until(
            lambda: any(
                "connecting to there again: the certificate that it has shown has expired" in line
                for line in caplog.messages
            ),
            "the end of the certificate is seen",
        )
        await until(lambda: bool(link.dial_errors), "it is not accepted again")
        assert not link.connected
        assert "certificate has expired" in link.undialled()
        async with trio.open_nursery() as nursery:
            # It waits for the connection, and does not fail.
            nursery.start_soon(echo.echo, 2)
            authority.tls(node_uri("there"), place=there.place, stem="there")
        assert here.link(there) is link
        assert link.connected


async def test_a_revoked_certificate_ends_its_connections_and_no_other_link_is_harmed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "understudy")
    authority = Authority(tmp_path / "ca")
    revoked = tmp_path / "crl.pem"
    revoked.write_bytes(authority.revoke())
    async with AsyncExitStack() as stack:

        async def opened(name: str, founder: Machine | None = None) -> Machine:
            return await stack.enter_async_context(
                machine(authority, tmp_path, name, founder, crl=revoked)
            )

        here = await opened("here")
        there, bad = await opened("there", here), await opened("bad", here)
        echo = await here.node.options(on="there").spawn(Echo)
        on_bad = await here.node.options(on="bad").spawn(Echo)
        assert await on_bad.echo(1) == 1
        link, lost = here.link(there), here.link(bad)
        before = link.counters.connections
        async with load([], [echo]):
            # Of a CA that has its list in the file, and one that does not parse: it changes
            # nothing.
            revoked.write_text("-----BEGIN X509 CRL-----\nx\n-----END X509 CRL-----\n")
            await until(
                lambda: any("holds no list of revoked" in line for line in caplog.messages),
                "the file is looked at",
            )
            assert lost.connected
            revoked.write_bytes(authority.revoke("bad"))
            # Perhaps not at its first dial, which the other end may have cut off for its reasons.
            refused = "certificate revoked; the list of revoked certificates"
            await until(lost.undialled, "it is refused", lambda why: refused in why)
            assert not lost.connected
            await until(lambda: link.counters.connections > before, "others are judged again")
        assert here.link(there) is link
        assert any(
            "the other end says that this side's certificate was revoked" in line
            for line in caplog.messages
        ), "the side that has it is told"


@pytest.mark.parametrize("how", ["expires", "is revoked"])
async def test_a_node_that_all_refuse_for_its_certificate_leaves_and_says_why(
    tmp_path: Path, how: str, etcd: EtcdServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where its lease is etcd's, which knows nothing of certificates of nodes."""
    authority = Authority(tmp_path / "ca")
    revoked = tmp_path / "crl.pem"
    revoked.write_bytes(authority.revoke())

    place: dict[str, Any] = {"store": etcd.address, "crl": revoked, "timings": FAST}

    async def until_cut_off() -> None:
        async with (
            machine(authority, tmp_path, "here", **place) as here,
            machine(authority, tmp_path, "there", **place) as there,
        ):
            echo = await there.node.options(name="echo").spawn(Echo)
            other = await here.node.lookup("echo", Echo)
            assert await other.echo(1) == 1
            if how == "expires":
                authority.tls(node_uri("there"), place=there.place, stem="there", ends=2 / 86400)
                assert there.node._own_certificate()
                here.link(there).drop_connection()
            else:
                revoked.write_bytes(authority.revoke("there"))
            await there.node.asked_to_leave.wait()
            # Its named actors have ended before others may have the name.
            with pytest.raises(CallError):
                await echo.echo(2)
            assert internals_of(there.node).given_up is not None

    with pytest.raises(LeaseLostError, match="no node accepts its certificate"):
        await until_cut_off()
    lines = [line for line in caplog.messages if "no node accepts its certificate" in line]
    assert len(lines) == 1, "it is said once"
    assert ("has expired" if how == "expires" else "was revoked") in lines[0]


async def test_a_node_that_one_refuses_goes_on_with_the_others(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    """Whose clock or files are wrong, the one that refuses cannot know."""
    authority = Authority(tmp_path / "ca")
    place: dict[str, Any] = {
        "store": f"{etcd.address}?prefix=wrong",
        "timings": attrs.evolve(FAST, lease=5.0),
    }
    for name in ("mistaken", "others"):
        (tmp_path / name).write_bytes(authority.revoke())
    async with (
        machine(authority, tmp_path, "one", crl=tmp_path / "mistaken", **place) as one,
        machine(authority, tmp_path, "two", crl=tmp_path / "others", **place) as two,
        machine(authority, tmp_path, "three", crl=tmp_path / "others", **place) as three,
    ):
        await two.node.options(name="echo").spawn(Echo)
        echo = await one.node.lookup("echo", Echo)
        assert await echo.echo(1) == 1
        # The only link that `two` has is to the node that will refuse it.
        assert [link.name for link in internals_of(two.node).links] == ["one"]
        (tmp_path / "mistaken").write_bytes(authority.revoke("two"))
        await until(
            lambda: [
                link.connected
                for link in internals_of(two.node).links.values()
                if link.peer.name == "three"
            ],
            "it has found one that accepts it",
            lambda found: found == [True],
        )
        assert internals_of(two.node).endpoint.peers.refusal() == ""
        assert not two.node.asked_to_leave.is_set()
        again = await three.node.lookup("echo", Echo)
        assert await again.echo(2) == 2


async def test_with_the_store_of_a_node_the_end_of_the_lease_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path / "ca")
    revoked = tmp_path / "crl.pem"
    revoked.write_bytes(authority.revoke())
    place: dict[str, Any] = {"crl": revoked, "timings": FAST}
    async with machine(authority, tmp_path, "here", **place) as here:

        async def until_cut_off() -> None:
            async with machine(authority, tmp_path, "there", here, **place) as there:
                revoked.write_bytes(authority.revoke("there"))
                await there.node.asked_to_leave.wait()

        with pytest.raises(LeaseLostError, match="was revoked"):
            await until_cut_off()
        # The founder, whose store all need, goes on when its own certificate is refused.
        assert not here.node.asked_to_leave.is_set()


async def test_a_client_that_all_refuse_ends_its_connection(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    revoked = tmp_path / "crl.pem"
    revoked.write_bytes(authority.revoke())
    async with machine(authority, tmp_path, "here", crl=revoked, timings=FAST) as here:
        tls = authority.tls(node_uri("ann", role="client"), stem="ann")

        async def until_cut_off() -> None:
            async with open_node(
                join=here.node.address,
                tls=tls,
                role=None,
                platform=Platform(environment=Elsewhere(FAST, host="hers")),
            ) as me:
                revoked.write_bytes(authority.revoke("ann"))
                await me.asked_to_leave.wait()

        with pytest.raises(WrongCertificateError, match="was revoked"):
            await until_cut_off()
        assert not here.node.asked_to_leave.is_set()
