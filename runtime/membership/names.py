"""Names: who owns which, with epochs; and the state kept under them.

A claim is one transaction tied to the owner's lease; the store's revision of it is the epoch. Saving state is a transaction on the same
record, so what a fenced predecessor computes cannot be saved. A name that its supervisor promises to restart is waited for while nobody has
it: see `promises`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import attrs
import trio

from actors.errors import ActorNotFoundError, EncodeError, NameTakenError, StoreCompactedError, StoreError, StoreOutcomeUnknownError
from actors.method import Address
from actors.reference import Reference
from runtime.hosting.applied import Change, Kept
from runtime.membership.promises import NAMES, SUPERVISED, Promises
from runtime.membership.states import States
from runtime.store.interface import MAX_OPERATIONS, Compare, Delete, Entry, Get, Put, Store
from runtime.wire.codec import Codec

GIVE_BACK_AFTER = 1.0
"""Seconds from a claim whose outcome nobody learned, for it may still be on its way, and between attempts."""

LOOK_AGAIN = 0.5
"""Seconds between looks at whether a supervisor still promises a name, while waiting for it to be claimed."""


@attrs.frozen
class Owner:
    """What is written of a name that somebody has. `supervisor`: for whom it was started, "" for nobody. `resources`: what it takes."""

    node: str
    incarnation: int
    class_path: str
    supervisor: str
    resources: Mapping[str, float]


class Names:
    """The names as one node claims and finds them."""

    def __init__(self, store: Store, codec: Codec, lease: int, node: str, incarnation: int) -> None:
        self._store = store
        self._codec = codec
        self._lease = lease
        self._node = node
        self._incarnation = incarnation
        self._states = States(store, NAMES)
        self.promises = Promises(store, lease, self._encode, self._decode)
        # The value of a reference ends with its node, and an answer is kept to outlive it.
        self._lasting = codec.refusing(Reference, "is a reference and ends with its node, so it cannot be kept; keep the value itself")
        self._claims = itertools.count(1)
        self._strays: dict[Compare, None] = {}
        self._strayed = trio.Event()

    async def run(self) -> None:
        """Give back what was claimed without anybody knowing, or could not be given back at once; for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.promises.run)
            await self._give_back_strays()

    async def _give_back_strays(self) -> None:
        while True:
            while self._strays:
                await trio.sleep(GIVE_BACK_AFTER)
                for ours in list(self._strays):
                    try:
                        await self._store.transaction([ours], [Delete(ours.key)])
                    except StoreError:
                        continue
                    del self._strays[ours]
            self._strayed = trio.Event()
            await self._strayed.wait()

    async def claim(self, name: str, class_path: str, on_behalf_of: str = "", resources: Mapping[str, float] | None = None) -> int:
        """See `NameClaims.claim`."""
        key = NAMES + name
        # Its number tells this claim from all others of this node.
        value = self._encode([self._node, self._incarnation, class_path, next(self._claims), on_behalf_of, dict(resources or {})])
        try:
            result = await self._store.transaction([Compare(key, "create_revision", 0)], [Put(key, value, self._lease)], [Get(key)])
        except (trio.Cancelled, StoreOutcomeUnknownError):
            self._give_back_later(Compare(key, "value", value))
            raise
        if result.succeeded:
            return result.revision
        entry = result.responses[0]
        owner = self._address(name, entry) if isinstance(entry, Entry) else None
        where = f" on node {owner.node}" if owner is not None else ""
        raise NameTakenError(
            f"the name {name!r} is taken by a live actor{where}; choose another, or use get_or_spawn to get that actor",
            actor=name,
            node=self._node,
        )

    async def release(self, name: str, epoch: int) -> None:
        """See `NameClaims.release`."""
        ours = Compare(NAMES + name, "mod_revision", epoch)
        try:
            await self._store.transaction([ours], [Delete(ours.key)])
        except (trio.Cancelled, StoreError):
            self._give_back_later(ours)
            raise

    def _give_back_later(self, ours: Compare) -> None:
        self._strays[ours] = None
        self._strayed.set()

    async def find(self, name: str) -> Address | None:
        """The address of the actor that has `name` now."""
        entry = await self._store.get(NAMES + name)
        return self._address(name, entry) if entry is not None else None

    async def locate(self, name: str, gone: tuple[str, int] | None = None) -> Address:
        """Like `find`, but waits while a supervisor promises to restart it. Raises `ActorNotFoundError`.

        `gone`: an incarnation known to have ended; what is still written of it does not count.
        """
        return (await self.locate_at(name, gone))[0]

    async def locate_at(self, name: str, gone: tuple[str, int] | None = None) -> tuple[Address, int]:
        """Like `locate`, with the revision of the store at which that was so."""
        while True:
            result = await self._store.transaction([], [Get(NAMES + name), Get(SUPERVISED + name)])
            entry, promise = result.responses
            if isinstance(entry, Entry):
                address = self._address(name, entry)
                if (address.node, address.incarnation) != gone:
                    return address, result.revision
            if not isinstance(promise, Entry) or not await self.promises.stands(name, promise):
                why = await self.promises.last_end(name, promise if isinstance(promise, Entry) else None)
                given_up = f", and it is not restarted any more; its last end: {why}" if why else ""
                raise ActorNotFoundError(f"there is no actor called {name!r} in the cluster{given_up}", actor=name)
            with trio.move_on_after(LOOK_AGAIN):
                try:
                    await self._store.poll(NAMES + name, result.revision + 1)
                except StoreCompactedError:
                    # Much has happened meanwhile: what is there now tells.
                    continue

    async def all(self) -> list[Address]:
        """All named actors."""
        return [address for address, _ in await self.owners()]

    async def owners(self) -> list[tuple[Address, Owner]]:
        """All named actors, with what is written of them."""
        found = await self._store.range(NAMES)
        return [(self._address(entry.key.removeprefix(NAMES), entry), self.owner(entry.value)) for entry in found.entries]

    async def owned(self, names: Sequence[str]) -> dict[str, tuple[Address, str]]:
        """Of these names, those that actors have, with where they are and the supervisors that they were started for ("" for none)."""
        found: dict[str, tuple[Address, str]] = {}
        for start in range(0, len(names), MAX_OPERATIONS):
            part = names[start : start + MAX_OPERATIONS]
            result = await self._store.transaction([], [Get(NAMES + name) for name in part])
            for name, entry in zip(part, result.responses, strict=True):
                if isinstance(entry, Entry):
                    found[name] = self._address(name, entry), self.owner(entry.value).supervisor
        return found

    async def is_promised(self, name: str) -> bool:
        """True if a supervisor promises to start an actor of this name again."""
        promise = await self._store.get(SUPERVISED + name)
        return promise is not None and await self.promises.stands(name, promise)

    async def save(self, name: str, epoch: int, state: object, change: Change | None = None) -> None:
        """See `SavedStates.save`."""
        await self._states.save(name, epoch, self._encode(state, "state"), change)

    async def change_applied(self, name: str, epoch: int, change: Change) -> None:
        """See `SavedStates.change_applied`."""
        await self._states.change_applied(name, epoch, change)

    async def applied(self, name: str) -> Kept:
        """See `SavedStates.applied`."""
        return await self._states.applied(name)

    def encode_answer(self, answer: object) -> bytes:
        """See `SavedStates.encode_answer`."""
        return _as_one_piece(self._lasting, answer, "answer")

    def decode_answer(self, encoded: bytes) -> object:
        """See `SavedStates.decode_answer`."""
        return self._decode(encoded)

    async def saved(self, name: str) -> Any:
        """See `NameClaims.saved`."""
        found = await self._states.saved(name)
        return self._decode(found) if found is not None else None

    def owner(self, value: bytes) -> Owner:
        """What the value of a name says."""
        node, incarnation, class_path, _, supervisor, resources = cast("list[Any]", self._decode(value))
        return Owner(node, incarnation, class_path, supervisor, resources)

    def _address(self, name: str, entry: Entry) -> Address:
        owner = self.owner(entry.value)
        return Address(name, owner.node, owner.incarnation, entry.mod_revision, owner.class_path, True)

    def _encode(self, value: object, where: str = "") -> bytes:
        return _as_one_piece(self._codec, value, where)

    def _decode(self, data: bytes) -> object:
        count = data[0]
        if not count:
            return self._codec.decode(data[1:])
        sizes = [int.from_bytes(data[1 + 4 * i : 5 + 4 * i], "big") for i in range(count + 1)]
        place = 1 + 4 * (count + 1)
        encoded = data[place : place + sizes[-1]]
        place += sizes[-1]
        segments: list[bytes] = []
        for size in sizes[:-1]:
            segments.append(data[place : place + size])
            place += size
        return self._codec.decode(encoded, segments)


def _as_one_piece(codec: Codec, value: object, where: str) -> bytes:
    """In the store there is nothing beside the control part."""
    segments: list[Any] = []
    encoded = codec.encode(value, segments, where)
    if not segments:
        return b"\0" + encoded
    if any(len(segment) >= 1 << 32 for segment in segments):
        raise EncodeError("a value kept in the store may have 4 GiB at most")
    sizes = b"".join(len(segment).to_bytes(4, "big") for segment in segments)
    return b"%c%b%b%b%b" % (len(segments), sizes, len(encoded).to_bytes(4, "big"), encoded, b"".join(segments))
