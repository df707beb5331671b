"""What actors may ask of their node: the node's own code calls `NodeApi` directly, an actor in a
process of its own through `NodeApiProxy` and the service `@isolation`.

Each operation is one method of `NodeApi` with the mark `@operation`. The service offers the marked
methods and nothing else of the class, the proxy as well, so an operation is added or changed in one
place. The arguments of an operation are checked against its annotations when they come from a child
process; see `runtime.annotation_checks`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

import attrs
import trio

from actors.actor import Actor, Ended, Member
from actors.errors import ActorNotFoundError, CallError, RemoteError, UnderstudyError
from actors.handle import Handle
from actors.identifiers import NodeId
from actors.method import (
    Address,
    BoundMethod,
    BoundStream,
    InThread,
    MethodDefinition,
    method,
)
from actors.options import SpawnOptions
from actors.reference import Reference
from actors.supervision import ExitReason
from runtime.calls.arguments import StartManyRequest, StartRequest
from runtime.calls.endpoint import RpcEndpoint
from runtime.calls.error_codec import CallPlace, PassedOnError, describe, plain_error, rebuild
from runtime.functions.caller import FunctionCaller
from runtime.functions.function_names import FunctionCall
from runtime.groups.groups import Groups, ProcessGroup
from runtime.hosting.cell import ActorCell, RefusedElsewhereError
from runtime.hosting.node_service import StartFailed, StartFailures, actor_class
from runtime.hosting.start_tickets import StartTickets
from runtime.isolation.actor_proxy import proxy_of
from runtime.isolation.child_process import ChildProcessHandle
from runtime.isolation.messages import (
    ISOLATION_SERVICE,
    LaunchRequest,
    NodeAnswer,
    StartFailure,
)
from runtime.membership.lookups import Lookups
from runtime.membership.members import Members, MembersWatch
from runtime.membership.name_suggestions import NameSuggestions
from runtime.membership.names import Names
from runtime.supervision.singletons import Candidacies
from runtime.supervision.spawner import ActorSpawner
from runtime.watching.watcher import Watcher

F = TypeVar("F", bound=Callable[..., Any])


_OPERATION: Final = "operation of the node API"


def operation(function: F) -> F:
    """Mark a method of `NodeApi` as one that child processes may ask for."""
    vars(function)[_OPERATION] = True
    return function


class NodeApi:
    """A node, as the actors on it need it. `nursery`: the node's."""

    def __init__(
        self,
        endpoint: RpcEndpoint,
        names: Names,
        lookups: Lookups,
        members: Members,
        spawner: ActorSpawner,
        candidacies: Candidacies,
        watcher: Watcher,
        groups: Groups,
        functions: FunctionCaller,
        nursery: trio.Nursery,
    ) -> None:
        self._endpoint = endpoint
        self._lifetime = endpoint.lifetime
        self._names = names
        self._lookups = lookups
        self._suggestions = NameSuggestions(names)
        self._members = members
        self._spawner = spawner
        self._candidacies = candidacies
        self._watcher = watcher
        self._groups = groups
        self._functions = functions
        self._nursery = nursery
        self._tickets = StartTickets()
        """Of starts for children."""

    @operation
    async def members(self) -> tuple[Member, ...]:
        """Return the nodes known to be in the cluster now, this one included, by name."""
        await trio.lowlevel.checkpoint()
        self._lifetime.check()
        return self._members.all()

    @operation
    async def watch_members(self) -> AsyncGenerator[tuple[Member, ...], None]:
        """Yield the members, at once and again after every change."""
        async for members in MembersWatch(self._members, self._lifetime):
            yield members

    @operation
    async def start(
        self,
        class_path: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: SpawnOptions,
        ticket: str,
    ) -> Address:
        """Start an actor, on this node unless the options select another. Raises like
        `Spawner.spawn`. `ticket`: see `take_back_ticket`.
        """
        if self._spawner.is_for_here(options):
            options = attrs.evolve(options, on=self._endpoint.identity.name)
        with (
            self._lifetime.asking(f"{options.name or class_path} was not started", acts=True),
            self._tickets.issued(ticket) as started,
        ):
            address = await self._spawner.start_actor(class_path, args, kwargs, options, "")
            started.append(address)
            return address

    @operation
    async def start_many(
        self,
        class_path: str,
        rows: list[tuple[object, ...]],
        names: list[str],
        options: SpawnOptions,
        ticket: str,
    ) -> list[Address | StartFailed]:
        """Start many actors; returns for each its address, or why it did not start. Raises
        `NodeNotFoundError` and `NoPlacementError` before anything is started. `ticket`: see
        `take_back_ticket`.
        """
        node = self._endpoint.identity.name
        cls = await actor_class(class_path, node, self._endpoint.host.in_thread)
        with (
            self._lifetime.asking("actors were not started", acts=True),
            self._tickets.issued(ticket) as started,
        ):
            found = await self._spawner.start_many(StartManyRequest(cls, rows, names, options))
            started += [one for one in found if isinstance(one, Address)]
        failures = StartFailures()
        for place, one in enumerate(found):
            if not isinstance(one, Address):
                failures.add(place, one)
        failed = iter(failures.all)
        return [one if isinstance(one, Address) else next(failed) for one in found]

    @operation
    async def take_back(self, addresses: Sequence[Address]) -> None:
        """Stop actors whose handles were lost on their way to the task that has started them.
        Those that others have found meanwhile stay.
        """
        await self._spawner.take_back(addresses)

    @operation
    async def take_back_ticket(self, ticket: str) -> None:
        """Stop the actors that were started with this ticket, which the child has drawn at random:
        its task was cancelled, and the answer was perhaps under way to it. Those that others have
        found meanwhile stay.
        """
        await self._spawner.take_back(await self._tickets.take(ticket))

    @operation
    async def run(
        self,
        path: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: SpawnOptions,
    ) -> object:
        """Run a function in a worker process of the cluster. The caller has checked the arguments,
        because it knows the function. Raises what the function raises.
        """
        try:
            return await self._functions.run(FunctionCall(path, None, args, kwargs, options))
        except RemoteError as error:
            # As what the function raised, and not as an error of this operation.
            raise PassedOnError(error) from None

    @operation
    async def stand(
        self,
        class_path: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: SpawnOptions,
    ) -> Address:
        """Make this node a candidate for a singleton, and return its address once it runs on any
        node.
        """
        node = self._endpoint.identity.name
        cls = await actor_class(class_path, node, self._endpoint.host.in_thread)
        request = StartRequest.of_singleton(cls, args, kwargs, options)
        with self._lifetime.asking(f"node {node} does not stand for {options.name}", acts=True):
            return await self._candidacies.stand(request)

    @operation
    async def find(self, name: str, waits: bool) -> Address | None:
        """Return the address of the actor of this name, if there is one; with `waits` once it has
        started. Raises the ActorStartError of its start.
        """
        with self._lifetime.asking(f"{name} could not be looked up, so it may still be running"):
            return await self._spawner.find_started(name, waits=waits)

    @operation
    async def lookup(self, name: str, seconds: float | None) -> Address:
        """Return the address of the actor of this name, from this node's view if it follows the
        names, within so many seconds. Raises `ActorNotFoundError`, with a name that is like it: see
        `NameSuggestions`; and DeadlineExceededError, which says why the actor does not run.
        """
        with self._lifetime.asking(f"{name} could not be looked up, so it may still be running"):
            try:
                return await self._names.locate_within(name, seconds, self._lookups.locate)
            except ActorNotFoundError as error:
                # Without the frames of the search in its traceback: users see only those of their
                # own call.
                missing = error.with_traceback(None)
            raise await self._suggestions.added(missing, name)

    @operation
    async def locate(self, name: str) -> Address:
        """Return the address of the actor of this name for a call, waiting while it is being
        restarted. Raises `ActorNotFoundError`.
        """
        with self._lifetime.asking(f"{name} could not be looked up, so it may still be running"):
            return await self._names.locate(name)

    @operation
    async def place(self, node: str, incarnation: int) -> Member | None:
        """Return that incarnation of that node as a member; None if it is known to have ended."""
        with self._lifetime.asking(f"where node {node} is could not be found out"):
            await self._members.caught_up(incarnation)
        seen = self._members.current(NodeId(node, incarnation))
        return None if seen is None else seen.member

    @operation
    async def stop(self, address: Address, reason: str) -> None:
        """Stop an actor and wait until it has ended. One that has ended may be stopped. An
        actor that stops itself does not wait.
        """
        name, why = address.name, ExitReason("stopped", reason)
        self._lifetime.check()
        # An `on_stop` may stop other actors of its node, also where that was given up, and leaves.
        here = address.node_id == self._endpoint.identity
        with self._lifetime.asking(
            lambda: f"{name} was not stopped", acts=True, alone=here, waits=False
        ) as asking:
            # First where the handle says that the actor is: the store is asked only if it is not
            # there.
            stopped = await self._spawner.stop_together(address, why, asking)
        if stopped:
            self._lookups.forget(name)
            return
        if address.registered:
            with self._lifetime.asking(f"{name} could not be looked up, and was not stopped"):
                found = await self._names.find(name)
            if found is None or not self._endpoint.fits(address, found):
                self._lookups.forget(name)
                return
            address = found
            here = address.node_id == self._endpoint.identity
        invocation = self._endpoint.host.workers.running_here()
        if invocation is not None and invocation.cell.address == address:
            # An actor that stops itself cannot wait for its own end: it ends when this method has.
            self._nursery.start_soon(self._spawner.stop_address, address, why)
        else:
            with self._lifetime.asking(f"{name} was not stopped", acts=True, alone=here):
                await self._spawner.stop_address(address, why)
        self._lookups.forget(name)

    @operation
    async def wait_ended(self, address: Address) -> Ended:
        """Wait until the present epoch of an actor has ended, and return the notice."""
        with self._lifetime.asking("the end of an actor cannot be waited for"):
            return await self._watcher.wait_ended(self._endpoint.make_handle(address))

    @operation
    async def put(self, value: object) -> Reference[object]:
        """Store a copy of a value on this node, as long as a reference to it exists."""
        with self._lifetime.asking("a value was not kept"):
            self._endpoint.check_member(
                "values are kept by nodes only; let a method return the value"
            )
            return await self._endpoint.references.put(value)

    @operation
    async def save(
        self, name: str, epoch: int, state: object, answers: tuple[object, ...], in_turn: bool
    ) -> None:
        """Save the state of an actor in the store, with the answer of its call: `answers` has none
        or one. `in_turn`: the call whose turn it is has led to the state.
        """
        host = self._endpoint.host
        cell = host.cells.get(name)
        if cell is None or cell.address.epoch != epoch:
            await self._names.save(name, epoch, state)
            return
        turn = cell.turn if in_turn else None
        call = turn.call.identity if turn is not None and turn.call is not None else None
        await host.completion_log.save_with(
            cell, call, state, answers[0] if answers else attrs.NOTHING
        )

    @operation
    async def saved(self, name: str) -> Any:
        """Return the state that an earlier epoch of `name` has saved, or None."""
        return await self._names.saved(name)

    @operation
    async def watch_group(self, group: str) -> AsyncGenerator[tuple[Address, ...], None]:
        """Yield the members of a group, those on this node first, each as often as it has joined;
        again after every change.
        """
        self._lifetime.check()
        held = ProcessGroup(self._groups, self._groups.followed(group), Actor)
        async for members in held.watch():
            yield tuple(member.address for member in members)

    # Operations for an actor of this node, given by its name and epoch. Each raises RuntimeError if
    # that actor has ended.

    @operation
    async def watch(self, name: str, epoch: int, address: Address) -> tuple[int, str, int]:
        """Watch the present epoch of an actor; returns the number of the watch, and the name and
        epoch of the watched actor.
        """
        handle = self._endpoint.make_handle(address)
        watch = await self._watcher.watch(self._cell(name, epoch), handle)
        return watch.number, watch.name, watch.epoch

    @operation
    async def unwatch(self, name: str, epoch: int, number: int) -> None:
        """Cancel a watch. Returns when no notice of it can reach the actor any more."""
        cell = self._cell(name, epoch)
        self._watcher.cancel(number)
        if (proxy := proxy_of(cell)) is not None:
            await proxy.wait_delivered(number)

    @operation
    async def link(self, name: str, epoch: int, address: Address) -> None:
        """Link the actor with another."""
        handle = self._endpoint.make_handle(address)
        await self._watcher.link(self._cell(name, epoch), handle)

    @operation
    async def unlink(self, name: str, epoch: int, address: Address) -> None:
        """End the actor's links with another."""
        handle = self._endpoint.make_handle(address)
        await self._watcher.unlink(self._cell(name, epoch), handle)

    @operation
    async def join(self, name: str, epoch: int, group: str) -> None:
        """Let the actor join a group. Raises ValueError for an invalid name."""
        await self._groups.of(self._cell(name, epoch)).join(group)

    @operation
    async def leave(self, name: str, epoch: int, group: str) -> bool:
        """Undo one `join` of the actor; False if there is none left."""
        return await self._groups.of(self._cell(name, epoch)).leave(group)

    def _cell(self, name: str, epoch: int) -> ActorCell:
        cell = self._endpoint.host.cells.get(name)
        if cell is None or cell.address.epoch != epoch:
            node = self._endpoint.identity.name
            raise RuntimeError(
                f"{name} has ended on node {node}; it can no longer watch actors or join groups"
            )
        return cell


