"""The base class of what users write: identity, hooks, a nursery of its own, and state that
survives restarts.

An actor's methods run one at a time, so its state needs no locks. It ends when it is stopped, when
its node ends, or when one of its own tasks raises; a method that raises ends only that call. The
same object works without any runtime in unit tests: then `self.node` and the rest of its identity
are not there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    TypeVarTuple,
    Unpack,
    overload,
)

import attrs

from actors.groups import Group
from actors.messages import message
from actors.method import Address, Marked, MethodDefinition
from actors.options import CallChanges, SpawnChanges
from actors.reference import Reference
from actors.supervision import ExitReason

# Watching, links and joining groups: what an actor learns of the end of others, and what it shares
# with them.
#
# A watch is of one epoch of one actor and gives one notice, which comes as a message: `on_ended`
# runs in its turn, like a method. A link joins two actors' fates, both ways. The semantics are
# those of Erlang's monitors, links and process groups.

P = ParamSpec("P")


@message
@attrs.frozen
class Ended:
    """The notice that an actor has ended.

    `watch`: the number of the watch or link that it is for. `name`, `epoch`, `node`: which actor,
    and where it was. `reason`: its own, or "node died" if it went with its node, or "no such actor"
    if it was not there when the watch began. `restarts`: True if a supervisor has promised a new
    epoch of the name; also False if the store could not be asked.
    """

    watch: int
    name: str
    epoch: int
    node: str
    reason: ExitReason
    restarts: bool = False


@attrs.frozen
class Watch:
    """One watch, as `Actor.watch` returns it. `number` is what `Ended.watch` says; `name` and
    `epoch` are the watched actor's.
    """

    number: int
    name: str
    epoch: int
    _cancel: Callable[[], None] = attrs.field(repr=False, eq=False)

    def cancel(self) -> None:
        """Watch no more: no notice comes from now on, not even one that was under way. Cancelling
        twice is cancelling once.
        """
        self._cancel()


class ActorWatching(Protocol):
    """The runtime's side of watches and links of one actor: one for actors in a node, one for those
    in a process of their own.
    """

    async def watch(self, handle: object) -> Watch:
        """See `Observer.watch`."""
        ...

    async def link(self, handle: object) -> None:
        """See `Observer.link`."""
        ...

    async def unlink(self, handle: object) -> None:
        """See `Observer.unlink`."""
        ...


class ActorGroups(Protocol):
    """The runtime's side of the memberships of one actor: one for actors in a node, one for those
    in a process of their own.
    """

    async def join(self, group: str) -> None:
        """See `Observer.join`."""
        ...

    async def leave(self, group: str) -> bool:
        """See `Observer.leave`."""
        ...


def hook(function: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, Any]:
    """A method that the runtime calls, and that users may override with an `async def` or a plain
    `def`: no narrower type admits both.
    """
    return function


class ActorContext(Protocol):
    """What the hosting runtime gives an actor; reached through the properties of `Actor`.

    An interface because `actors` never imports `runtime`, which has `Hosted`.
    """

    @property
    def node(self) -> NodeInterface:
        """See `Actor.node`."""
        ...

    @property
    def name(self) -> str:
        """See `Actor.name`."""
        ...

    @property
    def epoch(self) -> int:
        """See `Actor.epoch`."""
        ...

    @property
    def nursery(self) -> ActorNursery:
        """See `Actor.nursery`."""
        ...

    @property
    def handle(self) -> Any:
        """See `Actor.handle`."""
        ...

    async def save(self, state: object, answer: object) -> None:
        """See `Actor.save`; `answer` is `attrs.NOTHING` if there is none."""
        ...

    async def saved(self) -> Any:
        """See `Actor.saved`."""
        ...

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """Run what blocks beside the event loop."""
        ...

    @property
    def watching(self) -> ActorWatching:
        """What it watches and is linked to."""
        ...

    @property
    def groups(self) -> ActorGroups:
        """The groups that it is in."""
        ...

    def supervise(self, supervisor: Any) -> Any:
        """The work of a supervisor that is hosted here; see `actors.supervisor.SupervisorWork`."""
        ...


class Observer:
    """What every actor can do besides answering calls; a part of `actors.Actor`."""

    handles_exits: ClassVar[bool] = False
    """True: the end of a linked actor, a normal one as well, is reported by `on_ended` instead of
    stopping this one.
    """

    @hook
    async def on_ended(self, notice: Ended) -> None:
        """An actor that this one watches, or is linked to while `handles_exits`, has ended. Run in
        its turn, like a method: a plain `def` in a thread.

        An exception here ends the actor, as one in a task of its own does: no caller would learn of
        it.
        """

    async def watch(self, handle: object) -> Watch:
        """Watch the present epoch of an actor: `on_ended` is run once when it has ended.

        At once, with "no such actor", for one that is dead or unknown; with "node died" when its
        node is dead, which unreachable is not yet. Two watches of one actor are independent. They
        end with this actor. Returns when its node knows of the watch, or after a second: the end of
        an actor on a node that cannot be reached may then be told as "no such actor". Raises
        `StoreError` if a name cannot be looked up.
        """
        return await self._hosted().watching.watch(handle)

    async def unwatch(self, watch: Watch) -> None:
        """The same as `watch.cancel()`."""
        watch.cancel()

    async def link(self, handle: object) -> None:
        """Join fates: when either actor ends abnormally (see `ExitReason.is_passed_on`), the other
        is stopped with the same reason.

        Also when a node dies. One with `handles_exits` gets `on_ended` instead. Linking to an actor
        that is dead ends this one, or tells it, at once. Two actors have one link at most; linking
        to oneself does nothing. Waits while the other's node cannot be reached.
        """
        await self._hosted().watching.link(handle)

    async def unlink(self, handle: object) -> None:
        """End a link, from either side: from now on the end of one actor has no effect on the
        other. No error if there is none.
        """
        await self._hosted().watching.unlink(handle)

    async def join(self, group: str) -> None:
        """Become a member of a group; once more a member if it is one already. Ends with this actor
        and its node.

        This node sees it at once, others soon. Raises ValueError for what cannot be a group's name.
        """
        await self._hosted().groups.join(group)

    async def leave(self, group: str) -> bool:
        """Take back one `join`; False if there is none left to take back."""
        return await self._hosted().groups.leave(group)

    if TYPE_CHECKING:

        def _hosted(self) -> ActorContext: ...


# The node as an actor sees it: the interface behind `self.node`, which `runtime.node` implements.

A = TypeVar("A")


T = TypeVar("T")
R = TypeVar("R")


@message
@attrs.frozen
class Member:
    """A node of the cluster as every other node sees it.

    `incarnation` is new at every start and ordered by the store. `state` is "joining", "up" or
    "draining". `host` is equal for nodes of one machine; `pid` is meaningful there only.
    `addresses` are where it can be dialled. `joined` is in seconds since 1970 UTC by that node's
    own clock, for people to read. `resources` are amounts by name, as the node was started with.
    """

    name: str
    incarnation: int
    addresses: tuple[str, ...]
    host: str
    pid: int
    state: str = "up"
    labels: dict[str, str] = attrs.field(factory=dict)
    joined: float = 0.0
    resources: dict[str, float] = attrs.field(factory=dict)


class Spawner(Protocol):
    """A way to start actors with options; `options(...)` returns a changed copy. Nodes are such
    ways, and what their `options` returns.
    """

    def options(self, **changes: Unpack[SpawnChanges]) -> Spawner:
        """The same with other options; see `SpawnOptions`. Raises TypeError or ValueError for
        values that make no sense.
        """
        ...

    async def spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """Start an actor of class `actor` and return its handle once `on_start` has returned.

        Raises `BadArgumentsError` for arguments that the constructor does not take, before anything
        is sent. Raises `NameTakenError`, `ActorClassError`, `ActorStartError`, `NodeNotFoundError`,
        `NoPlacementError`.
        """
        ...

    async def get_or_spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """The handle of the actor that has the name already, once it has started, or of a new one.
        Arguments count only for a new one.

        Raises what `spawn` does, but for `NameTakenError`: its start may be that of another caller,
        and fails for all callers that wait for it. Raises `ClassMismatchError` if the actor that
        has the name is none of class `actor`.
        """
        ...

    @overload
    async def run(
        self, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def run(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def run(
        self, function: Callable[..., object], /, *args: object, **kwargs: object
    ) -> object:
        """Run a function in a worker process of the cluster; see
        `actors.functions.RunsFunctions.run`.
        """
        ...

    async def singleton(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """Make this node a candidate for an actor of which the cluster has one, and return its
        handle once it runs anywhere.

        All nodes that ask for the name are candidates, and one of them runs it: elected through the
        store. When that node dies or leaves, or loses its lease, another one starts it again; a
        supervisor then adopts its children that live. It ends for all when it is stopped, or gives
        up. Raises what `spawn` does, but for `NameTakenError`.
        """
        ...


class NodeInterface(Spawner, Protocol):
    """What an actor may ask of the node that hosts it: a `runtime.Node`, or for an actor in a
    process of its own the stand-in of its node there.
    """

    @property
    def name(self) -> str:
        """The node's name."""
        ...

    @property
    def incarnation(self) -> int:
        """This start of the node."""
        ...

    @overload
    async def lookup(self, name: str) -> object: ...
    @overload
    async def lookup(self, name: str, actor: Callable[..., A]) -> A: ...
    async def lookup(self, name: str, actor: Callable[..., A] | None = None) -> A | object:
        """The handle of the actor of this name, wherever it runs.

        Raises `ActorNotFoundError`, and `ClassMismatchError` if it is none of class `actor`.
        """
        ...

    async def stop(self, handle: object, *, reason: str = "stopped") -> None:
        """Stop an actor and wait until it has ended. Stopping one that has ended already is no
        error.
        """
        ...

    def members(self) -> tuple[Member, ...]:
        """The nodes known to be in the cluster now, this one included, by name."""
        ...

    async def wait_ended(self, handle: object) -> Ended:
        """Wait until the present epoch of an actor has ended; at once with "no such actor" for one
        that is dead or unknown.
        """
        ...

    async def put(self, value: T) -> Reference[T]:
        """Keep a copy of a value on this node, for as long as a reference to it exists. Raises
        `EncodeError`.
        """
        ...

    def group(self, name: str, actor: Callable[..., A]) -> Group[A]:
        """The group of this name, whose members are called as `actor`s. Raises ValueError for what
        cannot be a group's name.
        """
        ...


