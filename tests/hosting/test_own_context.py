"""What a method, an item or a hook sets in its context (`contextvars`) ends with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any
from weakref import ref

import attrs
import pytest
import trio

from actors import Actor, message, method
from runtime.hosting.running_batch import RunningBatch
from tests.live_pair import Pair

TENANT: ContextVar[str] = ContextVar("TENANT", default="nobody's")


@message
@attrs.frozen
class Parcel:
    """An argument that is to be freed with its call."""

    text: str


class Careless(Actor):
    """Sets variables, and does not set them back."""

    def __init__(self, start: str = "") -> None:
        self.start = start

    async def on_start(self) -> None:
        if self.start:
            TENANT.set(self.start)

    @method
    async def set_at_once(self, tenant: str) -> None:
        TENANT.set(tenant)

    @method
    async def set_and_wait(self, tenant: str) -> list[str]:
        TENANT.set(tenant)
        await trio.lowlevel.checkpoint()
        seen = [TENANT.get()]

        async def look() -> None:
            seen.append(TENANT.get())
            TENANT.set("the task's")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            nursery.start_soon(trio.lowlevel.checkpoint)
        return [*seen, await trio.to_thread.run_sync(TENANT.get), TENANT.get()]

    @method
    async def items(self, tenant: str) -> AsyncIterator[str]:
        TENANT.set(tenant)
        for _ in range(2):
            await trio.lowlevel.checkpoint()
            yield TENANT.get()

    @method
    async def set_and_raise(self, tenant: str) -> None:
        TENANT.set(tenant)
        raise ValueError(tenant)

    @method
    async def exchange(self, tenant: str) -> str:
        before = TENANT.get()
        TENANT.set(tenant)
        return before

    @method
    def exchange_in_thread(self, tenant: str) -> str:
        before = TENANT.get()
        TENANT.set(tenant)
        return before

    @method
    async def set_in_thread(self, tenant: str) -> list[str]:
        return [*await self.call_from_thread(tenant), TENANT.get()]

    @method
    def call_from_thread(self, tenant: str) -> list[str]:
        TENANT.set(tenant)
        seen = trio.from_thread.run(self.look_around)
        return [*seen, trio.from_thread.run_sync(TENANT.get), TENANT.get()]

    async def look_around(self) -> list[str]:
        before = TENANT.get()
        TENANT.set("the loop's")
        await trio.lowlevel.checkpoint()
        after = TENANT.get()
        # Another thread, within what the first one waits for.
        return [before, after, *await self.look_from_thread()]

    @method
    def look_from_thread(self) -> list[str]:
        before = TENANT.get()
        TENANT.set("the second thread's")
        return [before, trio.from_thread.run(self.look_further)]

    async def look_further(self) -> str:
        await trio.lowlevel.checkpoint()
        return TENANT.get()

    @method
    def begin_from_thread(self, parcel: Parcel) -> None:
        self.parcel = ref(parcel)
        self.nursery.start_soon(trio.sleep_forever)
        trio.from_thread.run_sync(self.nursery.start_soon, trio.sleep_forever)
        trio.from_thread.run(self.begin)

    async def begin(self) -> None:
        self.nursery.start_soon(trio.sleep_forever)

    @method
    async def has_parcel(self) -> bool:
        return self.parcel() is not None


class Looker(Actor):
    """Another actor of the same node."""

    @method
    async def look(self) -> str:
        return TENANT.get()


async def test_what_a_method_sets_is_not_there_for_other_calls(pair: Pair, where: str) -> None:
    careless = await pair.here.options(on=where).spawn(Careless)
    looker = await pair.here.options(on=where).spawn(Looker)
    await careless.set_at_once("acme's")
    assert await looker.look() == "nobody's"
    assert await careless.set_and_wait("acme's") == ["acme's"] * 4
    assert await looker.look() == "nobody's"
    assert [item async for item in careless.items("acme's")] == ["acme's"] * 2
    assert await looker.look() == "nobody's"
    with pytest.raises(ValueError, match="acme's"):
        await careless.set_and_raise("acme's")
    assert await careless.exchange("acme's") == "nobody's"
    assert await careless.exchange_in_thread("acme's") == "nobody's"
    assert await looker.look() == "nobody's"


async def test_what_a_thread_calls_on_the_loop_has_the_context_of_the_thread(
    pair: Pair, where: str
) -> None:
    # As `trio.from_thread.run` has it everywhere: tracers and loggers keep their place in it.
    careless = await pair.here.options(on=where).spawn(Careless)
    within = ["acme's", "the loop's", "the loop's", "the second thread's"]
    assert await careless.call_from_thread("acme's") == [*within, "acme's", "acme's"]
    assert await careless.set_in_thread("acme's") == [*within, "acme's", "acme's", "nobody's"]


async def test_a_task_that_a_thread_has_begun_does_not_keep_the_arguments_of_its_call(
    pair: Pair, where: str
) -> None:
    careless = await pair.here.options(on=where).spawn(Careless)
    await careless.begin_from_thread(Parcel("heavy"))
    # In the next turn: the worker has let go of the call by then.
    assert not await careless.has_parcel()


async def test_what_on_start_sets_stays_in_it(pair: Pair, where: str) -> None:
    careless = await pair.here.options(on=where).spawn(Careless, "acme's")
    assert TENANT.get() == "nobody's", "the task that spawned it"
    assert await careless.exchange("x") == "nobody's"


@pytest.mark.parametrize("method_", [Careless.exchange, Careless.exchange_in_thread])
async def test_items_of_a_batch_do_not_see_what_others_have_set(pair: Pair, method_: Any) -> None:
    async with await pair.here.pool(None, Careless, size=1) as pool:
        seen = [before async for before in pool.map(method_, map(str, range(20)), batch=10)]
    assert seen == ["nobody's"] * 20


def test_items_of_a_batch_in_a_thread_have_their_own_contexts() -> None:
    running = RunningBatch([["one's"], ["another's"]], lambda: True)
    running.run(Careless.exchange_in_thread.definition.function, Careless(), lambda: 0.0)
    assert [outcome[1] for outcome in running.outcomes] == ["nobody's"] * 2
    assert TENANT.get() == "nobody's"
