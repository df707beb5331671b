"""The spawner: starts actors on the nodes where they belong, for this node's users and
supervisors.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Literal, cast

import attrs
import trio

from actors.actor import Actor, Member
from actors.call_context import CURRENT
from actors.errors import (
    ActorClassError,
    ActorStartError,
    BadArgumentsError,
    CallError,
    DecodeError,
    EncodeError,
    MethodNotFoundError,
    NodeDiedError,
    NodeDrainingError,
    NodeNotFoundError,
    NodeUnreachableError,
    NoPlacementError,
    OutcomeUnknownError,
    RemoteError,
    SpawnError,
    StoreError,
)
from actors.handle import Handle
from actors.identifiers import NodeId
from actors.messages import import_path, path_by_file
from actors.method import Address
from actors.options import SpawnOptions
from actors.supervision import ExitReason, Shutdown
from actors.supervisor import ChildSpec
from runtime.calls.arguments import StartManyRequest, StartRequest
from runtime.calls.endpoint import RpcEndpoint
from runtime.calls.error_codec import plain_error
from runtime.calls.unreadable_arguments import unreadable_in_local_start
from runtime.environment import Environment
from runtime.gatherer import Gatherer
from runtime.hosting.actor_start import ActorStart
from runtime.hosting.host import StopAnswer, birthplace
from runtime.hosting.instances import MOST_CLASS_NAME
from runtime.hosting.starts import starts_at_once
from runtime.lifetime import AskingBlock
from runtime.membership.members import Members
from runtime.membership.names import Names
from runtime.membership.restart_intents import CLUSTER
from runtime.printable import plain
from runtime.service_calls import SERVICE_ENDED
from runtime.supervision.actor_placement import ActorPlacement
from runtime.supervision.gathered_constructors import ConstructorGatherer, may_travel_with_others
from runtime.supervision.gathered_starts import StartGatherer, StartKind
from runtime.supervision.placement import (
    StartRefusal,
    check_candidate,
    refusal_of,
    refused_by_many,
)
from runtime.supervision.room import RoomQueue
from runtime.supervision.start_errors import (
    about_start,
    is_to_be_taken_back,
    of_class,
)
from runtime.supervision.take_backs import TakeBacks
from runtime.tracing import NO_SPANS, Spans

WATCH_RETRY_SECONDS = 0.05
"""Seconds until an actor is watched again after the session with its node was lost."""

FREED_NAME_LOOK_SECONDS = 0.05
"""Seconds between checks of a name whose actor has ended, until it is free."""

PLACES_TRIED = 3
"""Nodes that are chosen for one actor, one after the other, if each has ended before it could be
asked to start it, or is out of reach: each of these may take the time of a call.
"""

MOST_REFUSALS = 64
"""Nodes that are asked to start one actor and refuse, because they have not as much left of a
resource, or leave. Each is asked once.
"""

MOST_IN_MESSAGE = 1024
"""Actors that one message starts."""

MESSAGES_AT_ONCE = 2
"""Messages of one `spawn_many` to one node that wait for their answer: the node starts actors while
this node writes the next message and reads the last answer.
"""

PENDING = ActorStartError("it has not been started")
"""The outcome of an actor of a `spawn_many` before its message is answered."""


@attrs.frozen
class _RemoteStart:
    """What this node asks another one to start. `known`: the name in the options was not made up
    for this start, so that tasks can find the actor by it.
    """

    class_path: str
    args: Sequence[object]
    kwargs: dict[str, object]
    options: SpawnOptions
    supervisor: str
    """Empty for an actor that has none."""
    known: bool
    unknown: list[tuple[NodeId, str]] | None = None
    """Gets the node and the ticket of each attempt whose outcome is not known, for
    `ActorSpawner.take_back_unknown`.
    """


class ActorSpawner:
    """Starts and stops actors on any node, for users, supervisors and candidates of this node."""

    def __init__(
        self,
        endpoint: RpcEndpoint,
        names: Names,
        members: Members,
        environment: Environment,
        placement: ActorPlacement,
    ) -> None:
        self._placement = placement
        self.wait_for_room = placement.wait_for_room
        """Everything that waits for room on this node waits there."""
        self._take_back_seconds = environment.timings.take_back
        self._take_backs = TakeBacks(endpoint.nursery, members.is_gone, self._take_back_seconds)
        self._gatherer = StartGatherer(
            self._start_alike,
            self.take_back,
            endpoint.nursery,
            MOST_IN_MESSAGE,
            self._take_back_seconds,
        )
        self._constructors = ConstructorGatherer(
            endpoint, environment, self.take_back, self._take_back_seconds, self._take_backs
        )
        self._stops = Gatherer[NodeId, tuple[NodeId, ExitReason], tuple[str, int], StopAnswer](
            self._stop_many, None, _not_stopped, endpoint.nursery, MOST_IN_MESSAGE
        )
        self._endpoint = endpoint
        self._names = names
        self._members = members
        self._environment = environment
        self._starts_candidates = True

    @property
    def nursery(self) -> trio.Nursery:
        """For tasks that may go on when the actor has ended for which they do something."""
        return self._endpoint.nursery

    @property
    def spans(self) -> Spans:
        """Makes the spans of this node."""
        return self._endpoint.spans

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps: for tests and simulations."""
        self._placement.check_invariants()
        self._gatherer.check_invariants()
        self._constructors.check_invariants()
        self._stops.check_invariants()

    async def start(self, request: StartRequest, asking: AskingBlock) -> Address:
        """Start an actor on the node that its options select, by default this one. Raises
        `SpawnError`, `CallError` and `EncodeError`. `asking`: the block that this is in, which
        does not wait yet.
        """
        if self.is_for_here(request.options):
            if request.options.name is None and _waits_for_nothing(request):
                # Not even a cancel scope, which would be a quarter of the start.
                return await self._endpoint.host.start(
                    ActorStart(request.cls, import_path(request.cls), request.options)
                )
            asking.wait()
            return await self._start_here(request)
        known = request.options.name is not None
        if request.options.resources and not known:
            options = request.options.changed(name=self._counted_name(import_path(request.cls)))
            request = attrs.evolve(request, options=options)
        if self._may_be_gathered(request):
            return await self._start_gathered(request, asking, known)
        if (
            may_travel_with_others(request)
            and self._is_without_context()
            # Nor is it a part of a method or a start, which its own calls may come back to.
            and self._endpoint.host.turns.chain(trio.lowlevel.current_task()) is None
        ):
            return await self._start_constructed(request, asking, known)
        asking.wait()
        return await self._start_placed(
            request.options, lambda member: self._start_alone(member, request, known)
        )

    async def _start_alone(self, member: Member, request: StartRequest, known: bool) -> Address:
        path, kwargs = import_path(request.cls), dict(request.kwargs)
        start = _RemoteStart(path, request.args, kwargs, request.options, "", known)
        with request.naming_arguments(self._endpoint.codec):
            return await self._start_on(member, start)

    def is_for_here(self, options: SpawnOptions) -> bool:
        """True if an actor with these options starts on this node, without a choice among nodes.
        Never where this process has joined as a client.
        """
        return (
            self._endpoint.is_member
            and options.on in (None, self._endpoint.identity.name)
            and not options.labels
            and not options.resources
            and options.placement is None
        )

    def _counted_name(self, class_path: str) -> str:
        """Return a name for an actor that takes resources and was given none: by the names that the
        store has, all nodes know what is taken where.
        """
        cls = class_path.rpartition(":")[2].rpartition(".")[2]
        part = plain(cls)[:MOST_CLASS_NAME]
        return f"{part}-{self._environment.token(8).hex()}".lstrip("@ ")

    async def _start_here(self, request: StartRequest, on_behalf_of: str = "") -> Address:
        codec = self._endpoint.codec
        with request.naming_arguments(codec):
            try:
                args = tuple(map(codec.copy, request.args))
                kwargs = {key: codec.copy(value, key) for key, value in request.kwargs.items()}
            except DecodeError as error:
                node = self._endpoint.identity.name
                raise unreadable_in_local_start(
                    node, codec, request, error.with_traceback(None)
                ) from error
        return await self._endpoint.host.start(
            ActorStart(
                request.cls, import_path(request.cls), request.options, args, kwargs, on_behalf_of
            )
        )

    def start_no_candidates(self) -> None:
        """Refuse `start_candidate` from now on: this node is about to leave."""
        self._starts_candidates = False

    async def start_candidate(self, request: StartRequest) -> Address:
        """Start the actor of a candidate on this node, on behalf of the cluster. Raises what
        `ActorHost.start` raises, and NoPlacementError if its options exclude this node.
        """
        if not self._starts_candidates:
            node = self._endpoint.identity[0]
            raise NodeDrainingError(
                f"node {node} is leaving the cluster and starts no singletons", node=node
            )
        own = self._members.current(self._endpoint.identity)
        if own is not None:
            check_candidate(own.member, request.options)
        return await self._start_here(request, CLUSTER)

    async def stand_for(self, name: str) -> None:
        """Record in the store that this node is a candidate for the singleton `name`. Raises
        `StoreError`.
        """
        await self._names.intents.stand_for(name, self._endpoint.identity[0])

    async def stand_down(self, name: str, *, for_good: bool) -> None:
        """Withdraw this node's candidacy for the singleton `name`; `for_good`: those of all nodes.
        Raises `StoreError`.
        """
        await self._names.intents.stand_down(name, self._endpoint.identity[0], for_good=for_good)

    async def record_unstarted(self, name: str, why: str) -> None:
        """Record in the store why this node has not started the singleton `name`, a candidate for
        which it is. Raises `StoreError`.
        """
        await self._names.intents.record_unstarted(name, self._endpoint.identity[0], why)

    async def forget_unstarted(self, name: str) -> None:
        """Delete what `record_unstarted` has written. Raises `StoreError`; it is deleted later
        then.
        """
        await self._names.intents.forget_unstarted(name, self._endpoint.identity[0])

    async def find(self, name: str) -> Address | None:
        """Return the address of the actor that has `name` now, or None. Raises `StoreError`."""
        return await self._names.find(name)

    async def is_supervised(self, name: str) -> bool:
        """Return True if the supervisor of this name lives, or will be started again."""
        born = birthplace(name)
        if born is not None and self._members.is_current(born):
            return True
        return await self._names.intents.supervised(name)

    async def find_started(self, name: str, *, waits: bool = True) -> Address | None:
        """Return the address of the actor that has `name` now, once it has started; None if no
        actor has it. Raises the ActorStartError of its start.

        Without `waits`, and within the start of another actor, this does not wait for the start:
        the two might wait for each other.
        """
        while True:
            found = await self._names.find(name)
            if (
                found is None
                or not waits
                or self._endpoint.host.starts.is_within()
                # Its node is asked each time: any task of the cluster may be stopping it.
                or await self._has_started(found)
            ):
                return found
            # It has ended, or its node has: its name will be released soon.
            await trio.sleep(FREED_NAME_LOOK_SECONDS)

    async def _has_started(self, address: Address) -> bool:
        """Wait while the actor there is being started; False if it is not there or is being
        stopped, and no supervisor starts it again. Raises its ActorStartError.
        """
        try:
            while (started := await self._ask_whether_started(address)) is None:
                continue
        except MethodNotFoundError:
            # A node of the previous version has no such method.
            return True
        except ActorStartError as error:
            failure = error
        except (*SERVICE_ENDED, NodeDiedError, NodeUnreachableError):
            # Its node has ended, or does not have the actor any more.
            return False
        else:
            # Of one that its supervisor starts again, calls through a handle wait for that.
            return started or await self._names.is_promised(address.name)
        if await self._names.is_promised(address.name):
            return True
        try:
            raise failure
        finally:
            # No circle with this frame, which the traceback has.
            del failure

    async def _ask_whether_started(self, address: Address) -> bool | None:
        if (address.node, address.incarnation) == self._endpoint.identity:
            return await self._endpoint.host.starts.wait(address.name, address.epoch)
        try:
            service = self._endpoint.node_service(address.node, address.incarnation)
            return cast("bool | None", await service.wait_started(address.name, address.epoch))
        except RemoteError as error:
            plain = plain_error(error)
            if plain is None:
                raise
            try:
                raise plain from None
            finally:
                # No circle with this frame, which the traceback has.
                del plain

    async def start_actor(
        self,
        class_path: str,
        args: Sequence[object],
        kwargs: dict[str, object],
        options: SpawnOptions,
        supervisor: str,
        *,
        asks: bool = True,
        unknown: list[tuple[NodeId, str]] | None = None,
    ) -> Address:
        """Start an actor on the node that `options` name or that fits best. `asks`: where none has
        as much left of a resource, as seen here, ask those that could; False for starts that are
        tried again and again. `unknown`: gets what `take_back_unknown` takes. Raises `SpawnError`
        or `CallError`.
        """
        known = options.name is not None
        if options.resources and not known:
            options = options.changed(name=self._counted_name(class_path))
        start = _RemoteStart(class_path, args, kwargs, options, supervisor, known, unknown)
        return await self._start_placed(
            options, lambda member: self._start_on(member, start), asks=asks
        )

    async def _start_placed(
        self,
        options: SpawnOptions,
        start: Callable[[Member], Awaitable[Address]],
        asking: AskingBlock | None = None,
        *,
        asks: bool = True,
    ) -> Address:
        """Choose a node for an actor, and start it there by `start`. `asking`: the block that this
        is in, if that does not wait yet. `asks` as in `start_actor`.
        """
        member = None if asking is None else self._placement.named(options)
        refusals: dict[NodeId, StartRefusal] = {}
        unreachable = 0
        left = ""
        while True:  # noqa: ASYNC913  each turn asks another node
            if member is None:
                if asking is not None:
                    asking.wait()
                try:
                    # Raises, too, where all that could fit have refused, and says why each has.
                    member = await self._placement.place(options, refusals, asks=asks)
                except NodeNotFoundError:
                    if not left:
                        raise
                    # No other node has its name: what has become of the start is what it said.
                    raise NodeDrainingError(left, node=options.on) from None
            place, member = member, None
            with self._placement.starting(options, place):
                try:
                    address = await start(place)
                except (NodeDrainingError, NodeUnreachableError, NoPlacementError) as error:
                    # Certainly not started.
                    if isinstance(error, NoPlacementError):
                        self._placement.on_refused(options.name)
                    unreachable += isinstance(error, NodeUnreachableError)
                    if isinstance(error, NodeDrainingError):
                        left = str(error)
                    refusal = refusal_of(error, options)
                    if unreachable == PLACES_TRIED or (
                        # There may be a new one of the name that `options.on` gives: a machine that
                        # is started again after a crash, before the lease of its predecessor has
                        # ended.
                        refusal is None and not self._members.is_gone(place.node_id)
                    ):
                        raise
                    if refusal is not None:
                        # Others have taken what this node saw as free there, or it saw none; or the
                        # node leaves, which this node does not know yet.
                        refusals[place.node_id] = refusal
                    if len(refusals) == MOST_REFUSALS:
                        raise refused_by_many(options, refusals) from None
                else:
                    self._placement.on_started(address, options.resources)
                    return address

    async def _start_on(self, member: Member, start: _RemoteStart) -> Address:
        try:
            return await self._spawn_on(member, start)
        except ActorClassError:
            by_file = path_by_file(start.class_path)
            if by_file is None:
                raise
        # A class of this script: nodes of a local cluster know it by the module `__main__`, other
        # nodes by the name of its file.
        return await self._spawn_on(member, attrs.evolve(start, class_path=by_file))

    async def _spawn_on(self, member: Member, start: _RemoteStart) -> Address:
        path, options, known = start.class_path, start.options, start.known
        service = self._endpoint.node_service(member.name, member.incarnation)
        ticket = self._environment.token(8).hex()
        try:
            what = (options.name if known else None) or of_class(path)
            with about_start(what, member, self._environment.now, known=known):
                return cast(
                    "Address",
                    await service.spawn(
                        path, tuple(start.args), start.kwargs, options, start.supervisor, ticket
                    ),
                )
        except (trio.Cancelled, OutcomeUnknownError) as error:
            # One whose name is known can be found by it, and the error says so.
            if is_to_be_taken_back(error, known=known):
                await self._take_backs.send(  # noqa: ASYNC102, ASYNC120  shielded and bounded
                    member.node_id, service.take_back, ticket
                )
            elif start.unknown is not None and not isinstance(error, NodeDiedError):
                start.unknown.append((member.node_id, ticket))
            raise

    def _may_be_gathered(self, request: StartRequest) -> bool:
        """Return True for an actor whose start waits for nothing and runs no user code: then it
        delays no other start of its message. A start with a trace or a call context is sent alone,
        because a message has one of each.
        """
        return _waits_for_nothing(request) and self._is_without_context()

    def _is_without_context(self) -> bool:
        return (
            # One that is taken back alone is stopped, to which a client has no right.
            self._endpoint.is_member and self.spans is NO_SPANS and CURRENT.get() is None
        )

    async def _start_gathered(
        self, request: StartRequest, asking: AskingBlock, known: bool
    ) -> Address:
        return await self._start_placed(
            request.options,
            lambda member: self._gatherer.start(
                member,
                request.cls,
                request.options,
                lambda: self._start_alone(member, request, known),
                asking,
                known=known,
            ),
            asking,
        )

    async def _start_constructed(
        self, request: StartRequest, asking: AskingBlock, known: bool
    ) -> Address:
        """Start an actor whose start may take its time, in one message with others that are started
        at the same time.
        """
        return await self._start_placed(
            request.options,
            lambda member: self._constructors.start(
                member, request, partial(self._start_alone, member, request, known), asking, known
            ),
            asking,
        )

    async def _start_alike(self, kind: StartKind, names: list[str]) -> list[Address | Exception]:
        found: list[Address | Exception] = [PENDING] * len(names)
        given = names if kind.named else []
        request = StartManyRequest(kind.cls, [()] * len(names), given, kind.options, kind.known)
        await self._start_some(request, kind.member, list(range(len(names))), found)
        return found

    async def take_back(self, addresses: Sequence[Address]) -> None:
        """Stop actors whose spawners were cancelled when they had started. No task has their
        handles, unless it has found them by their names: those stay.
        """
        on_node: dict[NodeId, list[tuple[str, int]]] = {}
        for address in addresses:
            node = address.node_id
            on_node.setdefault(node, []).append((address.name, address.epoch))
        for node, actors in on_node.items():
            service = self._endpoint.node_service(*node)
            try:
                await service.take_back_started(actors)
            except MethodNotFoundError:
                # A node of an earlier version can only stop them.
                reason = ExitReason("stopped", "the task that spawned it was cancelled")
                for name, epoch in actors:
                    await service.stop_actor.send(name, epoch, reason)

    def take_back_unknown(self, starts: Sequence[tuple[NodeId, str]]) -> None:
        """Have those stopped that may have started, by node and ticket, however long their nodes
        are out of reach: no task will ask for them.
        """
        for node, ticket in starts:
            self._take_backs.owe(node, self._endpoint.node_service(*node).take_back, ticket)

    async def start_many(self, request: StartManyRequest) -> list[Address | Exception]:
        """Start many actors, in one message to each node for thousands of them; returns an address
        or an error for each. Raises `NodeNotFoundError` or `NoPlacementError` if one of them fits
        nowhere: none is started then.
        """
        options = request.options
        if self.is_for_here(options):
            options = attrs.evolve(options, on=self._endpoint.identity.name)
        if options.resources and not request.names:
            path = import_path(request.cls)
            names = [self._counted_name(path) for _ in request.rows]
            request = attrs.evolve(request, names=names, known=False)
        places = await self._placement.place_many(options, len(request.rows))
        found: list[Address | Exception] = [PENDING] * len(places)
        try:
            await self._start_wherever_there_is_room(request, options, places, found)
        except BaseException:
            # No handles are returned. Those of messages that are not answered are taken back by
            # their tickets.
            started = [one for one in found if isinstance(one, Address)]
            seconds = self._take_back_seconds
            with trio.move_on_after(seconds, shield=True), suppress(CallError):
                await self.take_back(started)
            raise
        return found

    async def _start_wherever_there_is_room(
        self,
        request: StartManyRequest,
        options: SpawnOptions,
        places: Sequence[Member],
        found: list[Address | Exception],
    ) -> None:
        """Start the actors at these places, which were chosen by `options`. Those that a node
        refuses, because others have taken what this node saw as free there, or because it leaves,
        are started elsewhere.
        """
        where = dict(enumerate(places))
        refusals: dict[NodeId, StartRefusal] = {}
        while where:
            await self._start_at_places(request, where, found)
            refused = {
                index: refusal
                for index, one in enumerate(found)
                if isinstance(one, Exception) and (refusal := refusal_of(one, options)) is not None
            }
            if not refused:
                return
            # Of those that were not asked for in this round, the errors are known already.
            refusals |= {
                where[index].node_id: refusal
                for index, refusal in refused.items()
                if index in where
            }
            try:
                places = await self._placement.place_rest(options, len(refused), refusals)
            except (CallError, SpawnError, StoreError) as error:
                for index in refused:
                    found[index] = error
                return
            where = dict(zip(refused, places, strict=False))

    async def _start_at_places(
        self,
        request: StartManyRequest,
        places: Mapping[int, Member],
        found: list[Address | Exception],
    ) -> None:
        """Start the actors at the indices of `places` there, and put their addresses or errors into
        `found`.
        """
        on_node: dict[str, tuple[Member, list[int]]] = {}
        for index, member in places.items():
            on_node.setdefault(member.name, (member, []))[1].append(index)

        async def start_on(member: Member, parts: Iterator[list[int]]) -> None:
            for indices in parts:
                await self._start_some(request, member, indices, found)

        names = [request.names[index] for index in places] if request.names else []
        resources = request.options.resources
        self._placement.on_placed_many(names, list(places.values()), resources)
        try:
            async with trio.open_nursery() as nursery:
                for member, indices in on_node.values():
                    # One iterator for all tasks of a node: each takes the next part when its last
                    # message is answered.
                    parts = batched(indices, MOST_IN_MESSAGE)
                    messages = math.ceil(len(indices) / MOST_IN_MESSAGE)
                    for _ in range(min(MESSAGES_AT_ONCE, messages)):
                        nursery.start_soon(start_on, member, parts)
        finally:
            outcomes = [found[index] for index in places]
            self._placement.on_started_many(names, outcomes, resources)

    async def _start_some(
        self,
        request: StartManyRequest,
        member: Member,
        indices: list[int],
        found: list[Address | Exception],
    ) -> None:
        """Start the actors at `indices` on `member`, and put their addresses or errors into
        `found`.
        """
        path = import_path(request.cls)
        try:
            try:
                await self._ask_for_many(request, path, member, indices, found)
            except ActorClassError:
                by_file = path_by_file(path)
                if by_file is None:
                    raise
                await self._ask_for_many(request, by_file, member, indices, found)
        except EncodeError:
            # Find the rows that cannot be encoded, and start the others.
            fine: list[int] = []
            for index in indices:
                try:
                    self._endpoint.codec.encode(request.rows[index], [], f"argument_list[{index}]")
                except EncodeError as error:
                    found[index] = error
                else:
                    fine.append(index)
            if len(fine) == len(indices):
                raise
            if fine:
                await self._start_some(request, member, fine, found)
        except BadArgumentsError as error:
            if len(indices) == 1:
                found[indices[0]] = error
                return
            # The node has read none of them, and started none. One half after the other, until the
            # rows that it cannot read are alone: the others start.
            middle = len(indices) // 2
            for half in (indices[:middle], indices[middle:]):
                await self._start_some(request, member, half, found)
        except (CallError, SpawnError, StoreError) as error:
            for index in indices:
                found[index] = error

    async def _ask_for_many(
        self,
        request: StartManyRequest,
        path: str,
        member: Member,
        indices: list[int],
        found: list[Address | Exception],
    ) -> None:
        service = self._endpoint.node_service(member.name, member.incarnation)
        ticket = self._environment.token(8).hex()
        names = [request.names[index] for index in indices] if request.names else []
        rows = [request.rows[index] for index in indices]
        known = bool(names) and request.known
        try:
            with about_start(of_class(path), member, self._environment.now, known=known):
                spawned, epochs, failures = await service.spawn_many(
                    path, rows, names, request.options, ticket
                )
        except (trio.Cancelled, OutcomeUnknownError) as error:
            if is_to_be_taken_back(error, known=known):
                await self._take_backs.send(  # noqa: ASYNC102, ASYNC120  shielded and bounded
                    member.node_id, service.take_back, ticket
                )
            raise
        registered = bool(names)
        for index, name, epoch in zip(indices, spawned, epochs, strict=True):
            found[index] = Address(name, member.name, member.incarnation, epoch, path, registered)
        for failure in failures:
            found[indices[failure.number]] = failure.error(member.name)

    async def stop_address(
        self, address: Address, reason: ExitReason, shutdown: Shutdown | Literal["usual"] = "usual"
    ) -> ExitReason | None:
        """Stop the actor at `address`, if it still runs; `shutdown` as in `ChildSpec`, "usual" for
        its default there. Returns its exit reason, or None if that is not known.
        """
        service = self._endpoint.node_service(address.node, address.incarnation)
        # Nodes of an earlier version do not know the word.
        limit = () if shutdown == "usual" else (shutdown,)
        try:
            ended = cast(
                "ExitReason | None",
                await service.stop_actor(address.name, address.epoch, reason, *limit),
            )
        except SERVICE_ENDED:
            # And with it the actor.
            return None
        self._placement.on_stopped(address)
        return ended

    async def stop_together(
        self, address: Address, reason: ExitReason, asking: AskingBlock | None = None
    ) -> bool:
        """Stop the actor at `address` together with others of its node that are stopped at the
        same time. Returns False if that is not possible: it is not there, or needs its time.
        `asking` as in `Gatherer.request`.
        """
        if not address.epoch or self.spans is not NO_SPANS or CURRENT.get() is not None:
            return False
        place = address.node_id
        actor = (address.name, address.epoch)

        kind = (place, reason)

        async def alone() -> StopAnswer:
            return (await self._stop_many(kind, [actor]))[0]

        try:
            answer = await self._stops.request(place, kind, actor, alone, asking)
        except CallError:
            # Its node is gone, or of an earlier version: what is to be done about that is known
            # where one actor is stopped.
            return False
        if answer == "stopped":
            self._placement.on_stopped(address)
        return answer == "stopped"

    async def _stop_many(
        self, kind: tuple[NodeId, ExitReason], actors: list[tuple[str, int]]
    ) -> list[StopAnswer]:
        node, reason = kind
        service = self._endpoint.node_service(node.name, node.incarnation)
        return cast("list[StopAnswer]", await service.stop_many(actors, reason))

    async def watch_address(self, address: Address) -> ExitReason:
        """Wait until the actor at `address` has ended, by itself or with its node."""
        while True:
            try:
                ended = await self._endpoint.node_service(
                    address.node, address.incarnation
                ).watch_actor(address.name, address.epoch)
                if ended is None:
                    continue
                return cast("ExitReason", ended)
            except CallError:
                # A node that is newer than the view is no member yet, and not gone either.
                if self._members.is_gone(address.node_id):
                    return ExitReason("node died", f"node {address.node} is gone")
            # Only the session with the node was lost, or the store is away: watch again.
            await trio.sleep(WATCH_RETRY_SECONDS)

    async def living(self, supervisor: str, names: Sequence[str]) -> dict[str, Address]:
        """Return the addresses of those of these names whose actors run on live nodes and were
        started by `supervisor`.
        """
        found: dict[str, Address] = {}
        for name, (address, started_for) in (await self._names.owned(names)).items():
            # The view may not have a node yet that has just joined, which would not count as live.
            await self._members.caught_up(address.incarnation)
            lives = self._members.is_current(address.node_id)
            if started_for == supervisor and lives:
                found[name] = address
        return found

    async def is_promised(self, name: str) -> bool:
        """Return True if a supervisor or a candidate will start an actor of this name again."""
        return await self._names.is_promised(name)

    async def write_intent(
        self, name: str, supervisor: Address, *, lasting: bool, added: ChildSpec | None
    ) -> int:
        """Write the intent of a supervisor to restart `name`. `lasting`: the supervisor itself will
        be restarted. `added`: the spec of a child that its constructor does not have. Returns the
        revision of what was written, 0 for nothing. Raises `StoreError`.
        """
        return await self._names.intents.give(
            name, supervisor.name, _epoch(supervisor), lasting=lasting, added=added
        )

    async def begin_intents(self, supervisor: Address, names: Sequence[str]) -> None:
        """Record the children of a supervisor that begins and will be restarted; withdraw the
        intents of earlier epochs for other children. Raises `StoreError`.
        """
        await self._names.intents.begin(supervisor.name, _epoch(supervisor), names)

    async def withdraw_intents(
        self,
        supervisor: Address,
        names: Sequence[str],
        forget: Sequence[str] = (),
        *,
        last: bool = False,
    ) -> None:
        """Withdraw the intents of a supervisor for these names and for all below them. `forget`:
        ids of added children whose specs are deleted as well. `last`: the supervisor ends and is
        not restarted. Raises `StoreError`.
        """
        await self._names.intents.withdraw(
            supervisor.name, _epoch(supervisor), names, forget=forget, last=last
        )

    def withdraw_intents_later(
        self, supervisor: Address, names: Mapping[str, int], forget: Mapping[str, int]
    ) -> None:
        """Withdraw what `withdraw_intents` could not, when the store is there again: the names and
        ids with the revisions in which they were written.
        """
        self._names.intents.withdraw_later(supervisor.name, names, forget)

    async def record_ends(self, ends: Mapping[str, str]) -> None:
        """Record how actors of these names have ended, for callers that wait for them. Raises
        `StoreError`.
        """
        await self._names.intents.record_ends(ends)

    async def added(self, supervisor: Address) -> list[ChildSpec]:
        """Return the specs of the children that were added to earlier epochs of the supervisor at
        run time. Raises `StoreError`.
        """
        return await self._names.intents.added(supervisor.name)

    @property
    def room(self) -> RoomQueue:
        """What waits on this node for room."""
        return self._placement.room

    async def wait_for_room_here(self, options: SpawnOptions, since: int, seconds: float) -> bool:
        """Like `wait_for_room`, for an actor that this node alone may run."""
        here = attrs.evolve(options, on=self._endpoint.identity.name)
        return await self.wait_for_room(here, since, seconds)

    @property
    def cluster_closes(self) -> bool:
        """True while no node of the cluster takes actors: those that are there leave."""
        return not any(member.state == "up" for member in self._members.all())

    def handle(self, address: Address, actor: type[Actor] | None = None) -> Handle:
        """Return a handle of the actor at `address`. Raises ClassMismatchError if it is not of
        class `actor`.
        """
        return cast("Handle", self._endpoint.typed_handle(address, actor))


def _waits_for_nothing(request: StartRequest) -> bool:
    """True for an actor whose start runs no user code and waits for nothing, but for its name."""
    return (
        request.options.isolation == "none"
        and not request.args
        and not request.kwargs
        and starts_at_once(request.cls)
    )


def batched(items: list[int], most: int) -> Iterator[list[int]]:
    """Yield the items in lists of at most `most`, in their order."""
    for begin in range(0, len(items), most):
        yield items[begin : begin + most]


def _not_stopped(kind: tuple[NodeId, ExitReason]) -> Exception:
    return OutcomeUnknownError("an actor was not stopped, as far as is known: this node closed")


def _epoch(supervisor: Address) -> int | None:
    return supervisor.epoch if supervisor.registered else None
