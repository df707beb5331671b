"""An actor cell: one hosted actor with its mailbox and its running invocations.

An idle actor is just this table entry, no task. One invocation runs at a time, in the order of
arrival; invocations of concurrent methods run beside it. No I/O here: the workers take invocations
from the mailbox and run them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Protocol

import trio

from actors.actor import Actor
from actors.call_context import CallContext
from actors.errors import (
    ActorDiedError,
    ActorNotFoundError,
    ActorStartError,
    CallError,
    MailboxFullError,
    UnderstudyError,
)
from actors.method import Address, MethodDefinition
from actors.options import DEFAULT_MAILBOX_BYTES
from actors.peers import VerifiedPeer
from actors.reference import Needs
from actors.supervision import ExitReason
from runtime.hosting.chains import Chain, ChainLink
from runtime.hosting.completion_records import RequestOrigin
from runtime.hosting.held_bytes import ByteBudget, HeldBytes
from runtime.hosting.service_times import SHARE, ServiceTimeEstimate, ServiceTimes
from runtime.hosting.thread_limits import ThreadLimits
from runtime.statistics.call_statistics import CallTimer
from runtime.user_errors import raised_at, summary_of, text_of, traceback_of
from runtime.wire.exceptions import attributes_of

# How a host learns of an actor in another process that its start, a call or its life has ended
# there.
#
# The actor proxy raises these where the actor itself would have raised. They never reach users.


class RefusedElsewhereError(Exception):
    """The runtime, here or in another process, ended a call with `error`; the method did not
    raise.
    """

    def __init__(self, error: CallError) -> None:
        # Guarded: it may be an error of a class of the user's.
        super().__init__(text_of(error))
        self.error = error


class StartFailedElsewhereError(Exception):
    """The actor did not start in its process. `what` is the error as `Type: text`, `trace` is the
    traceback in that process, if there is one.
    """

    def __init__(self, what: str, trace: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.trace = trace


class EndedElsewhereError(Exception):
    """The actor has ended in its process, for `reason`."""

    def __init__(self, reason: ExitReason) -> None:
        super().__init__(f"{reason}\n\n{reason.traceback}" if reason.traceback else str(reason))
        self.reason = reason


def why_not_started(error: BaseException, module: str) -> tuple[str, str]:
    """Describe what a constructor or `on_start` raised: as `Type: text (file:line, in function)`,
    and as its traceback. `module`: the actor's own.
    """
    if type(error) is StartFailedElsewhereError:
        return error.what, error.trace or error.what
    place = raised_at(error, module)
    if issubclass(type(error), UnderstudyError) and module.startswith("actors."):
        # A supervisor reports a failed child: the supervisor's own line is of no interest, and the
        # text already names the place in the child.
        place = ""
    elif not place and type(trace := attributes_of(error).get("remote_traceback")) is str and trace:
        # No code of the actor's has run: what was raised in the process from which its own was to
        # come. The frames of this one say nothing.
        return summary_of(error), trace
    return f"{summary_of(error)} ({place})" if place else summary_of(error), traceback_of(error)


def with_note(error: ActorStartError) -> ActorStartError:
    """Add a note of where the start failed, and return the error. The error that was raised there
    is no `__cause__` here, so without the note people would not see it.
    """
    if error.remote_traceback and not any(
        error.remote_traceback in note for note in getattr(error, "__notes__", ())
    ):
        where = f" on node {error.node}" if error.node else ""
        error.add_note(f"raised in the start of {error.actor}{where}:\n{error.remote_traceback}")
    return error


class ReplySink(Protocol):
    """Receives the outcome of an invocation: there are sinks for calls of other nodes, of this
    node, for retained results and for one-way calls.
    """

    def value(self, invocation: Invocation, value: object) -> None:
        """The method returned."""
        ...

    def raised(self, invocation: Invocation, error: BaseException) -> None:
        """The method raised."""
        ...

    def refused(self, invocation: Invocation, error: CallError) -> None:
        """The runtime ended the call."""
        ...


class ReportedSink:
    """The sink of an invocation whose outcome was reported before its method has ended: whatever
    the method does from then on is reported to no caller.
    """

    def value(self, invocation: Invocation, value: object) -> None:
        """Drop the value."""

    def raised(self, invocation: Invocation, error: BaseException) -> None:
        """Drop the error."""

    def refused(self, invocation: Invocation, error: CallError) -> None:
        """Drop the error."""


REPORTED = ReportedSink()


class Runner(Protocol):
    """Runs an invocation: a task of the pool of workers, or a batch in a thread."""

    def cancel(self) -> None:
        """Stop the invocation that it runs."""
        ...


class TaskWorker:
    """The `Runner` of an invocation that one task of the pool of workers runs."""

    __slots__ = ("cancelled", "scope")

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.cancelled = False
        """True once the scope is. Asked after each run: a scope would read the clock for it."""

    def renew(self) -> None:
        """The invocation that was stopped is over: the next ones need a new scope."""
        self.scope = trio.CancelScope()
        self.cancelled = False

    def drop_deadline(self) -> None:
        """The run of an invocation with a deadline is over, perhaps because of that."""
        self.scope.deadline = math.inf
        self.cancelled = self.scope.cancel_called

    def cancel(self) -> None:
        """Stop the invocation that it runs."""
        self.cancelled = True
        self.scope.cancel()


class StreamOutput(Protocol):
    """Receives the items of a stream: there is a producer for readers on this node and one for
    those on others, in the room `calls`, which imports this one.
    """

    def produce(
        self, invocation: Invocation, items: AsyncGenerator[object, None]
    ) -> Coroutine[Any, Any, None]:
        """Send all items, and close their generator in every case."""
        ...

    def grant(self, consumed: object) -> None:
        """Note how many items, in all, the reader has consumed. Raises ProtocolError."""
        ...


class Invocation:
    """One call as its actor has it: waiting, running, or answered. `deadline` is on the node's
    clock, in seconds.
    """

    __slots__ = (
        "args",
        "attempt",
        "begun",
        "call",
        "cancelled",
        "cell",
        "chain",
        "context",
        "deadline",
        "definition",
        "estimate",
        "held_bytes",
        "kwargs",
        "link",
        "needs",
        "number",
        "peer",
        "queued_at",
        "runner",
        "sink",
        "stream_output",
        "suspended_at",
        "timer",
        "waits_in",
    )

    def __init__(
        self,
        cell: ActorCell,
        definition: MethodDefinition,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        sink: ReplySink,
        link: object,
        number: int,
        deadline: float,
    ) -> None:
        self.cell = cell
        self.definition = definition
        self.args = args
        self.kwargs = kwargs
        self.sink = sink
        self.link: Any = link
        self.number = number
        self.deadline = deadline
        self.begun = False
        """True from its first step on, also after it has ended while its outcome is held back."""
        self.timer: CallTimer | None = None
        """Measures its wait and its run; None if it is not timed."""
        self.queued_at = 0.0
        """When it was queued behind others, on the node's clock; 0 if its turn came at once."""
        self.suspended_at = 0.0
        """When its method first waited for something, on the node's clock; 0 if it has not. A
        method that computes without waiting blocks the loop, so nothing could ask meanwhile.
        """
        self.runner: Runner | None = None
        """What runs it; None while nothing does."""
        self.estimate: ServiceTimeEstimate | None = None
        """What counts it while it waits; None if it does not wait, or its method has no estimate.
        """
        self.cancelled = False
        """True once its caller has given up: it is skipped, or is being stopped."""
        self.held_bytes: HeldBytes | None = None
        """The bytes of its arguments, if they are counted."""
        self.needs: Needs | None = None
        """The references among the arguments, to be fetched before it runs; None if there are none.
        """
        self.stream_output: StreamOutput | None = None
        """The receiver of the items if the method is a stream; else None."""
        self.call: RequestOrigin | None = None
        """Identifies the call if its caller may repeat it; else None."""
        self.chain: Chain | None = None
        """The chain of methods that wait for it, if a method made the call."""
        self.context: CallContext | None = None
        """The context that travels with the call beside its arguments; None if it has none."""
        self.attempt = 1
        """The number of this attempt at the call, from 1."""
        self.peer: VerifiedPeer | None = None
        """The caller, if `link` does not determine it; see `verified`."""
        self.waits_in: Chain | None = None
        """The chain for the calls that it makes; None until it makes one."""

    @property
    def verified(self) -> VerifiedPeer | None:
        """The proven identity of the caller; None for a call of this process."""
        found: VerifiedPeer | None = self.peer or getattr(self.link, "verified", None)
        return found

    @property
    def full_name(self) -> str:
        """The names of the actor and of its method, as messages give them: `counter.add`."""
        return f"{self.cell.address.name}.{self.definition.name}"

    @property
    def depth(self) -> int:
        """How many methods and starts wait for this one, each for the next."""
        return 0 if self.chain is None else self.chain.length

    def chain_of_calls(self, mark: Callable[[], int]) -> Chain:
        """Return the chain for calls that its method awaits. `mark()` gives the run its mark."""
        chain = self.waits_in
        if chain is None:
            before = self.chain.links if self.chain is not None else ()
            chain = self.waits_in = Chain.of(
                (*before, ChainLink(self.cell.address.name, self.definition.name, mark()))
            )
        return chain

    def cancel(self) -> None:
        """Stop it if it runs, skip it if it waits: the caller has given up and wants no answer."""
        self.cancelled = True
        if self.runner is not None:
            self.runner.cancel()
        else:
            self.cell.given_up = True


