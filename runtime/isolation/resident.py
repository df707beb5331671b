"""The process of an isolated actor: connected to its node as a client is, it hosts that one actor and nothing else.

It ends with its actor. It also ends by itself when it has not heard of its node for as long as a lease takes to run out: others may have
the actor's name by then.
"""

from __future__ import annotations

import functools
import logging
import os
import resource
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

import attrs
import cbor2
import trio

from actors.actor import Actor, Ignore
from actors.errors import CallError, DecodeError, HandshakeError, ProtocolError, SpawnError
from actors.handle import Handle
from actors.method import Address, method
from actors.supervision import ExitReason
from actors.watching import Ended
from runtime.calls.station import Station
from runtime.environment import Environment, SystemEnvironment
from runtime.hosting.chains import Chain
from runtime.hosting.elsewhere import why_not_started
from runtime.hosting.host import Host
from runtime.hosting.hosted import NameClaims
from runtime.isolation.following import GroupsNextDoor
from runtime.isolation.neighbourhood import IsolationService
from runtime.isolation.observing import JoiningNextDoor, WatchingNextDoor
from runtime.isolation.orders import CONTROL_SERVICE, ISOLATION_SERVICE, RESIDENT, Order, StartFailure
from runtime.isolation.saving import SavedNextDoor
from runtime.isolation.surroundings import Directory, NodeNextDoor, Service
from runtime.links.link import Link
from runtime.links.transports import SocketNetwork
from runtime.processes.collector import settle_collector
from runtime.processes.death import name_process
from runtime.references.references import MemoryOptions
from runtime.user_errors import guarded, is_cancellation, is_interrupt, module_name, text_of
from runtime.wire.classes import import_class
from runtime.wire.introduction import Introduction, Peer

logger = logging.getLogger("understudy.actors")

PATIENCE_SECONDS = 2.0
"""How long the connection to the node may be away. That it is takes some seconds of silence to be seen; both together are a lease."""

CLOSE_SECONDS = 1.0


@attrs.frozen(kw_only=True)
class Settings:
    """What a process is told when it is forked; all else it asks its node for. `host`, `address`: the node's."""

    ticket: str
    name: str
    incarnation: int
    cluster: str
    secret: bytes = attrs.field(repr=False)
    host: str
    address: str
    node: str
    node_incarnation: int
    level: int
    call_timeout: float | None


class ControlService(Actor):
    """What the node wants of the process."""

    def __init__(self, host: Host, address: Address, watching: WatchingNextDoor) -> None:
        self._host = host
        self._resident = address
        self._watching = watching
        self.asked = False
        """True once the actor was told to stop: then its end is no news."""

    @method(concurrent=True)
    async def stop(self, reason: ExitReason) -> None:
        """Let the actor end as one that is stopped."""
        self.asked = True
        await self._host.stop(self._resident.name, self._resident.epoch, reason)

    @method(concurrent=True)
    async def tell(self, notice: Ended) -> bool:
        """Let the actor have a notice in its turn, and wait for that. False if it has ended."""
        cell = self._host.cells.get(self._resident.name)
        return cell is not None and await self._watching.tell(self._host, cell, notice)


