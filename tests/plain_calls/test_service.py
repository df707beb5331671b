"""What a peer may send to the service `@plain`: it ends the call, and nothing else."""

from __future__ import annotations

import math

import pytest

from actors.errors import BadArgumentsError, RemoteError
from runtime import open_node
from runtime.calls.rights import PLAIN_SERVICE
from runtime.node import internals_of
from runtime.plain_calls.keyed_calls import PlainOutcome
from runtime.plain_calls.service import PlainCallService, PlainTarget
from tests.gateway.actors_used import Counter


async def test_no_argument_of_a_peer_reaches_a_worker_unchecked() -> None:
    async with open_node("one", secret="a secret of these tests") as node:
        counter = await node.options(name="counter").spawn(Counter)
        service = internals_of(node).endpoint.system_handle(
            PlainCallService, PLAIN_SERVICE, node.name, node.incarnation
        )
        target = PlainTarget("counter", 0, "add", False)
        for seconds in (math.nan, -1.0, math.inf, -math.inf, 1e308 * 10):
            for asked in (
                service.call(target, b"", seconds),
                service.call_keyed(target, b"", seconds, "key", False),
            ):
                outcome = await asked
                assert isinstance(outcome, PlainOutcome)
                assert outcome.error["type"] == "BadArgumentsError"
            items = [one async for one in service.stream(target, b"", seconds)]
            assert [one.outcome for one in items] == ["not executed"]
        for wrong in (
            lambda: service.call("counter", b"", None),
            lambda: service.call(PlainTarget("counter", True, "add", False), b"", None),
            lambda: service.call(target, "text", None),
            lambda: service.call_keyed(target, b"", None, 5, False),
            lambda: service.describe("counter"),
        ):
            with pytest.raises((BadArgumentsError, RemoteError)):
                await wrong()
        assert (await service.call(target, b"\xff", None)).error["type"] == "BadArgumentsError"
        many = b"\x9a\x00\x7a\x12\x00" + b"\x80" * 8_000_000
        refused = await service.call(target, many, None)
        assert refused.outcome == "not executed"
        assert "send large arrays as bytes" in str(refused.error["message"])
        assert await counter.read() == 0
        # The service and its node go on.
        assert (await service.call(target, b"", 5.0)).outcome == "value"
        assert (await service.call(target, b"", 0.0)).outcome in ("value", "not executed")
