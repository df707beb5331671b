"""A cell: one hosted actor with its mailbox and what is running of it.

An idle actor is just this table entry, no task. One job runs at a time, in the order of arrival; jobs of concurrent methods run beside
it. No I/O here: the workers take jobs from the mailbox and run them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Protocol

import trio

from actors.actor import Actor
from actors.arguments import Needs
from actors.errors import ActorDiedError, ActorNotFoundError, CallError, MailboxFullError
from actors.method import Address, MethodDefinition
from actors.supervision import ExitReason
from runtime.hosting.admission import Pace
from runtime.hosting.applied import Origin
from runtime.hosting.chains import Chain, Link


class Sink(Protocol):
    """Where the outcome of a job goes."""

    def value(self, job: Job, value: object) -> None:
        """The method returned."""
        ...

    def raised(self, job: Job, error: BaseException) -> None:
        """The method raised."""
        ...

    def refused(self, job: Job, error: CallError) -> None:
        """The runtime ended the call."""
        ...


class Cancellable(Protocol):
    """Whatever runs a job: a worker."""

    def cancel(self) -> None:
        """Stop what is running."""
        ...


class Outflow(Protocol):
    """Where the items of a stream go."""

    def produce(self, job: Job, items: AsyncGenerator[object, None]) -> Coroutine[Any, Any, None]:
        """Send all of them, and close their generator whatever happens."""
        ...

    def grant(self, consumed: object) -> None:
        """Their reader has consumed so many in all. Raises ProtocolError."""
        ...


class Job:
    """One call on its way through an actor. `deadline` is on the node's clock, in seconds."""

    __slots__ = (
        "args",
        "begun",
        "call",
        "cancelled",
        "cell",
        "chain",
        "deadline",
        "definition",
        "kwargs",
        "link",
        "needs",
        "number",
        "outflow",
        "runner",
        "sink",
        "waits_in",
    )

    def __init__(
        self,
        cell: Cell,
        definition: MethodDefinition,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        sink: Sink,
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
        """True from its first step on, also when it has ended and its outcome is held back."""
        self.runner: Cancellable | None = None
        self.cancelled = False
        self.needs: Needs | None = None
        """There if references among the arguments are to be fetched before it runs."""
        self.outflow: Outflow | None = None
        """There if the method is a stream."""
        self.call: Origin | None = None
        """There if the caller may make the call again."""
        self.chain: Chain | None = None
        """Those who wait for it, where it was made by a method."""
        self.waits_in: Chain | None = None
        """The chain of the calls that it makes, where it has made any."""

    def chain_of_calls(self, mark: Callable[[], int]) -> Chain:
        """The chain of the calls that its method awaits. `mark()` gives it a mark."""
        chain = self.waits_in
        if chain is None:
            before = self.chain.links if self.chain is not None else ()
            chain = self.waits_in = Chain.of((*before, Link(self.cell.address.name, self.definition.name, mark())))
        return chain

    def cancel(self) -> None:
        """The caller gave up: stop it if it runs, skip it if it waits. Nobody wants an answer."""
        self.cancelled = True
        if self.runner is not None:
            self.runner.cancel()
        else:
            self.cell.given_up = True


class Cell:
    """The actor `instance` at `address`."""

    __slots__ = (
        "_beside",
        "_pace",
        "_turn",
        "address",
        "busy",
        "ended",
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

    def __init__(self, address: Address, instance: Actor, limit: int, *, system: bool = False) -> None:
        self.address = address
        self.instance = instance
        self.methods = type(instance).__methods__
        self.limit = limit
        self.system = system
        self.leased = address.registered
        """True if it may run only as long as its node holds its lease: it has a name of its own, which others may get."""
        self.mailbox: deque[Job] | None = None
        """None while it is empty: most actors have no mail most of the time, and a deque takes more memory than all the rest."""
        self._turn: Job | None = None
        self._beside: set[Job] | None = None
        self._pace: Pace | None = None
        self.slow = False
        """True if its runs are known to take long: the rest of the loop has a turn after each."""
        self.threads: trio.CapacityLimiter | None = None
        """How many of its plain methods may run at once, if more than one can."""
        self.busy = False
        """True from the moment a worker is told of mail until the mailbox is empty again."""
        self.started = system
        """False while `on_start` has not returned: mail waits."""
        self.paused = False
        """True while its node is not sure to have its name still: mail waits, and outcomes are held back."""
        self.held: list[tuple[Job, Callable[[], None]]] | None = None
        """What ended meanwhile, and how to tell."""
        self.given_up = False
        """True if some of the mail may have been cancelled: it takes up room until somebody else needs it."""
        self.ended: ExitReason | None = None
        self.served = 0
        self.supervises_since: float | None = None
        """Seconds on the node's clock; None if it is no supervisor."""
        self.quiet: trio.Event | None = None
        """Set when nothing of it runs or waits any more, if somebody asked."""

    @property
    def waiting(self) -> int:
        """How many calls wait, those included that were cancelled and take up room until somebody else needs it."""
        return len(self.mailbox) if self.mailbox is not None else 0

    @property
    def running(self) -> tuple[Job, ...]:
        """What runs now: the job whose turn it is, and those of concurrent methods."""
        turn = () if self._turn is None else (self._turn,)
        return (*turn, *self._beside) if self._beside else turn

    @property
    def is_in_use(self) -> bool:
        """True while calls run or wait, or their outcomes are held back."""
        return self._turn is not None or bool(self._beside) or bool(self.mailbox) or self.paused or bool(self.held)

    @property
    def turn(self) -> Job | None:
        """The job that runs now, but for those of concurrent methods."""
        return self._turn

    def waits_for(self, job: Job) -> bool:
        """True if the method whose turn it is waits for this very call, through others perhaps."""
        turn = self._turn
        if turn is None or turn.waits_in is None or job.chain is None:
            return False
        return turn.waits_in.links[-1].mark in job.chain

    def offer(self, job: Job, now: Callable[[], float]) -> CallError | None:
        """Put a job into the mailbox; an error if it must be refused. The caller then submits the cell, if it is not busy."""
        if self.ended is not None:
            return self.gone()
        mailbox = self.mailbox
        if mailbox is None:
            mailbox = self.mailbox = deque()
        elif len(mailbox) >= self.limit and not self._drop_cancelled():
            return MailboxFullError(
                f"{self.address.name} on {self.address.node} has {self.limit} calls waiting, its limit; slow down, or raise mailbox_limit"
            )
        elif job.deadline != math.inf and self._too_late_behind(job.deadline - now()):
            return MailboxFullError(
                f"{self.address.name} on {self.address.node} has more calls waiting than it can answer in the time that this one has; "
                "slow down, or allow more time"
            )
        mailbox.append(job)
        return None

    def append(self, job: Job) -> None:
        """Put a job into the mailbox whatever its limit is; the caller sees to it that there are not too many. See `offer`."""
        if self.mailbox is None:
            self.mailbox = deque()
        self.mailbox.append(job)

    def take(self) -> Job | None:
        """The next job to run; None when there is none, and then the cell is no longer busy."""
        mailbox = self.mailbox
        while mailbox and self.ended is None and not self.paused:
            job = mailbox.popleft()
            if not job.cancelled:
                return job
        if not mailbox:
            self.mailbox = None
        self.busy = False
        if self.quiet is not None:
            # The last of the mail may have been cancelled, so that no run tells.
            self.tell_if_quiet()
        return None

    def put_back(self, job: Job) -> None:
        """It is its turn, but the cell is about to be paused, or is: let it be the next when it goes on."""
        if self.mailbox is None:
            self.mailbox = deque()
        self.mailbox.appendleft(job)

    def late(self, job: Job, now: float) -> bool:
        """True if a job with a deadline is not worth running any more, now that its turn has come."""
        left = job.deadline - now
        return left <= 0 if self._pace is None else self._pace.too_late_now(self.waiting, left)

    def begin(self, job: Job) -> CallError | None:
        """A job is about to run; an error if too many run beside each other already."""
        self.served += 1
        if self._turn is None and not job.definition.concurrent:
            self._turn = job
            return None
        if self._beside is None:
            self._beside = set()
        elif len(self._beside) >= self.limit:
            return MailboxFullError(
                f"{self.address.name} on {self.address.node} has {self.limit} concurrent calls running, its limit; "
                "slow down, or raise mailbox_limit"
            )
        self._beside.add(job)
        return None

    def finish(self, job: Job, seconds: float | None) -> None:
        """A job has ended. `seconds` that its run took, if that was measured."""
        if self._turn is job:
            self._turn = None
            if seconds is not None:
                if self._pace is None:
                    self._pace = Pace()
                self._pace.ran(seconds)
                self.slow = self._pace.is_slow
        elif self._beside is not None:
            self._beside.discard(job)
            if not self._beside:
                self._beside = None
        if self.quiet is not None:
            self.tell_if_quiet()

    def _too_late_behind(self, left: float) -> bool:
        """True if a call with `left` seconds would be answered too late behind those that wait and are still wanted."""
        pace = self._pace
        if pace is None or not pace.too_late_behind(self.waiting, left):
            return False
        return not self.given_up or not self._drop_cancelled() or pace.too_late_behind(self.waiting, left)

    def _drop_cancelled(self) -> bool:
        """Take out what nobody waits for any more; True if that made room."""
        if self.given_up and self.mailbox is not None:
            self.given_up = False
            kept = [job for job in self.mailbox if not job.cancelled]
            self.mailbox.clear()
            self.mailbox.extend(kept)
        return self.waiting < self.limit

    def tell_if_quiet(self) -> None:
        """Wake whoever waits for `quiet`, if it is."""
        if self.quiet is not None and not self.running and not self.mailbox:
            self.quiet.set()
            self.quiet = None

    async def wait_quiet(self) -> None:
        """Wait until nothing of it runs or waits."""
        while self.running or self.mailbox:
            if self.quiet is None:
                self.quiet = trio.Event()
            await self.quiet.wait()

    def hold(self, job: Job, tell: Callable[[], None]) -> None:
        """A job has ended while the cell is paused: `tell` when it goes on."""
        if self.held is None:
            self.held = []
        self.held.append((job, tell))

    def resume(self) -> bool:
        """Go on, and tell what was held back; True if there is mail that nobody runs."""
        self.paused = False
        held, self.held = self.held or (), None
        for _, tell in held:
            tell()
        return self.started and not self.busy and bool(self.mailbox)

    def end(self, reason: ExitReason) -> list[Job]:
        """Take no more mail; returns the jobs that waited and will not run."""
        self.ended = reason
        waiting = [job for job in self.mailbox or () if not job.cancelled]
        self.mailbox = None
        held, self.held = self.held or (), None
        for job, _ in held:
            # Whoever has the name now knows nothing of it: it may have taken effect, and nobody can say more.
            job.sink.refused(job, self.died())
        return waiting

    def gone(self) -> ActorNotFoundError:
        """What to tell a call that came too late."""
        why = str(self.ended) if self.ended is not None else "ended"
        return ActorNotFoundError(f"{self.address.name} is no longer on {self.address.node}: {why}")

    def died(self) -> ActorDiedError:
        """What to tell a call that was running."""
        why = str(self.ended) if self.ended is not None else "ended"
        return ActorDiedError(
            f"{self.address.name} on {self.address.node} ended while the call was running: {why}; the call may have taken effect"
        )
