"""The journal of a running map: reads it from the store, says what is done, and writes what is."""

from __future__ import annotations

from collections.abc import Iterable

from runtime.membership.journals import Journals
from runtime.pools.held_items import MapItem
from runtime.pools.journal import ItemCodec, MapJournal
from runtime.wire.codec import Codec


class JournalDriver:
    """Reads and writes the journal of one map. `what`: the method that it is the journal of."""

    def __init__(self, journals: Journals, name: str, what: str, codec: Codec) -> None:
        self._journals = journals
        self._name = name
        self._what = what
        self._codec = ItemCodec(codec)
        self._machine = MapJournal(name)
        self._opening: tuple[int, int] | None = None

    async def open(self) -> None:
        """Read what earlier runs have done. Raises `JournalError` and what the store raises."""
        self._opening = await self._journals.open(self._name, self._what)
        count = 0
        while parts := await self._journals.parts(self._name, self._opening[1], count):
            count += len(parts)
            for part in parts:
                self._machine.on_part(part)

    def find(self, index: int, args: tuple[object, ...]) -> tuple[bytes, tuple[object] | None]:
        """The digest of an item of the source, and its result in a tuple if it is done.
        Raises EncodeError, DecodeError and `JournalMismatchError`.
        """
        digest = self._codec.digest(args)
        entry = self._machine.find(index, digest)
        return digest, None if entry is None else (self._codec.decode(entry),)

    def on_source_over(self, count: int) -> None:
        """The source has ended after `count` items. Raises `JournalMismatchError` if it had more
        before.
        """
        self._machine.on_source_over(count)

    def add(self, items: Iterable[MapItem]) -> None:
        """These are done."""
        for item in items:
            encoded, size = self._codec.encode(item.value)
            self._machine.on_done(item.index, item.digest, encoded, size)

    async def write(self) -> list[int]:
        """Write some of what is done; returns which items, none if nothing is left. Raises
        `JournalError` and what the store raises.
        """
        write = self._machine.next_write()
        if write is None:
            return []
        assert self._opening is not None
        await self._journals.write(
            self._name, self._opening, write.number, write.version, write.value
        )
        return self._machine.on_written(write)

    async def close(self) -> None:
        """Let other maps have the journal."""
        if self._opening is not None:
            await self._journals.release(self._name, self._opening[0])