Ts = TypeVarTuple("Ts")
A_co = TypeVar("A_co", covariant=True)


class Ignore(Exception):  # noqa: N818  it is no error
    """Raise it in `on_start`: this actor is not needed, and does not start. Its supervisor keeps
    the spec, unless it is temporary, and goes on without it, as OTP does when a start function
    returns `ignore`.
    """


class ActorNursery(Protocol):
    """Where an actor's own tasks live: they are cancelled when it ends, and one that raises ends
    the actor.

    An interface because `actors` never imports `runtime`, which has `LazyNursery`.
    """

    def start_soon(
        self, function: Callable[[*Ts], Awaitable[object]], *args: *Ts, name: str | None = None
    ) -> None:
        """Start a task soon, as `trio.Nursery.start_soon` does."""
        ...


# What a handle has besides its methods. To a type checker a handle is an actor, and a blocking
# handle is its class (see `actors.method.Method`): these have the same types looked up on either.

if TYPE_CHECKING:

    class _Fact(Generic[T]):
        """A property that has its type on the class, too."""

        def __init__(self, function: Callable[[Any], T]) -> None: ...

        def __get__(self, instance: object, owner: type) -> T: ...

    class _WithOptions(Protocol[A_co]):
        def __call__(self, **changes: Unpack[CallChanges]) -> A_co: ...

    class _Options:
        """`options`, which gives what it was looked up on."""

        def __init__(self, function: Callable[..., object]) -> None: ...

        @overload
        def __get__(self, instance: None, owner: type[A]) -> _WithOptions[type[A]]: ...
        @overload
        def __get__(self, instance: A, owner: type[A]) -> _WithOptions[A]: ...
        def __get__(self, instance: object, owner: type) -> object: ...

