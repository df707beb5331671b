"""A cluster with another lease: deaths, pauses and silences come as much later, or sooner. All
that is measured in leases is in `Timings`, and nothing has a time of its own beside it.
"""

from __future__ import annotations

from functools import partial

import pytest
import trio

from actors import Actor, method
from runtime.node import Node, internals_of
from runtime.simulation.cluster import SimulatedCluster, all_up
from runtime.simulation.scheduler import VirtualClock, run
from runtime.timings import Timings

NAMES = ("node-1", "node-2", "node-3")
STORE, LOST, OTHER = NAMES

FINELY = 0.01
"""Of a lease, from one look to the next."""


class Keeper(Actor):
    """Has a name to lose."""

    @method(idempotent=True)
    async def work(self) -> int:
        return self.epoch


class Stopwatch:
    """What happens after `LOST` is cut off from the others, in leases since then."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.lease = cluster.timings.lease
        self.unreachable = self.paused = self.died = 0.0
        self.before = self.after = 0
        """The epochs of the name, with the node that is lost and with the next."""

    def leases(self, since: float) -> float:
        """Time that has passed."""
        return (self.cluster.now() - since) / self.lease

    async def story(self) -> None:
        cluster = self.cluster
        await all_up(cluster)
        other, lost = await cluster.node(OTHER), await cluster.node(LOST)
        keeper = await other.options(name="keeper", on=LOST).spawn(Keeper)
        self.before = await keeper.work()
        # Both links have been quiet for a while: nothing is under way.
        await trio.sleep(2 * self.lease)
        heal = cluster.partition([LOST], [STORE, OTHER])
        began = cluster.now()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._see_it_pause, lost, began)
            nursery.start_soon(self._see_it_unreachable, other, lost, began)
            while any(member.name == LOST for member in other.members()):  # noqa: ASYNC110
                await trio.sleep(FINELY * self.lease)
            self.died = self.leases(began)
        again = await other.options(name="keeper").spawn(Keeper)
        self.after = await again.work()
        heal()

    async def _see_it_pause(self, lost: Node, began: float) -> None:
        cell = internals_of(lost).cells["keeper"]
        while not cell.paused:  # noqa: ASYNC110  asked as any outsider would
            await trio.sleep(FINELY * self.lease)
        self.paused = self.leases(began)

    async def _see_it_unreachable(self, other: Node, lost: Node, began: float) -> None:
        peers, identity = internals_of(other).endpoint.peers, internals_of(lost).endpoint.identity
        while not peers.is_unreachable(identity):  # noqa: ASYNC110  asked as any outsider would
            await trio.sleep(FINELY * self.lease)
        self.unreachable = self.leases(began)


async def _main(
    seed: int, timings: Timings, found: list[Stopwatch], clock: VirtualClock
) -> SimulatedCluster:
    cluster = SimulatedCluster(seed, NAMES, clock, timings)
    watch = Stopwatch(cluster)
    found.append(watch)
    await cluster.run(watch.story)
    return cluster


@pytest.mark.parametrize("lease", [1.0, 5.0, 20.0])
@pytest.mark.parametrize("seed", range(3))
def test_deaths_pauses_and_silences_follow_the_lease(seed: int, lease: float) -> None:
    found: list[Stopwatch] = []
    run(seed, partial(_main, seed, Timings(lease=lease), found))
    [watch] = found
    # In leases, as the defaults have it: whatever the lease is, the shares are the same.
    usual = Timings()
    silence, beat = usual.silence / usual.lease, usual.beat / usual.lease
    held, renewal = usual.held / usual.lease, usual.renew_every / usual.lease
    redial = usual.unreachable_after / lease
    # The silence, up to two beats for the look, and the time of a redial in vain.
    assert silence - 2 * beat <= watch.unreachable <= silence + 2 * beat + redial + FINELY
    # The last renewal was asked for up to a third of a lease before.
    assert held - renewal - FINELY <= watch.paused <= held + FINELY
    # Not before the names have paused, and not much after the lease.
    assert watch.paused < watch.died
    assert 1 - renewal - FINELY <= watch.died <= 1 + 2 * usual.expiry_watch / usual.lease
    assert watch.after > watch.before
