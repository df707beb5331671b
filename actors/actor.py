"""The base class of actors: identity, hooks, a nursery, and state that survives restarts.

An actor's methods run one at a time, so its state needs no locks. It ends when it is stopped, when
its node ends, or when one of its own tasks raises; a method that raises ends only that call. In
unit tests you can use the object without a runtime: then `self.node` and the rest of its identity
are missing.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from types import CodeType, FunctionType, MappingProxyType
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

from actors.documentation import documented_as
from actors.filters import Filter, checked_filters, on_side
from actors.foreign_names import StartsElsewhere
from actors.functions import RunsFunctions
from actors.groups import Group
from actors.identifiers import NodeId
from actors.messages import message
from actors.method import Address, Marked, MethodDefinition, hides_mark
from actors.options import CallChanges, SpawnChanges, SpawnOptions
from actors.pools import JournalSummary, PoolInterface
from actors.reference import Reference
from actors.supervision import ExitReason

# Watching, links and joining groups: what an actor learns of the end of others, and what it shares
# with them.
#
# A watch is of one epoch of one actor and gives one notice, which comes as a message: `on_ended`
# runs in its turn, like a method. A link joins two actors' fates, both ways. The semantics are
# those of Erlang's monitors, links and process groups.

P = ParamSpec("P")

A = TypeVar("A")

T = TypeVar("T")
R = TypeVar("R")

Ts = TypeVarTuple("Ts")
A_co = TypeVar("A_co", covariant=True)

_HOOKS = {"on_start": (), "on_stop": ("reason",), "on_ended": ("notice",), "on_inspect": ()}
"""The methods that the runtime calls, and what it passes to them."""

# Not by likeness: `on_step` and `on_store` are as near to `on_stop` as `on_stopped`, and are good
# names for methods of one's own.
_NEAR_HOOKS = {
    "onstart": "on_start",
    "onstarted": "on_start",
    "onstarting": "on_start",
    "onstartup": "on_start",
    "onstop": "on_stop",
    "onstopped": "on_stop",
    "onstopping": "on_stop",
    "onshutdown": "on_stop",
    "onend": "on_ended",
    "onended": "on_ended",
    "oninspect": "on_inspect",
    "oninspected": "on_inspect",
    "oninspection": "on_inspect",
}
"""The hook that is meant, by the name in lower case and without underscores."""


@message
@attrs.frozen
class Ended:
    """The notice that an actor has ended.

    `watch`: the number of the watch or link that it is for. `name`, `epoch`, `node`: which actor,
    and where it was. `reason`: its own, or "node died" if it ended with its node, or "no such
    actor" if it did not exist when the watch began. `restarts`: True if a supervisor is going to
    restart it under its name; False also if the store could not be reached.
    """

    watch: int
    name: str
    epoch: int
    node: str
    reason: ExitReason
    restarts: bool = False


@attrs.frozen
class Watch:
    """One watch, as `Actor.watch` returns it. `number` is the value of `Ended.watch`; `name` and
    `epoch` are the watched actor's.
    """

    number: int
    name: str
    epoch: int
    _cancel: Callable[[], None] = attrs.field(repr=False, eq=False)

    def cancel(self) -> None:
        """Stop watching: no notice is delivered after this, not even one that was under way.
        You may cancel it again.
        """
        self._cancel()


class ActorWatching(Protocol):
    """The runtime's side of watches and links of one actor: one implementation for actors in a
    node, one for isolated actors.
    """

    async def watch(self, handle: object) -> Watch:
        """Watch the present epoch of an actor. Raises `StoreError` if the lookup fails."""
        ...

    async def link(self, handle: object) -> None:
        """Link this actor with another."""
        ...

    async def unlink(self, handle: object) -> None:
        """End the links of this actor with another."""
        ...


class ActorGroups(Protocol):
    """The runtime's side of the memberships of one actor: one implementation for actors in a node,
    one for isolated actors.
    """

    async def join(self, group: str) -> None:
        """Join a group. Raises ValueError for an invalid name."""
        ...

    async def leave(self, group: str) -> bool:
        """Undo one `join`; False if there is none left."""
        ...


def hook(function: Callable[P, Coroutine[Any, Any, object]]) -> Callable[P, Any]:
    """A method that the runtime calls, and that users may override with an `async def` or a plain
    `def`: no narrower type admits both.
    """
    return function


class ActorContext(Protocol):
    """The hosting runtime as one actor reaches it, through the properties of `Actor`.

    An interface because `actors` never imports `runtime`, which has `Hosted`.
    """

    @property
    def node(self) -> NodeInterface:
        """The node that hosts the actor."""
        ...

    @property
    def name(self) -> str:
        """The actor's name."""
        ...

    @property
    def epoch(self) -> int:
        """The actor's epoch."""
        ...

    @property
    def nursery(self) -> ActorNursery:
        """The nursery of the actor's own tasks."""
        ...

    @property
    def handle(self) -> Any:
        """A handle of the actor."""
        ...

    async def save(self, state: object, answer: object) -> None:
        """Save the actor's state in the store; `answer` is that of the running call,
        `attrs.NOTHING` if there is none.
        """
        ...

    async def saved(self) -> Any:
        """Return the state that an earlier epoch of the name has saved, or None."""
        ...

    async def call_in_thread(self, function: Callable[[], Any]) -> Any:
        """Like `in_thread`, where the function is all that the running call runs: without a thread
        the call ends as not executed.
        """
        ...

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """Run a blocking function in a thread."""
        ...

    @property
    def watching(self) -> ActorWatching:
        """The actor's watches and links."""
        ...

    @property
    def groups(self) -> ActorGroups:
        """The actor's memberships in groups."""
        ...

    def supervise(self, supervisor: Any) -> Any:
        """The work of a supervisor that is hosted here; see `actors.supervisor.SupervisorWork`."""
        ...


