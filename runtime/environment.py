"""Time, randomness, ids, processes, threads and timings of a node: its only way to the world
outside.

Everything a node decides depends on its input and on its `Environment`, so that the same code runs
under a virtual clock and a seeded generator. Product code outside this module never touches `time`,
`random`, `uuid` or `os.urandom`.
"""

from __future__ import annotations

import contextlib
import os
import platform
import random
import resource
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn, Protocol, TypeVar, cast

import attrs
import trio

from actors.errors import WrongDoorError
from actors.own_logger import own_logger
from actors.short_repr import short_repr
from runtime.source_lines import module_of
from runtime.timings import Timings
from runtime.user_errors import Ran, is_machinery, leaves, members_of, traceback_object

logger = own_logger("understudy.node")

LEAST_DESCRIPTORS: Final = 32
"""Files that a process with a node must be allowed to have open. One node has some 15, of which it
opens some only when they are needed: with fewer it would start, and lack them later.
"""

# The interpreter's own places, whatever the class of an exception says.
_CHAIN: Final = tuple(
    cast("Any", vars(BaseException)[name])
    for name in ("__cause__", "__context__", "__suppress_context__")
)

T = TypeVar("T")

OWN_THREADS = 40
"""Threads that the runtime's own work on disks and files may take at once."""

_ENDED_STATES: Final = ("Z", "X", "x")
"""The letters of proc(5) for processes that run no more."""

LookAtStack = Callable[[], FrameType | None]
"""What the thread of an event loop runs at this moment, the innermost frame; None if that is
not known.
"""

END_SECONDS = 1.0
"""How many seconds the end of a loop that runs beside is waited for."""

# Proof that a process of this machine has ended.
#
# A process is known by its id and its start time, so a reused id does not count as the same.
# Linux's /proc tells; where there is none, nothing is ever proven and the lease decides. A zombie
# has ended: its threads run no more, it only waits for its parent. That a process cannot be seen
# proves nothing: this process may be out of descriptors, or /proc hide those of other users.


def host_identity() -> str:
    """Return a text that is equal for processes that see the same process ids and sockets: boot and
    namespaces. "" if it is not known.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return ":".join(
            (boot, *(Path(f"/proc/self/ns/{kind}").readlink().name for kind in ("pid", "net")))
        )
    except OSError:
        return ""


def process_start(pid: int) -> str:
    """When process `pid` started, in the kernel's own unit; "" if it has ended or cannot be
    seen.
    """
    fields = _process_fields(pid)
    return "" if not fields or fields[0] in _ENDED_STATES else fields[19]


def is_stopped(pid: int) -> bool:
    """True if process `pid` is known to be stopped, by SIGSTOP for example: it runs nothing."""
    return _process_fields(pid)[:1] == ["T"]


def _process_fields(pid: int) -> list[str]:
    """What the kernel says of a process, from its state on; nothing if it cannot be seen."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    # The second field is the command in parentheses, and may itself contain anything.
    return text.rpartition(")")[2].split()


def has_ended(pid: int, started: str) -> bool:
    """True only if it is certain that the process which started at `started` runs no more."""
    if not started:
        return False
    fields = _process_fields(pid)
    if fields:
        return fields[0] in _ENDED_STATES or fields[19] != started
    try:
        # Needs no descriptor, and knows of processes that /proc does not show (`hidepid`).
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        # PermissionError: it is there. OverflowError: a number that a peer has made up.
        return False
    return False


# Exceptions that a nursery has wrapped, in the form that the code which catches them needs.


def check_loop(what: str) -> None:
    """Raises `WrongDoorError` outside of trio, whose own error names nothing that helps there, and
    OSError on another system than Linux, or where the process may have too few files open.
    """
    if (system := platform.system()) != "Linux":
        raise OSError(
            f"{what} needs Linux, and this is {system}: use a container, a virtual machine or WSL 2"
        )
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed < LEAST_DESCRIPTORS:
        raise OSError(
            f"{what} needs {LEAST_DESCRIPTORS} file descriptors, and this process may have "
            f"{allowed}: raise the limit (`ulimit -n 1024`, or LimitNOFILE= of systemd)"
        )
    if not trio.lowlevel.in_trio_task():
        raise WrongDoorError(
            f"{what} needs the event loop of trio: start the program with trio.run(main). Under "
            "asyncio use runtime.aio, and without an event loop runtime.blocking"
        )


