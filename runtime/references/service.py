"""The service of each node for what others say and ask about references."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import trio

from actors.actor import Actor
from actors.errors import CallError, ProtocolError
from actors.method import method
from runtime.checking import Row
from runtime.environment import Process
from runtime.references.claims import Identity, ReferenceId
from runtime.references.owned import OwnValues, Reader
from runtime.references.values import Failure

if TYPE_CHECKING:
    from runtime.references.correspondence import Correspondence
    from runtime.references.overview import Overview
    from runtime.references.table import ReferenceTable

REFERENCE_SERVICE = "@references"

Owner = Annotated[list[Any], Row.of(str, int)]
"""A node and its incarnation, as they travel."""

Word = Annotated[list[Any], Row.of(str, int, int)]
"""A reference."""

Claim = Annotated[list[Any], Row.of(str, int, int, int)]
"""A claim or a release: a reference and a version."""

Register = Annotated[list[Any], Row.of(str, int, int)]
"""A holder and the version of what it said last."""

Told = Annotated[list[Any], Row.of(list[Owner | None], list[Owner | None])]
"""Answers to claims, and to releases."""

ANNOUNCE_SECONDS = 2.0
"""How long all holders of a value together have to hear of its new owner."""

logger = logging.getLogger("understudy.references")


class ReferenceService(Actor):
    """All of it may be asked twice."""

    def __init__(
        self,
        table: ReferenceTable,
        values: OwnValues,
        overview: Overview,
        correspondence: Correspondence,
        service: Callable[[str, int], Any],
    ) -> None:
        self._correspondence = correspondence
        self._overview = overview
        self._table = table
        self._values = values
        self._service = service

    @method(concurrent=True, idempotent=True)
    async def update(self, holder: str, incarnation: int, claims: list[Claim], releases: list[Claim]) -> Told:
        """Claims and releases of a holder; for each, who owns the value, None if that is not known here."""
        who = (holder, incarnation)
        return [
            [_plain(self._table.claim(*_worded(word, who))) for word in claims],
            [_plain(self._table.release(*_worded(word, who))) for word in releases],
        ]

    @method(concurrent=True, idempotent=True)
    async def unsettled(self, sponsor: str, incarnation: int, numbers: list[int]) -> list[int]:
        """Which hand-overs of `sponsor` are not settled here."""
        return self._table.unsettled((sponsor, incarnation), numbers)

    @method(concurrent=True, idempotent=True)
    async def where(self, identities: list[Word]) -> list[Owner | Failure | None]:
        """For each value that this node has handed on: who owns it, the error of the call that made it, or None if it is not held here."""
        answers = [self._table.where(_reference(identity)) for identity in identities]
        return [answer if isinstance(answer, Failure) else _plain(answer) for answer in answers]

    @method(concurrent=True, idempotent=True)
    async def conclude(self, given_up: list[Annotated[list[Any], Row.of(Word, Failure)]]) -> list[Owner | Failure | bool | None]:
        """Pairs of values and the failures of the calls that were to make them; see `ReferenceTable.conclude`."""
        answers = [self._table.conclude(_reference(identity), _failure(failure)) for identity, failure in given_up]
        return [list(answer) if isinstance(answer, tuple) else answer for answer in answers]

    @method(concurrent=True, idempotent=True)
    async def fetch(self, identity: Word, reader: list[Any] | None = None) -> object:
        """A value of this node, once it is there; see `OwnValues.served`. `reader`: node, incarnation, host, process, its start."""
        return await self._values.served(_reference(identity), _reader(reader) if reader is not None else None)

    @method(concurrent=True, idempotent=True)
    async def outcomes(self, identities: list[Word], wait: bool) -> list[int]:
        """The places of those in `identities` that have outcomes. With `wait`, once there is one, or after a long while."""
        return await self._values.outcomes([_reference(identity) for identity in identities], wait=wait)

    @method(concurrent=True, idempotent=True)
    async def adopt(
        self, identity: Word, outcome: object, registers: list[Register], maker: str, site: str, givers: list[Owner] | None = None
    ) -> Owner:
        """Own a value whose owner leaves, and tell its holders; see `OwnValues.adopt`. Returns the owner: another node, if this one has
        given the value on already. `givers`: the owner that asks, and before it those that may not know yet who has got the value.
        """
        reference = _reference(identity)
        holders = [(name, number, version) for name, number, version in registers]
        while (owner := self._table.given_to(reference)) is None:
            if await self._values.adopt(reference, outcome, holders, maker, site):
                earlier = self._table.given_by(reference, [(name, number) for name, number in givers or ()])
                await self._announce(reference, registers, earlier)
                return list(self._table.identity)
        # Who is new among its holders has to be known there.
        answer: Owner = await self._service(*owner).adopt(identity, outcome, registers, maker, site, givers)
        return answer

    @method(concurrent=True, idempotent=True)
    async def moved(self, identity: Word, owner: str, incarnation: int) -> bool:
        """A value has another owner now; whether it is held here."""
        return self._table.moved(_reference(identity), (owner, incarnation))

    @method(concurrent=True)
    async def call_value(self, identity: Word, name: str, args: list[object], kwargs: dict[str, object]) -> object:
        """Run a method of a value; see `OwnValues.call`."""
        return await self._values.call(_reference(identity), name, tuple(args), kwargs)

    @method(concurrent=True)
    async def call_and_keep(self, identity: Word, name: str, args: list[object], kwargs: dict[str, object]) -> object:
        """Likewise, called for a reference to the result; see `OwnValues.call_and_keep`."""
        return await self._values.call_and_keep(_reference(identity), name, tuple(args), kwargs)

    @method(concurrent=True, idempotent=True)
    async def listing(self, most: int) -> dict[str, Any]:
        """What this node owns, the largest first and at most so many, for `understudy refs`; see `listing.report`."""
        return self._overview.listing(most)

    async def _announce(self, identity: ReferenceId, registers: list[Any], earlier: Sequence[Identity]) -> None:
        """Tell the holders of a value, and `earlier` owners, that it is this node's. Those that do not answer in time are told for as long
        as they may live.
        """

        async def tell(holder: Identity, version: int) -> None:
            try:
                if not await self._service(*holder).moved(list(identity), *self._table.identity):
                    self._table.release(identity, holder, version)
            except CallError as error:
                logger.info("node %s could not be told yet that value %s has moved: %s", holder[0], identity, error)
            else:
                del untold[holder]

        here = self._table.identity
        untold = dict.fromkeys(earlier, 0)
        untold.update(((name, number), version) for name, number, version in registers if version > 0 and (name, number) != here)
        try:
            with trio.move_on_after(ANNOUNCE_SECONDS):
                async with trio.open_nursery() as nursery:
                    for holder, version in list(untold.items()):
                        nursery.start_soon(tell, holder, version)
        finally:
            # Also when the old owner does not wait any longer: the value is this node's all the same.
            for holder, version in untold.items():
                if not self._table.has_ended(holder):
                    self._correspondence.announce(holder, identity, version)


def _reader(word: list[Any]) -> Reader:
    if [type(item) for item in word] != [str, int, str, int, str]:
        raise ProtocolError("a reader is a node and a process")
    return Reader((word[0], word[1]), Process(word[2], word[3], word[4]))


def _failure(word: object) -> Failure:
    if not isinstance(word, Failure):
        raise ProtocolError("a call is given up for a failure")
    return word


def _plain(owner: Identity | None) -> list[object] | None:
    return list(owner) if owner is not None else None


def _reference(word: Any) -> ReferenceId:
    if not isinstance(word, list) or [type(item) for item in word] != [str, int, int]:
        raise ProtocolError("a reference is named by a text and two numbers")
    return sys.intern(word[0]), word[1], word[2]


def _worded(word: Any, holder: Identity) -> tuple[ReferenceId, Identity, int]:
    if not isinstance(word, list) or len(word) != 4 or type(word[3]) is not int or word[3] < 1:
        raise ProtocolError("a claim or release is a reference and a version")
    return _reference(word[:3]), holder, word[3]
