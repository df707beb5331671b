"""A supervisor at work: starts children where they fit, watches them, and does what the decision machine says.

Effects are carried out in the machine's order by one task; each running child is watched by a call that its node answers when the child has
ended. Names of children are marked as supervised, so that calls to one that is being restarted wait for it instead of failing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import attrs
import trio

from actors.errors import ActorStartError, CallError, NameTakenError, SpawnError, SupervisorGaveUpError, UnderstudyError
from actors.method import Address
from actors.node import Member
from actors.restarts import RestartMachine
from actors.supervision import Answer, Effect, Exit, ExitReason, Forgotten, Ready, Start, Stop, TryAgain
from actors.supervisor import ChildSpec, ChildStatus, Supervisor
from runtime.environment import Environment

NAME_SECONDS = 10.0
"""How long a child's start waits for its name, which its dead predecessor's lease may still hold."""

logger = logging.getLogger("understudy.supervision")


class Operations(Protocol):
    """What a supervisor needs of its node."""

    async def start_actor(
        self, class_path: str, args: Sequence[object], kwargs: dict[str, object], options: Any, supervisor: str
    ) -> Address:
        """Start an actor on the node that `options` name or that fits best. Raises `SpawnError` or `CallError`."""
        ...

    async def stop_address(self, address: Address, reason: ExitReason) -> None:
        """Stop the actor at `address`, if it is still there."""
        ...

    async def watch_address(self, address: Address) -> ExitReason:
        """Wait until the actor at `address` has ended, by itself or with its node."""
        ...

    async def promise(self, name: str, supervisor: str) -> None:
        """Mark `name` as one that will be started again."""
        ...

    async def withdraw(self, name: str) -> None:
        """Take the mark back."""
        ...


@attrs.define
class _Child:
    spec: ChildSpec
    name: str
    address: Address | None = None
    promised: bool = False
    watch: trio.CancelScope | None = None


class SupervisionWork:
    """See `actors.supervisor.SupervisorWork`."""

    def __init__(self, supervisor: Supervisor, name: str, operations: Operations, environment: Environment) -> None:
        self._supervisor = supervisor
        self._name = name
        self._operations = operations
        self._environment = environment
        self._children = {spec.id: _Child(spec, self._child_name(spec)) for spec in supervisor.specs}
        self._machine = RestartMachine(
            [spec.rule() for spec in supervisor.specs],
            supervisor.strategy,
            supervisor.intensity,
            supervisor.period,
            draw=environment.random,
        )
        self._effects: list[Effect] = []
        self._more = trio.Event()
        self._ready = trio.Event()
        self._over = trio.Event()
        self._exit: ExitReason | None = None
        self._answers: dict[object, Answer] = {}
        self._answered: dict[object, trio.Event] = {}
        self._requests = 0

    async def start(self) -> None:
        """See `SupervisorWork.start`."""
        self._supervisor.nursery.start_soon(self._carry_out)
        self._do(self._machine.start(self._environment.now()))
        await self._ready.wait()
        if self._exit is not None:
            raise ActorStartError(self._exit.text, actor=self._name, remote_traceback=self._exit.traceback)

    async def stop(self) -> None:
        """See `SupervisorWork.stop`."""
        self._do(self._machine.stop(self._environment.now()))
        await self._over.wait()

    async def start_child(self, spec: ChildSpec) -> str:
        """See `Supervisor.start_child`."""
        known = self._children.get(spec.id)
        if known is None:
            self._children[spec.id] = _Child(spec, self._child_name(spec))
        answer = await self._ask(self._machine.add, spec.rule())
        if answer.reply in ("already started", "already present"):
            raise ValueError(f"{self._name} has a child {spec.id!r} already; ids are unique in a supervisor")
        if answer.reply == "start failed":
            reason = answer.reason or ExitReason("start failed")
            self._children.pop(spec.id, None)
            raise ActorStartError(
                f"{self._name}/{spec.id} did not start: {reason}", actor=self._child_name(spec), remote_traceback=reason.traceback
            )
        return self._children[spec.id].name

    async def stop_child(self, id: str) -> None:
        """See `Supervisor.stop_child`."""
        answer = await self._ask(self._machine.terminate, id)
        if answer.reply == "not found":
            raise KeyError(f"{self._name} has no child {id!r}; it has: {', '.join(self._children) or 'none'}")
        await self._ask(self._machine.delete, id)

    def children(self) -> list[ChildStatus]:
        """See `Supervisor.children`."""
        statuses: list[ChildStatus] = []
        for view in self._machine.children():
            child = self._children[view.rule.id]
            node = child.address.node if child.address is not None else None
            last = str(view.last_exit) if view.last_exit is not None else None
            statuses.append(
                ChildStatus(id=view.rule.id, name=child.name, state=view.state, node=node, restarts=view.restarts, last_exit=last)
            )
        return statuses

    def _child_name(self, spec: ChildSpec) -> str:
        return spec.options.name or f"{self._name}/{spec.id}"

    async def _ask(self, question: Any, subject: object) -> Answer:
        self._requests += 1
        request = self._requests
        event = self._answered[request] = trio.Event()
        self._do(question(subject, request))
        await event.wait()
        del self._answered[request]
        return self._answers.pop(request)

    def _do(self, effects: list[Effect]) -> None:
        """Queue effects; they are carried out one after another."""
        for effect in effects:
            if isinstance(effect, Answer):
                self._answers[effect.request] = effect
                self._answered[effect.request].set()
            else:
                self._effects.append(effect)
        self._more.set()

    async def _carry_out(self) -> None:
        async with trio.open_nursery() as starts:
            while not self._over.is_set():
                await self._more.wait()
                self._more = trio.Event()
                while self._effects:
                    await self._carry_out_one(self._effects.pop(0), starts)
                await self._withdraw_vain_promises()
        if self._exit is not None and self._ready.is_set() and self._exit.kind == "shutdown":
            raise SupervisorGaveUpError(str(self._exit))

    async def _withdraw_vain_promises(self) -> None:
        """A child that ended and stays so, a transient one that was stopped for example, is nobody's to wait for."""
        for view in self._machine.children():
            child = self._children.get(view.rule.id)
            if child is not None and child.promised and view.state == "stopped":
                child.promised = False
                await self._operations.withdraw(child.name)

    async def _carry_out_one(self, effect: Effect, starts: trio.Nursery) -> None:
        if isinstance(effect, Start):
            starts.start_soon(self._start_child, self._children[effect.id])
        elif isinstance(effect, Stop):
            starts.start_soon(self._stop_child, self._children[effect.id], effect.shutdown)
        elif isinstance(effect, TryAgain):
            starts.start_soon(self._try_again, effect)
        elif isinstance(effect, Forgotten):
            child = self._children.pop(effect.id, None)
            if child is not None and child.promised:
                await self._operations.withdraw(child.name)
        elif isinstance(effect, Ready):
            self._ready.set()
        elif isinstance(effect, Exit):
            self._exit = effect.reason
            for child in self._children.values():
                if child.promised:
                    await self._operations.withdraw(child.name)
            self._ready.set()
            self._over.set()
            starts.cancel_scope.cancel()

    async def _start_child(self, child: _Child) -> None:
        spec = child.spec
        with trio.CancelScope() as scope:
            child.watch = scope
            try:
                if not child.promised and spec.restart != "temporary":
                    child.promised = True
                    await self._operations.promise(child.name, self._name)
                child.address = address = await self._start_when_name_is_free(child)
            except (SpawnError, CallError, UnderstudyError) as error:
                text = getattr(error, "remote_traceback", "")
                reason = ExitReason("start failed", f"{child.name}: {error}", text)
                self._do(self._machine.start_failed(spec.id, reason, self._environment.now()))
                return
            logger.info("%s started on %s (epoch %d)", child.name, address.node, address.epoch)
            self._do(self._machine.started(spec.id, self._environment.now()))
            reason = await self._operations.watch_address(address)
            if scope.cancel_called:
                # It is being stopped, and ended before the watch did: whoever stops it tells.
                return
            logger.warning("%s on %s ended: %s", child.name, address.node, reason)
            child.address = None
            child.watch = None
            self._do(self._machine.exited(spec.id, reason, self._environment.now()))

    async def _start_when_name_is_free(self, child: _Child) -> Address:
        options = attrs.evolve(child.spec.options, name=child.name)
        until = self._environment.now() + NAME_SECONDS
        while True:
            try:
                return await self._operations.start_actor(child.spec.actor, child.spec.args, dict(child.spec.kwargs), options, self._name)
            except NameTakenError:
                if self._environment.now() >= until:
                    raise
                await trio.sleep(0.05)

    async def _stop_child(self, child: _Child, shutdown: float | str | None) -> None:
        address, child.address = child.address, None
        if child.watch is not None:
            child.watch.cancel()
        if address is not None:
            seconds = shutdown if isinstance(shutdown, float | int) else None if shutdown is None else 0.0
            with trio.move_on_after(float("inf") if seconds is None else seconds + 1.0):
                try:
                    await self._operations.stop_address(address, ExitReason("stopped", f"by {self._name}"))
                except (CallError, UnderstudyError) as error:
                    logger.info("%s could not be asked to stop: %s", child.name, error)
        self._do(self._machine.stopped(child.spec.id))

    async def _try_again(self, effect: TryAgain) -> None:
        await trio.sleep_until(effect.at)
        self._do(self._machine.try_again(effect.id, self._environment.now()))


def choose_node(members: Sequence[Member], labels: dict[str, str], draw: float, load: dict[str, int]) -> Member | None:
    """The member to place an actor on: of those that carry all `labels` and are up, one with the fewest actors; `draw` in [0, 1) breaks
    ties.
    """
    fitting = [member for member in members if member.state == "up" and labels.items() <= member.labels.items()]
    if not fitting:
        return None
    least = min(load.get(member.name, 0) for member in fitting)
    best = [member for member in fitting if load.get(member.name, 0) == least]
    return best[int(draw * len(best))]
