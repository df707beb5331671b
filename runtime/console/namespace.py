"""What is there for the statements of a console: the cluster, the node and short ways to both."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import islice
from types import ModuleType
from typing import Any, Unpack, cast

import trio

import actors
from actors.actor import Member, Spawner
from actors.errors import CallError
from actors.handle import Handle, with_methods
from actors.options import SpawnChanges, SpawnOptions
from runtime.console.evaluation import BackgroundTasks
from runtime.doors.connections import starting_on
from runtime.node import Node, internals_of
from runtime.observation.tree import Tree
from runtime.printable import many

MODULE = "__console__"
"""The module in which statements run, and whose classes are those that statements define."""

METHODS_SECONDS = 1.0
"""How long `lookup` waits for the names of methods."""

MOST_METHODS = 1_000


class ConsoleCluster:
    """The cluster that a console is connected to."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self._node.cluster

    def members(self) -> tuple[Member, ...]:
        """The nodes known to be in the cluster now, the console's own included."""
        return self._node.members()

    async def names(self) -> list[str]:
        """The names of all named actors. Raises `StoreError` while the store is away."""
        return sorted(address.name for address in await internals_of(self._node).names.all())

    async def tree(self) -> Tree:
        """The supervisors and their children; see `Node.tree`. At the prompt its value is drawn."""
        return await self._node.tree()

    async def lookup(self, name: str, actor: Callable[..., object] | None = None) -> Any:
        """The handle of the actor of this name; see `Node.lookup`. Its class need not be given:
        where it is not imported here, the actor's node is asked for the names of its methods.
        """
        if actor is not None:
            return await self._node.lookup(name, actor)
        handle = cast("Handle", await self._node.lookup(name))
        return handle if handle._methods is not None else await self._described(handle)

    async def _described(self, handle: Handle) -> Handle:
        address = handle.address
        service = internals_of(self._node).endpoint.node_service(address.node, address.incarnation)
        try:
            found: object = await service.options(timeout=METHODS_SECONDS).methods(address.name)
        except CallError:
            # Of an earlier version, or busy. Then any method may be tried.
            return handle
        # Its answer is no reason to fail here, whatever it is.
        known = found if isinstance(found, dict) else {}
        streams = {
            name: stream is True
            for name, stream in islice(known.items(), MOST_METHODS)
            if isinstance(name, str) and name.isidentifier() and not name.startswith("_")
        }
        return with_methods(handle, streams) if streams else handle

    def options(self, **changes: Unpack[SpawnChanges]) -> Spawner:
        """A way to start actors with options; see `SpawnOptions`. Where nothing is said of their
        place, they start on the node with the fewest, and not in the console, which will be left.
        """
        return starting_on(self._node, SpawnOptions(**changes))

    async def spawn(self, actor: Callable[..., object], /, *args: object, **kwargs: object) -> Any:
        """Start an actor under a generated name, on the node with the fewest actors."""
        return await self.options().spawn(actor, *args, **kwargs)

    def __repr__(self) -> str:
        names = ", ".join(member.name for member in self.members()[:10])
        return f"<cluster {self.name}: {many(len(self.members()), 'node')}: {names}>"


def console_namespace(
    cluster: ConsoleCluster, node: Node, background: BackgroundTasks
) -> dict[str, object]:
    """The namespace of the statements, which is that of the module `__console__`: classes that they
    define are found there, by this process alone.
    """
    module = ModuleType(MODULE, "What the statements of this shell define.")
    sys.modules[MODULE] = module
    found = vars(module)
    found.update(
        cluster=cluster,
        node=node,
        lookup=cluster.lookup,
        spawn=cluster.spawn,
        options=cluster.options,
        nursery=background,
        enter=background.enter,
        trio=trio,
        actors=actors,
    )
    return found