class Observer:
    """Watches, links and groups; a part of `actors.Actor`."""

    handles_exits: ClassVar[bool] = False
    """If True, the end of a linked actor, also a normal one, calls `on_ended` instead of stopping
    this actor.
    """

    @hook
    async def on_ended(self, notice: Ended) -> None:
        """Called when an actor has ended that this one watches, or is linked to with
        `handles_exits`. Runs in its turn, like a method; a plain `def` runs in a thread. An
        exception here ends the actor, as one in its own tasks does, because no caller would learn
        of it.
        """

    async def watch(self, handle: object) -> Watch:
        """Watch the present epoch of an actor: `on_ended` is called once when it has ended. It is
        called at once, with "no such actor", for an actor that is dead or unknown, and with "node
        died" when its node is dead; an unreachable node is not yet dead. Two watches of one actor
        are independent. They end with this actor. Returns when the actor's node has recorded the
        watch, or after a second: the end of an actor on an unreachable node may then be reported as
        "no such actor". Raises `StoreError` if a name cannot be looked up.
        """
        return await self._hosted().watching.watch(handle)

    async def unwatch(self, watch: Watch) -> None:
        """Stop a watch, like `watch.cancel()`."""
        watch.cancel()

    async def link(self, handle: object) -> None:
        """Link this actor with another: when either ends abnormally (see
        `ExitReason.is_passed_on`), also by the death of its node, the other is stopped with the
        same reason. An actor with `handles_exits` gets `on_ended` instead. Linking to a dead actor
        stops this one, or calls its `on_ended`, at once. Two actors have one link at most; linking
        to oneself does nothing. Waits while the other's node cannot be reached.
        """
        await self._hosted().watching.link(handle)

    async def unlink(self, handle: object) -> None:
        """End a link, from either side: from now on the end of one actor has no effect on the
        other. No error if there is none.
        """
        await self._hosted().watching.unlink(handle)

    async def join(self, group: str) -> None:
        """Join a group; an actor that joins several times is a member several times. The membership
        ends with this actor or its node. This node sees it at once, others soon. Raises ValueError
        for an invalid name.
        """
        await self._hosted().groups.join(group)

    async def leave(self, group: str) -> bool:
        """Undo one `join`; False if there is none left."""
        return await self._hosted().groups.leave(group)

    if TYPE_CHECKING:

        def _hosted(self) -> ActorContext: ...


