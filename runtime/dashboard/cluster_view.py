"""The cluster as pages show it, from one round of answers after the other. No I/O and no clock.

A node that does not answer keeps its last answer, with its age: what is old is shown as old, never
as present, and never as empty. A node that is gone stays for a while, so that people see it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import attrs

from actors.identifiers import NodeId
from runtime.dashboard.snapshots import MOST_ROWS, TopicSnapshot
from runtime.logs.archive import NodeEnd
from runtime.observation.roles import role_of

GONE_SECONDS = 30.0
"""For how long a node that has ended is shown."""

HISTORY = 180
"""Points of a sparkline."""

MOST_EVENTS = 300

MOST_REASON = 200
"""Characters of the reason of a node's end."""

MOST_AT_ONCE = 12
"""Events about actors from one round; the others are counted in one more."""

MOST_NODES = 300
MOST_LINKS = 900

STEP_SECONDS = 2.0
"""What the clock of the dashboard does at once, and is more than this, is that it was set."""

Member = Mapping[str, Any]
Answer = Mapping[str, Any]

_History = deque[tuple[float | None, ...]]
"""Points of some sparklines: a time, and a value for each."""


class _Place(NamedTuple):
    """The place where an actor was seen last, and its epoch."""

    node: str
    epoch: int


_NOWHERE = _Place("", 0)


class _Pair(NamedTuple):
    """The names of two nodes, in order."""

    one: str
    other: str


@attrs.define
class _KnownNode:
    """The facts about one incarnation."""

    member: Member
    answer: Answer = attrs.field(factory=dict)
    heard: float | None = None
    """When it answered last, in seconds since 1970 UTC."""
    at: float = -math.inf
    """The same by the clock of the dashboard, from which rates are computed."""
    silent: str = ""
    gone_at: float | None = None
    rate: float | None = None
    received: float | None = None
    actor_rates: dict[str, float] = attrs.field(factory=dict)
    history: _History = attrs.field(factory=lambda: _History(maxlen=HISTORY))


