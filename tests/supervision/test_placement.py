"""Where actors go: what a node must have, spread and pack, ties, and what is said when nothing
fits.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.actor import Member
from actors.errors import NodeNotFoundError, NoPlacementError
from actors.identifiers import NodeId
from actors.options import SpawnOptions
from runtime.supervision.placement import (
    CALLS_ONLY,
    NodeLoad,
    NodeLoads,
    PlacedActor,
    StartRefusal,
    Turns,
    choose_node,
    nearest_node,
    refused_by_many,
    spread_over,
)


def member(name: str, **keywords: Any) -> Member:
    return Member(name, **{"incarnation": 1, "addresses": (), "host": "here", "pid": 1, **keywords})


def load(actors: int, **taken: float) -> NodeLoad:
    return NodeLoad(actors, taken)


def chosen(
    members: list[Member],
    loads: dict[str, NodeLoad] | None = None,
    draw: float = 0.0,
    **options: Any,
) -> str:
    """The name of the member that is chosen; `loads` by the names of nodes in their first
    incarnation.
    """
    by_identity = {NodeId(name, 1): its for name, its in (loads or {}).items()}
    return choose_node(members, SpawnOptions(**options), by_identity, draw).name


THREE = [member("a"), member("b"), member("c")]


def test_an_actor_goes_to_the_node_with_the_fewest_actors_unless_something_else_is_said() -> None:
    loads = {"a": load(3), "b": load(1), "c": load(2)}
    assert chosen(THREE, loads) == "b"
    assert chosen(THREE, loads, placement="spread") == "b"


def test_a_node_of_which_no_load_is_known_carries_nothing() -> None:
    assert chosen(THREE, {"a": load(1), "c": load(1)}) == "b"


def test_pack_takes_the_node_with_the_most_actors() -> None:
    assert chosen(THREE, {"a": load(1), "b": load(2)}, placement="pack") == "b"


def test_pack_goes_on_to_the_next_node_when_the_fullest_is_full() -> None:
    members = [
        member("a", resources={"slots": 2.0}),
        member("b", resources={"slots": 2.0}),
        member("c", resources={"slots": 2.0}),
    ]
    loads = {"a": load(2, slots=2.0), "b": load(1, slots=1.0)}
    assert chosen(members, loads, placement="pack", resources={"slots": 1}) == "b"


def test_what_a_node_carried_in_an_earlier_incarnation_does_not_count() -> None:
    members = [
        member("a", incarnation=2, resources={"gpu": 1.0}),
        member("b", incarnation=1, resources={"gpu": 1.0}),
    ]
    assert chosen(members, {"a": load(9, gpu=1.0), "b": load(1)}, resources={"gpu": 1}) == "a"


@pytest.mark.parametrize(
    ("draw", "name"),
    [(0.0, "a"), (0.33, "a"), (0.34, "b"), (0.66, "b"), (0.67, "c"), (0.999999, "c")],
)
def test_of_several_that_are_equally_good_the_draw_picks_one(draw: float, name: str) -> None:
    assert chosen(THREE, {"a": load(1), "b": load(1), "c": load(1)}, draw) == name


def test_the_draw_picks_among_the_best_only() -> None:
    loads = {"a": load(1), "b": load(0), "c": load(0)}
    assert {chosen(THREE, loads, draw) for draw in (0.0, 0.3, 0.49, 0.5, 0.99)} == {"b", "c"}


def test_a_node_must_carry_all_labels_that_are_asked_for() -> None:
    members = [
        member("a", labels={"zone": "north"}),
        member("b", labels={"zone": "north", "disk": "fast"}),
        member("c", labels={"zone": "south", "disk": "fast"}),
    ]
    assert chosen(members, {"b": load(50)}, labels={"zone": "north", "disk": "fast"}) == "b"


def test_a_node_must_have_left_what_is_asked_for() -> None:
    members = [
        member("a", resources={"gpu": 4.0}),
        member("b", resources={"gpu": 2.0}),
        member("c"),
    ]
    loads = {"a": load(1, gpu=3.0), "b": load(7)}
    assert chosen(members, loads, resources={"gpu": 2}) == "b"
    assert chosen(members, loads, resources={"gpu": 1}) == "a"


def test_all_of_several_resources_must_be_left_on_one_node() -> None:
    members = [
        member("a", resources={"gpu": 1.0, "memory": 8.0}),
        member("b", resources={"gpu": 1.0, "memory": 64.0}),
    ]
    assert chosen(members, {"b": load(5)}, resources={"gpu": 1, "memory": 16}) == "b"


def test_nothing_of_a_resource_is_left_everywhere() -> None:
    assert chosen(THREE, resources={"gpu": 0}) == "a"


def test_amounts_that_do_not_add_up_exactly_fill_a_node_all_the_same() -> None:
    # Added up as a node does it, one after the other: `sum` is exact since Python 3.12.
    loads = NodeLoads()
    loads.expect()
    for number in range(9):
        loads.put(f"worker-{number}", PlacedActor(NodeId("a", 1), {"cores": 0.1}, number + 1))
    taken = loads.of[NodeId("a", 1)].taken["cores"]
    assert taken != 0.9
    assert (
        chosen(
            [member("a", resources={"cores": 1.0})],
            {"a": load(9, cores=taken)},
            resources={"cores": 0.1},
        )
        == "a"
    )
    assert (
        chosen(
            [member("a", resources={"cores": 0.3})],
            {"a": load(1, cores=0.1)},
            resources={"cores": 0.2},
        )
        == "a"
    )


@given(st.integers(1, 30), st.sampled_from([0.1, 0.2, 0.3, 0.7, 1.1]))
def test_as_many_fit_as_there_is_room_for_and_not_one_more(count: int, amount: float) -> None:
    members, options, carried = (
        [member("a", resources={"cores": amount * count})],
        SpawnOptions(resources={"cores": amount}),
        NodeLoad(),
    )
    for _ in range(count):
        assert choose_node(members, options, {NodeId("a", 1): carried}, 0.0).name == "a"
        carried.actors += 1
        carried.taken["cores"] = carried.taken.get("cores", 0.0) + amount
    with pytest.raises(NoPlacementError, match="cores left of"):
        choose_node(members, options, {NodeId("a", 1): carried}, 0.0)


def test_a_node_that_is_not_up_is_only_taken_when_it_is_named() -> None:
    members = [member("a", state="draining"), member("b", state="joining"), member("c")]
    assert chosen(members, {"c": load(100)}) == "c"
    assert chosen(members, on="b") == "b"


def test_a_named_node_is_taken_however_much_it_carries() -> None:
    assert chosen(THREE, {"c": load(1000)}, on="c") == "c"


def test_a_named_node_must_fit_as_well() -> None:
    members = [member("a", labels={"zone": "north"}), member("b", labels={"zone": "south"})]
    with pytest.raises(
        NoPlacementError, match=r"(?m)no node fits worker: b does not carry the label zone=north$"
    ) as raised:
        chosen(members, name="worker", on="b", labels={"zone": "north"})
    assert raised.value.actor == "worker"


def test_a_node_that_is_no_member_is_named_in_the_error_beside_those_that_are() -> None:
    with pytest.raises(
        NodeNotFoundError, match=r"no node called 'x'.*its nodes are: a, b, c"
    ) as raised:
        chosen(THREE, on="x")
    assert raised.value.node == "x"


@pytest.mark.parametrize(
    "members", [[], [member("a", state="draining"), member("b", state="joining")]]
)
def test_where_no_node_is_up_the_error_says_so(members: list[Member]) -> None:
    with pytest.raises(NoPlacementError, match="no node of the cluster is up"):
        chosen(members)


def test_when_nothing_fits_the_error_says_of_each_node_what_it_lacks() -> None:
    members = [
        member("a", labels={"zone": "north"}, resources={"gpu": 4.0}),
        member("b", labels={"zone": "south"}, resources={"gpu": 4.0}),
        member("c"),
        member("d", labels={"zone": "north"}),
    ]
    with pytest.raises(NoPlacementError) as raised:
        chosen(
            members,
            {"a": load(2, gpu=2.5)},
            name="trainer",
            labels={"zone": "north"},
            resources={"gpu": 2},
        )
    assert str(raised.value) == (
        "no node fits trainer: a has 1.5 gpu left of 4, and 2 is asked for; b does not carry the "
        "label zone=north; "
        "c does not carry the label zone=north; d has no gpu, and 2 is asked for"
    )


def test_an_actor_without_a_name_is_called_the_actor_and_many_nodes_are_cut_short() -> None:
    members = [member(f"n{number}") for number in range(8)]
    with pytest.raises(
        NoPlacementError, match=r"(?m)no node fits the actor: n0 .*; n4 [^;]*; and 3 more$"
    ) as raised:
        chosen(members, labels={"zone": "north"})
    assert raised.value.actor is None


def test_the_node_that_lacks_the_least_is_asked_first_and_none_that_could_never_fit() -> None:
    members = [
        member("a", resources={"gpu": 4.0}),
        member("b", resources={"gpu": 4.0, "cores": 1.0}),
        member("c", resources={"gpu": 4.0}, state="draining"),
        member("d", resources={"gpu": 1.0}),
        member("e", resources={"gpu": 2.0}),
    ]
    loads = {
        NodeId(name, 1): load(1, gpu=taken)
        for name, taken in zip("abde", (4, 3, 0, 2), strict=True)
    }
    options = SpawnOptions(name="model", resources={"gpu": 2.0, "cores": 0.0})
    refusals: dict[NodeId, StartRefusal] = {}
    asked: list[str] = []
    while (found := nearest_node(members, options, loads, 0.0, refusals)) is not None:
        asked.append(found.name)
        refusals[found.node_id] = StartRefusal(f"node {found.name} has none")
    assert asked == ["b", "a", "e"]


def test_an_error_about_many_nodes_that_were_asked_says_how_many() -> None:
    refusals = {
        NodeId(f"n{number}", 1): StartRefusal(f"node n{number} has none") for number in range(64)
    }
    error = refused_by_many(SpawnOptions(name="model"), refusals)
    assert str(error) == (
        "model was not started: 64 nodes were asked, and none had room for it: node n0 has none; "
        "node n1 has none; node n2 has none; node n3 has none; node n4 has none; and 59 more; "
        "stop an actor that takes it, or start a node that has more"
    )
    refusals = {
        NodeId(f"n{number}", 1): StartRefusal(f"node n{number} leaves", is_full=False)
        for number in range(64)
    }
    error = refused_by_many(SpawnOptions(name="model"), refusals)
    assert str(error) == (
        "model was not started: 64 nodes were asked, and none could start it: node n0 leaves; "
        "node n1 leaves; node n2 leaves; node n3 leaves; node n4 leaves; and 59 more"
    )


@pytest.mark.parametrize("placement", ["spread", "pack", None])
@pytest.mark.parametrize("resources", [{}, {"gpu": 1.0}])
def test_of_many_none_is_placed_on_a_node_that_has_refused(
    placement: Any, resources: dict[str, float]
) -> None:
    members = [member(name, resources={"gpu": 4.0}) for name in "abc"]
    refusals = {NodeId("b", 1): StartRefusal("node b leaves", is_full=False)}
    options = SpawnOptions(placement=placement, resources=resources)
    places = spread_over(members, options, {}, 6, lambda: 0.0, refusals=refusals)
    assert len(places) == 6
    assert {place.name for place in places} <= {"a", "c"}


def test_more_taken_than_there_is_reads_as_nothing_left() -> None:
    with pytest.raises(NoPlacementError, match="a has 0 gpu left of 1, and 1 is asked for"):
        chosen([member("a", resources={"gpu": 1.0})], {"a": load(2, gpu=2.0)}, resources={"gpu": 1})


def test_a_node_that_only_makes_calls_gets_actors_by_its_name_alone() -> None:
    members = [member("script", labels={CALLS_ONLY: "true"}), member("b")]
    assert chosen(members, {"b": load(50)}) == "b"
    assert chosen(members, {}, on="script") == "script"
    with pytest.raises(NoPlacementError, match="only make calls"):
        chosen(members[:1], {})


def test_nodes_with_equal_loads_take_turns_and_those_that_have_gone_are_forgotten() -> None:
    turns = Turns()

    def choose(members: list[Member], **options: Any) -> str:
        found = choose_node(members, SpawnOptions(**options), {}, 0.0, turns)
        turns.on_chosen([found], members)
        return found.name

    assert [choose(THREE) for _ in range(6)] == ["a", "b", "c"] * 2
    assert [choose(THREE, placement="pack") for _ in range(3)] == ["c"] * 3
    later = [member(f"later {number}", incarnation=2) for number in range(2)]
    assert [choose(later) for _ in range(3)] == ["later 0", "later 1", "later 0"]
    assert len(turns) <= 2 * len(later)