# The node as an actor sees it: the interface behind `self.node`, which `runtime.node` implements.


@message
@attrs.frozen
class Member:
    """A node of the cluster, as other nodes see it.

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

    @property
    def node_id(self) -> NodeId:
        """Name and incarnation, which no other process of the cluster ever shares."""
        return NodeId(self.name, self.incarnation)


class Spawner(Protocol):
    """Starts actors with options; `options(...)` returns a changed copy. Implemented by nodes, and
    by what their `options` returns.
    """

    @documented_as(SpawnOptions)
    def options(self, **changes: Unpack[SpawnChanges]) -> Spawner:
        """Return a copy with other options. Raises TypeError or ValueError for invalid values."""
        ...

    async def spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """Start an actor of class `actor` and return its handle once `on_start` has returned.

        Raises `BadArgumentsError` for arguments that the constructor does not take, before anything
        is sent. Raises `NameTakenError`, `ActorClassError`, `ActorStartError`, `NodeNotFoundError`,
        `NoPlacementError`.
        """
        ...

    async def spawn_many(
        self,
        actor: Callable[..., A],
        argument_list: Iterable[Sequence[object]],
        /,
        *,
        names: Sequence[str] | None = None,
    ) -> list[A]:
        """Start many actors of one class, in one message to each node for thousands of them, and
        return their handles in the order of `argument_list`: for each actor a tuple of what its
        constructor takes, as in `[(1,), (2,)]`. `names`: one for each; None: they get names of
        their own. Their places are chosen as those of `spawn`, one after the other.

        Raises `SpawnManyError` if some did not start: it has the errors, and the handles of those
        that did. Raises `BadArgumentsError`, TypeError and ValueError before anything is sent, and
        `NodeNotFoundError` and `NoPlacementError`, if one fits nowhere, before anything is started.
        Where others take what was left at the same moment, `SpawnManyError` has `NoPlacementError`
        for those that found no room.
        """
        ...

    async def get_or_spawn(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """Return the handle of the actor that has the name already, once it has started, or of a
        new one. The arguments are used only for a new one. Raises what `spawn` raises, except
        `NameTakenError`: the start may be that of another caller, and fails for all callers that
        wait for it. Raises `ClassMismatchError` if the actor that has the name is not of class
        `actor`.
        """
        ...

    @overload
    async def run(
        self, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def run(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @documented_as(RunsFunctions.run)
    async def run(
        self, function: Callable[..., object], /, *args: object, **kwargs: object
    ) -> object:
        """Run a function in a worker process of the cluster."""
        ...

    async def singleton(self, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """Make this node a candidate for an actor of which the cluster has one, and return its
        handle once it runs on any node. All nodes that call this with the name are candidates, and
        one of them, elected through the store, runs the actor. When that node dies or leaves, or
        loses its lease, another candidate starts it again; a supervisor then adopts its running
        children. When the actor is stopped, or gives up as a supervisor, it has ended on all nodes.
        Raises what `spawn` raises, except `NameTakenError`, and `ClassMismatchError` if the actor
        that has the name is not of class `actor`: then this node is no candidate.
        """
        ...


class NodeInterface(Spawner, Protocol):
    """The interface of an actor's node: a `runtime.Node` or, for an isolated actor, a client of its
    node in the actor's process.
    """

    @property
    def name(self) -> str:
        """The node's name."""
        ...

    @property
    def incarnation(self) -> int:
        """The number of this start of the node."""
        ...

    @overload
    async def lookup(self, name: str) -> object: ...
    @overload
    async def lookup(self, name: str, actor: Callable[..., A]) -> A: ...
    async def lookup(self, name: str, actor: Callable[..., A] | None = None) -> A | object:
        """Return the handle of the actor of this name, wherever it runs. Raises
        `ActorNotFoundError`, and `ClassMismatchError` if it is not of class `actor`.
        """
        ...

    async def stop(self, handle: object, *, reason: str = "stopped") -> None:
        """Stop an actor and wait until it has ended. You may stop one that has ended already."""
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
        """Store a copy of a value on this node, as long as a reference to it exists. Raises
        `EncodeError`.
        """
        ...

    def group(self, name: str, actor: Callable[..., A]) -> Group[A]:
        """Return the group of this name, whose members are called as `actor`s. Raises ValueError
        for an invalid name.
        """
        ...

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
    ) -> PoolInterface[A]:
        """Start a pool of members of class `actor`, or of a plain function, over the nodes of the
        cluster; or find the one of this name, whose size stays as it is. `args` go to the members'
        constructor. Give `size`, `per_node`, or `min` and `max`:

        - `size`: members in all.
        - `per_node`: members on each node, also on nodes that join later.
        - `min`: members that there are always.
        - `max`: members that there may be while items wait. After 30 s without waiting items there
          are `min` again.
        - `kwargs`: arguments of the members' constructor by name. By default none.

        All options of `SpawnOptions` but `name`, `timeout` and `retry` hold for each member, such
        as `isolation="process"` or `labels`. `idle_timeout` is refused. A pool without a name
        (None) ends with this node, and a named one when it is stopped. This node gets members only
        if no other can take them, because it drives the work.

        Raises what `spawn` raises, `ActorStartError` if the first member does not start, and
        TypeError or ValueError for what makes no sense.
        """
        ...

    async def lookup_pool(self, name: str, actor: Callable[..., A]) -> PoolInterface[A]:
        """The pool of this name, wherever it was opened. Raises `ActorNotFoundError`, and
        `ClassMismatchError` if its members are of another class.
        """
        ...

    async def pool_journals(self) -> list[JournalSummary]:
        """The journals of maps that the cluster's store keeps, by name: items done, bytes, the node
        that works with each, and the seconds since it was last used. Raises `StoreError`.
        """
        ...

    async def remove_pool_journal(self, name: str, *, unused_for: float = 0.0) -> bool:
        """Remove the journal of a map, so that the next map under this name begins anew; only if it
        was not used for `unused_for` seconds. Returns True if it was removed. Raises
        `JournalInUseError` while a map works with it, and TypeError or ValueError for what makes
        no sense.
        """
        ...


