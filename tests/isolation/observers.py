"""Isolated actors that are not needed, that are told of ends, and that look at groups."""

from __future__ import annotations

import os
from typing import Any

import trio

from actors import Actor, Group, Ignore, method
from actors.errors import ActorStartError
from runtime.isolation import child_groups
from tests.groups.actors_used import Reader
from tests.isolation.actors_used import Counter
from tests.watching.actors_used import Watched, Watcher


class Needless(Actor):
    """Does not want to run."""

    async def on_start(self) -> None:
        raise Ignore("nothing to do here")


class NeedlessOnce(Counter):
    """Does not want to run before its state has been saved by a predecessor."""

    async def on_start(self) -> None:
        if not await self.saved():
            await self.save(1)
            raise Ignore("not yet")


class Hesitant(Watcher):
    """Takes its time with each notice, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.began = trio.Event()
        self.go = trio.Event()

    async def on_ended(self, notice: Any) -> None:
        self.began.set()
        await self.go.wait()
        await super().on_ended(notice)

    @method(concurrent=True)
    async def has_begun(self) -> None:
        await self.began.wait()

    @method(concurrent=True)
    async def cancel_beside(self, numbers: list[int]) -> None:
        for number in numbers:
            self.watches[number].cancel()  # type: ignore[attr-defined]

    @method(concurrent=True)
    async def let_go(self) -> None:
        self.go.set()

    @method(concurrent=True)
    async def still_cancelled(self) -> int:
        return len(self._context._host.watching._cancelled)  # type: ignore[union-attr]


class Exiting(Watcher):
    """Leaves its process when it is told."""

    async def on_ended(self, notice: Any) -> None:
        raise SystemExit(7)


class Erring(Watched):
    """Watches what nobody can watch."""

    @method
    async def err(self, how: str) -> str:
        try:
            if how == "watch":
                await self.watch("nobody")
            elif how == "link":
                await self.link(self)
            elif how == "unlink":
                await self.unlink(3)
            elif how == "wait_ended":
                await self.node.wait_ended("nobody")
            elif how == "join":
                await self.join(" ")
            elif how == "group":
                self.node.group("", Reader)
            elif how == "singleton":
                await self.node.singleton(Counter)
            elif how == "needless":
                await self.node.spawn(Needless)
            elif how == "needless alone":
                await self.node.options(isolation="process").spawn(Needless)
        except (TypeError, ValueError, ActorStartError) as error:
            return type(error).__name__
        return "no error"

    @method(concurrent=True)
    async def wait_for(self, handle: Actor) -> str:
        return (await self.node.wait_ended(handle)).reason.kind

    @method
    async def stand(self, name: str, value: int) -> Counter:
        return await self.node.options(name=name).singleton(Counter, value)


class Onlooker(Reader):
    """Uses groups from where it is."""

    def __init__(self, *groups: str) -> None:
        super().__init__(*groups)
        self.held: Group[Reader] | None = None

    @method(concurrent=True)
    async def pid(self) -> int:
        return os.getpid()

    @method(concurrent=True)
    async def wait_sees(self, group: str, count: int) -> list[str]:
        """The names of the members, as soon as there are that many."""
        held = self.node.group(group, Reader)
        async for members in held.watch():
            if len(members) == count:
                assert held.members() == members
                return [member.name for member in members]
        raise AssertionError

    @method(concurrent=True)
    async def ready(self, group: str) -> None:
        await self.node.group(group, Reader).ready()

    @method
    async def spread(self, group: str, text: str) -> int:
        return await self.node.group(group, Reader).broadcast(Reader.on_news, text)

    @method
    async def ask_all(self, group: str) -> list[tuple[str | None, str]]:
        answers = await self.node.group(group, Reader).options(timeout=10).call_all(Reader.where)
        return [(answer.value, type(answer.error).__name__) for answer in answers]

    @method
    async def choose_some(self, group: str, times: int) -> list[str]:
        held = await self.node.group(group, Reader).ready()
        return [held.choose().name for _ in range(times)]

    @method(concurrent=True)
    async def look_often(self, seconds: float) -> None:
        child_groups.FOLLOWED_GROUP_LOOK_SECONDS = seconds

    @method(concurrent=True)
    async def tasks(self) -> list[str]:
        """The names of all tasks of this process."""
        found: list[str] = []
        waiting = [trio.lowlevel.current_root_task()]
        while waiting:
            task = waiting.pop()
            if task is not None:
                found.append(task.name)
                waiting.extend(
                    child for nursery in task.child_nurseries for child in nursery.child_tasks
                )
        return found

    @method
    async def hold(self, group: str) -> None:
        self.held = await self.node.group(group, Reader).ready()

    @method
    async def held_names(self) -> list[str]:
        assert self.held is not None
        return [member.name for member in self.held.members()]
