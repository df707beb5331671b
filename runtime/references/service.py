"""The service of each node for updates and questions of other nodes about references."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import trio

from actors.errors import CallError, ProtocolError
from actors.identifiers import NodeId, ReferenceId
from actors.method import method
from actors.own_logger import own_logger
from actors.peers import VerifiedPeer
from runtime.annotation_checks import ArgumentTypes
from runtime.environment import Process
from runtime.hosting.requesters import Asker, RequesterChecked, named_at, reader_at
from runtime.references import inspection
from runtime.references.manager import ReferenceManager
from runtime.references.owned_values import Reader
from runtime.references.values import FailedValue

logger = own_logger("understudy.references")

REFERENCE_SERVICE = "@references"


Owner = Annotated[list[Any], ArgumentTypes.of(str, int)]
"""A node and its incarnation, as they travel."""


PlainId = Annotated[list[Any], ArgumentTypes.of(str, int, int)]
"""A reference."""


Claim = Annotated[list[Any], ArgumentTypes.of(str, int, int, int)]
"""A claim or a release: a reference and a version."""


Register = Annotated[list[Any], ArgumentTypes.of(str, int, int)]
"""A holder and the version of its last update."""


Answers = Annotated[list[Any], ArgumentTypes.of(list[Owner | None], list[Owner | None])]
"""Answers to claims, and to releases."""


ANNOUNCE_SECONDS = 2.0
"""Seconds for notifying all holders of a value of its new owner."""


class ReferenceService(RequesterChecked):
    """The service of a node for updates and questions about references. Every method may be called
    twice with the same arguments.
    """

    askers: ClassVar[Mapping[str, Asker]] = {
        "update": named_at(0),
        "unsettled": named_at(0),
        "moved": named_at(1),
        "fetch": reader_at(1),
    }

    def __init__(
        self,
        references: ReferenceManager,
        service: Callable[[str, int], Any],
        asking_peer: Callable[[], VerifiedPeer | None],
    ) -> None:
        self._asking_peer = asking_peer
        self._references = references
        self._table = references.table
        self._values = references.owned
        self._protocol = references.protocol
        self._service = service

    @method(concurrent=True, idempotent=True)
    async def update(
        self, holder: str, incarnation: int, claims: list[Claim], releases: list[Claim]
    ) -> Answers:
        """Apply claims and releases of a holder; returns for each the owner of the value, None if
        it is not known here.
        """
        who = NodeId(holder, incarnation)
        return [
            [_plain(self._table.claim(*_claim(claim, who))) for claim in claims],
            [_plain(self._table.release(*_claim(release, who))) for release in releases],
        ]

    @method(concurrent=True, idempotent=True)
    async def unsettled(self, forwarder: str, incarnation: int, numbers: list[int]) -> list[int]:
        """Return the forks of `forwarder` (numbers) that are not settled here."""
        return self._table.unsettled(NodeId(forwarder, incarnation), numbers)

    @method(concurrent=True, idempotent=True)
    async def where(self, identities: list[PlainId]) -> list[Owner | FailedValue | None]:
        """Return for each value whose reference this node has forwarded: its owner, the failure of
        the call that made it, or None if this node does not hold it.
        """
        answers = [self._table.where(_reference(identity)) for identity in identities]
        return [answer if isinstance(answer, FailedValue) else _plain(answer) for answer in answers]

    @method(concurrent=True, idempotent=True)
    async def conclude(
        self, given_up: list[Annotated[list[Any], ArgumentTypes.of(PlainId, FailedValue)]]
    ) -> list[Owner | FailedValue | bool | None]:
        """Record failed calls: pairs of a value and the failure of the call that was to make it;
        see `ReferenceTable.conclude`.
        """
        answers: list[Owner | FailedValue | bool | None] = []
        for identity, failure in given_up:
            answer, effects = self._table.conclude(_reference(identity), _failure(failure))
            self._references.apply(effects)
            answers.append(list(answer) if isinstance(answer, tuple) else answer)
        return answers

    @method(concurrent=True, idempotent=True)
    async def fetch(self, identity: PlainId, reader: list[Any] | None = None) -> object:
        """A value of this node, once it is there; see `OwnedValues.serve`. `reader`: node,
        incarnation, host, process, its start.
        """
        peer = self._asking_peer()
        if peer is not None and peer.role != "node" and peer.proof == "certificate":
            # A client claims which process it is, without proof. Values that a process reads in
            # place stay in memory as long as it lives, so a client could keep each value for ever
            # by naming a process that never ends.
            reader = None
        return await self._values.serve(
            _reference(identity), _reader(reader) if reader is not None else None
        )

    @method(concurrent=True, idempotent=True)
    async def outcomes(self, identities: list[PlainId], wait: bool) -> list[int]:
        """Return the positions of those in `identities` that have outcomes, and once more, behind
        all positions, of those whose calls have failed. With `wait`, wait until there is one, for a
        bounded time.
        """
        return await self._values.outcomes(
            [_reference(identity) for identity in identities], wait=wait
        )

    @method(concurrent=True, idempotent=True)
    async def adopt(
        self,
        identity: PlainId,
        outcome: object,
        registers: list[Register],
        maker: str,
        site: str,
        givers: list[Owner] | None = None,
    ) -> Owner:
        """Become the owner of a value whose owner leaves, and notify its holders; see
        `OwnedValues.adopt`.

        Returns the owner, which is another node if this one has already moved the value on.
        `givers`: the owner that asks, then earlier owners that may not know yet who owns the value.
        """
        reference = _reference(identity)
        holders = [(name, number, version) for name, number, version in registers]
        while (owner := self._table.given_to(reference)) is None:
            if await self._values.adopt(reference, outcome, holders, maker, site):
                earlier = self._table.on_given_by(
                    reference, [NodeId(name, number) for name, number in givers or ()]
                )
                await self._announce(reference, registers, earlier)
                return list(self._table.identity)
        # The next owner must know of holders that have registered meanwhile.
        answer: Owner = await self._service(*owner).adopt(
            identity, outcome, registers, maker, site, givers
        )
        return answer

    @method(concurrent=True, idempotent=True)
    async def moved(self, identity: PlainId, owner: str, incarnation: int) -> bool:
        """Record that a value has another owner. Returns whether this node holds it."""
        reference = _reference(identity)
        is_held = self._table.find(reference) is not None
        self._references.apply(self._table.on_moved(reference, NodeId(owner, incarnation)))
        return is_held

    @method(concurrent=True)
    async def call_value(
        self, identity: PlainId, name: str, args: list[object], kwargs: dict[str, object]
    ) -> object:
        """Run a method of a value; see `OwnedValues.call`."""
        return await self._values.call(_reference(identity), name, tuple(args), kwargs)

    @method(concurrent=True)
    async def call_and_keep(
        self, identity: PlainId, name: str, args: list[object], kwargs: dict[str, object]
    ) -> object:
        """Like `call`, but keep the result here; see `OwnedValues.call_and_keep`."""
        return await self._values.call_and_keep(_reference(identity), name, tuple(args), kwargs)

    @method(concurrent=True, idempotent=True)
    async def listing(self, most: int) -> dict[str, Any]:
        """List what this node owns, the largest first, at most `most` values, for `understudy
        refs`; see `runtime.references.inspection.OwnerReport`.
        """
        return await inspection.listing(self._references, most)

    async def _announce(
        self, identity: ReferenceId, registers: list[Any], earlier: Sequence[NodeId]
    ) -> None:
        """Notify the holders of a value, and `earlier` owners, that this node owns it. Those that
        do not answer in time are notified again as long as they may be alive.
        """

        async def notify(holder: NodeId, version: int) -> None:
            try:
                # False: the holder has let go of it since, and its release went to the old owner.
                if not await self._service(*holder).moved(list(identity), *self._table.identity):
                    self._table.release(identity, holder, version)
            except CallError as error:
                logger.info(
                    "could not notify node %s yet that value %s has moved: %s",
                    holder[0],
                    identity,
                    error,
                )
            else:
                del unanswered[holder]

        here = self._table.identity
        unanswered = dict.fromkeys(earlier, 0)
        unanswered.update(
            (NodeId(name, number), version)
            for name, number, version in registers
            if version > 0 and NodeId(name, number) != here
        )
        try:
            with trio.move_on_after(ANNOUNCE_SECONDS):
                async with trio.open_nursery() as nursery:
                    for holder, version in list(unanswered.items()):
                        nursery.start_soon(notify, holder, version)
        finally:
            # Also if the old owner has stopped waiting: this node owns the value in any case.
            for holder, version in unanswered.items():
                if not self._table.has_ended(holder):
                    self._protocol.announce(holder, identity, version)


def _reader(plain: list[Any]) -> Reader:
    if [type(item) for item in plain] != [str, int, str, int, str]:
        raise ProtocolError("malformed reader: expected a node and a process")
    return Reader(NodeId(plain[0], plain[1]), Process(plain[2], plain[3], plain[4]))


def _failure(plain: object) -> FailedValue:
    if not isinstance(plain, FailedValue):
        raise ProtocolError("malformed conclusion of a call: expected a failure")
    return plain


def _plain(owner: NodeId | None) -> list[object] | None:
    return list(owner) if owner is not None else None


def _reference(plain: Any) -> ReferenceId:
    if not isinstance(plain, list) or [type(item) for item in plain] != [str, int, int]:
        raise ProtocolError("malformed reference id: expected a text and two numbers")
    return sys.intern(plain[0]), plain[1], plain[2]


def _claim(plain: Any, holder: NodeId) -> tuple[ReferenceId, NodeId, int]:
    if not isinstance(plain, list) or len(plain) != 4 or type(plain[3]) is not int or plain[3] < 1:
        raise ProtocolError("malformed claim or release: expected a reference id and a version")
    return _reference(plain[:3]), holder, plain[3]
