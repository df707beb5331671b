"""How much each node carries: whatever order the news comes in, it is what a recount would say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.identifiers import NodeId
from runtime.supervision.placement import NodeLoads, PlacedActor
from tests.invariants import checked_in_module

look_through_tables = checked_in_module(NodeLoads)


A = NodeId("a", 1)
B = NodeId("b", 1)
GPU = {"gpu": 1.0}


def carried(node: NodeId, revision: int, **resources: float) -> PlacedActor:
    return PlacedActor(node, resources, revision)


def filled(names: Iterable[tuple[str, PlacedActor]] = ()) -> NodeLoads:
    loads = NodeLoads()
    loads.fill(names, loads.expect())
    return loads


def counts(loads: NodeLoads) -> dict[NodeId, int]:
    return {node: load.actors for node, load in loads.of.items()}


def test_loads_are_not_known_until_they_are_filled_nor_after_changes_were_missed() -> None:
    loads = NodeLoads()
    assert not loads.known
    loads.fill(
        [
            ("x", carried(A, 1, gpu=1.0)),
            ("y", carried(A, 2)),
            ("z", carried(B, 3, gpu=0.5, memory=2.0)),
        ],
        loads.expect(),
    )
    assert loads.known
    assert counts(loads) == {A: 2, B: 1}
    assert loads.of[A].taken == {"gpu": 1.0}
    assert loads.of[B].taken == {"gpu": 0.5, "memory": 2.0}
    loads.forget()
    assert not loads.known
    assert loads.of == {}


def test_a_name_that_moves_is_taken_from_the_one_node_and_given_to_the_other() -> None:
    loads = filled([("x", carried(A, 1, gpu=1.0)), ("y", carried(A, 2))])
    loads.put("x", carried(B, 3, gpu=2.0))
    assert counts(loads) == {A: 1, B: 1}
    assert loads.of[A].taken.get("gpu", 0.0) == 0.0
    assert loads.of[B].taken == {"gpu": 2.0}


def test_a_name_that_nobody_has_any_more_counts_no_longer_and_an_empty_node_is_forgotten() -> None:
    loads = filled([("x", carried(A, 1))])
    loads.on_gone("x", 2)
    loads.on_gone("x", 3)
    loads.on_gone("stranger", 4)
    assert loads.of == {}


def test_old_news_changes_nothing() -> None:
    loads = filled([("x", carried(A, 5))])
    loads.put("x", carried(B, 4))
    loads.put("x", carried(B, 5))
    loads.on_gone("x", 4)
    loads.on_gone("x", 5)
    assert counts(loads) == {A: 1}


def test_changes_that_overtake_the_fill_stay() -> None:
    loads = NodeLoads()
    expected = loads.expect()
    loads.put("moved", carried(B, 7))
    loads.on_gone("ended", 8)
    loads.fill(
        [("moved", carried(A, 1)), ("ended", carried(A, 2)), ("begun again", carried(A, 3))],
        expected,
    )
    assert counts(loads) == {A: 1, B: 1}
    loads.put("ended", carried(B, 9))
    assert counts(loads) == {A: 1, B: 2}


def test_what_has_been_placed_counts_until_it_is_settled() -> None:
    loads = filled([])
    loads.on_placed("x", A, GPU)
    loads.on_placed("y", A, GPU)
    assert counts(loads) == {A: 2}
    assert loads.of[A].taken == {"gpu": 2.0}
    loads.on_settled("x")
    loads.on_settled("x")
    loads.on_settled("stranger")
    assert counts(loads) == {A: 1}
    assert loads.of[A].taken == {"gpu": 1.0}


def test_what_has_been_placed_and_is_seen_among_the_names_counts_once() -> None:
    loads = filled([])
    loads.on_placed("x", A, GPU)
    loads.put("x", carried(A, 1, gpu=1.0))
    assert counts(loads) == {A: 1}
    loads.on_settled("x")
    assert counts(loads) == {A: 1}
    assert loads.of[A].taken == {"gpu": 1.0}


def test_a_placement_that_turns_out_elsewhere_counts_where_the_name_is() -> None:
    loads = filled([])
    loads.on_placed("x", A, GPU)
    loads.put("x", carried(B, 1, gpu=1.0))
    assert counts(loads) == {B: 1}


@pytest.mark.parametrize("reported", ["nothing", "the claim", "both"])
@pytest.mark.parametrize("read", ["before", "while the names are read"])
def test_the_end_of_an_actor_whose_name_no_other_gets_frees_its_resources_once(
    reported: str, read: str
) -> None:
    loads = NodeLoads()
    expected = loads.expect()
    if read == "before":
        loads.fill([], expected)
    claim, before = carried(A, 5, gpu=1.0), loads.freed
    loads.on_placed("x", A, GPU)
    if reported != "nothing":
        loads.put("x", claim)
    if reported == "both":
        loads.on_gone("x", 6)
    loads.on_over("x")
    assert loads.of == {}
    assert loads.freed > before
    loads.fill([("x", claim)], expected)
    loads.put("x", claim)
    loads.on_gone("x", 6)
    assert loads.of == {}
    loads.on_settled("x")
    # Nothing of the name stays.
    loads.fill([], expected)
    assert not loads._stopped


def test_a_second_placement_of_a_name_takes_the_place_of_the_first() -> None:
    loads = filled([])
    loads.on_placed("x", A, GPU)
    loads.on_placed("x", B, GPU)
    assert counts(loads) == {B: 1}


def test_what_is_being_placed_is_not_forgotten_when_changes_were_missed() -> None:
    loads = filled([("y", carried(B, 1))])
    loads.on_placed("x", A, GPU)
    loads.forget()
    assert counts(loads) == {A: 1}
    loads.on_settled("x")
    assert loads.of == {}


def test_a_table_that_was_handed_out_is_left_alone_when_all_is_forgotten() -> None:
    loads = filled([("x", carried(A, 1))])
    of = loads.of
    loads.forget()
    assert of[A].actors == 1
    assert loads.of == {}


def test_the_end_of_a_name_that_is_not_known_yet_does_not_hide_its_next_owner() -> None:
    loads = NodeLoads()
    expected = loads.expect()
    loads.on_gone("x", 4)
    loads.fill([("x", carried(A, 6))], expected)
    assert counts(loads) == {A: 1}


def test_a_look_that_comes_after_another_has_filled_them_brings_nobody_back() -> None:
    loads = NodeLoads()
    first, second = loads.expect(), loads.expect()
    loads.fill([("x", carried(A, 1))], first)
    loads.on_gone("x", 2)
    loads.fill([("x", carried(A, 1)), ("y", carried(A, 1))], second)
    assert loads.of == {}


def test_a_look_from_before_changes_were_missed_is_not_believed() -> None:
    loads = NodeLoads()
    early = loads.expect()
    loads.forget()
    late = loads.expect()
    loads.fill([("x", carried(A, 1))], early)
    assert not loads.known
    assert loads.of == {}
    loads.fill([("y", carried(B, 2))], late)
    assert counts(loads) == {B: 1}


def test_what_happens_before_anybody_asks_is_not_kept() -> None:
    """A node that places nobody hears of names all its life."""
    loads = NodeLoads()
    for revision in range(1, 1000, 2):
        loads.put(f"x{revision}", carried(A, revision))
        loads.on_gone(f"x{revision}", revision + 1)
    assert vars(loads) == vars(NodeLoads())


NODES: tuple[NodeId, ...] = (A, B, NodeId("a", 2))
AMOUNTS = (0.0, 0.1, 0.25, 1.0, 3.0)


@attrs.frozen
class Change:
    """One name's next step in the store, whose revision is the place in the list."""

    name: str
    kind: Literal["put", "delete"]
    node: NodeId
    resources: Mapping[str, float]


