"""The journal of a map: which of its items are done, and their results as far as these are small.
No I/O: parts come in as bytes, and the next write goes out.

An item is known by its index and by a digest of it, so a source that has changed is found out. The
result of an item is given to the reader only after the store has it in the journal: what was given
is never run again.
"""

from __future__ import annotations

import hashlib
from typing import Any, cast

import attrs
import cbor2

from actors.errors import EncodeError, JournalError, JournalMismatchError
from actors.handle import Handle
from actors.reference import Reference
from runtime.wire.codec import Codec

RESULT_BYTES = 16 * 1024
"""An encoded result that is larger is not kept: the next run gets an `AlreadyDone` in its place."""

MOST_RESULT_BYTES = 64 * 1024 * 1024
"""Of all results of one journal. When they are reached, later ones are not kept."""

MOST_BYTES = 128 * 1024 * 1024
"""Of one journal, all in all. When they are reached, the map ends with a `JournalError`."""

PART_BYTES = 64 * 1024
"""Most bytes in one write, and in one key of the store; one entry more may follow."""

REWRITE_BELOW = 4 * 1024
"""A part that is smaller is written again with what comes next, so that slow maps do not leave a
key of the store for each item.
"""

DIGEST_BYTES = 8


@attrs.frozen
class AlreadyDone:
    """Stands for the result of item `index`, which an earlier run of a map has given: it was too
    large to be kept in the journal. `size`: its bytes, about.
    """

    index: int
    size: int


@attrs.frozen
class JournalEntry:
    """An item that is done. `result`: encoded, or None if it is not kept; `size`: its bytes."""

    index: int
    digest: bytes
    result: bytes | None
    size: int


@attrs.frozen
class PartWrite:
    """A part to be written. `version`: how often it was written before. `entries`: the new ones."""

    number: int
    version: int
    value: bytes
    entries: tuple[JournalEntry, ...]


class ItemCodec:
    """Digests of items, and results as bytes that outlive their node."""

    def __init__(self, codec: Codec) -> None:
        for kind, what in ((Reference, "reference"), (Handle, "handle")):
            codec = codec.refusing(
                kind,
                f"is a {what}, which is another one in the next run; give a map with a "
                "journal plain data",
            )
        self._codec = codec.reproducible()

    def digest(self, args: tuple[object, ...]) -> bytes:
        """Return a digest, which is the same for the same arguments in every process. Raises
        EncodeError.
        """
        segments: list[Any] = []
        encoded = self._codec.encode_arguments(args, {}, segments)
        found = hashlib.blake2b(encoded, digest_size=DIGEST_BYTES)
        for segment in segments:
            found.update(segment)
        return found.digest()

    def encode(self, value: object) -> tuple[bytes | None, int]:
        """A result as it is kept, or None if it is too large or cannot be kept; and its size."""
        segments: list[Any] = []
        try:
            encoded = self._codec.encode(value, segments)
        except EncodeError:
            return None, 0
        size = len(encoded) + sum(map(len, segments))
        if size > RESULT_BYTES:
            return None, size
        return cbor2.dumps([encoded, *map(bytes, segments)]), size

    def decode(self, entry: JournalEntry) -> object:
        """The result of an item that is done, or what stands for it. Raises DecodeError."""
        if entry.result is None:
            return AlreadyDone(entry.index, entry.size)
        encoded, *segments = cast("list[bytes]", cbor2.loads(entry.result))
        return self._codec.decode_stored(encoded, [bytearray(segment) for segment in segments])


