"""Questions about a node with many actors: what each answer holds is bounded, it says what it
leaves out, and the event loop has its turns while the node looks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from actors import Actor, ChildSpec, DynamicSupervisor, Supervisor, method
from actors.errors import RemoteError
from actors.supervisor import SupervisorStatus
from runtime import Node, draw_tree, open_node
from runtime.hosting.orderly_stop import STOPS_IN_A_ROW
from runtime.node import internals_of
from runtime.observation import actor_listing, overviews, supervision_report
from runtime.observation.actor_listing import BestRows
from runtime.observation.conditions import Condition, parse_condition
from runtime.observation.inspection_service import inspection_of
from runtime.observation.slices import SLICE
from runtime.observation.supervision_report import shared_out
from tests.waiting import until

COUNT = 4 * SLICE


class Idle(Actor):
    """Does nothing."""

    @method
    async def touch(self) -> None:
        """Count one call."""

    @method
    async def stay(self) -> None:
        """Never return."""
        await trio.sleep_forever()


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with open_node("one", secret="a secret of these tests") as opened:
        await opened.spawn_many(Idle, [()] * COUNT)
        yield opened


def asked(node: Node) -> Any:
    return inspection_of(internals_of(node).endpoint, node.name, node.incarnation)


async def turns_while(question: Any) -> tuple[Any, int]:
    """The answer, and how often another task had a turn meanwhile."""
    turns = 0
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def count() -> None:
                nonlocal turns
                while True:
                    await trio.lowlevel.checkpoint()
                    turns += 1

            nursery.start_soon(count)
            answer = await question
            scope.cancel()
    return answer, turns


async def test_actors_are_chosen_sorted_and_cut_where_they_are(node: Node) -> None:
    names = [f"named-{number}" for number in range(30)]
    handles = await node.spawn_many(Idle, [()] * 30, names=names)
    for number in (7, 21):
        for _ in range(number):
            await handles[number].touch()
    conditions = [["name", "=", "named-*"], ["served", ">=", "1"]]
    answer, turns = await turns_while(asked(node).actors(conditions, "-served", 1))
    assert [row["name"] for row in answer["actors"]] == ["named-21"]
    assert answer["count"] == 2
    assert turns >= COUNT // SLICE
    all_of_them = await asked(node).actors([], "name", 10**9)
    assert len(all_of_them["actors"]) == actor_listing.MOST_ROWS
    assert all_of_them["count"] == COUNT + 30
    found = [row["name"] for row in all_of_them["actors"]]
    assert found == sorted(found)
    for bad in (([["nope", "=", "x"]], "name"), ([], "nope"), ([["served", ">", "x"]], "name")):
        with pytest.raises(RemoteError, match=r"nope|'x'"):
            await asked(node).actors(*bad, 1)
    with pytest.raises(RemoteError, match="at most"):
        await asked(node).actors([["name", "=", "x"]] * 1000, "name", 1)


async def test_a_drain_lets_other_tasks_have_their_turns(node: Node) -> None:
    host = internals_of(node).endpoint.host
    _, turns = await turns_while(host.drain(10.0, 10.0))
    assert turns > COUNT // STOPS_IN_A_ROW
    assert all(cell.system for cell in host.cells.values())


async def test_top_measures_its_window_on_the_node(node: Node) -> None:
    busy = await node.options(name="busy").spawn(Idle)
    stuck = await node.options(name="stuck").spawn(Idle)
    await busy.touch()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(stuck.stay)
        cell = internals_of(node).cells["stuck"]
        # Before the window begins: a call that begins in it would count.
        await until(lambda: (len(cell.running), cell.waiting), "all have come", (1, 2).__eq__)
        answers: dict[str, Any] = {}

        async def ask(sort: str) -> None:
            answers[sort] = await asked(node).top(sort, 0.1, 1)

        async with trio.open_nursery() as asking:
            # More at once than windows there are: the others come after them.
            for sort in ("waiting", "wait", "turn", "waiting", "waiting"):
                asking.start_soon(ask, sort)
        nursery.cancel_scope.cancel()
    for answer in answers.values():
        (row,) = answer["actors"]
        assert (row["name"], row["waiting"], row["running"], row["rate"]) == ("stuck", 2, 1, 0)
        assert min(row["wait"], row["turn"]) > 0
        assert answer["count"] == COUNT + 2
    async with trio.open_nursery() as nursery:

        async def touch() -> None:
            while True:
                await busy.touch()

        nursery.start_soon(touch)
        by_rate, turns = await turns_while(asked(node).top("rate", 0.1, 2))
        nursery.cancel_scope.cancel()
    assert by_rate["actors"][0]["name"] == "busy"
    assert by_rate["actors"][0]["rate"] > 0
    assert turns >= 2 * COUNT // SLICE


async def test_the_status_and_the_calls_of_a_node_are_bounded_too(node: Node) -> None:
    service = internals_of(node).endpoint.node_service(node.name, node.incarnation)
    status, turns = await turns_while(service.status())
    assert len(status["actors"]) == overviews.MOST_ACTORS
    assert status["actors_left_out"] == COUNT - overviews.MOST_ACTORS
    assert turns >= COUNT // SLICE
    contact = await service.contact()
    assert "actors" not in contact
    assert [member["name"] for member in contact["members"]] == ["one"]
    calls, turns = await turns_while(asked(node).calls())
    assert calls == {"calls": [], "left_out": 0, "awaited": []}
    assert turns >= COUNT // SLICE


async def test_names_are_found_without_the_names_of_all(node: Node) -> None:
    await node.options(name="counter").spawn(Idle)
    assert await asked(node).present(["counter", "nobody", "@node"]) == ["counter"]
    near, turns = await turns_while(asked(node).near("countre"))
    assert near[0] == "counter"
    assert turns >= COUNT // SLICE


async def test_given_names_are_compared_before_those_that_were_made_up(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_listing, "MOST_COMPARED", 10)
    # Started after more actors than one answer looks at.
    await node.options(name="counter").spawn(Idle)
    assert (await asked(node).near("countre"))[0] == "counter"


async def test_a_tree_lists_the_first_children_and_counts_the_others(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision_report, "MOST_SUPERVISED", 10)
    monkeypatch.setattr(supervision_report, "MOST_SUPERVISORS", 2)
    monkeypatch.setattr(
        supervision_report, "shared_out", lambda counts: shared_out(counts, most=12)
    )
    small = [ChildSpec.of("a", Idle)]
    await node.options(name="small").spawn(Supervisor, small)
    crowd = await node.options(name="crowd").spawn(DynamicSupervisor, ChildSpec.of("k", Idle))
    for _ in range(40):
        await crowd.spawn()
    await node.options(name="third").spawn(Supervisor, [])
    answer, turns = await turns_while(asked(node).supervision())
    assert turns >= COUNT // SLICE
    left_out = {"supervisors": 1, "supervised": 31, "loose": COUNT - 200, "deaths": 0}
    assert answer["left_out"] == left_out
    statuses: dict[str, SupervisorStatus] = answer["statuses"]
    assert [(name, len(one.children)) for name, one in sorted(statuses.items())] == [
        ("crowd", 11),
        ("small", 1),
    ]
    tree = await node.tree()
    of_crowd = next(root for root in tree.roots if root.name == "crowd")
    assert (len(of_crowd.children), of_crowd.children_left_out) == (11, 29)
    text = draw_tree(tree)
    assert "and 29 more children" in text
    assert "node one left out 1 more supervisors" in text
    assert tree.answers, "what is left out is no failure"


async def test_restarts_are_counted_and_only_the_latest_ends_are_reported(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision_report, "MOST_DEATHS", 3)
    top = await node.options(name="top").spawn(
        DynamicSupervisor, ChildSpec.of("k", Fragile), intensity=100
    )
    fragile: Any = await top.spawn()
    counts = internals_of(node).host.counts.restarted
    before = counts.copy()
    name = fragile.address.name
    for number in range(1, 6):
        with pytest.raises(Exception, match="broken"):
            await fragile.fail()
        while counts.since(before).get(name, 0) < number:
            await top.count()
    assert counts.since(before) == {name: 5}
    # No window has any of them.
    nothing = {"actors": [], "count": 0, "restarts": {}, "restarts_left_out": 0}
    assert await asked(node).top("restarts", 0.0, 10) == nothing
    (row,) = await asked(node).named([name, "nobody"])
    assert (row["name"], row["wait"], row["supervisor"]) == (name, None, "top")
    answer = await asked(node).supervision()
    assert len(answer["statuses"]["top"].deaths) == 3
    assert answer["left_out"]["deaths"] == 2
    assert answer["statuses"]["top"].deaths == tuple(await top.deaths())[-3:]


class Fragile(Actor):
    """Ends when it is asked to."""

    @method
    async def fail(self) -> None:
        """End."""
        raise SystemExit("broken")


def test_supervisors_with_few_children_list_all_of_them() -> None:
    assert shared_out({"a": 5, "b": 0, "c": 1000, "d": 900}, most=105) == {
        "b": 0,
        "a": 5,
        "d": 50,
        "c": 50,
    }
    assert sum(shared_out(dict.fromkeys(map(str, range(5000)), 3)).values()) <= 2000


def test_rows_come_in_the_order_in_which_a_whole_sort_would_have_them() -> None:
    values = [(37 * number) % 101 if number % 5 else None for number in range(3000)]
    for descending in (False, True):
        best = BestRows(7, descending=descending)
        for start in range(0, 3000, SLICE):
            part = range(start, start + SLICE)
            best.add((values[number], number) for number in part)  # type: ignore[misc]
        known = sorted(
            (number for number in range(3000) if values[number] is not None),
            key=lambda number: values[number] or 0,
            reverse=descending,
        )
        assert list(best.taken()) == known[:7]
        assert best.count == 3000


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("name=w*", "w1", True),
        ("name!=w*", "w1", False),
        ("name=[x]", "[x]", True),
        ("waiting>10", 11, True),
        ("waiting>=11", 11, True),
        ("waiting<11", 11, False),
        ("waiting<11", None, False),
        ("waiting=-", None, True),
        ("name=yes", True, True),
    ],
)
def test_a_condition_is_what_people_write(text: str, value: object, holds: bool) -> None:
    assert parse_condition(text, ("name", "waiting")).holds(value) is holds


@pytest.mark.parametrize("text", ["name", "nope=1", "waiting>x"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"name|nope|'x'"):
        parse_condition(text, ("name", "waiting"))
    with pytest.raises(ValueError, match="comparison"):
        Condition("name", "~", "x")
