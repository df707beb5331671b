"""Call statistics of one node: how the calls that it makes end and how long they take, and how long
those that it runs wait and take, by class and method.

Each call is counted, by plain integers; one in `SAMPLE` is timed, and stands in the histograms for
the calls since the last one that was timed as well. So a call that is not timed reads no clock.

Never by actor: a node has millions of those. The number of (class, method) pairs is bounded as
well, because peers and programs choose the names; further pairs are counted together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from actors import errors
from actors.class_names import bases, is_one_of
from actors.errors import CallError, MethodNotFoundError, UnderstudyError, outcome_of
from actors.method import Address
from runtime.statistics.histograms import BOUNDS, Histogram

MOST_PAIRS = 1000
"""Pairs of class and method that are counted apart."""

OTHER = "_OTHER"
"""Class and method of what is counted together, beyond that; OpenTelemetry's word."""

UNKNOWN_CLASS = "_UNKNOWN"
"""The class of calls through handles that do not know it."""

SAMPLE = 16
"""Of so many calls of a method one is timed; of a busy method half as many."""

ALL_TIMED = 16
"""Calls of a method that are all timed, before: of a method that is called seldom, or for a short
time, every call is known.
"""

GAPS: Final = (16, 7, 25, 12, 21, 3, 30, 18, 9, 28, 5, 22, 14, 31, 1, 15)
"""After how many calls the next one is timed; `SAMPLE` on average. Irregular, because programs make
calls in rounds: with one distance, the same call of each round might be timed, or never be. Their
sum is a prime number, so that in rounds of any length each call is timed now and then.
"""

BUSY_RATE = 1000.0
"""Calls a second of one method, from which on half as many are timed."""

BUSY_GAPS: Final = (33, 14, 51, 25, 42, 6, 60, 37, 19, 56, 11, 44, 29, 62, 3, 29)
"""Those of a busy method. Their sum is a prime number too."""

BUSIEST_RATE = 20_000.0
"""Calls a second of one method, from which on a quarter of those is timed: to time one takes as
long as some calls of an actor on the same node, and 150 in each second are enough.
"""

BUSIEST_GAPS: Final = (
    *(132, 56, 204, 100, 168, 24, 240, 148),
    *(76, 224, 44, 176, 116, 248, 12, 85),
)
"""Those of such a method. Their sum is a prime number too."""

SATURATED_RATE = 40_000.0
"""Calls a second of one method, from which on a quarter of those again is timed. Only calls on one
node reach this rate, if the node does little else; 80 in each second are left.
"""

SATURATED_GAPS: Final = (
    *(528, 224, 816, 400, 672, 96, 960, 592),
    *(304, 896, 176, 704, 464, 992, 48, 337),
)
"""Those of such a method. Their sum is a prime number too."""

LONG_TURN_SECONDS = 1.0
"""A turn that takes longer is counted as long."""

_REASONS: Final = frozenset(
    member
    for member in vars(errors).values()
    if isinstance(member, type) and issubclass(member, UnderstudyError)
)


def reason_of(error: BaseException) -> str:
    """The reason of an outcome as a label: the name of the error's class in `actors.errors`, or of
    the nearest one there that it derives from. So the number of reasons is bounded.
    """
    # The class of an error that was rebuilt may have a metaclass of the user's.
    for cls in bases(type(error)):
        if is_one_of(cls, _REASONS):
            return cls.__name__
    return OTHER


def class_of(address: Address) -> str:
    """The class of an actor as a label: its path, or the name of one of the runtime's services."""
    if address.class_path:
        return address.class_path
    # The service of a store has the store's identity behind its name.
    return address.name.partition("-")[0] if address.name[:1] == "@" else UNKNOWN_CLASS


class CallSampler:
    """Chooses which calls of a method are timed."""

    __slots__ = ("_at", "_gap", "_timed", "left")

    def __init__(self) -> None:
        self._at = 0.0
        self._gap = 1
        self._timed = 0
        self.left = 1
        """Calls until the one that is timed, itself included. For each call it is made one less;
        at 0 the call is timed: `take`.
        """

    def take(self, now: float) -> int:
        """Choose the next call to be timed. Returns for how many calls the one stands whose turn it
        is: itself, and those since the one that was timed before it. `now`: on the stopwatch.
        """
        weight = self._gap
        self._timed += 1
        timed = self._timed
        if timed < ALL_TIMED:
            gap = 1
        elif weight > SATURATED_RATE * (now - self._at):
            gap = SATURATED_GAPS[timed % len(SATURATED_GAPS)]
        elif weight > BUSIEST_RATE * (now - self._at):
            gap = BUSIEST_GAPS[timed % len(BUSIEST_GAPS)]
        elif weight > BUSY_RATE * (now - self._at):
            gap = BUSY_GAPS[timed % len(BUSY_GAPS)]
        else:
            gap = GAPS[timed % len(GAPS)]
        self._at = now
        self._gap = self.left = gap
        return weight


