"""The states that actors save: under their names in the store, and fenced by their epochs.

A state that is larger than a store takes in one value is written in parts first, under keys that only this epoch writes, and then takes
effect as a whole with the entry that tells of them. What a writer leaves behind that dies in between is deleted by the next.

The calls that led to a state are kept beside it, each under a key of its own, so that a save writes what is new of them and no more.
"""

from __future__ import annotations

from actors.errors import StaleEpochError, StoreError
from runtime.hosting.applied import Change, Kept
from runtime.membership.applied_keys import changes_of, kept_in, prefix_of
from runtime.store.interface import Compare, Delete, Put, Store

STATES = "states/"
PARTS = "state-parts/"

PART_BYTES = 1_000_000
"""etcd takes 1.5 MiB in one request by default."""

WHOLE = b"\0"
IN_PARTS = b"\1"


class States:
    """The states in one store. `owner(name)`: the key whose modification is the epoch that may write."""

    def __init__(self, store: Store, owners: str) -> None:
        self._store = store
        self._owners = owners
        # What this node has written in parts: the first part of their keys, by name and epoch, and how many.
        self._written: dict[tuple[str, int], tuple[int, int]] = {}

    async def save(self, name: str, epoch: int, state: bytes, change: Change | None = None) -> None:
        """Keep `state`, and of calls what `change` says.

        Raises `StaleEpochError` if the name has another owner; then nothing has changed.
        """
        before = self._written.get((name, epoch))
        if len(state) <= PART_BYTES:
            await self._put(name, epoch, WHOLE + state, change)
            if before is not None:
                del self._written[name, epoch]
        else:
            number = before[0] + 1 if before is not None else 0
            parts = [state[start : start + PART_BYTES] for start in range(0, len(state), PART_BYTES)]
            if before is None:
                await self._sweep(name, epoch)
            for index, part in enumerate(parts):
                await self._store.put(_part(name, epoch, number, index), part)
            self._written[name, epoch] = (number, len(parts))
            await self._put(name, epoch, IN_PARTS + b"%d %d %d" % (epoch, number, len(parts)), change)
        if before is not None:
            await self._forget([_part(name, epoch, before[0], index) for index in range(before[1])])

    async def saved(self, name: str) -> bytes | None:
        """What was saved last, by whichever epoch."""
        while True:
            entry = await self._store.get(STATES + name)
            if entry is None:
                return None
            if entry.value[:1] == WHOLE:
                return entry.value[1:]
            epoch, number, count = map(int, entry.value[1:].split())
            parts = [await self._store.get(_part(name, epoch, number, index)) for index in range(count)]
            if all(parts):
                return b"".join(part.value for part in parts if part is not None)
            # Another state was saved meanwhile, and this one taken away.

    async def change_applied(self, name: str, epoch: int, change: Change) -> None:
        """Keep what `change` says of calls, and the state as it is. Raises `StaleEpochError` like `save`."""
        await self._write(name, epoch, changes_of(name, change))

    async def applied(self, name: str) -> Kept:
        """The calls that are kept, by whichever epoch."""
        return kept_in((await self._store.range(prefix_of(name))).entries, name)

    async def _put(self, name: str, epoch: int, value: bytes, change: Change | None = None) -> None:
        changes = changes_of(name, change) if change is not None else []
        await self._write(name, epoch, [Put(STATES + name, value), *changes])

    async def _write(self, name: str, epoch: int, operations: list[Put | Delete]) -> None:
        result = await self._store.transaction([Compare(self._owners + name, "mod_revision", epoch)], operations)
        if not result.succeeded:
            raise StaleEpochError(
                f"{name} (epoch {epoch}) no longer owns its name, so its state was not saved; a successor has taken over", actor=name
            )

    async def _sweep(self, name: str, epoch: int) -> None:
        """Delete what earlier epochs have left behind, and nothing that is in use."""
        head = await self._store.get(STATES + name)
        used = b"/".join(head.value[1:].split()[:2]).decode() if head is not None and head.value[:1] == IN_PARTS else ""
        prefix = f"{PARTS}{name}/"
        left: list[str] = []
        for entry in (await self._store.range(prefix)).entries:
            pieces = entry.key.removeprefix(prefix).split("/")
            # More pieces are those of an actor whose name begins with this one's.
            if len(pieces) == 3 and int(pieces[0]) < epoch and "/".join(pieces[:2]) != used:
                left.append(entry.key)
        await self._forget(left)

    async def _forget(self, keys: list[str]) -> None:
        for key in keys:
            try:
                await self._store.delete(key)
            except StoreError:
                # What matters is kept. The next epoch sweeps this up.
                return


def _part(name: str, epoch: int, number: int, index: int) -> str:
    return f"{PARTS}{name}/{epoch}/{number}/{index}"