def check_path(name: str, value: object) -> None:
    """Raises TypeError or ValueError for what is neither the path of a directory nor None."""
    if value is None:
        return
    if not isinstance(value, str | os.PathLike) or not isinstance(path := os.fspath(value), str):
        raise TypeError(f"{name} is the path of a directory, not {short_repr(value)}")
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        encoded = b"\0"
    if b"\0" in encoded:
        raise ValueError(
            f"{name}={short_repr(path)} is no path: a character in it cannot be in one"
        )


def unwrap(error: BaseException, is_ours: Callable[[str], bool] | None = None) -> BaseException:
    """Return the exception itself if nested groups of the runtime's own nurseries contain just one,
    otherwise the group. Groups that the user's code has made stay whole.

    Cancellations beside it do not count: the scope that was cancelled stays so, and cancels at the
    next checkpoint again. `is_ours`: whether nurseries of this file are not the user's;
    by default those of the runtime.
    """
    is_ours = is_ours or is_machinery
    while (members := members_of(error)) and _is_of_our_nursery(error, is_ours):
        # An error that comes in the moment in which a scope outside is cancelled is in one group
        # with the cancellations of the nursery's other tasks. That scope takes these out of the
        # group later, and leaves a group of one where the code outside expects the error itself.
        others = [one for one in members if not _is_cancelled(one)] if members[1:] else members
        if len(others) != 1:
            break
        error = others[0]
    return error


def _is_of_our_nursery(group: BaseException, is_ours: Callable[[str], bool]) -> bool:
    """True for the group that a nursery of the runtime, or of trio itself, has raised. The
    traceback of a group begins where it was first raised, also of the rest that a cancelled scope
    leaves of it: a nursery raises it at its end, which its `async with` calls.
    """
    opener = last = None
    for frame, _ in traceback.walk_tb(traceback_object(group)):
        # An exit stack may have entered the nursery, for any code.
        if frame.f_code.co_filename != contextlib.__file__:
            opener, last = last, frame
    return (
        opener is not None
        and last is not None
        and last.f_code.co_name == "__aexit__"
        and module_of(last) == "trio._core._run"
        and is_ours(opener.f_code.co_filename)
    )


def _is_cancelled(error: BaseException) -> bool:
    return all(issubclass(type(one), trio.Cancelled) for one in leaves(error))


def raise_alone(group: BaseException) -> NoReturn:
    """Raise `unwrap(group)` with the cause and the context that it came with, which `raise ... from
    None` would take from it.

    That the group was caught is no part of its history: it is left out of it.
    """
    error = unwrap(group)
    try:
        raise_as_it_is(error)
    finally:
        # This frame is in its traceback from now on, and would keep it alive.
        del error, group


def raise_as_it_is(error: BaseException) -> NoReturn:
    """Raise it with the cause and the context that it has, although another one is handled."""
    chain = [place.__get__(error) for place in _CHAIN]
    try:
        raise error
    finally:
        # Here, and not before: the raise has put what is handled in the place of the context, and
        # setting a cause suppresses the context.
        for place, value in zip(_CHAIN, chain, strict=True):
            place.__set__(error, value)
        # As above.
        del error, chain


def first(error: BaseException) -> BaseException:
    """The first exception in the groups of the runtime's own nurseries, for code that asked one
    question of many side by side: any of the answers will do. What is no `Exception`, as
    KeyboardInterrupt, comes before what is one. Groups that the user's code has made stay whole.
    """
    members = members_of(error)
    if not members or not _is_of_our_nursery(error, is_machinery):
        return error
    return _most_urgent(list(map(first, members)))


def first_leaf(error: BaseException) -> BaseException:
    """Like `first`, out of all groups, for a line of output that has room for one exception."""
    members = members_of(error)
    return _most_urgent(list(map(first_leaf, members))) if members else error


