"""Spin: decides whether a receive polls for a while before it sleeps, and for how long. A machine
without I/O or clock.

In sequential calls most of the time goes into waking a sleeping core. Two processes that each have
a core to themselves are twice as fast if they poll a few times instead. How long: for a small
multiple of what the recent waits took, as in the competitive spinning of Karlin, Li, Manasse and
Owicki (SOSP 1991); a spin that fails costs little more than the sleep it did not avoid.

How long a kernel takes to wake a core differs by a factor of ten between machines, and from hour to
hour on a virtual one. So whether a spin pays is measured: the waits of the streak that comes before
a trial are what a wait takes asleep, those of the trial what it takes awake, and the difference is
what each spin saves. The spin stays on while it saves `LEAST_GAIN` of a wait, and stops as soon as
the thread has waited for a core for more than a small part of the time: see `Spin.on_delayed`.
"""

from __future__ import annotations

SHORT_WAIT = 1e-3
"""Seconds: traffic whose waits are longer than this is no sequence of small calls."""

LEAST_GAIN = 0.15
"""A spin that does not shorten the waits by this part is not worth its core."""

SMALL_RECEIVE = 100 * 1024
"""Bytes: more than this is no single call whose values travel in the frame itself, see
`MAX_IN_PLACE` in `runtime.wire.codec`: there is more to do than to wait.
"""

STREAK = 32
"""Short waits for small receives, one after the other, before a trial begins; and those of a trial,
once it has settled, by which it is judged.
"""

REST = 8 * STREAK
"""Receives that are not looked at after one that was no part of a streak, so that the machine costs
next to nothing while it is off.
"""

LEAST_SECONDS = 30e-6
MOST_SECONDS = SHORT_WAIT
MOST_ROUNDS = 256
"""Bounds of one spin."""

LONGEST_COUNTED = 2.0
"""A wait of more than so many times what the spin may last counts as one of that length."""

QUIET_TURN = 3.0
"""A turn of the event loop that took more than this many times the quickest was used by others.
One in which the reader has two steps takes 2.2 times as long as one in which it has none.
"""

LOOKING_TURNS = 6.0
"""After two that were not: for so many of the quickest turns a task looks again and again before it
gives others the next turn. A look takes a fraction of a turn, and what arrives is found sooner.
"""

MOST_LOOKING = 50e-6
"""Seconds: no longer than this, where even the quickest turn so far was used. Timers, and what
arrives elsewhere, wait meanwhile.
"""

CREDIT = 40
MISS = 4
"""A spin that finds data earns 1 up to `CREDIT`, one that does not costs `MISS`: most of them must
succeed.
"""

SETTLING_SECONDS = 0.01
"""At the beginning of a trial and after a time without traffic, while the kernel moves two
processes that share a core apart.
"""

WINDOW_SECONDS = 0.005
USUAL_DELAY = 0.1
MOST_DEBT = 0.005
"""Every `WINDOW_SECONDS` the time that the thread has waited for a core beyond this part of all
time is added up, as in a leaky bucket, and must not reach so many seconds: one process that comes
and goes is nothing, one that stays ends the spin within two or three windows.
"""

FIRST_PAUSE = 0.05
PAUSE_GROWTH = 4
MOST_PAUSE = 10.0
PROVEN_SECONDS = 1.0
"""A spin that was on for this long has a short pause when it ends."""