class CallTimer:
    """Times one call, which stands for `weight` of them: at its caller, where it runs, or at both
    if that is the same node. Times are seconds on the node's stopwatch.
    """

    __slots__ = ("_arrived", "_weight", "method", "started")

    def __init__(self, method: MethodStatistics, weight: int, arrived: float) -> None:
        self.method = method
        self._weight = weight
        self._arrived = arrived
        self.started = arrived
        """When its turn came."""

    def ran(self, now: float) -> float:
        """Note that the method has ended. Returns how long it ran."""
        turn = now - self.started
        self.method.add_run(self.started - self._arrived, turn, self._weight)
        return turn

    def answered(self, now: float) -> None:
        """Note that the call has ended at its caller."""
        self.method.client.add(now - self._arrived, self._weight)


class MethodStatistics:
    """The counters of one method of one class. Calls that this node makes are in the first half,
    those that it runs in the second.
    """

    __slots__ = (
        "arrived",
        "cancelled",
        "class_path",
        "client",
        "entered",
        "long_turns",
        "made",
        "method",
        "not_executed",
        "raised",
        "server",
        "server_raised",
        "token",
        "turn",
        "unknown",
        "value",
        "wait",
    )

    def __init__(self, class_path: str, method: str, token: object = None) -> None:
        self.token = token
        """That of the `CallStatistics` it is in. A caller that has kept it sees by that whether its
        node still counts there.
        """
        self.class_path = class_path
        self.method = method
        self.entered = False
        """True once it is among those of the node."""
        self.value = 0
        """Calls that returned."""
        self.raised = 0
        """Calls whose method raised."""
        self.cancelled = 0
        """Calls whose caller gave up before an outcome came: it was cancelled, or its own deadline
        has passed.
        """
        self.not_executed: dict[str, int] = {}
        """Calls that certainly did not run, by reason."""
        self.unknown: dict[str, int] = {}
        """Calls that may have run, by reason."""
        self.made = CallSampler()
        """Chooses which calls are timed where they are made."""
        self.client = Histogram()
        """How long calls took at the caller, over all attempts, however they ended."""
        self.arrived = CallSampler()
        """Chooses which calls are timed where they run."""
        self.wait = Histogram()
        """From a call's arrival at its actor's node to its turn."""
        self.turn = Histogram()
        """How long the method ran, also while it waited for something."""
        self.server = Histogram()
        """Both together: from arrival to outcome."""
        self.server_raised = 0
        """Runs that raised."""
        self.long_turns = 0
        """Turns longer than `LONG_TURN_SECONDS`; of those that block the event loop, the timed
        ones.
        """

    @property
    def ended(self) -> int:
        """Calls made from this node that have ended."""
        failed = sum(self.not_executed.values()) + sum(self.unknown.values())
        return self.value + self.raised + self.cancelled + failed

    @property
    def calls(self) -> int:
        """Calls made from this node that have ended, and calls run here."""
        return self.ended + self.turn.count

    def timed(self, sampler: CallSampler, now: float) -> CallTimer:
        """Begin to time a call of this method, whose turn it is by one of its two samplers."""
        return CallTimer(self, sampler.take(now), now)

    def fail(self, error: BaseException | None) -> None:
        """Count a call that was made here and that ended with `error`; None if its caller gave
        up.
        """
        if error is None or not isinstance(error, Exception):
            self.cancelled += 1
            return
        # What is no call error never left: arguments that cannot be sent, for one.
        outcome = outcome_of(error) if isinstance(error, CallError) else "not executed"
        if outcome == "raised":
            self.raised += 1
        else:
            reasons = self.not_executed if outcome == "not executed" else self.unknown
            reason = reason_of(error)
            reasons[reason] = reasons.get(reason, 0) + 1

    def add_run(self, wait: float, turn: float, weight: int) -> None:
        """Add a run here that waited and took so many seconds, and stands for `weight` of them."""
        self.wait.add(wait, weight)
        self.turn.add(turn, weight)
        self.server.add(wait + turn, weight)

    def take_in(self, other: MethodStatistics) -> None:
        """Add what was counted and measured in `other`."""
        self.value += other.value
        self.raised += other.raised
        self.cancelled += other.cancelled
        for mine, others in (
            (self.not_executed, other.not_executed),
            (self.unknown, other.unknown),
        ):
            for reason, count in others.items():
                mine[reason] = mine.get(reason, 0) + count
        self.client.take_in(other.client)
        self.wait.take_in(other.wait)
        self.turn.take_in(other.turn)
        self.server.take_in(other.server)
        self.server_raised += other.server_raised
        self.long_turns += other.long_turns

    def as_plain(self) -> dict[str, Any]:
        """Everything as plain data; histograms as `Histogram.as_plain` gives them."""
        return {
            "class": self.class_path,
            "method": self.method,
            "value": self.value,
            "raised": self.raised,
            "cancelled": self.cancelled,
            "not_executed": dict(self.not_executed),
            "unknown": dict(self.unknown),
            "client": self.client.as_plain(),
            "wait": self.wait.as_plain(),
            "turn": self.turn.as_plain(),
            "server": self.server.as_plain(),
            "server_raised": self.server_raised,
            "long_turns": self.long_turns,
        }


