"""Call cycles: what would wait for itself through others is refused at once with the chain, or let
in where its method allows it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from actors import Actor, ChildSpec, RemoteError, Supervisor, method
from actors.errors import (
    ActorNotFoundError,
    ActorStartError,
    CallCycleError,
    CallError,
    CallTimeoutError,
    SelfCallError,
)
from actors.retry import RetryPolicy
from runtime import open_node
from runtime.hosting.chains import LONGEST
from runtime.node import internals_of
from tests.live_pair import SECRET, Pair
from tests.waiting import until

PATIENCE = RetryPolicy(max_retries=5, initial_delay=1.0)


class Party(Actor):
    """Calls others, and is called by them."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.came = trio.Event()

    @method
    async def hear(self, what: str) -> list[str]:
        self.heard.append(what)
        self.came.set()
        return self.heard

    @method(concurrent=True)
    async def hear_beside(self, what: str) -> list[str]:
        return await Party.hear.definition.function(self, what)

    @method
    async def ask(self, way: list[Any], how: str = "call") -> Any:
        """Pass the question on along the way; its last is asked to hear."""
        return await self.pass_on(way, how)

    @method(reentrant=True)
    async def ask_openly(self, way: list[Any], how: str = "call") -> Any:
        answer = await self.pass_on(way, how)
        self.heard.append("done")
        return answer

    @method(concurrent=True)
    async def ask_beside(self, way: list[Any], how: str = "call") -> Any:
        return await self.pass_on(way, how)

    @method
    async def answer_items(self, way: list[Any], how: str = "call") -> AsyncIterator[Any]:
        yield await self.pass_on(way, how)

    async def pass_on(self, way: list[Any], how: str) -> Any:
        following, *rest = way
        if how == "in a nursery":
            answers: list[Any] = []

            async def ask() -> None:
                try:
                    answers.append(await self.pass_on(way, "call"))
                except CallError as error:
                    answers.append(error)

            async with trio.open_nursery() as nursery:  # noqa: ASYNC112 (a task of its own is what is tested)
                nursery.start_soon(ask)
            if isinstance(answers[0], CallError):
                # By itself, and not in the nursery's group.
                raise answers[0]
            return answers[0]
        if how == "with a policy":
            return await (
                following.ask.options(retry=PATIENCE)(rest, how)
                if rest
                else following.hear.options(retry=PATIENCE)("a call")
            )
        if how == "stream" and rest:
            items = [item async for item in following.answer_items(rest, how)]
            return items[0]
        if how == "one way" and not rest:
            await following.hear.send("one way")
            return []
        if how == "beside" and not rest:
            return await following.hear_beside("beside")
        return await (following.ask(rest, how) if rest else following.hear("a call"))

    @method
    async def in_the_background(self, other: Any) -> None:
        """A task of the actor's own calls the actor: that is awaited by no method."""

        async def call() -> None:
            await self.handle.hear("from the background")

        self.nursery.start_soon(call)
        await other.hear("meanwhile")
        # Long enough for the call to come, and to wait for the end of this turn.
        await trio.sleep(0.1)


@pytest.fixture(params=["none", "process"])
def isolation(request: pytest.FixtureRequest) -> Any:
    return request.param


async def parties(pair: Pair, where: str, *names: str, isolation: Any = "none") -> list[Any]:
    """Every other one on that node; the others here."""
    return [
        await pair.here.options(
            name=name, on=where if place % 2 else "here", isolation=isolation
        ).spawn(Party)
        for place, name in enumerate(names)
    ]


def original(error: BaseException) -> str:
    """What the last in the chain was told, through however many others it came."""
    assert "CallCycleError" in str(error) or isinstance(error, CallCycleError)
    return str(error)


@pytest.mark.parametrize("how", ["call", "in a nursery", "with a policy", "stream"])
async def test_a_cycle_is_refused_at_once_with_its_chain(pair: Pair, where: str, how: str) -> None:
    one, two = await parties(pair, where, "one", "two")
    with trio.fail_after(60), pytest.raises(RemoteError) as caught:
        await one.ask([two, one], how)
    relay = "two.answer_items" if how == "stream" else "two.ask"
    assert f"call cycle: one.ask -> {relay} -> one.hear" in original(caught.value)
    assert "@method(reentrant=True)" in str(caught.value)
    with trio.fail_after(60):
        assert await one.hear("afterwards") == ["afterwards"]
        assert await two.hear("afterwards") == ["afterwards"]


