"""Timelines: what two live nodes record while actors call each other, fail and are restarted, and
what the file has of it. The rules of the format are checked on every file.
"""

from __future__ import annotations

import json
import math
import random
import time
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from jsonschema import ValidationError  # type: ignore[import-untyped]

from actors import Actor, ChildSpec, Supervisor, method
from actors.errors import RemoteError
from runtime.hosting import timeline_recorder
from runtime.node import Node, internals_of
from runtime.observation.inspection_service import inspection_of
from runtime.observation.timeline import (
    MOST_LANES,
    ClockEstimate,
    NodeRecording,
    Timeline,
    estimate_clock,
)
from tests.live_pair import Pair
from tests.observation.trace_format import check_format
from tests.waiting import until

SAME_CLOCK = ClockEstimate(0.0, 0.0)


class Worker(Actor):
    """Calls others, waits, fails, blocks."""

    @method
    async def add(self, number: int) -> int:
        await trio.sleep(0.001)
        return number + 1

    @method
    async def both(self, other: Worker) -> int:
        found: list[int] = []

        async def one() -> None:
            found.append(await other.look(0.005))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
            nursery.start_soon(one)
        return await other.add(1)

    @method(concurrent=True)
    async def look(self, seconds: float) -> int:
        await trio.sleep(seconds)
        return 1

    @method
    async def fail(self) -> None:
        raise ValueError("on purpose")

    @method
    async def crash(self) -> None:
        raise SystemExit("it leaves")

    @method
    async def block(self) -> None:
        time.sleep(0.1)  # noqa: ASYNC251  that is the point

    @method
    async def count(self, items: int) -> AsyncIterator[int]:
        for item in range(items):
            yield item

    @method
    async def wait(self) -> None:
        await trio.sleep_forever()


def nanoseconds(time: float) -> int:
    """As Perfetto's importer reads a number of microseconds."""
    return int(time * 1000.0)


def check_trace(trace: dict[str, Any]) -> None:
    """Assert the rules of the format: slices of a track nest, and arrows begin and end in them. By
    Perfetto's rule: it leaves out a slice that ends a nanosecond after the one it begins in.
    """
    check_format(trace)
    slices: dict[tuple[int, int], list[tuple[int, int]]] = {}
    arrows: dict[int, list[dict[str, Any]]] = {}
    named: set[tuple[int, int]] = set()
    for event in trace["traceEvents"]:
        place = event["pid"], event["tid"]
        if event["ph"] == "M":
            named.add(place)
        elif event["ph"] == "X":
            assert event["dur"] >= 0
            began = nanoseconds(event["ts"])
            slices.setdefault(place, []).append((began, began + nanoseconds(event["dur"])))
        elif event["ph"] in ("s", "f"):
            arrows.setdefault(event["id"], []).append(event)
        else:
            assert event["ph"] == "i"
        assert place in named, "every track has a name"
    for found in slices.values():
        around: list[int] = []
        for began, ended in sorted(found, key=lambda one: (one[0], -one[1])):
            while around and around[-1] <= began:
                around.pop()
            assert not around or ended <= around[-1], "slices nest"
            around.append(ended)
    for ends in arrows.values():
        start, finish = ends
        assert (start["ph"], finish["ph"]) == ("s", "f")
        assert start["ts"] <= finish["ts"]
        for end in ends:
            around_it = slices[end["pid"], end["tid"]]
            at = nanoseconds(end["ts"])
            assert any(began <= at <= ended for began, ended in around_it)


class Recorded:
    """Records two nodes while a block runs."""

    def __init__(self, pair: Pair, seconds: float = 30.0) -> None:
        self._pair = pair
        self._seconds = seconds
        self.told: dict[str, dict[str, Any]] = {}

    async def take_recording(self, node: Node, *, task_status: trio.TaskStatus[None]) -> None:
        recordings = internals_of(node).cells["@inspection"].instance._recordings  # type: ignore[attr-defined]
        async with trio.open_nursery() as nursery:

            async def record() -> None:
                packed = await recordings.take(self._seconds)
                self.told[node.name] = json.loads(zlib.decompress(packed))

            nursery.start_soon(record)
            await until(lambda: internals_of(node).host.recorder is not None, "it records")
            task_status.started()

    def timeline(self) -> Timeline:
        nodes = [self._pair.here, self._pair.there]
        return Timeline(
            [
                NodeRecording(one.name, one.incarnation, 1, SAME_CLOCK, self.told[one.name])
                for one in nodes
                if one.name in self.told
            ]
        )


def slices(drawn: Timeline, category: str) -> list[dict[str, Any]]:
    return [one for one in drawn.events if one.get("cat") == category and one["ph"] == "X"]


