"""Failpoints: faults at named points between nodes, switched on by tests.

Off, each point costs one attribute test. The points are those of Ray's RPC fault injection (request
lost, response lost, in flight) and of FoundationDB's BUGGIFY, which users of a system may turn on
as well: see `runtime.testing`.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Final, Literal, cast, get_args

import attrs
import trio

Point = Literal["request-lost", "request-repeated", "reply-lost", "in-flight", "slow", "cut"]

POINTS: Final[tuple[str, ...]] = get_args(Point)

SLOW_SECONDS = 0.1
"""How long a slow call takes longer, if the fault does not say."""


@attrs.define
class Fault:
    """One fault that is switched on. `struck` counts how often it has happened.

    `probability`: of each opportunity. `times`: how often at most; None for ever. `seconds`: how
    long, where the point is "slow". `method`: only calls of methods of this name; None for all, the
    runtime's own among them.
    """

    point: Point
    probability: float = 1.0
    times: int | None = None
    seconds: float = SLOW_SECONDS
    method: str | None = None
    struck: int = 0


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


class Faults:
    """The faults of one node, or of several that share them. Hand it to
    `open_node(platform=Platform(faults=...))`.

    - "request-lost": the request of a call is never sent; the caller gets no answer.
    - "request-repeated": the request of a call that may be repeated is sent twice.
    - "reply-lost": the method has run, and its answer is never sent.
    - "in-flight": the call ends at its caller as with a lost connection, while the method runs.
    - "slow": the request waits before it is sent.
    - "cut": the connection is dropped right after the request was given to it.

    All but "cut" are invisible to links: what they lose stays lost until the call is made again,
    which takes a `RetryPolicy` with an `attempt_timeout`. Calls within one node never suffer.
    """

    def __init__(self) -> None:
        self.active: list[Fault] = []
        self._draw: Callable[[], float] = lambda: 0.0

    @classmethod
    def parse(cls, text: str) -> Faults:
        """Faults from a text like `reply-lost=0.1,slow=0.5@0.2`: point, probability, and seconds
        for "slow".

        Raises ValueError, naming what is wrong.
        """
        faults = cls()
        for part in filter(None, (part.strip() for part in text.split(","))):
            point, equals, figures = part.partition("=")
            probability, at, seconds = figures.partition("@")
            try:
                faults.add(
                    cast("Point", point),
                    float(probability) if equals else 1.0,
                    seconds=float(seconds) if at else SLOW_SECONDS,
                )
            except ValueError as error:
                raise ValueError(
                    f"{part!r} is not a fault: {error}; expected for example reply-lost=0.1 or "
                    "slow=0.5@0.2"
                ) from None
        return faults

    def use(self, draw: Callable[[], float]) -> None:
        """Take chance from `draw`, which returns numbers in [0, 1): the node's environment. Until
        then every fault strikes.
        """
        self._draw = draw

    def add(
        self,
        point: Point,
        probability: float = 1.0,
        *,
        times: int | None = None,
        seconds: float = SLOW_SECONDS,
        method: str | None = None,
    ) -> Fault:
        """Switch a fault on; see `Fault`. Raises ValueError for an unknown point, a probability
        outside [0, 1], and other values with which no fault could happen as it is described.
        """
        if point not in POINTS:
            raise ValueError(
                f"there is no fault point {point!r}; the points are {', '.join(POINTS)}"
            )
        # Here, and not at the call that the fault happens to: an error there is one of the node.
        if not _is_number(probability) or not 0 <= probability <= 1:
            raise ValueError(f"a probability is from 0 to 1, not {probability!r}")
        if not _is_number(seconds) or not 0 <= seconds < float("inf"):
            raise ValueError(f"seconds must be at least 0 and finite, not {seconds!r}")
        if times is not None and (type(times) is not int or times < 1):
            raise ValueError(f"times is a number from 1 on, or None for ever, not {times!r}")
        named: object = method
        if named is not None and not (isinstance(named, str) and named):
            raise ValueError(f"method is the name of one, or None for all, not {method!r}")
        fault = Fault(point, probability, times, seconds, method)
        self.active.append(fault)
        return fault

    def clear(self) -> None:
        """Switch all faults off."""
        self.active.clear()

    def strike(self, point: Point, method: str) -> Fault | None:
        """The fault that happens to a call of `method` at `point` now, if one does."""
        for fault in self.active:
            if fault.point != point or (fault.method is not None and fault.method != method):
                continue
            if (fault.times is None or fault.struck < fault.times) and (
                fault.probability == 1.0 or self._draw() < fault.probability
            ):
                fault.struck += 1
                return fault
        return None

    async def slow_down(self, method: str) -> None:
        """Wait, if a call of `method` is to be slow."""
        fault = self.strike("slow", method)
        if fault is not None:
            await trio.sleep(fault.seconds)
