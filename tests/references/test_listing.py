"""What nodes say of their values, and how it becomes one list: from made-up values, and from
live nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import runtime
from actors.identifiers import NodeId
from runtime.node import internals_of
from runtime.references.inspection import (
    MOST_LISTED,
    Listing,
    OwnerReport,
    OwnerTotals,
    calling_site,
)
from runtime.references.table import state_of
from tests.references.conftest import Three
from tests.references.keepers import Adder, Keeper, Maker, Point
from tests.references.test_references import until


@attrs.define
class Sized:
    """As much of a kept value as a listing looks at."""

    size: int


@attrs.define
class Known:
    """As much of a reference state as a listing looks at."""

    identity: tuple[str, int, int]
    stored: Sized | None = None
    is_settled: bool = True
    made: float = 0.0
    maker: str = ""
    site: str = ""

    @property
    def size(self) -> int:
        """See `ReferenceState.size`."""
        return self.stored.size if self.stored is not None else 0


def own(*sizes: int) -> list[Any]:
    """Values of these sizes."""
    return [Known(("w1", 3, number), Sized(size)) for number, size in enumerate(sizes)]


def said_of(
    own: list[Any],
    held: Sequence[Any] = (),
    now: float = 0.0,
    most: int = 10,
    **holders: list[NodeId],
) -> dict[str, Any]:
    """What their node says. `holders`: by `w` and the number of the value."""
    found = OwnerReport(most)
    middle = len(own) // 2
    found.add(own[:middle], ())
    found.add(own[middle:], held)
    return found.plain(lambda state: holders.get(f"w{state.identity[2]}", []), now, traces=False)


def test_a_report_has_the_largest_values_and_counts_those_left_out() -> None:
    said = said_of(own(5, 300, 20, 20), most=2)
    assert [(value["reference"], value["size"]) for value in said["listed"]] == [
        ("w1.3.1", 300),
        ("w1.3.2", 20),
    ]
    assert (said["values"], said["bytes"], said["left_out"], said["left_out_bytes"]) == (
        4,
        345,
        2,
        25,
    )


@pytest.mark.parametrize("most", [-1, 0, 10**9])
def test_nobody_can_ask_for_more_than_a_node_lists_or_for_nothing(most: int) -> None:
    said = said_of(own(*range(MOST_LISTED + 10)), most=most)
    assert len(said["listed"]) == (MOST_LISTED if most > 0 else 1)
    assert said["left_out"] == MOST_LISTED + 10 - len(said["listed"])


def test_values_that_are_not_there_are_listed_by_what_they_are_waiting_for() -> None:
    making, failed = (
        Known(("w1", 3, 1), is_settled=False, maker="worker.scan", made=2.5),
        Known(("w1", 3, 2)),
    )
    said = said_of([making, failed], now=7.0, w1=[NodeId("b", 1), NodeId("a", 2), NodeId("a", 9)])
    assert [
        (value["state"], value["size"], value["method"], value["holders"], value["age"])
        for value in said["listed"]
    ] == [
        ("making", None, "worker.scan", ["a", "b"], 4.5),
        ("failed", None, "put", [], 7.0),
    ]


def test_a_site_that_only_the_maker_knows_is_shown_at_the_owner() -> None:
    listing = Listing()
    listing.add("w1", said_of(own(1, 2)))
    traced: list[Any] = [
        Known(("w1", 3, 1), site="/job.py:7"),
        Known(("w1", 3, 0)),
        Known(("gone", 1, 1), site="/job.py:9"),
    ]
    listing.add("driver", said_of([], traced))
    assert [(value.reference, value.site) for value in listing.values()] == [
        ("w1.3.1", "/job.py:7"),
        ("w1.3.0", ""),
    ]
    assert listing.owners() == [OwnerTotals("driver"), OwnerTotals("w1", values=2, bytes=3)]


def test_a_silent_node_is_named_in_the_list_and_the_others_are_sorted_by_size() -> None:
    listing = Listing()
    listing.add("w2", said_of(own(5, 50)))
    listing.silent("w3", "nothing came")
    listing.add("w1", said_of(own(20)))
    assert [(value.owner, value.size) for value in listing.values()] == [
        ("w2", 50),
        ("w1", 20),
        ("w2", 5),
    ]
    assert [value.size for value in listing.values("w1")] == [20]
    facts = listing.facts()
    assert facts["nodes"][2] == {"node": "w3", "answers": False, "problem": "nothing came"}
    assert facts["total"] == {"values": 3, "bytes": 75}
    assert listing.facts("w1")["total"] == {"values": 1, "bytes": 20}


def test_a_node_that_says_less_than_this_version_is_listed_with_what_it_says() -> None:
    listing = Listing()
    listing.add("old", {"values": 3})
    assert listing.values() == []
    assert listing.owners() == [OwnerTotals("old", values=3)]


async def listed(three: Three, name: str, most: int = MOST_LISTED) -> dict[str, Any]:
    """What that node says to another."""
    node = three.node(name)
    said: dict[str, Any] = (
        await internals_of(three.driver)
        .endpoint.reference_service(node.name, node.incarnation)
        .listing(most)
    )
    return said


async def test_a_node_lists_its_values_with_their_holders_and_makers_until_they_are_freed(
    three: Three,
) -> None:
    maker, keeper = await three.spawn(Maker, "first"), await three.spawn(Keeper, "second")
    made, put = await maker.make.remote("x" * 1000), await maker.put("y")
    pending = await maker.make_at_gate.remote(1)
    moved = await (await maker.make.remote(Point(1, 2))).call.moved.remote(1)
    await keeper.keep("it", made)
    await made.fetch()
    await moved.fetch()
    while sorted(len(value["holders"]) for value in (await listed(three, "first"))["listed"]) != [
        1,
        1,
        1,
        2,
    ]:
        pass  # holders register themselves a moment later
    listing = Listing()
    listing.add("first", await listed(three, "first"))
    values = {value.method: value for value in listing.values()}
    assert set(values) == {
        f"{maker.name}.make",
        "put",
        f"{maker.name}.make_at_gate",
        "a method of a value",
    }
    largest = listing.values()[0]
    assert largest.holders == ("driver", "second")
    assert largest.reference == "{}.{}.{}".format(*state_of(made).identity)
    assert 1000 < (largest.size or 0) < 1100
    assert largest.age >= 0
    assert values["put"].holders == ("driver",)
    assert [value.state for value in listing.values()] == ["there", "there", "there", "making"]
    assert (await listed(three, "first", 1))["left_out"] == 3
    del made, put, pending, moved
    await keeper.let_go("it")
    await maker.open_gate()
    while (await listed(three, "first"))["values"]:
        pass


async def test_status_says_how_much_is_owned_held_and_kept_of_what_was_fetched(
    three: Three,
) -> None:
    maker = await three.spawn(Maker, "first")
    for node in (three.driver, three.first):
        totals: Any = node.status()["references"]
        nothing = {"owned": 0, "bytes": 0, "memory": 0, "disk": 0, "held": 0, "fetched_bytes": 0}
        assert totals == nothing | {"memory_limit": 1024 * 1024 * 1024}
    reference = await maker.make.remote("x" * 1000)
    await reference.fetch()
    owner: Any = three.first.status()["references"]
    holder: Any = three.driver.status()["references"]
    assert (owner["owned"], owner["held"], owner["fetched_bytes"]) == (1, 0, 0)
    assert owner["bytes"] == holder["fetched_bytes"] > 1000
    assert (holder["owned"], holder["bytes"], holder["held"]) == (0, 0, 1)
    del reference
    await until(lambda: three.first.status()["references"]["owned"] == 0)  # type: ignore[index]
    await until(lambda: three.driver.status()["references"]["held"] == 0)  # type: ignore[index]


def line_of(function: Any, text: str) -> str:
    """Where that text stands in this file, as a site has it."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    start = function.__code__.co_firstlineno
    return f"{__file__}:{next(number for number, line in enumerate(lines[start:], start + 1) if text in line)}"


