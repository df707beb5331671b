"""Batches of a plain method that follow each other in one thread: what runs when, and what callers
get when the actor ends, pauses, or a caller gives up meanwhile.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import attrs
import pytest
import trio

from actors import Actor, method
from actors.errors import ActorDiedError, ActorNotFoundError
from actors.handle import Handle
from actors.supervision import ExitReason
from runtime.hosting.batch_thread import MOST_BATCHES
from runtime.hosting.cell import ActorCell
from runtime.hosting.item_batches import BATCH_METHODS
from runtime.hosting.running_batch import NOT_STARTED, RETURNED
from runtime.node import Node, internals_of
from tests.live_pair import Pair
from tests.waiting import until


class Stage:
    """What the actor of one test has begun, in which thread, and what lets it end."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.threads: list[int] = []
        self.inside = 0
        self.most_inside = 0
        self.gates: dict[int, threading.Event] = defaultdict(threading.Event)

    def open_all(self, count: int) -> None:
        for item in range(count):
            self.gates[item].set()


class Member(Actor):
    """Runs an item until its gate is opened."""

    stage: ClassVar[Stage]

    @method
    def run(self, item: int) -> int:
        stage = self.stage
        stage.inside += 1
        stage.most_inside = max(stage.most_inside, stage.inside)
        stage.threads.append(threading.get_ident())
        stage.begun.append(item)
        assert stage.gates[item].wait(60)
        stage.inside -= 1
        return item


@attrs.define
class Scene:
    """The actor, as its callers and its node see it."""

    stage: Stage
    node: Node
    cell: ActorCell
    handle: Any
    ended: dict[int, object]
    nursery: trio.Nursery

    async def send(self, item: int) -> trio.CancelScope:
        """Call it with a batch of one item, and wait until the call has arrived."""
        before = self.cell.depth
        scope = trio.CancelScope()
        self.nursery.start_soon(self._batch, item, scope)
        await until(lambda: self.cell.depth > before, "the batch has arrived")
        return scope

    async def _batch(self, item: int, scope: trio.CancelScope) -> None:
        with scope:
            try:
                _, self.ended[item] = await getattr(self.handle, "@items")(
                    "run", f"map.{item}", [[item]]
                )
            except Exception as error:
                self.ended[item] = error

    async def call(self, item: int) -> None:
        """Call it as any user does."""
        before = self.cell.depth

        async def call() -> None:
            self.ended[item] = await self.handle.run(item)

        self.nursery.start_soon(call)
        await until(lambda: self.cell.depth > before, "the call has arrived")

    async def until_begun(self, *items: int) -> None:
        await until(lambda: self.stage.begun == list(items), f"it has begun {items}")

    async def until_ended(self, *items: int) -> None:
        await until(lambda: set(self.ended) == set(items), f"the calls of {items} have ended")


@pytest.fixture
async def scene(pair: Pair, where: str, nursery: trio.Nursery) -> AsyncIterator[Scene]:
    """The actor with a first batch, which runs."""
    stage = Member.stage = Stage()
    handle: Any = await pair.here.options(name="member", on=where).spawn(Member)
    node = pair.here if where == "here" else pair.there
    cell = internals_of(node).cells["member"]
    both = Handle(
        internals_of(pair.here).caller, handle.address, {**Member.__methods__, **BATCH_METHODS}
    )
    found = Scene(stage, node, cell, both, {}, nursery)
    await found.send(0)
    await found.until_begun(0)
    yield found
    stage.open_all(MOST_BATCHES + 5)


async def test_a_batch_follows_in_the_thread_and_each_is_answered_when_it_has_ended(
    scene: Scene,
) -> None:
    await scene.send(1)
    scene.stage.gates[0].set()
    await scene.until_ended(0)
    await scene.until_begun(0, 1)
    assert scene.cell.turn is not None, "the turn lasts"
    scene.stage.gates[1].set()
    await scene.until_ended(0, 1)
    assert scene.ended == {0: [[RETURNED, 0]], 1: [[RETURNED, 1]]}
    assert len(set(scene.stage.threads)) == 1
    await scene.cell.wait_quiet()
    assert scene.cell.following is None


