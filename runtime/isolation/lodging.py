"""One process and the actor in it, as the node that had it forked knows it."""

from __future__ import annotations

import signal
from typing import Any

import attrs
import trio

from actors.handle import Handle
from actors.method import Address, MethodDefinition
from actors.supervision import ExitReason
from actors.watching import Ended
from runtime.calls.station import Station
from runtime.isolation.neighbourhood import Neighbourhood
from runtime.isolation.orders import CONTROL_SERVICE, RESIDENT, Order, StartFailure
from runtime.processes import ChildProcess, ExitStatus

KILL_SECONDS = 3.0
"""How long a process may take to be gone once it has been killed: what the kernel cannot end is left to it."""

KIND_SECONDS = 1.0
"""How long a process whose actor has ended may take to end by itself, with its exit handlers."""


class Lodging:
    """See the module. Implements `stand_in.Quarters` and `neighbourhood.Lodger`. `identity`: that of the process as a peer."""

    def __init__(self, station: Station, identity: tuple[str, int], neighbourhood: Neighbourhood) -> None:
        self.identity = identity
        self.resident: Any = None
        """See `Quarters.resident`."""
        self.reason: ExitReason | None = None
        """See `Quarters.reason`."""
        self._station = station
        self._neighbourhood = neighbourhood
        self._child: ChildProcess | None = None
        self._order: Order | None = None
        self._assigned = trio.Event()
        self._answered = trio.Event()
        self._failure: StartFailure | None = None
        self._over = trio.Event()

    @property
    def pid(self) -> int:
        """See `Quarters.pid`."""
        return self._child.pid if self._child is not None else 0

    def take(self, child: ChildProcess) -> None:
        """The process exists."""
        self._child = child

    async def watch(self) -> None:
        """Wait for the end of the process, however that comes about."""
        assert self._child is not None
        self.ended(exit_reason(await self._child.wait()))

    def assign(self, order: Order, methods: dict[str, MethodDefinition]) -> None:
        """The process is to run this, as soon as it is ready."""
        self._order = order
        self.resident = Handle(self._station.caller, Address(RESIDENT, *self.identity), methods)
        self._assigned.set()

    async def wanted(self) -> str:
        """See `Lodger.wanted`."""
        link = self._station.peers.links.get(self.identity)
        if link is not None:
            # It may be busy with one thing for long; that is what it is for. The system tells when it ends.
            link.watched = True
        await self._assigned.wait()
        assert self._order is not None
        return self._order.class_path

    def order(self) -> Order:
        """See `Lodger.order`."""
        assert self._order is not None
        # It may hold much, and is of no more use here.
        order, self._order = self._order, None
        return attrs.evolve(order, members=self._neighbourhood.members())

    def begun(self, failure: StartFailure | None) -> None:
        """See `Lodger.begun`."""
        self._failure = failure
        self._answered.set()

    def ended(self, reason: ExitReason) -> None:
        """See `Lodger.ended`."""
        if self.reason is None:
            self.reason = reason
        self._answered.set()
        self._over.set()

    @property
    def came(self) -> bool:
        """See `Quarters.came`."""
        return self._assigned.is_set() and self._order is None

    async def started(self) -> StartFailure | None:
        """See `Quarters.started`."""
        await self._answered.wait()
        if self.reason is not None and self._failure is None:
            return StartFailure(f"its process ended before it had started: {self.reason}", self.reason.traceback)
        return self._failure

    async def over(self) -> ExitReason:
        """See `Quarters.over`."""
        await self._over.wait()
        assert self.reason is not None
        return self.reason

    async def ask_to_stop(self, reason: ExitReason) -> None:
        """See `Quarters.ask_to_stop`."""
        await self._control().stop(reason)

    async def tell(self, notice: Ended) -> bool:
        """See `Quarters.tell`."""
        return bool(await self._control().tell(notice))

    async def close(self, *, kindly: bool) -> None:
        """See `Quarters.close`."""
        child = self._child
        with trio.CancelScope(shield=True):
            if child is not None:
                if kindly:
                    with trio.move_on_after(KIND_SECONDS):
                        await child.wait()
                child.send_signal(signal.SIGKILL)
                with trio.move_on_after(KILL_SECONDS):
                    await child.wait()
        self._station.ended(self.identity, "its process has ended")

    def _control(self) -> Any:
        return Handle(self._station.caller, Address(CONTROL_SERVICE, *self.identity), None)


def exit_reason(status: ExitStatus) -> ExitReason:
    """How the end of a process is told of as the end of its actor. A status of 0 is a normal end, as for OTP's ports: it starts no
    transient child again.
    """
    if status.signal is not None:
        return ExitReason("signal", status.describe())
    if status.code == 0:
        return ExitReason("normal", "it exited with code 0")
    return ExitReason("exit code", f"exited with code {status.code}")
