"""Thousands of calls over connections that are cut, stalled, slowed and refused at random: what
callers were told is what has happened.
"""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from actors import Actor, method
from runtime import open_node
from runtime.testing import Platform
from tests.links.ledger_node import SECRET
from tests.links.proxied_calls import Books, Load, are_enough, make_calls, with_failpoints
from tests.links.proxy import ProxyNetwork, Weather, open_proxy

LONG = pytest.mark.long


class Echo(Actor):
    """Gives back, and counts."""

    def __init__(self) -> None:
        self.count = 0

    @method
    async def echo(self, data: bytes) -> tuple[int, bytes]:
        self.count += 1
        return self.count, data


@pytest.mark.parametrize(
    "kind", ["reset", "end", "stall", "stall one way", "delay", "throttle", "half-close", "refuse"]
)
async def test_calls_survive_each_kind_of_fault_alone(kind: str) -> None:
    with trio.fail_after(100):
        async with (
            open_proxy(1) as proxy,
            open_node(
                "here", secret=SECRET, platform=Platform(network=ProxyNetwork(proxy))
            ) as here,
            open_node(
                "there",
                join=here.address,
                secret=SECRET,
                platform=Platform(network=ProxyNetwork(proxy)),
            ) as there,
        ):
            echo = await here.options(on=there.name).spawn(Echo)
            # To be refused, a connection must be dialled first.
            kinds = {kind: 1} if kind != "refuse" else {"refuse": 1, "reset": 2}
            proxy.rage(Weather(pause=0.01, longest=0.1, kinds=kinds))
            number = 0
            while number < 200 or proxy.counts[kind] < 10:
                number += 1
                data = bytes(number % 7 * 20_000)
                assert await echo.echo(data) == (number, data)
            proxy.heal()


def test_the_books_know_lost_doubled_and_invented_calls() -> None:
    books = Books(
        outcomes={
            0: "value",
            1: "value",
            2: "value",
            3: "not executed",
            4: "unknown",
            5: "unknown",
            6: "sent",
            7: "raised",
        },
        entries=Counter({0: 1, 2: 2, 3: 1, 5: 1, 7: 1, 8: 1}),
        wrong_answers=[0],
    )
    assert books.mistakes() == [
        "entry 1: value, and 0 runs",
        "entry 2: value, and 2 runs",
        "entry 3: not executed, and 1 runs",
        "entry 6: sent, and 0 runs",
        "entry 8: nobody made this call",
        "entry 0: a wrong answer",
    ]


def check(books: Books, load: Load) -> None:
    """Nothing lost, nothing doubled, every call ended, and that under faults."""
    assert books.mistakes() == [], books.summary()
    assert len(books.outcomes) >= load.calls
    assert are_enough(books.faults), books.summary()
    assert books.lateness < 5, books.summary()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("calls", "seed"),
    [
        (2_000, 0),
        pytest.param(10_000, 0, marks=LONG),
        pytest.param(20_000, 1, marks=LONG),
        pytest.param(100_000, 2, marks=LONG),
        pytest.param(100_000, 3, marks=LONG),
    ],
)
async def test_calls_in_bad_weather_lose_and_double_nothing(calls: int, seed: int) -> None:
    load = Load(seed=seed, calls=calls)
    books = await make_calls(load)
    check(books, load)
    told = Counter(books.outcomes.values())
    assert told["value"] > 0.5 * calls, books.summary()
    assert min(told["sent"], told["raised"]) > 0.01 * calls, books.summary()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("calls", [100, pytest.param(100_000, marks=LONG)])
async def test_repeated_calls_run_once_each_while_a_tenth_of_answers_is_lost(calls: int) -> None:
    load = with_failpoints(seed=0, calls=calls)
    books = await make_calls(load)
    check(books, load)
    assert books.faults["request-lost"] > 0.005 * calls, books.summary()
    assert books.faults["request-repeated"] > 0.005 * calls, books.summary()
    # A tenth of the answers was lost: those that asked again got theirs. The others ran out of time
    # while the network was down; how many that are depends on the machine, so a part is enough.
    assert Counter(books.outcomes.values())["value"] > 0.1 * calls, books.summary()
