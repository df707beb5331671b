"""The values of this node: kept, waited for, served to others, and worked with where they are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import trio

from actors.errors import ReferenceNotReadyError, ReferenceReleasedError
from actors.reference import Reference
from runtime.environment import Environment
from runtime.references.anchors import Anchor
from runtime.references.claims import Identity, ReferenceId
from runtime.references.methods import method_of
from runtime.references.packing import Packing
from runtime.references.table import ReferenceTable
from runtime.references.values import NOT_YET, UNKNOWN, Failure, Kept
from runtime.system_calls import LONG_POLL_SECONDS

UNKNOWN_SECONDS = 5.0
"""How long a method waits for a value that this node has not heard of."""


class OwnValues:
    """See the module. `rebuild(failure)` gives the error to raise for a failure."""

    def __init__(self, table: ReferenceTable, packing: Packing, environment: Environment, rebuild: Callable[[Failure], Exception]) -> None:
        self._table = table
        self._packing = packing
        self._environment = environment
        self.rebuild = rebuild

    def put(self, value: object) -> Reference[Any]:
        """Keep a copy of a value. Raises EncodeError."""
        return self._table.keep(self._packing.pack(value, "value"))

    def resolve(self, anchor: Anchor, value: object) -> int:
        """The method has returned what `anchor` is for; returns its size in bytes. Raises EncodeError."""
        kept = self._packing.pack(value, "result")
        if not anchor.is_settled:
            anchor.kept = kept
            anchor.tell()
        return kept.size

    def fail(self, anchor: Anchor, failure: Failure) -> None:
        """It will not."""
        if not anchor.is_settled:
            anchor.failure = failure
            anchor.tell()

    def value(self, anchor: Anchor) -> object:
        """A copy of the value. Raises what the producing call raised, and `ReferenceNotReadyError`."""
        if anchor.kept is not None:
            return self._packing.unpack(anchor.kept)
        if anchor.failure is not None:
            raise self.rebuild(anchor.failure)
        if anchor.error is not None:
            raise anchor.error
        raise ReferenceNotReadyError(f"{Reference(anchor)!r} has no value yet; `await reference.fetch()` waits for it")

    async def served(self, identity: ReferenceId) -> object:
        """The value for another node, or the failure, or whom to ask (a pair of name and incarnation), UNKNOWN or NOT_YET."""
        owner, anchor = self._find(identity)
        if anchor is None:
            return list(owner) if owner is not None else UNKNOWN
        with trio.move_on_after(LONG_POLL_SECONDS):
            while not anchor.is_settled:
                await anchor.wait_changed()
        return self._answer(anchor)

    def _answer(self, anchor: Anchor) -> Kept | Failure | int:
        if anchor.kept is not None:
            return anchor.kept
        return anchor.failure if anchor.failure is not None else NOT_YET

    async def outcomes(self, identities: Sequence[ReferenceId], *, wait: bool) -> list[int]:
        """Which of them have outcomes, by their places, or are not known here; with `wait` as soon as there is one, or after a while."""
        anchors = [self._find(identity)[1] for identity in identities]
        done: list[int] = []
        with trio.move_on_after(LONG_POLL_SECONDS if wait else 0):
            while not (done := _done(anchors)) and wait:
                await self._table.wait_changed()
        return done or _done(anchors)

    async def call(self, identity: ReferenceId, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run a method of a value in a thread. Returns [its result], or what `served` does. Raises AttributeError, and what it raises."""
        _, anchor = self._find(identity)
        answer = await self.served(identity)
        if anchor is None or not isinstance(answer, Kept):
            return answer
        method = method_of(self._packing.unpack(answer), name)
        return [await self._environment.in_thread(functools.partial(method, *args, **kwargs))]

    async def call_and_keep(self, identity: ReferenceId, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Likewise, for a result that stays here. Raises what there is to raise: nobody can ask again."""
        with trio.move_on_after(UNKNOWN_SECONDS):
            while self._table.owner(identity) is None:
                # The call that makes it is on its way here.
                await self._table.wait_changed()
        answer: object = NOT_YET
        while answer == NOT_YET:
            answer = await self.call(identity, name, args, kwargs)
        if isinstance(answer, Failure):
            raise self.rebuild(answer)
        if isinstance(answer, list) and len(cast("list[object]", answer)) == 1:
            return cast("list[object]", answer)[0]
        raise ReferenceReleasedError(f"node {self._table.identity[0]} does not have the value whose method {name} was to be called")

    def _find(self, identity: ReferenceId) -> tuple[Identity | None, Anchor | None]:
        owner = self._table.owner(identity)
        return owner, self._table.find(identity) if owner == self._table.identity else None


def _done(anchors: Sequence[Anchor | None]) -> list[int]:
    return [index for index, anchor in enumerate(anchors) if anchor is None or anchor.is_settled]
