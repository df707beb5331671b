"""A singleton whose name is claimed, though the actor is not where the claim says: the answer to
the claim was lost, and the start has failed.
"""

from __future__ import annotations

import pytest
import trio

from actors import Actor, method
from actors.errors import CallError
from actors.messages import import_path
from actors.method import Address
from actors.supervision import ExitKind, ExitReason
from runtime import open_node
from runtime.membership.restart_intents import CLUSTER
from runtime.node import Node, internals_of
from runtime.supervision.spawner import ActorSpawner

SECRET = "a secret for the tests of claims"
NAME = "leader"


class Leader(Actor):
    @method
    async def where(self) -> str:
        return self.node.name


class Answers:
    """How nodes answer those that watch the leader."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kinds: list[ExitKind] = []
        self._more = trio.Event()
        watch = ActorSpawner.watch_address

        async def watched(spawner: ActorSpawner, address: Address) -> ExitReason:
            reason = await watch(spawner, address)
            if address.name == NAME:
                self.kinds.append(reason.kind)
                self._more.set()
            return reason

        monkeypatch.setattr(ActorSpawner, "watch_address", watched)

    async def wait_for(self, count: int, kind: ExitKind = "no such actor") -> None:
        """Wait until so many answers of this kind have come."""
        with trio.fail_after(20):
            while self.kinds.count(kind) < count:
                self._more = trio.Event()
                await self._more.wait()


async def claimed_by(node: Node) -> int:
    """Claim the name as a start of the singleton on this node does, which is a candidate."""
    names = internals_of(node).names
    await names.intents.stand_for(NAME, node.name)
    return await names.claim(NAME, import_path(Leader), CLUSTER)


async def answer_of(node: Node) -> str:
    leader = await node.lookup(NAME, Leader)
    while True:
        try:
            return await leader.where()
        except CallError:
            await trio.sleep(0.01)


async def test_a_candidate_waits_for_a_claim_without_an_actor_and_starts_it_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = Answers(monkeypatch)
    async with (
        open_node("here", secret=SECRET) as here,
        open_node("there", join=here.address, secret=SECRET) as there,
    ):
        epoch = await claimed_by(here)
        found = await there.options(name=NAME).singleton(Leader)
        assert found.address.epoch == epoch
        # The name is still claimed: it may come, so that it is neither started nor given up.
        await answers.wait_for(2)
        assert set(answers.kinds) == {"no such actor"}
        assert await internals_of(there).names.is_promised(NAME)

        await internals_of(here).names.release(NAME, epoch)
        with trio.fail_after(20):
            assert await answer_of(here) == "there"