class ActorCell:
    """The actor `instance` at `address`."""

    __slots__ = (
        "_beside",
        "_service_times",
        "_turn",
        "address",
        "ahead",
        "arguments",
        "busy",
        "byte_limit",
        "constructed",
        "ended",
        "following",
        "found",
        "given_up",
        "held",
        "instance",
        "last_error",
        "leased",
        "limit",
        "mailbox",
        "methods",
        "paused",
        "quiet",
        "served",
        "slow",
        "started",
        "supervises_since",
        "system",
        "threads",
    )

    def __init__(
        self,
        address: Address,
        instance: Actor,
        limit: int,
        byte_limit: int = DEFAULT_MAILBOX_BYTES,
        *,
        system: bool = False,
    ) -> None:
        self.address = address
        self.instance = instance
        self.methods = type(instance).__methods__
        self.limit = limit
        self.byte_limit = byte_limit
        self.arguments: ByteBudget | None = None
        """The bytes of its calls' arguments; None before the first that is counted."""
        self.system = system
        self.ahead = False
        """True for a service whose calls are run before those of all others."""
        self.leased = address.registered
        """True if it may run only as long as its node holds its lease: its name is registered, and
        another node may get it.
        """
        self.mailbox: deque[Invocation] | None = None
        """None while it is empty: most actors have no mail most of the time, and a deque takes more
        memory than all the rest.
        """
        self._turn: Invocation | None = None
        self._beside: set[Invocation] | None = None
        """The invocations that run beside the turn; None if there are none."""
        self._service_times: ServiceTimes | None = None
        """How long its methods take; None while no run has been measured."""
        self.slow = False
        """True if its runs are known to take long: the worker yields to the loop after each."""
        self.threads: ThreadLimits | None = None
        """Limits how many of its plain methods run at once; None if only one can."""
        self.busy = False
        """True from the moment the cell is submitted to the workers until its mailbox is empty
        again.
        """
        self.constructed = system
        """False while the constructor of the instance has not returned: see `ready_instance`."""
        self.started = system
        """False while `on_start` has not returned: mail waits."""
        self.found = False
        """True once others than its spawner have got the answer that it has started."""
        self.paused = False
        """True while its node's lease is in doubt: mail waits, and outcomes are held back."""
        self.following: Callable[[Invocation], bool] | None = None
        """Adds a call to the turn that runs, and returns whether it did; None while no turn takes
        further calls.
        """
        self.held: list[tuple[Invocation, Callable[[], None]]] | None = None
        """Invocations that ended during the pause, each with what reports its outcome."""
        self.given_up = False
        """True if some of the mail may have been cancelled. It is removed when another call needs
        the room.
        """
        self.ended: ExitReason | None = None
        """Why it has ended, or is ending: it takes no more mail. None while it does."""
        self.served = 0
        """How many invocations have begun."""
        self.supervises_since: float | None = None
        """Seconds on the node's clock; None if it is no supervisor."""
        self.quiet: trio.Event | None = None
        """Set when no invocation runs or waits any more; None if no task waits for that."""

    @property
    def ready_instance(self) -> Actor | None:
        """The instance, None while its constructor has not returned. What may meet an actor that is
        starting asks this: constructors run in threads, so the instance may lack its attributes,
        and a `__getattr__` of its class may raise whatever it likes.
        """
        return self.instance if self.constructed else None

    @property
    def waiting(self) -> int:
        """How many calls wait, cancelled ones included that have not been removed yet."""
        return len(self.mailbox) if self.mailbox is not None else 0

    @property
    def running(self) -> tuple[Invocation, ...]:
        """The running invocations: the one whose turn it is, and those of concurrent methods."""
        turn = () if self._turn is None else (self._turn,)
        return (*turn, *self._beside) if self._beside else turn

    @property
    def depth(self) -> int:
        """How many calls wait or run."""
        return self.waiting + len(self.running)

    def depth_beside(self, invocation: Invocation) -> int:
        """How many calls other than this one wait or run."""
        return self.waiting + sum(one is not invocation for one in self.running)

    @property
    def is_in_use(self) -> bool:
        """True while calls run or wait, or their outcomes are held back."""
        return (
            self._turn is not None
            or bool(self._beside)
            or bool(self.mailbox)
            or self.paused
            or bool(self.held)
        )

    @property
    def turn(self) -> Invocation | None:
        """The invocation whose turn it is; None if there is none."""
        return self._turn

    def waits_for(self, invocation: Invocation) -> bool:
        """True if the method whose turn it is waits for this call, directly or through others."""
        turn = self._turn
        if turn is None or turn.waits_in is None or invocation.chain is None:
            return False
        return turn.waits_in.links[-1].mark in invocation.chain

    def offer(self, invocation: Invocation, now: Callable[[], float]) -> CallError | None:
        """Put an invocation into the mailbox; return an error if it must be refused. The caller
        then submits the cell, if it is not busy.
        """
        if self.ended is not None:
            return self.gone()
        mailbox = self.mailbox
        if mailbox is None:
            # Mostly of an idle actor, whose turn comes at once: then the clock is not read.
            mailbox = self.mailbox = deque()
            if self._turn is not None:
                invocation.queued_at = now()
                if self._service_times is not None:
                    _count(invocation, self._service_times)
            mailbox.append(invocation)
            return None
        if len(mailbox) >= self.limit and not self._drop_cancelled():
            return MailboxFullError(
                f"{self.address.name} on {self.address.node} has {self.limit} calls waiting, its "
                "limit; slow down, or raise mailbox_limit"
            )
        invocation.queued_at = at = now()
        times = self._service_times
        if times is not None:
            if invocation.deadline != math.inf and self._too_late_behind(
                invocation.definition.name, invocation.deadline - at, times
            ):
                return MailboxFullError(
                    f"{self.address.name} on {self.address.node} cannot answer this call before "
                    "its deadline, because too many calls wait there; slow down, or allow more time"
                )
            _count(invocation, times)
        mailbox.append(invocation)
        return None

    def count_bytes(self, held: HeldBytes) -> CallError | None:
        """Count the arguments of a call that waits or runs from now on; return an error if it must
        be refused.
        """
        if self.arguments is None:
            self.arguments = ByteBudget(self.byte_limit)
        if held.count_in(self.arguments, held.size):
            return None
        return MailboxFullError(
            f"the calls that wait or run at {self.address.name} on {self.address.node} have "
            f"arguments of {self.arguments.held:,} bytes, and {held.size:,} more would exceed its "
            f"limit of {self.byte_limit:,}; slow down, pass references (node.put), or raise "
            "mailbox_bytes"
        )

    def append(self, invocation: Invocation) -> None:
        """Put an invocation into the mailbox regardless of its limit; the caller bounds how many.
        See `offer`.
        """
        if self.mailbox is None:
            self.mailbox = deque()
        self.mailbox.append(invocation)

    def take(self) -> Invocation | None:
        """Take the next invocation to run. Returns None if there is none; then the cell is not
        busy.
        """
        mailbox = self.mailbox
        # A cancelled invocation was answered when it was cancelled, if at all.
        while mailbox and self.ended is None and not self.paused:
            invocation = mailbox.popleft()
            if invocation.estimate is not None:
                _uncount(invocation, invocation.estimate)
            if not invocation.cancelled:
                return invocation
        if not mailbox:
            self.mailbox = None
        self.busy = False
        if self.quiet is not None:
            # If the last of the mail was cancelled, no run ends and calls `finish`.
            self.wake_if_quiet()
        return None

    def put_back(self, invocation: Invocation) -> None:
        """Put an invocation whose turn had come back to the front, because the cell is paused or
        about to be.
        """
        if self.mailbox is None:
            self.mailbox = deque()
        self.mailbox.appendleft(invocation)

    def late(self, invocation: Invocation, now: float) -> bool:
        """True if an invocation with a deadline is not worth running any more at its turn."""
        left = invocation.deadline - now
        times = self._service_times
        estimate = None if times is None else times.of(invocation.definition.name)
        return left <= 0 if estimate is None else estimate.too_late_now(self.waiting, left)

    def begin(self, invocation: Invocation) -> CallError | None:
        """Note that an invocation is about to run; return an error if too many run already."""
        self.served += 1
        if self._turn is None and not invocation.definition.concurrent:
            self._turn = invocation
            return None
        # Reentrant calls run beside the turn as concurrent ones do, and count for the same bound.
        if self._beside is None:
            self._beside = set()
        elif len(self._beside) >= self.limit:
            return MailboxFullError(
                f"{self.address.name} on {self.address.node} has {self.limit} concurrent calls "
                "running, its limit; "
                "slow down, or raise mailbox_limit"
            )
        self._beside.add(invocation)
        return None

    def finish(self, invocation: Invocation, seconds: float | None) -> None:
        """Note that an invocation has ended. `seconds`: how long it ran, if that was measured."""
        if invocation.held_bytes is not None:
            invocation.held_bytes.release()
        if self._turn is invocation:
            self._turn = None
            if seconds is not None:
                estimate = self._estimate_of(invocation.definition.name)
                estimate.on_ran(seconds)
                self.slow = estimate.is_slow
        elif self._beside is not None:
            self._beside.discard(invocation)
            if not self._beside:
                self._beside = None
        if self.quiet is not None:
            self.wake_if_quiet()

    def _estimate_of(self, method: str) -> ServiceTimeEstimate:
        """The estimate for a method that has been measured. At its first run the calls that wait
        are looked at, once for each method of the class.
        """
        times = self._service_times
        if times is None:
            times = self._service_times = ServiceTimes()
        estimate = times.of(method)
        if estimate is None:
            estimate = times.add(method)
            for invocation in self.mailbox or ():
                if invocation.definition.name == method:
                    _count(invocation, times)
        return estimate

    def _too_late_behind(self, method: str, left: float, times: ServiceTimes) -> bool:
        """True if a call with `left` seconds would be answered too late behind the calls that wait.
        Cancelled ones are removed first.
        """
        running = None if self._turn is None else self._turn.definition.name
        if not self.mailbox or times.until_done(method, running) <= SHARE * left:
            return False
        if not self.given_up:
            return True
        self._drop_cancelled()
        return bool(self.mailbox) and times.until_done(method, running) > SHARE * left

    def _drop_cancelled(self) -> bool:
        """Remove cancelled invocations; True if there is room then."""
        if self.given_up and self.mailbox is not None:
            self.given_up = False
            kept = []
            for invocation in self.mailbox:
                if not invocation.cancelled:
                    kept.append(invocation)
                elif invocation.estimate is not None:
                    _uncount(invocation, invocation.estimate)
            self.mailbox.clear()
            self.mailbox.extend(kept)
            self.wake_if_quiet()
        return self.waiting < self.limit

    def wake_if_quiet(self) -> None:
        """Wake the tasks in `wait_quiet` if no invocation runs or waits."""
        if self.quiet is not None and not self.running and not self.mailbox:
            self.quiet.set()
            self.quiet = None

    async def wait_quiet(self) -> None:
        """Wait until no invocation runs or waits."""
        while self.running or self.mailbox:
            # One event for all that wait: it is dropped when it is set, never while a task waits
            # for it.
            if self.quiet is None:
                self.quiet = trio.Event()
            await self.quiet.wait()

    def hold(self, invocation: Invocation, report: Callable[[], None]) -> None:
        """Keep the outcome of an invocation during a pause; `report` is called when the cell goes
        on.
        """
        if self.ended is not None:
            # The actor ended in the pause, while the method still ran: nothing will go on, and the
            # caller must hear of it now, as those did whose outcomes were held at the end.
            invocation.sink.refused(invocation, self.died())
            return
        if self.held is None:
            self.held = []
        self.held.append((invocation, report))

    def resume(self) -> bool:
        """End the pause and report what was held back; True if there is mail and the cell must be
        submitted.
        """
        # In the order in which the runs ended. The list is taken first: what a report leads to
        # may pause the actor again.
        self.paused = False
        held, self.held = self.held or (), None
        for _, report in held:
            report()
        return self.started and not self.busy and bool(self.mailbox)

    def end(self, reason: ExitReason) -> list[Invocation]:
        """Take no more mail; return the invocations that waited and will not run."""
        # Set first: refusing the calls below may lead to further calls, which must find the actor
        # ended.
        self.ended = reason
        waiting = [invocation for invocation in self.mailbox or () if not invocation.cancelled]
        self.mailbox = self._service_times = None
        # No run ends any more that would wake the tasks that wait for quiet, such as a node that
        # drains. Wake them here.
        self.wake_if_quiet()
        held, self.held = self.held or (), None
        for invocation, _ in held:
            # It ran while the lease was in doubt: it may have taken effect, and the name's next
            # owner knows nothing of it. So its outcome is unknown.
            invocation.sink.refused(invocation, self.died())
        return waiting

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. Looks at all mail: for tests and
        simulations.
        """
        waiting, running = list(self.mailbox or ()), self.running
        assert len({*map(id, waiting), *map(id, running)}) == len(waiting) + len(running), (
            "an invocation waits or runs, once"
        )
        assert all(invocation.cell is self for invocation in (*waiting, *running))
        assert self._beside is None or 0 < len(self._beside) <= self.limit
        assert self._turn is None or not self._turn.definition.concurrent, "it takes no turn"
        # Otherwise a wake-up was lost: nothing would ever take this mail.
        assert not waiting or self.busy or self.paused or not self.started or self.ended, (
            "mail waits and no worker knows of it"
        )
        assert self.ended is None or (self.mailbox is None and not self.held)
        assert self.constructed or not self.started, "its constructor comes first"
        if self._service_times is not None:
            self._service_times.check_invariants([one.estimate for one in waiting])
        assert all(invocation.estimate is None for invocation in running), "it waits no more"
        # A worker that is busy with the cell may hold an invocation that it has not begun.
        assert self.quiet is None or self.busy or bool(waiting or running), (
            "a wait for quiet has something left"
        )

    def gone(self) -> ActorNotFoundError:
        """Make the error for a call that came after the end."""
        why = str(self.ended) if self.ended is not None else "ended"
        return ActorNotFoundError(f"{self.address.name} is no longer on {self.address.node}: {why}")

    def died(self) -> ActorDiedError:
        """Make the error for a call that was running at the end."""
        why = str(self.ended) if self.ended is not None else "ended"
        return ActorDiedError(
            f"{self.address.name} on {self.address.node} ended while the call was running: {why}; "
            "the call may have taken effect"
        )


def _count(invocation: Invocation, times: ServiceTimes) -> None:
    """Count an invocation that waits, if its method has been measured."""
    if not invocation.definition.concurrent:
        invocation.estimate = times.on_queued(invocation.definition.name)


def _uncount(invocation: Invocation, estimate: ServiceTimeEstimate) -> None:
    """Uncount an invocation that has left the mailbox."""
    estimate.waiting -= 1
    invocation.estimate = None
