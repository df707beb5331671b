"""A pool as its users hold it: `pool = await node.pool("resize", Resizer, size=8)`, then `async for
result in pool.map(Resizer.run, items)`.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import (
    AsyncIterable,
    Callable,
    Hashable,
    Iterable,
    Mapping,
    Sequence,
    Sized,
)
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import trio

from actors.actor import Actor
from actors.class_names import class_name
from actors.documentation import documented_as
from actors.errors import (
    ActorNotFoundError,
    CallError,
    CallTimeoutError,
    ClassMismatchError,
    EmptyPoolError,
    EncodeError,
    MethodNotFoundError,
    NotExecutedError,
    PoolStoppedError,
)
from actors.groups import Answer
from actors.handle import Handle
from actors.identifiers import ActorId
from actors.keywords import names_keywords
from actors.method import BoundMethod, Marked, MethodDefinition
from actors.options import SpawnOptions
from actors.own_logger import own_logger
from actors.pools import (
    MapChanges,
    MapSettings,
    NotReturned,
    OnError,
    PoolInterface,
    Routing,
)
from actors.process_bound import ProcessBound
from actors.reference import Reference
from actors.retry import RetryPolicy, check_whole_number
from actors.short_repr import short_repr
from runtime.calls.routes import passed_over
from runtime.environment import first, raise_as_it_is
from runtime.membership.journals import Journals, check_journal_name
from runtime.pools.batch_sizes import KnownPace
from runtime.pools.journal_driver import JournalDriver
from runtime.pools.map_run import MapOptions, MapResults, MapRun
from runtime.pools.map_schedule import MapSchedule
from runtime.pools.member_plan import PoolSize, PoolSpec
from runtime.pools.members import WHILE_IT_MOVES, PoolMembers, PoolNode, member_class
from runtime.pools.supervisor import (
    CoroutineMember,
    FunctionMember,
    PoolSupervisor,
    PoolView,
    check_what,
    function_path,
)
from runtime.user_errors import CHECKS, guarded
from runtime.wire.codec import Codec
from runtime.wire.frames import Buffer

P = ParamSpec("P")
A = TypeVar("A")
T = TypeVar("T")
R = TypeVar("R")

OPENING_BYTES = 8
"""Of the random text by which a named pool knows who has opened it."""

STOP_SECONDS = 40.0
"""How long the end of a pool's block may take: somewhat longer than its members may."""

_PLAIN_KEYS: Final[frozenset[type]] = frozenset({bool, bytes, float, int, str})
"""Types of keys whose repr is the same in all processes."""

logger = own_logger("understudy.pools")


def member_of(actor: object) -> tuple[str, str]:
    """The path of the members' class of a pool of `actor`, and that of the function that they run.
    Raises TypeError for what can be no member.
    """
    if isinstance(actor, type):
        return PoolSpec.member_path(actor), ""
    if not callable(actor):
        return PoolSpec.member_path(actor), ""
    path = function_path(actor)
    if inspect.isgeneratorfunction(actor) or inspect.isasyncgenfunction(actor):
        raise TypeError(
            f"{path} is a generator, which has no one result for an item; let it return a list"
        )
    member = CoroutineMember if inspect.iscoroutinefunction(actor) else FunctionMember
    return PoolSpec.member_path(member), path


async def open_pool(
    node: PoolNode,
    name: str | None,
    actor: Callable[..., A],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    size: PoolSize,
    options: SpawnOptions,
) -> Pool[A]:
    """Start a pool, or find the one of this name; see `BaseNode.pool`."""
    member, function = member_of(actor)
    if function and (args or kwargs):
        raise TypeError(
            "a pool of a plain function takes no arguments for members: give them with each item"
        )
    if options.idle_timeout is not None:
        # A member that is not there is started again: to keep the size.
        raise ValueError(
            "members of a pool are started again whenever they end, so idle_timeout makes no "
            "sense; give min and max for a pool that shrinks when it has little to do"
        )
    spec = PoolSpec(
        member=member,
        args=(function,) if function else args,
        kwargs=kwargs,
        options=options,
        size=size,
        named=name is not None,
        opener=node._endpoint.lifetime.node,
        function=function,
        opening="" if name is None else node._environment.token(OPENING_BYTES).hex(),
    )
    if name is None:
        handle = cast("Handle", await node.options().spawn(PoolSupervisor, spec))
    else:
        handle = await _found_or_opened(node, name, spec)
        # The pool must survive if this node dies right after the return.
        await cast("Any", handle.options(retry=WHILE_IT_MOVES)).wait_for_keeper()
    return await _joined(node, handle, actor, spec.what)


