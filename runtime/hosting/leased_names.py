"""What a node does with its named actors when its lease is in doubt, held again, or lost."""

from __future__ import annotations

from collections.abc import Callable

from actors.errors import ExpelledError, LeaseLostError
from actors.own_logger import own_logger
from runtime.hosting.host import ActorHost

logger = own_logger("understudy.actors")


class LeasedNames:
    """The actors of `host` that have names of their own, which the node's lease holds. `given_up`
    is called with the error when the node has lost its lease.
    """

    def __init__(
        self,
        host: ActorHost,
        node: str,
        given_up: Callable[[LeaseLostError | ExpelledError], None],
    ) -> None:
        self._host = host
        self._node = node
        self._given_up = given_up

    def doubt(self) -> None:
        """Pause: other nodes may get the names soon."""
        self._host.pause_names()

    def hold_until(self, doubtful_at: float) -> None:
        """End the pause: the names are this node's until `doubtful_at`, on its own clock."""
        self._host.hold_names_until(doubtful_at)

    def lose(self, why: str) -> None:
        """End the named actors: the names may have new owners already, so any answer could be out
        of date.
        """
        logger.error(
            "node %s lost its lease (%s): it stops its named actors and leaves the cluster; "
            "start it again",
            self._node,
            why,
        )
        self._host.abandon_names(
            LeaseLostError(f"node {self._node} lost its lease, so its actors lost their names")
        )
        self._given_up(
            LeaseLostError(
                f"the cluster counts node {self._node} as dead: {why}; its named actors may run "
                "elsewhere by now. Start it again"
            )
        )

    def on_expelled(self, error: ExpelledError) -> None:
        """End the named actors of a node that the cluster has expelled. At once: the others wait
        for it before they take the names.
        """
        logger.error("%s. It stops its named actors and leaves", error)
        self._host.abandon_names(
            LeaseLostError(f"node {self._node} was expelled, so its actors lost their names")
        )
        self._given_up(error)
