"""Supervisors as users declare them: actors that start, watch and restart their children.

The semantics are OTP's. What to do is decided by the pure machines in `actors.restarts` and
`actors.dynamic_restarts`; the runtime carries it out. Children may be placed on other nodes; when a
node dies, its children are placed again. A supervisor that is restarted elsewhere adopts the
children that still live.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal, ParamSpec, Protocol, TypeVar, Unpack, cast

import attrs

from actors.actor import Actor
from actors.class_names import qualified_name
from actors.dynamic_restarts import DynamicRestartMachine
from actors.errors import BadArgumentsError
from actors.exact import exact_fields
from actors.handle import AnyHandle, Handle
from actors.keywords import names_options, unknown_keyword
from actors.messages import import_path, message
from actors.method import Address, fitting, method
from actors.options import MOST_NAME, CallChanges, SpawnChanges, SpawnOptions
from actors.reference import Reference, check_constructor
from actors.restarts import RestartMachine
from actors.retry import check_number
from actors.short_repr import short_repr
from actors.supervision import (
    AutomaticShutdown,
    ChildKind,
    ChildRule,
    ChildState,
    ExitReason,
    RestartBackoff,
    RestartType,
    Shutdown,
    Strategy,
    check_word,
)

# Children of supervisors: how they are declared, and how they are seen.

P = ParamSpec("P")


A = TypeVar("A")


START_SECONDS = 60.0
"""How long the start of a child may take, if its spec does not say otherwise."""


WORKER_SHUTDOWN_SECONDS = 5.0
"""How long the stop of a child that is no supervisor may take: OTP's default."""


SHOWN_OF_NAME = 60
"""As many characters of an id, or of a supervisor's name, are shown where they are too long."""


class ChildChanges(SpawnChanges, total=False):
    """The keywords of `ChildSpec.changed`."""

    restart: RestartType
    significant: bool
    shutdown: Shutdown
    start_timeout: float | None


def _class_path(actor: object) -> str:
    if isinstance(actor, str):
        return actor
    if isinstance(actor, type) and issubclass(actor, Actor):
        return import_path(actor)
    raise TypeError(
        "a child's actor must be a subclass of actors.Actor or its 'module:Class' path, not "
        f"{short_repr(actor)}"
    )


def _as_tuple(values: object) -> tuple[object, ...]:
    if isinstance(values, Iterable) and not isinstance(values, str | bytes):
        return tuple(cast("Iterable[object]", values))
    raise TypeError(f"a child's args are a tuple, as in args=(1,), and not {short_repr(values)}")


def _as_dict(values: object) -> dict[str, object]:
    if isinstance(values, Mapping) and all(isinstance(name, str) for name in values):
        return dict(cast("Mapping[str, object]", values))
    raise TypeError(
        "a child's kwargs are a dict of names, as in kwargs={'start': 1}, and not "
        f"{short_repr(values)}"
    )


def _known_class(path: str) -> type[Actor] | None:
    """The actor class of this path, if it has been imported here."""
    module, _, name = path.partition(":")
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, Actor) else None


def _spawn_options(
    spec: ChildSpec, attribute: attrs.Attribute[SpawnOptions], value: SpawnOptions
) -> None:
    given: object = value
    if not isinstance(given, SpawnOptions):
        raise TypeError(
            f"options must be SpawnOptions, as SpawnOptions(name=...), not {short_repr(given)}"
        )
    for name in CallChanges.__annotations__:
        if getattr(given, name) is not None:
            raise ValueError(
                f"child {spec.id!r}: {name} is an option of calls, and a child is called through "
                f"handles that others look up; give it to those, as in handle.options({name}=...), "
                f"or to the methods, as in @method({name}=...)"
            )
    if given.idempotent:
        raise ValueError(
            f"child {spec.id!r}: idempotent= is for functions (run); methods of actors say it by "
            "@method(idempotent=True)"
        )


def _kind(spec: ChildSpec) -> ChildKind:
    cls = _known_class(spec.actor)
    return "supervisor" if cls is not None and cls.supervises else "worker"


def _start_timeout(spec: ChildSpec) -> float | None:
    return None if spec.kind == "supervisor" else START_SECONDS


def _shutdown(spec: ChildSpec) -> float | None:
    return None if spec.kind == "supervisor" else WORKER_SHUTDOWN_SECONDS


