"""Polling: what a connection does while its spin is on (see `runtime.links.spin`), and how a task
that waits for an answer takes the place of the connection's reader meanwhile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

import trio

from runtime.links.spin import MOST_ROUNDS, SMALL_RECEIVE, Spin

RECEIVE_SIZE = 120 * 1024
"""Bytes: more than the largest message that travels in one piece within a control part (see
`MAX_IN_PLACE` in `runtime.wire.codec`), so that it comes with one receive and is not joined.
"""


class Spinner:
    """Shared by the connections that may spin: only one of them spins at a time, and none while
    `may_spin` returns False. `run_delay` is the function of that name in `runtime.links.cores`.
    """

    def __init__(
        self, run_delay: Callable[[], float], may_spin: Callable[[], bool] | None = None
    ) -> None:
        self.run_delay = run_delay
        self.may_spin = may_spin
        self.current: PollableConnection | None = None
        """The connection that spins now."""
        self.on = 0
        """Connections whose spin is on: their next receive may poll before it sleeps."""
        self.acts = False
        """True while a task acts upon what it has received in the place of a reader: what is done
        then is the link's doing, and not that of the task.
        """

    async def poll(self, done: Callable[[], object]) -> None:
        """If a connection spins: poll in the place of its reader, and act upon what arrives, until
        `done()`, or for as long as the reader would.

        For a task that would park otherwise. What it waits for then costs no turn of the event loop
        that wakes it: as in Leader/Followers (Schmidt, O'Ryan, Kircher, Pyarali and Buschmann, PLoP
        2000), it is the task that needs the data that receives it.
        """
        current = self.current
        if (
            current is not None
            and current.may_be_relieved
            and (self.may_spin is None or self.may_spin())
        ):
            await current.poll(self, done)


class PollableConnection(ABC):
    """The receiving half of a connection that may spin and be polled: with a `spinner`.

    `receive`: returns at most so many bytes that have arrived, b"" at the end. It raises
    BlockingIOError if nothing has, and OSError if the connection is broken. `readable`: waits until
    it has something to return or to raise. `turn`: between two looks; all other tasks have a turn.
    """

    def __init__(
        self,
        spinner: Spinner | None,
        receive: Callable[[int], bytes],
        readable: Callable[[], Awaitable[None]],
        turn: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    ) -> None:
        self._turn = turn
        self._receive = receive
        self._readable = readable
        self._spinner = spinner
        self._spin = Spin()
        self.act: Callable[[bytes], None] | None = None
        """Acts upon what another task has received in the place of the reader. None: no other task
        receives.
        """
        self._since = 0.0
        """When the wait began that is under way or will be reported next."""
        self._relieved = False
        """True while another task polls in the place of the reader."""
        self._idle: trio.lowlevel.Task | None = None
        """The reader, while it is parked because of that."""

    @property
    @abstractmethod
    def descriptor(self) -> int:
        """A number of the open connection; -1 when it is closed."""

    @abstractmethod
    def close(self) -> None:
        """Drop the connection at once. It may be closed again."""

    @property
    def may_be_relieved(self) -> bool:
        """True if another task may poll in the place of the reader, which spins."""
        return self.act is not None and not self._relieved

    def let_others_receive(self, act: Callable[[bytes], None]) -> PollableConnection:
        """Let other tasks receive in the place of the reader while it spins, and give `act` what
        they receive; returns the connection that a `Spinner` then has as `current`.
        """
        self.act = act
        return self

    async def _receive_watched(self, spinner: Spinner) -> bytes:
        """Spin if the spin is on, then sleep; report to the machine what happened."""
        self._since = trio.current_time()
        data = None
        if self._spin.seconds:
            # One connection of the loop spins at a time: two would only take turns from each other.
            spinner.current = self
            try:
                data = await self._receive_awake()
            finally:
                spinner.current = None
        hit = data is not None
        while data is None:
            await self._readable()
            try:
                data = self._receive(RECEIVE_SIZE)
            except BlockingIOError:
                continue
        self._report(spinner, len(data), hit=hit)
        return data

    def _report(self, spinner: Spinner, size: int, *, hit: bool) -> None:
        """Report to the machine that the wait has ended. `hit`: by a poll."""
        spin, now = self._spin, trio.current_time()
        was_on = spin.seconds > 0.0
        (spin.on_hit if hit else spin.on_slept)(now, now - self._since, size)
        if spin.seconds and now >= spin.due:
            spin.on_delayed(now, spinner.run_delay())
        if (spin.seconds > 0.0) is not was_on:
            spinner.on += -1 if was_on else 1
        self._since = now

    async def _receive_awake(self) -> bytes | None:
        """Poll, each time after all other tasks had a turn; None if nothing has arrived for as long
        as the spin lasts.
        """
        rounds = 0
        while rounds < MOST_ROUNDS:
            await self._turn()
            if self._relieved:
                await self._relief()
                rounds = 0
            rounds += 1
            try:
                return self._receive(RECEIVE_SIZE)
            except BlockingIOError:
                if trio.current_time() >= self._since + self._spin.seconds:
                    break
            except OSError:
                if self.descriptor < 0:
                    raise trio.ClosedResourceError(
                        "the connection was closed while it was being read"
                    ) from None
                raise
        return None

    async def _relief(self) -> None:
        """Park until no other task polls in the place of this one."""

        def abort(raise_cancel: Callable[[], object]) -> trio.lowlevel.Abort:
            self._idle = None
            return trio.lowlevel.Abort.SUCCEEDED

        # Between the end of one relief and this task's turn, the next may have begun.
        while self._relieved:
            self._idle = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(abort)

    # Ctrl-C may not come between receiving and acting, nor meet a frame that is counted already:
    # either would be lost. It goes to trio's main task, at its next checkpoint.
    @trio.lowlevel.enable_ki_protection
    async def poll(self, spinner: Spinner, done: Callable[[], object]) -> None:
        """Receive and act in the place of the reader, which spins, and parks at its next turn,
        until `done()` or until the spin has lasted long enough. An interrupt closes the connection.
        """
        assert not self._relieved, "one task polls at a time"
        act, rounds = self.act, 0
        assert act is not None
        self._relieved = True
        try:
            while rounds < MOST_ROUNDS and not done():
                await self._turn()
                try:
                    data = self._receive(RECEIVE_SIZE)
                except BlockingIOError:
                    rounds += 1
                    if trio.current_time() >= self._since + self._spin.seconds:
                        break
                    continue
                except OSError:
                    break
                # The end of a connection stays: the reader finds it as well, and acts upon it.
                if not data:
                    break
                self._report(spinner, len(data), hit=True)
                rounds = 0
                spinner.acts = True
                act(data)
                spinner.acts = False
                # The rest of a large message belongs straight into its place, and only the reader
                # receives into that: here, each part of it would be copied once more.
                if len(data) > SMALL_RECEIVE:
                    break
        except trio.Cancelled:
            raise
        except BaseException:
            # An interrupt, perhaps between receiving and acting: what it leaves comes again over
            # the next connection, and this one must bring nothing more in its place.
            self.close()
            raise
        finally:
            # Here as well: an interrupt may leave `act`.
            spinner.acts = self._relieved = False
            reader, self._idle = self._idle, None
            # None if it has not had its turn since, or was cancelled.
            if reader is not None:
                trio.lowlevel.reschedule(reader)

    def _spin_no_more(self) -> None:
        """The connection is closed. Called once: what is closed receives nothing more."""
        if self._spinner is not None and self._spin.seconds:
            self._spinner.on -= 1
            self._spin.seconds = 0.0
