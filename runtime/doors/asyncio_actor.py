"""Actors whose methods run under asyncio, for libraries that need it, such as aiohttp and asyncpg.

Each has an asyncio loop in a thread of its own. To the host it is an actor like any other: a task
of trio stands for each method, waits for the task of asyncio that runs it, and hands a cancellation
on to it. What the method asks of the cluster runs in a nursery of that trio task, so that its
deadline, its call chain and its cancellation are those of the method.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import weakref
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple, Unpack, cast

import attrs
import trio

from actors.actor import (
    Actor,
    ActorContext,
    ActorGroups,
    ActorNursery,
    ActorWatching,
    Ended,
    Member,
    NodeInterface,
    Spawner,
    Watch,
)
from actors.handle import Handle
from actors.keywords import names_keywords
from actors.method import Caller, MethodDefinition
from actors.options import SpawnChanges
from actors.pools import JournalSummary
from actors.reference import Reference
from runtime.calls.filtered_calls import caller_of_node
from runtime.doors.asyncio_door import AioDoor, run_in
from runtime.doors.asyncio_pools import AioPool
from runtime.doors.asyncio_sources import AsyncioTask, items_in_trio, soon_in
from runtime.doors.portal import Portal
from runtime.hosting.breakpoints import ASYNCIO_RUN, AsyncioRun
from runtime.hosting.lazy_nursery import check_task_function, missing_in_nursery
from runtime.isolation.base_node import taking_back
from runtime.pools.pool import Pool
from runtime.user_errors import summary_of

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

HOOKS = ("on_start", "on_stop", "on_ended", "on_inspect")

OF_METHOD: Final[ContextVar[Portal | None]] = ContextVar("OF_METHOD", default=None)
"""The portal of the method that the running asyncio task belongs to."""

_BRIDGED: Final = "__bridged__"


class AsyncioLoopEndedError(RuntimeError):
    """The asyncio loop of an actor has ended before the actor, which ends by this."""


class AsyncioLoop:
    """The asyncio loop of one actor, in a thread of its own. It ends with the actor's own tasks,
    after `on_stop`; where other code ends it before, `watch` raises.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._token = trio.lowlevel.current_trio_token()
        self._loop: asyncio.AbstractEventLoop
        self._stopping = False
        """True once the actor itself stops the loop. Set in the loop's thread."""
        self._ending = False
        """True once the loop ends, for whatever reason. Set in the loop's thread."""
        self._begun = trio.Event()
        """Set when the loop runs, or has failed to."""
        self._lost = trio.Event()
        """Set when the loop has ended before its time; then `_failure` is set."""
        self._failure: AsyncioLoopEndedError
        self._reported = trio.Event()
        """Set when `watch` has ended the actor by that, or ends itself."""
        self._over = trio.Event()
        """Set when the loop is closed, or never was open."""
        self._tasks: weakref.WeakSet[AsyncioTask[Any]] = weakref.WeakSet()
        """What has begun in the loop. In trio's thread."""
        self._thread = threading.Thread(
            # A daemon: a task that ignores its cancellation must not keep the process alive.
            target=self._run,
            name=f"asyncio of {name}",
            daemon=True,
        )
        self.portal: Portal

    async def serve(self) -> None:
        """Run the loop until this is cancelled; a task of the actor's nursery."""
        try:
            self._thread.start()
        except RuntimeError as error:
            # What waits for the loop must not wait for ever.
            self._on_lost(AsyncioLoopEndedError(f"{self._name} has no thread for asyncio: {error}"))
            self._on_over()
        try:
            async with trio.open_nursery() as nursery:
                self.portal = Portal(self._token, nursery, f"actor {self._name}")
                try:
                    await self._begun.wait()
                    await trio.sleep_forever()
                finally:
                    self.portal.close()
        finally:
            # Shielded, so that the thread never outlives its actor. The actor's own tasks decide
            # how long this takes, as a task under trio does that shields itself.
            with trio.CancelScope(shield=True):
                # It may be cancelled before the loop exists, which then could not be stopped.
                await self._begun.wait()
                if not self._lost.is_set():
                    self.soon(self._stop)
                await self._over.wait()

    async def watch(self) -> None:
        """Raise AsyncioLoopEndedError when the loop has ended before its time, which ends the
        actor; a task of its nursery.
        """
        try:
            await self._lost.wait()
            # Not the same object as `check` raises. With the frames of what has ended the loop.
            failure = AsyncioLoopEndedError(str(self._failure))
            raise failure.with_traceback(self._failure.__traceback__)
        finally:
            # What waits for this runs after the actor has ended: no checkpoint lies between.
            self._reported.set()

    @property
    def is_here(self) -> bool:
        """True in the thread of this loop."""
        return threading.current_thread() is self._thread

    async def run(self, function: Callable[..., Coroutine[Any, Any, T]], *args: object) -> T:
        """Run a coroutine function in the loop, and wait for it. When this is cancelled, it cancels
        the coroutine and waits until that has ended, as for a method under trio.
        """
        await self._begun.wait()
        async with trio.open_nursery() as nursery:
            portal = Portal(self._token, nursery, f"a method of {self._name}")
            # The task below copies the context in which it is made: with these two in it.
            before = OF_METHOD.set(portal)
            debugged = ASYNCIO_RUN.set(
                AsyncioRun(trio.lowlevel.current_task(), portal.call, self._token)
            )
            try:
                task = AsyncioTask(function(*args), self._token)
            finally:
                ASYNCIO_RUN.reset(debugged)
                OF_METHOD.reset(before)
            self._begin(task)
            try:
                await task.done.wait()
            except trio.Cancelled:
                # The loop runs these requests in their order, so the task has started before it is
                # cancelled. A loop that has ended has cancelled it, too.
                self.soon(task.cancel)
                with trio.CancelScope(shield=True):
                    await task.done.wait()
                raise
            finally:
                # Cancels what the method has started in the cluster and not waited for.
                portal.close()
        # Only here: a nursery would put what it raises into a group.
        await self.check()
        return task.result()

    def items(self, generator: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """The items of an asyncio generator, for trio. The generator waits until the next item is
        asked for.
        """
        return items_in_trio(generator, self, self._token)

    async def begin(self, task: AsyncioTask[Any]) -> None:
        """Have a task started in the loop."""
        await self._begun.wait()
        self._begin(task)

    def soon(self, function: Callable[..., object], *args: object) -> bool:
        """Call a function in the loop's thread; False if the loop is closed."""
        return not self._over.is_set() and soon_in(self._loop, function, *args)

    async def check(self) -> None:
        """Raise AsyncioLoopEndedError if the loop has ended before its time, once the actor has
        ended by that: the caller gets that its actor has died, and no error of a cancelled task.
        """
        if self._lost.is_set():
            with trio.CancelScope(shield=True):
                await self._reported.wait()
            # Where the actor has ended by this, a method is cancelled. Its `on_stop` is not.
            await trio.lowlevel.checkpoint_if_cancelled()
            raise self._failure

    def _begin(self, task: AsyncioTask[Any]) -> None:
        self._tasks.add(task)
        if not self.soon(self._start, task):
            task.drop()

    def _start(self, task: AsyncioTask[Any]) -> None:
        if self._ending:
            # All its tasks were cancelled already, and this one would never be.
            task.drop()
        else:
            task.start(self._loop)

    def _stop(self) -> None:
        self._stopping = True
        self._loop.stop()

    def _run(self) -> None:
        try:
            # What still runs at the end is cancelled by the runner. The loop runs without a task of
            # its own: code that cancels all tasks of the loop would end it.
            with asyncio.Runner() as runner:
                self._loop = runner.get_loop()
                self._loop.call_soon(self._tell, self._begun.set)
                self._run_until_stopped()
        except BaseException as error:  # noqa: ASYNC103  trio raises it
            # The runner could not begin (as without file descriptors) or not end.
            lost = AsyncioLoopEndedError(
                f"the asyncio loop of {self._name} failed: {summary_of(error)}"
            )
            self._tell(self._on_lost, lost.with_traceback(error.__traceback__))
        finally:
            self._tell(self._on_over)

    def _run_until_stopped(self) -> None:
        lost: AsyncioLoopEndedError | None = None
        try:
            self._loop.run_forever()
        except BaseException as error:  # noqa: ASYNC103  as above
            lost = self._ended_by(error)
        else:
            if not self._stopping:
                lost = AsyncioLoopEndedError(
                    f"the asyncio loop of {self._name} was stopped by code in it, which called "
                    "loop.stop(); it belongs to the actor: cancel tasks, or stop the actor"
                )
        self._ending = True
        if lost is not None:
            # Before the runner cancels the tasks, whose ends come after this.
            self._tell(self._on_lost, lost)
        # Its traceback has this frame, and must not be in a circle with it.
        del lost

    def _ended_by(self, error: BaseException) -> AsyncioLoopEndedError:
        text = (
            f"the asyncio loop of {self._name} was ended by {summary_of(error)}, which a task or a "
            "callback in it raised; catch it there"
        )
        return AsyncioLoopEndedError(text).with_traceback(error.__traceback__)

    def _on_lost(self, failure: AsyncioLoopEndedError) -> None:
        if not self._lost.is_set():
            self._failure = failure
            self._lost.set()
            # Before it has begun nothing else sets this.
            self._begun.set()

    def _on_over(self) -> None:
        self._over.set()
        # A closed loop runs nothing any more, whatever its tasks have made of their cancellation.
        for task in self._tasks:
            task.done.set()

    def _tell(self, function: Callable[..., object], *args: object) -> None:
        try:
            # From the thread of asyncio's loop: events of trio are set in trio's thread only.
            self._token.run_sync_soon(function, *args)
        except trio.RunFinishedError:
            return


class ActorDoor(AioDoor):
    """Makes the calls of an actor whose methods run under asyncio."""

    def __init__(self, client: Caller, loop: AsyncioLoop) -> None:
        super().__init__(client)
        self.loop = loop

    @property
    def portal(self) -> Portal:
        """The portal of the running method. In the actor's own tasks, and in what a method has left
        running after its end, the portal of the actor.
        """
        portal = OF_METHOD.get()
        return self.loop.portal if portal is None or portal.closed else portal

    async def wait(
        self,
        function: Callable[[], Awaitable[T]],
        undo: Callable[[T], Awaitable[object]] | None = None,
    ) -> T:
        """Run `function` in the node's loop; the asyncio task waits for it, and is cancelled with
        it. `undo`: see `run_in`.
        """
        return await run_in(self.portal, function, undo)

    def here(self, value: T) -> T:
        """Return the value; a handle or reference as one of this door."""
        if isinstance(value, Handle):
            return cast("T", self.handle(value))
        if isinstance(value, Reference):
            return cast("T", self.reference(value))
        return value


class AioContext:
    """The `actors.actor.ActorContext` of an actor that runs under asyncio."""

    def __init__(self, context: ActorContext, door: ActorDoor) -> None:
        self._context = context
        self._door = door
        self.watching: ActorWatching = AioWatching(context, door)
        self.groups: ActorGroups = AioGroups(context, door)
        self.nursery: ActorNursery = AioNursery(context, door)
        self.node: NodeInterface = cast("NodeInterface", AioNode(context.node, door))

    @property
    def name(self) -> str:
        """The actor's name."""
        return self._context.name

    @property
    def epoch(self) -> int:
        """The actor's epoch."""
        return self._context.epoch

    @property
    def handle(self) -> Any:
        """A handle of the actor, for tasks of asyncio."""
        return self._door.handle(self._context.handle)

    async def save(self, state: object, answer: object) -> None:
        """Save the actor's state in the store, with the answer of the running call if there is one.
        Raises like `Actor.save`.
        """
        await self._door.wait(lambda: self._context.save(state, answer))

    async def saved(self) -> Any:
        """Return the state that an earlier epoch of the name has saved, or None."""
        return await self._door.wait(self._context.saved)

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """Run a blocking function in a thread of the actor's, and return its result."""
        return await self._door.wait(lambda: self._context.in_thread(function))

    async def call_in_thread(self, function: Callable[[], Any]) -> Any:
        """Like `in_thread`, where the function is all that the running call runs."""
        return await self._door.wait(lambda: self._context.call_in_thread(function))

    def supervise(self, supervisor: Any) -> Any:
        """Return the work of a supervisor that is hosted here."""
        return self._context.supervise(supervisor)


class AioWatching:
    """The watches and links of an asyncio actor: requests run in the node's loop."""

    def __init__(self, context: ActorContext, door: ActorDoor) -> None:
        self._context = context
        self._door = door

    async def watch(self, handle: object) -> Watch:
        """Watch the present epoch of an actor. Raises like `Observer.watch`."""
        plain = self._door.plain(handle)
        watch = await self._door.wait(lambda: self._context.watching.watch(plain))
        portal = self._door.loop.portal

        def cancel() -> None:
            portal.soon(watch.cancel)

        return Watch(watch.number, watch.name, watch.epoch, cancel)

    async def link(self, handle: object) -> None:
        """Link this actor with another."""
        plain = self._door.plain(handle)
        await self._door.wait(lambda: self._context.watching.link(plain))

    async def unlink(self, handle: object) -> None:
        """End the links of this actor with another."""
        plain = self._door.plain(handle)
        await self._door.wait(lambda: self._context.watching.unlink(plain))


class AioGroups:
    """The memberships of an asyncio actor: requests run in the node's loop."""

    def __init__(self, context: ActorContext, door: ActorDoor) -> None:
        self._context = context
        self._door = door

    async def join(self, group: str) -> None:
        """Join a group. Raises ValueError for an invalid name."""
        await self._door.wait(lambda: self._context.groups.join(group))

    async def leave(self, group: str) -> bool:
        """Undo one `join`; False if there is none left."""
        return await self._door.wait(lambda: self._context.groups.leave(group))


class AioNursery:
    """The actor's own tasks, under asyncio; see `actors.actor.ActorNursery`."""

    def __init__(self, context: ActorContext, door: ActorDoor) -> None:
        self._context = context
        self._door = door

    if not TYPE_CHECKING:  # it would hide misspelt names from type checkers

        def __getattr__(self, name: str) -> object:
            raise missing_in_nursery(name)

    def start_soon(
        self, function: Callable[[*Ts], Awaitable[object]], *args: *Ts, name: str | None = None
    ) -> None:
        """Start a task soon, in the actor's loop. One that raises ends the actor. Raises TypeError
        for what is no function.
        """
        check_task_function(function)

        async def task() -> None:
            # The task is no part of the method that starts it.
            OF_METHOD.set(None)
            await function(*args)

        def start() -> None:
            try:
                self._context.nursery.start_soon(self._door.loop.run, task, name=name)
            except RuntimeError:
                # The actor has ended meanwhile, and with it all its tasks.
                return

        # In the context of the code that starts it, as in trio.
        self._door.loop.portal.soon(partial(copy_context().run, start))


class AioNode:
    """The node as an actor under asyncio sees it; see `actors.actor.NodeInterface`."""

    def __init__(self, node: Any, door: ActorDoor) -> None:
        self._node = node
        self._door = door

    @property
    def name(self) -> str:
        """The node's name."""
        return cast("str", self._node.name)

    @property
    def incarnation(self) -> int:
        """This start of the node."""
        return cast("int", self._node.incarnation)

    def members(self) -> tuple[Member, ...]:
        """Return the nodes known to be in the cluster now, by name. Blocks until the node's loop
        has answered.
        """

        async def members() -> tuple[Member, ...]:
            return cast("tuple[Member, ...]", self._node.members())

        return self._door.portal.call(members)

    @names_keywords
    def options(self, **changes: Unpack[SpawnChanges]) -> Spawner:
        """Return a copy with other spawn options. Raises TypeError or ValueError for invalid
        values.
        """
        return cast("Spawner", AioNode(self._node.options(**changes), self._door))

    async def spawn(self, actor: object, /, *args: object, **kwargs: object) -> Any:
        """Start an actor and return its handle. Raises like `Spawner.spawn`."""
        return await self._started(lambda: self._node.spawn(actor, *args, **kwargs))

    async def spawn_many(
        self, actor: Any, argument_list: Any, /, *, names: Sequence[str] | None = None
    ) -> list[Any]:
        """Start many actors of one class and return their handles. Raises like
        `Spawner.spawn_many`.
        """
        handles = await self._door.wait(
            lambda: self._node.spawn_many(actor, argument_list, names=names),
            taking_back(self._node),
        )
        return [self._door.handle(one) for one in handles]

    async def get_or_spawn(self, actor: object, /, *args: object, **kwargs: object) -> Any:
        """Return the handle of the actor that has the name already, or of a new one. Raises like
        `Spawner.get_or_spawn`.
        """
        return await self._started(lambda: self._node.get_or_spawn(actor, *args, **kwargs))

    async def singleton(self, actor: object, /, *args: object, **kwargs: object) -> Any:
        """Make this node a candidate for a singleton, and return its handle. Raises like
        `Spawner.singleton`.
        """
        return await self._handle(lambda: self._node.singleton(actor, *args, **kwargs))

    async def lookup(self, name: str, actor: object = None) -> Any:
        """Return the handle of the actor of this name. Raises `ActorNotFoundError` and
        `ClassMismatchError`.
        """
        return await self._handle(lambda: self._node.lookup(name, actor))

    async def stop(self, handle: object, *, reason: str = "stopped") -> None:
        """Stop an actor and wait until it has ended. One that has ended may be stopped."""
        plain = self._door.plain(handle)
        await self._door.wait(lambda: self._node.stop(plain, reason=reason))

    async def wait_ended(self, handle: object) -> Ended:
        """Wait until the present epoch of an actor has ended, and return the notice."""
        plain = self._door.plain(handle)
        return await self._door.wait(lambda: self._node.wait_ended(plain))

    async def put(self, value: T) -> Reference[T]:
        """Store a copy of a value on this node, as long as a reference to it exists. Raises
        `EncodeError`.
        """
        return self._door.reference(await self._door.wait(lambda: self._node.put(value)))

    def group(self, name: str, actor: object) -> Any:
        """Refuse it: groups are used from trio. Raises TypeError."""
        raise TypeError(
            f"group {name!r} cannot be used from an actor under asyncio; let an actor on trio call "
            "its members, or look them up by name"
        )

    async def pool(self, name: str | None, actor: Any, /, *args: object, **options: Any) -> Any:
        """Start a pool, or find the one of this name. Raises like `NodeInterface.pool`."""
        pool = await self._door.wait(
            lambda: self._node.pool(name, actor, *args, **options),
            # A pool with a name is not stopped: the program can find it again, and other programs
            # may have found it.
            Pool.stop if name is None else None,
        )
        return AioPool(self._door, cast("Pool[Any]", pool))

    async def lookup_pool(self, name: str, actor: Any) -> Any:
        """Return the pool of this name. Raises like `NodeInterface.lookup_pool`."""
        pool = await self._door.wait(lambda: self._node.lookup_pool(name, actor))
        return AioPool(self._door, cast("Pool[Any]", pool))

    async def pool_journals(self) -> list[JournalSummary]:
        """Return the journals of pools that the cluster's store has."""
        return await self._door.wait(self._node.pool_journals)

    async def remove_pool_journal(self, name: str, *, unused_for: float = 0.0) -> bool:
        """Remove a journal from the cluster's store. Raises like
        `NodeInterface.remove_pool_journal`.
        """
        return await self._door.wait(
            lambda: self._node.remove_pool_journal(name, unused_for=unused_for)
        )

    async def _handle(self, ask: Callable[[], Awaitable[object]]) -> Any:
        return self._door.handle(await self._door.wait(ask))

    async def _started(self, start: Callable[[], Awaitable[object]]) -> Any:
        return self._door.handle(await self._door.wait(start, taking_back(self._node)))


class AsyncioActor(Actor):
    """An actor whose `async def` methods and hooks run under asyncio, in a loop and thread of its
    own. Derive from it instead of `Actor`; callers see no difference.

    There, `self.node`, `self.handle`, `self.nursery`, `self.save` and the rest are awaited by
    asyncio, and so are handles and references that come as whole arguments; `self.at_asyncio`
    does the same for one that was inside of another value. A call that is cancelled, or whose
    deadline passes, cancels the task of its method. Plain methods run in threads, as in any actor.
    """

    _asyncio: AsyncioLoop | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__methods__ = {
            name: _bridged_definition(definition) for name, definition in cls.__methods__.items()
        }
        for name in HOOKS:
            hook = vars(cls).get(name)
            if inspect.iscoroutinefunction(hook):
                setattr(cls, name, _bridged(hook))

    def at_asyncio(self, value: T) -> T:
        """A handle or reference that was inside of another value, for use in this actor's loop."""
        return self._door().here(value)

    def _hosted(self) -> ActorContext:
        context = super()._hosted()
        if self._asyncio is None or not self._asyncio.is_here:
            return context
        return AioContext(context, self._door())

    def _door(self) -> ActorDoor:
        context = super()._hosted()
        return ActorDoor(caller_of_node(context.handle._caller), self._running())

    def _running(self) -> AsyncioLoop:
        """The loop, started if need be; in trio, or in that loop."""
        if self._asyncio is None:
            context = super()._hosted()
            loop = AsyncioLoop(context.name)
            # Raises RuntimeError if the actor has ended.
            context.nursery.start_soon(loop.serve, name=f"asyncio of {context.name}")
            context.nursery.start_soon(loop.watch, name=f"asyncio of {context.name}")
            self._asyncio = loop
        return self._asyncio


def _bridged_definition(definition: MethodDefinition) -> MethodDefinition:
    """The method as the host runs it: a plain `def` unchanged."""
    if definition.in_thread or hasattr(definition.function, _BRIDGED):
        return definition
    if definition.stream:
        return attrs.evolve(definition, function=_bridged_stream(definition.function))
    return attrs.evolve(definition, function=_bridged(definition.function))


def _bridged(function: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., Any]:
    """A coroutine function of trio that runs one of asyncio."""
    if hasattr(function, _BRIDGED):
        return function

    @functools.wraps(function)
    async def bridged(self: AsyncioActor, *args: object, **kwargs: object) -> T:
        loop = self._running()
        if loop.is_here:
            # Called by the actor itself, for example as `await super().on_start()`.
            return await function(self, *args, **kwargs)
        given, named = _arguments(self, args, kwargs)
        return await loop.run(functools.partial(function, self, *given, **named))

    setattr(bridged, _BRIDGED, True)
    return bridged


def _bridged_stream(function: Callable[..., AsyncGenerator[T, None]]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def bridged(
        self: AsyncioActor, *args: object, **kwargs: object
    ) -> AsyncGenerator[T, None]:
        given, named = _arguments(self, args, kwargs)
        items = self._running().items(function(self, *given, **named))
        try:
            async for item in items:
                yield item
        finally:
            # Shielded: a cancelled reader must not leave the generator open in the other loop.
            with trio.CancelScope(shield=True):
                await items.aclose()

    setattr(bridged, _BRIDGED, True)
    return bridged


def _arguments(
    actor: AsyncioActor, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    door = actor._door()
    return tuple(map(door.here, args)), {key: door.here(value) for key, value in kwargs.items()}
