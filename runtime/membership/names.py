"""Names: their owners with epochs.

A claim is one transaction tied to the owner's lease; the store's revision of it is the epoch.
Saving state is a transaction on the same record, so a fenced predecessor cannot save: see
`StateRecords`. While a name has no owner but its supervisor intends to restart it, lookups wait:
see `RestartIntents`.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import attrs
import trio

from actors.errors import (
    ActorNotFoundError,
    DeadlineExceededError,
    DecodeError,
    EncodeError,
    NameTakenError,
    StoreCompactedError,
    StoreError,
    StoreOutcomeUnknownError,
)
from actors.identifiers import ActorId, NodeId
from actors.method import Address
from actors.options import is_amount, is_unsendable_text
from actors.own_logger import own_logger
from actors.reference import Reference
from actors.supervision import ExitReason
from runtime.hosting.completion_records import Change, CommittedRecords
from runtime.limited_log import LimitedLog
from runtime.membership.owed_deletions import OwedDeletions
from runtime.membership.restart_intents import (
    CLUSTER,
    NAMES,
    RESTARTED,
    SUPERVISED,
    RestartIntents,
)
from runtime.membership.saved_states import StateRecords
from runtime.store.interface import (
    MAX_OPERATIONS,
    Compare,
    Delete,
    Entry,
    Get,
    Put,
    Store,
    Transaction,
    TransactionResult,
)
from runtime.wire.codec import Codec

logger = own_logger("understudy.supervision")

PROMISE_LOOK_SECONDS = 0.5
"""Seconds between checks whether a restart intent still holds, while waiting for the name to be
claimed.
"""

ABSENCE_SECONDS = 10 * PROMISE_LOOK_SECONDS
"""How long errors repeat what this node has read about a name without an owner."""

MOST_ABSENCES = 1_000
"""Names without an owner of which the reason is kept."""

MOST_COMPARED = 10_000
"""Names among which one is looked for that a misspelt name was meant to be."""


@attrs.frozen
class NameOwner:
    """The store's record of a name that an actor owns. `supervisor`: the supervisor that started
    it, "" for none. `resources`: what it allocates.
    """

    node: str
    incarnation: int
    class_path: str
    supervisor: str
    resources: Mapping[str, float]


class Names:
    """The names as one node claims and finds them."""

    def __init__(self, store: Store, codec: Codec, lease: int, node: str, incarnation: int) -> None:
        self._log = LimitedLog(logger, trio.current_time)
        self._store = store
        self._codec = codec
        self._lease = lease
        self._node = node
        self._incarnation = incarnation
        self.owed = OwedDeletions(store)
        """The names that were claimed with an unknown outcome, or could not be released at once;
        and parts of states that were not saved.
        """
        self._states = StateRecords(store, NAMES, lease, self.owed)
        self.intents = RestartIntents(store, lease, self._encode, self._decode, self.owed)
        # The value of a reference ends with its node, and an answer is kept to outlive it.
        self._lasting = codec.refusing(
            Reference,
            "is a reference and ends with its node, so it cannot be kept; keep the value itself",
        )
        self._claims = itertools.count(1)
        self._singletons: set[ActorId] = set()
        """The singletons that run on this node."""
        self._absences: OrderedDict[str, tuple[float, str]] = OrderedDict()
        """When it was read why a name that is waited for has no owner, and the reason."""

    async def run(self) -> None:
        """Release the names in `owed`, and delete what is kept for a time; runs until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.intents.run)
            await self.owed.run()

    async def claim(
        self,
        name: str,
        class_path: str,
        on_behalf_of: str = "",
        resources: Mapping[str, float] | None = None,
    ) -> int:
        """Claim `name` for an actor of this node; returns the epoch. Raises `NameTakenError`, for a
        singleton also if the intent to start it was withdrawn.
        """
        key = NAMES + name
        value = self._claim_value(class_path, on_behalf_of, resources)
        # create_revision 0: the name has no owner.
        conditions = [Compare(key, "create_revision", 0)]
        if on_behalf_of == CLUSTER:
            # A later epoch than its candidate knows may have ended for good, see `_ending`.
            conditions.append(self.intents.holds_for_singleton(name))
        try:
            # The revision of this transaction is the epoch.
            result = await self._store.transaction(
                conditions, [Put(key, value, self._lease)], [Get(key)]
            )
        except (trio.Cancelled, StoreOutcomeUnknownError):
            # It may have been carried out, or may yet be. Compared by value: only this very claim
            # is given back, never a later one of the same name.
            self.owed.owe(Compare(key, "value", value))
            raise
        if not result.succeeded:
            raise self._taken(name, result)
        if on_behalf_of == CLUSTER:
            self._singletons.add(ActorId(name, result.revision))
        return result.revision

    async def claim_many(
        self,
        names: Sequence[str],
        class_path: str,
        resources: Mapping[str, float] | None = None,
    ) -> list[int | Exception]:
        """Claim names for actors of one class on this node, in one request to the store; returns
        the epoch of each, or the error that `claim` raises.
        """
        batch: list[Transaction] = []
        claims: list[Put] = []
        for name in names:
            key, value = NAMES + name, self._claim_value(class_path, "", resources)
            free, put = Compare(key, "create_revision", 0), Put(key, value, self._lease)
            batch.append(Transaction((free,), (put,), (Get(key),)))
            claims.append(put)
        try:
            results = await self._store.transactions(batch)
        except (trio.Cancelled, StoreOutcomeUnknownError):
            # As in `claim`, for each of them.
            for put in claims:
                self.owed.owe(Compare(put.key, "value", put.value))
            raise
        epochs: list[int | Exception] = []
        for name, put, result in zip(names, claims, results, strict=True):
            if isinstance(result, Exception):
                if isinstance(result, StoreOutcomeUnknownError):
                    self.owed.owe(Compare(put.key, "value", put.value))
                epochs.append(result)
            else:
                epochs.append(result.revision if result.succeeded else self._taken(name, result))
        return epochs

    def _claim_value(
        self, class_path: str, on_behalf_of: str, resources: Mapping[str, float] | None
    ) -> bytes:
        # Its number tells this claim from all others of this node.
        number = next(self._claims)
        return self._encode(
            [
                self._node,
                self._incarnation,
                class_path,
                number,
                on_behalf_of,
                dict(resources or {}),
            ]
        )

    def _taken(self, name: str, result: TransactionResult) -> NameTakenError:
        entry = result.responses[0]
        owner = self._address(name, entry) if isinstance(entry, Entry) else None
        where = f" on node {owner.node}" if owner is not None else ""
        return NameTakenError(
            f"the name {name!r} is taken by a live actor{where}; choose another, or use "
            "get_or_spawn to get that actor",
            actor=name,
            node=self._node,
        )

    async def release(self, name: str, epoch: int, reason: ExitReason | None = None) -> None:
        """Give up the name, if this epoch still owns it. `reason`: how the actor has ended."""
        ours = Compare(NAMES + name, "mod_revision", epoch)
        try:
            await self._store.transaction([ours], self._ending(name, epoch, reason))
        except (trio.Cancelled, StoreError):
            # It may have been released or not: released again later, which deletes no other epoch's
            # claim. The intent for a singleton is left to its candidates then.
            self.owed.owe(ours)
            raise

    def _ending(self, name: str, epoch: int, reason: ExitReason | None) -> list[Delete]:
        """Return what deletes a name of this node's, and what ends with it in the same moment."""
        # A fence that is left because the transaction fails goes with the lease.
        deletions = [Delete(NAMES + name), *self._states.forget(name, epoch)]
        actor = ActorId(name, epoch)
        if actor in self._singletons:
            self._singletons.discard(actor)
            if reason is not None and reason.kind not in RESTARTED:
                # Not left to its candidates: one that has not seen this epoch yet, and finds the
                # name free, would start the singleton again before they withdraw the intent.
                deletions.append(Delete(SUPERVISED + name))
        return deletions

    async def release_many(
        self, actors: Sequence[ActorId], reason: ExitReason | None = None
    ) -> None:
        """Give up the names that these epochs still own, in one request to the store. `reason`: how
        the actors have ended. Raises `StoreError` if that is not certain of all; what was not
        released is released later.
        """
        ours = [Compare(NAMES + name, "mod_revision", epoch) for name, epoch in actors]
        batch = [
            Transaction((one,), tuple(self._ending(name, epoch, reason)))
            for one, (name, epoch) in zip(ours, actors, strict=True)
        ]
        try:
            results = await self._store.transactions(batch)
        except (trio.Cancelled, StoreError):
            for one in ours:
                self.owed.owe(one)
            raise
        for one, result in zip(ours, results, strict=True):
            if isinstance(result, Exception):
                self.owed.owe(one)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def find(self, name: str) -> Address | None:
        """The address of the actor that has `name` now."""
        entry = await self._store.get(NAMES + name)
        return self._address(name, entry) if entry is not None else None

    async def locate(self, name: str, gone: NodeId | None = None) -> Address:
        """Like `find`, but waits while a restart intent for the name holds. Raises
        `ActorNotFoundError`.

        `gone`: an incarnation known to have ended; a name that it still owns in the store does not
        count.
        """
        return (await self.locate_at(name, gone))[0]

    async def locate_within(
        self,
        name: str,
        seconds: float | None,
        locate: Callable[[str], Awaitable[Address]] | None = None,
    ) -> Address:
        """Like `locate`, by default, or like that function, for at most so many seconds. Raises
        DeadlineExceededError, which says why no actor has the name.
        """
        with trio.move_on_after(math.inf if seconds is None else max(0.0, seconds)):
            return await (locate or self.locate)(name)
        raise DeadlineExceededError(
            f"{name} could not be looked up within the timeout of {seconds:g} s"
            f"{self.why_absent(name)}",
            actor=name,
        )

    async def locate_at(self, name: str, gone: NodeId | None = None) -> tuple[Address, int]:
        """Like `locate`, with the revision of the store at which that was so."""
        if is_unsendable_text(name):
            # No store can have the key.
            raise ActorNotFoundError(
                f"there is no actor called {name!r} in the cluster: it holds a lone surrogate, "
                "which no name does; check the name"
            )
        while True:
            # Both keys in one transaction: read one after the other, an actor that is restarted in
            # between would seem to have neither.
            result = await self._store.transaction([], [Get(NAMES + name), Get(SUPERVISED + name)])
            entry, promise = result.responses
            if isinstance(entry, Entry):
                address = self._address(name, entry)
                if (address.node, address.incarnation) != gone:
                    self._absences.pop(name, None)
                    return address, result.revision
            if not isinstance(promise, Entry) or not await self.intents.stands(name, promise):
                self._absences.pop(name, None)
                why = await self.intents.last_end(
                    name, promise if isinstance(promise, Entry) else None
                )
                given_up = f", and it is not restarted any more; its last end: {why}" if why else ""
                raise ActorNotFoundError(
                    f"there is no actor called {name!r} in the cluster{given_up}; spawn it, or "
                    "check the name",
                    actor=name,
                )
            self._note_absence(name, await self.intents.why_absent(name, promise))
            await self._wait_claimed(name, result.revision)

    async def _wait_claimed(self, name: str, since: int) -> None:
        """Wait until `name` has an owner, or it is time to look at its intent again: the end of the
        supervisor changes other keys than the one that is watched here.
        """
        try:
            with trio.move_on_after(PROMISE_LOOK_SECONDS), suppress(StoreCompactedError):
                # Compacted: much has happened meanwhile, and what is there now decides.
                await self._store.poll(NAMES + name, since + 1)
        except trio.Cancelled as error:
            # People read it in the traceback of the error that their time limit raises.
            error.add_note(f"{name} was waited for{self.why_absent(name)}.")
            raise

    def _note_absence(self, name: str, why: str) -> None:
        self._absences.pop(name, None)
        self._absences[name] = trio.current_time(), why
        while len(self._absences) > MOST_ABSENCES:
            self._absences.popitem(last=False)

    def why_absent(self, name: str) -> str:
        """Say why an actor of this name that is waited for does not run, as a sentence after
        another one; "" if that is not known, or it runs.
        """
        at, why = self._absences.get(name, (-math.inf, ""))
        return f". {why[0].upper()}{why[1:]}" if at + ABSENCE_SECONDS > trio.current_time() else ""

    async def all(self) -> list[Address]:
        """All named actors."""
        return [address for address, _ in await self.owners()]

    async def to_compare(self, name: str, most: int | None = None) -> list[str]:
        """Names among which to look for the one that `name` was meant to be: all of them, or of
        more than `most` those first that begin with the same character. None: `MOST_COMPARED`.
        """
        most = MOST_COMPARED if most is None else most
        found = await self._store.range(NAMES, most)
        entries = list(found.entries)
        if found.more and name and not is_unsendable_text(name):
            alike = await self._store.range(f"{NAMES}{name[0]}", most)
            entries = [*alike.entries, *entries][:most]
        return list(dict.fromkeys(entry.key.removeprefix(NAMES) for entry in entries))

    async def owners(self) -> list[tuple[Address, NameOwner]]:
        """All named actors, with their records."""
        owners, _ = await self.first_owners(0)
        return owners

    async def first_owners(self, limit: int) -> tuple[list[tuple[Address, NameOwner]], bool]:
        """The first named actors by name, with their records, and whether there are more than
        `limit`; 0: all of them.
        """
        found = await self._store.range(NAMES, limit)
        owners: list[tuple[Address, NameOwner]] = []
        for entry in found.entries:
            name = entry.key.removeprefix(NAMES)
            owner = self.readable_owner(name, entry.value)
            if owner is not None:
                owners.append((_address_of(name, entry, owner), owner))
        return owners, found.more

    async def owned(self, names: Sequence[str]) -> dict[str, tuple[Address, str]]:
        """Return those of these names that actors have, with their addresses and the supervisors
        that started them ("" for none).
        """
        found: dict[str, tuple[Address, str]] = {}
        for start in range(0, len(names), MAX_OPERATIONS):
            part = names[start : start + MAX_OPERATIONS]
            result = await self._store.transaction([], [Get(NAMES + name) for name in part])
            for name, entry in zip(part, result.responses, strict=True):
                if isinstance(entry, Entry) and (owner := self.readable_owner(name, entry.value)):
                    found[name] = _address_of(name, entry, owner), owner.supervisor
        return found

    async def is_promised(self, name: str) -> bool:
        """True if a supervisor intends to restart an actor of this name."""
        promise = await self._store.get(SUPERVISED + name)
        return promise is not None and await self.intents.stands(name, promise)

    async def save(
        self, name: str, epoch: int, state: object, change: Change | None = None
    ) -> None:
        """Save `state` and the changed call records in one transaction, if `epoch` still owns the
        name.
        """
        await self._states.save(name, epoch, self._encode(state, "state"), change)

    async def change_applied(self, name: str, epoch: int, change: Change) -> None:
        """Save changed call records alone, if `epoch` still owns the name."""
        await self._states.change_applied(name, epoch, change)

    async def applied(self, name: str) -> CommittedRecords:
        """Return the call records that all epochs of the name have saved."""
        return await self._states.applied(name)

    def encode_answer(self, answer: object) -> bytes:
        """Encode an answer to be kept with a call record. Raises `EncodeError` for references."""
        return _as_one_piece(self._lasting, answer, "answer")

    def decode_answer(self, encoded: bytes) -> object:
        """Decode an answer that was kept with a call record."""
        return self._decode(encoded)

    async def saved(self, name: str) -> Any:
        """Return the state that any epoch of the name saved last; None if there is none."""
        found = await self._states.saved(name)
        return self._decode(found) if found is not None else None

    def owner(self, name: str, value: bytes) -> NameOwner:
        """Decode the value of a name's key. Raises `DecodeError`."""
        try:
            fields = cast("list[Any]", self._decode(value))
            node, incarnation, class_path, _, supervisor, resources = fields
            owner = NameOwner(node, incarnation, class_path, supervisor, resources)
            if not _is_sound(owner):
                raise ValueError
        except (TypeError, ValueError):
            raise DecodeError(
                f"the record of the name {name!r} in the store is malformed: no node of this "
                "software writes such a record; stop the program that does, and delete the record"
            ) from None
        return owner

    def readable_owner(self, name: str, value: bytes) -> NameOwner | None:
        """Like `owner`; None for a malformed record, which must not disturb other work."""
        try:
            return self.owner(name, value)
        except DecodeError as error:
            self._log.log(logging.ERROR, "%s; ignored", error)
            return None

    def _address(self, name: str, entry: Entry) -> Address:
        return _address_of(name, entry, self.owner(name, entry.value))

    def _encode(self, value: object, where: str = "") -> bytes:
        return _as_one_piece(self._codec, value, where)

    def _decode(self, data: bytes) -> object:
        """Decode what a node has written. Raises DecodeError for anything else."""
        if not data:
            raise DecodeError("a record in the store is empty")
        count = data[0]
        if not count:
            return self._codec.decode_stored(data[1:])
        sizes = [int.from_bytes(data[1 + 4 * i : 5 + 4 * i], "big") for i in range(count + 1)]
        place = 1 + 4 * (count + 1)
        encoded = data[place : place + sizes[-1]]
        place += sizes[-1]
        segments: list[bytes] = []
        for size in sizes[:-1]:
            segments.append(data[place : place + size])
            place += size
        return self._codec.decode_stored(encoded, segments)


