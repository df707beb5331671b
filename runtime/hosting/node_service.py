"""The service `@node` that every node offers to other nodes: a system actor under a fixed name,
called like any actor.

Its methods are a part of the runtime's own protocol. As methods, they have deadlines, cancellation
and the outcomes of calls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Literal

import attrs
import trio

from actors import errors
from actors.actor import Actor
from actors.errors import (
    ActorClassError,
    ActorStartError,
    CallCycleError,
    DecodeError,
    NodeDrainingError,
    UnderstudyError,
)
from actors.identifiers import ActorId, NodeId
from actors.messages import message, message_type
from actors.method import Address, method
from actors.options import SpawnOptions, check_name
from actors.supervision import ExitReason, Shutdown
from runtime.hosting.actor_start import NO_KEYWORDS, ActorStart
from runtime.hosting.cell import RefusedElsewhereError, with_note
from runtime.hosting.client_quotas import ClientQuotas
from runtime.hosting.host import ActorHost, StopAnswer
from runtime.hosting.named_starts import NamedStarts, may_be_claimed_together
from runtime.hosting.start_batches import StartBatch, UnfinishedStarts
from runtime.hosting.start_tickets import StartTickets
from runtime.service_calls import LONG_POLL, LONG_POLL_SECONDS
from runtime.user_errors import shortened, text_of
from runtime.wire.classes import find_class, import_class, is_imported

NODE_SERVICE = "@node"
STORE_SERVICE = "@store"

_NOT_COUNTED = nullcontext()
"""For nodes, whose actors are in no quota."""

STARTED_AT_ONCE = 32
"""Actors of one `spawn_many` whose constructors, or `on_start`, may run side by side on a node."""

STARTS_LOOK_MASK = 7
"""A bit mask: the clock is read after every eighth start."""

TURN_SECONDS = 0.002
"""Seconds after which a series of starts lets other tasks run."""

FAILURE_CHARACTERS = 1024 * 1024
"""Of the texts and tracebacks of failed starts in one answer, which users choose: above some MiB it
takes longer than the call waits before it is repeated, and is too large to be kept for that; above
some more it cannot be sent, and what has started is not known.
"""

SHORT_CHARACTERS = 400
"""Of the text of each further failure, where all failures of a request are in its answer."""


def store_service(identity: str) -> str:
    """Return the name of the service of one store.

    The identity is in the name so that a new store at the same address, begun after a loss, is not
    mistaken for this one: there, the same lease number may belong to another node.
    """
    return f"{STORE_SERVICE}-{identity[:12]}"


@message
@attrs.frozen
class StartFailed:
    """One of several actors that did not start: its index, the name of the error's class, its text,
    the actor's name, and the traceback.
    """

    number: int
    kind: str
    text: str
    actor: str
    trace: str

    @classmethod
    def of(cls, number: int, error: Exception) -> StartFailed:
        """Describe an error as data."""
        return cls(
            number,
            type(error).__name__,
            text_of(error),
            str(getattr(error, "actor", None) or ""),
            str(getattr(error, "remote_traceback", "")),
        )

    def error(self, node: str) -> Exception:
        """Build the error again. `node`: where it was raised."""
        cls = vars(errors).get(self.kind)
        if isinstance(cls, type) and issubclass(cls, errors.ActorStartError):
            return with_note(
                cls(self.text, actor=self.actor, node=node, remote_traceback=self.trace)
            )
        if isinstance(cls, type) and issubclass(cls, errors.SpawnError):
            return cls(self.text, actor=self.actor, node=node)
        if isinstance(cls, type) and issubclass(cls, errors.CallError):
            return cls(self.text, node=node)
        if isinstance(cls, type) and issubclass(cls, UnderstudyError):
            return cls(self.text)
        return errors.ActorStartError(self.text, actor=self.actor, node=node)


class StartFailures:
    """The failures of one answer. Their texts together take no more than `most` characters, and a
    little for each: what is above is shortened where a failure is added, or not taken.
    """

    def __init__(self, most: int = FAILURE_CHARACTERS) -> None:
        self.all: list[StartFailed] = []
        self._room = most

    def take(self, failure: StartFailed) -> bool:
        """Add a failure, whole, if there is room for it."""
        taken = len(failure.text) + len(failure.trace)
        if taken > self._room:
            return False
        self._room -= taken
        self.all.append(failure)
        return True

    def add(self, number: int, error: Exception) -> None:
        """Add a failure, shortened if there is no room for it."""
        failure = StartFailed.of(number, error)
        if not self.take(failure):
            text = shortened(failure.text, SHORT_CHARACTERS)
            self.all.append(attrs.evolve(failure, text=text, trace=""))


class NodeService(Actor):
    """Starts, stops and watches actors on behalf of other nodes, and reports the node's status."""

    def __init__(
        self,
        host: ActorHost,
        node: str,
        status: Callable[[], Awaitable[dict[str, object]]],
        contact: Callable[[], dict[str, object]],
        store_place: Callable[[], dict[str, object]],
        leave: Callable[[], None],
        quotas: ClientQuotas,
        nursery: trio.Nursery,
    ) -> None:
        self._host = host
        self._quotas = quotas
        self._node = node
        self._status = status
        self._contact = contact
        self._store_place = store_place
        self._leave = leave
        self._tickets = StartTickets()
        self._unfinished = UnfinishedStarts(nursery, self._take_back)

    @method(concurrent=True)
    async def spawn(
        self,
        class_path: str,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        options: SpawnOptions,
        on_behalf_of: str = "",
        ticket: str = "",
    ) -> Address:
        """Start an actor here. Raises what `ActorHost.start` raises, `ActorClassError` if the class
        cannot be imported here, and `NotAllowedError` for a client that has too many.
        """
        with self._tickets.issued(ticket) as started, self._counted(1, started):
            cls = await actor_class(class_path, self._node, self._host.in_thread)
            address = await self._host.start(
                ActorStart(cls, class_path, options, args, kwargs, on_behalf_of)
            )
            started.append(address)
            return address

    def _counted(self, count: int, started: Sequence[Address]) -> AbstractContextManager[None]:
        """Count starts for the client that asks for them; for a node, nothing. `started`: its
        actors at the end of the block.
        """
        peer = self._host.asking_peer()
        if peer is None or peer.role == "node":
            return _NOT_COUNTED
        return self._quotas.starting(peer, count, started)

    @method(concurrent=True)
    async def spawn_many(
        self,
        class_path: str,
        rows: list[tuple[object, ...]],
        names: list[str],
        options: SpawnOptions,
        ticket: str = "",
    ) -> tuple[list[str], list[int], list[StartFailed]]:
        """Start an actor here for each row of arguments; `names`: one for each, or none at all.
        Returns their names and epochs in the order of the rows, and those that did not start,
        whose epochs are 0. Raises `ActorClassError` if the class cannot be imported here, and
        `NotAllowedError` for a client that has too many.
        """
        for name in names:
            # Those of `options` were checked when they were read.
            check_name("name", name)
        with self._tickets.issued(ticket) as started, self._counted(len(rows), started):
            cls = await actor_class(class_path, self._node, self._host.in_thread)
            found = ["" for _ in rows]
            epochs = [0 for _ in rows]
            failures = StartFailures()
            if names and may_be_claimed_together(cls, options, rows):
                alike = NamedStarts(self._host, ActorStart(cls, class_path, options), started)
                outcomes = await alike.start_each(names)
                for number, outcome in enumerate(outcomes):
                    if isinstance(outcome, Address):
                        found[number], epochs[number] = outcome.name, outcome.epoch
                    else:
                        failures.add(number, outcome)
                return found, epochs, failures.all
            numbers = iter(range(len(rows)))

            async def start() -> None:
                turn = trio.current_time()
                for number in numbers:
                    name = names[number] if names else None
                    try:
                        address = await self._host.start(
                            ActorStart(cls, class_path, options, rows[number]), name
                        )
                    except UnderstudyError as error:
                        failures.add(number, error)
                    else:
                        started.append(address)
                        found[number], epochs[number] = address.name, address.epoch
                    # Starts may complete without waiting. Give other tasks their turns.
                    if not number & STARTS_LOOK_MASK and trio.current_time() - turn > TURN_SECONDS:
                        await trio.lowlevel.checkpoint()
                        turn = trio.current_time()

            async with trio.open_nursery() as nursery:
                for _ in range(min(STARTED_AT_ONCE, len(rows))):
                    nursery.start_soon(start)
            return found, epochs, failures.all

    @method(concurrent=True)
    async def spawn_each(
        self,
        class_path: str,
        rows: list[tuple[object, ...]],
        keywords: list[Mapping[str, object]],
        names: list[str],
        options: SpawnOptions,
        ticket: str,
    ) -> tuple[list[str], list[int], list[StartFailed], list[int]]:
        """Start an actor here for each row of arguments. `keywords`: those by name, for each row or
        none at all. Unlike `spawn_many`, this does not wait for starts that take their time:
        returns as well the numbers of the rows whose starts go on, or have failed with more text
        than the answer takes, see `finish_start`. For nodes only.
        """
        for name in names:
            check_name("name", name)
        with self._tickets.issued(ticket) as started:
            cls = await actor_class(class_path, self._node, self._host.in_thread)

            async def start(number: int) -> Address:
                kwargs = keywords[number] if keywords else NO_KEYWORDS
                return await self._host.start(
                    ActorStart(cls, class_path, options, rows[number], kwargs),
                    names[number] if names else None,
                )

            batch = StartBatch(self._unfinished.nursery, len(rows), start)
            try:
                await batch.run()
            finally:
                started += [one for one in batch.outcomes if isinstance(one, Address)]
            found = ["" for _ in rows]
            epochs = [0 for _ in rows]
            failures = StartFailures()
            for number, outcome in enumerate(batch.outcomes):
                if isinstance(outcome, Address):
                    found[number], epochs[number] = outcome.name, outcome.epoch
                elif number not in batch.unfinished:
                    error = outcome or self._left_meanwhile()
                    if not failures.take(StartFailed.of(number, error)):
                        batch.put_off(number, error)
            peer = self._host.asking_peer()
            caller = None if peer is None else NodeId(peer.node, peer.incarnation)
            return found, epochs, failures.all, self._unfinished.add(ticket, batch, caller)

    async def answered(self) -> None:
        """Wait until other nodes have the answers to all starts that they have asked for. Without
        these, they would not know of starts on a node that leaves whether they were made.
        """
        await self._tickets.wait_none()

    def on_node_gone(self, node: NodeId) -> None:
        """A node has ended: take back what it has started by `spawn_each` and not asked for."""
        self._unfinished.on_node_gone(node)

    @method(concurrent=True)
    async def finish_start(self, ticket: str, number: int) -> Address:
        """Wait for a start that went on when `spawn_each` had answered, and return the actor.
        Raises what `spawn` raises. A call that is cancelled cancels the start.
        """
        start = self._unfinished.pop(ticket, number)
        if start is None:
            raise ActorStartError(
                "it was cancelled, because its spawner did not ask for it in time: start it again",
                node=self._node,
            )
        with self._tickets.issued(_ticket_of(ticket, number)) as started:
            try:
                await start.ended.wait()
            finally:
                # It may have started in spite of a cancellation, and is taken back then.
                with trio.CancelScope(shield=True):
                    if (address := await start.cancel()) is not None:
                        started.append(address)
            if isinstance(start.outcome, Exception):
                raise start.outcome
            if start.outcome is None:
                raise self._left_meanwhile()
            return start.outcome

    def _left_meanwhile(self) -> NodeDrainingError:
        text = f"node {self._node} left while an actor was starting there: it has not started"
        return NodeDrainingError(text, node=self._node)

    @method(concurrent=True, idempotent=True)
    async def take_back_unfinished(self, ticket: str, numbers: Sequence[int]) -> None:
        """Cancel the starts of a batch that went on when it was answered, and stop those of their
        actors that have started: their spawners were cancelled.
        """

        async def take_back(number: int) -> None:
            if not await self._unfinished.take_back(ticket, number):
                await self._take_ticket_back(_ticket_of(ticket, number))

        # Side by side: one that does not heed its cancellation holds up no other.
        async with trio.open_nursery() as nursery:
            for number in numbers:
                nursery.start_soon(take_back, number)

    @method(concurrent=True, idempotent=True, retry=LONG_POLL)
    async def wait_started(self, name: str, epoch: int) -> bool | None:
        """See `Starts.wait`. Returns None if the start is still under way after
        `LONG_POLL_SECONDS`: ask again.
        """
        with trio.move_on_after(LONG_POLL_SECONDS):
            try:
                return await self._host.starts.wait(name, epoch)
            except CallCycleError as error:
                # The runtime ended the call; the method did not raise: `RemoteError` would be
                # wrong.
                raise RefusedElsewhereError(error) from None
        return None

    @method(concurrent=True)
    async def take_back(self, ticket: str) -> None:
        """Stop the actors that were spawned with this ticket: their spawner was cancelled and has
        no handles of them. Those that others have found meanwhile stay.
        """
        async with trio.open_nursery() as nursery:
            started = await self._tickets.take(ticket)
            # Of an answer that was lost, no task asks for the starts that went on.
            for number in self._unfinished.numbers(ticket):
                nursery.start_soon(self._unfinished.take_back, ticket, number)
            await self.take_back_started([one.actor_id for one in started])

    async def _take_ticket_back(self, ticket: str) -> None:
        await self.take_back_started([one.actor_id for one in await self._tickets.take(ticket)])

    async def _take_back(self, address: Address) -> None:
        await self._host.take_back(address.name, address.epoch)

    @method(concurrent=True, idempotent=True)
    async def take_back_started(self, actors: Sequence[tuple[str, int]]) -> None:
        """Stop these actors, by names and epochs: their spawners were cancelled and have no handles
        of them. Those that others have found meanwhile stay.
        """
        # Side by side: one that takes its time to stop holds up no other.
        async with trio.open_nursery() as nursery:
            for name, epoch in actors:
                nursery.start_soon(self._host.take_back, name, epoch)

    @method(concurrent=True, idempotent=True)
    async def stop_actor(
        self,
        name: str,
        epoch: int,
        reason: ExitReason,
        shutdown: Shutdown | Literal["usual"] = "usual",
    ) -> ExitReason | None:
        """Stop an actor and wait until it has ended; see `ActorHost.stop`."""
        await self._host.wait_for_claim(name, epoch)
        return await self._host.stop(name, epoch, reason, shutdown)

    @method(concurrent=True, idempotent=True)
    async def stop_many(
        self, actors: Sequence[tuple[str, int]], reason: ExitReason
    ) -> list[StopAnswer]:
        """Stop those of these actors, by names and epochs, that stop at once; see
        `ActorHost.stop_ready`.
        """
        return await self._host.stop_ready([ActorId(*one) for one in actors], reason)

    @method(concurrent=True, idempotent=True, retry=LONG_POLL)
    async def watch_actor(self, name: str, epoch: int) -> ExitReason | None:
        """Wait until this epoch of the actor has ended and return how. Returns None after
        `LONG_POLL_SECONDS`: ask again.
        """
        with trio.move_on_after(LONG_POLL_SECONDS):
            await self._host.wait_for_claim(name, epoch)
            return await self._host.exits.wait(name, epoch)
        return None

    @method(concurrent=True, idempotent=True)
    async def methods(self, name: str) -> dict[str, bool]:
        """Return the names of the methods of an actor here, and which of them are streams; none if
        there is no such actor, or if it is one of the runtime's own.
        """
        cell = self._host.cells.get(name)
        if cell is None or cell.system:
            return {}
        return {method: definition.stream for method, definition in cell.methods.items()}

    @method(concurrent=True, idempotent=True)
    async def status(self) -> dict[str, object]:
        """Return facts about this node, the members, and some of its actors; `actors_left_out`
        counts the others.
        """
        return await self._status()

    @method(concurrent=True, idempotent=True)
    async def contact(self) -> dict[str, object]:
        """Return what a process needs to take part in the cluster: the members, and where the store
        is. Of the same size however many actors there are.
        """
        return self._contact()

    @method(concurrent=True, idempotent=True)
    async def store_place(self) -> dict[str, object]:
        """Like `contact`, but of the members only this node and the one that serves the store. Of
        the same size however many members there are: each node that joins asks this.
        """
        return self._store_place()

    @method(concurrent=True, idempotent=True)
    async def leave_cluster(self) -> None:
        """Have this node drain and leave the cluster. Answers before it has left."""
        self._leave()


def _ticket_of(batch: str, number: int) -> str:
    """The ticket of one start of a batch, once it is asked for alone."""
    return f"{batch}/{number}"


async def actor_class(
    path: str, node: str, in_thread: Callable[[Callable[[], type]], Awaitable[type]]
) -> type[Actor]:
    """Return the actor class of this import path. Raises ActorClassError, which names the node.

    If its module is not imported yet, it is imported in a thread, because that runs its code, which
    may take long and raise anything.
    """
    try:
        found = (
            find_class(path) if is_imported(path) else await in_thread(partial(import_class, path))
        )
    except DecodeError as error:
        raise ActorClassError(
            f"{path} cannot be imported on node {node}: {error}",
            node=node,
        ) from error
    if not issubclass(found, Actor) or message_type(found) is not None:
        raise ActorClassError(f"{path} is not a subclass of actors.Actor", node=node)
    return found
