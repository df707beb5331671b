"""What a node does with its named actors as its lease is in doubt, held again, or lost."""

from __future__ import annotations

import logging
from collections.abc import Callable

from actors.errors import LeaseLostError
from runtime.hosting.host import Host

logger = logging.getLogger("understudy.node")


class LeasedNames:
    """The named actors of `host`; see `runtime.membership.members.NamedActors`. `given_up` is called with the reason when the node is."""

    def __init__(self, host: Host, node: str, given_up: Callable[[LeaseLostError], None]) -> None:
        self._host = host
        self._node = node
        self._given_up = given_up

    def doubt(self) -> None:
        """Somebody else may get the names soon: pause."""
        self._host.pause_names()

    def hold_until(self, doubtful_at: float) -> None:
        """The names are ours until then, by our own clock: go on."""
        self._host.hold_names_until(doubtful_at)

    def lose(self, why: str) -> None:
        """The names may have new owners already: whatever their actors would still answer could be out of date."""
        logger.error("node %s lost its lease (%s): the cluster has given it up; it stops its named actors and leaves", self._node, why)
        self._host.abandon_names(LeaseLostError(f"node {self._node} lost its lease, and its actors their names"))
        self._given_up(
            LeaseLostError(f"the cluster has given node {self._node} up: {why}; its named actors may run elsewhere by now. Start it again")
        )