class ClusterView:
    """The facts about a cluster: its nodes, actors and links, and the latest events."""

    def __init__(self) -> None:
        self._nodes: dict[str, _KnownNode] = {}
        self._places: dict[str, _Place] = {}
        self._cuts: set[_Pair] = set()
        """Nodes that have lost each other, until it is seen that they have a connection again."""
        self._events: deque[tuple[str, dict[str, Any]]] = deque(maxlen=MOST_EVENTS)
        self._numbered = 0
        self._began = False
        self._totals: _History = deque(maxlen=HISTORY)
        self._wall_at_zero = 0.0
        """The time since 1970 at which the clock that never jumps was at its zero."""

    def observe(
        self,
        wall: float,
        now: float,
        members: Sequence[Member],
        answers: Mapping[str, Answer],
        silent: Mapping[str, str],
    ) -> TopicSnapshot:
        """Take in one round: the members, and what each has answered to `overview`, or why it is
        `silent`, by name. `wall`: seconds since 1970 UTC; `now`: on a clock that never jumps.
        """
        self._follow_clock(wall, now)
        left_out = max(0, len(members) - MOST_NODES)
        shown = members[:MOST_NODES]
        self._leave_out({one["name"] for one in members} - {one["name"] for one in shown})
        for member in shown:
            self._meet(wall, member)
            name = member["name"]
            if name in answers:
                self._heard(wall, now, name, answers[name])
            elif name in silent:
                self._not_heard(wall, name, silent[name])
            # What has joined in this round has not been asked yet, and is not silent by that.
        self._part(wall, {NodeId(one["name"], one["incarnation"]) for one in members})
        self._follow_cuts(wall)
        self._follow_actors(wall)
        self._began = True
        return self._snapshot(wall, left_out)

    def place_of(self, name: str) -> str:
        """The node on which an actor was seen last; "" if it was not."""
        return self._places.get(name, _NOWHERE).node

    def ahead_of(self, node: NodeId) -> float:
        """By how many seconds the clock of a node is ahead of the dashboard's, as far as known."""
        known = self._nodes.get(node.name)
        if known is None or known.member["incarnation"] != node.incarnation:
            return 0.0
        ahead: float = known.answer.get("ahead", 0.0)
        return ahead

    @property
    def has_begun(self) -> bool:
        """True once a round was taken in."""
        return self._began

    def remember_ends(self, ends: Iterable[tuple[str, NodeEnd]]) -> None:
        """Add the ends of nodes, by name, that were before the first round: who opens a page often
        does so because a node has died.
        """
        assert not self._began, "later ends are seen"
        if self._events:
            # By another client, which was lost before the first round.
            return
        for name, end in sorted(ends, key=lambda one: one[1].at):
            kind, text = ("left", "has left") if end.how == "left" else ("gone", "has died")
            why = end.reason and f": {end.reason[:MOST_REASON]}"
            self._event(end.at, kind, f"{name} {text}{why}", node=name)

    def died(self, at: float, name: str, node: str, text: str) -> None:
        """Note a death that a supervisor or a node has reported."""
        self._event(at, "death", text, node=node, actor=name)

    def check_invariants(self) -> None:
        """Assert what must hold between any two rounds. Looks at all nodes and actors: for
        tests.
        """
        assert len(self._nodes) <= MOST_NODES
        for name, known in self._nodes.items():
            assert name == known.member["name"]
            assert (known.heard is None) == (not known.answer)
            assert (known.heard is None) == math.isinf(known.at)
            if known.silent or known.gone_at is not None:
                assert known.rate is None, "what does not answer has no rate"
                assert not known.actor_rates
        for place in self._places.values():
            assert place.node in self._nodes, "an actor is on a node that is shown"
        for pair in self._cuts:
            assert pair.one < pair.other
            assert all(self._nodes[name].gone_at is None for name in pair)
        numbers = [int(number) for number, _ in self._events]
        assert numbers == list(range(self._numbered - len(numbers) + 1, self._numbered + 1))

    def _leave_out(self, names: set[str]) -> None:
        """Forget members that are not shown any more, because others have come before them: their
        answers would stay as they are, and look as if they were new.
        """
        for name in names & self._nodes.keys():
            del self._nodes[name]

    def _follow_clock(self, wall: float, now: float) -> None:
        """Where the clock of the dashboard was set, set the times that are kept as well: what
        happened a minute ago stays so.
        """
        step, self._wall_at_zero = wall - now - self._wall_at_zero, wall - now
        if not self._began or abs(step) < STEP_SECONDS:
            return
        for known in self._nodes.values():
            known.heard = None if known.heard is None else known.heard + step
            known.gone_at = None if known.gone_at is None else known.gone_at + step
            known.history = _set_by(step, known.history)
        self._totals = _set_by(step, self._totals)
        self._events = deque(
            [(number, {**row, "at": row["at"] + step}) for number, row in self._events],
            maxlen=MOST_EVENTS,
        )

    def _meet(self, wall: float, member: Member) -> None:
        name = member["name"]
        known = self._nodes.get(name)
        if known is None or known.member["incarnation"] != member["incarnation"]:
            if self._began:
                again = "again, as a new incarnation" if known is not None else ""
                self._event(wall, "joined", f"{name} has joined {again}".strip(), node=name)
            history = known.history if known is not None else None
            self._nodes[name] = _KnownNode(member)
            if history is not None:
                self._nodes[name].history.extend(history)
        else:
            if member["state"] == "draining" and known.member["state"] != "draining":
                self._event(wall, "leaving", f"{name} drains and leaves", node=name)
            known.member = member
            known.gone_at = None

    def _heard(self, wall: float, now: float, name: str, answer: Answer) -> None:
        known = self._nodes[name]
        if known.silent:
            self._event(wall, "back", f"{name} answers again", node=name)
        before, passed = known.answer, now - known.at
        known.silent = ""
        known.rate = known.received = None
        if before and passed > 0:
            known.rate = _rate(_served(before), _served(answer), passed)
            known.received = _rate(_received(before), _received(answer), passed)
            counts = {(one["name"], one["epoch"]): one["served"] for one in before["actors"]}
            known.actor_rates = {
                one["name"]: _rate(counts[key], one["served"], passed)
                for one in answer["actors"]
                if (key := (one["name"], one["epoch"])) in counts
            }
        known.answer, known.heard, known.at = answer, wall, now
        waiting = sum(one["waiting"] for one in answer["classes"].values())
        known.history.append((round(wall, 1), known.rate, waiting, known.received))

    def _not_heard(self, wall: float, name: str, why: str) -> None:
        known = self._nodes[name]
        if not known.silent:
            self._event(wall, "silent", f"{name} does not answer: {why}", node=name)
        known.silent = why
        known.rate = known.received = None
        known.actor_rates = {}
        known.history.append((round(wall, 1), None, None, None))

    def _part(self, wall: float, present: set[NodeId]) -> None:
        """Nodes that are no members any more are shown as gone, and then not at all."""
        for name, known in list(self._nodes.items()):
            if NodeId(name, known.member["incarnation"]) in present:
                continue
            if known.gone_at is None:
                known.gone_at = wall
                known.rate = known.received = None
                known.actor_rates = {}
                left = known.member["state"] == "draining"
                text = f"{name} has left" if left else f"{name} has died"
                self._event(wall, "left" if left else "gone", text, node=name)
            elif wall - known.gone_at > GONE_SECONDS:
                del self._nodes[name]
        # Nodes that come and go faster than they are forgotten: the longest gone go first.
        gone = [name for name, known in self._nodes.items() if known.gone_at is not None]
        for name in gone[: max(0, len(self._nodes) - MOST_NODES)]:
            del self._nodes[name]

    def _follow_cuts(self, wall: float) -> None:
        """Note which nodes have lost each other, and which have found each other again."""
        here = {name for name, known in self._nodes.items() if known.gone_at is None}
        heard = {name for name in here if not self._nodes[name].silent}
        # A node that does not answer the dashboard has its own line already.
        cut = {
            _Pair(*sorted((name, peer)))
            for name in heard
            for peer in self._nodes[name].answer.get("unreachable", ())
            if peer in heard and peer != name
        }
        # Of a node that does not answer it is not known whether it has found the other again.
        unknown = {
            pair for pair in self._cuts if here.issuperset(pair) and not heard.issuperset(pair)
        }
        found = {pair for pair in self._cuts - cut - unknown if here.issuperset(pair)}
        lost = cut - self._cuts
        self._cuts = cut | unknown
        if not self._began:
            # It is not known since when: the page says that it is so.
            return
        for kind, pairs, what in (
            ("cut", lost, "have lost each other"),
            ("found", found, "have found each other again"),
        ):
            for pair in sorted(pairs)[:MOST_AT_ONCE]:
                text = f"{pair.one} and {pair.other} {what}"
                self._event(wall, kind, text, node=pair.one, peer=pair.other)
            if len(pairs) > MOST_AT_ONCE:
                self._event(wall, kind, f"{len(pairs) - MOST_AT_ONCE} more pairs of nodes {what}")

    def _follow_actors(self, wall: float) -> None:
        """Note which actors of a name have another epoch than before."""
        noted = more = 0
        places: dict[str, _Place] = {}
        for node, known in self._nodes.items():
            if known.gone_at is not None:
                continue
            for actor in known.answer.get("actors", ()):
                name, epoch = actor["name"], actor["epoch"]
                if name in places and places[name].epoch > epoch:
                    # A node that does not answer may still be shown with what has moved since.
                    continue
                places[name] = _Place(node, epoch)
        for name, (node, epoch) in places.items():
            old = self._places.get(name)
            if old is None or epoch <= old.epoch:
                continue
            if noted >= MOST_AT_ONCE:
                more += 1
                continue
            noted += 1
            if old.node == node:
                self._event(wall, "restarted", f"{name} was restarted", node=node, actor=name)
            else:
                text = f"{name} was placed on {node}, after {old.node}"
                self._event(wall, "moved", text, node=node, actor=name)
        if more:
            self._event(wall, "moved", f"{more} more actors were restarted or placed elsewhere")
        # What was on a node that is gone is remembered until it is somewhere else.
        kept = {
            name: place
            for name, place in self._places.items()
            if name not in places
            and (owner := self._nodes.get(place.node)) is not None
            and owner.gone_at is not None
        }
        self._places = {**kept, **places}

    def _event(
        self, at: float, kind: str, text: str, node: str = "", actor: str = "", peer: str = ""
    ) -> None:
        """Add an event. `peer`: the other node that it is about."""
        self._numbered += 1
        row = {"at": at, "kind": kind, "text": text, "node": node, "actor": actor, "peer": peer}
        self._events.append((str(self._numbered), row))

    def _snapshot(self, wall: float, left_out: int) -> TopicSnapshot:
        nodes = {name: self._node_row(name, known) for name, known in self._nodes.items()}
        actors, more = self._actor_rows()
        totals = self._total_row(nodes, left_out, more)
        self._totals.append((round(wall, 1), totals["rate"], totals["waiting"], totals["received"]))
        history = {
            name: [list(one) for one in known.history] for name, known in self._nodes.items()
        }
        return TopicSnapshot(
            wall,
            {
                "nodes": nodes,
                "actors": actors,
                "links": self._link_rows(),
                "classes": self._class_rows(),
                "events": dict(self._events),
                "totals": {"cluster": totals},
            },
            {"nodes": history, "cluster": [list(one) for one in self._totals]},
        )

    def _node_row(self, name: str, known: _KnownNode) -> dict[str, Any]:
        member, answer = known.member, known.answer
        state = member["state"]
        if known.gone_at is not None:
            state = "left" if state == "draining" else "gone"
        elif known.silent:
            state = "silent"
        unseen = sorted(
            other
            for other, one in self._nodes.items()
            if one.gone_at is None and not one.silent and name in one.answer.get("unreachable", ())
        )
        links = answer.get("links", ())
        references = answer.get("references", {})
        sums = answer.get("classes", {}).values()
        return {
            "name": name,
            "state": state,
            "incarnation": member["incarnation"],
            "address": answer.get("address") or _tcp(member["addresses"]),
            "pid": member["pid"],
            "host": member["host"],
            "python": answer.get("python", ""),
            "labels": dict(member["labels"]),
            "resources": {key: _number(value) for key, value in member["resources"].items()},
            "joined": member["joined"],
            "ahead": round(answer.get("ahead", 0.0)),
            "problem": known.silent,
            "heard": known.heard if known.silent or known.gone_at is not None else None,
            "gone_at": known.gone_at,
            "unreachable": list(answer.get("unreachable", ())),
            "unseen_by": unseen,
            "store": dict(answer.get("store", {})),
            "actors": answer.get("actor_count"),
            "actors_left_out": answer.get("actors_left_out", 0),
            "waiting": sum(one["waiting"] for one in sums),
            "running": sum(one["running"] for one in sums),
            "served": sum(one["served"] for one in sums),
            "rate": known.rate,
            "received": known.received,
            "links": len(links),
            "links_up": sum(bool(one["connected"]) for one in links),
            "references": references,
        }

    def _actor_rows(self) -> tuple[dict[str, dict[str, Any]], int]:
        """The actors that are listed, and how many are not."""
        rows: dict[str, dict[str, Any]] = {}
        more = 0
        for node, known in self._nodes.items():
            more += known.answer.get("actors_left_out", 0) if known.gone_at is None else 0
            for actor in known.answer.get("actors", ()):
                name = actor["name"]
                if name in rows and rows[name]["epoch"] > actor["epoch"]:
                    continue
                if name not in rows and len(rows) >= MOST_ROWS:
                    more += 1
                    continue
                state = "gone" if known.gone_at is not None else "up" if actor["started"] else "new"
                rows[name] = {
                    **actor,
                    "node": node,
                    "rate": known.actor_rates.get(name),
                    "state": "silent" if known.silent and state != "gone" else state,
                }
        return rows, more

    def _link_rows(self) -> dict[str, dict[str, Any]]:
        rows: dict[str, dict[str, Any]] = {}
        for node, known in self._nodes.items():
            if known.gone_at is not None:
                continue
            for link in known.answer.get("links", ()):
                peer = link["peer"]
                if peer not in self._nodes and (
                    peer.startswith("client-") or not link["connected"]
                ):
                    # Clients come and go with every command that is run.
                    continue
                if len(rows) < MOST_LINKS:
                    rows[f"{node}\n{peer}"] = {
                        "node": node,
                        **link,
                        "stale": bool(known.silent),
                    }
        return rows

    def _class_rows(self) -> dict[str, dict[str, Any]]:
        rows: dict[str, dict[str, Any]] = {}
        for known in self._nodes.values():
            if known.gone_at is not None:
                continue
            for path, sums in known.answer.get("classes", {}).items():
                if path not in rows and len(rows) >= MOST_ROWS:
                    continue
                facts = {"class": path, "role": role_of(path)}
                row = rows.setdefault(path, {**facts, **dict.fromkeys(sums, 0)})
                for name, value in sums.items():
                    row[name] += value
        return rows

    def _total_row(self, nodes: Mapping[str, Any], left_out: int, more: int) -> dict[str, Any]:
        present = [row for row in nodes.values() if row["state"] not in ("gone", "left")]
        rates = [row["rate"] for row in present if row["rate"] is not None]
        received = [row["received"] for row in present if row["received"] is not None]
        return {
            "nodes": len(present),
            "silent": sum(row["state"] == "silent" for row in present),
            "actors": sum(row["actors"] or 0 for row in present),
            "waiting": sum(row["waiting"] for row in present),
            "running": sum(row["running"] for row in present),
            "rate": sum(rates) if rates else None,
            "received": sum(received) if received else None,
            "references": sum(row["references"].get("owned", 0) for row in present),
            "reference_bytes": sum(row["references"].get("bytes", 0) for row in present),
            # What a silent node said of the store before is old.
            "store_away": sum(
                bool(row["store"].get("away")) for row in present if row["state"] != "silent"
            ),
            "nodes_left_out": left_out,
            "actors_left_out": more,
        }


