"""A handler of `logging` that raises, which a method has added, ends no node."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from trio.testing import MockClock

from actors import Actor, method
from runtime import open_node
from runtime.testing import Platform
from tests.memory_network import MemoryNetwork
from tests.waiting import until

SECRET = "a secret for the tests of broken handlers"


class BrokenHandler(logging.Handler):
    """Raises for each record."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())
        raise RuntimeError("the handler's own")


BROKEN = BrokenHandler()


class Logging(Actor):
    @method
    async def break_all(self) -> None:
        logging.getLogger().addHandler(BROKEN)

    @method
    async def log(self) -> None:
        logging.getLogger("of_the_program").info("of the actor's own")


@pytest.fixture(autouse=True)
def whole_handlers() -> Iterator[None]:
    """Remove the handler at the end."""
    yield
    logging.getLogger().removeHandler(BROKEN)
    BROKEN.seen.clear()


async def test_a_handler_that_raises_ends_calls_that_log_and_no_node(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    place: dict[str, Any] = {"secret": SECRET, "platform": Platform(network=MemoryNetwork())}
    async with open_node("w1", **place) as w1:
        actor = await w1.spawn(Logging)
        async with open_node("w2", join=w1.address, **place):
            await until(lambda: len(w1.members()) == 2, "the other has joined")
            await actor.break_all()
        # The line is logged by the task that follows the members: without it, w1 would end.
        await until(lambda: len(w1.members()) == 1, "the other has left")
        assert any("w2" in line and "has left" in line for line in BROKEN.seen)
        with pytest.raises(RuntimeError, match="the handler's own"):
            await actor.log()
        async with open_node("w3", join=w1.address, **place):
            await until(lambda: len(w1.members()) == 2, "a third has joined")