async def test_values_are_traced_to_the_line_that_made_them_once_that_is_asked_for(
    three: Three,
) -> None:
    here = test_values_are_traced_to_the_line_that_made_them_once_that_is_asked_for
    maker, adder = await three.spawn(Maker, "first"), await three.spawn(Adder, "driver")
    untraced = await three.driver.put(0)
    for node in (three.driver, three.first):
        internals_of(node).references.trace(calling_site)
    put = await three.driver.put(1)  # this is where it was put
    remote = await maker.make.remote(2)  # this is where it was asked for
    local = await adder.add.remote(1, 2)  # this is where it was added
    by_actor = await maker.put(3)
    assert (state_of(untraced).site, state_of(put).site) == (
        "",
        line_of(here, "this is where it was put"),
    )
    assert state_of(remote).site == line_of(here, "this is where it was asked for")
    listing = Listing()
    for name in ("driver", "first"):
        listing.add(name, await listed(three, name))
    sites = {value.reference: value.site for value in listing.values()}
    assert sites["{}.{}.{}".format(*state_of(remote).identity)] == line_of(
        here, "this is where it was asked for"
    )
    assert sites["{}.{}.{}".format(*state_of(local).identity)] == line_of(
        here, "this is where it was added"
    )
    assert (
        sites["{}.{}.{}".format(*state_of(by_actor).identity)]
        .partition(":")[0]
        .endswith("keepers.py")
    )
    assert all(owner.traces for owner in listing.owners())


def called_through(*files: str) -> str:
    """The site that is found by a function which those files have called, the first one the
    others.
    """
    call: Callable[[], str] = calling_site
    for file in reversed(files):
        space: dict[str, Any] = {"call": call}
        exec(compile("def made():\n    return call()", file, "exec"), space)
        call = space["made"]
    return call()


def test_a_site_is_the_first_frame_that_is_not_ours_and_none_that_runs_the_event_loop() -> None:
    ours, trios = (
        str(Path(runtime.__file__).parent / "x.py"),
        str(Path(trio.__file__).parent / "y.py"),
    )
    assert called_through("/main.py", trios, "/task.py", ours, ours) == "/task.py:2"
    assert called_through("/main.py", trios, ours) == ""
    assert called_through(trios, "<string>", ours) == "<string>:2"
    assert called_through(trios, "job.py", ours) == f"{Path.cwd()}/job.py:2"