def _is_sound(owner: NameOwner) -> bool:
    """True if all fields have the types that nodes write."""
    texts: tuple[object, ...] = (owner.node, owner.class_path, owner.supervisor)
    numbers: object = owner.resources
    return (
        all(isinstance(text, str) for text in texts)
        and type(owner.incarnation) is int
        and isinstance(numbers, dict)
        and all(
            isinstance(key, str) and isinstance(number, int | float) and is_amount(number)
            for key, number in cast("dict[object, object]", numbers).items()
        )
    )


def _address_of(name: str, entry: Entry, owner: NameOwner) -> Address:
    return Address(name, owner.node, owner.incarnation, entry.mod_revision, owner.class_path, True)


def _as_one_piece(codec: Codec, value: object, where: str) -> bytes:
    """Encode a value with its segments into one piece of bytes, because a store has no segments."""
    segments: list[Any] = []
    encoded = codec.encode(value, segments, where)
    if not segments:
        return b"\0" + encoded
    if any(len(segment) >= 1 << 32 for segment in segments):
        raise EncodeError("a value in the store may have 4 GiB at most")
    sizes = b"".join(len(segment).to_bytes(4, "big") for segment in segments)
    return b"%c%b%b%b%b" % (
        len(segments),
        sizes,
        len(encoded).to_bytes(4, "big"),
        encoded,
        b"".join(segments),
    )