def run(argument: bytes, report: Callable[[bytes], None]) -> None:
    """What the process does; the target of the fork server."""
    told: Mapping[str, Any] = cbor2.loads(argument)
    settings = Settings(**told)
    logging.basicConfig(level=settings.level, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    settle_collector()
    trio.run(_reside, settings)


async def _reside(settings: Settings) -> None:
    environment = SystemEnvironment()
    me = Peer(
        name=settings.name,
        incarnation=settings.incarnation,
        role="client",
        host=settings.host,
        life=environment.token(8).hex(),
    )
    directory = Directory((settings.node, settings.node_incarnation))
    next_door = NodeNextDoor(settings.node, settings.node_incarnation)
    async with trio.open_nursery() as nursery:
        watching = WatchingNextDoor(next_door, nursery)
        station = Station(
            Introduction(cluster=settings.cluster, peer=me),
            settings.secret,
            environment,
            SocketNetwork(),
            nursery,
            directory,
            lambda station: _make_host(watching, nursery, environment, station),
            memory=MemoryOptions(shared=True),
        )
        station.caller.call_timeout = settings.call_timeout
        try:
            link = await station.peers.first_contact(settings.address)
            nursery.start_soon(_end_with_node, link)
            nursery.start_soon(station.peers.beat)
            nursery.start_soon(station.values.run)
            handle: Any = Handle(station.caller, Address(ISOLATION_SERVICE, *link.peer.identity), IsolationService.__methods__)
            service = Service(handle, station)
            directory.use(service)
            next_door.use(service, GroupsNextDoor(link.peer.identity, station, environment, handle, nursery))
            # Its messages can be read once its module, and what that imports, is here. If that fails, the start says so.
            guarded(functools.partial(import_class, await handle.wait(settings.ticket)), lambda failure: Actor)
            reason = await _host(station, handle, watching, settings.ticket, await handle.take(settings.ticket), nursery)
            if reason is not None:
                await handle.ended(settings.ticket, reason)
        except (CallError, HandshakeError, ProtocolError, OSError) as error:
            # The actor's own errors do not come here: its node is leaving, and has no use for this process any more.
            logger.info("the node of this process is gone: %s", error)
        await station.peers.close(CLOSE_SECONDS)
        nursery.cancel_scope.cancel()


async def _host(
    station: Station, handle: Any, watching: WatchingNextDoor, ticket: str, order: Order, nursery: trio.Nursery
) -> ExitReason | None:
    """Host the actor until it ends; how it has ended by itself, None if it never began or was stopped."""
    host, address = station.host, order.address
    name_process(address.name)
    control = ControlService(host, address, watching)
    watching.next_door.see(order.members)
    nursery.start_soon(watching.next_door.follow, handle)
    failure: StartFailure | None = None
    module = order.class_path.partition(":")[0]
    try:
        if order.options.memory_limit is not None:
            resource.setrlimit(resource.RLIMIT_AS, (order.options.memory_limit, order.options.memory_limit))
        cls = _actor_class(order.class_path)
        # The main script has another name in this process.
        module = module_name(cls)
        await host.begin(cls, order.args, order.kwargs, order.options, address, Chain(order.chain))
    except BaseException as error:  # noqa: ASYNC103  cancellations and interrupts go on
        if is_cancellation(error) or is_interrupt(error):
            raise
        if issubclass(type(error), Ignore):
            failure = StartFailure(text_of(error), "", needless=True)
        else:
            failure = StartFailure(*why_not_started(error, module))
    else:
        host.cells[RESIDENT] = host.cells[address.name]
        host.add_system(CONTROL_SERVICE, control)
    await handle.begun(ticket, failure)
    if failure is not None:
        return None
    reason = await host.watch(address.name, address.epoch)
    return None if control.asked else reason


def _actor_class(path: str) -> type[Actor]:
    found = import_class(path)
    if not issubclass(found, Actor):
        raise DecodeError(f"{path} is not a subclass of actors.Actor")
    return found


def _make_host(watching: WatchingNextDoor, nursery: trio.Nursery, environment: Environment, station: Station) -> Host:
    next_door = watching.next_door
    claims = cast("NameClaims", next_door)
    host = Host(next_door, nursery, environment, lambda: claims, station.make_handle, lambda supervisor, address: _no_supervisor())
    host.once = SavedNextDoor(next_door, host.workers, environment)
    host.extensions.add("watching", watching)
    host.extensions.add("groups", JoiningNextDoor(next_door))
    return host


def _no_supervisor() -> None:
    raise SpawnError('a supervisor cannot have a process of its own; give isolation="process" to its children instead')


async def _end_with_node(link: Link) -> None:
    """End this process, at once, when its node is gone or has not been heard of for too long."""
    while True:
        await link.disconnected()
        with trio.move_on_after(PATIENCE_SECONDS):
            await link.connected_again()
        if link.ended is not None or not link.connected:
            os._exit(1)