else:
    _Fact = property

    def _Options(function: Callable[..., object]) -> Callable[..., object]:  # noqa: N802
        return function


class Actor(Observer):
    """Derive from this and mark with `@method` what may be called from outside."""

    supervises: ClassVar[bool] = False
    """True for supervisors: their stopping takes as long as their children's."""

    __methods__: ClassVar[Mapping[str, MethodDefinition]] = {}
    _context: ActorContext | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in vars(cls):
            if isinstance(vars(cls)[name], Marked) and (name in _RESERVED or name.startswith("_")):
                raise TypeError(
                    f"{cls.__qualname__}.{name}: this name belongs to the runtime and cannot be a "
                    "@method; call it something else"
                )
        collected = dict(cls.__methods__)
        for base in reversed(cls.__mro__):
            for name, member in vars(base).items():
                if isinstance(member, Marked):
                    collected[name] = member.definition
                else:
                    # A subclass that overrides a method without the mark takes it out of reach, as
                    # it reads.
                    collected.pop(name, None)
        cls.__methods__ = collected

    @property
    def node(self) -> NodeInterface:
        """The node that hosts this actor: spawn, look up and stop others through it."""
        return self._hosted().node

    @_Fact
    def name(self) -> str:
        """This actor's name, unique in the cluster."""
        return self._hosted().name

    @_Fact
    def epoch(self) -> int:
        """Grows at every (re)start of this name anywhere: pass it to outside systems as a fencing
        token (Kleppmann's term).
        """
        return self._hosted().epoch

    @property
    def handle(self) -> Self:
        """A handle of this actor, to hand to others."""
        handle: Self = self._hosted().handle
        return handle

    @property
    def nursery(self) -> ActorNursery:
        """For tasks of its own, which end with the actor."""
        return self._hosted().nursery

    @_Options
    def options(self, **changes: Unpack[CallChanges]) -> Self:
        """A handle of this actor whose calls have these options where neither the method nor the
        call says otherwise.
        """
        changed: Self = self._hosted().handle.options(**changes)
        return changed

    @_Fact
    def address(self) -> Address:
        """Where this actor runs."""
        address: Address = self._hosted().handle.address
        return address

    @hook
    async def on_start(self) -> None:
        """Called once before the first message. An exception here means that the actor did not
        start.

        The constructor runs in a thread, so it may block. So does `on_start` if it is a plain
        `def`; an `async def` runs on the loop.
        """

    @hook
    async def on_stop(self, reason: ExitReason) -> None:
        """Called once after the last message when the actor is stopped or its node leaves; not when
        its process is killed.

        Bounded: it is cancelled when the time allowed for stopping (5 seconds) is over. A plain
        `def` runs in a thread, and is left behind then.
        """

    async def save(self, state: object, *, answer: object = attrs.NOTHING) -> None:
        """Keep `state` (anything that can be a message) beyond the end of this actor, under its
        name.

        Returns when the store has it. Refused with `StaleEpochError` if a newer epoch of this name
        has started: what a fenced predecessor computes can no longer be saved. Only actors with a
        given name can save. Raises `StoreUnavailableError` if nothing was saved because the store
        could not be reached, and `StoreOutcomeUnknownError` if it did not answer, also when asked
        again: then read `saved()` before you go on, since the state may be there or not.

        Within a method whose caller may repeat the call, the call is recorded in the same
        transaction. When it is repeated after this actor was started again, wherever that is, it
        does not run again: its caller is given `answer`, or `AlreadyAppliedError` if none was
        saved. Let `answer` be what the method will return, of 256 KiB at most; references to values
        cannot be kept, and are refused with `EncodeError`. The records are those of the method in
        whose task, or in whose own nursery, `save` is called: the actor's own tasks, `on_start` and
        `on_stop` record none and leave those there are.
        """
        await self._hosted().save(state, answer)

    async def saved(self) -> Any:
        """What was saved last under this name, by this or any earlier epoch; None if
        nothing was.
        """
        return await self._hosted().saved()

    def _hosted(self) -> ActorContext:
        if self._context is None:
            raise RuntimeError(
                f"this {type(self).__qualname__} was not started by a node and has no name, node "
                "or nursery; start it with node.spawn(...)"
            )
        return self._context


_RESERVED = frozenset(
    name for base in (Actor, Observer) for name in vars(base) if not name.startswith("_")
)