async def test_a_timeline_has_turns_calls_restarts_and_ends_of_two_nodes(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, workers = internals_of(pair.here).caller, internals_of(pair.here).host.workers
    before = (caller.call, caller.post, workers.run)
    one = await pair.here.options(name="one", on="here").spawn(Worker)
    two = await pair.here.options(name="two", on="there").spawn(Worker)
    spec = ChildSpec.of("child", Worker).changed(name="child", on="there")
    await pair.here.options(name="boss", on="here").spawn(Supervisor, [spec])
    child = await pair.here.lookup("child", Worker)
    recorded = Recorded(pair, 1.0)
    async with trio.open_nursery() as nursery:
        await nursery.start(recorded.take_recording, pair.here)
        await nursery.start(recorded.take_recording, pair.there)
        assert (caller.call, caller.post, workers.run) != before
        assert await one.both(two) == 2
        with pytest.raises(RemoteError):
            await two.fail()
        with pytest.raises(RemoteError):
            await child.crash()
        epoch = child.address.epoch
        await until(
            lambda: internals_of(pair.there).cells.get("child"),
            "the child is back",
            lambda cell: cell is not None and cell.address.epoch != epoch and cell.started,
        )
        assert [item async for item in two.count(2)] == [0, 1]
        await two.block()
    assert (caller.call, caller.post, workers.run) == before, "nothing is recorded any more"
    assert internals_of(pair.here).host.recorder is None
    drawn = recorded.timeline()
    check_trace(drawn.trace({}))
    turns = {(turn["args"]["actor"], turn["name"]) for turn in slices(drawn, "turn")}
    assert {("one", "both"), ("two", "look"), ("two", "add"), ("two", "count")} <= turns
    calls = {call["name"]: call["args"] for call in slices(drawn, "call")}
    assert calls["call two.fail"]["outcome"] == "raised ValueError"
    assert calls["call one.both"]["outcome"] == "returned"
    assert calls["call two.add"]["node"] == "there"
    # Each of these was made in the other's turn, and ran at its end of an arrow.
    (both,) = [turn for turn in slices(drawn, "turn") if turn["name"] == "both"]
    (add,) = [call for call in slices(drawn, "call") if call["name"] == "call two.add"]
    assert (both["pid"], both["tid"]) == (add["pid"], add["tid"])
    (ran,) = [turn for turn in slices(drawn, "turn") if turn["name"] == "add"]
    starts = {event["id"]: event for event in drawn.events if event["ph"] == "s"}
    ends = {event["id"]: event for event in drawn.events if event["ph"] == "f"}
    (arrow,) = [id for id, end in ends.items() if end["ts"] == ran["ts"]]
    assert starts[arrow]["ts"] == add["ts"]
    assert drawn.flows == drawn.counts["turn"] == 8
    assert [start["name"] for start in slices(drawn, "start")] == ["restart"]
    (end,) = [event for event in drawn.events if event["ph"] == "i"]
    assert end["name"] == "ended: raised"
    assert "it leaves" in end["args"]["reason"]
    assert any(pause["dur"] > 50_000 for pause in slices(drawn, "pause"))


async def test_a_recording_ends_with_the_one_who_asks_and_there_is_one_at_a_time(
    pair: Pair,
) -> None:
    service = inspection_of(internals_of(pair.here).endpoint, "there", pair.there.incarnation)
    worker = await pair.here.options(on="there").spawn(Worker)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.wait)
        nursery.start_soon(service.options(timeout=60.0).record, 50.0)
        await until(lambda: internals_of(pair.there).host.recorder is not None, "it records")
        assert await service.record(0.01) == b""
        nursery.cancel_scope.cancel()
    await until(lambda: internals_of(pair.there).host.recorder is None, "it stops")
    assert internals_of(pair.there).caller.call == internals_of(pair.there).caller._call
    # What ran before, and has not ended, is there from the beginning to the end.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.wait)
        cell = internals_of(pair.there).cells[worker.address.name]
        await until(lambda: bool(cell.running), "it runs")
        told = json.loads(zlib.decompress(await service.record(0.02)))
        nursery.cancel_scope.cancel()
    (turn,) = told["events"]
    assert (turn["method"], turn["ended"]) == ("wait", None)


async def test_a_recording_is_bounded_and_says_what_it_leaves_out(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_recorder, "MOST_EVENTS", 10)
    monkeypatch.setattr(timeline_recorder, "MOST_ACTORS", 2)
    workers = [await pair.here.options(on="here").spawn(Worker) for _ in range(3)]
    recorded = Recorded(pair, 0.5)
    async with trio.open_nursery() as nursery:
        await nursery.start(recorded.take_recording, pair.here)
        for worker in workers:
            for number in range(5):
                await worker.add(number)
    told = recorded.told["here"]
    assert len(told["events"]) == 10
    assert len(told["classes"]) == 2
    assert told["left_out_of_other_actors"] == 5
    # Fifteen calls made, and turns of two of the three actors; perhaps pauses of the loop besides.
    assert told["left_out"] >= 15 + 10 - 10
    check_trace(recorded.timeline().trace({}))


