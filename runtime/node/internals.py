"""The internals of a node, for the rooms above it, the simulator and tests.

What `Node` itself shows is for users: completion lists nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.node.node import Node

if TYPE_CHECKING:
    import trio

    from actors.identifiers import NodeId
    from runtime.calls.client import CallClient
    from runtime.calls.endpoint import RpcEndpoint
    from runtime.environment import Environment
    from runtime.functions.caller import FunctionCaller
    from runtime.groups.groups import Groups
    from runtime.hosting.cell import ActorCell
    from runtime.hosting.host import ActorHost
    from runtime.isolation import Isolation
    from runtime.links.keyring import Keyring
    from runtime.links.link import Link
    from runtime.membership.expulsions import Expulsions
    from runtime.membership.lookups import Lookups
    from runtime.membership.members import Members, Registration
    from runtime.membership.names import Names
    from runtime.metrics.endpoint import MetricsEndpoint
    from runtime.references.manager import ReferenceManager
    from runtime.store.interface import Store
    from runtime.supervision.spawner import ActorSpawner
    from runtime.watching.watcher import Watcher


def internals_of(node: Node) -> NodeInternals:
    """Return the parts that `node` is assembled from: `internals_of(node).endpoint.host`."""
    return NodeInternals(node)


class NodeInternals:
    """The parts of one node, as they are at the moment of each access. They are the node's own
    objects, not copies: what changes one changes the node.
    """

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def endpoint(self) -> RpcEndpoint:
        """Its calls: the links to its peers, its actors and its references."""
        return self._node._endpoint

    @property
    def caller(self) -> CallClient:
        """The client of all its calls: those of users, and the runtime's own."""
        return self.endpoint.caller

    @property
    def links(self) -> dict[NodeId, Link]:
        """Its links, by peer."""
        return self.endpoint.peers.links

    @property
    def host(self) -> ActorHost:
        """Its actors, and the services that other nodes call."""
        return self.endpoint.host

    @property
    def cells(self) -> dict[str, ActorCell]:
        """Its actors and services, by name."""
        return self.endpoint.host.cells

    @property
    def references(self) -> ReferenceManager:
        """The values that it owns, and those that it holds."""
        return self.endpoint.references

    async def stop_actors(self) -> None:
        """Stop its actors, as the founder of a local cluster does before the other nodes leave."""
        await self._node._stop_actors()

    @property
    def environment(self) -> Environment:
        """Its clock, chance, ids and timings."""
        return self._node._environment

    @property
    def nursery(self) -> trio.Nursery:
        """The nursery that all its tasks live in."""
        return self._node._nursery

    @property
    def registration(self) -> Registration:
        """Its record and its lease in the cluster's store."""
        return self._node._registration

    @property
    def store(self) -> Store:
        """The cluster's store as this node reaches it, by itself or through another node."""
        return self._node._store

    @property
    def own_store(self) -> Store | None:
        """The cluster's store if this process accesses it directly, otherwise None."""
        return self._node._own_store

    @property
    def members(self) -> Members:
        """The cluster's members as this node knows them."""
        return self._node._members

    @property
    def names(self) -> Names:
        """The names that its actors have claimed."""
        return self._node._names

    @property
    def lookups(self) -> Lookups:
        """The names of actors that it has looked up."""
        return self._node._lookups

    @property
    def spawner(self) -> ActorSpawner:
        """The spawner: places and starts actors."""
        return self._node._spawner

    @property
    def watcher(self) -> Watcher:
        """The watcher: knows which actors watch which, and notifies them."""
        return self._node._watching

    @property
    def groups(self) -> Groups:
        """The groups and their members."""
        return self._node._groups

    @property
    def functions(self) -> FunctionCaller:
        """Runs plain functions in worker processes of the cluster."""
        return self._node._functions

    @property
    def isolation(self) -> Isolation:
        """Starts actors in processes of their own."""
        return self._node._isolation

    @property
    def keyring(self) -> Keyring:
        """The secrets of the cluster that it accepts."""
        return self._node._keyring

    @property
    def expulsions(self) -> Expulsions:
        """The nodes that may not come back."""
        return self._node._expulsions

    @property
    def metrics(self) -> MetricsEndpoint | None:
        """The endpoint that serves its metrics; None if it serves none."""
        return self._node._metrics

    @property
    def given_up(self) -> Exception | None:
        """Why the cluster counts this node as dead, or refuses it; None if it does not."""
        return self._node._given_up

    @property
    def certificate(self) -> str:
        """The SHA-256 of its certificate; "" if it has none that a CA has signed."""
        return self._node._own_certificate()

    def last_backlog(self, lease: int) -> float:
        """When so much was last read at once from the holder of a lease that more may wait unread;
        -inf if that never was.
        """
        return self._node._last_backlog(lease)

    async def see_end(self, name: str, pid: int) -> None:
        """The process `pid` of a node on this machine has ended: wait until this node takes it for
        dead, as `FailureDetector.see_end` does.
        """
        await self._node._failure_detector.see_end(name, pid)

    def on_proven_end(self, node: NodeId, reason: str) -> None:
        """Take that incarnation for dead, as if its end were proven."""
        self._node._ended(node, reason)

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps of a task. Looks at all that is kept: for
        tests and simulations.
        """
        self.endpoint.check_invariants()
        self.members.check_invariants()
        self.expulsions.check_invariants()
        self.watcher.check_invariants()
        self.groups.check_invariants()
        self.spawner.check_invariants()
        self._node._candidacies.check_invariants()