def agreed_members(answers: Iterable[Answer], fallback: Sequence[Member]) -> list[Member]:
    """Return the members by the answers of several nodes: the node with the store knows best, then
    the nodes that reach the store; of these, most must agree. `fallback`: if none has said
    anything.
    """
    views = [one for one in answers if one.get("members")]
    own = [one for one in views if (one["store"]["node"], one["store"]["incarnation"]) == _id(one)]
    reaching = [one for one in views if not one["store"]["away"]]
    voices = (own if own and not own[0]["store"]["away"] else reaching) or views
    if not voices:
        return list(fallback)
    counts: dict[NodeId, int] = {}
    found: dict[NodeId, Member] = {}
    for view in voices:
        for member in view["members"]:
            key = NodeId(member["name"], member["incarnation"])
            counts[key] = counts.get(key, 0) + 1
            found[key] = member
    latest: dict[str, Member] = {}
    for key, member in found.items():
        if 2 * counts[key] >= len(voices):
            known = latest.get(member["name"])
            if known is None or known["incarnation"] < member["incarnation"]:
                latest[member["name"]] = member
    return [latest[name] for name in sorted(latest)]


def _id(answer: Answer) -> NodeId:
    return NodeId(answer["node"], answer["incarnation"])


def _served(answer: Answer) -> int:
    return sum(one["served"] for one in answer["classes"].values())


def _received(answer: Answer) -> int:
    return sum(one["bytes_received"] for one in answer["links"])


def _set_by(step: float, history: _History) -> _History:
    """The same points, so many seconds later."""
    later = (((at or 0.0) + step, *values) for at, *values in history)
    return _History(later, maxlen=HISTORY)


def _rate(before: int, after: int, seconds: float) -> float:
    # An actor that has ended takes its count with it, and a new link begins at 0.
    return round(max(0, after - before) / seconds, 1)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _tcp(addresses: Iterable[str]) -> str:
    return next((one.removeprefix("tcp:") for one in addresses if one.startswith("tcp:")), "")
