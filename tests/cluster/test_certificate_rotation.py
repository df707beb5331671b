"""Certificates and the CA of real nodes are replaced while they work, and while their connections
are cut.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio

from runtime import open_node
from runtime.links.tls import TlsConnection
from runtime.node import Node, internals_of
from runtime.testing import Platform
from tests.authority import Authority, Elsewhere, node_uri
from tests.cluster.rotating_actors import Echo, Relay
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.long]


class Place:
    """The directory of a node, with its three files."""

    def __init__(self, parent: Path, name: str) -> None:
        self.name = name
        self.path = parent / name
        self.path.mkdir()

    def certify(self, authority: Authority) -> None:
        """Write a new key and a new certificate of `authority`."""
        authority.tls(node_uri(self.name), place=self.path, stem="own")

    def trust(self, *authorities: Authority) -> None:
        """Replace the file of CAs."""
        aside = self.path / "aside"
        aside.write_bytes(b"".join(authority.pem for authority in authorities))
        aside.rename(self.path / "ca.pem")

    @property
    def options(self) -> list[str]:
        files = ("ca.pem", "own.pem", "own-key.pem")
        return [
            word
            for option, file in zip(("--tls-ca", "--tls-cert", "--tls-key"), files, strict=True)
            for word in (option, str(self.path / file))
        ]


@asynccontextmanager
async def node_process(place: Place, join: str | None) -> AsyncIterator[trio.Process]:
    words = [
        *(sys.executable, "-m", "tests.cluster.elsewhere", "node", "--name", place.name),
        *("--listen", "127.0.0.1:0", *place.options),
        *(() if join is None else ("--join", join)),
    ]
    environment = {**os.environ}
    environment.pop("UNDERSTUDY_SECRET", None)
    with (place.path / "log").open("wb") as log:
        process = await trio.lowlevel.open_process(
            words, env=environment, stdout=subprocess.DEVNULL, stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


class Load:
    """Calls all the time, over links whose connections are cut now and then while `cutting`. A call
    that fails fails the test.
    """

    def __init__(self, node: Node, echoes: list[Echo], relay: Relay) -> None:
        self.answered = 0
        self.cutting = True
        self._node = node
        self._echoes = echoes
        self._relay = relay

    async def run(self, nursery: trio.Nursery) -> None:
        for echo in self._echoes:
            nursery.start_soon(self._call, echo)
        nursery.start_soon(self._call, None)
        nursery.start_soon(self._cut)

    async def _call(self, echo: Echo | None) -> None:
        while True:
            number = self.answered
            answer = (
                await self._relay.ask("echo", number) if echo is None else await echo.echo(number)
            )
            assert answer == number
            self.answered += 1

    async def _cut(self) -> None:
        while True:
            await trio.sleep(0.1)
            if self.cutting:
                for link in tuple(internals_of(self._node).links.values()):
                    link.drop_connection()
                for echo in self._echoes:
                    await echo.cut.send()


def serial(node: Node, name: str) -> int:
    """Of the certificate that a peer has shown."""
    for link in internals_of(node).links.values():
        if link.peer.name == name and isinstance(link.connection, TlsConnection):
            return int((link.connection.tls.getpeercert() or {})["serialNumber"], 16)  # type: ignore[arg-type]
    return 0


def connections(node: Node, *names: str) -> list[int]:
    return [
        link.counters.connections
        for link in internals_of(node).links.values()
        if link.peer.name in names
    ]


def certify(places: Sequence[Place], authority: Authority) -> dict[str, int]:
    """New certificates for all, and the serial number of each that is shown to the driver."""
    serials = {}
    for place in places:
        place.certify(authority)
        serials[place.name] = authority.issued["own"].serial_number
    del serials["driver"]
    return serials


async def shown(node: Node, serials: dict[str, int]) -> None:
    await until(
        lambda: all(serial(node, name) == number for name, number in serials.items()),
        "the new certificates are shown",
    )


@pytest.mark.timeout(280)
async def test_certificates_and_the_ca_of_real_nodes_are_replaced_and_no_call_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNDERSTUDY_SECRET", raising=False)
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    names = ("w1", "w2", "driver")
    places = [Place(tmp_path, name) for name in names]
    left_out = Place(tmp_path, "forgotten")
    for place in (*places, left_out):
        place.certify(old)
        place.trust(old)
    driver_place = places[2]
    tls = old.tls(node_uri("driver"), place=driver_place.path, stem="own")
    with trio.fail_after(270):
        async with AsyncExitStack() as stack:
            node = await stack.enter_async_context(
                open_node("driver", tls=tls, platform=Platform(environment=Elsewhere()))
            )
            for place in places[:2]:
                await stack.enter_async_context(node_process(place, node.address))
            forgotten = await stack.enter_async_context(node_process(left_out, node.address))
            await node.wait_for(4)
            echo = await node.options(name="echo", on="w1").spawn(Echo)
            other = await node.options(on="w2").spawn(Echo)
            relay = await node.options(on="w2").spawn(Relay)
            load = Load(node, [echo, other], relay)
            nursery = await stack.enter_async_context(trio.open_nursery())
            await load.run(nursery)
            for _ in range(3):
                await shown(node, certify(places, old))
            for place in (*places, left_out):
                place.trust(old, new)
            for _ in range(3):
                await shown(node, certify(places, new))
            load.cutting = False
            before = connections(node, "w1", "w2")
            for place in places:
                place.trust(new)
            await until(
                lambda: all(
                    now > then
                    for now, then in zip(connections(node, "w1", "w2"), before, strict=True)
                ),
                "each connection is made anew",
            )
            # Its certificate is one of the old CA: it cannot renew its lease, and is a member no
            # more.
            await until(
                lambda: "forgotten" not in {member.name for member in node.members()},
                "the forgotten one is out",
            )
            assert len(node.members()) == 3
            forgotten.kill()
            load.cutting = True
            reached = load.answered + 200
            await until(lambda: load.answered > reached, "calls go on")
            nursery.cancel_scope.cancel()
    log = (left_out.path / "log").read_bytes()
    assert b"the other end does not know the CA of this side's certificate" in log
    assert b"Traceback" not in log
