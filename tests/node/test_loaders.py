"""Methods that fail in code whose source only a loader of the user's has: the loader's own errors
end nothing, wherever the runtime writes where the method has failed.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trio

from actors import Actor, method
from actors.errors import ActorStartError, RemoteError
from runtime.node import internals_of
from runtime.observation.inspection_service import inspection_of
from tests.live_pair import Pair
from tests.loaders import HARMFUL, generated
from tests.waiting import until

WAITS = "async def wait(event):\n    await event.wait()\n"


class Template(Actor):
    """Runs generated code in all places."""

    def __init__(self, kind: str, fails: bool = False) -> None:
        self.divide: Callable[[int], float] = generated(HARMFUL[kind]())["divide"]
        self.wait = generated(HARMFUL[kind](), WAITS)["wait"]
        self.fails = fails

    async def on_start(self) -> None:
        if self.fails:
            self.divide(0)

    @method
    async def on_loop(self, number: int) -> float:
        return self.divide(number)

    @method
    def in_thread(self, number: int) -> float:
        return self.divide(number)

    @method
    async def stream(self, number: int) -> AsyncIterator[float]:
        yield 1.0
        yield self.divide(number)

    @method
    async def in_task(self, number: int) -> None:
        self.nursery.start_soon(self.on_loop, number)

    @method(concurrent=True)
    async def wait_for_ever(self) -> None:
        await self.wait(trio.Event())


async def items(template: Template) -> None:
    async for _ in template.stream(0):
        pass


async def referred(template: Template) -> None:
    await (await template.on_loop.remote(0)).fetch()


WAYS: dict[str, Callable[[Template], Any]] = {
    "on_loop": lambda template: template.on_loop(0),
    "in_thread": lambda template: template.in_thread(0),
    "stream": items,
    "remote": referred,
}


@pytest.mark.parametrize("kind", HARMFUL)
@pytest.mark.parametrize("way", WAYS)
async def test_a_method_that_fails_in_generated_code_ends_its_call_alone(
    pair: Pair, where: str, way: str, kind: str
) -> None:
    with trio.fail_after(60):
        template = await pair.here.options(on=where).spawn(Template, kind)
        with pytest.raises(RemoteError, match="division by zero") as caught:
            await WAYS[way](template)
        assert isinstance(caught.value, ZeroDivisionError)
        assert await template.on_loop(2) == 0.5


@pytest.mark.parametrize("kind", HARMFUL)
async def test_one_way_calls_tasks_and_starts_that_fail_there_end_nothing_else(
    pair: Pair, where: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "understudy")
    with trio.fail_after(60):
        bystander = await pair.here.options(on=where).spawn(Template, kind)
        with pytest.raises(ActorStartError, match="division by zero"):
            await pair.here.options(on=where).spawn(Template, kind, fails=True)
        await bystander.on_loop.send(0)
        await until(lambda: "raised in a one-way call" in caplog.text, "the failure is logged")
        assert "ZeroDivisionError: division by zero" in caplog.text
        failing = await pair.here.options(on=where).spawn(Template, kind)
        await failing.in_task(0)
        await until(lambda: "ended: raised: ZeroDivisionError" in caplog.text, "its end is logged")
        assert await bystander.on_loop(2) == 0.5


@pytest.mark.parametrize("kind", HARMFUL)
async def test_stacks_are_told_without_the_lines_that_only_the_loader_knows(
    pair: Pair, kind: str
) -> None:
    with trio.fail_after(60):
        options = pair.here.options(on="there", name="template")
        template = await options.spawn(Template, kind)
        service = inspection_of(
            internals_of(pair.here).endpoint, pair.there.name, pair.there.incarnation
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(template.wait_for_ever)
            stack: list[Any] = []
            while "wait" not in [line[2] for line in stack]:
                tasks = (await service.stacks("template"))["tasks"]
                stack = [line for task in tasks for line in task["stack"]]
            sources = {function: source for _, _, function, source in stack}
            assert sources["wait"] == ""
            assert sources["Template.wait_for_ever"] == "await self.wait(trio.Event())"
            nursery.cancel_scope.cancel()
