"""The handles of node services that an endpoint keeps: how many, and until when."""

from __future__ import annotations

import pytest

from actors.identifiers import NodeId
from runtime.calls import endpoint as endpoints
from runtime.node.internals import internals_of
from tests.live_pair import Pair, pair, timings

__all__ = ["pair", "timings"]

KEPT = 3


async def test_the_handle_of_a_node_service_is_kept_until_its_incarnation_has_ended(
    pair: Pair,
) -> None:
    endpoint = internals_of(pair.here).endpoint
    gone = NodeId("gone", 1)
    first, next_life = endpoint.node_service(*gone), endpoint.node_service("gone", 2)
    assert endpoint.node_service(*gone) is first
    assert next_life is not first
    endpoint.on_peer_ended(gone, "ended by the test")
    assert endpoint.node_service(*gone) is not first
    assert endpoint.node_service("gone", 2) is next_life


async def test_of_handles_that_nobody_ends_only_the_latest_are_kept(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "MOST_NODE_SERVICES", KEPT)
    endpoint = internals_of(pair.here).endpoint
    asked = [endpoint.node_service("asked", number) for number in range(1, 2 * KEPT + 1)]
    # From the latest on: a question for one that was dropped would make it anew, and drop another.
    for number in range(2 * KEPT, KEPT, -1):
        assert endpoint.node_service("asked", number) is asked[number - 1]
    assert endpoint.node_service("asked", KEPT) is not asked[KEPT - 1]


async def test_a_dropped_handle_still_works_and_the_new_one_too(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "MOST_NODE_SERVICES", 1)
    endpoint = internals_of(pair.here).endpoint
    place = ("there", pair.there.incarnation)
    old = endpoint.node_service(*place)
    endpoint.node_service("another", 1)
    new = endpoint.node_service(*place)
    assert new is not old
    for service in (old, new):
        assert await service.methods("no such actor") == {}
