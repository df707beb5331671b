"""Arguments that the node can read, and the process of the isolated actor cannot: it has imported
the module of the actor only.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio

from actors import Actor, method
from actors.errors import ActorStartError, BadArgumentsError, OutcomeUnknownError
from actors.messages import message
from runtime.node import Node
from tests.functions.functions_used import sold_out
from tests.isolation.actors_used import Counter

pytestmark = pytest.mark.cluster


@message
@attrs.frozen
class Amount:
    number: int


class Store(Actor):
    @method
    async def left(self) -> object:
        return sold_out()


async def test_a_result_that_the_node_cannot_read_is_that_of_the_actor(node: Node) -> None:
    store = await node.options(isolation="process", name="store").spawn(Store)
    with trio.fail_after(60):
        with pytest.raises(OutcomeUnknownError, match=r"^store\.left ran, but its result"):
            await store.left()


async def test_the_start_fails_and_says_what_its_process_lacks(node: Node) -> None:
    amount: Any = Amount(3)
    isolated = node.options(isolation="process", name="counter")
    with trio.fail_after(60):
        with pytest.raises(
            ActorStartError,
            match=r"its process cannot read what it is started with: .*Amount is not known",
        ):
            await isolated.spawn(Counter, amount)
        # Its name is free again.
        counter = await isolated.spawn(Counter, 3)
        with pytest.raises(
            BadArgumentsError,
            match=r"^counter.add was not called: node alone cannot read argument amount: .*Amount",
        ):
            await counter.add(amount)
        assert await counter.add(1) == 4