@message
@names_options(
    "ChildSpec",
    "ChildSpec.of(id, actor, *args).changed(...) takes all this and options of a spawn, such as on",
)
@attrs.frozen(kw_only=True, field_transformer=exact_fields)
class ChildSpec:
    """What a supervisor needs to know to start a child, again and again.

    `id` is unique in the supervisor; the actor's name is `<supervisor>/<id>` unless the options
    give one. `actor`: the class, or its "module:Class" path. `restart`: "permanent" (always),
    "transient" (unless it ended normally) or "temporary" (never). `significant`: its end by itself
    may end the supervisor. `shutdown`: seconds that the child is given to stop, "kill" for none,
    None for no limit; by default 5, and no limit for supervisors. `start_timeout`: seconds until
    its start counts as failed, None for no limit; by default 60, and no limit for supervisors,
    which start their children meanwhile. `kind` is found out where the class is known; else say
    "supervisor" of one. `options`: where it runs, and the other options of a spawn.

    Raises TypeError or ValueError, naming the child, for what makes no sense; a supervisor's
    arguments are checked as well.
    """

    id: str
    actor: str = attrs.field(converter=_class_path)
    args: tuple[object, ...] = attrs.field(default=(), converter=_as_tuple)
    kwargs: Mapping[str, object] = attrs.field(factory=dict, converter=_as_dict)
    restart: RestartType = "permanent"
    significant: bool = False
    kind: ChildKind = attrs.field(default=attrs.Factory(_kind, takes_self=True))
    shutdown: Shutdown = attrs.field(default=attrs.Factory(_shutdown, takes_self=True))
    start_timeout: float | None = attrs.field(
        default=attrs.Factory(_start_timeout, takes_self=True)
    )
    options: SpawnOptions = attrs.field(factory=SpawnOptions, validator=_spawn_options)

    def __attrs_post_init__(self) -> None:
        self.rule()
        check_word(f"child {self.id!r}: kind", self.kind, ChildKind)
        if self.start_timeout is not None:
            check_number(f"child {self.id!r}: start_timeout", self.start_timeout, above=True)
        if self.restart == "permanent" and self.options.idle_timeout is not None:
            raise ValueError(
                f"child {self.id!r}: a permanent child is started again whenever it ends, so "
                "idle_timeout makes no sense; "
                "give restart='transient' or 'temporary' together with it"
            )
        cls = _known_class(self.actor)
        if cls is not None and cls.supervises and cls.__init__.__module__ == "actors.supervisor":
            # Supervisors that users write may do anything in their constructors: those are called
            # where they run.
            try:
                inspect.signature(cls).bind(*self.args, **self.kwargs)
                cls(*self.args, **self.kwargs)
            except (TypeError, ValueError) as error:
                raise type(error)(f"in supervisor {self.id!r}: {error}") from None

    @staticmethod
    def of(
        id: str,
        actor: Callable[P, A],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> ChildSpec:
        """A permanent child of class `actor`, its constructor's arguments checked by the type
        checker.

        Raises BadArgumentsError for arguments that the constructor does not take; those that are
        missing may be given later.
        """
        if isinstance(actor, type):
            check_constructor(actor, args, kwargs, f"child {id!r}", partly=True)
        return ChildSpec(id=id, actor=cast("str", actor), args=args, kwargs=kwargs)

    def changed(self, **changes: Unpack[ChildChanges]) -> ChildSpec:
        """Return a copy with another restart type, shutdown time, significance, start timeout or
        spawn options.
        """
        own: dict[str, Any] = {key: value for key, value in changes.items() if key in _OWN}
        others: dict[str, Any] = {k: value for k, value in changes.items() if k not in _OWN}
        for name in others:
            if name not in SpawnChanges.__annotations__:
                raise unknown_keyword("changed(...)", name, ChildChanges.__annotations__)
        return attrs.evolve(self, **own, options=attrs.evolve(self.options, **others))

    def check_arguments(
        self,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] = MappingProxyType({}),
        *,
        partly: bool = False,
    ) -> None:
        """Raises BadArgumentsError, which names the child and the parameter, for arguments that its
        constructor does not take, and so for the children in them. A class that is not imported
        here is left to the node that runs it. `args` and `kwargs`: others that it is to be started
        with. `partly`: some may be added.
        """
        cls = _known_class(self.actor)
        if cls is not None:
            check_start(
                cls, args or self.args, kwargs or self.kwargs, f"child {self.id!r}", partly=partly
            )

    def to_keep(self) -> ChildSpec:
        """Return the spec to keep once the child has started: a temporary child is never restarted,
        so its arguments are dropped, as in OTP.
        """
        return (
            attrs.evolve(self, args=(), kwargs={})
            if self.restart == "temporary" and (self.args or self.kwargs)
            else self
        )

    def rule(self) -> ChildRule:
        """The part of the spec that decisions depend on."""
        return ChildRule(
            self.id, restart=self.restart, significant=self.significant, shutdown=self.shutdown
        )


