"""Actors of the tests of trees, importable in node processes."""

from __future__ import annotations

import os

from actors import Actor, ChildSpec, Supervisor, method


class Member(Actor):
    """Says which process it runs in, and which life it is."""

    @method(idempotent=True)
    async def life(self) -> tuple[int, int]:
        return os.getpid(), self.epoch


class Root(Supervisor):
    """Says which process it runs in."""

    @method(concurrent=True, idempotent=True)
    async def process(self) -> int:
        return os.getpid()


class Candidate(Actor):
    """Makes its node a candidate for the root of a tree."""

    @method(concurrent=True)
    async def stand(self, specs: list[ChildSpec]) -> None:
        await self.node.options(name="root").singleton(Root, specs, intensity=10)
