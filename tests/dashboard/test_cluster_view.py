"""The cluster as pages show it: what is old is shown as old, what is gone as gone."""

from __future__ import annotations

from typing import Any

import pytest

from actors.identifiers import NodeId
from runtime.dashboard.cluster_view import (
    GONE_SECONDS,
    MOST_AT_ONCE,
    MOST_EVENTS,
    MOST_NODES,
    ClusterView,
    agreed_members,
)
from runtime.dashboard.questions import seconds_ahead
from runtime.dashboard.snapshots import MOST_ROWS, TopicSnapshot
from runtime.logs.archive import NodeEnd


def member(name: str, incarnation: int = 1, state: str = "up") -> dict[str, Any]:
    """A member, as nodes tell it."""
    return {
        "name": name,
        "incarnation": incarnation,
        "addresses": [f"tcp:{name}:7400"],
        "host": "h",
        "pid": 1,
        "state": state,
        "labels": {},
        "resources": {"gpu": float("inf")},
        "joined": 0.0,
    }


def actor(name: str, epoch: int = 1, served: int = 0, class_path: str = "m:C") -> dict[str, Any]:
    """An actor, as its node tells it."""
    return {
        "name": name,
        "class": class_path,
        "epoch": epoch,
        "registered": True,
        "waiting": 0,
        "running": 0,
        "served": served,
        "started": True,
        "supervises": False,
        "supervisor": "",
        "pid": None,
    }