async def test_a_cycle_over_three_actors_and_two_nodes_is_refused(pair: Pair, where: str) -> None:
    one, two, three = await parties(pair, where, "one", "two", "three")
    with trio.fail_after(60), pytest.raises(RemoteError) as caught:
        await one.ask([two, three, one])
    assert "one.ask -> two.ask -> three.ask -> one.hear" in original(caught.value)
    with trio.fail_after(60), pytest.raises(RemoteError) as caught:
        await one.ask([two, three, two])
    assert "one.ask -> two.ask -> three.ask -> two.hear" in original(caught.value)


async def test_an_actor_that_calls_itself_is_refused_also_from_a_nursery(
    pair: Pair, where: str
) -> None:
    two = await pair.here.options(name="two", on=where).spawn(Party)
    with trio.fail_after(60):
        with pytest.raises(RemoteError) as caught:
            await two.ask([two])
        assert caught.value.remote_type.endswith("SelfCallError")
        with pytest.raises(RemoteError, match=r"call cycle: two\.ask -> two\.hear"):
            await two.ask([two], "in a nursery")
    assert issubclass(SelfCallError, CallCycleError)


async def test_a_reentrant_method_lets_calls_of_its_own_chain_in_and_no_others(
    pair: Pair, where: str
) -> None:
    one, two = await parties(pair, where, "one", "two")
    with trio.fail_after(60):
        assert await one.ask_openly([two, one]) == ["a call"]
        assert await one.hear("afterwards") == ["a call", "done", "afterwards"]
        assert await two.ask_openly([two]) == ["a call"]
        # A call from outside waits for the end of the turn.
        deaf = await pair.here.options(name="deaf", on=where).spawn(Deaf)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.ask_openly, [two, deaf])
            host = internals_of(pair.here if where == "here" else pair.there).host
            await until(lambda: host.cells["deaf"].running, "the last of the chain is called")
            with trio.move_on_after(0.2) as patience:
                await one.hear("outside")
            assert patience.cancelled_caught
            nursery.cancel_scope.cancel()
        assert await one.hear("last") == ["a call", "done", "afterwards", "last"]


async def test_what_does_not_wait_makes_no_cycle(pair: Pair, where: str) -> None:
    one, two = await parties(pair, where, "one", "two")
    with trio.fail_after(60):
        assert await one.ask([two, one], "one way") == []
        assert await one.ask([two, one], "beside") == ["one way", "beside"]
        await one.in_the_background(two)
        await until(
            lambda: one.hear_beside("look"),
            "the call from the background has come",
            lambda heard: "from the background" in heard,
        )
        # The turn of the first is over, or never was: there is nobody to wait for.
        assert await one.ask_beside([two, one]) is not None


async def test_cycles_with_actors_in_processes_of_their_own(pair: Pair, where: str) -> None:
    one, two = await parties(pair, where, "one", "two", isolation="process")
    with trio.fail_after(60):
        with pytest.raises(RemoteError) as caught:
            await one.ask([two, one])
        assert "call cycle: one.ask -> two.ask -> one.hear" in original(caught.value)
        assert await one.ask_openly([two, one]) == ["a call"]
        assert await two.ask([one]) == ["a call", "done", "a call"]


class Eager(Actor):
    """Calls others in `on_start`, which call it."""

    def __init__(self, other: Any = None, method: str = "", how: str = "call") -> None:
        self.other = other
        self.asked = method
        self.how = how
        self.heard: list[str] = []

    async def on_start(self) -> None:
        if self.how == "itself":
            await self.handle.hear("itself")
        elif self.how == "in a nursery":
            # a task of its own is what is tested
            async with trio.open_nursery() as nursery:  # noqa: ASYNC112
                nursery.start_soon(self.ask)
        elif self.how == "in the background":
            self.nursery.start_soon(self.ask)
        elif self.other is not None:
            await self.ask()

    async def ask(self) -> None:
        await getattr(self.other, self.asked)(self.name)

    @method
    async def hear(self, what: str) -> list[str]:
        self.heard.append(what)
        return self.heard

    @method(concurrent=True)
    async def hear_beside(self, what: str) -> list[str]:
        return self.heard

    @method
    async def items(self) -> AsyncIterator[int]:
        yield 1


