"""The processes of the isolated actors of one node, forked from a warm one that is started with the first of them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Protocol, cast

import cbor2
import trio

from actors.actor import Actor
from actors.messages import MAIN_ALIAS
from actors.options import SpawnOptions
from runtime.calls.station import Station
from runtime.environment import Environment
from runtime.hosting.host import plain_instance
from runtime.isolation.lodging import Lodging
from runtime.isolation.neighbourhood import IsolationService, Neighbourhood
from runtime.isolation.orders import ISOLATION_SERVICE, Order
from runtime.isolation.stand_in import Quarters, StandIn, forwarded
from runtime.processes import ChildProcess, ForkServer, ForkServerDiedError, ProcessError, open_fork_server

logger = logging.getLogger("understudy.actors")

RESIDENT_MODULE = "runtime.isolation.resident"

GRACE = 0.2
"""Seconds between SIGTERM and SIGKILL for what is left of processes when their node closes. Their actors have been stopped by then."""


class Isolation(Protocol):
    """How a node gives actors a process of their own."""

    def instance(self, cls: type[Actor], options: SpawnOptions) -> Actor:
        """What the host is to construct, start and call for an actor of this class."""
        ...


IsolationFactory = Callable[[Station, Neighbourhood, trio.Nursery, Environment, bytes], Isolation]
"""Makes the isolation of a node. Its tasks live in the nursery, which is the node's; the last is the cluster's secret."""


class WithoutProcesses:
    """Where there are no processes: every actor runs in its node, whatever its options say."""

    def instance(self, cls: type[Actor], options: SpawnOptions) -> Actor:
        """See `Isolation.instance`."""
        return plain_instance(cls, options)


def without_processes(
    station: Station, neighbourhood: Neighbourhood, nursery: trio.Nursery, environment: Environment, secret: bytes
) -> WithoutProcesses:
    """See `WithoutProcesses`: for simulated nodes."""
    return WithoutProcesses()


def open_processes(
    station: Station, neighbourhood: Neighbourhood, nursery: trio.Nursery, environment: Environment, secret: bytes
) -> Processes:
    """Real processes; see `Processes`."""
    return Processes(station, neighbourhood, nursery, environment, secret)


class Processes:
    """The isolation of a node, with real processes. `nursery` is the node's, so that nothing outlives the node."""

    def __init__(
        self, station: Station, neighbourhood: Neighbourhood, nursery: trio.Nursery, environment: Environment, secret: bytes
    ) -> None:
        self._station = station
        self._neighbourhood = neighbourhood
        self._nursery = nursery
        self._environment = environment
        self._secret = secret
        self._classes: dict[type[Actor], type[StandIn]] = {}
        self._lodgings: dict[str, Lodging] = {}
        self._spares: list[Lodging] = []
        self._adding = False
        self._names: dict[str, str] = {}
        """Which actor is in which process: for people who read what it prints."""
        self._server: ForkServer | None = None
        self._server_scope = trio.CancelScope()
        self._opening = trio.Lock()
        station.host.add_system(ISOLATION_SERVICE, IsolationService(neighbourhood, self._lodgings, station.codec.size_of))

    def instance(self, cls: type[Actor], options: SpawnOptions) -> Actor:
        """See `Isolation.instance`."""
        if options.isolation == "none":
            return plain_instance(cls, options)
        kind = self._classes.get(cls)
        if kind is None:
            kind = self._classes[cls] = type(f"StandInOf{cls.__name__}", (StandIn,), {"handles_exits": cls.handles_exits})
            kind.__methods__ = forwarded(cls.__methods__)
        stand_in = kind.__new__(kind)

        async def prepare(order: Order) -> Quarters:
            return await self._prepare(cls, order)

        turns = self._station.host.turns
        stand_in.furnish(cls, options, prepare, lambda: turns.chain(trio.lowlevel.current_task()))
        return stand_in

    async def _prepare(self, cls: type[Actor], order: Order) -> Lodging:
        """A process for an order: the spare one if there is one, and another to be spare. Raises ProcessError."""
        lodging = next((spare for spare in self._spares if spare.reason is None), None)
        if lodging is None:
            lodging = await self._new(cls.__module__)
        else:
            self._spares.remove(lodging)
        self._names[lodging.identity[0]] = order.address.name
        lodging.assign(order, forwarded(cls.__methods__))
        if not self._spares and not self._adding:
            self._adding = True
            self._nursery.start_soon(self._add_spare, cls.__module__, lodging, name="spare process")
        return lodging

    async def _add_spare(self, module: str, before: Lodging) -> None:
        try:
            # The one that somebody waits for first: the cores may be few.
            await before.started()
            self._spares.append(await self._new(module))
        except (ProcessError, OSError) as error:
            # The next actor tries again, and tells.
            logger.info("there is no spare process for the next isolated actor: %s", error)
        finally:
            self._adding = False

    async def _new(self, module: str) -> Lodging:
        """A process that waits for its order. Raises ProcessError."""
        ticket = self._environment.token(16).hex()
        identity = (f"process-{self._environment.token(6).hex()}", self._neighbourhood.incarnation)
        lodging = self._lodgings[ticket] = Lodging(self._station, identity, self._neighbourhood)
        try:
            child = await self._fork(cbor2.dumps(self._settings(ticket, identity)), identity[0], module)
        except BaseException:
            del self._lodgings[ticket]
            raise
        lodging.take(child)
        self._nursery.start_soon(self._watch, ticket, lodging, name=f"end of {identity[0]}")
        return lodging

    async def _watch(self, ticket: str, lodging: Lodging) -> None:
        await lodging.watch()
        del self._lodgings[ticket]
        self._names.pop(lodging.identity[0], None)
        if lodging in self._spares:
            self._spares.remove(lodging)

    def _settings(self, ticket: str, identity: tuple[str, int]) -> dict[str, object]:
        introduction = self._station.peers.introduction
        return {
            "ticket": ticket,
            "name": identity[0],
            "incarnation": identity[1],
            "cluster": introduction.cluster,
            "secret": self._secret,
            "host": introduction.peer.host,
            "address": next(address for address in introduction.peer.addresses if address.startswith("unix:")),
            "node": self._neighbourhood.name,
            "node_incarnation": self._neighbourhood.incarnation,
            "call_timeout": self._station.caller.call_timeout,
            "level": logging.getLogger("understudy").getEffectiveLevel(),
        }

    async def _fork(self, argument: bytes, name: str, module: str) -> ChildProcess:
        server = await self._warm(module)
        try:
            return await server.start(f"{RESIDENT_MODULE}:run", argument, name)
        except ForkServerDiedError:
            async with self._opening:
                if self._server is server:
                    self._server = None
                    self._server_scope.cancel()
            # Somebody has killed it: the next one is as good.
            return await (await self._warm(module)).start(f"{RESIDENT_MODULE}:run", argument, name)

    async def _warm(self, module: str) -> ForkServer:
        """The warm process; started if there is none, with `module` imported in it so that the processes need not."""
        async with self._opening:
            server = self._server
            if server is None:
                self._server_scope = trio.CancelScope()
                server = self._server = cast("ForkServer", await self._nursery.start(self._keep_warm, module, self._server_scope))
            return server

    async def _keep_warm(self, module: str, scope: trio.CancelScope, *, task_status: trio.TaskStatus[ForkServer]) -> None:
        with scope:
            async with AsyncExitStack() as stack:
                # A fork server runs the main script by itself, under either of its names: on a worker of a local cluster, which was forked
                # from such a server, the script's classes have the second.
                preload = [RESIDENT_MODULE] if module in ("__main__", MAIN_ALIAS) else [RESIDENT_MODULE, module]
                task_status.started(await stack.enter_async_context(open_fork_server(preload=preload, on_line=self._print, grace=GRACE)))
                await trio.sleep_forever()

    def _print(self, process: str, line: str) -> None:
        """Something that a process has printed comes out here, with the actor's name."""
        try:
            sys.stderr.write(f"[{self._names.get(process, process)}] {line}\n")
        except (AttributeError, OSError, ValueError):
            # Nobody is left to read it; that must not take the actors down.
            pass
