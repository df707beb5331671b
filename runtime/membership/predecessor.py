"""Whether a node of the same name that is still in the store has ended: then its successor need not wait for its lease."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from runtime.environment import Environment
from runtime.links.transports import Network

if TYPE_CHECKING:
    from runtime.membership.members import NodeRecord

DIAL_SECONDS = 1.0


def is_certainly_over(record: NodeRecord, environment: Environment) -> bool:
    """True if its process ran on this machine, and has ended."""
    return environment.has_ended(record.process)


async def accepts_connections(record: NodeRecord, network: Network) -> bool:
    """True if somebody listens at one of its addresses. If nobody does it may still be alive, so this decides only how long to wait."""
    for address in record.addresses:
        if address.startswith("tcp:"):
            with trio.move_on_after(DIAL_SECONDS):
                try:
                    (await network.connect(address)).close()
                except (OSError, ValueError):
                    continue
                return True
    return False