changes = st.builds(
    Change,
    st.sampled_from("xyz"),
    st.sampled_from(["put", "put", "delete"]),
    st.sampled_from(NODES),
    st.dictionaries(st.sampled_from(["gpu", "memory"]), st.sampled_from(AMOUNTS)),
)


def told(loads: NodeLoads, change: Change, revision: int) -> None:
    if change.kind == "put":
        loads.put(change.name, PlacedActor(change.node, change.resources, revision))
    else:
        loads.on_gone(change.name, revision)


def as_of(history: list[Change], revision: int) -> dict[str, PlacedActor]:
    """What a look into the store shows at this revision."""
    names: dict[str, PlacedActor] = {}
    for number, change in enumerate(history[:revision], 1):
        names.pop(change.name, None)
        if change.kind == "put":
            names[change.name] = PlacedActor(change.node, change.resources, number)
    return names


def agrees(
    loads: NodeLoads,
    names: dict[str, PlacedActor],
    placed: dict[str, tuple[NodeId, Mapping[str, float]]] | None = None,
) -> None:
    """The counts are those of a recount."""
    expected: dict[NodeId, list[Mapping[str, float]]] = {}
    for each in names.values():
        expected.setdefault(each.node, []).append(each.resources)
    for node, resources in (placed or {}).values():
        expected.setdefault(node, []).append(resources)
    assert counts(loads) == {node: len(all_of_them) for node, all_of_them in expected.items()}
    for node, all_of_them in expected.items():
        for resource in ("gpu", "memory"):
            amount = sum(resources.get(resource, 0.0) for resources in all_of_them)
            assert math.isclose(loads.of[node].taken.get(resource, 0.0), amount, abs_tol=1e-6)


