"""The tables alone: which watches stand, which notices are due, and for whom."""

from __future__ import annotations

import random

from actors.identifiers import ActorId, NodeId
from runtime.watching.tables import Target, WatcherTable, WatchTable
from tests.invariants import checked_in_module

look_through_tables = checked_in_module(WatchTable, WatcherTable)


THERE = NodeId("there", 7)
ELSEWHERE = NodeId("elsewhere", 9)
ME = ActorId("me", 1)
YOU = ActorId("you", 2)


def target(name: str = "target", epoch: int = 3, node: NodeId = THERE) -> Target:
    return Target(name, epoch, node)


def test_a_watch_gives_its_notice_once() -> None:
    watches = WatchTable()
    one = watches.add(ME, target())
    assert one.number in watches
    assert watches.on_ended(target()) == [one]
    assert watches.on_ended(target()) == []
    assert len(watches) == 0
    assert not watches.is_wanted(target())


def test_two_watches_are_independent_and_due_in_the_order_in_which_they_were_made() -> None:
    watches = WatchTable()
    first, second, third = (
        watches.add(ME, target()),
        watches.add(YOU, target()),
        watches.add(ME, target()),
    )
    assert watches.drop(second.number) is None
    assert watches.on_ended(target()) == [first, third]


def test_the_last_watch_of_a_target_that_is_dropped_says_that_it_was() -> None:
    watches = WatchTable()
    first, second = watches.add(ME, target()), watches.add(None, target())
    assert watches.drop(first.number) is None
    assert watches.drop(first.number) is None
    assert watches.drop(second.number) == target()
    assert watches.drop(second.number) is None
    assert watches.on_ended(target()) == []


def test_another_epoch_or_another_start_of_the_node_is_another_target() -> None:
    watches = WatchTable()
    watches.add(ME, target())
    assert watches.on_ended(target(epoch=4)) == []
    assert watches.on_ended(target(node=NodeId("there", 8))) == []
    assert watches.on_node(THERE) == [target()]
    assert watches.on_node(NodeId("there", 8)) == []


def test_the_watches_of_a_watcher_end_with_it_and_those_of_others_stay() -> None:
    watches = WatchTable()
    watches.add(ME, target("shared"))
    watches.add(ME, target("mine"))
    watches.add_link(ME, target("linked"))
    yours = watches.add(YOU, target("shared"))
    assert set(watches.drop_watcher(ME)) == {target("mine"), target("linked")}
    assert watches.drop_watcher(ME) == []
    assert watches.on_ended(target("shared")) == [yours]
    assert len(watches) == 0


def test_two_actors_have_one_link_which_is_no_watch() -> None:
    watches = WatchTable()
    link = watches.add_link(ME, target())
    assert link is not None
    assert watches.add_link(ME, target()) is None
    watch = watches.add(ME, target())
    assert watches.link(ME, target()) == link
    assert watches.links_to(ME, "target") == [link]
    assert watches.drop(link.number) is None
    assert watches.link(ME, target()) is None
    assert watches.on_ended(target()) == [watch]
    assert watches.add_link(ME, target()) is not None


def test_each_watcher_gets_one_notice_of_the_end() -> None:
    watched = WatcherTable()
    watched.ask(ME, THERE, 1)
    watched.ask(ME, THERE, 2)
    watched.ask(ME, ELSEWHERE, 5)
    assert watched.on_ended(YOU) == {}
    assert watched.on_ended(ME) == {THERE: 2, ELSEWHERE: 5}
    assert watched.on_ended(ME) == {}


def test_what_is_taken_back_late_takes_back_nothing_newer() -> None:
    watched = WatcherTable()
    watched.ask(ME, THERE, 1)
    watched.ask(ME, THERE, 2)
    watched.take_back(ME, THERE, 1)
    assert len(watched) == 1
    watched.take_back(ME, THERE, 2)
    watched.take_back(ME, THERE, 2)
    assert len(watched) == 0


def test_a_node_that_is_no_more_wants_to_know_nothing() -> None:
    watched = WatcherTable()
    for actor in (ME, YOU):
        watched.ask(actor, THERE, 1)
    watched.ask(YOU, ELSEWHERE, 1)
    watched.forget(THERE)
    assert watched.on_ended(ME) == {}
    assert watched.on_ended(YOU) == {ELSEWHERE: 1}


def test_whatever_happens_each_watch_ends_in_one_way() -> None:
    for seed in range(200):
        draw = random.Random(seed)
        watches = WatchTable()
        actors, targets = (
            [ActorId(f"a{n}", n) for n in range(3)],
            [target(f"t{n}") for n in range(4)],
        )
        made: dict[int, ActorId] = {}
        over: list[int] = []
        for _ in range(60):
            match draw.randrange(5):
                case 0 | 1:
                    watcher = draw.choice(actors)
                    made[watches.add(watcher, draw.choice(targets)).number] = watcher
                case 2:
                    one = watches.add_link(watcher := draw.choice(actors), draw.choice(targets))
                    if one is not None:
                        made[one.number] = watcher
                case 3:
                    over += [one.number for one in watches.on_ended(draw.choice(targets))]
                case _:
                    if made and draw.random() < 0.5:
                        number = draw.choice(sorted(made))
                        over += [number] if number in watches else []
                        watches.drop(number)
                    else:
                        watcher = draw.choice(actors)
                        over += [
                            number
                            for number, owner in made.items()
                            if owner == watcher and number in watches
                        ]
                        watches.drop_watcher(watcher)
        assert len(over) == len(set(over)), seed
        assert len(over) + len(watches) == len(made), seed
        for each in targets:
            over += [one.number for one in watches.on_ended(each)]
        assert sorted(over) == sorted(made), seed
        assert not any(watches.is_wanted(each) for each in targets), seed