async def _found_or_opened(node: PoolNode, name: str, spec: PoolSpec) -> Handle:
    """The supervisor of a named pool, which is started if there is none."""
    spawner = node.options(name=name)
    try:
        # This node does not stand for a pool that is there already: it would do so with its own
        # size and arguments.
        return cast("Handle", await node.lookup(name, PoolSupervisor))
    except ActorNotFoundError:
        return cast("Handle", await spawner.singleton(PoolSupervisor, spec))


async def find_pool(node: PoolNode, name: str, actor: Callable[..., A]) -> Pool[A]:
    """The pool of this name; see `BaseNode.lookup_pool`."""
    member, function = member_of(actor)
    handle: object = await node.lookup(name, PoolSupervisor)
    return await _joined(node, cast("Handle", handle), actor, function or member)


async def _joined(node: PoolNode, handle: Handle, actor: Callable[..., A], what: str) -> Pool[A]:
    view: PoolView = await cast("Any", handle.options(retry=WHILE_IT_MOVES)).view()
    check_what(handle, view, what)
    members = PoolMembers(node, handle, actor)
    members.see(view)
    node._nursery.start_soon(members.follow, name=f"members of pool {handle.name}")
    return Pool(node, members, actor)


def _methods_of(cls: type[Actor]) -> Mapping[str, MethodDefinition]:
    return cls.__methods__


def no_attribute(actor: Callable[..., object] | None, name: str) -> AttributeError:
    """The error for an attribute that a pool of these members does not have, at any door."""
    cls = None if actor is None else member_class(actor)
    if cls is None or name not in _methods_of(cls):
        return AttributeError(f"a pool has no attribute {name!r}")
    return AttributeError(
        f"a pool has no methods of its members: pool.choose() gives a handle of one, which has "
        f"{name}(...), and pool.map({class_name(cls)}.{name}, items) runs it for many items"
    )


