"""Pending calls: this node's calls on one link that wait for an answer.

No I/O and no clock. A call begins once and finishes once: by its answer, by the end of its link, or
because its caller gave up. An answer to a finished call is late, and is dropped. A call that is
repeated with the same number is the same call: the answer to any of its attempts finishes it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import attrs

from actors.errors import CallError
from runtime.calls.error_codec import CallPlace

if TYPE_CHECKING:
    from actors.call_context import CallContext
    from actors.method import Bound
    from actors.peers import VerifiedPeer
    from runtime.hosting.chains import Chain
    from runtime.references.table import ReferenceState
    from runtime.statistics.call_statistics import CallTimer

T = TypeVar("T")


@attrs.define(eq=False)
class OutgoingRequest:
    """One attempt at a call, as the client hands it to a link or to its own host. Made anew for
    each attempt, and not changed once it is handed over: the host keeps it while the actor starts.
    """

    # Every call makes one: a frozen class would take twice as long to make.

    bound: Bound
    args: tuple[object, ...]
    kwargs: dict[str, object]
    deadline: float
    """On the node's clock, in seconds."""
    flags: int = 0
    """The flags of the CALL frame; see `runtime.calls.protocol`."""
    chain: Chain | None = None
    """The chain of methods that wait for it; None outside of methods."""
    context: CallContext | None = None
    """The context that travels beside the arguments; None if it has none."""
    attempt: int = 1
    first: int = 0
    """The number of the first attempt at a call that may be made again; 0 for any other call."""
    repeated: bool = False
    """An earlier attempt may have run."""
    elsewhere: bool = False
    """One that may have was made to another epoch of the actor, or to another node."""
    state: ReferenceState | None = None
    """The state of the reference to its result, if that stays at its owner."""
    counted: bool = False
    """The caller counts the call: on its own node it is not counted a second time."""
    timer: CallTimer | None = None
    """Times it as well; only if it is `counted`."""
    peer: VerifiedPeer | None = None
    """Whose call it is, if this node only passes it on to an actor of its own; None: its own."""


class PendingCall(Generic[T]):
    """A call that waits. `waiter` is the task to be woken, None while no task is parked on the
    call.

    When it is `finished`, `error` is set or `value` is its result. `expired`: its own timeout
    passed first.
    """

    __slots__ = (
        "ended",
        "error",
        "expired",
        "finished",
        "large_answer",
        "left",
        "lends",
        "number",
        "place",
        "recalled",
        "ticket",
        "timed",
        "value",
        "waiter",
    )

    def __init__(self, number: int, place: CallPlace, waiter: T | None) -> None:
        self.number = number
        self.place = place
        self.waiter = waiter
        self.ticket: Any = 0
        """The link's ticket for the request; for a call on this node, the invocation."""
        self.lends = False
        """True if the request refers to memory that the caller may change once the call is over."""
        self.recalled = False
        """True if the request was taken back: it certainly was not received, and will not be."""
        self.left = False
        """True if an attempt before the present one may have been received, and has no answer."""
        self.value: object = None
        self.error: CallError | None = None
        self.finished = False
        self.expired = False
        self.timed = 0
        """The number of its entry among the timeouts that counts; 0 while none does."""
        self.large_answer = False
        """True if its answer has parts beside the control part: its peer should not keep it for
        long.
        """
        self.ended: Callable[[PendingCall[T]], None] | None = None
        """Called when it ends if no task is parked on it."""

    def fail(self, error: CallError) -> None:
        """Finish the call with `error`."""
        self.error = error
        self.finished = True

    def fail_unsent(self, error: BaseException) -> None:
        """Finish a call that was deferred with the error that kept it from being encoded, which may
        be of any class.
        """
        self.fail(cast("CallError", error))

    def raise_unsent(self) -> None:
        """Raise that error, if there is one: no attempt at the call was made."""
        error = cast("BaseException | None", self.error)
        try:
            if error is not None and not isinstance(error, CallError):
                self.error = None
                raise error
        finally:
            # No circle with this frame, which the traceback has.
            del error