def check_child_name(supervisor: str, id: str, given: str | None = None) -> None:
    """Raises BadArgumentsError, which names the child, if the name that its supervisor gives it is
    longer than names may be. `given`: the name that its spec has, which is checked there.
    """
    length = len(supervisor) + 1 + len(id)
    if given is None and length > MOST_NAME:
        raise BadArgumentsError(
            f"child {short_repr(id, SHOWN_OF_NAME)} of {short_repr(supervisor, SHOWN_OF_NAME)} was "
            f"not started: the name of its supervisor, '/' and its id have {length} characters, "
            f"and a name has {MOST_NAME} at most; give one of the two a shorter name, or the child "
            "one of its own, if it is no template: options=SpawnOptions(name=...)"
        )


def check_start(
    cls: type[Actor],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    what: str | None = None,
    *,
    name: str | None = None,
    partly: bool = False,
) -> None:
    """Raises BadArgumentsError, which names the parameter, for arguments that the constructor of
    `cls` does not take. Those of a supervisor are looked at further: its rules, and the names and
    arguments of its children. `what`: what is not started then; `name`: that of the actor, if it is
    known; `partly`: some may be added.
    """
    given = check_constructor(cls, args, kwargs, what, partly=partly)
    if not cls.supervises or cls.__init__.__module__ != "actors.supervisor":
        # Supervisors that users write may do anything with specs.
        return
    children, template = given.get("children"), given.get("template")
    if "children" in given and not isinstance(children, list | tuple | Reference):
        kind = children if isinstance(children, type) else type(children)
        raise BadArgumentsError(
            f"{what or 'a supervisor'} was not started: children must be a list of ChildSpecs, as "
            f'in [ChildSpec.of("cart", Cart)], and not '
            f"{'the class' if kind is children else 'of type'} {qualified_name(kind)}",
            method="__init__",
        )
    specs: dict[str, object] = {
        f"children[{place}]": spec
        for place, spec in enumerate(children if isinstance(children, list | tuple) else ())
    }
    if template is not None:
        specs["template"] = template
    for where, spec in specs.items():
        if not isinstance(spec, ChildSpec):
            kind = spec if isinstance(spec, type) else type(spec)
            raise BadArgumentsError(
                f"{what or 'a supervisor'} was not started: {where} must be a ChildSpec, as in "
                f'ChildSpec.of("cart", Cart), and not {"the class" if kind is spec else "of type"} '
                f"{qualified_name(kind)}",
                method="__init__",
            )
        if name is not None and where != "template":
            check_child_name(name, spec.id, spec.options.name)
        spec.check_arguments(partly=where == "template")
    if not partly and not any(isinstance(one, Reference) for one in given.values()):
        try:
            # Made and dropped, as where a child is specified: its rules make sense, or do not.
            cls(*args, **kwargs)
        except (TypeError, ValueError) as error:
            raise BadArgumentsError(
                f"{what or 'a supervisor'} was not started: {error}", method="__init__"
            ) from None


_OWN = frozenset(ChildChanges.__annotations__) - frozenset(SpawnChanges.__annotations__)


@message
@attrs.frozen(kw_only=True)
class ChildStatus:
    """One child as its supervisor sees it.

    `state`: "running", "starting", "restarting", "stopping" or "stopped". `node` and `epoch` are
    None while it has no actor. `age`: seconds since it was started last, as far as the supervisor
    knows. `last_exit`: how its last actor ended, or why its last start failed, whichever was later;
    None if neither has happened.
    """

    id: str
    name: str
    kind: ChildKind = "worker"
    restart: RestartType = "permanent"
    state: ChildState
    node: str | None = None
    epoch: int | None = None
    restarts: int = 0
    age: float | None = None
    last_exit: ExitReason | None = None


@message
@attrs.frozen
class ChildCounts:
    """How many children there are, as OTP counts: all children, those that have an actor, and how
    many of all are supervisors and workers.
    """

    specs: int
    active: int
    supervisors: int
    workers: int

    @classmethod
    def of(cls, children: Sequence[ChildStatus]) -> ChildCounts:
        """Counted."""
        supervisors = sum(child.kind == "supervisor" for child in children)
        active = sum(child.state in ("running", "stopping") for child in children)
        return cls(len(children), active, supervisors, len(children) - supervisors)


