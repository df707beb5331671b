"""Processes with wrong certificates of every kind that come to several nodes at once, while these
call each other.
"""

from __future__ import annotations

import itertools
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from actors import Actor, method
from actors.errors import CallError, EncryptionError, HandshakeError
from runtime import Node, open_node
from runtime.environment import SystemEnvironment
from runtime.node import internals_of
from runtime.testing import Platform
from runtime.timings import Timings
from tests.authority import Authority, Elsewhere, node_uri
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("no_secret")

TIMINGS = Timings(lease=60.0, trust_checked=3600.0)


class Counter(Actor):
    """Counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    @method
    async def add(self) -> int:
        self.count += 1
        return self.count


def wrong_certificates(authority: Authority, other: Authority) -> dict[str, Any]:
    uri = node_uri("stranger")
    return {
        "certificate has expired": authority.tls(uri, begins=-9, ends=-1, stem="expired"),
        "not be valid yet": authority.tls(uri, begins=1, ends=9, stem="early"),
        "does not know the CA": other.tls(uri, ca=authority.place / "ca.pem", stem="other"),
        "is for the node 'another'": authority.tls(node_uri("another"), stem="name"),
        "for the role 'client'": authority.tls(node_uri("stranger", role="client"), stem="role"),
        "was revoked": authority.tls(uri, stem="revoked"),
        "is for the cluster 'prod'": authority.tls(node_uri("stranger", cluster="prod"), stem="c"),
    }


async def test_wrong_certificates_of_all_kinds_at_once_disturb_no_link(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "understudy.links")
    wrong = wrong_certificates(authority, Authority(tmp_path / "other"))
    crl = tmp_path / "crl.pem"
    crl.write_bytes(authority.revoke("revoked"))
    async with AsyncExitStack() as stack:
        nodes: list[Node] = []
        for number in range(3):
            environment = (
                SystemEnvironment(TIMINGS) if not number else Elsewhere(TIMINGS, f"h{number}")
            )
            name = f"n{number}"
            opened = open_node(
                name,
                join=nodes[0].address if nodes else None,
                tls=authority.tls(node_uri(name), stem=name, crl=crl),
                platform=Platform(environment=environment),
            )
            nodes.append(await stack.enter_async_context(opened))
        await nodes[0].wait_for(3)
        counters = [
            await nodes[0].options(name=f"counter-{node.name}", on=node.name).spawn(Counter)
            for node in nodes
        ]
        handles = [
            await node.lookup(f"counter-{owner.name}", Counter)
            for node, owner in itertools.permutations(nodes, 2)
        ]
        for handle in handles:
            await handle.add()
        links = [link for node in nodes for link in internals_of(node).links.values()]
        before = [link.counters.connections for link in links]
        failed: list[CallError] = []
        calls = 0

        async def call(handle: Counter) -> None:
            nonlocal calls
            while True:
                try:
                    await handle.add()
                    calls += 1
                except CallError as error:
                    failed.append(error)
                await trio.sleep(0.005)

        async def come(text: str, tls: Any, node: Node) -> None:
            stranger = Platform(environment=Elsewhere(TIMINGS, text))
            with pytest.raises((EncryptionError, HandshakeError), match=text):
                async with open_node("stranger", join=node.address, tls=tls, platform=stranger):
                    pytest.fail("joined")

        async with trio.open_nursery() as callers:
            for handle in handles:
                callers.start_soon(call, handle)
            async with trio.open_nursery() as strangers:
                for (text, tls), node in itertools.product(wrong.items(), nodes):
                    strangers.start_soon(come, text, tls, node)
            made = calls
            await until(lambda: calls - made, "calls go on", lambda more: more >= len(handles))
            callers.cancel_scope.cancel()
        assert failed == []
        assert [link.counters.connections for link in links] == before
        assert all(link.ended is None for link in links)
        total = sum([await counter.add() for counter in counters])
        assert total >= calls + len(handles) + len(counters)
        # Each stranger is some lines at most on the side that refuses it.
        lines = [one for one in caplog.messages if "not accepted" in one or "refused" in one]
        assert len(lines) <= 4 * len(wrong) * len(nodes)
