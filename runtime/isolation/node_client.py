"""How an isolated actor reaches its node: through the node API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import TypeVar

import attrs
import trio

from actors.actor import Member
from actors.errors import CallError, UnderstudyError
from actors.handle import Handle
from actors.identifiers import NodeId
from actors.keywords import names_keywords
from actors.messages import import_path
from actors.method import Address
from actors.own_logger import own_logger
from actors.short_repr import short_repr
from runtime.calls.arguments import StartManyRequest, StartRequest
from runtime.calls.endpoint import RpcEndpoint
from runtime.environment import Environment
from runtime.functions.function_names import FunctionCall
from runtime.isolation.base_node import ActorStarter, BaseNode
from runtime.isolation.child_groups import GroupsClient
from runtime.isolation.node_api import NodeApi
from runtime.lifetime import AskingBlock
from runtime.links.link import Link
from runtime.links.peers import Peers
from runtime.membership.members import peer_of_member

MEMBERS_RETRY_SECONDS = 0.5
"""Seconds between two requests for the members of the cluster, if the first has failed."""

logger = own_logger("understudy.isolation")

T = TypeVar("T")


class ChildDirectory:
    """Finds actors and nodes for the calls of this process, by asking its node. `node`: that node,
    which is connected before anything is looked up.
    """

    def __init__(self, node: NodeId) -> None:
        self._node = node
        self._api: NodeApi
        self._peers: Peers

    def use(self, api: NodeApi, peers: Peers) -> None:
        """Set what the node is asked through; the endpoint, which makes them, needs this first."""
        self._api = api
        self._peers = peers

    async def locate(self, name: str) -> Address:
        """Ask the node for the address of the actor of this name. Raises like
        `PeerDirectory.locate`.
        """
        return await self._api.locate(name)

    async def link_to(self, node: str, incarnation: int) -> Link | None:
        """Return a link to that incarnation, dialled from this process. Raises like
        `PeerDirectory.link_to`.
        """
        await trio.lowlevel.checkpoint()
        link = self._peers.links.get(NodeId(node, incarnation))
        if link is not None and link.ended is None:
            return link
        if (node, incarnation) == self._node:
            return None
        member = await self._api.place(node, incarnation)
        return None if member is None else self._peers.link(peer_of_member(member))


@attrs.frozen
class ChildStarter:
    """Has actors started by the node; see `runtime.isolation.base_node.ActorStarter`."""

    _api: NodeApi
    _endpoint: RpcEndpoint
    _environment: Environment

    async def start(self, request: StartRequest, asking: AskingBlock) -> Address:
        """Start an actor through the node. Raises like `Spawner.spawn`."""
        asking.wait()
        path, kwargs = import_path(request.cls), dict(request.kwargs)
        with request.naming_arguments(self._endpoint.codec):
            return await self._ask(
                lambda ticket: self._api.start(path, request.args, kwargs, request.options, ticket)
            )

    async def start_many(self, request: StartManyRequest) -> list[Address | Exception]:
        """Start many actors through the node; returns an address or an error for each."""
        path = import_path(request.cls)
        node = self._endpoint.lifetime.node
        found = await self._ask(
            lambda ticket: self._api.start_many(
                path, request.rows, request.names, request.options, ticket
            )
        )
        return [one if isinstance(one, Address) else one.error(node) for one in found]

    async def stand(self, request: StartRequest) -> Address:
        """Make the node a candidate for a singleton, and return its address. Raises like
        `Spawner.singleton`.
        """
        path, kwargs = import_path(request.cls), dict(request.kwargs)
        with request.naming_arguments(self._endpoint.codec):
            return await self._api.stand(path, request.args, kwargs, request.options)

    async def find_started(self, name: str) -> Address | None:
        """Ask the node for the address of the actor of this name, once it has started; None if
        there is none.
        """
        return await self._api.find(name, not self._endpoint.host.starts.is_within())

    async def take_back(self, addresses: Sequence[Address]) -> None:
        """Have actors stopped whose handles were lost on their way to the task that has started
        them.
        """
        await self._api.take_back(addresses)

    async def _ask(self, start: Callable[[str], Awaitable[T]]) -> T:
        """Have something started with a ticket. What has started is stopped again if this is
        cancelled, because the answer may be under way then.
        """
        ticket = self._environment.token(8).hex()
        try:
            return await start(ticket)
        except trio.Cancelled:
            # Bounded, because the node may not answer. If it is gone, so is what it has started.
            with (
                trio.CancelScope(shield=True),
                trio.move_on_after(self._environment.timings.take_back),
                suppress(UnderstudyError),
            ):
                await self._api.take_back_ticket(ticket)
            raise


@attrs.frozen
class ChildFunctions:
    """Has functions run by the node; see `FunctionCaller`."""

    _api: NodeApi
    _endpoint: RpcEndpoint

    async def run(self, call: FunctionCall) -> object:
        """Run a function in a worker process of the cluster, through the node. Raises what the
        function raises.
        """
        with call.naming_arguments(self._endpoint.codec):
            return await self._api.run(call.path, call.args, call.kwargs, call.options)


class NodeClient(BaseNode):
    """The node as the isolated actor sees it; implements `actors.actor.NodeInterface`."""

    def __init__(
        self,
        node: NodeId,
        endpoint: RpcEndpoint,
        api: NodeApi,
        groups: GroupsClient,
        environment: Environment,
        nursery: trio.Nursery,
    ) -> None:
        self.name, self.incarnation = self._identity = node
        self._environment = environment
        self._nursery = nursery
        self._endpoint = endpoint
        self._api = api
        starter = ChildStarter(api, endpoint, environment)
        self._starter = ActorStarter(
            starter.start,
            starter.start_many,
            starter.stand,
            starter.find_started,
            starter.take_back,
        )
        self._functions = ChildFunctions(api, endpoint)
        self._group_source = groups
        self._journals = None
        """The store knows the driver of a journal by the lease of its node, and this process ends
        before that lease does.
        """
        self._members: tuple[Member, ...] = ()

    def see(self, members: tuple[Member, ...]) -> None:
        """Set the present members. Links to former members end."""
        before = {member.node_id for member in self._members}
        self._members = members
        for identity in before - {member.node_id for member in members}:
            if identity != self._identity:
                self._endpoint.on_peer_ended(
                    identity, "it has left the cluster or its lease has ended"
                )

    async def follow(self) -> None:
        """Update the members with each change that the node reports, until the node ends."""
        while True:
            try:
                async with aclosing(self._api.watch_members()) as all_members:
                    async for members in all_members:
                        self.see(members)
            except CallError as error:
                # The node has refused the request. Or the connection to it is gone, and soon this
                # process: then this is cancelled.
                logger.info("the members of the cluster are those last seen: %s", error)
            await trio.sleep(MEMBERS_RETRY_SECONDS)

    @names_keywords
    async def stop(self, handle: object, *, reason: str = "stopped") -> None:
        """See `NodeInterface.stop`. An actor that stops itself ends when its method has
        returned.
        """
        if not isinstance(handle, Handle):
            raise TypeError(f"stop takes a handle, not {short_repr(handle)}")
        host = self._endpoint.host
        invocation = host.workers.running_here()
        if invocation is not None and invocation.cell.address.name == handle.name:
            host.nursery_of(invocation.cell).start_soon(self._api.stop, handle.address, reason)
            await trio.lowlevel.checkpoint()
        else:
            await self._api.stop(handle.address, reason)

    def members(self) -> tuple[Member, ...]:
        """Return the nodes known to be in the cluster now, this one included, by name."""
        return self._members
