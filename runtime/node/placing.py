"""Placing actors: what `runtime.supervision.placement` decides, with what this node knows of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from actors.errors import NodeNotFoundError, NoPlacementError, StoreError
from actors.node import Member
from actors.options import SpawnOptions
from runtime.environment import Environment
from runtime.membership.members import Members
from runtime.membership.names import Names
from runtime.membership.promises import NAMES
from runtime.store.interface import Event
from runtime.supervision.loads import Carried, Loads
from runtime.supervision.placement import Identity, Load, choose_node


class Placing:
    """Where actors go that this node starts. A `runtime.membership.lookups.Follower`: it counts what the names tell.

    `is_following()`: True while it hears of all changes; otherwise it asks each time.
    """

    def __init__(self, members: Members, names: Names, environment: Environment, is_following: Callable[[], bool]) -> None:
        self._members = members
        self._names = names
        self._environment = environment
        self._is_following = is_following
        self._loads = Loads()

    def changed(self, event: Event) -> None:
        """See `Follower.changed`."""
        name = event.key.removeprefix(NAMES)
        if event.kind == "delete":
            self._loads.gone(name, event.revision)
        else:
            owner = self._names.owner(event.value)
            self._loads.put(name, Carried((owner.node, owner.incarnation), owner.resources, event.revision))

    def forget(self) -> None:
        """See `Follower.forget`."""
        self._loads.forget()

    async def place(self, options: SpawnOptions) -> Member:
        """The node for an actor with these options. Raises `NodeNotFoundError` or `NoPlacementError`."""
        if options.on is None or options.resources:
            await self._ask()
        loads = self._loads.of
        if not self._is_following():
            self._loads.forget()
        try:
            return self._chosen(options, loads)
        except (NodeNotFoundError, NoPlacementError) as error:
            # A node that fits may be up already, and this one not have heard of it yet: the store has.
            try:
                await self._members.caught_up(self._members.revision + 1)
            except StoreError:
                raise error from None
            return self._chosen(options, loads)

    def _chosen(self, options: SpawnOptions, loads: Mapping[Identity, Load]) -> Member:
        living = [member for member in self._members.all() if not self._members.is_dead((member.name, member.incarnation))]
        return choose_node(living, options, loads, self._environment.random())

    @contextmanager
    def starting(self, options: SpawnOptions, member: Member) -> Iterator[None]:
        """While an actor is being started there it counts, though nobody has its name yet."""
        name = options.name
        if name is None:
            yield
            return
        self._loads.placed(name, (member.name, member.incarnation), options.resources)
        try:
            yield
        finally:
            self._loads.settled(name)

    async def _ask(self) -> None:
        # Once more if changes were missed meanwhile, or another placement made all be forgotten.
        while not self._loads.known:
            expected = self._loads.expect()
            owners = await self._names.owners()
            names = [(address.name, Carried((owner.node, owner.incarnation), owner.resources, address.epoch)) for address, owner in owners]
            self._loads.fill(names, expected)
