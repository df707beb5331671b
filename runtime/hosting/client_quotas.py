"""What processes that are no nodes may take of this node: how many actors of theirs live here, and
how many bytes the arguments of their calls hold, and the results that they keep.

Each is known by the name in its certificate, so that a client that comes back, or connects
twice, has one quota. One that has shown no certificate may name itself as it likes: it is counted
by its process. An actor that a client has started goes on when the client goes, as it does when a
node has started it, and counts until it ends. No I/O and no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from weakref import WeakValueDictionary

from actors.errors import NotAllowedError
from actors.identifiers import ActorId
from actors.method import Address
from actors.peers import VerifiedPeer
from actors.supervision import ExitReason
from runtime.audit import AuditLog
from runtime.hosting.cell import ActorCell, RefusedElsewhereError
from runtime.hosting.held_bytes import ByteBudget
from runtime.links.client_names import quota_key

CLIENT_ACTORS: Final = 1000
"""Actors of one client that may live on a node, unless the node has another limit."""

CLIENT_BYTES: Final = 512 * 1024 * 1024
"""Bytes that the arguments of one client's calls may take on a node, in all of its mailboxes."""

CALL_BYTES: Final = 8 * 1024
"""Bytes for which a call counts besides its arguments while it waits or runs: its task, and what
else the node keeps for it. Without them a million calls without arguments would be within the
limit.
"""

CLIENT_QUESTIONS: Final = 2000
"""Calls of one client to the runtime's own services that may wait or run on a node, over all of its
sessions. Most are answered at once. Those that wait for something are woken together, and a task
takes about 50 microseconds of the loop for that.
"""

CLIENT_VALUES: Final = 4 * 1024 * 1024 * 1024
"""Bytes of the results that one client may keep on a node, in memory and on disk."""

REFERENCE_BYTES: Final = 1024
"""Bytes for which a result counts besides its own: what the node knows of each reference."""


class ClientQuotas:
    """The quotas of all clients of a node. Also the `HostExtension` that hears of ends.

    `most_actors`: of one client. `node`: the node's name. `is_living(address)`: True while the node
    has the actor.
    """

    def __init__(
        self,
        most_actors: int,
        node: str,
        audit: AuditLog,
        is_living: Callable[[Address], bool],
    ) -> None:
        self._most_actors = most_actors
        self._node = node
        self._audit = audit
        self._is_living = is_living
        self._actors: dict[ActorId, str] = {}
        """Whose quota each living actor counts for."""
        self._counts: Counter[str] = Counter()
        """Living actors and starts under way, of the clients that have any."""
        self._budgets: WeakValueDictionary[str, ByteBudget] = WeakValueDictionary()
        # A budget lives as long as a call counts in it: there are no more of them than calls.
        self._values: WeakValueDictionary[str, ByteBudget] = WeakValueDictionary()
        # The same of results that are kept.
        self._questions: WeakValueDictionary[str, ByteBudget] = WeakValueDictionary()
        # The same of calls to services, each of which counts for 1.

    @property
    def actors(self) -> int:
        """Actors that clients have started and that live here."""
        return len(self._actors)

    def held(self) -> dict[str, int]:
        """Bytes that the arguments of each client's calls hold, of those that have any."""
        return {key: budget.held for key, budget in self._budgets.items()}

    def budget_of(self, peer: VerifiedPeer) -> ByteBudget:
        """The bytes that the arguments of a client's calls may hold."""
        key = quota_key(peer)
        budget = self._budgets.get(key)
        if budget is None:
            budget = self._budgets[key] = ByteBudget(CLIENT_BYTES)
        return budget

    def questions_of(self, peer: VerifiedPeer) -> ByteBudget:
        """The calls to services of the runtime that a client may have waiting or running."""
        key = quota_key(peer)
        budget = self._questions.get(key)
        if budget is None:
            budget = self._questions[key] = ByteBudget(CLIENT_QUESTIONS)
        return budget

    def values_of(self, peer: VerifiedPeer) -> ByteBudget:
        """The bytes that results may take which a client keeps here."""
        key = quota_key(peer)
        budget = self._values.get(key)
        if budget is None:
            budget = self._values[key] = ByteBudget(CLIENT_VALUES)
        return budget

    @contextmanager
    def starting(
        self, peer: VerifiedPeer, count: int, started: Sequence[Address]
    ) -> Iterator[None]:
        """Count `count` starts that a client asks for. At the end of the block, those go on to
        count whose actors are in `started` and live. Refuses the call with `NotAllowedError` if the
        client would have too many.
        """
        key = quota_key(peer)
        # Starts under way count: a client may ask for many at once.
        if self._counts[key] + count > self._most_actors:
            has = self._counts[key]
            self._drop_empty(key)
            why = (
                f"it has {has:,} actors here and asks for {count:,} more, where "
                f"{self._most_actors:,} are allowed (--client-actors); stop some, or start them "
                "with an idle_timeout"
            )
            self._audit.on_refused(peer, "@node.spawn", why)
            refused = NotAllowedError(f"node {self._node} starts no actors for {peer}: {why}")
            raise RefusedElsewhereError(refused)
        self._counts[key] += count
        try:
            yield
        finally:
            for address in started:
                # What has ended meanwhile is not heard of again.
                if self._is_living(address):
                    self._actors[address.actor_id] = key
                    count -= 1
            assert count >= 0, "no more start than were asked for"
            self._counts[key] -= count
            self._drop_empty(key)

    def has_started(self, peer: VerifiedPeer, name: str, epoch: int) -> bool:
        """True if the actor lives here and counts for this client."""
        return self._actors.get(ActorId(name, epoch)) == quota_key(peer)

    def of(self, cell: ActorCell) -> None:
        """Return None: actors have no part of this extension."""

    def on_ending(self, cell: ActorCell) -> None:
        """Does nothing: an actor counts until it has ended."""

    def on_ended(self, address: Address, reason: ExitReason) -> None:
        """The actor counts no more."""
        key = self._actors.pop(address.actor_id, None)
        if key is not None:
            self._counts[key] -= 1
            self._drop_empty(key)

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. For tests and simulations."""
        living = Counter(self._actors.values())
        for key, count in self._counts.items():
            assert 0 < count <= self._most_actors
            assert living[key] <= count, "each living actor was counted when it started"
        assert not living.keys() - self._counts.keys()

    def _drop_empty(self, key: str) -> None:
        # A Counter keeps what has come to 0, and clients come and go.
        if not self._counts[key]:
            del self._counts[key]
