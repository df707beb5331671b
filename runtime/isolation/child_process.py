"""The process of an isolated actor as its node sees it, from its launch request to its end."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import Any

import trio

from actors.actor import Ended
from actors.errors import CallError, CallTimeoutError
from actors.handle import Handle
from actors.identifiers import NodeId
from actors.method import Address, MethodDefinition
from actors.own_logger import own_logger
from actors.supervision import ExitReason
from runtime.calls.endpoint import RpcEndpoint
from runtime.hosting.actor_state import ActorState
from runtime.isolation.child_keyring import CHILD_KEYRING_SERVICE, ChildKeyringService
from runtime.isolation.messages import (
    CHILD_DEBUG_SERVICE,
    CONTROL_SERVICE,
    ISOLATED_ACTOR,
    STACK_SERVICE,
    LaunchRequest,
    StartFailure,
)
from runtime.isolation.stack_thread import ask_for_profile, ask_for_stacks
from runtime.links.link import Link
from runtime.links.peers import LEFT
from runtime.processes import ChildProcess, ExitStatus
from runtime.processes.linux_processes import state_of
from runtime.timings import Timings
from runtime.user_errors import text_of

logger = own_logger("understudy.isolation")

KILL_SECONDS = 3.0
"""How many seconds to wait for the end of a process after SIGKILL. A process that hangs in the
kernel is left behind.
"""


STACKS_SECONDS = 1.0
"""Seconds that the event loop of the process, and then a thread of it, has to answer with stacks.
"""

SECRETS_SECONDS = 2.0
"""How long its event loop may take to learn new secrets, before its node goes on without it."""

GRACE_SECONDS = 1.0
"""How many seconds a process whose actor has ended may take to run its exit handlers and end."""

LOST = ExitReason(
    "signal", "its process has lost its connection to the node, which has killed it (SIGKILL)"
)
"""Why an actor has ended whose process lives and cannot be reached any more."""


class ChildProcessHandle:
    """One process of the node and the actor in it, as the actor proxy and the isolation service use
    it. `identity`: that of the process as a peer.
    """

    def __init__(self, endpoint: RpcEndpoint, identity: NodeId, timings: Timings) -> None:
        self._timings = timings
        self.identity = identity
        self.actor: Any = None
        """A handle of the isolated actor in the process."""
        self.reason: ExitReason | None = None
        """Why the actor in the process has ended; None while it runs."""
        self._endpoint = endpoint
        self._child: ChildProcess | None = None
        self._request: LaunchRequest | None = None
        self._address: Address | None = None
        self._assigned = trio.Event()
        self._answered = trio.Event()
        self._failure: StartFailure | None = None
        self._over = trio.Event()
        self._link: Link | None = None
        self._linked = trio.Event()

    @property
    def pid(self) -> int:
        """Its process id; 0 while there is none."""
        return self._child.pid if self._child is not None else 0

    def take(self, child: ChildProcess) -> None:
        """Set the operating-system process, now that it exists."""
        self._child = child

    async def watch(self) -> None:
        """Wait for the end of the process, for whatever reason. A process that the node can reach
        no more is killed.
        """
        assert self._child is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_with_link, self._child)
            status = await self._child.wait()
            nursery.cancel_scope.cancel()
        self.on_ended(exit_reason(status))

    async def _end_with_link(self, child: ChildProcess) -> None:
        """Wait until the session with the process is over, and end the process then: nothing can
        call its actor any more, not even to stop it.

        A process whose connection breaks dials again, and otherwise ends by itself, unless its loop
        is blocked or code of users keeps it from that. A connection is not given up because a
        process is silent, see `Link.watched`: one that is only busy or stopped keeps it.
        """
        await self._linked.wait()
        link = self._link
        assert link is not None
        while link.ended is None:
            await link.disconnected()
            await link.connected_again()
        if link.peer_ended or link.ended == LEFT:
            # Either side has said goodbye: the process ends in order.
            with trio.move_on_after(GRACE_SECONDS):
                await child.wait()
        self.on_ended(LOST)
        child.send_signal(signal.SIGKILL)

    def assign(self, request: LaunchRequest, methods: dict[str, MethodDefinition]) -> None:
        """Assign the launch request; the process takes it as soon as it is ready."""
        self._request = request
        self._address = request.address
        self.actor = Handle(self._endpoint.caller, Address(ISOLATED_ACTOR, *self.identity), methods)
        self._assigned.set()

    async def wait_assigned(self) -> str:
        """Wait until a launch request is assigned to the process, which is ready. Returns the
        import path of the actor's class.
        """
        link = self._endpoint.peers.links.get(self.identity)
        if link is not None:
            # A silent process may be alive: the actor may block it for long. The operating system
            # reports its end.
            link.watched = True
            self._link = link
            self._linked.set()
        await self._assigned.wait()
        assert self._request is not None
        return self._request.class_path

    def take_request(self) -> LaunchRequest:
        """Return the launch request. The process takes it as its last step before it runs the
        actor, so a process that was killed before has certainly run nothing.
        """
        assert self._request is not None
        # The request may be large, and is not needed here after this.
        request, self._request = self._request, None
        return request

    def on_started(self, failure: StartFailure | None) -> None:
        """Note that the actor in the process has started, or why it has not."""
        self._failure = failure
        self._answered.set()

    def on_ended(self, reason: ExitReason) -> None:
        """Note that the actor in the process has ended by itself, or with its process."""
        if self.reason is None:
            self.reason = reason
        self._answered.set()
        self._over.set()

    @property
    def address(self) -> Address:
        """The address of its actor on the node. Only once a launch request is assigned."""
        assert self._address is not None
        return self._address

    @property
    def is_launched(self) -> bool:
        """True once the process has taken its launch request."""
        return self._assigned.is_set() and self._request is None

    async def started(self) -> StartFailure | None:
        """Wait until its actor has started, or has failed to."""
        await self._answered.wait()
        if self.reason is not None and self._failure is None:
            return StartFailure(
                f"its process ended before it had started: {self.reason}", self.reason.traceback
            )
        return self._failure

    async def wait_ended(self) -> ExitReason:
        """Wait until the actor in the process has ended, by itself or with the process. Returns the
        reason.
        """
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

    async def stacks(self) -> dict[str, Any]:
        """Ask the process for the stacks of its tasks and threads; see `read_stacks`. If its event
        loop is blocked, return the stacks of its threads only, with the reason in `silent`.
        """
        stopped = self.why_stopped()
        if stopped:
            return {"silent": stopped, "tasks": [], "threads": []}
        try:
            answer: dict[str, Any] = await self._stacks().stacks.options(timeout=STACKS_SECONDS)()
        except CallError as error:
            silent = self.why_stopped() or str(error).partition("\n")[0]
            return {"silent": silent, "tasks": [], "threads": await self._threads()}
        return answer

    def why_stopped(self) -> str:
        """Say that the process was stopped by a signal; "" if it runs. A time-out could not
        distinguish it from a busy process.
        """
        if not self.pid or state_of(self.pid) != "T":
            return ""
        return (
            "its process was stopped by a signal such as SIGSTOP; "
            f"`kill -CONT {self.pid}` continues it"
        )

    async def state(self) -> ActorState:
        """Ask the process for the state that the actor shows, or return why it did not answer."""
        control = self._control().state.options(timeout=self._timings.isolated_inspection)
        try:
            answer = await control()
        except CallError as error:
            problem = self.why_stopped() or f"its process does not answer: {text_of(error)}"
            return ActorState(problem=problem)
        return ActorState(**answer)

    async def breakpoints(self) -> dict[str, Any]:
        """The breakpoints at which its actor waits; see `ChildDebugService`. Raises CallError."""
        debug = self._debug().options(timeout=STACKS_SECONDS)
        answer: dict[str, Any] = await debug.breakpoints(self.address.name)
        return answer

    async def debug(self, number: int) -> dict[str, Any]:
        """Open a debugger of a failure; see `ChildDebugService`. Raises CallError."""
        debug = self._debug().options(timeout=STACKS_SECONDS)
        answer: dict[str, Any] = await debug.debug(self.address.name, number)
        return answer

    async def debug_command(self, number: int, line: str | None, seconds: float) -> dict[str, str]:
        """Send a line to a debugger; see `ChildDebugService`. Raises CallError."""
        debug = self._debug().options(timeout=seconds + STACKS_SECONDS)
        answer: dict[str, str] = await debug.command(number, line, seconds)
        return answer

    async def replace_secrets(self, secrets: list[bytes]) -> None:
        """Give the process the secrets by which it proves itself to other nodes from now on. If its
        event loop is blocked, it learns them when it goes on.
        """
        service = self._endpoint.system_handle(
            ChildKeyringService, CHILD_KEYRING_SERVICE, *self.identity
        )
        try:
            await service.replace.options(timeout=SECRETS_SECONDS)(secrets)
        except CallTimeoutError:
            with suppress(CallError):
                await service.replace.send(secrets)
        except CallError as error:
            logger.debug("%s has not learned the new secrets: %s", self.identity.name, error)

    async def profile(self, seconds: float, rate: int) -> bytes:
        """Sample the threads of the process for `seconds`, `rate` times a second. Return a
        `packed_profile`, or b"" if the process does not answer.
        """
        if self.why_stopped():
            # None of its threads runs, and none can answer.
            return b""
        with trio.move_on_after(seconds + STACKS_SECONDS):
            try:
                return await ask_for_profile(self.identity.name, seconds, rate)
            except OSError as error:
                logger.debug("%s cannot be profiled: %s", self.identity.name, error)
        return b""

    async def _threads(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        with trio.move_on_after(STACKS_SECONDS):
            try:
                found = await ask_for_stacks(self.identity.name)
            except (OSError, ValueError) as error:
                logger.debug("%s did not report its threads: %s", self.identity.name, error)
        return found

    async def close(self, *, graceful: bool) -> None:
        """End the process and wait until it has ended, bounded in time. `graceful`: first wait
        `GRACE_SECONDS` for it to end by itself.
        """
        child = self._child
        # Shielded: no process outlives its actor. Bounded by the two times below.
        with trio.CancelScope(shield=True):
            if child is not None:
                if graceful:
                    with trio.move_on_after(GRACE_SECONDS):
                        await child.wait()
                child.send_signal(signal.SIGKILL)
                with trio.move_on_after(KILL_SECONDS):
                    await child.wait()
        self._endpoint.on_peer_ended(self.identity, "its process has ended")

    def _debug(self) -> Any:
        return Handle(self._endpoint.caller, Address(CHILD_DEBUG_SERVICE, *self.identity), None)

    def _stacks(self) -> Any:
        return Handle(self._endpoint.caller, Address(STACK_SERVICE, *self.identity), None)

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