class Spin:
    """The state of one connection. Feed it the end of every receive that it does not rest for;
    `seconds` is the answer. Off at first.
    """

    __slots__ = (
        "_asleep",
        "_awake",
        "_began",
        "_credit",
        "_debt",
        "_delay",
        "_judged",
        "_measured",
        "_most",
        "_not_before",
        "_pause",
        "_quickest",
        "_slept",
        "_streak",
        "_turn",
        "_wait",
        "due",
        "resting",
        "seconds",
    )

    def __init__(self) -> None:
        self.seconds = 0.0
        """How long the next receive may look again before it sleeps; 0.0 while the spin is off."""
        self.due = 0.0
        """While it is on: the time from which on `delayed` is to be called."""
        self.resting = 0
        """How many receives need not be reported; the caller that leaves one out counts it down."""
        self._streak = 0
        self._wait = 0.0
        self._slept = 0.0
        self._asleep = 0.0
        self._awake = 0.0
        self._judged = 0
        self._most = MOST_SECONDS
        self._credit = 0
        self._quickest = float("inf")
        self._turn = float("inf")
        self._began = 0.0
        self._not_before = -float("inf")
        self._pause = 0.0
        self._delay = -1.0
        self._debt = 0.0
        self._measured = 0.0

    def on_slept(self, now: float, waited: float, size: int) -> None:
        """A receive of `size` bytes had to sleep, and took `waited` seconds in all. If the spin is
        on, it has missed.
        """
        if self.seconds:
            # A miss costs more than a hit earns: a spin that often fails is not worth its core.
            self._credit -= MISS
            if self._credit < 0:
                self._stop(now)
            elif waited < SHORT_WAIT:
                self._learn(now, min(waited, LONGEST_COUNTED * self.seconds))
        elif waited > SHORT_WAIT or size > SMALL_RECEIVE or now < self._not_before:
            self._streak = 0
            self.resting = REST
        else:
            self._slept = self._slept + waited if self._streak else waited
            self._streak += 1
            self._wait += (waited - self._wait) / 8
            # Not sooner: a single quick answer says nothing of the next.
            if self._streak >= STREAK:
                self._start(now)

    def on_hit(self, now: float, waited: float, size: int) -> None:
        """A spin has found `size` bytes after `waited` seconds."""
        assert self.seconds, "nothing spins while the spin is off"
        if size > SMALL_RECEIVE:
            self._credit -= MISS
            if self._credit < 0:
                self._stop(now)
            return
        if self._credit < CREDIT:
            self._credit += 1
        # Found long after the spin should have ended: this thread did not run meanwhile, for
        # milliseconds now and then on a virtual machine. That says nothing of the peer, and
        # `on_delayed` notices a thread that often waits for a core.
        self._learn(now, min(waited, LONGEST_COUNTED * self.seconds))

    def on_turn(self, passed: float) -> float:
        """All other tasks had a turn of the event loop, which took `passed` seconds. Returns for
        how many seconds to look again and again now: 0.0, once, where others use their turns.
        """
        # The longer of two: trio runs the tasks of each pass in one order or in the reverse. Where
        # this task comes last in one pass and first in the next, others have no step in between,
        # however busy they are.
        longer = max(passed, self._turn)
        self._turn = passed
        if passed < self._quickest:
            self._quickest = passed
        if longer > QUIET_TURN * self._quickest:
            return 0.0
        return min(LOOKING_TURNS * self._quickest, MOST_LOOKING)

    def on_delayed(self, now: float, total: float) -> None:
        """This thread has waited for a core for `total` seconds in its life. To be called once
        `due` has come, while the spin is on.
        """
        if self._delay >= 0.0:
            passed, delay = now - self._measured, total - self._delay
            if passed > SETTLING_SECONDS + WINDOW_SECONDS and delay < USUAL_DELAY * passed:
                # Nothing was to be done for a while: the two may share a core again.
                self._settle(now)
                return
            self._debt = max(0.0, self._debt + delay - USUAL_DELAY * passed)
            # On a busy machine a spin takes the core from the very process that it waits for. Two
            # that spin on cores of their own never wait for one, so any lasting wait is a reason.
            if self._debt >= MOST_DEBT:
                self._stop(now)
                return
        self._delay = total
        self._measured = now
        self.due = now + WINDOW_SECONDS

    def _learn(self, now: float, waited: float) -> None:
        self._wait += (waited - self._wait) / 8
        if self._wait > self._most:
            # What a spin saves is too small a part of waits that have grown so long.
            self._stop(now)
            return
        self.seconds = min(self._most, max(LEAST_SECONDS, 3 * self._wait))
        if self._judged < STREAK and now - self._began >= SETTLING_SECONDS:
            self._judge(now, waited)

    def _judge(self, now: float, waited: float) -> None:
        """A wait of the trial. The last one decides it."""
        self._awake += waited
        self._judged += 1
        if self._judged < STREAK:
            return
        saved = self._asleep - self._awake / STREAK
        if saved < LEAST_GAIN * self._asleep:
            self._stop(now)
        else:
            self._most = min(MOST_SECONDS, max(LEAST_SECONDS, saved / LEAST_GAIN))

    def _start(self, now: float) -> None:
        assert not self.seconds, "a trial begins while the spin is off"
        self._began = now
        self._credit = CREDIT
        self._quickest = float("inf")
        self._asleep = self._slept / STREAK
        self._awake = 0.0
        self._judged = 0
        self._most = MOST_SECONDS
        self._learn(now, self._wait)
        self._settle(now)

    def _settle(self, now: float) -> None:
        self._delay = -1.0
        self._debt = 0.0
        self.due = now + SETTLING_SECONDS

    def _stop(self, now: float) -> None:
        self.seconds = 0.0
        self._streak = 0
        self.resting = REST
        # Each trial that fails lengthens the pause before the next: trials cost others their core.
        proven = now - self._began >= PROVEN_SECONDS
        self._pause = (
            FIRST_PAUSE
            if proven or not self._pause
            else min(MOST_PAUSE, PAUSE_GROWTH * self._pause)
        )
        self._not_before = now + self._pause
