"""The starts of actors on one node: those under way, for tasks that wait for one of them, and the
errors of the latest that failed.

Others find a name in the store as soon as it is claimed, before its actor has started. They ask the
node here whether that start succeeds, and get the error of one that has failed meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial

import trio

from actors.actor import Actor, Ignore, NodeInterface
from actors.errors import ActorNotNeededError, ActorNotPlacedError, ActorStartError, CallCycleError
from actors.identifiers import ActorId
from actors.method import Address
from actors.supervision import ExitReason
from runtime.hosting.actor_turns import ActorTurns, start_mark
from runtime.hosting.cell import ActorCell, why_not_started, with_note
from runtime.hosting.chains import Chain
from runtime.user_errors import text_of

START_FAILURES_KEPT = 1024
"""How many errors of the latest failed starts are kept, for callers that wait for the same start.
"""

STARTING: ContextVar[ActorCell] = ContextVar("STARTING")
"""The actor whose constructor or `on_start` the running task is in."""


class EndedInStartError(RuntimeError):
    """An actor has ended while it was starting. `epoch` and `reason` are known where it started."""

    epoch = 0
    reason = ExitReason("start failed")

    @classmethod
    def of(cls, address: Address, reason: ExitReason) -> EndedInStartError:
        """Make the error of the actor at `address`."""
        error = cls(f"{address.name} ended while it was starting: {reason}")
        error.epoch, error.reason = address.epoch, reason
        return error


def starts_at_once(cls: type[Actor]) -> bool:
    """Return True for a class without a constructor or an `on_start` of its own: the start of an
    instance waits for nothing, and runs no user code that could fail.
    """
    return (
        cls.__init__ is object.__init__
        and cls.on_start is Actor.on_start
        and cls.__new__ is object.__new__
        and cls.__getattribute__ is object.__getattribute__
    )


class Starts:
    """The starts of one host. `cells`: its actors, those that are starting included."""

    def __init__(
        self, node: NodeInterface, cells: Mapping[str, ActorCell], turns: ActorTurns
    ) -> None:
        self._node = node
        self._cells = cells
        self._turns = turns
        self._under_way: dict[str, list[trio.Event]] = {}
        """By name, from before the name is claimed until the actor has started or failed."""
        self._failures: OrderedDict[ActorId, Callable[[], ActorStartError]] = OrderedDict()

    def announce(self, name: str) -> trio.Event:
        """Note that a start of this name is under way, before the name is claimed: once others can
        find the name, they may ask whether its actor has started.
        """
        over = trio.Event()
        self._under_way.setdefault(name, []).append(over)
        return over

    def on_over(self, name: str, over: trio.Event) -> None:
        """Note that a start that was announced has succeeded or failed."""
        over.set()
        self._under_way[name].remove(over)
        if not self._under_way[name]:
            del self._under_way[name]

    async def wait(self, name: str, epoch: int) -> bool:
        """Wait while this epoch of an actor is being started here. Returns True if it has started,
        False if it is not here, or is being stopped. One that has started is not taken back any
        more.

        Raises the ActorStartError of its start, for example an ActorNotNeededError. Raises
        CallCycleError if the start waits for this call.
        """
        chain = self._turns.chain(trio.lowlevel.current_task())
        while True:
            failure = self._failures.get(ActorId(name, epoch))
            if failure is not None:
                raise with_note(failure())
            cell = self._cells.get(name)
            if cell is not None and cell.started and cell.address.epoch == epoch:
                await trio.lowlevel.checkpoint()
                # Its spawner may have been cancelled a moment ago, and ask for the name again: what
                # is being taken back answers no further call. No checkpoint lies between the mark
                # and this look, so that `take_back` comes before both or after both.
                cell.found = True
                return cell.ended is None
            if (
                cell is not None
                and chain is not None
                and not cell.started
                and start_mark(cell.address) in chain
            ):
                raise self.cycle(chain, cell)
            under_way = self._under_way.get(name)
            if not under_way:
                await trio.lowlevel.checkpoint()
                return False
            # If there are several starts, the first has the name and the others' claims will fail.
            await under_way[0].wait()

    def is_within(self) -> bool:
        """True in the constructor or `on_start` of an actor. Code there must not wait for another
        actor's start, which may wait for this one.
        """
        within = self._turns.within_start(trio.lowlevel.current_task())
        if within is not None:
            # The tasks decide first: a worker task that was started from within a start keeps
            # `STARTING` in its context for ever, while it runs methods of other actors.
            return within
        cell = STARTING.get(None)
        return cell is not None and not cell.started and cell.ended is None

    def cycle(self, chain: Chain, cell: ActorCell, method: str = "") -> CallCycleError:
        """Make the error for a start of an actor that waits for a call of this method of the actor;
        without a method, for a start that waits for its own end.
        """
        name = cell.address.name
        if method:
            what = (
                f"{chain.text(name, method)}. {name} takes no call before its on_start has "
                "returned, and that waits for this call"
            )
        else:
            what = (
                f"{chain.text(name, 'on_start')}. The start of {name} waits for a call that "
                "waits for the start"
            )
        return CallCycleError(
            f"call cycle: {what}. Make the call in a task that on_start starts, with "
            f"self.nursery.start_soon(...): it continues once {name} has started; or send one of "
            "the calls one way",
            actor=name,
            method=method or None,
            node=self._node.name,
            epoch=cell.address.epoch,
        )

    def failure(
        self, name: str, error: BaseException, module: str
    ) -> Callable[[], ActorStartError]:
        """Return a function that makes the error for a failed start, anew for each waiter.
        `module`: that of the actor's class.
        """
        node = self._node.name
        if issubclass(type(error), Ignore):
            return partial(
                ActorNotNeededError,
                f"{name} is not needed on {node}: {text_of(error)}",
                actor=name,
                node=node,
            )
        what, trace = why_not_started(error, module)
        cls = (
            ActorNotPlacedError if issubclass(type(error), ActorNotPlacedError) else ActorStartError
        )
        return partial(
            cls,
            f"{name} did not start on {node}: {what}",
            actor=name,
            node=node,
            remote_traceback=trace,
        )

    def on_failed(self, address: Address, failure: Callable[[], ActorStartError]) -> None:
        """Keep the error of a failed start for others that wait for it. Called before the name is
        released, because a node that finds the name free begins a start of its own.
        """
        if address.registered:
            self._failures[address.actor_id] = failure
            while len(self._failures) > START_FAILURES_KEPT:
                self._failures.popitem(last=False)

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps: for tests and simulations."""
        assert len(self._failures) <= START_FAILURES_KEPT
        assert all(self._under_way.values()), "a start that is over is not waited for"
