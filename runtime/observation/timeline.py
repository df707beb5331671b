"""A timeline of a cluster in the trace event format of Chrome, which https://ui.perfetto.dev opens:
a process for each node, a track for each actor, and arrows from calls to the turns that serve them.
No I/O.

Slices of one track must nest. An actor whose concurrent methods overlap therefore has several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

MOST_LANES = 20
"""Tracks of one actor at most."""

SHORTEST = 1e-6
"""Seconds of a slice for what takes no time, such as a message that no task waits for."""

APART = 2
"""Nanoseconds between the ends of a slice and those of the slices around and beside it. Perfetto
leaves out a slice that ends after the one in which it begins, and cuts times to whole nanoseconds.
"""

LOOP_TRACK = 1
"""The track of a node's event loop."""

OUTSIDE = "outside of actors"
"""The track of calls that no actor makes."""


@attrs.frozen
class ClockEstimate:
    """An estimate of a node's clock: a time of the node, minus `offset`, is the reader's, give or
    take `error`; all in seconds.
    """

    offset: float
    error: float


def estimate_clock(samples: Iterable[tuple[float, float, float]]) -> ClockEstimate:
    """Estimate from answers: (sent, the node's time, received), the first and the last on the
    reader's clock. The quickest answer tells most: the node has read its clock somewhere between.
    Raises ValueError if there are none.
    """
    sent, clock, received = min(samples, key=lambda sample: sample[2] - sample[0])
    return ClockEstimate(clock - (sent + received) / 2, (received - sent) / 2)


@attrs.frozen
class NodeRecording:
    """The recording of a node; `facts` is what `TimelineRecorder.finish` gives."""

    node: str
    incarnation: int
    pid: int
    clock: ClockEstimate
    facts: Mapping[str, Any]


@attrs.define
class _Open:
    """A slice that has not ended at the time that is looked at. `turn`: its number, 0 for a call
    or a start.
    """

    ended: float
    turn: int


@attrs.define
class _Lane:
    """One track, and the slices that are open in it."""

    number: int
    open: list[_Open] = attrs.field(factory=list)

    def close_until(self, now: float) -> None:
        while self.open and self.open[-1].ended <= now:
            self.open.pop()

    def takes_call(self, turn: int, ended: float) -> bool:
        """True if a call of this turn nests here."""
        return (
            turn != 0
            and any(one.turn == turn for one in self.open)
            and self.open[-1].ended >= ended
        )


class Timeline:
    """Collects the events of the nodes."""

    def __init__(self, recordings: Sequence[NodeRecording]) -> None:
        self.events: list[dict[str, Any]] = []
        self.counts: dict[str, int] = {}
        self.without_track = 0
        """Slices that were left out because an actor had too many at once."""
        self._calls: dict[tuple[str, int, int], tuple[int, int, float]] = {}
        self._turns: list[tuple[tuple[str, int, int], int, int, float, float]] = []
        self._epochs: dict[str, int] = {}
        self._from = min((one.facts["began"] - one.clock.offset for one in recordings), default=0.0)
        for process, recording in enumerate(recordings, 1):
            _NodeTracks(self, recording, process).add_all()
        _nest(self.events)
        # Last: the call may be in the recording of one node and its turn in that of a later one.
        self.flows = self._connect()

    def microseconds(self, recording: NodeRecording, seconds: float) -> float:
        """A time of a node, as the trace has it."""
        return round((seconds - recording.clock.offset - self._from) * 1e6, 3)

    def is_restart(self, actor: str, epoch: int) -> bool:
        """Note an epoch of an actor that was seen; True if an earlier one was seen before."""
        before = self._epochs.get(actor, epoch)
        self._epochs[actor] = max(before, epoch)
        return before < epoch

    def call(self, key: tuple[str, int, int], process: int, track: int, at: float) -> None:
        """Note where the call of this number was made."""
        self._calls[key] = process, track, at

    def turn(
        self, key: tuple[str, int, int], process: int, track: int, at: float, ended: float
    ) -> None:
        """Note where the call of this number ran."""
        self._turns.append((key, process, track, at, ended))

    def _connect(self) -> int:
        """Add the arrows, and return how many."""
        flows = 0
        for key, process, track, began, ended in self._turns:
            made = self._calls.get(key)
            if made is None:
                continue
            # By the estimated clocks a call may run before it was made: the arrow ends within the
            # slice, and never before it begins.
            at = max(began, made[2])
            if at > ended:
                continue
            flows += 1
            arrow = {"name": "call", "cat": "call", "id": flows}
            self.events += [
                {**arrow, "ph": "s", "pid": made[0], "tid": made[1], "ts": made[2]},
                {**arrow, "ph": "f", "bp": "e", "pid": process, "tid": track, "ts": at},
            ]
        return flows

    def trace(self, facts: Mapping[str, object]) -> dict[str, Any]:
        """The file. `facts` stand beside the events, for people."""
        return {"traceEvents": self.events, "displayTimeUnit": "ms", "otherData": dict(facts)}