class Pool(ProcessBound, Generic[A]):
    """Members of one class, or of one function, over the nodes of the cluster, which work on items.
    Get one from `node.pool` or `node.lookup_pool`.

    `async with pool` stops it at the end of the block. Otherwise one without a name ends with the
    node that opened it, and a named one when `stop` is called.
    """

    def __init__(self, node: PoolNode, members: PoolMembers, actor: Callable[..., A]) -> None:
        self._node = node
        self._members = members
        self._actor = actor
        self._router = Router(
            node._environment.random, members.depth, KeyWriter(members.endpoint.codec).bytes_of
        )
        self._paces: dict[str, KnownPace] = {}
        """By method."""
        self._token = trio.lowlevel.current_trio_token()

    if not TYPE_CHECKING:  # to a type checker a pool has no other methods

        def __getattr__(self, name):
            raise no_attribute(None if name.startswith("_") else self._actor, name)

    @property
    def name(self) -> str:
        """The pool's name, unique in the cluster."""
        return self._members.name

    def members(self) -> tuple[A, ...]:
        """Handles of the members, as this node knows them. Never waits."""
        self._members.endpoint.lifetime.check()
        return tuple(
            self._members.public_handle(member) for member in sorted(self._members.present())
        )

    async def ready(self, count: int = 1) -> Self:
        """Wait until there are so many members; returns the pool itself. Raises
        `PoolStoppedError`.
        """
        with CHECKS:
            check_whole_number("count", count)
        with self._members.endpoint.lifetime.asking(f"pool {self.name} cannot be waited for"):
            while len(list(self._members.present())) < count:
                self._check()
                await self._members.wait_changed()
        self._check()
        await trio.lowlevel.checkpoint()
        return self

    async def resize(
        self,
        size: int | None = None,
        *,
        per_node: int | None = None,
        min: int | None = None,
        max: int | None = None,
    ) -> None:
        """Have another size from now on. Surplus members end after the items that they have. Raises
        TypeError or ValueError for sizes that make no sense.
        """
        with CHECKS:
            wanted = PoolSize.of(size, per_node, min, max)
        self._check()
        self._members.see(await self._members.repeating.resize(wanted))

    @overload
    def map(
        self,
        method: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        *,
        keep: Literal[True],
        on_error: NotReturned = ...,
        **options: Unpack[MapSettings],
    ) -> MapResults[Reference[R]]: ...
    @overload
    def map(
        self,
        method: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        *,
        keep: Literal[False] = ...,
        on_error: Literal["return"],
        **options: Unpack[MapSettings],
    ) -> MapResults[R | Exception]: ...
    @overload
    def map(
        self,
        method: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        *,
        keep: Literal[False] = ...,
        on_error: NotReturned = ...,
        **options: Unpack[MapSettings],
    ) -> MapResults[R]: ...
    @overload
    def map(
        self,
        method: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        **options: Unpack[MapChanges],
    ) -> MapResults[Any]: ...
    @documented_as(PoolInterface.map)
    @names_keywords
    def map(
        self,
        method: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        *,
        ordered: bool = True,
        window: int | None = None,
        batch: int | None = None,
        timeout: float | None = None,
        retry: RetryPolicy | None = None,
        on_error: OnError = "raise",
        keep: bool = False,
        progress: bool = False,
        journal: str | None = None,
    ) -> MapResults[Any]:
        """The results of a method for each item: `async for result in pool.map(Resizer.run,
        items)`.
        """
        options = MapOptions(
            ordered, window, batch, timeout, retry, on_error, keep, progress, journal
        )
        with CHECKS:
            definition = self._checked(method, items, options)
        return self._map(definition, items, options)

    @overload
    def starmap(
        self,
        method: Callable[..., R],
        items: Iterable[Iterable[object]] | AsyncIterable[Iterable[object]],
        *,
        keep: Literal[True],
        on_error: NotReturned = ...,
        **options: Unpack[MapSettings],
    ) -> MapResults[Reference[R]]: ...
    @overload
    def starmap(
        self,
        method: Callable[..., R],
        items: Iterable[Iterable[object]] | AsyncIterable[Iterable[object]],
        *,
        keep: Literal[False] = ...,
        on_error: Literal["return"],
        **options: Unpack[MapSettings],
    ) -> MapResults[R | Exception]: ...
    @overload
    def starmap(
        self,
        method: Callable[..., R],
        items: Iterable[Iterable[object]] | AsyncIterable[Iterable[object]],
        *,
        keep: Literal[False] = ...,
        on_error: NotReturned = ...,
        **options: Unpack[MapSettings],
    ) -> MapResults[R]: ...
    @overload
    def starmap(
        self,
        method: Callable[..., R],
        items: Iterable[Iterable[object]] | AsyncIterable[Iterable[object]],
        **options: Unpack[MapChanges],
    ) -> MapResults[Any]: ...
    @names_keywords
    def starmap(
        self,
        method: Callable[..., R],
        items: Iterable[Iterable[object]] | AsyncIterable[Iterable[object]],
        *,
        ordered: bool = True,
        window: int | None = None,
        batch: int | None = None,
        timeout: float | None = None,
        retry: RetryPolicy | None = None,
        on_error: OnError = "raise",
        keep: bool = False,
        progress: bool = False,
        journal: str | None = None,
    ) -> MapResults[Any]:
        """Like `map`, for methods of several arguments: each item is a tuple of them."""
        options = MapOptions(
            ordered, window, batch, timeout, retry, on_error, keep, progress, journal, spread=True
        )
        with CHECKS:
            definition = self._checked(method, items, options)
        return self._map(definition, items, options)

    async def remove_journal(self, name: str) -> bool:
        """Remove the journal of a map from the cluster's store, so that the next map under this
        name begins anew; True if there was one. Raises `JournalInUseError` while a map works with
        it.
        """
        with CHECKS:
            check_journal_name(name)
        lifetime = self._members.endpoint.lifetime
        with lifetime.asking(f"the journal {name!r} was not removed, as far as is known"):
            return await _journals(self._node).remove(name)

    async def submit(
        self, method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Reference[R]:
        """Call a method of the member with the least to do, as `choose` finds it; returns a
        reference to the result, which stays there. Raises `EmptyPoolError`.
        """
        with CHECKS:
            definition = self._definition(method)
        handle = self._members.item_handle(self._chosen("least-loaded", None))
        bound: BoundMethod[P, R] = getattr(handle, definition.name)
        return await bound.remote(*args, **kwargs)

    async def call_all(
        self, method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[Answer[R]]:
        """Call a method of all members, side by side, and wait for all answers. A member whose node
        cannot be reached at the moment is not called: its answer is a `NodeUnreachableError`.
        Raises `PoolStoppedError` after the pool's end.
        """
        with CHECKS:
            definition = self._definition(method)
        self._check()
        present, away = sorted(self._members.present()), self._members.out_of_reach()
        answers: list[Answer[R] | None] = [None] * len(present)

        async def call(index: int, member: ActorId) -> None:
            handle = self._members.public_handle(member)
            if member in away:
                error: CallError = passed_over(handle.address, definition.name)
                answers[index] = Answer(handle, None, error)
                return
            try:
                value = await getattr(handle, definition.name)(*args, **kwargs)
                answers[index] = Answer(handle, value)
            except CallError as error:
                answers[index] = Answer(handle, None, error)

        try:
            async with trio.open_nursery() as nursery:
                for index, member in enumerate(present):
                    nursery.start_soon(call, index, member)
        except BaseExceptionGroup as group:
            # Arguments that cannot be sent to one member cannot be sent to any: each call has
            # raised the same error.
            raise_as_it_is(first(group))
        return [answer for answer in answers if answer is not None]

    def choose(self, routing: Routing = "least-loaded", *, key: Hashable = None) -> A:
        """The handle of one member: of two random ones that with fewer calls ("least-loaded"), each
        in turn, any at random, or, for "hash", always the same one for a `key` while the members
        are the same. The calls are those that this node has made by handles of this pool, and
        those of others, as the latest reply has said.

        A `key` can be sent: a text, bytes, a number, an enum, a value of a class marked with
        `@message`, or a tuple or frozenset of these; TypeError otherwise. 1, 1.0 and True are
        different keys.

        Members whose nodes cannot be reached at the moment are passed over, also by "hash", as if
        they were gone. If that is so of all, one of all is chosen: a call to it waits for its node.
        Raises `EmptyPoolError`.
        """
        with CHECKS:
            member = self._chosen(routing, key)
        return cast("A", self._members.public_handle(member))

    async def stop(self) -> None:
        """Stop the pool for all that use it: members end after the items that they have, within 30
        seconds. Stopping twice is stopping once.
        """
        if isinstance(self._members.failure, PoolStoppedError) and await self._is_opened_again():
            return
        await self._node.stop(self._members.supervisor)
        self._members.scope.cancel()
        self._members.failure = self._members.failure or PoolStoppedError(
            f"pool {self.name} was stopped"
        )
        self._members.see(PoolView())

    async def __aenter__(self) -> Self:
        """The pool itself, stopped when the block is left."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        # Shielded, so that a cancelled block leaves no members behind; bounded, since a node that
        # hosts some may not answer.
        with trio.CancelScope(shield=True), trio.move_on_after(STOP_SECONDS):
            try:
                await self.stop()
            except CallError as error:
                logger.info("pool %s was not stopped: %s", self.name, error)

    def __repr__(self) -> str:
        return f"<pool {self.name} of {self._members.view.what}, {self._members.view.size.text}>"

    def __del__(self) -> None:
        try:
            self._token.run_sync_soon(self._members.scope.cancel)
        except (AttributeError, trio.RunFinishedError):
            # It was never made, or the loop has ended.
            pass

    def _check(self) -> None:
        self._members.endpoint.lifetime.check()
        if self._members.failure is not None:
            # The same for each call: without the frames, and so the arguments, of those before.
            raise self._members.failure.with_traceback(None)

    async def _is_opened_again(self) -> bool:
        """True if this pool has ended, and another one, or another actor, has its name: that is not
        this one's to stop.
        """
        try:
            view: PoolView = await self._members.supervisor.view()
        except (ClassMismatchError, MethodNotFoundError):
            # Not even a pool.
            return True
        except NotExecutedError:
            # There is none, or it is stopping still: the stop waits for its end.
            return False
        return not view.stopped

    def _map(
        self,
        definition: MethodDefinition,
        items: Iterable[object] | AsyncIterable[object],
        options: MapOptions,
    ) -> MapResults[Any]:
        retry = options.retry if options.retry is not None else definition.options.retry
        repeats = definition.idempotent or (retry is not None and retry.repeat_unknown)
        environment = self._node._environment

        def is_retried(error: BaseException) -> bool:
            if isinstance(error, CallTimeoutError):
                return repeats
            return retry is not None and retry.repeats_raised(error)

        schedule = MapSchedule(
            ordered=options.ordered,
            repeats=repeats,
            window=options.window,
            batch=options.batch,
            alone=options.timeout is not None or options.keep or self._members.has_filters,
            max_retries=retry.max_retries if retry is not None else 0,
            is_retried=is_retried,
            delay=lambda attempt: (
                retry.delay(attempt, environment.random()) if retry is not None else 0.0
            ),
            total=_length(items),
            journalled=options.journal is not None,
            known=self._paces.setdefault(definition.name, KnownPace()),
            now=environment.now(),
        )
        driver: JournalDriver | None = None
        if options.journal is not None:
            driver = JournalDriver(
                _journals(self._node),
                options.journal,
                f"{self._members.view.what}, {definition.name}",
                self._members.endpoint.codec,
            )
        run = MapRun(self._members, schedule, definition, items, options, driver)
        return HeldResults(self, run)

    def _checked(
        self,
        method: object,
        items: Iterable[object] | AsyncIterable[object],
        options: MapOptions,
    ) -> MethodDefinition:
        """The method of a map. Raises TypeError or ValueError for what makes no sense."""
        definition = self._definition(method)
        if not isinstance(items, Iterable | AsyncIterable):
            raise TypeError(
                f"map takes the items as an iterable or an async iterable, not {short_repr(items)}"
            )
        _check_options(options)
        return definition

    def _definition(self, method: object) -> MethodDefinition:
        """The method of the members that was named. Raises TypeError for what is none."""
        cls = member_class(self._actor)
        if method is self._actor and not isinstance(method, type):
            return _methods_of(cls)["run"]
        methods = _methods_of(cls)
        if not isinstance(method, Marked) or method.definition.name not in methods:
            offered = (
                ", ".join(f"{cls.__name__}.{name}" for name in sorted(methods))
                if cls is self._actor
                else getattr(self._actor, "__name__", "its function")
            )
            raise TypeError(
                f"pool {self.name} runs {offered}, as in pool.map({offered.split(', ')[0]}, "
                f"items), and not {short_repr(method)}"
            )
        definition = methods[method.definition.name]
        if definition.stream:
            raise TypeError(
                f"{cls.__name__}.{definition.name} is a stream, which has no one result for an "
                "item; let it return a list"
            )
        return definition

    def _chosen(self, routing: str, key: Hashable) -> ActorId:
        self._check()
        present = self._members.reachable()
        if not present:
            problem = self._members.view.problem
            raise EmptyPoolError(
                f"pool {self.name} has no members now{f': {problem}' if problem else ''}; wait "
                "with `await pool.ready()`",
                actor=self.name,
            )
        return self._router.choose(present, routing, key)


class Router:
    """Chooses the member of a pool for a single call. No I/O.

    `draw`: numbers in [0, 1). `depth`: how many calls are with a member, as far as is known.
    `bytes_of`: a key as bytes that are the same in all processes.
    """

    def __init__(
        self,
        draw: Callable[[], float],
        depth: Callable[[ActorId], int],
        bytes_of: Callable[[object], bytes],
    ) -> None:
        self._draw = draw
        self._depth = depth
        self._bytes_of = bytes_of
        self._turn = -1

    def choose(self, members: Iterable[ActorId], routing: str, key: Hashable = None) -> ActorId:
        """One of the members. Raises ValueError for another way than the four that there are, and
        TypeError for "hash" without a key.
        """
        present = sorted(members)
        assert present, "the caller knows that there is one"
        if routing == "random":
            return self._random(present)
        if routing == "round-robin":
            return self._next(present)
        if routing == "hash":
            if key is None:
                raise TypeError('routing="hash" needs a key=')
            return self._of_key(present, key)
        if routing != "least-loaded":
            raise ValueError(
                'routing is "least-loaded", "round-robin", "random" or "hash", not '
                f"{short_repr(routing)}"
            )
        return self._less_loaded(present)

    def _random(self, present: Sequence[ActorId]) -> ActorId:
        return present[int(self._draw() * len(present))]

    def _next(self, present: Sequence[ActorId]) -> ActorId:
        self._turn += 1
        return present[self._turn % len(present)]

    def _of_key(self, present: Sequence[ActorId], key: Hashable) -> ActorId:
        # Rendezvous hashing (Thaler and Ravishankar, 1996): a member that goes moves only the keys
        # that it had.
        key_bytes = self._bytes_of(key)
        return max(present, key=lambda member: _digest(member, key_bytes))

    def _less_loaded(self, present: Sequence[ActorId]) -> ActorId:
        # The power of two choices (Mitzenmacher, 1996): the least loaded of all would be chosen by
        # all callers at once.
        one = self._random(present)
        others = [member for member in present if member != one]
        other = self._random(others) if others else one
        return min(one, other, key=self._depth)


def _digest(member: ActorId, key: bytes) -> bytes:
    return hashlib.blake2b(key + f" {member.name}".encode(), digest_size=8).digest()


class KeyWriter:
    """Writes the keys of `choose("hash")` as bytes that are the same in all processes, as neither
    Python's `hash` nor the repr of any value is.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._strict: Codec | None = None
        """Made for the first key that is no text or number."""

    def bytes_of(self, key: object) -> bytes:
        """Return the bytes of `key`. Raises TypeError for what is not the same in all processes."""
        if type(key) in _PLAIN_KEYS and not _is_huge(key):
            # As all versions do it, so that a key keeps its member.
            return repr(key).encode()
        if self._strict is None:
            # What these are written as changes when their actor or their value moves.
            self._strict = (
                self._codec.reproducible()
                .refusing(Handle, "is a handle; give the name of its actor")
                .refusing(Reference, "is a reference; fetch its value")
            )
        segments: list[Buffer] = []
        try:
            encoded = self._strict.encode(key, segments, "key")
        except EncodeError as error:
            raise TypeError(
                'the key of routing="hash" must be the same in all processes: a text, bytes, a '
                "number, a date, an enum, a value of a class marked with @message, or a tuple or "
                f"frozenset of these. {error}"
            ) from None
        return b"".join((encoded, *segments))


def _is_huge(key: object) -> bool:
    """True for a number whose decimal digits Python refuses to write."""
    return type(key) is int and key.bit_length() > 10_000


def _length(items: object) -> int | None:
    """How many items there are; None if that is not known, or more than `len` can say."""
    return guarded(lambda: len(items) if isinstance(items, Sized) else None, lambda failure: None)


class HeldResults(MapResults[R]):
    """The results of a map, which hold the pool: it is followed for as long."""

    def __init__(self, pool: Pool[Any], run: MapRun) -> None:
        super().__init__(run, pool._node._nursery, pool._node._environment.now)
        self._pool = pool


def _journals(node: PoolNode) -> Journals:
    if node._journals is None:
        raise ValueError(
            "neither an actor in a process of its own nor a client drives a map with a journal: "
            "let an actor or a program that runs in a node drive it"
        )
    return node._journals


def _check_options(options: MapOptions) -> None:
    """Raises TypeError or ValueError for what makes no sense."""
    for name, value in (("window", options.window), ("batch", options.batch)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be a whole number or None, not {short_repr(value)}")
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {short_repr(value)}")
    for name, switch in (
        ("ordered", options.ordered),
        ("keep", options.keep),
        ("progress", options.progress),
    ):
        if not isinstance(switch, bool):
            raise TypeError(f"{name} must be True or False, not {short_repr(switch)}")
    if options.journal is not None:
        check_journal_name(options.journal)
        if options.keep:
            raise ValueError(
                "keep=True and journal= do not go together: references end with their nodes, and "
                "a journal outlives them"
            )
    if options.on_error not in ("raise", "return", "skip"):
        raise ValueError(
            f'on_error is "raise", "return" or "skip", not {short_repr(options.on_error)}'
        )
    SpawnOptions(timeout=options.timeout, retry=options.retry)
