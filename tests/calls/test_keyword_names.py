"""A method that takes any keywords takes those that are names in the runtime, too."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from actors import Actor, method
from tests.live_pair import Pair


class Taker(Actor):
    """Takes any keywords."""

    @method
    async def take(self, /, **words: int) -> dict[str, int]:
        return words

    @method
    async def items(self, /, **words: int) -> AsyncIterator[dict[str, int]]:
        yield words


@pytest.mark.parametrize("name", ["self", "args", "kwargs", "method", "actor", "timeout"])
async def test_keywords_have_any_name(pair: Pair, where: str, name: str) -> None:
    taker = await pair.here.options(on=where).spawn(Taker)
    given = {name: 1}
    assert await taker.take(**given) == given
    assert await (await taker.take.remote(**given)).fetch() == given
    assert [item async for item in taker.items(**given)] == [given]
    await taker.take.send(**given)