def _most_urgent(errors: list[BaseException]) -> BaseException:
    return next((one for one in errors if not issubclass(type(one), Exception)), errors[0])


class NoThreadError(OSError):
    """The system grants this process no further thread. What was to run in it has not begun."""

    def __init__(
        self,
        text: str = "the system grants this process no further thread: raise its limit of "
        "processes (`ulimit -u`, pids.max of its control group, --pids-limit of a container) or "
        "of memory, or run less at once in threads",
    ) -> None:
        # A parameter, so that it can be pickled: that makes an error again from its text.
        super().__init__(text)


def is_refused_thread(error: RuntimeError) -> bool:
    """True if Python raised this because the system grants no further thread."""
    return str(error) == "can't start new thread"


@attrs.frozen
class Process:
    """An operating system's process. `host`: equal for processes that can see each other, "" if it
    is not known.
    """

    host: str
    pid: int
    started: str


def real_seconds() -> float:
    """The machine's own clock, where time is virtual: to say how long something took."""
    return time.perf_counter()


def shared_seconds() -> float:
    """The machine's monotonic clock, which its processes share: for what one of them tells another.
    The clock of trio's deadlines has another zero in each process.
    """
    return time.clock_gettime(time.CLOCK_MONOTONIC)


class Environment(Protocol):
    """The world around a node: `SystemEnvironment`, or that of a simulation."""

    @property
    def timings(self) -> Timings:
        """The durations of the node: how long it waits for others, and how often it repeats things.
        The same for the whole life of the environment: what is needed often is bound at
        construction.
        """
        ...

    def now(self) -> float:
        """Seconds on a monotonic clock whose zero means nothing; the clock of trio's deadlines."""
        ...

    @property
    def stopwatch(self) -> Callable[[], float]:
        """A function that returns seconds on a monotonic clock with a zero of its own: to say how
        long something took, never for deadlines. Cheaper than `now`, because no task is asked.
        """
        ...

    def wall_time(self) -> float:
        """Seconds since 1970 UTC: for people to read, and for the dates of certificates; never for
        other decisions.
        """
        ...

    def random(self) -> float:
        """A number in [0, 1): for jitter and load spreading, never for secrets."""
        ...

    def token(self, size: int) -> bytes:
        """`size` unpredictable bytes: for nonces, secrets and ids that must not collide."""
        ...

    def process(self) -> Process:
        """The one that this node runs in."""
        ...

    def has_ended(self, process: Process) -> bool:
        """True only if it is certain that `process` runs no more. That can never be certain for a
        process of another host.
        """
        ...

    async def in_thread(
        self,
        function: Callable[[], T],
        limiter: trio.CapacityLimiter | None = None,
        *,
        abandon: bool = False,
    ) -> T:
        """Run what blocks beside the event loop. `limiter`: how many such may run at once; None: as
        many as the runtime's own are allowed.

        It is waited for even when cancelled, because a thread cannot be stopped; with `abandon` it
        is left to itself. Raises what the function raises, and `NoThreadError`.
        """
        ...

    def run_beside(
        self, function: Callable[[Environment, LookAtStack], Awaitable[None]]
    ) -> Beside | None:
        """Run `function` in an event loop of its own that goes on while the caller's is blocked:
        with an environment for that loop, on the same clock, and a way to see what the caller's
        loop runs. None where there is no such loop: then nothing is run. Raises `NoThreadError`.
        """
        ...


class Beside(Protocol):
    """An event loop beside another, while it runs: in a thread, or in the simulated loop."""

    async def end(self) -> None:
        """Cancel what it runs, and wait for its end, bounded in time."""
        ...


