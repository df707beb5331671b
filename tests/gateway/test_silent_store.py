"""A gateway while the store is silent, or the node that keeps it is stopped: each request ends in
time, with one of the three outcomes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import cbor2
import pytest
import trio

from actors import Actor, method
from actors.errors import DirectoryUnavailableError
from runtime.gateway.calls import GatewayCalls, HttpCall
from runtime.plain_calls.keyed_calls import PlainOutcome
from runtime.simulation import Simulation, run_scenario
from runtime.simulation.runs import cluster_of

BODY = cbor2.dumps({"amount": 1})


class Counted(Actor):
    """Two methods for clients."""

    @method(http=True)
    async def add(self, amount: int) -> int:
        """The amount."""
        return amount

    @method(http=True)
    async def count(self, amount: int) -> AsyncIterator[int]:
        """The amount, as the only item."""
        yield amount


async def _once(calls: GatewayCalls, name: str, seconds: float | None) -> PlainOutcome:
    return await calls.once(HttpCall(name, "add", BODY, seconds, ""))


async def _keyed(calls: GatewayCalls, name: str, seconds: float | None) -> PlainOutcome:
    call = HttpCall(name, "add", BODY, seconds, f"of {name} in {seconds}")
    outcome = await calls.keyed(call, trio.Event())
    assert outcome is not None
    return outcome


async def _stream(calls: GatewayCalls, name: str, seconds: float | None) -> PlainOutcome:
    items = [item async for item in calls.stream(HttpCall(name, "count", BODY, seconds, ""))]
    return items[-1]


async def _described(calls: GatewayCalls, name: str, seconds: float | None) -> PlainOutcome:
    with pytest.raises(DirectoryUnavailableError):
        await calls.described([name])
    return PlainOutcome("not executed", error={"type": "DirectoryUnavailableError"})


@pytest.mark.parametrize("how", ["silent", "stopped"])
def test_each_request_ends_in_time_while_the_store_does_not_answer(how: str) -> None:
    ended: dict[tuple[str, str, float | None], tuple[float, PlainOutcome]] = {}

    async def story(simulation: Simulation) -> None:
        node = simulation.node
        await node.options(name="there", on="node-2").spawn(Counted)
        calls = GatewayCalls(node, ())

        async def ask(
            kind: Callable[[GatewayCalls, str, float | None], Awaitable[PlainOutcome]],
            name: str,
            seconds: float | None,
        ) -> None:
            began = simulation.now()
            outcome = await kind(calls, name, seconds)
            ended[kind.__name__, name, seconds] = simulation.now() - began, outcome

        heal: Callable[[], object] = partial(simulation.resume, "node-1")
        if how == "silent":
            heal = cluster_of(simulation).silence_store()
        else:
            simulation.pause("node-1")
        # The node is given up meanwhile: here nothing is asked of it after that.
        with trio.CancelScope(shield=True), trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for kind in (_once, _keyed, _stream, _described):
                    for name in ("there", "nobody"):
                        for seconds in (None, 2.0, 30.0):
                            nursery.start_soon(ask, kind, name, seconds)
        heal()

    report = run_scenario(story, 1, nodes=2, faults=())
    assert report.holds, report.wrong
    assert len(ended) == 4 * 2 * 3
    for (kind, _, seconds), (took, outcome) in ended.items():
        # Each has asked for the actor, and waits for the store as long as a call to that may take.
        limit = 10.0 if seconds is None or kind == "_described" else min(10.0, seconds)
        assert took <= limit + 0.5, (kind, seconds, took)
        assert outcome.outcome == "not executed"
        assert outcome.error["type"] in ("DirectoryUnavailableError", "DeadlineExceededError")
