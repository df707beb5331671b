"""The process of an isolated actor as its node sees it, from its launch request to its end."""

from __future__ import annotations

import signal
from typing import Any

import trio

from actors.actor import Ended
from actors.handle import Handle
from actors.method import Address, MethodDefinition
from actors.supervision import ExitReason
from runtime.calls.endpoint import RpcEndpoint
from runtime.identifiers import NodeId
from runtime.isolation.messages import CONTROL_SERVICE, RESIDENT, LaunchRequest, StartFailure
from runtime.processes import ChildProcess, ExitStatus

KILL_SECONDS = 3.0
"""How long a process may take to be gone once it has been killed: what the kernel cannot end is
left to it.
"""


KIND_SECONDS = 1.0
"""How long a process whose actor has ended may take to end by itself, with its exit handlers."""


class ChildProcessHandle:
    """One process of the node and the actor in it, as the actor proxy and the isolation service use
    it. `identity`: that of the process as a peer.
    """

    def __init__(self, endpoint: RpcEndpoint, identity: NodeId) -> None:
        self.identity = identity
        self.resident: Any = None
        """A handle of the actor in it."""
        self.reason: ExitReason | None = None
        """How the actor in it has ended; None while it has not."""
        self._endpoint = endpoint
        self._child: ChildProcess | None = None
        self._order: LaunchRequest | None = None
        self._assigned = trio.Event()
        self._answered = trio.Event()
        self._failure: StartFailure | None = None
        self._over = trio.Event()

    @property
    def pid(self) -> int:
        """Its process id; 0 while there is none."""
        return self._child.pid if self._child is not None else 0

    def take(self, child: ChildProcess) -> None:
        """Set the operating-system process, now that it exists."""
        self._child = child

    async def watch(self) -> None:
        """Wait for the end of the process, however that comes about."""
        assert self._child is not None
        self.ended(exit_reason(await self._child.wait()))

    def assign(self, order: LaunchRequest, methods: dict[str, MethodDefinition]) -> None:
        """Give the process its launch request; it runs that as soon as it is ready."""
        self._order = order
        self.resident = Handle(self._endpoint.caller, Address(RESIDENT, *self.identity), methods)
        self._assigned.set()

    async def wanted(self) -> str:
        """Wait until there is an actor for the process, which is ready. Returns the import path of
        the actor's class.
        """
        link = self._endpoint.peers.links.get(self.identity)
        if link is not None:
            # A silent process is no dead one: the actor may block it for long. The operating system
            # reports its end.
            link.watched = True
        await self._assigned.wait()
        assert self._order is not None
        return self._order.class_path

    def order(self) -> LaunchRequest:
        """Return what the process is to run. It asks for this last, so a process that was killed
        while it was spare has certainly run nothing.
        """
        assert self._order is not None
        # The request may be large, and is not needed here after this.
        order, self._order = self._order, None
        return order

    def begun(self, failure: StartFailure | None) -> None:
        """Note that the actor in the process has started, or why it has not."""
        self._failure = failure
        self._answered.set()

    def ended(self, reason: ExitReason) -> None:
        """Note that the actor in the process has ended by itself, or with its process."""
        if self.reason is None:
            self.reason = reason
        self._answered.set()
        self._over.set()

    @property
    def came(self) -> bool:
        """True once the process has asked what to run."""
        return self._assigned.is_set() and self._order is None

    async def started(self) -> StartFailure | None:
        """Wait until its actor has started, or has failed to."""
        await self._answered.wait()
        if self.reason is not None and self._failure is None:
            return StartFailure(
                f"its process ended before it had started: {self.reason}", self.reason.traceback
            )
        return self._failure

    async def over(self) -> ExitReason:
        """Wait for the end of the actor in it, by itself or with its process."""
        await self._over.wait()
        assert self.reason is not None
        return self.reason

    async def ask_to_stop(self, reason: ExitReason) -> None:
        """Stop the actor in the process in order. Raises CallError if its process ends first."""
        await self._control().stop(reason)

    async def tell(self, notice: Ended) -> bool:
        """Deliver a notice to the actor in its turn. Returns False if the actor has ended. Raises
        CallError if the process ends meanwhile.
        """
        return bool(await self._control().tell(notice))

    async def close(self, *, kindly: bool) -> None:
        """End the process and wait for that, bounded in time. `kindly`: it is about to end by
        itself.
        """
        child = self._child
        with trio.CancelScope(shield=True):
            if child is not None:
                if kindly:
                    with trio.move_on_after(KIND_SECONDS):
                        await child.wait()
                child.send_signal(signal.SIGKILL)
                with trio.move_on_after(KILL_SECONDS):
                    await child.wait()
        self._endpoint.on_peer_ended(self.identity, "its process has ended")

    def _control(self) -> Any:
        return Handle(self._endpoint.caller, Address(CONTROL_SERVICE, *self.identity), None)


def exit_reason(status: ExitStatus) -> ExitReason:
    """Return the actor's exit reason for the exit status of its process. A status of 0 is a normal
    end, as for OTP's ports: a transient child is not restarted.
    """
    if status.signal is not None:
        return ExitReason("signal", status.describe())
    if status.code == 0:
        return ExitReason("normal", "it exited with code 0")
    return ExitReason("exit code", f"exited with code {status.code}")
