"""Supervisors as users declare them: actors that start, watch and restart their children.

The semantics are OTP's. What to do is decided by the pure machines in `actors.restarts` and `actors.dynamic_restarts`; the runtime carries
it out. Children may be placed on other nodes; when a node dies, its children are placed again. A supervisor that is restarted elsewhere
adopts the children that still live.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Protocol

from actors.actor import Actor
from actors.children import ChildCounts, ChildSpec, ChildStatus, DeathReport, SupervisorStatus
from actors.dynamic_restarts import DynamicRestartMachine
from actors.handle import Handle
from actors.method import fitting, method
from actors.restarts import RestartMachine
from actors.supervision import AutomaticShutdown, ExitReason, RestartBackoff, Strategy


class SupervisorWork(Protocol):
    """The runtime's side of a supervisor."""

    async def start(self) -> None:
        """Adopt the children that live, and start the others in order; raises `ActorStartError` naming the child that failed, with those
        before it stopped again.
        """
        ...

    async def stop(self, reason: ExitReason) -> None:
        """Stop all children in reverse order; or leave them to the next supervisor, if this one only moves."""
        ...

    async def start_child(self, spec: ChildSpec) -> Handle:
        """See `Supervisor.start_child`."""
        ...

    async def spawn(self, template: ChildSpec, args: tuple[object, ...], kwargs: dict[str, object]) -> Handle:
        """See `DynamicSupervisor.spawn`."""
        ...

    async def stop_child(self, child: str | Handle) -> None:
        """See `Supervisor.stop_child`."""
        ...

    async def restart_child(self, child: str | Handle) -> Handle:
        """See `Supervisor.restart_child`."""
        ...

    async def delete_child(self, child: str | Handle) -> None:
        """See `Supervisor.delete_child`."""
        ...

    def status(self) -> SupervisorStatus:
        """See `Supervisor.status`."""
        ...


def _spec_fits(supervisor: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for spec in (*args, *kwargs.values()):
        if isinstance(spec, ChildSpec):
            spec.check_arguments()


def _template_fits(supervisor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Only the supervisor itself knows the template: its caller waits for this, and nothing has been started."""
    if supervisor is not None and supervisor.template is not None:
        supervisor.template.check_arguments(args, kwargs)


class Supervisor(Actor):
    """Starts its children in order, restarts those that fail, and stops them in reverse order.

    `strategy`: what is restarted with a failed child: itself alone ("one-for-one"), all ("one-for-all"), or it and those started after it
    ("rest-for-one"). More than `intensity` restarts within `period` seconds, and it stops its children and ends: its own supervisor's rules
    apply then. `automatic_shutdown`: it ends too when a significant child has ended by itself: "any-significant" of them, or
    "all-significant". `backoff`: waits between restarts; without it they are immediate, as in OTP.
    Raises TypeError or ValueError, naming the child where it is one's, for duplicate ids, unknown words and numbers that make no sense.
    """

    supervises: ClassVar[bool] = True

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
                raise TypeError(f"a supervisor's children are ChildSpecs, not {spec!r}")
        names = Counter(spec.options.name for spec in self.specs if spec.options.name is not None)
        if twice := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"the name {twice[0]!r} is given to two children; names are unique in the cluster")
        self.strategy: Strategy | Literal["dynamic"] = strategy
        self.intensity = intensity
        self.period = period
        self.automatic_shutdown: AutomaticShutdown = automatic_shutdown
        self.backoff = backoff
        self.max_children: int | None = None
        self._work: SupervisorWork | None = None
        self.machine(self.specs, lambda: 0.5)

    def machine(self, specs: Sequence[ChildSpec], draw: Callable[[], float]) -> RestartMachine | DynamicRestartMachine:
        """The decisions for these children, about to begin; `draw` gives numbers in [0, 1). For the runtime. Raises as the class does."""
        rules = [spec.rule() for spec in specs]
        if self.strategy == "dynamic":
            return DynamicRestartMachine(self.intensity, self.period, self.max_children, self.backoff, draw)
        return RestartMachine(rules, self.strategy, self.intensity, self.period, self.automatic_shutdown, self.backoff, draw)

    async def on_start(self) -> None:
        """Start the children; see `SupervisorWork.start`."""
        self._work = self._hosted().supervise(self)
        await self._working().start()

    async def on_stop(self, reason: ExitReason) -> None:
        """Stop the children."""
        await self._working().stop(reason)

    @fitting(_spec_fits)
    @method(concurrent=True)
    async def start_child(self, spec: ChildSpec) -> Handle:
        """Add a child, the last in the order, and start it; returns its handle.

        Raises `BadArgumentsError` where its class is known and its arguments do not fit the constructor, before anything is sent,
        `ChildExistsError` if the id is in use, `ActorStartError`, with its traceback, if it does not start: then its spec is not
        kept. `ActorNotNeededError` if it does not want to run: then its spec is kept.
        """
        return await self._working().start_child(spec)

    @method(concurrent=True)
    async def stop_child(self, child: str | Handle) -> None:
        """Stop a child, by its id, name or handle, and keep its spec, unless it is temporary. Raises `ChildNotFoundError`."""
        await self._working().stop_child(child)

    @method(concurrent=True)
    async def restart_child(self, child: str | Handle) -> Handle:
        """Start a child that has no actor. Raises `ChildNotFoundError`, `ChildRunningError`, and what `start_child` raises."""
        return await self._working().restart_child(child)

    @method(concurrent=True)
    async def delete_child(self, child: str | Handle) -> None:
        """Forget a child that has no actor. Raises `ChildNotFoundError` or `ChildRunningError`."""
        await self._working().delete_child(child)

    @method(concurrent=True, idempotent=True)
    async def children(self) -> list[ChildStatus]:
        """The children in the order of their start; never waits for one."""
        return list(self._working().status().children)

    @method(concurrent=True, idempotent=True)
    async def count(self) -> ChildCounts:
        """How many children there are; never waits for one."""
        return ChildCounts.of(self._working().status().children)

    @method(concurrent=True, idempotent=True)
    async def deaths(self) -> list[DeathReport]:
        """The latest ends of children that were not stopped by this supervisor, the oldest first."""
        return list(self._working().status().deaths)

    @method(concurrent=True, idempotent=True)
    async def status(self) -> SupervisorStatus:
        """All of it: `understudy tree` shows that."""
        return self._working().status()

    def _working(self) -> SupervisorWork:
        if self._work is None:
            raise RuntimeError("this supervisor was not started by a node")
        return self._work


class DynamicSupervisor(Supervisor):
    """Children that come and go, each for itself, by the thousand: OTP's simple_one_for_one.

    `template`: what `spawn` starts, with other arguments each time. A child that ends for good, or is stopped, is forgotten. Children are
    stopped side by side. `max_children`: more are refused with `TooManyChildrenError`. The rest is as in `Supervisor`.
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
        self.template = template
        super().__init__((), intensity=intensity, period=period, backoff=backoff)
        self.strategy = "dynamic"
        self.max_children = max_children
        self.machine((), lambda: 0.5)

    @fitting(_template_fits)
    @method(concurrent=True)
    async def spawn(self, /, *args: object, **kwargs: object) -> Handle:
        """Start one more child from the template, with these arguments instead of the template's; returns its handle.

        Raises ValueError if this supervisor has no template, `BadArgumentsError` for arguments that the template's class does not take,
        `TooManyChildrenError`, or what `start_child` raises.
        """
        if self.template is None:
            raise ValueError(f"{self.name} has no template: give one when it is started, or use start_child(spec)")
        return await self._working().spawn(self.template, args, kwargs)
