"""While a node leaves, its actors still reach each other: what they have begun ends in order. What
other nodes have asked of it is answered before it is gone.
"""

from __future__ import annotations

import re
import threading
from typing import ClassVar

import pytest
import trio

from actors import Actor, ChildSpec, ExitReason, Supervisor, method
from actors.errors import CallError, DecodeError, NodeDrainingError
from actors.messages import import_path
from runtime import open_node
from runtime.calls import imports
from runtime.environment import SystemEnvironment
from runtime.membership.members import Registration
from runtime.node import Node, internals_of
from runtime.node.opening import Platform
from runtime.timings import Timings

SECRET = "a secret for the tests of closing"


class Book(Actor):
    """Is asked by the others while its node leaves."""

    lines: ClassVar[list[str]] = []

    @method
    async def write(self, line: str) -> str:
        self.lines.append(line)
        return f"noted: {line}"


class Writer(Actor):
    """Needs the book to end its call, and to stop."""

    async def work(self, started: trio.Event, leaving: trio.Event) -> str:
        started.set()
        await leaving.wait()
        return await (await self.node.lookup("book", Book)).write("work")

    async def on_stop(self, reason: ExitReason) -> None:
        await (await self.node.lookup("book", Book)).write(f"{self.name} stops: {reason.kind}")


class Stubborn(Actor):
    """Holds the node that it is on until `release` is set."""

    release = threading.Event()
    begun = threading.Event()

    async def _hold(self) -> None:
        self.begun.set()
        with trio.CancelScope(shield=True):
            while not self.release.is_set():  # noqa: ASYNC110  a thread sets it
                await trio.sleep(0.01)

    @method
    async def shielded(self) -> None:
        await self._hold()

    @method
    def blocking(self) -> None:
        self.begun.set()
        self.release.wait()

    @method
    async def task(self) -> None:
        self.nursery.start_soon(self._hold)

    @method
    async def stopping(self) -> None:
        self.slow_stop = True
        self.begun.set()

    async def on_stop(self, reason: ExitReason) -> None:
        if getattr(self, "slow_stop", False):
            await self._hold()


@pytest.fixture(autouse=True)
def empty_book() -> None:
    Book.lines.clear()


async def test_an_on_stop_reaches_the_actors_that_were_started_before_its_own() -> None:
    async with open_node("here", secret=SECRET) as node:
        await node.options(name="book").spawn(Book)
        await node.options(name="writer").spawn(Writer)
        await node.options(name="top").spawn(Supervisor, [ChildSpec.of("child", Writer)])
    assert Book.lines == ["top/child stops: parent stopped", "writer stops: shutdown"]


async def test_a_call_that_runs_ends_with_the_help_of_other_actors_of_a_node_that_leaves() -> None:
    outcome: list[str] = []
    events: list[trio.Event] = [trio.Event(), trio.Event()]

    class Waiting(Writer):
        @method
        async def wait(self) -> str:
            return await self.work(*events)

    async def call(writer: Waiting) -> None:
        outcome.append(await writer.wait())

    async with trio.open_nursery() as nursery, open_node("here", secret=SECRET) as node:
        await node.options(name="book").spawn(Book)
        writer = await node.options(name="writer").spawn(Waiting)
        nursery.start_soon(call, writer)
        await events[0].wait()
        host = internals_of(node).endpoint.host
        # As at the end of the block, but before the call goes on.
        host.take_no_new_work()
        refused = host.find("book", 0, "write")
        assert isinstance(refused, NodeDrainingError)
        events[1].set()
    assert outcome == ["noted: work"]
    assert Book.lines == ["work", "writer stops: shutdown"]


async def test_a_start_that_waits_for_its_module_is_answered_after_the_news_of_the_departure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store says that the node has left before its goodbye comes: that ends no call."""
    outcome: list[Exception] = []
    leaves, seen_gone, importing = trio.Event(), trio.Event(), trio.Event()
    loop, goes_on = trio.lowlevel.current_trio_token(), threading.Event()
    path = import_path(Book)

    def import_slowly(paths: list[str]) -> list[DecodeError]:
        assert paths == [path]
        loop.run_sync_soon(importing.set)
        goes_on.wait()
        return []

    leave = Registration.leave

    async def leave_with_witness(self: Registration) -> None:
        await leave(self)
        await seen_gone.wait()

    async def live(address: str, joined: trio.Event) -> None:
        async with open_node("there", join=address, secret=SECRET):
            joined.set()
            await leaves.wait()

    async def start(here: Node) -> None:
        try:
            await here.options(on="there").spawn(Book)
        except CallError as error:
            outcome.append(error)
        # Its node waits for the thread.
        goes_on.set()

    monkeypatch.setattr(imports, "is_imported", lambda one: one != path)
    monkeypatch.setattr(imports, "_import_all", import_slowly)
    monkeypatch.setattr(Registration, "leave", leave_with_witness)
    try:
        async with open_node("here", secret=SECRET) as here, trio.open_nursery() as nursery:
            joined = trio.Event()
            nursery.start_soon(live, here.address, joined)
            await joined.wait()
            nursery.start_soon(start, here)
            await importing.wait()
            leaves.set()
            await here.wait_gone("there")
            assert not outcome
            # The founder's own leaving is not looked at.
            monkeypatch.setattr(Registration, "leave", leave)
            seen_gone.set()
    finally:
        goes_on.set()
    assert [type(error) for error in outcome] == [NodeDrainingError]
    assert str(outcome[0]) == (
        "an actor of class Book was not started: node there left the cluster before it began with "
        "it; start it again, or elsewhere"
    )


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("shielded", r"stubborn\.shielded \(\S*test_closing\.py:\d+\)"),
        ("blocking", r"stubborn\.blocking"),
        ("task", r"a task of stubborn \(\S*test_closing\.py:\d+\)"),
        ("stopping", r"stubborn\.on_stop \(\S*test_closing\.py:\d+\)"),
    ],
)
async def test_code_that_holds_a_node_which_has_left_is_named(
    how: str, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    Stubborn.release.clear()
    Stubborn.begun.clear()

    def lines() -> list[str]:
        messages = (record.getMessage() for record in caplog.records)
        return [one for one in messages if "waits for what cannot be cancelled" in one]

    async def release() -> None:
        # Twice: the line comes again.
        while len(lines()) < 2:  # noqa: ASYNC110  what logs does not say so
            await trio.sleep(0.01)
        Stubborn.release.set()

    fast = Platform(environment=SystemEnvironment(Timings(drain=0.5)))
    with trio.fail_after(60):
        # The block of the nursery ends last: its task sees the node leave.
        async with (
            trio.open_nursery() as nursery,
            open_node("here", secret=SECRET, platform=fast) as node,
        ):
            stubborn = await node.options(name="stubborn").spawn(Stubborn)
            await getattr(stubborn, how).send()
            await trio.to_thread.run_sync(Stubborn.begun.wait)
            nursery.start_soon(release)
    for line in lines():
        assert re.match(f"node here has left .*: {named}\\. Code that shields itself", line), line


async def test_the_error_of_the_block_is_raised_as_it_is() -> None:
    async def fail() -> None:
        raise ValueError("alone")

    with pytest.raises(ExceptionGroup, match="Trio nursery"):  # noqa: ASYNC401, PT012 (its text)
        async with open_node("here", secret=SECRET), trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(fail)
    with pytest.raises(ValueError, match="alone"):
        async with open_node("here", secret=SECRET):
            await fail()