def overview(name: str, *actors: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What a node answers."""
    served = sum(one["served"] for one in actors)
    return {
        "node": name,
        "incarnation": 1,
        "cluster": "c",
        "address": f"{name}:7400",
        "pid": 1,
        "python": "3",
        "store": {"node": "w1", "incarnation": 1, "away": False},
        "unreachable": [],
        "links": [],
        "links_left_out": 0,
        "references": {},
        "actors": list(actors),
        "actor_count": len(actors),
        "actors_left_out": 0,
        "classes": {
            "m:C": {"actors": len(actors), "waiting": 0, "running": 0, "served": served},
        },
    } | changes


class World:
    """A view and its clock."""

    def __init__(self) -> None:
        self.view = ClusterView()
        self.now = 100.0
        self.zero = 1e9
        """The time since 1970 at which the clock that never jumps was at its zero."""

    def see(
        self, members: list[dict[str, Any]], seconds: float = 1.0, **answers: dict[str, Any]
    ) -> TopicSnapshot:
        self.now += seconds
        silent = {one["name"]: "no answer" for one in members if one["name"] not in answers}
        snapshot = self.view.observe(self.now + self.zero, self.now, members, answers, silent)
        self.view.check_invariants()
        return snapshot


def kinds(snapshot: TopicSnapshot) -> list[str]:
    return [row["kind"] for row in snapshot.sections["events"].values()]


def test_a_silent_node_keeps_its_last_values_with_their_age() -> None:
    world = World()
    both = [member("w1"), member("w2")]
    world.see(both, w1=overview("w1"), w2=overview("w2", actor("a", served=5)))
    heard = world.now + 1e9
    found = world.see(both, 3.0, w1=overview("w1"))
    row = found.sections["nodes"]["w2"]
    assert (row["state"], row["heard"], row["actors"]) == ("silent", heard, 1)
    assert (row["rate"], row["problem"]) == (None, "no answer")
    assert found.sections["actors"]["a"]["state"] == "silent"
    assert found.sections["totals"]["cluster"]["silent"] == 1
    again = world.see(both, w1=overview("w1"), w2=overview("w2", actor("a", served=13)))
    assert again.sections["nodes"]["w2"]["heard"] is None
    assert again.sections["nodes"]["w2"]["rate"] == 2.0, "8 calls since the last answer, 4 s ago"
    assert kinds(again) == ["silent", "back"]


def test_that_the_store_is_away_is_said_only_by_nodes_that_answer() -> None:
    view, members = ClusterView(), [member("w1"), member("w2")]
    away = {"node": "w1", "incarnation": 1, "away": True}
    answers = {name: overview(name, store=away) for name in ("w1", "w2")}
    for silent, count in (({}, 2), ({"w2": "why"}, 1)):
        heard = {name: one for name, one in answers.items() if name not in silent}
        totals = view.observe(1.0, 1.0, members, heard, silent).sections["totals"]["cluster"]
        assert totals["store_away"] == count


def test_classes_of_the_runtime_have_the_role_of_their_actors() -> None:
    sums = {"actors": 2, "waiting": 0, "running": 0, "served": 0}
    keeper = "runtime.pools.supervisor:PoolKeeper"
    answer = overview("w1", classes={keeper: sums, "m:C": sums})
    rows = World().see([member("w1")], w1=answer).sections["classes"]
    assert {path: row["role"] for path, row in rows.items()} == {keeper: "pool keeper", "m:C": ""}


def test_members_that_are_left_out_do_not_stay_with_their_last_answers() -> None:
    world = World()
    last = [member(f"w{number:03}") for number in range(MOST_NODES)]
    before = world.see(last, w299=overview("w299", actor("a")))
    assert len(before.sections["nodes"]) == MOST_NODES
    after = world.see([member("first"), *last])
    assert "w299" not in after.sections["nodes"]
    assert "a" not in after.sections["actors"]
    assert after.sections["totals"]["cluster"]["nodes_left_out"] == 1
    assert kinds(after)[-1] != "gone", "it is a member still"


def test_a_node_that_has_just_joined_is_not_silent_before_it_is_asked() -> None:
    world = World()
    world.see([member("w1")], w1=overview("w1"))
    both = [member("w1"), member("w2", 2)]
    found = world.view.observe(world.now + 1e9, world.now, both, {"w1": overview("w1")}, {})
    world.view.check_invariants()
    assert found.sections["nodes"]["w2"]["state"] == "up"
    assert kinds(found) == ["joined"]
    assert kinds(world.see(both, w1=overview("w1"))) == ["joined", "silent"]


def test_a_death_and_the_move_of_its_actors_are_seen() -> None:
    world = World()
    both = [member("w1"), member("w2")]
    world.see(both, w1=overview("w1"), w2=overview("w2", actor("a", 5), actor("b", 6)))
    dead = world.see(both[:1], w1=overview("w1"))
    assert dead.sections["nodes"]["w2"]["state"] == "gone"
    assert dead.sections["actors"]["a"]["state"] == "gone"
    assert dead.sections["totals"]["cluster"]["nodes"] == 1
    moved = world.see(both[:1], w1=overview("w1", actor("a", 9)))
    assert moved.sections["actors"]["a"]["node"] == "w1"
    assert moved.sections["actors"]["b"]["state"] == "gone"
    texts = [row["text"] for row in moved.sections["events"].values()]
    assert texts == ["w2 has died", "a was placed on w1, after w2"]
    later = world.see(both[:1], GONE_SECONDS + 1, w1=overview("w1", actor("a", 9)))
    assert set(later.sections["nodes"]) == {"w1"}
    assert set(later.sections["actors"]) == {"a"}


def test_a_node_that_drains_has_left_and_not_died() -> None:
    world = World()
    world.see([member("w1"), member("w2")], w1=overview("w1"), w2=overview("w2"))
    draining = [member("w1"), member("w2", state="draining")]
    world.see(draining, w1=overview("w1"), w2=overview("w2"))
    found = world.see([member("w1")], w1=overview("w1"))
    assert found.sections["nodes"]["w2"]["state"] == "left"
    assert kinds(found) == ["leaving", "left"]


def test_a_restarted_node_does_not_give_its_count_as_a_rate() -> None:
    world = World()
    world.see([member("w1")], w1=overview("w1", actor("a", 5, served=1000)))
    found = world.see([member("w1", 2)], w1=overview("w1", actor("a", 9, served=3)))
    assert found.sections["nodes"]["w1"]["rate"] is None
    assert found.sections["actors"]["a"]["rate"] is None
    # The same incarnation, but an actor took its count with it.
    found = world.see([member("w1", 2)], w1=overview("w1", actor("a", 10, served=1)))
    assert found.sections["nodes"]["w1"]["rate"] == 0
    assert kinds(found) == ["joined", "restarted", "restarted"]


def test_the_stale_place_of_an_actor_on_a_silent_node_does_not_hide_the_new_one() -> None:
    world = World()
    both = [member("w1"), member("w2")]
    world.see(both, w1=overview("w1"), w2=overview("w2", actor("a", 5)))
    found = world.see(both, w1=overview("w1", actor("a", 9)))
    assert found.sections["actors"]["a"]["node"] == "w1"
    assert world.view.place_of("a") == "w1"


def test_a_partition_is_shown_from_both_ends() -> None:
    world = World()
    both = [member("w1"), member("w2")]
    found = world.see(
        both, w1=overview("w1", unreachable=["w2"]), w2=overview("w2", unreachable=["w1"])
    )
    assert found.sections["nodes"]["w1"]["unseen_by"] == ["w2"]
    assert found.sections["nodes"]["w2"]["unseen_by"] == ["w1"]


def test_nodes_that_lose_each_other_are_an_event_and_so_is_that_they_find_each_other() -> None:
    world = World()
    three = [member("w1"), member("w2"), member("w3")]
    w2, w3 = overview("w2", unreachable=["w3"]), overview("w3", unreachable=["w2"])
    whole = {name: overview(name) for name in ("w1", "w2", "w3")}

    def told(found: TopicSnapshot) -> list[tuple[str, str]]:
        rows = found.sections["events"].values()
        return [(row["kind"], row["text"]) for row in rows if row["kind"] in ("cut", "found")]

    world.see(three, 1.0, **whole)
    lost, again = ("w2 and w3 have lost each other", "w2 and w3 have found each other again")
    # Both say it, and more than once.
    assert told(world.see(three, 1.0, **{**whole, "w2": w2})) == [("cut", lost)]
    found = world.see(three, 1.0, **{**whole, "w2": w2, "w3": w3})
    assert told(found) == [("cut", lost)]
    (row,) = (one for one in found.sections["events"].values() if one["kind"] == "cut")
    assert (row["node"], row["peer"]) == ("w2", "w3")
    # One that does not answer meanwhile has found nobody by that.
    assert told(world.see(three, w1=whole["w1"], w2=w2)) == [("cut", lost)]
    assert told(world.see(three, 1.0, **{**whole, "w3": w3})) == [("cut", lost)]
    assert told(world.see(three, 1.0, **whole)) == [("cut", lost), ("found", again)]
    # The end of one of the two is told, and is no meeting.
    world.see(three, 1.0, **{**whole, "w3": w3})
    told_of = told(world.see(three[:2], w1=whole["w1"], w2=whole["w2"]))
    assert [kind for kind, _ in told_of] == ["cut", "found", "cut"]


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_what_has_happened_stays_as_old_as_it_is_when_the_clock_is_set(step: float) -> None:
    world = World()
    both, answers = [member("w1"), member("w2")], {"w1": overview("w1"), "w2": overview("w2")}
    world.see(both, 1.0, **answers)
    # One is silent, then gone; all that the page knows of it has a time.
    world.see(both, w1=answers["w1"])
    world.see(both[:1], w1=answers["w1"])

    def ages() -> list[list[float]]:
        found = world.see(both[:1], w1=answers["w1"])
        node = found.sections["nodes"]["w2"]
        return [
            [found.at - row["at"] for row in found.sections["events"].values()],
            [found.at - node["heard"], found.at - node["gone_at"]],
            [found.at - at for at, *_ in found.history["nodes"]["w2"]],
            [found.at - at for at, *_ in found.history["cluster"]],
        ]

    before = ages()
    world.zero += step
    after = ages()
    # A second has passed, and a point has come to the sums of the cluster.
    assert after[:3] == [pytest.approx([age + 1 for age in kind]) for kind in before[:3]]
    assert after[3] == pytest.approx([age + 1 for age in before[3]] + [0])
    assert "w2" not in world.see(both[:1], GONE_SECONDS, w1=answers["w1"]).sections["nodes"]


def test_a_node_whose_clock_differs_is_shown_with_the_difference() -> None:
    world = World()
    both = [member("w1"), member("w2")]
    found = world.see(both, w1=overview("w1", ahead=3600.4), w2=overview("w2"))
    assert [row["ahead"] for row in found.sections["nodes"].values()] == [3600, 0]
    assert world.view.ahead_of(NodeId("w1", 1)) == 3600.4
    # Not of the one that had the name before, nor of one that is not known.
    assert world.view.ahead_of(NodeId("w1", 2)) == world.view.ahead_of(NodeId("w3", 1)) == 0
    found = world.see(both, w1=overview("w1"), w2=overview("w2"))
    assert found.sections["nodes"]["w1"]["ahead"] == 0, "it was set right"


@pytest.mark.parametrize(
    ("told", "received", "ahead"),
    [
        (3600.0, 1.0, 3599.5),
        (-3600.0, 1.0, -3600.5),
        # Less than what is worth a word, and less than the answer has taken.
        (1.9, 0.0, 0.0),
        (30.0, 60.0, 0.0),
        # Our own clock was set between the two.
        (0.0, 3600.0, 0.0),
        (0.0, -3600.0, 0.0),
        # Earlier versions tell none, and others anything.
        (None, 1.0, 0.0),
        ("soon", 1.0, 0.0),
        (float("nan"), 1.0, 0.0),
        (float("inf"), 1.0, 0.0),
    ],
)
def test_how_far_a_clock_is_ahead(told: object, received: float, ahead: float) -> None:
    assert seconds_ahead(told, 0.0, received) == ahead


def test_a_large_partition_is_a_bounded_number_of_events() -> None:
    world = World()
    names = [f"n{number}" for number in range(20)]
    members = [member(name) for name in names]
    world.see(members, 1.0, **{name: overview(name) for name in names})
    cut = {
        name: overview(name, unreachable=[one for one in names if one != name]) for name in names
    }
    events = world.see(members, 1.0, **cut).sections["events"].values()
    texts = [row["text"] for row in events if row["kind"] == "cut"]
    assert len(texts) == MOST_AT_ONCE + 1
    assert texts[-1] == f"{190 - MOST_AT_ONCE} more pairs of nodes have lost each other"


def test_what_is_kept_and_sent_is_bounded() -> None:
    world = World()
    for turn in range(40):
        names = [f"n{turn}-{number}" for number in range(50)]
        actors = [actor(f"a{number}", epoch=turn + 1) for number in range(200)]
        answers = {name: overview(name, *actors, actors_left_out=1000) for name in names}
        found = world.see([member(name) for name in names], 1.0, **answers)
    assert len(found.sections["nodes"]) <= 300
    assert len(found.sections["events"]) == MOST_EVENTS
    assert len(found.sections["actors"]) <= MOST_ROWS
    assert found.sections["totals"]["cluster"]["actors_left_out"] == 50 * 1000
    at_once = [row for row in found.sections["events"].values() if row["kind"] == "restarted"]
    assert len([row for row in at_once if row["at"] == world.now + 1e9]) <= MOST_AT_ONCE


def test_who_is_a_member_is_said_by_the_node_of_the_store() -> None:
    stale = overview("w2", members=[member("w1"), member("w2"), member("dead")])
    fresh = overview("w1", members=[member("w1"), member("w2")])
    assert [one["name"] for one in agreed_members([stale, fresh], [])] == ["w1", "w2"]
    # Without it, those that reach the store; and if none does, all of them.
    away = {"node": "w1", "incarnation": 1, "away": True}
    cut_off = overview("w3", members=[member("w3"), member("dead")], store=away)
    assert [one["name"] for one in agreed_members([stale, cut_off], [])] == ["dead", "w1", "w2"]
    assert [one["name"] for one in agreed_members([cut_off], [])] == ["dead", "w3"]
    assert agreed_members([], [member("w9")]) == [member("w9")]


def test_nodes_that_ended_before_the_first_round_are_among_the_events_once() -> None:
    view = ClusterView()
    died = ("w2", NodeEnd(5.0, "died", "its process has ended"))
    for _ in range(2):
        view.remember_ends([died, ("w1", NodeEnd(3.0, "left", ""))])
    snapshot = view.observe(10.0, 10.0, [], {}, {})
    told = [(one["at"], one["kind"], one["text"]) for one in snapshot.sections["events"].values()]
    assert told == [
        (3.0, "left", "w1 has left"),
        (5.0, "gone", "w2 has died: its process has ended"),
    ]
    assert view.has_begun
