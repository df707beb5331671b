"""What only reads, while the store is silent: its error says what was not read, and nothing of a
write.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import pytest

from actors import Actor, method
from actors.errors import DirectoryUnavailableError, StoreUnavailableError, UnderstudyError
from runtime import Node, open_node
from runtime.environment import SystemEnvironment
from runtime.node import internals_of
from runtime.simulation.network import HostNetwork
from runtime.store.interface import Compare, Get, Put, Transaction
from runtime.testing import Platform
from runtime.timings import Timings
from tests.live_pair import in_virtual_time
from tests.silent_network import SilentNetwork

FIRST, W1 = "first", "w1"
TIMINGS = Timings(lease=60.0)
"""The store is silent for less."""


class Saver(Actor):
    """Asks for its saved state."""

    @method
    async def read_saved(self) -> object:
        """What an earlier epoch has saved."""
        return await self.saved()


@attrs.frozen
class Setting:
    """`node` is a member that does not keep the store; `network` can silence the one that does."""

    node: Node
    saver: Saver
    network: SilentNetwork


@asynccontextmanager
async def setting() -> AsyncIterator[Setting]:
    network = SilentNetwork(FIRST, W1)

    def options(host: str) -> dict[str, Any]:
        platform = Platform(
            environment=SystemEnvironment(TIMINGS), network=HostNetwork(network, host)
        )
        return {"secret": "a secret of the tests of reads", "platform": platform}

    async with (
        open_node("first", **options(FIRST)) as first,
        open_node("w1", join=first.address, **options(W1)) as w1,
    ):
        saver = await w1.options(name="saver", on="w1").spawn(Saver)
        network.silence(FIRST)
        yield Setting(w1, saver, network)
        network.hear(FIRST)


def _of_store(ask: Callable[[Any], Awaitable[object]]) -> Callable[[Setting], Awaitable[object]]:
    return lambda both: ask(internals_of(both.node).names._store)


READS: dict[str, tuple[Callable[[Setting], Awaitable[object]], str]] = {
    "lookup": (lambda both: both.node.lookup("absent", Saver), "absent could not be looked up"),
    "lookup_pool": (
        lambda both: both.node.lookup_pool("many", Saver),
        "many could not be looked up",
    ),
    "saved": (lambda both: both.saver.read_saved(), "key 'states/saver' was not read"),
    "journals": (
        lambda both: both.node.pool_journals(),
        "the keys under 'journals/' were not read",
    ),
    "names": (lambda both: internals_of(both.node).names.all(), "the keys under 'names/' were"),
    "first names": (
        lambda both: internals_of(both.node).names.first_owners(10),
        "the keys under 'names/' were not read",
    ),
    "known names": (
        lambda both: internals_of(both.node).names.owned(["a", "b", "c"]),
        "key 'names/a' and 2 more were not read",
    ),
    "promise": (
        lambda both: internals_of(both.node).names.is_promised("a"),
        "key 'supervised/a' was not read",
    ),
    "time of a lease": (_of_store(lambda store: store.time_to_live(7)), "lease 7 was not read"),
    "transactions": (
        _of_store(lambda store: store.transactions([Transaction((), (Get("k"),), ())])),
        "key 'k' was not read",
    ),
    "condition": (
        _of_store(lambda store: store.transaction([Compare("k", "version", 0)], [], [])),
        "key 'k' was not read",
    ),
}


@pytest.mark.parametrize("name", READS)
def test_a_read_without_an_answer_says_what_was_not_read_and_nothing_of_a_write(name: str) -> None:
    ask, expected = READS[name]

    async def test(both: Setting) -> None:
        with pytest.raises((DirectoryUnavailableError, StoreUnavailableError)) as told:
            await ask(both)
        assert expected in str(told.value)
        error: BaseException | None = told.value
        while isinstance(error, UnderstudyError):
            text = str(error)
            assert "nothing was changed" in text
            assert "node first" in text
            assert not any(word in text for word in ("taken effect", "write", "written", "@store"))
            assert "\n" not in text
            error = error.__cause__

    in_virtual_time(setting, test)


def test_a_write_that_was_never_sent_says_that_nothing_was_written() -> None:
    async def test(both: Setting) -> None:
        store = internals_of(both.node).names._store
        one = Transaction((), (Put("k", b"new"),), ())
        # The first question is answered by nobody, so that the connection is given up.
        with pytest.raises(StoreUnavailableError):
            await store.get("k")
        for ask in (
            partial(store.put, "k", b"new"),
            partial(store.transaction, (), one.then),
            partial(store.transactions, [one]),
        ):
            with pytest.raises(StoreUnavailableError, match="nothing was written to key 'k'"):
                await ask()

    in_virtual_time(setting, test)