@message
@attrs.frozen(kw_only=True)
class DeathReport:
    """How an actor of a child ended. `at` and `started`: seconds since 1970 UTC, by the clock of
    the supervisor's node.

    `node` and `started` are None if it never ran. One that was taken over from an earlier
    supervisor counts as started then.
    """

    id: str
    name: str
    node: str | None
    epoch: int | None
    reason: ExitReason
    at: float
    started: float | None = None


@message
@attrs.frozen(kw_only=True)
class SupervisorStatus:
    """A supervisor as it sees itself. `recent_restarts`: those that count against the `intensity`
    at the moment.
    """

    name: str
    strategy: str
    intensity: int
    period: float
    recent_restarts: int
    automatic_shutdown: str
    max_children: int | None
    children: tuple[ChildStatus, ...]
    deaths: tuple[DeathReport, ...]
    children_left_out: int = 0
    """Further children that are not listed; only in answers that are bounded."""


class SupervisorWork(Protocol):
    """The runtime's side of a supervisor.

    An interface because `actors` never imports `runtime`, which has `SupervisionWork`.
    """

    async def start(self) -> None:
        """Adopt the running children, and start the others in order. Raises `ActorStartError`,
        which names the child that failed, after stopping those before it.
        """
        ...

    async def stop(self, reason: ExitReason) -> None:
        """Stop all children in reverse order, or leave them to the next epoch, if this supervisor
        only moves.
        """
        ...

    async def undo_start(self, reason: ExitReason) -> None:
        """The supervisor's start has failed: stop the children that it has started."""
        ...

    async def abandon(self, reason: ExitReason) -> None:
        """The supervisor has ended, and has perhaps not stopped its children: unless it is
        restarted, stop them, and end the waiting for them.
        """
        ...

    async def start_child(self, spec: ChildSpec) -> Handle:
        """Add a child, and return its handle once it has started."""
        ...

    def next_id(self, template: ChildSpec) -> str:
        """The id of the next child that `spawn` makes from `template`."""
        ...

    async def spawn(
        self, template: ChildSpec, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Handle:
        """Add a child made from `template`, with an id of its own and these arguments."""
        ...

    async def stop_child(self, child: str | Handle) -> None:
        """Stop a child; its spec stays, unless it is temporary."""
        ...

    async def restart_child(self, child: str | Handle) -> Handle:
        """Start a stopped child again, and return its handle."""
        ...

    async def delete_child(self, child: str | Handle) -> None:
        """Remove the spec of a stopped child."""
        ...

    def status(self) -> SupervisorStatus:
        """Return the supervisor's status."""
        ...

    def is_running(self, id: str) -> bool:
        """True if the child has started, and has neither ended nor begun to stop."""
        ...

    def running(self, prefix: str) -> list[tuple[str, Address]]:
        """The ids and addresses of the children that run and whose ids begin so, the oldest
        first.
        """
        ...

    def latest_deaths(self) -> Sequence[DeathReport]:
        """The latest ends of children, the oldest first."""
        ...

    @property
    def room_changes(self) -> int:
        """How often there may have been more room for children, on any node."""
        ...

    async def wait_for_room(self, spec: ChildSpec, since: int, seconds: float) -> bool:
        """Wait until a child that was not placed may be, for at most so many seconds: True if it
        may. `since`: the `room_changes` before the attempt that has failed.
        """
        ...


def _spec_fits(supervisor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for spec in (*args, *kwargs.values()):
        if isinstance(spec, ChildSpec):
            if supervisor is not None:
                check_child_name(supervisor.name, spec.id, spec.options.name)
            spec.check_arguments()
        elif not isinstance(spec, Reference):
            kind = spec if isinstance(spec, type) else type(spec)
            raise BadArgumentsError(
                'start_child was not called: it takes a ChildSpec, as in ChildSpec.of("cart", '
                f"Cart), and not {'the class' if kind is spec else 'an object of type'} "
                f"{qualified_name(kind)}",
                method="start_child",
            )


def _template_fits(supervisor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Only the supervisor itself knows the template: its caller waits for this, and nothing has
    been started.
    """
    if supervisor is not None and supervisor.template is not None:
        if supervisor._work is not None:
            check_child_name(supervisor.name, supervisor._work.next_id(supervisor.template))
        supervisor.template.check_arguments(args, kwargs)


class Supervisor(Actor):
    """Starts children in order, restarts those that fail, and stops them in reverse order.

    `strategy`: what is restarted with a failed child: itself alone ("one-for-one"), all
    ("one-for-all"), or it and those started after it ("rest-for-one"). More than `intensity`
    restarts within `period` seconds, and it stops its children and ends: its own supervisor's rules
    apply then. `automatic_shutdown`: it ends too when a significant child has ended by itself:
    "any-significant" of them, or "all-significant". `backoff`: waits between restarts; without it
    they are immediate, as in OTP. Raises TypeError or ValueError, naming the child where it is
    one's, for duplicate ids, unknown words and numbers that make no sense.
    """

    supervises: ClassVar[bool] = True

    after_temporary: ClassVar[str | None] = None
    """What a subclass does when a temporary child has ended, for the log: "not started again; ...".
    None: nothing.
    """

    logs_failed_starts: ClassVar[bool] = False
    """True for a subclass that logs itself why children did not start."""

    # Also of a subclass whose constructor does not call the one here.
    _work: SupervisorWork | None = None

    def __init__(
        self,
        children: Sequence[ChildSpec] = (),
        *,
        strategy: Strategy = "one-for-one",
        intensity: int = 1,
        period: float = 5.0,
        automatic_shutdown: AutomaticShutdown = "never",
        backoff: RestartBackoff | None = None,
    ) -> None:
        self.specs = tuple(children)
        for spec in self.specs:
            if not isinstance(spec, ChildSpec):
                raise TypeError(f"a supervisor's children are ChildSpecs, not {short_repr(spec)}")
        names = Counter(spec.options.name for spec in self.specs if spec.options.name is not None)
        if twice := [name for name, count in names.items() if count > 1]:
            raise ValueError(
                f"the name {twice[0]!r} is given to two children; names are unique in the cluster"
            )
        given: object = backoff
        if given is not None and not isinstance(given, RestartBackoff):
            raise TypeError(
                "backoff must be a RestartBackoff, as in RestartBackoff(initial_delay=1), or None, "
                f"not {short_repr(given)}"
            )
        self.strategy: Strategy | Literal["dynamic"] = strategy
        self.intensity = intensity
        self.period = period
        self.automatic_shutdown: AutomaticShutdown = automatic_shutdown
        self.backoff = backoff
        self.max_children: int | None = None
        # Made and dropped: rules that make no sense are refused here, at who wrote them, and not
        # when the supervisor starts on another node.
        self.machine(self.specs, lambda: 0.5)

    def machine(
        self, specs: Sequence[ChildSpec], draw: Callable[[], float]
    ) -> RestartMachine | DynamicRestartMachine:
        """The decisions for these children, about to begin; `draw` gives numbers in [0, 1). For the
        runtime. Raises as the class does.
        """
        rules = [spec.rule() for spec in specs]
        if self.strategy == "dynamic":
            return DynamicRestartMachine(
                self.intensity, self.period, self.max_children, self.backoff, draw
            )
        return RestartMachine(
            rules,
            self.strategy,
            self.intensity,
            self.period,
            self.automatic_shutdown,
            self.backoff,
            draw,
        )

    async def on_start(self) -> None:
        """Start the children."""
        if not hasattr(self, "specs"):
            raise RuntimeError(
                f"the constructor of {qualified_name(type(self))} does not call that of the "
                "supervisor: write super().__init__(children) in it"
            )
        self._work = self._hosted().supervise(self)
        await self._working().start()

    async def on_stop(self, reason: ExitReason) -> None:
        """Stop the children."""
        # None: a subclass is stopped before its own `on_start` has called the one above.
        if self._work is not None:
            await self._work.stop(reason)

    async def _on_failed_start(self, reason: ExitReason) -> None:
        """Called by the runtime when `on_start` has raised, as that of a subclass may after the
        children have started, while the name is still this supervisor's.
        """
        if self._work is not None:
            await self._work.undo_start(reason)

    async def _on_crash(self, reason: ExitReason) -> None:
        """Called by the runtime when the supervisor has ended, while the name is still its own:
        there is no `on_stop` after a crash, and that of a subclass may stop no children.
        """
        if self._work is not None:
            await self._work.abandon(reason)

    @fitting(_spec_fits)
    @method(concurrent=True, allow=("operator",))
    async def start_child(self, spec: ChildSpec) -> AnyHandle:
        """Add a child, the last in the order, and start it; returns its handle.

        Raises `BadArgumentsError` where its name would be too long and, before anything is sent,
        where its class is known and its arguments do not fit the constructor. Raises
        `ChildExistsError` if the id is in use, `ActorStartError`, with its traceback, if it does
        not start: then its spec is not kept. `ActorNotNeededError` if it raised `Ignore`: then its
        spec is kept.
        """
        return await self._working().start_child(spec)

    @method(concurrent=True, allow=("operator",))
    async def stop_child(self, child: str | Handle | Actor) -> None:
        """Stop a child, by its id, name or handle, and keep its spec, unless it is temporary.
        Raises `ChildNotFoundError`.
        """
        await self._working().stop_child(cast("str | Handle", child))

    @method(concurrent=True, allow=("operator",))
    async def restart_child(self, child: str | Handle | Actor) -> AnyHandle:
        """Start a child that has no actor. Raises `ChildNotFoundError`, `ChildRunningError`, and
        what `start_child` raises.
        """
        return await self._working().restart_child(cast("str | Handle", child))

    @method(concurrent=True, allow=("operator",))
    async def delete_child(self, child: str | Handle | Actor) -> None:
        """Forget a child that has no actor. Raises `ChildNotFoundError` or `ChildRunningError`."""
        await self._working().delete_child(cast("str | Handle", child))

    @method(concurrent=True, idempotent=True, allow=("operator", "observer"))
    async def children(self) -> list[ChildStatus]:
        """The children in the order of their start; never waits for one."""
        return list(self._working().status().children)

    @method(concurrent=True, idempotent=True, allow=("operator", "observer"))
    async def count(self) -> ChildCounts:
        """How many children there are; never waits for one."""
        return ChildCounts.of(self._working().status().children)

    @method(concurrent=True, idempotent=True, allow=("operator", "observer"))
    async def deaths(self) -> list[DeathReport]:
        """The latest ends of children that were not stopped by this supervisor, the oldest
        first.
        """
        return list(self._working().status().deaths)

    @method(concurrent=True, idempotent=True, allow=("operator", "observer"))
    async def status(self) -> SupervisorStatus:
        """Return the whole status, which `understudy tree` shows."""
        return self._working().status()

    def _on_children_changed(self, ids: Sequence[str]) -> None:
        """Called by the runtime on the event loop when a child has started or ended. `ids`: those
        of the children that are started, stopped or forgotten then. For the runtime's own
        supervisors.
        """

    def _working(self) -> SupervisorWork:
        if self._work is not None:
            return self._work
        if self._context is None:
            raise RuntimeError("this supervisor was not started by a node")
        raise RuntimeError(
            f"{self.name} has not started its children: the on_start of "
            f"{qualified_name(type(self))} has not called that of the supervisor; write await "
            "super().on_start() in it"
        )


class DynamicSupervisor(Supervisor):
    """A supervisor of many independent children that come and go: OTP's simple_one_for_one.

    `template`: what `spawn` starts, with other arguments each time; it has no `name`. A child that
    ends without a restart, or is stopped, is forgotten. Children are stopped side by side.
    `max_children`: more are refused with `TooManyChildrenError`. The rest is as in `Supervisor`.
    """

    def __init__(
        self,
        template: ChildSpec | None = None,
        *,
        max_children: int | None = None,
        intensity: int = 1,
        period: float = 5.0,
        backoff: RestartBackoff | None = None,
    ) -> None:
        if isinstance(template, ChildSpec) and template.options.name is not None:
            raise ValueError(
                f"the template {template.id!r} has the name {template.options.name!r}, and names "
                "are unique in the cluster: leave it out, and each child gets a name of its own"
            )
        self.template = template
        super().__init__((), intensity=intensity, period=period, backoff=backoff)
        self.strategy = "dynamic"
        self.max_children = max_children
        # Once more: the base class has checked the intensity, and not the number of children.
        self.machine((), lambda: 0.5)

    @fitting(_template_fits)
    @method(concurrent=True, allow=("operator",))
    async def spawn(self, /, *args: object, **kwargs: object) -> AnyHandle:
        """Start one more child from the template, with these arguments instead of the template's;
        returns its handle.

        Raises ValueError if this supervisor has no template, `BadArgumentsError` for arguments that
        the template's class does not take, or a name that would be too long,
        `TooManyChildrenError`, or what `start_child` raises.
        """
        if self.template is None:
            raise ValueError(
                f"{self.name} has no template: give one when it is started, or use "
                "start_child(spec)"
            )
        return await self._working().spawn(self.template, args, kwargs)