def _nest(events: Iterable[dict[str, Any]]) -> None:
    """Make slices that cross on their track end earlier. Those cross that are drawn longer than
    what they show, and those whose times were rounded.
    """
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    for slices in tracks.values():
        around: list[dict[str, Any]] = []
        for one in sorted(slices, key=lambda event: (event["ts"], -event["dur"])):
            began, ended = _nanoseconds(one)
            while around:
                outer = _nanoseconds(around[-1])[1]
                shortest = around[-1]["dur"] <= SHORTEST * 1e6
                if outer > began and (ended <= outer or not shortest):
                    _end_by(one, outer - APART)
                    break
                # The inner ones first, which end before the outer ones.
                _end_by(around[-1], began - APART * len(around))
                around.pop()
            around.append(one)


def _nanoseconds(event: Mapping[str, Any]) -> tuple[int, int]:
    began = round(event["ts"] * 1000)
    return began, began + round(event["dur"] * 1000)


def _end_by(event: dict[str, Any], last: int) -> None:
    began, ended = _nanoseconds(event)
    event["dur"] = max(0, min(ended, last) - began) / 1000


class _NodeTracks:
    """Puts the events of one node on tracks."""

    def __init__(self, timeline: Timeline, recording: NodeRecording, process: int) -> None:
        self._timeline = timeline
        self._recording = recording
        self._process = process
        self._lanes: dict[str, list[_Lane]] = {}
        self._tracks = LOOP_TRACK
        self._end = recording.facts["ended"]

    def add_all(self) -> None:
        node, clock = self._recording.node, self._recording.clock
        self._name("process_name", 0, f"node {node}")
        self._name("process_labels", 0, f"clock within {clock.error * 1e3:.2f} ms", "labels")
        self._name("thread_name", LOOP_TRACK, "event loop")
        adding: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
            "pause": self._pause,
            "start": self._start,
            "end": self._end_of,
            "turn": self._turn,
            "call": self._call,
            "post": self._call,
        }
        events = self._recording.facts["events"]
        for event in sorted(events, key=lambda one: (one["began"], -self._ended(one))):
            kind = event["kind"]
            add = adding.get(kind)
            if add is not None:
                self._timeline.counts[kind] = self._timeline.counts.get(kind, 0) + 1
                add(event)

    def _ended(self, event: Mapping[str, Any]) -> float:
        ended = event.get("ended")
        if ended is None:
            ended = self._end if event["kind"] != "end" else event["began"]
        return max(float(ended), float(event["began"]))

    def _pause(self, event: Mapping[str, Any]) -> None:
        self._slice(LOOP_TRACK, "event loop blocked", "pause", event, {})

    def _start(self, event: Mapping[str, Any]) -> None:
        actor = str(event["actor"])
        again = self._timeline.is_restart(actor, int(event["epoch"]))
        lane = self._lane(actor, event, 0)
        if lane is not None:
            facts = {"epoch": event["epoch"], "supervisor": event["supervisor"]}
            self._slice(lane.number, "restart" if again else "start", "start", event, facts)

    def _end_of(self, event: Mapping[str, Any]) -> None:
        lanes = self._lanes_of(str(event["actor"]))
        self._timeline.is_restart(str(event["actor"]), int(event["epoch"]))
        self._timeline.events.append(
            {
                "ph": "i",
                "s": "t",
                "name": f"ended: {event['reason']}",
                "cat": "end",
                "pid": self._process,
                "tid": lanes[0].number,
                "ts": self._timeline.microseconds(self._recording, event["began"]),
                "args": {"epoch": event["epoch"], "reason": str(event["text"])},
            }
        )

    def _turn(self, event: Mapping[str, Any]) -> None:
        actor = str(event["actor"])
        self._timeline.is_restart(actor, int(event["epoch"]))
        lane = self._lane(actor, event, int(event["turn"]))
        if lane is None:
            return
        facts = {
            "actor": actor,
            "class": self._recording.facts["classes"].get(actor, ""),
            "epoch": event["epoch"],
            "waited_ms": round(event["waited"] * 1e3, 3),
            "attempt": event["attempt"],
        }
        began = self._slice(lane.number, str(event["method"]), "turn", event, facts)
        source = event["from"] or (self._recording.node, self._recording.incarnation)
        if event["number"]:
            key = str(source[0]), int(source[1]), int(event["number"])
            ended = self._timeline.microseconds(self._recording, self._ended(event))
            self._timeline.turn(key, self._process, lane.number, began, ended)

    def _call(self, event: Mapping[str, Any]) -> None:
        turn = int(event["turn"])
        lane = self._lane(str(event["actor"]) or OUTSIDE, event, turn, call=True)
        if lane is None:
            return
        facts = {
            "node": event["node"],
            "outcome": event["outcome"] or "no task waits for it",
            "attempts": len(event["numbers"]),
        }
        name = f"call {event['to']}.{event['method']}"
        began = self._slice(lane.number, name, "call", event, facts)
        for number in event["numbers"]:
            key = self._recording.node, self._recording.incarnation, int(number)
            self._timeline.call(key, self._process, lane.number, began)

    def _lanes_of(self, actor: str) -> list[_Lane]:
        lanes = self._lanes.get(actor)
        if lanes is None:
            lanes = self._lanes[actor] = []
            self._new_lane(actor, lanes)
        return lanes

    def _new_lane(self, actor: str, lanes: list[_Lane]) -> _Lane:
        self._tracks += 1
        lanes.append(_Lane(self._tracks))
        self._name("thread_name", self._tracks, f"{actor} ({len(lanes)})" if lanes[1:] else actor)
        return lanes[-1]

    def _lane(
        self, actor: str, event: Mapping[str, Any], turn: int, *, call: bool = False
    ) -> _Lane | None:
        """The track that takes a slice; None if the actor has too many. A call is inside of its
        turn; nothing else is inside of anything.
        """
        began, ended = event["began"], self._ended(event)
        lanes = self._lanes_of(actor)
        for lane in lanes:
            lane.close_until(began)
        found = next((lane for lane in lanes if call and lane.takes_call(turn, ended)), None)
        if found is None:
            found = next((lane for lane in lanes if not lane.open), None)
        if found is None:
            if len(lanes) >= MOST_LANES:
                self._timeline.without_track += 1
                return None
            found = self._new_lane(actor, lanes)
        assert len(lanes) <= MOST_LANES
        assert not found.open or (call and found.open[-1].ended >= ended), "slices of a track nest"
        found.open.append(_Open(ended, 0 if call else turn))
        return found

    def _slice(
        self,
        track: int,
        name: str,
        category: str,
        event: Mapping[str, Any],
        facts: dict[str, Any],
    ) -> float:
        """Add a slice, and return when it begins."""
        if event.get("ended") is None:
            facts["unfinished"] = True
        began = self._timeline.microseconds(self._recording, event["began"])
        ended = self._timeline.microseconds(self._recording, self._ended(event))
        self._timeline.events.append(
            {
                "ph": "X",
                "name": name,
                "cat": category,
                "pid": self._process,
                "tid": track,
                "ts": began,
                "dur": round(max(ended - began, SHORTEST * 1e6), 3),
                "args": facts,
            }
        )
        return began

    def _name(self, what: str, track: int, text: str, argument: str = "name") -> None:
        self._timeline.events.append(
            {
                "ph": "M",
                "name": what,
                "pid": self._process,
                "tid": track,
                "args": {argument: text},
            }
        )
