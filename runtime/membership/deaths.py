"""Deaths: what this node can know of the end of others, from its links and from the operating system.

Only proof counts. A broken connection proves nothing; that the process behind it has ended does, and where both are on one machine the
kernel says so. Then the lease is revoked, so that all learn of it at once rather than when it runs out.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from actors.errors import StoreError
from runtime.environment import Environment
from runtime.links.link import Link
from runtime.membership.members import Members
from runtime.store.interface import Store
from runtime.wire.introduction import Peer

PROOF_DELAYS = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Seconds between looks at a process whose connection has broken: it may take a moment to be gone."""


class Deaths:
    """`ended(identity, reason)` is told of an incarnation that is proven to have ended."""

    def __init__(
        self,
        members: Members,
        store: Store,
        environment: Environment,
        nursery: trio.Nursery,
        ended: Callable[[tuple[str, int], str], None],
    ) -> None:
        self._members = members
        self._environment = environment
        self._store = store
        self._nursery = nursery
        self._ended = ended

    def is_outdated(self, peer: Peer) -> bool:
        """True if our view of the members is later than that start of the node, and does not have it."""
        seen = self._members.find(peer.name)
        there = seen is not None and seen.member.incarnation == peer.incarnation
        return peer.role == "node" and not there and peer.incarnation <= self._members.revision

    def connection_broken(self, link: Link) -> None:
        """A connection of a live link has broken: look whether the process at its other end is there still."""
        self._nursery.start_soon(self._look_for_proof, link)

    async def _look_for_proof(self, link: Link) -> None:
        seen = self._members.find(link.peer.name)
        if seen is None or seen.member.incarnation != link.peer.incarnation:
            return
        if not seen.record.host or seen.record.host != self._environment.process().host:
            return
        for delay in PROOF_DELAYS:
            await trio.sleep(delay)
            if link.connected or link.ended is not None:
                return
            if self._environment.has_ended(seen.record.process):
                self._ended((link.peer.name, link.peer.incarnation), f"its process {seen.record.pid} has ended")
                try:
                    await self._store.revoke(seen.record.lease)
                except StoreError:
                    # Somebody else saw it too, or the store died with it.
                    pass
                return