@attrs.frozen
class NodeOperation(MethodDefinition):
    """An operation of `NodeApi` as a method of the service `@isolation`: its answers are
    `NodeAnswer`s, or its items those of the stream.
    """

    def run(
        self,
        instance: object,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        in_thread: InThread,
    ) -> Coroutine[Any, Any, object]:
        """Return the coroutine that runs the operation and returns its `NodeAnswer`."""
        assert isinstance(instance, IsolationService)
        # Arguments that do not fit are refused here, before anything runs.
        inspect.signature(self.function).bind(instance.api, *args, **kwargs)
        return instance.answer(functools.partial(self.function, instance.api, *args, **kwargs))

    def items(
        self, instance: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> AsyncGenerator[object, None]:
        """Return the generator of the operation's items."""
        assert isinstance(instance, IsolationService)
        items: AsyncGenerator[object, None] = self.function(instance.api, *args, **kwargs)
        return _with_own_errors(items)


async def _with_own_errors(items: AsyncGenerator[object, None]) -> AsyncGenerator[object, None]:
    """Yield the items of an operation. An error of the runtime reaches the reader as that, and not
    as what a method has raised; see `IsolationService.answer`.
    """
    try:
        async for item in items:
            yield item
    except CallError as error:
        raise RefusedElsewhereError(error) from None
    finally:
        # It has ended, or the stream server closes both, shielded and bounded.
        await items.aclose()  # noqa: ASYNC102, ASYNC120


OPERATIONS: Final[Mapping[str, MethodDefinition]] = {
    name: NodeOperation(
        name=name,
        function=function,
        concurrent=True,
        stream=inspect.isasyncgenfunction(function),
    )
    for name, function in vars(NodeApi).items()
    if inspect.isfunction(function) and _OPERATION in vars(function)
}
"""All that child processes may ask of their node, by name."""


class IsolationService(Actor):
    """The service `@isolation` of a node: the life of the child processes, and the operations of
    the node API. `children`: the processes, connected or expected, by ticket. `on_failure`: called
    with the failures of its actor that a process reports.
    """

    def __init__(
        self,
        api: NodeApi,
        children: Mapping[str, ChildProcessHandle],
        size_of: Callable[[object], int | None],
        on_failure: Callable[[Mapping[str, Any], Address], None],
    ) -> None:
        self.api = api
        self._children = children
        self._size_of = size_of
        self._on_failure = on_failure

    @method(concurrent=True)
    async def wait(self, ticket: str) -> str:
        """Wait until a launch request is assigned to the process with this ticket. Returns the
        import path of the actor's class, which the process imports before it calls `take`. Raises
        ActorNotFoundError if the process is not expected.
        """
        return await self._child(ticket).wait_assigned()

    @method(concurrent=True)
    async def take(self, ticket: str) -> LaunchRequest:
        """Return the launch request of the process with this ticket."""
        members = await self.api.members()
        return attrs.evolve(self._child(ticket).take_request(), members=members)

    @method(concurrent=True)
    async def begun(self, ticket: str, failure: StartFailure | None) -> None:
        """Report that the actor has started, or why it has not."""
        self._child(ticket).on_started(failure)

    @method(concurrent=True)
    async def ended(self, ticket: str, reason: ExitReason) -> None:
        """Report that the actor has ended by itself."""
        self._child(ticket).on_ended(reason)

    @method(concurrent=True)
    async def failed(self, ticket: str, failure: dict[str, Any]) -> None:
        """Report the frames of a failure of the actor, for a post-mortem; see
        `FailureRecord.of_process`.
        """
        self._on_failure(failure, self._child(ticket).address)

    async def answer(self, ask: Callable[[], Coroutine[Any, Any, object]]) -> NodeAnswer:
        """Return the value, or an error of the runtime as data. Raised, it would reach the caller
        as a `RemoteError`, but it is the node's own error.
        """
        try:
            return NodeAnswer(await ask())
        except UnderstudyError as error:
            return NodeAnswer(None, *describe(error, self._size_of))

    def _child(self, ticket: str) -> ChildProcessHandle:
        child = self._children.get(ticket)
        if child is None:
            raise ActorNotFoundError(
                "the node does not expect this process: its actor has ended, or the ticket is wrong"
            )
        return child


IsolationService.__methods__ = MappingProxyType({**IsolationService.__methods__, **OPERATIONS})


class NodeApiProxy:
    """The operations of the `NodeApi` of a node, for code in a child process of that node, and
    nothing else of it. Raises the node's errors here as the node would.
    """

    def __init__(self, endpoint: RpcEndpoint, node: NodeId) -> None:
        self._endpoint = endpoint
        self._node = node

    @classmethod
    def of(cls, endpoint: RpcEndpoint, node: NodeId) -> NodeApi:
        """A proxy for that node. To a type checker it is the class itself, which checks each call;
        a stream is an async generator to it, and at run time an `actors.Stream`.
        """
        return cast("NodeApi", cls(endpoint, node))

    def __getattr__(self, name: str) -> Callable[..., object]:
        # Asked of the table, because a handle has attributes of its own. The handle is made here,
        # not in the constructor: the endpoint makes its host, which needs this, before its client.
        if name not in OPERATIONS:
            raise AttributeError(
                f"{name!r} is not an operation of the node API: mark it @operation"
            )
        address = Address(ISOLATION_SERVICE, *self._node)
        bound = getattr(Handle(self._endpoint.caller, address, OPERATIONS), name)
        asked: Callable[..., object] = (
            bound if isinstance(bound, BoundStream) else functools.partial(self._ask, name, bound)
        )
        # The next access finds it without coming here.
        self.__dict__[name] = asked
        return asked

    async def _ask(
        self,
        operation: str,
        bound: BoundMethod[..., object],
        *args: object,
        **kwargs: object,
    ) -> object:
        answer = await bound(*args, **kwargs)
        assert isinstance(answer, NodeAnswer)
        if not answer.code:
            return answer.value
        place = CallPlace(ISOLATION_SERVICE, operation, self._node.name, 0)
        error = rebuild(answer.code, answer.plain, place, self._endpoint.codec.find_class)
        try:
            if isinstance(error, RemoteError):
                raise plain_error(error) or error
            raise error
        finally:
            # No circle with this frame, which the traceback has.
            del error
