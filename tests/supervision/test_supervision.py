"""Supervised children of live nodes: restarted under their names, with their state, and given up
when they fail too often.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from actors import Actor, ChildCounts, ChildSpec, RemoteError, SpawnOptions, Supervisor, method
from actors.errors import (
    ActorDiedError,
    ActorNotFoundError,
    ActorStartError,
    ChildExistsError,
    ChildNotFoundError,
    ChildRunningError,
    DirectoryUnavailableError,
    NameTakenError,
    NotExecutedError,
    OutcomeUnknownError,
)
from actors.method import Address
from runtime.node import internals_of
from tests.live_pair import Pair
from tests.waiting import until


class Ledger(Actor):
    """Keeps a total over restarts; crashes when told to."""

    def __init__(self, label: str = "") -> None:
        self.label = label
        self.total = 0

    async def on_start(self) -> None:
        self.total = await self.saved() or 0

    @method
    async def add(self, amount: int) -> int:
        await self.save(self.total + amount)
        self.total += amount
        return self.total

    @method
    async def forget(self) -> None:
        self.total = -1

    @method
    async def read(self) -> int:
        return self.total

    @method(concurrent=True)
    async def where(self) -> tuple[str, int]:
        return self.node.name, self.epoch

    @method
    async def crash(self) -> None:
        self.nursery.start_soon(self.explode)
        await trio.sleep_forever()

    @method
    async def exit(self) -> None:
        raise SystemExit(3)

    @method
    async def end(self) -> None:
        """Stopped, and the supervisor does not know by which caller."""
        self.nursery.start_soon(self.node.stop, self.handle)

    async def explode(self) -> None:
        raise RuntimeError("boom")


class Slow(Ledger):
    """Starts again only when it may: `gates` of those that are waiting are opened through the
    node's actor of the name below.
    """

    async def on_start(self) -> None:
        await super().on_start()
        gate = await self.node.lookup("gate", Gate)
        await gate.pass_through()


class Gate(Actor):
    """Lets through while it is open."""

    def __init__(self) -> None:
        self.opened = trio.Event()
        self.opened.set()
        self.waiting = trio.Event()

    @method(concurrent=True)
    async def pass_through(self) -> None:
        self.waiting.set()
        await self.opened.wait()

    @method(concurrent=True)
    async def close(self) -> None:
        self.opened = trio.Event()
        self.waiting = trio.Event()

    @method(concurrent=True)
    async def open(self) -> None:
        self.opened.set()

    @method(concurrent=True)
    async def somebody_waits(self) -> None:
        await self.waiting.wait()


class Doomed(Ledger):
    """Starts once."""

    async def on_start(self) -> None:
        if await self.saved():
            raise LookupError("no second time")
        await self.save(1)


class Unstartable(Actor):
    async def on_start(self) -> None:
        raise LookupError("never")


def child(id: str, cls: type[Actor] = Ledger, on: str | None = None) -> ChildSpec:
    return ChildSpec(id=id, actor=cls, options=SpawnOptions(name=id, on=on))


async def tree(pair: Pair, *children: ChildSpec, intensity: int = 3) -> Supervisor:
    return await pair.here.options(name="tree").spawn(Supervisor, children, intensity=intensity)


async def kill(call: Callable[[], Awaitable[object]]) -> None:
    """A call that ends with its actor: its outcome is unknown, for it was running."""
    with pytest.raises(OutcomeUnknownError) as caught:
        await call()
    assert isinstance(caught.value, ActorDiedError)


async def test_a_child_that_crashes_is_restarted_under_its_name_and_its_old_handle_is_good(
    pair: Pair, where: str
) -> None:
    with trio.fail_after(60):
        await tree(pair, child("ledger", on=where))
        ledger = await pair.there.lookup("ledger", Ledger)
        node, epoch = await ledger.where()
        assert node == where
        await kill(ledger.crash)
        node, later = await ledger.where()
        assert node == where
        assert later > epoch
        assert await (await pair.here.lookup("ledger", Ledger)).where() == (where, later)


async def test_a_method_that_asks_the_process_to_exit_ends_its_actor_and_nothing_else(
    pair: Pair, where: str
) -> None:
    with trio.fail_after(60):
        await tree(pair, child("ledger", on=where), child("sibling", on=where))
        ledger = await pair.here.lookup("ledger", Ledger)
        sibling = await pair.here.lookup("sibling", Ledger)
        before = await sibling.where()
        with pytest.raises((RemoteError, ActorDiedError)):
            await ledger.exit()
        assert (await ledger.where())[0] == where
        assert await sibling.where() == before


async def test_a_method_that_raises_restarts_nothing(pair: Pair, where: str) -> None:
    with trio.fail_after(60):
        supervisor = await tree(pair, child("ledger", on=where))
        ledger = await pair.here.lookup("ledger", Ledger)
        before = await ledger.where()
        with pytest.raises(RemoteError):
            await ledger.add("not a number")  # type: ignore[arg-type]
        assert await ledger.where() == before
        assert [status.restarts for status in await supervisor.children()] == [0]


async def test_calls_made_while_a_child_is_being_restarted_wait_for_it(
    pair: Pair, where: str
) -> None:
    answers: list[int] = []

    async def add(ledger: Ledger) -> None:
        answers.append(await ledger.add(1))

    with trio.fail_after(60):
        gate = await pair.here.options(name="gate").spawn(Gate)
        await tree(pair, child("slow", Slow, on=where))
        slow = await pair.here.lookup("slow", Ledger)
        assert await slow.add(1) == 1
        await gate.close()
        await kill(slow.crash)
        await gate.somebody_waits()
        async with trio.open_nursery() as nursery:
            for handle in (slow, slow, await pair.there.lookup("slow", Ledger)):
                nursery.start_soon(add, handle)
            # Long enough that it waits for the restart before: a call whose time is over when its
            # first attempt fails ends with the error of that attempt.
            with trio.move_on_after(1.0) as scope:
                await slow.read()
            assert scope.cancelled_caught
            assert answers == []
            await gate.open()
        assert sorted(answers) == [2, 3, 4]


async def test_a_call_that_waits_for_a_restart_ends_with_its_own_deadline(pair: Pair) -> None:
    with trio.fail_after(60):
        gate = await pair.here.options(name="gate").spawn(Gate)
        await tree(pair, child("slow", Slow))
        slow = await pair.here.lookup("slow", Ledger)
        await gate.close()
        await kill(slow.crash)
        with pytest.raises(TimeoutError):
            await slow.read.options(timeout=1.0)()
        await gate.open()
        assert await slow.read() == 0


async def test_what_a_child_saved_is_there_after_its_restart_and_what_it_did_not_is_not(
    pair: Pair, where: str
) -> None:
    with trio.fail_after(60):
        await tree(pair, child("ledger", on=where))
        ledger = await pair.here.lookup("ledger", Ledger)
        for amount in (1, 2, 3):
            await ledger.add(amount)
        await ledger.forget()
        await kill(ledger.crash)
        assert await ledger.read() == 6
        await kill(ledger.crash)
        assert await ledger.add(4) == 10


async def test_what_was_saved_survives_a_move_to_another_node(pair: Pair) -> None:
    with trio.fail_after(60):
        ledger = await pair.here.options(name="ledger", on="there").spawn(Ledger)
        await ledger.add(5)
        await pair.here.stop(ledger)
        await pair.here.options(name="ledger", on="here").spawn(Ledger)
        assert await ledger.read() == 5


async def test_an_actor_whose_name_was_taken_over_can_no_longer_save(
    pair: Pair, where: str
) -> None:
    """Both run at once, as after a lease that ended while its node was only slow: the store
    decides, by the epoch.
    """
    other = "there" if where == "here" else "here"
    with trio.fail_after(60):
        old = await pair.here.options(name="ledger", on=where).spawn(Ledger)
        await old.add(1)
        await internals_of(pair.here).names.release("ledger", old.address.epoch)
        new = await pair.here.options(name="ledger", on=other).spawn(Ledger)
        assert await new.add(10) == 11
        with pytest.raises(RemoteError) as caught:
            await old.add(100)
        assert caught.value.remote_type.endswith("StaleEpochError")
        assert "ledger" in str(caught.value)
        assert await new.add(1) == 12
        await pair.here.stop(new)
        again = await pair.here.options(name="ledger", on=other).spawn(Ledger)
        assert await again.read() == 12


async def test_an_actor_without_a_name_of_its_own_cannot_save(pair: Pair, where: str) -> None:
    with trio.fail_after(60):
        ledger = await pair.here.options(on=where).spawn(Ledger)
        with pytest.raises(RemoteError, match="spawn it with a name"):
            await ledger.add(1)


async def test_children_that_fail_too_often_are_given_up_and_calls_to_them_fail(
    pair: Pair, where: str
) -> None:
    with trio.fail_after(60):
        await tree(pair, child("ledger", on=where), child("sibling", on=where), intensity=2)
        ledger = await pair.here.lookup("ledger", Ledger)
        sibling = await pair.here.lookup("sibling", Ledger)
        await sibling.where()
        for _ in range(3):
            await kill(ledger.crash)
        for handle in (ledger, sibling):
            with pytest.raises(ActorNotFoundError):
                await gone(handle)
        for name in ("ledger", "sibling", "tree"):
            await free(pair, name)


async def gone(ledger: Ledger) -> None:
    """Call until it is refused: the end of a tree takes a moment, and until then its actors may
    answer.
    """
    while True:  # noqa: ASYNC913  each turn waits for an answer
        try:
            await ledger.where()
        except OutcomeUnknownError:
            continue


async def free(pair: Pair, name: str) -> None:
    """Wait until a name can be taken."""
    while True:
        try:
            await pair.here.options(name=name).spawn(Ledger)
        except NameTakenError:
            await trio.sleep(0.01)
        else:
            return


async def test_calls_that_wait_for_a_child_fail_when_it_is_given_up(pair: Pair) -> None:
    outcomes: list[type[Exception]] = []

    async def ask(ledger: Ledger) -> None:
        try:
            await ledger.read()
        except NotExecutedError as error:
            outcomes.append(type(error))

    with trio.fail_after(60):
        await tree(pair, child("doomed", Doomed), intensity=2)
        doomed = await pair.there.lookup("doomed", Ledger)
        await kill(doomed.crash)
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask, doomed)
    assert outcomes == [ActorNotFoundError] * 5


async def test_a_tree_whose_child_cannot_start_does_not_start_and_leaves_nothing_behind(
    pair: Pair, where: str
) -> None:
    with trio.fail_after(60):
        with pytest.raises(ActorStartError, match="never"):
            await tree(pair, child("first", on=where), child("second", Unstartable, on=where))
        for name in ("tree", "first", "second"):
            await pair.here.options(name=name).spawn(Ledger)


async def test_stopping_a_tree_stops_its_children_and_nobody_restarts_them(
    pair: Pair, where: str
) -> None:
    with trio.fail_after(60):
        supervisor = await tree(pair, child("first", on=where), child("second", on=where))
        first = await pair.here.lookup("first", Ledger)
        await first.where()
        await pair.here.stop(supervisor)
        with pytest.raises(ActorNotFoundError):
            await first.where()
        for name in ("tree", "first", "second"):
            await pair.here.options(name=name).spawn(Ledger)


async def test_a_permanent_child_that_was_stopped_comes_back_a_transient_one_does_not(
    pair: Pair, where: str
) -> None:
    with trio.fail_after(60):
        await tree(
            pair,
            child("permanent", on=where),
            child("transient", on=where).changed(restart="transient"),
        )
        permanent = await pair.here.lookup("permanent", Ledger)
        transient = await pair.here.lookup("transient", Ledger)
        _, epoch = await permanent.where()
        await pair.here.stop(permanent)
        assert (await permanent.where())[1] > epoch
        await pair.here.stop(transient)
        with pytest.raises(ActorNotFoundError):
            await transient.where()


async def test_a_transient_child_that_crashes_comes_back_and_a_temporary_one_does_not(
    pair: Pair, where: str
) -> None:
    with trio.fail_after(60):
        await tree(
            pair,
            child("transient", on=where).changed(restart="transient"),
            child("temporary", on=where).changed(restart="temporary"),
        )
        transient = await pair.here.lookup("transient", Ledger)
        temporary = await pair.here.lookup("temporary", Ledger)
        await kill(transient.crash)
        assert (await transient.where())[0] == where
        await kill(temporary.crash)
        with pytest.raises(ActorNotFoundError):
            await temporary.where()


async def test_children_are_added_removed_and_listed_while_the_tree_runs(
    pair: Pair, where: str
) -> None:
    with trio.fail_after(60):
        supervisor = await tree(pair)
        assert await supervisor.children() == []
        assert await (await supervisor.start_child(child("ledger", on=where))).read() == 0
        with pytest.raises(ValueError, match="tree/ledger exists already, and runs"):
            await supervisor.start_child(child("ledger", on=where))
        with pytest.raises(ActorStartError, match="never"):
            await supervisor.start_child(child("unstartable", Unstartable, on=where))
        (status,) = await supervisor.children()
        assert (status.id, status.name, status.state, status.node, status.restarts) == (
            "ledger",
            "ledger",
            "running",
            where,
            0,
        )
        ledger = await pair.here.lookup("ledger", Ledger)
        await kill(ledger.crash)
        await ledger.where()
        # The actor answers before its supervisor has noted that it has started.
        (status,) = await until(
            supervisor.children, "the restart is noted", lambda found: found[0].state == "running"
        )
        assert status.restarts == 1
        assert status.last_exit is not None
        assert (status.last_exit.kind, "boom" in status.last_exit.text) == ("raised", True)
        with pytest.raises(ChildRunningError, match="tree/ledger is running; stop it first"):
            await supervisor.delete_child("ledger")
        await supervisor.stop_child("ledger")
        assert await supervisor.count() == ChildCounts(specs=1, active=0, supervisors=0, workers=1)
        with pytest.raises(ActorNotFoundError):
            await ledger.where()
        with pytest.raises(ChildExistsError, match="kept without an actor"):
            await supervisor.start_child(child("ledger", on=where))
        assert await (await supervisor.restart_child("ledger")).where()
        await supervisor.stop_child(ledger)
        await supervisor.delete_child("ledger")
        assert await supervisor.children() == []
        for question in (supervisor.stop_child, supervisor.restart_child, supervisor.delete_child):
            with pytest.raises(ChildNotFoundError, match="'ledger'"):
                await question("ledger")


async def test_an_unsupervised_actor_that_crashes_is_gone_and_its_name_is_free(
    pair: Pair, where: str
) -> None:
    with trio.fail_after(60):
        ledger = await pair.here.options(name="ledger", on=where).spawn(Ledger)
        await kill(ledger.crash)
        with pytest.raises(ActorNotFoundError):
            await ledger.where()
        await free(pair, "ledger")


async def test_a_node_that_is_newer_than_the_view_of_the_members_is_not_taken_for_dead(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its actors are found in the store, which may go away before the view has the node."""
    here = internals_of(pair.here)
    newer = Address("there", "newer", here.members.revision + 1, 1, "", True)
    asked = 0

    class Unreachable:
        async def watch_actor(self, name: str, epoch: int) -> None:
            nonlocal asked
            asked += 1
            if asked == 3:
                # Another write than that of the node: the view is newer now, and shows none.
                await pair.here.options(name="any").spawn(Ledger)
                await here.members.caught_up(newer.incarnation)
            raise DirectoryUnavailableError("the store cannot be reached")

    monkeypatch.setattr(here.endpoint, "node_service", lambda node, incarnation: Unreachable())
    with trio.fail_after(60):
        assert (await here.spawner.watch_address(newer)).kind == "node died"
    assert asked == 3
