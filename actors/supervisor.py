"""Supervisors as users declare them: an actor that starts, watches and restarts its children.

The semantics are OTP's. What to do is decided by the pure machine in `actors.restarts`; the runtime carries it out. Children may be placed
on other nodes; when a
node dies, its children are placed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ParamSpec, Protocol, TypeVar, Unpack

import attrs

from actors.actor import Actor
from actors.messages import import_path, message
from actors.method import method
from actors.options import SpawnChanges, SpawnOptions
from actors.supervision import ChildRule, RestartType, Strategy

P = ParamSpec("P")
A = TypeVar("A")


def _class_path(actor: object) -> str:
    if isinstance(actor, str):
        return actor
    if isinstance(actor, type) and issubclass(actor, Actor):
        return import_path(actor)
    raise TypeError(f"a child's class must be a subclass of actors.Actor or its 'module:Class' path, not {actor!r}")


def _id(instance: object, attribute: attrs.Attribute[str], value: object) -> None:
    if not isinstance(value, str) or not value:
        raise ValueError(f"a child's id must be a str that is not empty, not {value!r}")


def _as_tuple(values: Iterable[object]) -> tuple[object, ...]:
    return tuple(values)


def _as_dict(values: Mapping[str, object]) -> dict[str, object]:
    return dict(values)


@message
@attrs.frozen(kw_only=True)
class ChildSpec:
    """What a supervisor needs to know to start a child, again and again.

    `id` is unique in the supervisor; the actor's name is `<supervisor>/<id>` unless the options give one. `restart`: "permanent" (always),
    "transient" (unless it ended normally) or "temporary" (never). `shutdown`: seconds that the child is given to stop, None for no limit.
    """

    id: str = attrs.field(validator=_id)
    actor: str = attrs.field(converter=_class_path)
    args: tuple[object, ...] = attrs.field(default=(), converter=_as_tuple)
    kwargs: Mapping[str, object] = attrs.field(factory=dict, converter=_as_dict)
    restart: RestartType = "permanent"
    shutdown: float | None = 5.0
    options: SpawnOptions = attrs.field(factory=SpawnOptions, validator=attrs.validators.instance_of(SpawnOptions))

    @staticmethod
    def of(
        id: str,
        actor: Callable[P, A],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> ChildSpec:
        """A permanent child of class `actor`, its constructor's arguments checked by the type checker."""
        return ChildSpec(id=id, actor=actor, args=args, kwargs=kwargs)

    def changed(self, *, restart: RestartType | None = None, shutdown: float | None = None, **changes: Unpack[SpawnChanges]) -> ChildSpec:
        """A copy with another restart type, shutdown time or spawn options."""
        return attrs.evolve(
            self,
            restart=restart or self.restart,
            shutdown=self.shutdown if shutdown is None else shutdown,
            options=attrs.evolve(self.options, **changes),
        )

    def rule(self) -> ChildRule:
        """The part of the spec that decisions depend on."""
        return ChildRule(id=self.id, restart=self.restart, shutdown=self.shutdown)


@message
@attrs.frozen(kw_only=True)
class ChildStatus:
    """One child as its supervisor sees it. `state`: "running", "starting", "restarting" or "stopped"."""

    id: str
    name: str
    state: str
    node: str | None
    restarts: int
    last_exit: str | None = None


class SupervisorWork(Protocol):
    """The runtime's side of a supervisor."""

    async def start(self) -> None:
        """Start all children in order; raises `ActorStartError` naming the child that failed, with those before it stopped again."""
        ...

    async def stop(self) -> None:
        """Stop all children in reverse order."""
        ...

    async def start_child(self, spec: ChildSpec) -> str:
        """See `Supervisor.start_child`."""
        ...

    async def stop_child(self, id: str) -> None:
        """See `Supervisor.stop_child`."""
        ...

    def children(self) -> list[ChildStatus]:
        """See `Supervisor.children`."""
        ...


class Supervisor(Actor):
    """Starts its children in order, restarts those that fail, and stops them in reverse order.

    More than `intensity` restarts within `period` seconds, and it stops its children and ends: its own supervisor's rules apply then.
    Raises ValueError for duplicate ids, unknown strategies and negative numbers.
    """

    def __init__(
        self, children: Sequence[ChildSpec] = (), *, strategy: Strategy = "one-for-one", intensity: int = 1, period: float = 5.0
    ) -> None:
        self.specs = tuple(children)
        self.strategy: Strategy = strategy
        self.intensity = intensity
        self.period = period
        self._work: SupervisorWork | None = None

    async def on_start(self) -> None:
        """Start the children; see `SupervisorWork.start`."""
        self._work = self._hosted().supervise(self)
        await self._working().start()

    async def on_stop(self, reason: object) -> None:
        """Stop the children."""
        await self._working().stop()

    @method(concurrent=True)
    async def start_child(self, spec: ChildSpec) -> str:
        """Add a child and start it; returns its name. Raises ValueError if the id is in use."""
        return await self._working().start_child(spec)

    @method(concurrent=True)
    async def stop_child(self, id: str) -> None:
        """Stop a child and drop its spec. Raises KeyError for an unknown id."""
        await self._working().stop_child(id)

    @method(concurrent=True, idempotent=True)
    async def children(self) -> list[ChildStatus]:
        """The children in the order of their start; never waits for one."""
        return self._working().children()

    def _working(self) -> SupervisorWork:
        if self._work is None:
            raise RuntimeError("this supervisor was not started by a node")
        return self._work
