"""The choice of a node for each actor that this node starts: the decision of
`runtime.supervision.placement`, with this node's view of the members and their loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TypeVar

import trio

from actors.actor import Member
from actors.errors import NodeNotFoundError, NoPlacementError, StoreError
from actors.identifiers import NodeId
from actors.method import Address
from actors.options import SpawnOptions
from runtime.environment import Environment
from runtime.membership.lookups import Lookups
from runtime.membership.members import Members
from runtime.membership.names import Names
from runtime.membership.restart_intents import NAMES
from runtime.store.interface import StoreEvent
from runtime.supervision.placement import (
    NO_REFUSALS,
    NodeLoad,
    NodeLoads,
    PlacedActor,
    Refusals,
    Turns,
    as_many_as_fit,
    choose_node,
    fits_somewhere,
    nearest_node,
    spread_over,
)
from runtime.supervision.room import RoomQueue

ChoiceT = TypeVar("ChoiceT")

_NOTHING = nullcontext()
"""For actors without names, which are no load."""


class ActorPlacement:
    """Chooses nodes for the actors that this node starts. While `lookups` follows the names, it
    counts their changes (`on_changed` and `forget`, which `Lookups.run` calls); otherwise it reads
    all names for each placement.
    """

    def __init__(
        self,
        members: Members,
        names: Names,
        environment: Environment,
        lookups: Lookups,
    ) -> None:
        self._members = members
        self._names = names
        self._environment = environment
        self._lookups = lookups
        self._loads = NodeLoads()
        self._turns = Turns()
        self._freed = (0, trio.Event())
        """What `NodeLoads.freed` was when this event was made: it is set once that is out of date.
        """
        self._look = trio.Event()
        """Set when those that wait for room are to be looked at."""
        self.room = RoomQueue(self._may_fit)
        """What waits on this node for room on any."""

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps: for tests and simulations."""
        self._loads.check_invariants()
        self.room.check_invariants()

    def on_changed(self, event: StoreEvent) -> None:
        """A name was claimed or released."""
        if not self._loads.counts_changes:
            # No placement here has asked for loads yet: the record need not be read.
            return
        name = event.key.removeprefix(NAMES)
        owner = None
        if event.kind != "delete":
            owner = self._names.readable_owner(name, event.value)
        if owner is None:
            self._loads.on_gone(name, event.revision)
        else:
            self._loads.put(
                name,
                PlacedActor(NodeId(owner.node, owner.incarnation), owner.resources, event.revision),
            )
        # In either case: a name that another node has now is one less on that which had it.
        self._wake()

    def forget(self) -> None:
        """Drop all loads, because changes of names may have been missed."""
        self._loads.forget()
        self._wake()

    async def wait_freed(self) -> None:
        """Wait until resources were given back somewhere, as far as this node follows the names:
        what waits for room looks again then, and after a while in any case.
        """
        await self._freed[1].wait()

    def _wake(self) -> None:
        known, event = self._freed
        if known != self._loads.freed:
            self._freed = (self._loads.freed, trio.Event())
            event.set()
            self.room.note_change()
            self._look.set()

    async def run(self) -> None:
        """Follow the members until cancelled: one that joins, or whose labels change, may have room
        for what waits for it.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._let_in)
            while True:
                await self._members.wait_changed()
                self.room.on_changed()

    async def _let_in(self) -> None:
        while True:
            await self._look.wait()
            # Once for all that was given back, or has found its place, in one turn of the loop.
            self._look = trio.Event()
            self.room.let_in()

    async def wait_for_room(
        self,
        options: SpawnOptions,
        since: int,
        seconds: float,
        wanted: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Wait, after an attempt that found no room, until an actor with these options may be
        placed: see `RoomQueue.wait`. While the store is away, only the time ends the wait. The time
        may be over already: a loop that was late waits for no more than its turn.
        """
        began, seconds = self._environment.now(), max(0.0, seconds)
        if options.resources and self._lookups.is_following:
            # By the loads this node sees when something is given back.
            with trio.move_on_after(seconds), suppress(StoreError):
                await self._ask()
        left = began + seconds - self._environment.now()
        return await self.room.wait(options, since, left, wanted)

    def _may_fit(self, options: SpawnOptions) -> bool:
        # Loads that are not known may have room: the next placement reads them.
        return fits_somewhere(self._members.living(), options, self._loads.of)

    async def place(
        self, options: SpawnOptions, refusals: Refusals = NO_REFUSALS, *, asks: bool = False
    ) -> Member:
        """Choose the node for an actor with these options, none of `refusals`. `asks`: the node
        will be asked to start it, and another one if it refuses. So choose one that could fit where
        none does as seen here: what an actor has taken is free when its stop returns, and its end
        may be seen later. Raises `NodeNotFoundError` or `NoPlacementError`.
        """

        def chosen(loads: Mapping[NodeId, NodeLoad]) -> Member:
            try:
                return self._chosen(options, loads, refusals)
            except NoPlacementError:
                nearest = self._nearest(options, loads, refusals) if asks else None
                if nearest is None:
                    raise
                return nearest

        member = await self._choice(options, chosen, reads=False)
        if options.on is None:
            # Before any other choice: this one counts for the next.
            self._turns.on_chosen([member], self._members.living())
        return member

    async def _choice(
        self,
        options: SpawnOptions,
        choose: Callable[[Mapping[NodeId, NodeLoad]], ChoiceT],
        *,
        reads: bool,
    ) -> ChoiceT:
        """Choose by the loads. Where nothing fits, ask the store once for the members and, if it
        `reads` them, for the names that take resources, and choose again.
        """
        if options.on is None or options.resources:
            await self._ask()
        # Taken before `forget`, which replaces the table: what was read serves this choice only.
        loads: Mapping[NodeId, NodeLoad] = self._loads.of
        if not self._lookups.is_following:
            self._loads.forget()
        try:
            return choose(loads)
        except (NodeNotFoundError, NoPlacementError) as error:
            # A node that fits may have joined, or actors may have ended, and this node's view be
            # older than that.
            try:
                await self._members.caught_up(self._members.revision + 1)
                if reads and options.resources:
                    loads = self._loads.with_names(await self._placed_actors())
            except StoreError:
                raise error from None
        # Outside of the handler: an error of the second choice does not show that of the first.
        return choose(loads)

    def named(self, options: SpawnOptions) -> Member | None:
        """Return the node that these options name, if it is there and nothing is asked of it; else
        None: see `place`.
        """
        if options.on is None or options.labels or options.resources:
            return None
        return self._living(options.on)

    def _living(self, node: str) -> Member | None:
        seen = self._members.find(node)
        if seen is None:
            return None
        member = seen.member
        is_current = self._members.is_current(member.node_id)
        return member if is_current else None

    def _chosen(
        self, options: SpawnOptions, loads: Mapping[NodeId, NodeLoad], refusals: Refusals
    ) -> Member:
        named = self.named(options)
        if named is not None:
            return named
        # One member is enough to choose a node by its name, however many there are. The error for
        # a name that no member has lists all.
        named = None if options.on is None else self._living(options.on)
        living = self._members.living() if named is None else [named]
        return choose_node(
            living, options, loads, self._environment.random(), self._turns, refusals
        )

    def _nearest(
        self, options: SpawnOptions, loads: Mapping[NodeId, NodeLoad], refusals: Refusals
    ) -> Member | None:
        if not options.resources:
            return None
        living = self._members.living()
        return nearest_node(living, options, loads, self._environment.random(), refusals)

    async def place_many(self, options: SpawnOptions, count: int) -> list[Member]:
        """Choose the nodes for `count` actors with these options. Raises what `place` raises if one
        of them fits nowhere.
        """
        if not count:
            return []

        def spread(loads: Mapping[NodeId, NodeLoad]) -> list[Member]:
            living = self._members.living()
            return spread_over(living, options, loads, count, self._environment.random, self._turns)

        chosen = await self._choice(options, spread, reads=True)
        if options.on is None:
            self._turns.on_chosen(chosen, self._members.living())
        return chosen

    async def place_rest(
        self, options: SpawnOptions, count: int, refusals: Refusals
    ) -> list[Member]:
        """Choose nodes for those of many actors that nodes have refused to start: for as many as
        there is room for elsewhere. Raises what `place` raises if there is none.
        """

        def as_many(loads: Mapping[NodeId, NodeLoad]) -> list[Member]:
            living = self._members.living()
            random = self._environment.random
            if options.resources:
                return as_many_as_fit(living, options, loads, count, random, refusals)
            return spread_over(living, options, loads, count, random, self._turns, refusals)

        return await self._choice(options, as_many, reads=True)

    def starting(self, options: SpawnOptions, member: Member) -> AbstractContextManager[None]:
        """Count an actor with `member`'s load while it is being started, before its name is
        claimed.
        """
        if options.name is None:
            return _NOTHING
        return self._starting(options.name, options, member)

    @contextmanager
    def _starting(self, name: str, options: SpawnOptions, member: Member) -> Iterator[None]:
        self._loads.on_placed(name, member.node_id, options.resources)
        # It has its place. What waits behind it may have one beside it.
        self._look.set()
        try:
            yield
        finally:
            self._loads.on_settled(name)
            self._wake()

    def on_refused(self, name: str | None) -> None:
        """Within `starting`: the node has no room for the actor. That is no news for those that
        wait for room: they would ask that node one after the other, and this one again and again,
        for as long as more room is seen here than the node has.
        """
        if name is not None:
            self._loads.on_refused(name)

    def on_over(self, name: str) -> None:
        """Within `starting`: the actor has ended, and its name was made for it alone. Its resources
        are free for the next placement, before the release of the name is reported.
        """
        self._loads.on_over(name)
        self._wake()

    def on_started(self, address: Address, resources: Mapping[str, float]) -> None:
        """Count an actor that has started until its claim is reported: otherwise the next placement
        would find its resources free.
        """
        # Not if the claim has been reported: the release of the name may have been, too.
        if address.registered and self._lookups.will_report(address.epoch):
            node = address.node_id
            self._loads.put(address.name, PlacedActor(node, resources, address.epoch))

    def on_placed_many(
        self, names: Sequence[str], places: Sequence[Member], resources: Mapping[str, float]
    ) -> None:
        """Count actors that are about to start, until `on_started_many`."""
        for name, member in zip(names, places, strict=False):  # no names: none counts
            self._loads.on_placed(name, member.node_id, resources)

    def on_started_many(
        self,
        names: Sequence[str],
        outcomes: Sequence[Address | Exception],
        resources: Mapping[str, float],
    ) -> None:
        """Count those that have started with their addresses, and the others no more."""
        for name, outcome in zip(names, outcomes, strict=False):
            if isinstance(outcome, Address):
                self.on_started(outcome, resources)
            elif isinstance(outcome, NoPlacementError):
                self._loads.on_refused(name)
            self._loads.on_settled(name)
        self._wake()

    def on_stopped(self, address: Address) -> None:
        """An actor has been stopped for this node: its resources are free for the next placement,
        before the release of its name is reported.
        """
        if not address.registered:
            return
        # The release is later than the claim, and any later claim of the name later than both.
        if self._lookups.will_report(address.epoch):
            # The claim must not count when it is reported.
            self._loads.on_stopped(address.name, address.epoch + 1)
        else:
            self._loads.on_gone(address.name, address.epoch + 1)
        self._wake()

    async def _ask(self) -> None:
        # Again if changes were missed during the request, or another placement has dropped the
        # loads.
        while not self._loads.known:
            expected = self._loads.expect()
            self._loads.fill(await self._placed_actors(), expected)

    async def _placed_actors(self) -> list[tuple[str, PlacedActor]]:
        return [
            (
                address.name,
                PlacedActor(NodeId(owner.node, owner.incarnation), owner.resources, address.epoch),
            )
            for address, owner in await self._names.owners()
        ]