async def test_other_calls_have_their_turns_in_order_and_none_runs_beside(scene: Scene) -> None:
    await scene.send(1)
    await scene.call(2)
    await scene.send(3)
    await scene.send(4)
    assert scene.cell.waiting == 3, "what comes behind a call that waits waits as well"
    scene.stage.open_all(5)
    await scene.until_ended(*range(5))
    assert scene.stage.begun == [0, 1, 2, 3, 4]
    assert scene.stage.most_inside == 1


async def test_a_turn_has_an_end(scene: Scene) -> None:
    for item in range(1, MOST_BATCHES + 3):
        await scene.send(item)
    assert scene.cell.waiting == 2
    scene.stage.open_all(MOST_BATCHES + 3)
    await scene.until_ended(*range(MOST_BATCHES + 3))
    assert scene.stage.begun == list(range(MOST_BATCHES + 3))


async def test_what_waited_in_a_killed_actor_was_certainly_not_executed(scene: Scene) -> None:
    await scene.send(1)
    internals_of(scene.node).host.end_at_once(scene.cell, ExitReason("killed", "by the test"))
    scene.stage.open_all(2)
    await scene.until_ended(0, 1)
    assert isinstance(scene.ended[0], ActorDiedError)
    assert isinstance(scene.ended[1], ActorNotFoundError), "a refusal: it did not run"
    assert scene.stage.begun == [0]


async def test_what_had_begun_in_a_killed_actor_is_of_unknown_outcome(scene: Scene) -> None:
    await scene.send(1)
    scene.stage.gates[0].set()
    await scene.until_begun(0, 1)
    await scene.until_ended(0)
    internals_of(scene.node).host.end_at_once(scene.cell, ExitReason("killed", "by the test"))
    scene.stage.gates[1].set()
    await scene.until_ended(0, 1)
    assert scene.ended[0] == [[RETURNED, 0]]
    assert isinstance(scene.ended[1], ActorDiedError)


async def test_what_a_stopped_actor_has_accepted_ends_first(scene: Scene) -> None:
    await scene.send(1)
    scene.nursery.start_soon(internals_of(scene.node).host.stop, "member", 0, ExitReason("normal"))
    await until(lambda: scene.cell.ended, "the stop has begun")
    scene.stage.open_all(2)
    await scene.until_ended(0, 1)
    assert scene.ended == {0: [[RETURNED, 0]], 1: [[RETURNED, 1]]}


async def test_a_batch_whose_caller_gives_up_does_not_start(scene: Scene) -> None:
    given_up = await scene.send(1)
    await scene.send(2)
    given_up.cancel()
    await until(
        lambda: any(invocation.cancelled for invocation in scene.cell.running), "the node knows"
    )
    scene.stage.open_all(3)
    await scene.until_ended(0, 2)
    assert scene.stage.begun == [0, 2]
    await scene.cell.wait_quiet()


async def test_the_batches_behind_one_that_was_given_up_run(pair: Pair, scene: Scene) -> None:
    await scene.send(1)
    first = scene.cell.turn
    assert first is not None
    first.cancel()
    scene.stage.open_all(2)
    await scene.until_ended(1)
    assert scene.ended[1] == [[RETURNED, 1]]
    await scene.cell.wait_quiet()


async def test_behind_one_that_was_given_up_each_is_answered_when_it_has_ended(
    scene: Scene,
) -> None:
    await scene.send(1)
    await scene.send(2)
    first = scene.cell.turn
    assert first is not None
    first.cancel()
    scene.stage.open_all(2)
    await scene.until_ended(1)
    # The last one, which its gate holds, has not ended: the answer of 1 may overtake its start.
    await scene.until_begun(0, 1, 2)


async def test_a_batch_behind_another_one_is_recalled(scene: Scene) -> None:
    await scene.send(1)
    assert await getattr(scene.handle, "@recall")("map.1") == 0
    scene.stage.open_all(2)
    await scene.until_ended(0, 1)
    assert scene.ended[1] == [[NOT_STARTED, None]]
    assert scene.stage.begun == [0]


async def test_while_the_lease_is_in_doubt_none_starts_and_none_is_answered(scene: Scene) -> None:
    await scene.send(1)
    scene.cell.paused = True
    scene.stage.open_all(2)
    await until(lambda: len(scene.cell.held or ()) == 2, "both outcomes are held back")
    assert not scene.ended
    scene.cell.resume()
    await scene.until_ended(0, 1)
    assert scene.ended == {0: [[RETURNED, 0]], 1: [[NOT_STARTED, None]]}
    assert scene.stage.begun == [0]
