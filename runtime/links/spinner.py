"""Polling: what a connection does while its spin is on (see `runtime.links.spin`), and how a task
that waits for an answer takes the place of the connection's reader meanwhile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial

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
        """When the wait began that is under way, or the last one ended."""
        self._found = 0
        """Bytes that a poll has found and that were not reported yet; see `_note_found`."""
        self._waited = 0.0
        """Seconds of the wait for them."""
        self._relieved = False
        """True while another task polls in the place of the reader."""

    @property
    @abstractmethod
    def descriptor(self) -> int:
        """A number of the open connection; -1 when it is closed."""

    def peer_process(self) -> int | None:
        """The pid of the process at the other end, where that is known to be of this user."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Drop the connection at once. It may be closed again. Raises no OSError."""

    @property
    def may_be_relieved(self) -> bool:
        """True if another task may poll in the place of the reader, which spins."""
        # The spin may have stopped in the place of the reader, which has not had its turn since.
        return self.act is not None and not self._relieved and self._spin.seconds > 0.0

    def let_others_receive(self, act: Callable[[bytes], None]) -> PollableConnection:
        """Let other tasks receive in the place of the reader while it spins, and give `act` what
        they receive; returns the connection that a `Spinner` then has as `current`.
        """
        self.act = act
        return self

    async def _receive_watched(self, spinner: Spinner) -> bytes:
        """Spin if the spin is on, then sleep; report to the machine what happened."""
        self._report_found(spinner)
        self._since = trio.current_time()
        data = None
        if self._spin.seconds:
            # One connection of the loop spins at a time: two would only take turns from each other.
            spinner.current = self
            try:
                data = await self._receive_awake()
            finally:
                spinner.current = None
        if data is not None:
            self._note_found(len(data))
            return data
        # The last poll may have found something.
        self._report_found(spinner)
        while data is None:
            await self._readable()
            try:
                data = self._receive(RECEIVE_SIZE)
            except BlockingIOError:
                continue
        now = trio.current_time()
        self._report(spinner, partial(self._spin.on_slept, now, now - self._since, len(data)), now)
        self._since = now
        return data

    def _note_found(self, size: int) -> None:
        """A poll has found `size` bytes. They are acted upon before that is reported, at the next
        wait: the peer, or the caller, waits for what follows from them.
        """
        now = trio.current_time()
        self._found, self._waited, self._since = size, now - self._since, now

    def _report_found(self, spinner: Spinner) -> None:
        """Report what was noted, if anything was."""
        size, self._found = self._found, 0
        if size and self._spin.seconds:
            now = self._since
            self._report(spinner, partial(self._spin.on_hit, now, self._waited, size), now)

    def _report(self, spinner: Spinner, end: Callable[[], None], now: float) -> None:
        """Report to the machine that a wait has ended, by `end()`."""
        spin = self._spin
        was_on = spin.seconds > 0.0
        end()
        if spin.seconds and now >= spin.due:
            spin.on_delayed(now, spinner.run_delay())
        if (spin.seconds > 0.0) is not was_on:
            spinner.on += -1 if was_on else 1

    async def _receive_awake(self) -> bytes | None:
        """Poll, each time after all other tasks had a turn; None if nothing has arrived for as long
        as the spin lasts.
        """
        rounds = 0
        while rounds < MOST_ROUNDS:
            looks_end = await self._give_turn()
            if self._relieved:
                await self._let_other_poll()
                rounds, looks_end = 0, 0.0
            rounds += 1
            try:
                return self._look_until(looks_end)
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

    async def _let_other_poll(self) -> None:
        """Wait, in the place of the reader, until no other task polls."""
        # Not parked: to wake this task would hold up what follows from what the other has found.
        while self._relieved:
            await self._turn()

    async def _give_turn(self) -> float:
        """Give all other tasks a turn; returns the time until which to look again and again."""
        began = trio.current_time()
        await self._turn()
        now = trio.current_time()
        return now + self._spin.on_turn(now - began)

    def _look_until(self, looks_end: float) -> bytes:
        """Return what has arrived, or arrives until `looks_end`. Raises BlockingIOError if nothing
        does.
        """
        receive = self._receive
        while True:
            try:
                return receive(RECEIVE_SIZE)
            except BlockingIOError:
                if trio.current_time() >= looks_end:
                    raise

    # Ctrl-C may not come between receiving and acting, nor meet a frame that is counted already:
    # either would be lost. It goes to trio's main task, at its next checkpoint.
    @trio.lowlevel.enable_ki_protection
    async def poll(self, spinner: Spinner, done: Callable[[], object]) -> None:
        """Receive and act in the place of the reader, which spins, and waits meanwhile, until
        `done()`, or until the spin has lasted long enough or stops. An interrupt closes the
        connection.
        """
        assert not self._relieved, "one task polls at a time"
        act, rounds = self.act, 0
        assert act is not None
        assert self._spin.seconds, "a spin that has stopped is not polled"
        self._relieved = True
        try:
            while rounds < MOST_ROUNDS and not done():
                looks_end = await self._give_turn()
                self._report_found(spinner)
                if not self._spin.seconds:
                    break
                try:
                    data = self._look_until(looks_end)
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
                self._note_found(len(data))
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

    def _spin_no_more(self) -> None:
        """The connection is closed. Called once: what is closed receives nothing more."""
        if self._spinner is not None and self._spin.seconds:
            self._spinner.on -= 1
            self._spin.seconds = 0.0