class Asked(Actor):
    """Calls back its caller, or starts another actor."""

    @method
    async def call_back(self, name: str) -> None:
        await (await self.node.lookup(name, Eager)).hear("back")

    @method
    async def call_back_beside(self, name: str) -> None:
        await (await self.node.lookup(name, Eager)).hear_beside("back")

    @method
    async def call_back_with_a_policy(self, name: str) -> None:
        await (await self.node.lookup(name, Eager)).hear.options(retry=PATIENCE)("back")

    @method
    async def read_back(self, name: str) -> None:
        async for _ in (await self.node.lookup(name, Eager)).items():
            pass

    @method
    async def find_or_start(self, name: str) -> None:
        await self.node.options(name=name).get_or_spawn(Eager)

    @method
    async def send_back(self, name: str) -> None:
        await (await self.node.lookup(name, Eager)).hear.send("sent")

    @method
    async def start(self, isolation: Any) -> None:
        await self.node.options(name="eager", isolation=isolation).spawn(Eager, self.handle, "hear")

    @method
    async def start_beside(self) -> list[str]:
        """Others call an actor while it starts; they are not part of its start, though it is
        started within this method.
        """
        other = await self.node.spawn(Asked)
        heard: list[str] = []

        async def call() -> None:
            while not heard:
                try:
                    heard.extend(await (await self.node.lookup("slow", Slow)).hear("beside"))
                except ActorNotFoundError:
                    await trio.sleep(0.01)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await self.node.options(name="slow").spawn(Slow, other)
        return heard

    @method
    async def hear(self, name: str) -> None:
        raise AssertionError("it is waiting")

    @method
    async def wait(self, name: str) -> None:
        await trio.sleep(0.3)


class Slow(Eager):
    """Takes some time to start."""

    def __init__(self, other: Any) -> None:
        super().__init__(other, "wait")


BACK = {
    "call_back": "eager.hear",
    "call_back_beside": "eager.hear_beside",
    "call_back_with_a_policy": "eager.hear",
    "read_back": "eager.items",
    "find_or_start": "eager.on_start",
}


@pytest.mark.parametrize("asked", list(BACK))
@pytest.mark.parametrize("how", ["call", "in a nursery"])
async def test_a_call_back_to_an_actor_that_is_starting_is_refused_at_once(
    pair: Pair, where: str, asked: str, how: str
) -> None:
    for place in ("here", "there"):
        other = await pair.here.options(name="other", on=where).spawn(Asked)
        with trio.fail_after(60), pytest.raises(ActorStartError, match="did not start") as caught:
            await pair.here.options(name="eager", on=place).spawn(Eager, other, asked, how)
        shown = f"{caught.value}\n{caught.value.remote_traceback}"
        assert f"call cycle: eager.on_start -> other.{asked} -> {BACK[asked]}. " in shown, shown
        await pair.here.stop(other)


async def test_a_call_to_itself_in_a_start_is_refused_at_once(
    pair: Pair, where: str, isolation: Any
) -> None:
    with (
        trio.fail_after(60),
        pytest.raises(ActorStartError, match=r"call cycle: eager\.on_start -> eager\.hear\. "),
    ):
        await pair.here.options(name="eager", on=where, isolation=isolation).spawn(
            Eager, None, "", "itself"
        )


async def test_a_call_back_to_an_isolated_actor_that_is_starting_is_refused_at_once(
    pair: Pair, where: str
) -> None:
    other = await pair.here.options(name="other", on=where).spawn(Asked)
    for asked, back in BACK.items():
        with trio.fail_after(60), pytest.raises(ActorStartError) as caught:
            await pair.here.options(name="eager", isolation="process").spawn(Eager, other, asked)
        assert (
            f"call cycle: eager.on_start -> other.{asked} -> {back}. "
            in f"{caught.value}\n{caught.value.remote_traceback}"
        )


async def test_what_an_actor_starts_cannot_call_it_before_that_is_done(
    pair: Pair, where: str, isolation: Any
) -> None:
    other = await pair.here.options(name="other", on=where).spawn(Asked)
    with trio.fail_after(60), pytest.raises(RemoteError) as caught:
        await other.start(isolation)
    assert "call cycle: other.start -> eager.on_start -> other.hear. " in str(caught.value)


