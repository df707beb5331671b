"""The members of a pool, as one node sees them: their handles, how much they have to do, and who
comes and goes.

A pool is followed while it is held: its supervisor reports the members, and each call reports the
death of one at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar, Unpack

import attrs
import trio

from actors.actor import Actor, Spawner
from actors.errors import (
    ActorNotFoundError,
    CallError,
    PoolStoppedError,
    StoreError,
)
from actors.handle import Handle
from actors.identifiers import ActorId, NodeId
from actors.method import Address
from actors.options import SpawnChanges
from actors.own_logger import own_logger
from actors.retry import RetryPolicy
from runtime.calls.actor_loads import ActorLoad, CountingCaller
from runtime.calls.endpoint import RpcEndpoint
from runtime.calls.filtered_calls import caller_for
from runtime.environment import Environment
from runtime.hosting.item_batches import BATCH_METHODS
from runtime.membership.journals import Journals
from runtime.pools.supervisor import CoroutineMember, FunctionMember, PoolView

A = TypeVar("A")

AGAIN_SECONDS = 0.2
"""Seconds between attempts to reach a pool's supervisor, while it moves for example."""

WHILE_IT_MOVES = RetryPolicy(initial_delay=0.1, max_delay=2.0, max_retries=8)
"""The policy of calls to a pool's supervisor: its node may die under them, and then another starts
it. All its methods but the stream are idempotent.
"""

MOST_MISSING = 60.0
"""After so many seconds without a supervisor a named pool counts as stopped."""

logger = own_logger("understudy.pools")


class PoolNode(Protocol):
    """The part of a node that a pool needs: of a `runtime.Node`, or of a `NodeClient` in an
    isolated process.
    """

    _endpoint: RpcEndpoint
    _environment: Environment
    _nursery: trio.Nursery
    _journals: Journals | None

    def options(self, **changes: Unpack[SpawnChanges]) -> Spawner:
        """A way to start actors."""
        ...

    async def lookup(self, name: str, actor: Callable[..., A]) -> A:
        """The handle of an actor."""
        ...

    async def stop(self, handle: object, *, reason: str = "stopped") -> None:
        """Stop an actor."""
        ...


def member_class(actor: object) -> type[Actor]:
    """The class of the members of a pool of `actor`."""
    if isinstance(actor, type) and issubclass(actor, Actor):
        return actor
    return CoroutineMember if inspect.iscoroutinefunction(actor) else FunctionMember


