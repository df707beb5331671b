"""A node as users see it, in the node's own process and in its child processes: `BaseNode` is what
`Node` and `NodeClient` have in common of `actors.actor.NodeInterface`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, Unpack, cast, overload

import attrs
import trio

from actors.actor import Actor, Ended, NodeInterface, Spawner
from actors.class_names import class_name, qualified_name
from actors.documentation import documented_as
from actors.errors import NameTakenError, NoPlacementError, SpawnManyError
from actors.exact import exact
from actors.foreign_names import HasForeignNames, names_for_clusters
from actors.functions import RunsFunctions
from actors.groups import checked_group_name
from actors.handle import Handle
from actors.identifiers import NodeId
from actors.keywords import names_keywords
from actors.method import Address
from actors.options import SpawnChanges, SpawnOptions, check_name
from actors.pools import JournalSummary
from actors.process_bound import ProcessBound
from actors.reference import Reference
from actors.short_repr import short_repr
from runtime.calls.arguments import StartManyRequest, StartRequest, unparameterised
from runtime.calls.endpoint import RpcEndpoint
from runtime.environment import Environment
from runtime.functions.caller import FunctionCaller
from runtime.functions.function_names import FunctionCall
from runtime.groups.groups import GroupSource, ProcessGroup
from runtime.isolation.node_api import NodeApi
from runtime.lifetime import AskingBlock
from runtime.pools.member_plan import PoolSize, check_places, check_pool_name, for_members
from runtime.user_errors import CHECKS, repr_of

if TYPE_CHECKING:
    from runtime.membership.journals import Journals
    from runtime.pools.journal_service import JournalClient
    from runtime.pools.pool import Pool

P = ParamSpec("P")


A = TypeVar("A")


T = TypeVar("T")


_USUAL: Final = SpawnOptions()
"""For all that is started without options: to check them each time would be an eighth of a start.
"""


@attrs.frozen
class ActorStarter:
    """The operations by which code in a node or in a child starts actors."""

    start: Callable[[StartRequest, AskingBlock], Awaitable[Address]]
    """See `Spawner.spawn`. It is called in the block, and says there where it begins to wait."""
    start_many: Callable[[StartManyRequest], Awaitable[list[Address | Exception]]]
    """An address for each, or why it did not start."""
    stand: Callable[[StartRequest], Awaitable[Address]]
    """See `Spawner.singleton`; the node is the candidate, for as long as it lives."""
    find_started: Callable[[str], Awaitable[Address | None]]
    """The address of the actor that has a name now, once it has started; within the start of
    another actor, at once. Raises the ActorStartError of its start.
    """
    take_back: Callable[[Sequence[Address]], Awaitable[None]]
    """Stop actors whose handles were lost on their way to the task that has started them. Those
    that others have found meanwhile stay.
    """


@attrs.frozen
class _NodeOptions(RunsFunctions):
    """A way to start actors, and run functions, with options; see `actors.actor.Spawner`."""

    _endpoint: RpcEndpoint
    _starter: ActorStarter
    _functions: FunctionCaller
    _options: SpawnOptions

    @names_keywords
    def options(self, **changes: Unpack[SpawnChanges]) -> _NodeOptions:
        return _NodeOptions(
            self._endpoint, self._starter, self._functions, self._options.changed(**changes)
        )

    async def spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        with self._endpoint.lifetime.asking(
            lambda: f"{self._what(actor)} was not started", acts=True, waits=False
        ) as asking:
            with CHECKS:
                request = StartRequest.checked("spawn", actor, args, kwargs, self._options)
            return cast("A", await self._start(request, asking))

    async def spawn_many(
        self,
        actor: Callable[..., A],
        argument_list: Iterable[Sequence[object]],
        /,
        *,
        names: Sequence[str] | None = None,
    ) -> list[A]:
        with CHECKS:
            request = StartManyRequest.checked(actor, argument_list, names, self._options)
        call_options = self._options.call_options()
        with self._endpoint.lifetime.asking("actors were not started", acts=True):
            found = await self._starter.start_many(request)
        errors: dict[int, Exception] = {}
        handles: list[Handle | None] = []
        make_handle = self._endpoint.handle_maker(request.cls)
        changed = not call_options.is_default
        for place, one in enumerate(found):
            if isinstance(one, Exception):
                errors[place] = one
                handles.append(None)
                continue
            handle = make_handle(one)
            if changed:
                handle = handle.options(timeout=call_options.timeout, retry=call_options.retry)
            handles.append(handle)
        if errors:
            place, error = next(iter(errors.items()))
            raise SpawnManyError(
                f"{len(errors)} of {len(found)} actors of class {qualified_name(request.cls)} "
                f"did not start, the first of them argument_list[{place}]: {error}",
                errors=errors,
                handles=handles,
            ) from error
        return cast("list[A]", handles)

    async def get_or_spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        with self._endpoint.lifetime.asking(
            f"{self._what(actor)} was neither found nor started", acts=True
        ) as asking:
            with CHECKS:
                name = self._options.name
                if name is None:
                    raise ValueError(
                        "get_or_spawn needs a name: node.options(name=...).get_or_spawn(...)"
                    )
                request = StartRequest.checked("get_or_spawn", actor, args, kwargs, self._options)
            return cast("A", await self._get_or_start(name, request, asking))

    async def singleton(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        endpoint = self._endpoint
        with endpoint.lifetime.asking(
            f"node {endpoint.lifetime.node} does not stand for {self._what(actor)}", acts=True
        ):
            with CHECKS:
                request = StartRequest.of_singleton(actor, args, kwargs, self._options)
            address = await self._starter.stand(request)
            return cast("A", self._with_options(endpoint.typed_handle(address, request.cls)))

    async def _run_function(
        self, function: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        with CHECKS:
            call = FunctionCall.checked(function, args, kwargs, self._options)
        return await self._functions.run(call)

    async def _start(self, request: StartRequest, asking: AskingBlock) -> object:
        address = await self._starter.start(request, asking)
        return self._with_options(self._endpoint.make_handle(address, request.cls))

    async def _get_or_start(self, name: str, request: StartRequest, asking: AskingBlock) -> object:
        while True:
            found = await self._starter.find_started(name)
            if found is not None:
                return self._with_options(self._endpoint.typed_handle(found, request.cls))
            try:
                return await self._start(request, asking)
            except NameTakenError:
                # Another caller has started it first; unless that actor has ended again meanwhile,
                # it is found now.
                continue
            except NoPlacementError as error:
                # Another caller has started the actor first, and that actor takes the resources
                # which this start lacked.
                unplaced = error
            found = await self._starter.find_started(name)
            if found is not None:
                return self._with_options(self._endpoint.typed_handle(found, request.cls))
            try:
                raise unplaced
            finally:
                # No circle with this frame, which the traceback has.
                del unplaced

    def _with_options(self, handle: Handle) -> Handle:
        """The handle with the options for calls."""
        options = self._options
        if options.timeout is None and options.retry is None:
            return handle
        return handle.options(timeout=options.timeout, retry=options.retry)

    def _what(self, actor: object) -> str:
        actor = unparameterised(actor)
        name = class_name(cast("type", actor)) if issubclass(type(actor), type) else repr_of(actor)
        return self._options.name or f"an actor of class {name}"


class BaseNode(HasForeignNames, ProcessBound, RunsFunctions):
    """What `Node` and `NodeClient` offer to users alike. Derived classes set all attributes."""

    _endpoint: RpcEndpoint
    _api: NodeApi
    _starter: ActorStarter
    _functions: FunctionCaller
    _group_source: GroupSource
    _environment: Environment
    _nursery: trio.Nursery
    _journals: Journals | None
    _identity: NodeId

    _foreign_names = names_for_clusters(
        "node",
        "await ",
        "a pool does, pool.map(Class.method, items) of await node.pool(None, Class)",
    )

    if TYPE_CHECKING:

        async def stop(self, handle: object, *, reason: str = "stopped") -> None: ...

    @documented_as(SpawnOptions)
    @names_keywords
    def options(self, **changes: Unpack[SpawnChanges]) -> _NodeOptions:
        """Return a way to start actors and run functions with these options."""
        options = SpawnOptions(**changes) if changes else _USUAL
        return _NodeOptions(self._endpoint, self._starter, self._functions, options)

    def _run_function(
        self, function: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Coroutine[Any, Any, object]:
        # No `async def`: it would be one more frame of every traceback.
        return self.options()._run_function(function, args, kwargs)

    async def spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """Start an actor on this node under a generated name."""
        return await self.options().spawn(actor, *args, **kwargs)

    @documented_as(Spawner.spawn_many)
    async def spawn_many(
        self,
        actor: Callable[..., A],
        argument_list: Iterable[Sequence[object]],
        /,
        *,
        names: Sequence[str] | None = None,
    ) -> list[A]:
        """Start many actors of one class."""
        return await self.options().spawn_many(actor, argument_list, names=names)

    async def get_or_spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """Needs a name: `node.options(name=...).get_or_spawn(...)`."""
        return await self.options().get_or_spawn(actor, *args, **kwargs)

    async def singleton(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """Needs a name: `node.options(name=...).singleton(...)`."""
        return await self.options().singleton(actor, *args, **kwargs)

    @overload
    async def lookup(self, name: str) -> object: ...
    @overload
    async def lookup(self, name: str, actor: Callable[..., A]) -> A: ...
    async def lookup(self, name: str, actor: Callable[..., A] | None = None) -> A | object:
        """The handle of the actor of this name, wherever it runs; waits while its supervisor, or
        the candidates of a singleton, restart it, for as long as a call may take by
        `open_node(call_timeout=...)`.

        Raises `ActorNotFoundError`, `ClassMismatchError` if it is not of class `actor`,
        `DirectoryUnavailableError` while the store is away, and `DeadlineExceededError`, which says
        why the actor does not run.
        """
        with CHECKS:
            name = _checked_name("an actor", name)
        address = await self._api.lookup(name, self._endpoint.caller.call_timeout)
        return cast("A", self._endpoint.typed_handle(address, actor))

    async def wait_ended(self, handle: object) -> Ended:
        """Wait until the present epoch of an actor has ended; at once with "no such actor" for one
        that is dead or unknown.
        """
        if not isinstance(handle, Handle):
            raise TypeError(f"watching and linking take a handle, not {short_repr(handle)}")
        return await self._api.wait_ended(self._endpoint.check_own(handle).address)

    async def put(self, value: T) -> Reference[T]:
        """Keep a copy of a value on this node, for as long as there is a reference to it. Raises
        `EncodeError`.
        """
        return cast("Reference[T]", await self._api.put(value))

    @documented_as(NodeInterface.pool)
    async def pool(
        self,
        name: str | None,
        actor: Callable[..., A],
        /,
        *args: object,
        size: int | None = None,
        per_node: int | None = None,
        min: int | None = None,
        max: int | None = None,
        kwargs: Mapping[str, object] = MappingProxyType({}),
        **options: Unpack[SpawnChanges],
    ) -> Pool[A]:
        """`pool = await node.pool("resize", Resizer, size=8)`."""
        from runtime.pools.pool import member_of, open_pool

        with CHECKS:
            check_places(name, actor)
            count = PoolSize.of(size, per_node, min, max, bool(args))
            spawn = SpawnOptions(**options)
            for_members(spawn)
            if name is not None:
                check_name("name", name)
                check_pool_name(name)
            if not isinstance(kwargs, Mapping):
                raise TypeError(f"kwargs are a mapping of names, not {short_repr(kwargs)}")
            member_of(actor)
            if isinstance(actor, type):
                StartRequest.checked("pool", actor, args, kwargs, spawn)
        what = f"pool {name or ''}".strip()
        with self._endpoint.lifetime.asking(f"{what} was not opened", acts=True):
            return await open_pool(self, name, actor, args, dict(kwargs), count, spawn)

    async def lookup_pool(self, name: str, actor: Callable[..., A]) -> Pool[A]:
        """The pool of this name, wherever it was opened. Raises `ActorNotFoundError`, and
        `ClassMismatchError` if its members are of another class.
        """
        from runtime.pools.pool import find_pool

        with CHECKS:
            name = _checked_name("a pool", name)
        with self._endpoint.lifetime.asking(f"pool {name!r} was not found"):
            return await find_pool(self, name, actor)

    async def pool_journals(self) -> list[JournalSummary]:
        """The journals of maps that the cluster's store keeps, by name: items done, bytes, the node
        that works with each, and the seconds since it was last used. Raises `StoreError`.
        """
        return await self._journal_client().listed()

    @names_keywords
    async def remove_pool_journal(self, name: str, *, unused_for: float = 0.0) -> bool:
        """Remove the journal of a map, so that the next map under this name begins anew; only if it
        was not used for `unused_for` seconds. Returns True if it was removed. Raises
        `JournalInUseError` while a map works with it, and TypeError or ValueError for what makes
        no sense.
        """
        from runtime.membership.journals import check_unused

        with CHECKS:
            check_unused(name, unused_for)
        return await self._journal_client().remove(name, unused_for)

    def _journal_client(self) -> JournalClient:
        from runtime.pools.journal_service import JournalClient

        self._endpoint.lifetime.check()
        return JournalClient(self._endpoint, *self._journal_node())

    def _journal_node(self) -> NodeId:
        """The node that is asked for journals."""
        return self._identity

    def group(self, name: str, actor: Callable[..., A]) -> ProcessGroup[A]:
        """Return the group of this name; its members have the methods of `actor`. Raises
        ValueError for a name that no group can have, and TypeError if `actor` is no class.
        """
        with CHECKS:
            name = checked_group_name(name)
            cls = unparameterised(actor)
            if not issubclass(type(cls), type):
                raise TypeError(
                    f"the group {name!r} is of a class of actors, as in node.group({name!r}, "
                    f"MyActor), not of {short_repr(actor)}"
                )
            if not issubclass(cast("type", cls), Actor):
                raise TypeError(
                    f"the group {name!r} is of a subclass of actors.Actor, not of "
                    f"{class_name(cast('type', cls))}"
                )
        self._endpoint.lifetime.check()
        return ProcessGroup(self._group_source, self._group_source.followed(name), actor)


def _checked_name(what: str, given: object) -> str:
    """The name to look up. Raises TypeError."""
    name = exact(given)
    if not isinstance(name, str):
        raise TypeError(f"{what} is looked up by its name, a str, and not by {short_repr(name)}")
    return name


# Not as decorators: basedpyright loses the parameters of a method that is generic in them.
def taking_back(spawner: object) -> Callable[[object], Awaitable[None]]:
    """Return what stops actors that `spawner`, a node or its `options(...)`, has started. It takes
    their handle, or the list of their handles, which were lost on their way to another thread.
    """
    assert isinstance(spawner, BaseNode | _NodeOptions)
    starter = spawner._starter

    async def take_back(lost: object) -> None:
        handles = cast("list[Handle]", lost if isinstance(lost, list) else [lost])
        await starter.take_back([handle.address for handle in handles])

    return take_back


documented_as(Spawner.spawn)(BaseNode.spawn)
documented_as(Spawner.get_or_spawn)(BaseNode.get_or_spawn)
documented_as(Spawner.singleton)(BaseNode.singleton)
