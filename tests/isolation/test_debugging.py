"""Post-mortems and debuggers of isolated actors: their node keeps the failures, which outlive the
process; debuggers wait in it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from actors import Actor, method
from actors.errors import ActorStartError, CallTimeoutError, RemoteError, UnderstudyError
from runtime import Node, open_node
from runtime.hosting.post_mortem import (
    MOST_FRAMES,
    MOST_RECORD,
    MOST_VALUE,
    MOST_VARIABLES,
    SOURCE_LINES,
    FailureRecord,
)
from runtime.node import internals_of
from runtime.observation.debug_service import debug_of

pytestmark = pytest.mark.cluster


class Shop(Actor):
    """Fails and stops in its own process."""

    def __init__(self, good: bool = True) -> None:
        if not good:
            raise ValueError("not good")

    @method
    async def sell(self, what: str) -> int:
        """Fail."""
        stock = {"bread": 3}
        return stock[what]

    @method
    async def close(self) -> None:
        """End the actor and its process."""
        owner = "somebody"
        raise SystemExit(f"closed by {owner}")

    @method
    async def wait(self, count: int) -> int:
        """Stop on the event loop of the process."""
        breakpoint()
        count += 1
        return count

    @method
    def bake(self, count: int) -> int:
        """Stop in a thread."""
        breakpoint()
        count += 1
        return count


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with open_node("one", secret="a secret of these tests", debuggable=True) as opened:
        yield opened


async def test_an_isolated_actor_is_debugged_like_any_other(node: Node) -> None:
    service: Any = debug_of(internals_of(node).endpoint, node.name, node.incarnation)
    shop = await node.options(name="shop", isolation="process").spawn(Shop)

    async def typed(opened: dict[str, Any], *lines: str | None) -> str:
        for line in lines:
            answer = await service.command(opened["number"], line, 10.0, opened["isolated"])
            assert not answer["problem"]
        return f"{answer['text']}{answer['state']}"

    with pytest.raises(RemoteError):
        await shop.sell("cake")
    while not (failures := (await service.failures("shop"))["failures"]):
        pass
    (failure,) = failures
    assert (failure["what"], failure["error"]) == ("sell", "KeyError: 'cake'")
    assert failure["frames"][-1]["variables"]["stock"] == "{'bread': 3}"
    opened = await service.debug("shop", failure["number"])
    assert await typed(opened, None, "p stock['bread'] * 7") == "21\nwaiting"
    assert await typed(opened, "quit") == "ended"

    for name in ("wait", "bake"):
        async with trio.open_nursery() as nursery:

            async def call(name: str) -> None:
                assert await getattr(shop, name)(1) == 9

            nursery.start_soon(call, name)
            while not (waiting := (await service.failures("shop"))["breakpoints"]):
                pass
            assert await typed(waiting[0], None, "p count") == "1\nwaiting"
            assert await typed(waiting[0], "!count = 8", "c") == "ended"
        # The caller's deadline is the debugger's, too.
        with pytest.raises(CallTimeoutError):
            await getattr(shop.options(timeout=1.0), name)(1)
        while (await service.failures("shop"))["breakpoints"]:
            pass

    with pytest.raises(UnderstudyError):
        await shop.close()
    # The frames have outlived the process; a debugger of them would have to run there.
    while (ended := (await service.failures("shop"))["failures"][-1])["debuggable"]:
        pass
    assert ended["error"] == "SystemExit: closed by somebody"
    assert ended["frames"][-1]["variables"]["owner"] == "'somebody'"
    assert (await service.debug("shop", failure["number"]))["problem"].startswith("its process has")
    assert (await service.command(1, "p 1", 0.0, "shop"))["state"] == "ended"

    with pytest.raises(ActorStartError):
        await node.options(name="bad", isolation="process").spawn(Shop, False)
    (start,) = (await service.failures("bad"))["failures"]
    assert (start["what"], start["error"]) == ("its start", "ValueError: not good")


def told(**changes: object) -> dict[str, Any]:
    """A failure as a process tells it."""
    frame = {
        "file": "shop.py",
        "line": 7,
        "function": "Shop.sell",
        "source": [[7, "return stock[what]"]],
        "variables": {"what": "'cake'"},
        "left_out": 0,
    }
    return {
        "number": 1,
        "at": 1.0,
        "what": "sell",
        "error": "KeyError: 'cake'",
        "frames": [{**frame, **changes}],
        "debuggable": False,
    }


def test_the_report_of_a_process_is_cut_to_the_bounds_of_the_node() -> None:
    long = "x" * 100_000
    huge = told(
        file=long,
        function=long,
        source=[[1, long]] * 1000,
        variables={f"{number}{long}": long for number in range(200)},
    )
    huge |= {"what": long, "error": long, "frames": huge["frames"] * 1000}
    record = FailureRecord.of_process(huge, 5, "shop", 3)
    assert (record.number, record.actor, record.epoch, record.in_process) == (5, "shop", 3, 1)
    assert len(record.what) == MOST_VALUE + len("...")
    assert len(record.frames) == MOST_FRAMES
    assert all(len(frame.source) <= 2 * SOURCE_LINES + 1 for frame in record.frames)
    assert all(len(frame.variables) <= MOST_VARIABLES for frame in record.frames)
    assert record.frames[-1].left_out == 200 - MOST_VARIABLES
    variables = sum(
        len(name) + len(text) for frame in record.frames for name, text in frame.variables.items()
    )
    assert variables <= MOST_RECORD + 3 * MOST_VALUE


@pytest.mark.parametrize(
    "changes",
    [
        {"line": "seven"},
        {"line": None},
        {"source": [[1]]},
        {"source": 3},
        {"variables": 3},
        {"left_out": []},
    ],
)
def test_what_is_no_failure_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        FailureRecord.of_process(told(**changes), 1, "shop", 1)
    with pytest.raises(KeyError):
        FailureRecord.of_process({}, 1, "shop", 1)