@settings(max_examples=max(100, settings().max_examples))
@given(st.data(), st.lists(changes, max_size=20))
def test_fills_and_changes_in_whatever_order_give_what_a_recount_gives(
    data: st.DataObject, history: list[Change]
) -> None:
    """A look into the store, at some revision, arrives at some point among the changes, of which
    none is missed after it was taken.
    """
    looked = data.draw(st.integers(0, len(history)), label="revision of the look")
    first = data.draw(st.integers(0, looked), label="the first change that is told")
    arrives = data.draw(
        st.integers(first, len(history)), label="changes that are told before the look arrives"
    )
    loads = NodeLoads()
    expected = loads.expect()
    for revision in range(first + 1, arrives + 1):
        told(loads, history[revision - 1], revision)
    loads.fill(as_of(history, looked).items(), expected)
    for revision in range(arrives + 1, len(history) + 1):
        told(loads, history[revision - 1], revision)
    agrees(loads, as_of(history, len(history)))


@settings(max_examples=max(100, settings().max_examples))
@given(st.data(), st.lists(changes, max_size=12))
def test_changes_of_different_names_may_come_in_any_order_and_twice(
    data: st.DataObject, history: list[Change]
) -> None:
    loads = filled([])
    numbered = list(enumerate(history, 1))
    lines = {name: [each for each in numbered if each[1].name == name] for name in "xyz"}
    while waiting := [name for name, line in lines.items() if line]:
        name = data.draw(st.sampled_from(waiting))
        revision, change = lines[name].pop(0)
        told(loads, change, revision)
        if data.draw(st.booleans()):
            told(loads, change, revision)
    agrees(loads, as_of(history, len(history)))


@settings(max_examples=max(100, settings().max_examples))
@given(
    st.data(),
    st.lists(st.sampled_from(["change", "place", "settle", "forget", "fill"]), max_size=25),
)
def test_placements_and_lost_changes_among_the_news_do_not_spoil_the_counts(
    data: st.DataObject, steps: list[str]
) -> None:
    loads = filled([])
    history: list[Change] = []
    placed: dict[str, tuple[NodeId, Mapping[str, float]]] = {}
    names: dict[str, PlacedActor] = {}
    for step in steps:
        if step == "change":
            history.append(data.draw(changes))
            told(loads, history[-1], len(history))
            change = history[-1]
            if not loads.known:
                continue
            if change.kind == "put":
                placed.pop(change.name, None)
                names[change.name] = PlacedActor(change.node, change.resources, len(history))
            else:
                names.pop(change.name, None)
        elif step == "place":
            name, node, amount = (
                data.draw(st.sampled_from("xyz")),
                data.draw(st.sampled_from(NODES)),
                data.draw(st.sampled_from(AMOUNTS)),
            )
            loads.on_placed(name, node, {"gpu": amount})
            placed.pop(name, None)
            if name not in names:
                placed[name] = (node, {"gpu": amount})
        elif step == "settle":
            name = data.draw(st.sampled_from("xyz"))
            loads.on_settled(name)
            placed.pop(name, None)
        elif step == "forget":
            loads.forget()
            names = {}
        else:
            loads.fill(as_of(history, len(history)).items(), loads.expect())
            names = as_of(history, len(history))
            placed = {name: its for name, its in placed.items() if name not in names}
        agrees(loads, names, placed)
