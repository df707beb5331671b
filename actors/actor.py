"""The base class of what users write: identity, hooks, a nursery of its own, and state that survives restarts.

An actor's methods run one at a time, so its state needs no locks. It ends when it is stopped, when its node ends, or when one of its
own tasks raises; a method that raises ends only that call. The same object works without any runtime in unit tests: then `self.node` and
the rest of its identity are not there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Protocol, Self, TypeVarTuple, Unpack

import attrs

from actors.method import Address, Marked, MethodDefinition
from actors.node import NodeInterface
from actors.options import CallChanges
from actors.supervision import ExitReason
from actors.watching import ActorGroups, ActorWatching, Observing, hook

Ts = TypeVarTuple("Ts")


class Ignore(Exception):  # noqa: N818  it is no error
    """Raise it in `on_start`: this actor is not needed, and does not start. Its supervisor keeps the spec, unless it is temporary, and goes
    on without it, as OTP does when a start function returns `ignore`.
    """


class ActorNursery(Protocol):
    """Where an actor's own tasks live: they are cancelled when it ends, and one that raises ends the actor."""

    def start_soon(self, function: Callable[[*Ts], Awaitable[object]], *args: *Ts, name: str | None = None) -> None:
        """Start a task soon, as `trio.Nursery.start_soon` does."""
        ...


class ActorContext(Protocol):
    """What the hosting runtime gives an actor; reached through the properties of `Actor`."""

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


class Actor(Observing):
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
                    f"{cls.__qualname__}.{name}: this name belongs to the runtime and cannot be a @method; call it something else"
                )
        collected = dict(cls.__methods__)
        for base in reversed(cls.__mro__):
            for name, member in vars(base).items():
                if isinstance(member, Marked):
                    collected[name] = member.definition
                else:
                    # A subclass that overrides a method without the mark takes it out of reach, as it reads.
                    collected.pop(name, None)
        cls.__methods__ = collected

    @property
    def node(self) -> NodeInterface:
        """The node that hosts this actor: spawn, look up and stop others through it."""
        return self._hosted().node

    @property
    def name(self) -> str:
        """This actor's name, unique in the cluster."""
        return self._hosted().name

    @property
    def epoch(self) -> int:
        """Grows at every (re)start of this name anywhere: pass it to outside systems as a fencing token (Kleppmann's term)."""
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

    def options(self, **changes: Unpack[CallChanges]) -> Self:
        """A handle of this actor whose calls have these options where neither the method nor the call says otherwise."""
        changed: Self = self._hosted().handle.options(**changes)
        return changed

    @property
    def address(self) -> Address:
        """Where this actor runs."""
        address: Address = self._hosted().handle.address
        return address

    @hook
    async def on_start(self) -> None:
        """Called once before the first message. An exception here means that the actor did not start.

        The constructor runs in a thread, so it may block. So does `on_start` if it is a plain `def`; an `async def` runs on the loop.
        """

    @hook
    async def on_stop(self, reason: ExitReason) -> None:
        """Called once after the last message when the actor is stopped or its node leaves; not when its process is killed.

        Bounded: it is cancelled when the time allowed for stopping (5 seconds) is over. A plain `def` runs in a thread, and is left behind
        then.
        """

    async def save(self, state: object, *, answer: object = attrs.NOTHING) -> None:
        """Keep `state` (anything that can be a message) beyond the end of this actor, under its name.

        Returns when the store has it. Refused with `StaleEpochError` if a newer epoch of this name has started: what a fenced
        predecessor computes can no longer be saved. Only actors with a given name can save.

        Within a method whose caller may repeat the call, the call is recorded in the same transaction. When it is repeated after this
        actor was started again, wherever that is, it does not run again: its caller is given `answer`, or `AlreadyAppliedError` if
        none was saved. Let `answer` be what the method will return, of 256 KiB at most; references to values cannot be kept, and are
        refused with `EncodeError`. The records are those of the method in whose task, or in whose own nursery, `save` is called: the
        actor's own tasks, `on_start` and `on_stop` record none and leave those there are.
        """
        await self._hosted().save(state, answer)

    async def saved(self) -> Any:
        """What was saved last under this name, by this or any earlier epoch; None if nothing was."""
        return await self._hosted().saved()

    def _hosted(self) -> ActorContext:
        if self._context is None:
            raise RuntimeError(
                f"this {type(self).__qualname__} was not started by a node and has no name, node or nursery; start it with node.spawn(...)"
            )
        return self._context


_RESERVED = frozenset(name for base in (Actor, Observing) for name in vars(base) if not name.startswith("_"))