class CallStatistics:
    """The statistics of one node since it began to measure. `most`: pairs of class and method that
    are counted apart.
    """

    def __init__(self, most: int = MOST_PAIRS) -> None:
        self._most = most
        self.token = object()
        """No other statistics have the same."""
        self.by_class: dict[str, dict[str, MethodStatistics]] = {}
        """By class and method. Read where calls are counted; written only here."""
        self._pairs = 0
        self._other = MethodStatistics(OTHER, OTHER)

    def __iter__(self) -> Iterator[MethodStatistics]:
        """All pairs; last, if there is anything in it, what is counted together."""
        for methods in self.by_class.values():
            yield from methods.values()
        if self._other.calls:
            yield self._other

    def of(self, class_path: str, method: str) -> MethodStatistics:
        """The statistics of one pair, entered if there is room for it; else those of `OTHER`."""
        methods = self.by_class.get(class_path)
        if methods is not None:
            found = methods.get(method)
            if found is not None:
                return found
        return self._entered(MethodStatistics(class_path, method, self.token)) or self._other

    def _entered(self, new: MethodStatistics) -> MethodStatistics | None:
        """Enter a pair that is not there; None if there is no room for it."""
        if self._pairs >= self._most:
            return None
        self._pairs += 1
        new.entered = True
        self.by_class.setdefault(new.class_path, {})[new.method] = new
        return new

    def known(self, address: Address, method: str) -> MethodStatistics | None:
        """The statistics of a method of an actor, if it has its own."""
        methods = self.by_class.get(address.class_path or class_of(address))
        return None if methods is None else methods.get(method)

    def new(self, address: Address, method: str) -> MethodStatistics:
        """Return statistics for the first call of a method, to be entered when it has ended: only
        its outcome shows whether there is such a method.
        """
        return MethodStatistics(address.class_path or class_of(address), method, self.token)

    def enter(self, one: MethodStatistics) -> None:
        """Enter what `new` has returned, after its call; does nothing with what is entered."""
        if one.entered or one.token is not self.token:
            return
        known = self.by_class.get(one.class_path, {}).get(one.method)
        # Its name may be no method's, but whatever a program has tried: no pair is made for that.
        is_a_method = MethodNotFoundError.__name__ not in one.not_executed
        if known is not None or not is_a_method or self._entered(one) is None:
            (known or self._other).take_in(one)

    def returned(self, address: Address, method: str, seconds: float) -> None:
        """Count a call that this node made and that returned, and its time."""
        one = self.of(address.class_path or class_of(address), method)
        one.value += 1
        one.client.add(seconds)

    def failed(
        self, address: Address, method: str, error: BaseException | None, seconds: float
    ) -> None:
        """Count a call that this node made and that ended with `error`, and its time; None if its
        caller gave up.
        """
        one: MethodStatistics | None
        if isinstance(error, MethodNotFoundError):
            # Its name is no method's, but whatever a program has tried: no pair is made for it.
            one = self.known(address, method) or self._other
        else:
            one = self.of(address.class_path or class_of(address), method)
        one.fail(error)
        one.client.add(seconds)

    def ran(self, address: Address, method: str, wait: float, turn: float) -> None:
        """Count a run here, which waited and took so many seconds."""
        self.of(address.class_path or class_of(address), method).add_run(wait, turn, 1)

    def ran_long(self, address: Address, method: str) -> None:
        """Count a turn of more than `LONG_TURN_SECONDS`."""
        self.of(address.class_path or class_of(address), method).long_turns += 1

    def run_raised(self, address: Address, method: str) -> None:
        """Count a run here that raised, besides `ran`."""
        self.of(address.class_path or class_of(address), method).server_raised += 1

    def as_plain(self, most: int) -> dict[str, Any]:
        """Return bounded plain data: `methods`, those with most calls first, and `left_out`, how
        many more there are. `bounds`: those of the histograms, in seconds.
        """
        pairs = sorted(self, key=lambda one: -one.calls)
        most = max(0, most)
        return {
            "bounds": list(BOUNDS),
            "methods": [one.as_plain() for one in pairs[:most]],
            "left_out": max(0, len(pairs) - most),
        }

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. For tests and simulations."""
        assert self._pairs == sum(map(len, self.by_class.values())) <= self._most
        for one in self:
            for sampler in (one.made, one.arrived):
                assert 1 <= sampler.left <= max(SATURATED_GAPS), (
                    "the next call to be timed is known"
                )
            assert one.wait.count == one.turn.count == one.server.count
