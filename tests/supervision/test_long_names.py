"""Names of children and of members of pools that would be longer than names may be: refused before
anything starts.
"""

from __future__ import annotations

from typing import ClassVar

import pytest
import trio

from actors import Actor, ChildSpec, DynamicSupervisor, Supervisor, method
from actors.errors import ActorStartError, BadArgumentsError
from actors.options import MOST_NAME
from runtime import open_node
from runtime.pools.member_plan import NAME_ROOM

TOO_LONG = "x" * 300


class Worker(Actor):
    started: ClassVar[list[str]] = []

    async def on_start(self) -> None:
        self.started.append(self.name)

    @method
    async def double(self, number: int) -> int:
        return 2 * number


class Sub(Supervisor):
    """Its constructor is its own: only its start sees its children."""

    def __init__(self) -> None:
        super().__init__([ChildSpec.of("good", Worker), ChildSpec.of(TOO_LONG, Worker)])


@pytest.fixture(autouse=True)
def started() -> list[str]:
    Worker.started.clear()
    return Worker.started


async def test_start_child_refuses_and_the_supervisor_lives_on() -> None:
    with trio.fail_after(60):
        async with open_node("n") as node:
            supervisor = await node.options(name="s").spawn(Supervisor, [ChildSpec.of("a", Worker)])
            with pytest.raises(
                BadArgumentsError, match=r"^child 'x+'\.\.\. of 's' was not .* 302 "
            ):
                await supervisor.start_child(ChildSpec.of(TOO_LONG, Worker))
            assert [child.id for child in await supervisor.children()] == ["a"]
            # The longest, and one that has a name of its own.
            longest = "y" * (MOST_NAME - 2)
            await supervisor.start_child(ChildSpec.of(longest, Worker))
            named = ChildSpec.of(TOO_LONG, Worker).changed(name="short")
            await supervisor.start_child(named)
            assert await (await node.lookup(f"s/{longest}", Worker)).double(2) == 4
            assert await (await node.lookup("short", Worker)).double(2) == 4


async def test_spawn_of_a_dynamic_supervisor_refuses_and_it_lives_on() -> None:
    with trio.fail_after(60):
        async with open_node("n") as node:
            supervisor = await node.options(name="e" * 250).spawn(
                DynamicSupervisor, ChildSpec.of("t", Worker)
            )
            for _ in range(2):
                with pytest.raises(BadArgumentsError, match=r"^child 't-.*' of 'e+'\.\.\. was not"):
                    await supervisor.spawn()
            assert (await supervisor.count()).specs == 0


async def test_a_supervisor_is_refused_before_any_child_starts(started: list[str]) -> None:
    specs = [ChildSpec.of("good", Worker), ChildSpec.of(TOO_LONG, Worker)]
    with trio.fail_after(60):
        async with open_node("n") as node:
            with pytest.raises(
                BadArgumentsError, match=r"^child 'x+'\.\.\. of 't' was not started"
            ):
                await node.options(name="t").spawn(Supervisor, specs)
            # Where only the start knows the name or the children.
            with pytest.raises(ActorStartError, match=r"child 'x+'\.\.\. of '.*' was not started"):
                await node.spawn(Supervisor, specs)
            with pytest.raises(ActorStartError, match=r"child 'x+'\.\.\. of 'u' was not started"):
                await node.options(name="u").spawn(Sub)
            # Within another one.
            outer = [ChildSpec.of("o", Supervisor, specs)]
            with pytest.raises(ActorStartError, match=r"child 'x+'\.\.\. of 'v/o' was not started"):
                await node.options(name="v").spawn(Supervisor, outer)
            assert started == []
            named = [specs[0], specs[1].changed(name="named")]
            await node.options(name="t").spawn(Supervisor, named)
            assert started == ["t/good", "named"]


async def test_a_pool_is_refused_whose_members_could_have_no_names() -> None:
    with trio.fail_after(60):
        async with open_node("n") as node:
            most = MOST_NAME - NAME_ROOM
            async with await node.pool("p" * most, Worker, min=0, max=1) as pool:
                assert [item async for item in pool.map(Worker.double, [1, 2])] == [2, 4]
            with pytest.raises(ValueError, match=r"^'p+'\.\.\. cannot be the name of a pool"):
                await node.pool("p" * (most + 1), Worker, min=0, max=2)


async def test_a_pool_without_a_name_on_a_node_with_a_long_one_is_refused() -> None:
    with trio.fail_after(60):
        async with open_node("n" * 230) as node:
            with pytest.raises(ActorStartError, match="cannot be the name of a pool"):
                await node.pool(None, Worker, size=1)
            async with await node.pool("short", Worker, size=1) as pool:
                assert [item async for item in pool.map(Worker.double, [1])] == [2]