def turn(number: int, began: float, ended: float | None) -> dict[str, Any]:
    return {
        "kind": "turn",
        "actor": "one",
        "began": began,
        "ended": ended,
        "method": "look",
        "turn": number,
        "epoch": 1,
        "waited": 0.0,
        "attempt": 1,
        "from": None,
        "number": 0,
    }


def recording(events: list[dict[str, Any]], clock: ClockEstimate = SAME_CLOCK) -> NodeRecording:
    told = {"began": 0.0, "ended": 10.0, "events": events, "classes": {}}
    return NodeRecording("w1", 3, 1, clock, told)


def test_turns_that_overlap_have_tracks_of_their_own_up_to_a_limit() -> None:
    events = [turn(n, n * 0.1, None) for n in range(1, MOST_LANES + 5)]
    drawn = Timeline([recording(events)])
    check_trace(drawn.trace({}))
    assert drawn.without_track == 4
    assert len({one["tid"] for one in slices(drawn, "turn")}) == MOST_LANES
    assert all(one["args"]["unfinished"] for one in slices(drawn, "turn"))


def call(began: float, ended: float, turn: int = 0, actor: str = "") -> dict[str, Any]:
    return {
        "kind": "call" if ended > began else "post",
        "actor": actor,
        "began": began,
        "ended": ended,
        "turn": turn,
        "to": "one",
        "method": "look",
        "node": "w1",
        "numbers": [7],
        "outcome": "returned",
    }


def test_perfetto_leaves_no_slice_out_however_close_they_are() -> None:
    draw = random.Random(5)
    events: list[dict[str, Any]] = []
    now = 0.0
    for number in range(1, 300):
        ended = now + draw.uniform(0.0, 3e-6)
        events.append(turn(number, now, ended))
        made = sorted(draw.uniform(now, ended) for _ in range(4))
        # One that waits, and messages that no task waits for, which are drawn longer than they are.
        events.append(call(made[0], made[1], number, "one"))
        events += [call(at, at, number, "one") for at in (*made[1:], ended)]
        now = ended + draw.choice([0.0, 1e-9, 1e-6])
    drawn = Timeline([recording(events)])
    check_trace(drawn.trace({}))
    assert len(slices(drawn, "call")) + len(slices(drawn, "turn")) == len(events)
    assert all(one["dur"] >= 0 for one in drawn.events if one["ph"] == "X")


SLICE = {"ph": "X", "name": "a", "cat": "turn", "pid": 1, "tid": 1, "ts": 1.5, "dur": 2, "args": {}}


@pytest.mark.parametrize(
    "change",
    [
        {"dur": -1},
        {"dur": None},
        {"ts": "1"},
        {"ts": float("nan")},
        {"pid": "node one"},
        {"tid": 2**31},
        {"name": ""},
        {"ph": "B"},
        {"ph": "M"},
        {"args": []},
        {"cname": "good"},
    ],
)
def test_what_is_not_in_the_format_is_found(change: dict[str, object]) -> None:
    check_format({"traceEvents": [SLICE]})
    with pytest.raises((ValidationError, KeyError, ValueError)):
        check_format({"traceEvents": [{**SLICE, **change}]})


def test_times_of_nodes_are_brought_to_one_clock() -> None:
    made = call(1.0, 2.0)
    caller = NodeRecording(
        "w2", 5, 2, SAME_CLOCK, {"began": 0.0, "ended": 10.0, "events": [made], "classes": {}}
    )
    served = {**turn(1, 1001.2, 1001.8), "from": ["w2", 5], "number": 7}
    drawn = Timeline([caller, recording([served], ClockEstimate(1000.0, 0.001))])
    # By what `recording` says, that node began a thousand seconds before the other.
    check_trace(drawn.trace({}))
    (waits,), (ran,) = slices(drawn, "call"), slices(drawn, "turn")
    assert ran["ts"] - waits["ts"] == pytest.approx(0.2e6)
    assert drawn.flows == 1


def test_a_clock_is_estimated_from_the_quickest_answer() -> None:
    found = estimate_clock([(0.0, 100.9, 1.0), (2.0, 102.06, 2.1), (3.0, 103.0, 3.5)])
    assert found.offset == pytest.approx(100.01)
    assert found.error == pytest.approx(0.05)
    with pytest.raises(ValueError, match="empty"):
        estimate_clock([])
    assert math.isfinite(found.offset)