class Ignore(Exception):  # noqa: N818  it is no error
    """Raise it in `on_start` if this actor is not needed: it does not start. Its supervisor keeps
    the spec, unless it is temporary, and continues without it, as OTP does when a start function
    returns `ignore`.
    """


class ActorNursery(Protocol):
    """The nursery of an actor's own tasks: they are cancelled when it ends, and a task that raises
    ends the actor.

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
        @functools.wraps(function)
        def options(self: object = None, /, **changes: object) -> object:
            # On a class it has no `self`, and Python's own error would not say what to write.
            if self is None:
                raise TypeError(
                    "options(...) changes calls, so it is called on a handle; the options of a new "
                    "actor are given to the node: node.options(name=...).spawn(MyActor, ...)"
                )
            return function(self, **changes)

        return options


class _OwnFact(property):
    """What the runtime says of an actor, and no actor changes."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __set__(self, instance: object, value: object) -> None:
        raise AttributeError(
            f"{type(instance).__qualname__}.{self.name} belongs to the runtime and cannot be set; "
            "call the attribute something else"
        )


def _unfit(name: str) -> str:
    """Why no method of this name can be called from outside, and what to do."""
    if name in _HOOKS or name == "__init__":
        return "the runtime calls it itself; take the mark away"
    if name.startswith("_"):
        return "names that begin with an underscore are the actor's own; call it something else"
    return "this name belongs to the runtime; call it something else"