class MapJournal:
    """One journal, as its driver knows it. See the module."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._known: dict[int, JournalEntry] = {}
        """The items that earlier runs have done and that this run has not looked up yet."""
        self._part = 0
        """The number of the part that is written next."""
        self._version = 0
        self._value: list[JournalEntry] = []
        """The entries that are in that part already."""
        self._value_bytes = 0
        self._bytes = 0
        self._result_bytes = 0
        self._queue: list[JournalEntry] = []
        self._writing: PartWrite | None = None

    def on_part(self, part: bytes) -> None:
        """Read the next of the parts that the store has. Raises `JournalError` for bytes that are
        no part of a journal.
        """
        try:
            for index, digest, result, size in cbor2.loads(part):
                self._known[int(index)] = JournalEntry(int(index), digest, result, int(size))
                self._result_bytes += len(result) if result is not None else 0
        except Exception as error:
            raise JournalError(
                f"part {self._part} of journal {self.name!r} cannot be read: {error}"
            ) from error
        self._part += 1
        self._bytes += len(part)

    @property
    def known(self) -> int:
        """How many items of earlier runs have not been looked up yet."""
        return len(self._known)

    def find(self, index: int, digest: bytes) -> JournalEntry | None:
        """Return the entry of an item; None if it is not done. Raises `JournalMismatchError` if
        another item has been done at its place.
        """
        entry = self._known.pop(index, None)
        if entry is not None and entry.digest != digest:
            raise JournalMismatchError(
                f"item {index} is not the one that journal {self.name!r} has as done: the source "
                "has changed since; use another name for another job, or remove the journal with "
                f"`await pool.remove_journal({self.name!r})`"
            )
        return entry

    def on_source_over(self, count: int) -> None:
        """The source has ended after `count` items. Raises `JournalMismatchError` if items are done
        that it does not have.
        """
        if self._known:
            raise JournalMismatchError(
                f"the source has ended after {count} items, but journal {self.name!r} has item "
                f"{max(self._known)} as done: the source has changed since; use another name for "
                "another job, or remove the journal with "
                f"`await pool.remove_journal({self.name!r})`"
            )

    def on_done(self, index: int, digest: bytes, result: bytes | None, size: int) -> None:
        """An item is done, and is to be written."""
        if result is not None and self._result_bytes + len(result) > MOST_RESULT_BYTES:
            result = None
        self._result_bytes += len(result) if result is not None else 0
        self._queue.append(JournalEntry(index, digest, result, size))

    def next_write(self) -> PartWrite | None:
        """Return the next write; None while there is nothing, or a write has not ended. Raises
        `JournalError` when the journal is full.
        """
        if self._writing is not None or not self._queue:
            return None
        if self._bytes >= MOST_BYTES:
            raise JournalError(
                f"journal {self.name!r} is full: it has {self._bytes} bytes; start another one for "
                "the rest of the items"
            )
        entries: list[JournalEntry] = []
        weight = self._value_bytes
        for entry in self._queue:
            if weight >= PART_BYTES:
                break
            entries.append(entry)
            weight += _weight(entry)
        assert entries, "a part that is written again has room for another entry"
        value = cbor2.dumps([attrs.astuple(entry) for entry in (*self._value, *entries)])
        self._writing = PartWrite(self._part, self._version, value, tuple(entries))
        return self._writing

    def on_written(self, write: PartWrite) -> list[int]:
        """The store has it; returns the indices of the items that are known as done from now on."""
        assert write is self._writing, "one write at a time"
        assert (write.number, write.version) == (self._part, self._version)
        self._writing = None
        del self._queue[: len(write.entries)]
        self._bytes += sum(map(_weight, write.entries))
        if len(write.value) < REWRITE_BELOW:
            self._value += write.entries
            self._value_bytes = len(write.value)
            self._version += 1
        else:
            self._value = []
            self._value_bytes = 0
            self._part += 1
            self._version = 0
        return [entry.index for entry in write.entries]


def count_items(part: bytes) -> int:
    """How many items a part of a journal names. Raises `JournalError` for what is no part."""
    try:
        entries = cbor2.loads(part)
    except Exception as error:
        raise JournalError(f"a part of a journal cannot be read: {error}") from error
    if not isinstance(entries, list):
        raise JournalError("a part of a journal is not a list of items")
    return len(entries)


def _weight(entry: JournalEntry) -> int:
    return 24 + len(entry.result or b"")
