"""Members that end by themselves right after their start: others are started at a limited rate, and
all as soon as one of them goes on running.
"""

from __future__ import annotations

from typing import ClassVar

import pytest
import trio

from actors import Actor, method
from actors.errors import EmptyPoolError
from actors.supervision import ExitKind, ExitReason
from actors.supervisor import DeathReport
from runtime.pools.early_ends import EARLY_SECONDS, EarlyEnds
from runtime.simulation import Simulation, simulate
from tests.waiting import until

SECONDS = 30.0
"""Virtual ones, for which members end at once."""


class Unwell(Actor):
    """Starts, and then has a task that raises at once, while the class says so."""

    started: ClassVar[int] = 0
    is_unwell: ClassVar[bool] = True

    async def on_start(self) -> None:
        Unwell.started += 1
        if Unwell.is_unwell:
            self.nursery.start_soon(self._fail)

    async def _fail(self) -> None:
        # A moment, so that the start is over, in which the run ends if members are started for ever
        # without time going on.
        await trio.sleep(0.001)
        raise OSError("no file called weights")

    @method
    async def double(self, item: int) -> int:
        return 2 * item


async def ends_and_recovers(simulation: Simulation) -> None:
    Unwell.started, Unwell.is_unwell = 0, True
    pool = await simulation.node.pool("unwell", Unwell, size=8)
    await trio.sleep(SECONDS)
    assert Unwell.started < 40, f"{Unwell.started} members were started in {SECONDS:.0f} s"
    with pytest.raises(EmptyPoolError, match=r"right after their start: .*no file called weights"):
        pool.choose()
    Unwell.is_unwell = False
    await until(lambda: len(pool.members()), "all are back", lambda count: count == 8, seconds=15.0)
    assert [result async for result in pool.map(Unwell.double, range(5))] == [0, 2, 4, 6, 8]
    await pool.stop()


def test_members_that_end_at_once_are_started_at_a_limited_rate_until_one_goes_on() -> None:
    simulate(ends_and_recovers, seeds=range(2), faults=())


def report(number: int, lived: float, kind: ExitKind = "raised", text: str = "x") -> DeathReport:
    """The end of a member."""
    return DeathReport(
        id=f"member-{number}",
        name=f"pool/member-{number}",
        node="left",
        epoch=number,
        reason=ExitReason(kind, text),
        at=100.0,
        started=100.0 - lived,
    )


def test_the_pauses_grow_and_one_is_started_at_a_time() -> None:
    early = EarlyEnds()
    assert not early.is_one_at_a_time
    assert early.on_ended(report(1, 0.1), 10.0)
    assert not early.on_ended(report(2, 0.1), 10.0), "they were started together"
    assert early.is_one_at_a_time
    assert not early.may_start(10.05)
    assert early.may_start(10.2)
    early.on_started("member-3", 10.2)
    assert not early.may_start(11.0), "it is not known yet whether it goes on"
    assert early.on_ended(report(3, 0.9), 11.1)
    assert not early.may_start(11.25)
    assert early.may_start(11.35)


def test_one_that_goes_on_ends_the_pauses_and_one_from_before_does_not() -> None:
    early = EarlyEnds()
    early.on_started("member-1", 0.0)
    early.on_ended(report(2, 0.1), 10.0)
    early.look(20.0)
    assert early.is_one_at_a_time, "the first runs on a node that is fit, perhaps"
    early.on_started("member-3", 20.0)
    early.look(20.0 + EARLY_SECONDS / 2)
    assert early.is_one_at_a_time
    early.look(20.0 + EARLY_SECONDS)
    assert not early.is_one_at_a_time
    assert early.pause.seconds == 0.0


@pytest.mark.parametrize(
    ("kind", "text", "lived"),
    [
        ("raised", "OSError: no", EARLY_SECONDS),
        ("raised", "SystemExit: 3", 0.1),
        ("exit code", "9", 0.1),
        ("signal", "SIGKILL", 0.1),
        ("node died", "", 0.1),
        ("node left", "", 0.1),
        ("stopped", "", 0.1),
    ],
)
def test_what_items_users_and_nodes_do_to_members_does_not_count(
    kind: ExitKind, text: str, lived: float
) -> None:
    early = EarlyEnds()
    assert not early.on_ended(report(1, lived, kind, text), 10.0)
    assert not early.is_one_at_a_time


def test_each_report_is_seen_once() -> None:
    early, reports = EarlyEnds(), [report(number, 0.1) for number in range(5)]
    assert early.fresh([]) == []
    assert early.fresh(reports[:3]) == reports[:3]
    assert early.fresh(reports[:3]) == []
    assert early.fresh(reports[2:]) == reports[3:]