def _check_own_names(cls: type) -> None:
    """Raises TypeError if the class hides what the runtime says of an actor, or has a hook that
    cannot be called as the runtime calls it, or is a generator.
    """
    for name in _FACTS & vars(cls).keys():
        raise TypeError(
            f"{cls.__qualname__}.{name}: this name belongs to the runtime; call it something else"
        )
    for name, given in _HOOKS.items():
        hook = vars(cls).get(name)
        if not isinstance(hook, FunctionType):
            continue
        if inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook):
            raise TypeError(
                f"{cls.__qualname__}.{name} is a generator, because it has a `yield`: nothing asks "
                "a hook for items, so none of its code would run; take the `yield` out"
            )
        try:
            # A decorator's own parameters count, and not those of what it wraps.
            inspect.signature(hook, follow_wrapped=False).bind(None, *given)
        except TypeError:
            raise TypeError(
                f"{cls.__qualname__}.{name} must take {', '.join(('self', *given))}: the runtime "
                "calls it so"
            ) from None


def _warn_of_near_hooks(cls: type) -> None:
    """Warn of each plain function of the class that looks like a hook and is none: the runtime
    never calls it, and nothing else would say so. Called by what the class statement calls, so that
    the warning names the line of the class.

    It is a warning and no error, because the name may be the user's own: code that Python cannot
    see may call it. Nothing is said of a name that a function of the class uses, or that another
    base has: those are called.
    """
    for name, member in vars(cls).items():
        meant = _NEAR_HOOKS.get(name.replace("_", "").lower())
        if meant is None or name in _HOOKS or not isinstance(member, FunctionType):
            continue
        if any(name in vars(base) for base in cls.__mro__[1:]) or name in _used_in(cls):
            continue
        warnings.warn(
            f"{cls.__qualname__}.{name} is never called by the runtime: the hook is {meant}; "
            "rename it, or mark it with @method if others are to call it",
            stacklevel=3,
        )