class SystemEnvironment:
    """The real world: trio's clock, the kernel's randomness, its processes and threads.

    `timings`: other than the defaults, for tests.
    """

    def __init__(self, timings: Timings | None = None) -> None:
        self.timings = Timings() if timings is None else timings
        """See `Environment.timings`."""
        self.stopwatch: Callable[[], float] = time.perf_counter
        """See `Environment.stopwatch`."""
        self._generator = random.Random(os.urandom(16))
        self._limiter = trio.CapacityLimiter(OWN_THREADS)
        self._process: Process | None = None

    now = staticmethod(trio.current_time)
    """Seconds on trio's clock; only inside `trio.run`. Not a method of its own, because each call
    reads it.
    """

    def wall_time(self) -> float:
        """Seconds since 1970 UTC, by the system's clock."""
        return time.time()

    def random(self) -> float:
        """A number in [0, 1), from a generator that the kernel has seeded."""
        return self._generator.random()

    def token(self, size: int) -> bytes:
        """`size` unpredictable bytes from the kernel."""
        return os.urandom(size)

    def process(self) -> Process:
        """This process."""
        # Read once: each connection asks. Anew after a fork, which has copied what was read.
        pid = os.getpid()
        if self._process is None or self._process.pid != pid:
            self._process = Process(host_identity(), pid, process_start(pid))
        return self._process

    def has_ended(self, process: Process) -> bool:
        """Return True if `process` is one of this host and has certainly ended."""
        return (
            bool(process.host)
            and process.host == self.process().host
            and has_ended(process.pid, process.started)
        )

    async def in_thread(
        self,
        function: Callable[[], T],
        limiter: trio.CapacityLimiter | None = None,
        *,
        abandon: bool = False,
    ) -> T:
        """Run a blocking function in a thread, and return its result. `limiter`: how many may run
        at once; None: `OWN_THREADS`. With `abandon`, a cancelled caller leaves the thread running.
        Raises what the function raises, and `NoThreadError`.
        """
        # Never trio's default limiter: users' own `trio.to_thread.run_sync` counts with that, and
        # may block for ever.
        try:
            ran = await trio.to_thread.run_sync(
                Ran, function, limiter=limiter or self._limiter, abandon_on_cancel=abandon
            )
        except RuntimeError as error:
            # Of the function itself `Ran` keeps all errors.
            if is_refused_thread(error):
                raise NoThreadError from None
            raise
        return ran.value()

    def run_beside(
        self, function: Callable[[Environment, LookAtStack], Awaitable[None]]
    ) -> Beside | None:
        """Run `function` in an event loop in a thread. The thread is a daemon: it ends with the
        process.
        """
        clock = trio.lowlevel.current_clock()
        if type(clock).__name__ != "SystemClock":
            # Time is virtual, and does not pass in threads.
            return None
        return _Thread(
            clock,
            partial(
                function, SystemEnvironment(self.timings), partial(_frame_of, threading.get_ident())
            ),
        )


def _frame_of(thread: int) -> FrameType | None:
    return sys._current_frames().get(thread)


class _Thread:
    """A thread with an event loop, whose clock is the one of the loop that starts it: trio's is the
    machine's, plus a number. Raises `NoThreadError`.
    """

    def __init__(self, clock: trio.abc.Clock, main: Callable[[], Awaitable[None]]) -> None:
        self._scope = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken | None = None
        self._lock = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(
            target=self._run, args=(clock, main), name="beside the event loop", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:
            if is_refused_thread(error):
                raise NoThreadError from None
            raise

    def _run(self, clock: trio.abc.Clock, main: Callable[[], Awaitable[None]]) -> None:
        try:
            trio.run(self._main, main, clock=clock)
        except Exception:
            # The loop that it runs beside goes on, as it did before there were two.
            logger.exception("the second event loop has failed; the node runs on without it")

    async def _main(self, main: Callable[[], Awaitable[None]]) -> None:
        with self._lock:
            self._token = trio.lowlevel.current_trio_token()
            if self._ended:
                return
        try:
            with self._scope:
                await main()
        finally:
            # Also if it raises: nothing can be run in a loop that has ended.
            with self._lock:
                self._token = None

    async def end(self) -> None:
        """Cancel what the loop runs, and wait for the thread's end, bounded in time."""
        with self._lock:
            self._ended = True
            if self._token is not None:
                # Under the lock, which the loop's thread takes to clear the token: the loop has not
                # ended.
                self._token.run_sync_soon(self._scope.cancel)
        with trio.move_on_after(END_SECONDS):
            await trio.to_thread.run_sync(
                self._thread.join, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
            )