class OutgoingCalls(Generic[T]):
    """The table of one link."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending: dict[int, PendingCall[T]] = {}

    def begin(self, call: PendingCall[T]) -> None:
        """Enter a call, or enter it again."""
        self.pending[call.number] = call

    def take(self, number: object) -> PendingCall[T] | None:
        """Finish the call of this number and return it; None if it was finished already."""
        return self.pending.pop(number, None)  # type: ignore[call-overload, no-any-return]

    def end(self, outcome: Callable[[PendingCall[T]], CallError]) -> list[PendingCall[T]]:
        """End the table with its link: each call still waiting ends with the error that `outcome`
        gives for it. Return those to wake.
        """
        ended = list(self.pending.values())
        self.pending.clear()
        for call in ended:
            call.fail(outcome(call))
        return ended

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. For tests and simulations."""
        for number, call in self.pending.items():
            assert number == call.number
            assert not call.finished, "a finished call waits for no answer"


class OpenCalls:
    """This node's open repeatable calls, to all peers, by the numbers of their first attempts, by
    which all nodes identify them.
    """

    __slots__ = ("_latest", "_open")

    def __init__(self) -> None:
        # A plain dict would look for its first key through all that have left: with 100,000 calls
        # under way that end in turn, for seconds.
        self._open: OrderedDict[int, None] = OrderedDict()
        self._latest = 0

    @property
    def watermark(self) -> int:
        """All calls below it have ended and will not be made again."""
        return next(iter(self._open), self._latest + 1)

    def begin(self, number: int) -> None:
        """A call was made; numbers grow."""
        assert number > self._latest, "the first open call is the smallest only if numbers grow"
        self._open[number] = None
        self._latest = number

    def end(self, number: int) -> None:
        """It will not be made again."""
        self._open.pop(number, None)

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. For tests and simulations."""
        assert all(first < second for first, second in pairwise(self._open))
        assert all(number <= self._latest for number in self._open)


class Confirmations:
    """Tracks which of this node's repeatable calls to one peer have ended, so that the peer may
    forget its records of them.

    After RIFL (Lee et al., SOSP 2015): all calls below the watermark have ended. A long call would
    hold the watermark back for all that follow, so numbers beyond it are confirmed one by one.
    """

    __slots__ = ("_ended", "_latest", "_open")

    MOST_UNSAID = 32

    def __init__(self) -> None:
        # Ordered, because its first key is asked for; see `OpenCalls`.
        self._open: OrderedDict[int, None] = OrderedDict()
        self._ended: list[int] = []
        self._latest = 0

    def begin(self, number: int) -> None:
        """A repeatable call was made; numbers grow."""
        self._open[number] = None
        if number > self._latest:
            self._latest = number

    def end(self, number: int) -> bool:
        """Note that a call has ended and is not repeated; True if a confirmation should be sent
        now, because many have ended since the last one.
        """
        if self._open.pop(number, 0) is None:
            self._ended.append(number)
        return len(self._ended) >= self.MOST_UNSAID

    def take(self) -> tuple[int, list[int]]:
        """Take what to confirm: the watermark, below which every call has ended, and the numbers
        beyond it of calls that have.
        """
        # Numbers are entered as they are drawn, so the first is the smallest.
        watermark = next(iter(self._open), self._latest + 1)
        assert watermark <= self._latest + 1
        beyond = [number for number in self._ended if number > watermark]
        assert not self._open or all(number not in self._open for number in beyond), (
            "a call that may be repeated is never confirmed"
        )
        self._ended.clear()
        return watermark, beyond

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. For tests and simulations."""
        assert all(first < second for first, second in pairwise(self._open))
        assert all(number <= self._latest for number in (*self._open, *self._ended))
        assert self._open.keys().isdisjoint(self._ended), "a call is open or has ended"
        assert len(set(self._ended)) == len(self._ended)