def _used_in(cls: type) -> frozenset[str]:
    """The names of attributes and globals that the functions of the class use."""
    return frozenset(
        name
        for member in vars(cls).values()
        if isinstance(member, FunctionType)
        for code in _with_inner(member.__code__)
        for name in code.co_names
    )


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    """The code and that of the functions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


class Actor(Observer):
    """Derive your actors from this class, and mark with `@method` the methods that may be called
    from outside.
    """

    supervises: ClassVar[bool] = False
    """True for supervisors: their stopping takes as long as their children's."""

    call_filters: ClassVar[Sequence[Filter]] = ()
    """Filters around the methods of this class, where they run and where they are called; inside of
    those of the node.
    """

    __client_filters__: ClassVar[tuple[Filter, ...]] = ()

    __methods__: ClassVar[Mapping[str, MethodDefinition]] = {}
    _context: ActorContext | None = None

    if not TYPE_CHECKING:
        # To a type checker a class without them has none.
        remote = StartsElsewhere()
        start = StartsElsewhere()
        spawn = StartsElsewhere()

        def __dir__(self) -> list[str]:
            # For completion, which would offer them: their names stand in this class.
            return [
                name
                for name in super().__dir__()
                if not isinstance(inspect.getattr_static(type(self), name, None), StartsElsewhere)
            ]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in vars(cls):
            if isinstance(vars(cls)[name], Marked) and (name in _RESERVED or name.startswith("_")):
                raise TypeError(f"{cls.__qualname__}.{name} cannot be a @method: {_unfit(name)}")
        _check_own_names(cls)
        _warn_of_near_hooks(cls)
        # Chosen once: handles are made for each message that has one, also in the middle of reading
        # it, where no code of a user's may run.
        cls.__client_filters__ = on_side(checked_filters(cls.call_filters), "client")
        # From the most distant base to the class itself, so that the nearest definition counts. The
        # walk is over all of them, and not over the bases' results: of two bases with a method of
        # one name, the order of the bases decides, as it does for every attribute.
        collected = dict(cls.__methods__)
        for base in reversed(cls.__mro__):
            for name, member in vars(base).items():
                if isinstance(member, Marked):
                    collected[name] = member.definition
                elif hides_mark(member):
                    raise TypeError(
                        f"{base.__qualname__}.{name}: a decorator above @method hides the mark; "
                        "write @method above all others"
                    )
                elif not isinstance(member, StartsElsewhere):
                    # A subclass that overrides a method without the mark takes it out of reach, as
                    # it reads.
                    collected.pop(name, None)
        cls.__methods__ = collected

    @property
    def node(self) -> NodeInterface:
        """The node that hosts this actor: use it to spawn, look up and stop others."""
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
        """A handle of this actor, to send to others."""
        handle: Self = self._hosted().handle
        return handle

    @property
    def nursery(self) -> ActorNursery:
        """The nursery for the actor's own tasks, which end with the actor."""
        return self._hosted().nursery

    @_Options
    def options(self, **changes: Unpack[CallChanges]) -> Self:
        """Return a handle of this actor whose calls have these options, unless the method or the
        call overrides them.
        """
        changed: Self = self._hosted().handle.options(**changes)
        return changed

    @_Fact
    def address(self) -> Address:
        """The address of this actor: name, node, incarnation, epoch and class."""
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
        its process is killed. Also while `on_start` runs, which is cancelled; not before the
        constructor has returned.

        It is cancelled when the time allowed for stopping (5 seconds) is over; a plain `def` runs
        in a thread, and is left running then.
        """

    @hook
    async def on_inspect(self) -> object:
        """Called when someone inspects this actor, by `understudy inspect` or a dashboard, which
        asks every second: return what is worth seeing of its state. Text is shown as it is, a dict
        one item a line, anything else by its `repr`; of all that, the first 8 KiB.

        Runs between two methods, never beside one that takes a turn, and for a second at most: then
        an `async def` is cancelled, and a plain `def`, which runs in a thread, is left running.
        What it raises is shown, and has no other effect.
        """
        return None

    async def save(self, state: object, *, answer: object = attrs.NOTHING) -> None:
        """Save `state` (anything that can be a message) under the actor's name, beyond its end.
        Returns when the store has it. Raises `StaleEpochError` if a newer epoch of this name has
        started: a fenced predecessor can no longer save. Only actors with a given name can save.
        Raises `StoreUnavailableError` if nothing was saved because the store could not be reached,
        and `StoreOutcomeUnknownError` if it did not answer, also when asked again: then read
        `saved()` before you go on, since the state may be there or not.

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
        """Return the state that was saved last under this name, by this or any earlier epoch; None
        if there is none.
        """
        return await self._hosted().saved()

    def _hosted(self) -> ActorContext:
        if self._context is None:
            raise RuntimeError(
                f"this {type(self).__qualname__} was not started by a node and has no name, node "
                f"or nursery; start one with await node.spawn({type(self).__qualname__}, ...)"
            )
        return self._context


_FACTS = frozenset(name for name, value in vars(Actor).items() if isinstance(value, property))


def _refuse_changes() -> None:
    # Type checkers know the facts as properties, or by what they are on the class.
    for name in _FACTS:
        fact = _OwnFact(vars(Actor)[name].fget)
        fact.__set_name__(Actor, name)
        setattr(Actor, name, fact)


_refuse_changes()

_RESERVED = frozenset(
    name
    for base in (Actor, Observer)
    for name, member in vars(base).items()
    if not name.startswith("_") and not isinstance(member, StartsElsewhere)
)