class PoolMembers:
    """The members of one pool, as this node sees them."""

    def __init__(self, node: PoolNode, supervisor: Handle, actor: object) -> None:
        self.name = supervisor.name
        self.endpoint = node._endpoint
        self.environment = node._environment
        self.failure: Exception | None = None
        """Why the pool does nothing more; None while it lives."""
        self.scope = trio.CancelScope()
        self.supervisor: Any = supervisor
        self.repeating: Any = supervisor.options(retry=WHILE_IT_MOVES)
        """The same handle for calls, which are made again; a stream takes no retry policy."""
        self.view = PoolView()
        methods = dict(getattr(member_class(actor), "__methods__", {}))
        self._methods = {**methods, **BATCH_METHODS}
        self._users_caller = caller_for(self.endpoint.users_caller, member_class(actor))
        self.has_filters = self._users_caller is not self.endpoint.caller
        """True if calls of members pass filters on this node. Each call has its own context, which
        they may change, so no items travel in batches.
        """
        self._public = methods
        self._node = node
        self._handles: dict[ActorId, Handle] = {}
        self._addresses: dict[ActorId, Address] = {}
        self._loads: dict[ActorId, ActorLoad] = {}
        self._changed = trio.Event()

    def see(self, view: PoolView) -> None:
        """Replace the members by those of this view."""
        self.view = view
        # A call is for this epoch of the member: when the member ends, no call waits for a
        # successor.
        self._addresses = {
            address.actor_id: attrs.evolve(address, registered=False) for address in view.members
        }
        loads = self.endpoint.actor_loads
        self._loads = {
            member: self._loads.get(member) or loads.of(member)
            for member in (*self._addresses, *self._handles)
        }
        for member in [one for one in self._handles if one not in self._addresses]:
            # It is no member any more. Its handle stays while it has calls.
            if not self._loads[member].calls:
                del self._handles[member], self._loads[member]
        self._tell()

    async def follow(self) -> None:
        """Follow every change of the members, until the pool has ended or is no longer held."""
        try:
            await self._follow()
        finally:
            # Cancelled with the tasks of the node: what waits for members would wait for ever.
            if self.failure is None and not self.scope.cancel_called:
                self.failure = self.endpoint.lifetime.error()
            self._tell()

    async def _follow(self) -> None:
        with self.scope:
            missing_since: float | None = None
            while self.failure is None:
                try:
                    async with self.supervisor.watch_members() as views:
                        async for view in views:
                            missing_since = None
                            self.see(view)
                            if view.stopped:
                                raise PoolStoppedError(f"pool {self.name} was stopped")
                except PoolStoppedError as error:
                    self.failure = error
                except (CallError, StoreError) as error:
                    now = self.environment.now()
                    missing_since = now if missing_since is None else missing_since
                    named = self.supervisor.address.registered
                    if isinstance(error, ActorNotFoundError) and (
                        not named or now - missing_since > MOST_MISSING
                    ):
                        self.failure = PoolStoppedError(
                            f"pool {self.name} has ended: {error}", actor=self.name
                        )
                    elif self.endpoint.lifetime.has_ended:
                        # Not that error: the stream may hear of a link that broke first.
                        self.failure = self.endpoint.lifetime.error()
                    elif self.endpoint.lifetime.is_over:
                        self.failure = error
                self._tell()
                if self.failure is None:
                    await trio.sleep(AGAIN_SECONDS)

    def present(self) -> Iterable[ActorId]:
        """The members that take items."""
        return self._addresses

    def out_of_reach(self) -> set[ActorId]:
        """Those of them whose nodes cannot be reached at the moment."""
        is_unreachable = self.endpoint.peers.is_unreachable
        return {
            member for member, address in self._addresses.items() if is_unreachable(address.node_id)
        }

    def reachable(self) -> list[ActorId]:
        """The members on nodes that can be reached at the moment; all if there is none."""
        away = self.out_of_reach()
        return [one for one in self._addresses if one not in away] or list(self._addresses)

    def handle(self, member: ActorId) -> Any:
        """Return a handle of this epoch of a member, for the methods of its class and of batches.
        Raises ActorNotFoundError if it is no member any more.
        """
        found = self._handles.get(member)
        if found is None:
            address = self._addresses.get(member)
            if address is None:
                raise ActorNotFoundError(
                    f"{member.name} is not a member of pool {self.name} any more", actor=member.name
                )
            caller = CountingCaller(self.endpoint.caller, self._loads[member])
            found = self._handles[member] = Handle(caller, address, self._methods)
        return found

    def public_handle(self, member: ActorId) -> Any:
        """A handle of a member for users: that of its class."""
        caller = CountingCaller(self._users_caller, self._loads[member])
        return Handle(caller, self._addresses[member], self._public)

    def item_handle(self, member: ActorId) -> Any:
        """Return a handle of this epoch of a member for single items, through the filters that
        users' calls pass here.
        """
        own = self.handle(member)
        if self._users_caller is self.endpoint.caller:
            return own
        return Handle(
            CountingCaller(self._users_caller, self._loads[member]), own.address, self._public
        )

    def node_of(self, member: ActorId) -> str:
        """Return the name of a member's node; "" if it is not known."""
        place = self.place_of(member)
        return "" if place is None else place.name

    def place_of(self, member: ActorId) -> NodeId | None:
        """Return the node of a member, with its incarnation; None if it is not known."""
        address = self._addresses.get(member)
        if address is None:
            # It is no member any more, and still has items.
            found = self._handles.get(member)
            address = found.address if found is not None else None
        return None if address is None else address.node_id

    def depth(self, member: ActorId) -> int:
        """How many calls a member has, as far as this node knows."""
        address = self._addresses[member]
        known = self._loads[member].depth
        if (address.node, address.incarnation) == self.endpoint.identity:
            cell = self.endpoint.host.cells.get(member.name)
            return known if cell is None else max(self._loads[member].calls, cell.depth)
        return known

    async def wait_changed(self) -> None:
        """Wait until the members have changed."""
        await self._changed.wait()

    async def ask_for(self, members: int) -> None:
        """Ask the supervisor for more members, if the pool may grow. An error is only logged."""
        size = self.view.size
        if size.per_node is None and size.least < size.most and len(self._addresses) < size.most:
            try:
                await self.repeating.ask_for(members)
            except (CallError, StoreError) as error:
                logger.debug("pool %s was not asked for members: %s", self.name, error)

    def _tell(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
