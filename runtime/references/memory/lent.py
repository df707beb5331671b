"""Reading the values of other processes of this host where they lie, without a copy.

The owner's arena is found as `/proc/PID/fd/N`, which the kernel opens for processes of the same user alone. It is mapped once, and stays
mapped: what costs is the first touch of a page, and the owner uses its memory again and again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections import OrderedDict
from typing import Final
from weakref import WeakValueDictionary

import attrs

from runtime.references.memory.mapping import ReadOnlyMapping
from runtime.references.memory.place import HEADER_SIZE, KEY_SIZE, Place

MOST_MAPPINGS: Final = 128
"""Arenas of others that stay mapped while nobody reads them: what a process that has died had in them is kept with them."""


class NotLendableError(Exception):
    """This memory cannot be read from here: fetch the value as a message. The text says why."""


@attrs.frozen(eq=False)
class _Kept:
    process: int
    mapping: ReadOnlyMapping


class MemoryOfOthers:
    """Lends views of the memory of other processes. At most `mappings` arenas stay mapped beside those that somebody has views of.

    For one thread; views may be let go in any.
    """

    def __init__(self, mappings: int = MOST_MAPPINGS) -> None:
        self._most = mappings
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        """By key, least recently used first."""
        self._mapped: WeakValueDictionary[bytes, ReadOnlyMapping] = WeakValueDictionary()
        """All that are there, those without a place in `_kept` because somebody reads them."""

    def lend(self, place: Place, guard: object) -> memoryview:
        """The bytes at a place, read-only; the view and all that is made from it keep `guard` alive.

        Whoever owns them may use the memory for something else as soon as nobody holds the value: the guard is that hold. It ends with the
        last view, in any thread, in the midst of any statement. The bytes stay readable if the owner is killed.

        Raises `NotLendableError` for a process that has ended, is another user's or not to be seen from here, and for memory that is not
        meant.
        """
        mapping = self._mapped.get(place.key)
        if mapping is None:
            mapping = self._map(place)
            self._mapped[place.key] = mapping
        if place.offset < HEADER_SIZE or place.size < 0 or place.offset + place.size > mapping.length:
            raise NotLendableError(f"{place} is not within memory {place.descriptor}, which has {mapping.length} bytes")
        self._kept.setdefault(place.key, _Kept(place.process, mapping))
        self._kept.move_to_end(place.key)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return mapping.view(place.offset, place.size, (guard, mapping))

    def forget(self, process: int) -> None:
        """Keep nothing mapped of a process that has ended. Views stay as they are."""
        for key in [key for key, kept in self._kept.items() if kept.process == process]:
            del self._kept[key]

    def close(self) -> None:
        """Keep nothing mapped. Views stay as they are."""
        self._kept.clear()

    def _map(self, place: Place) -> ReadOnlyMapping:
        path = f"/proc/{place.process}/fd/{place.descriptor}"
        try:
            # A descriptor that is something else by now is not even opened: it may be a device, and do something then.
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise NotLendableError(f"{path} is no memory any more: its owner has closed it")
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
            try:
                return _checked(descriptor, place)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            raise NotLendableError(f"{path} cannot be read: {error}") from error


def _checked(descriptor: int, place: Place) -> ReadOnlyMapping:
    """The mapping, if the arena is the one meant and can never become shorter, which would end its readers with SIGBUS."""
    if len(place.key) != KEY_SIZE or os.pread(descriptor, KEY_SIZE, 0) != place.key:
        raise NotLendableError(f"memory {place.descriptor} of process {place.process} is another one by now: its numbers have been reused")
    try:
        sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        sealed = 0
    if not sealed:
        raise NotLendableError(f"memory {place.descriptor} of process {place.process} may become shorter while it is read")
    return ReadOnlyMapping(descriptor, os.fstat(descriptor).st_size)