async def test_a_start_that_does_not_wait_makes_no_cycle(pair: Pair, where: str) -> None:
    other = await pair.here.options(name="other", on=where).spawn(Asked)
    with trio.fail_after(60):
        eager = await pair.here.options(name="eager").spawn(Eager, other, "send_back")
        assert await eager.hear("then") == ["sent", "then"]
        await pair.here.stop(eager)
        eager = await pair.here.options(name="eager").spawn(
            Eager, other, "call_back", "in the background"
        )
        await until(
            lambda: eager.hear_beside("look"), "it has called back", lambda heard: "back" in heard
        )
        # A call that no part of the start waits for waits for the start.
        assert await other.start_beside() == ["beside"]


async def test_a_child_that_calls_its_supervisor_while_both_start_is_refused_at_once(
    pair: Pair, where: str
) -> None:
    child = ChildSpec.of("child", Child).changed(on=where)
    with trio.fail_after(60), pytest.raises(ActorStartError) as caught:
        await pair.here.options(name="top").spawn(Supervisor, [child])
    assert "call cycle: top.on_start -> top/child.on_start -> top.children. " in str(caught.value)
    # Once the supervisor has started, its children may call it as they start.
    with trio.fail_after(60):
        top = await pair.here.options(name="top").spawn(Supervisor)
        await top.start_child(child)
        assert [one.id for one in await top.children()] == ["child"]


class Child(Actor):
    """Looks at its supervisor as it starts."""

    async def on_start(self) -> None:
        await (await self.node.lookup("top", Supervisor)).children()


async def test_a_node_may_have_a_timeout_for_all_calls_that_have_none() -> None:
    async with open_node("alone", secret=SECRET, call_timeout=0.1) as node:
        party = await node.options(name="party").spawn(Silent)
        with trio.fail_after(60):
            with pytest.raises(CallTimeoutError):
                await party.wait()
            assert await party.answer.options(timeout=5.0)() == "late"
            with pytest.raises(CallTimeoutError):
                await party.answer.options(retry=RetryPolicy(max_retries=2))()
            # What actors of the node call has it too.
            asker = await node.spawn(Party)
            with pytest.raises(RemoteError, match="CallTimeoutError"):
                await asker.ask.options(timeout=5.0)([await node.options(name="other").spawn(Deaf)])
    with pytest.raises(ValueError, match="timeout"):
        async with open_node("alone", secret=SECRET, call_timeout=-1.0):
            pass


class Silent(Actor):
    """Takes its time."""

    @method(concurrent=True)
    async def wait(self) -> None:
        await trio.sleep_forever()

    @method(concurrent=True)
    async def answer(self) -> str:
        await trio.sleep(0.3)
        return "late"


class Deaf(Party):
    """Hears nothing, for ever."""

    @method
    async def hear(self, what: str) -> list[str]:
        await trio.sleep_forever()
        raise AssertionError


class Recursive(Actor):
    """Calls itself, or another one like it, again and again."""

    def __init__(self) -> None:
        self.is_deep = False

    @method(reentrant=True)
    async def depth(self, other: Recursive, left: int) -> int:
        return 1 + await other.depth(self.handle, left - 1) if left else 0

    @method(concurrent=True)
    async def wait(self, left: int) -> None:
        if left:
            await self.handle.wait(left - 1)
        self.is_deep = True
        await trio.sleep_forever()

    @method(concurrent=True)
    async def deep(self) -> bool:
        return self.is_deep


async def test_a_recursion_of_reentrant_calls_may_be_deeper_than_a_chain_is_long(
    pair: Pair, where: str
) -> None:
    one = await pair.here.spawn(Recursive)
    other = await pair.here.options(on=where).spawn(Recursive)
    with trio.fail_after(30):
        assert await one.depth(other, 2 * LONGEST + 1) == 2 * LONGEST + 1
        assert await one.depth(one, LONGEST + 1) == LONGEST + 1


async def test_a_deep_recursion_that_is_cancelled_ends_no_node(pair: Pair, where: str) -> None:
    """Each call that is cancelled cancels the next one: not within each other, or Python's stack
    would be too small for them.
    """
    recursive = await pair.here.options(on=where).spawn(Recursive)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(recursive.wait, 300)
            while not await recursive.deep():
                continue
            nursery.cancel_scope.cancel()
        assert await recursive.deep()
    host = internals_of(pair.here if where == "here" else pair.there).endpoint.host
    await until(lambda: not host.cells[recursive.address.name].running, "all of them have ended")
