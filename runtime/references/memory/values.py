"""The memory of the values of one node: memory that other processes can read, plain memory, and
disk. This is the trio shell around the other modules of the room.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

import attrs
import trio

from actors.errors import ReferenceMemoryError
from actors.own_logger import own_logger
from runtime.environment import Environment, Process
from runtime.references.memory.spill import WORTH_A_FILE, MemoryBudget, Spill, Spilled
from runtime.shared_memory.pool import Block, MemoryPool, SharedMemoryLocation
from runtime.wire.frames import Buffer

K = TypeVar("K", bound=Hashable)

MEMORY_BYTES: Final = 1024 * 1024 * 1024
"""The default limit, in bytes, of the memory for the values of a node."""

SHARED_SIZE: Final = 64 * 1024
"""Bytes. Smaller segments are not put into shared memory: sending them is as fast."""


logger = own_logger("understudy.references")


@attrs.frozen(eq=False)
class Segment:
    """A part of a value, in memory that never changes. `block`: the shared block that it is in;
    None for plain memory.
    """

    buffer: Buffer
    block: Block | None = None

    @property
    def place(self) -> SharedMemoryLocation | None:
        """The place where other processes can read it; None for plain memory."""
        return self.block.place if self.block is not None else None


class Memory:
    """Puts the segments of values into memory. `shared`: whether other processes of this host may
    read them.
    """

    def __init__(
        self, environment: Environment, limit: int = MEMORY_BYTES, *, shared: bool = True
    ) -> None:
        self._pool = MemoryPool(environment, limit) if shared else None

    def hold(self, segments: Sequence[Buffer]) -> tuple[Segment, ...]:
        """Return a segment with the same bytes that never changes."""
        return tuple(map(self._held, segments))

    def check_invariants(self) -> None:
        """Assert the invariants of the shared memory: for tests and simulations."""
        if self._pool is not None:
            self._pool.check_invariants()

    def tidy(self) -> None:
        """Collect the blocks that nothing reads any more."""
        if self._pool is not None:
            self._pool.tidy()

    def close(self) -> None:
        """Lend no more memory."""
        if self._pool is not None:
            self._pool.close()

    def _held(self, segment: Buffer) -> Segment:
        size = segment.nbytes if isinstance(segment, memoryview) else len(segment)
        block = self._pool.take(size) if self._pool is not None and size >= SHARED_SIZE else None
        if block is None:
            return Segment(segment if isinstance(segment, bytes) else bytes(segment))
        assert block.memory.nbytes == size, "a block is as large as was asked for"
        block.memory[:] = segment.cast("B") if isinstance(segment, memoryview) else segment
        return Segment(block.lend(), block)


class ValueStore(Generic[K]):
    """Keeps the values of a node within a memory limit. The least recently used values are written
    to disk, except those that other processes read in memory.
    """

    def __init__(
        self, environment: Environment, limit: int = MEMORY_BYTES, directory: Path | None = None
    ) -> None:
        self._environment = environment
        self.limit = limit
        """The limit, in bytes of memory."""
        self._small = 0
        """Bytes of the values that are too small for a file. They are many, so only their sum is
        kept.
        """
        self._budget: MemoryBudget[K] = MemoryBudget(limit)
        self._spill = Spill(environment, directory)
        self._changed = trio.Event()
        self._used: trio.Event | None = None
        self._readers: dict[K, dict[Hashable, Process]] = {}
        self._left: list[tuple[Process, object]] = []
        self.broken = ""
        """Why nothing can be written to disk at the moment; empty if it can."""

    @property
    def in_memory(self) -> int:
        """Bytes of values in memory."""
        return self._budget.in_memory + self._small

    @property
    def on_disk(self) -> int:
        """Bytes of values on disk."""
        return self._spill.on_disk

    @property
    def spilled(self) -> int:
        """Bytes that were written to disk since the node was opened."""
        return self._spill.written

    def add(self, key: K, size: int) -> None:
        """Record that a value is in memory."""
        if size < WORTH_A_FILE:
            self._count_small(size)
        else:
            self._budget.add(key, size)
        if self._used is not None:
            # One event for both kinds: memory that may be given back, and memory that is in use.
            self._used.set()
            self._used = None
        if self.in_memory > self.limit:
            self._changed.set()

    def on_used(self, key: K) -> None:
        """Record that the value was used, which makes it the most recently used one."""
        self._budget.on_used(key)

    def on_shared(self, key: K, reader: Hashable, process: Process) -> None:
        """Record that a process of this host reads the value in memory. It must stay there."""
        self._budget.pin(key)
        self._readers.setdefault(key, {})[reader] = process

    def remove(self, key: K, size: int) -> None:
        """Record that a value of `size` bytes is no longer held."""
        if size < WORTH_A_FILE:
            self._count_small(-size)
        self._budget.remove(key)
        self._readers.pop(key, None)

    def on_reader_ended(self, reader: Hashable, key: K, value: object) -> None:
        """Record that a node which reads values in place has lost its lease, and with it its holds.

        If its process was only stopped, it may continue to read when it goes on. So `value` is
        kept, and its memory is not reused, until that process has certainly ended.
        """
        process = self._readers.get(key, {}).pop(reader, None)
        if process is not None and not self._environment.has_ended(process):
            self._left.append((process, value))

    def tidy(self) -> None:
        """Check which of these processes have ended."""
        if self._left:
            self._left = [
                (process, value)
                for process, value in self._left
                if not self._environment.has_ended(process)
            ]

    def check_invariants(self) -> None:
        """Assert the invariants of the budget and of the shared memory. Looks at every value that
        is large: for tests and simulations.
        """
        self._budget.check_invariants()
        assert self._budget.limit == self.limit - self._small, "small values narrow the budget"
        assert all(self._budget.is_pinned(key) for key in self._readers), "what is read stays"

    async def wait_used(self) -> None:
        """Wait until there is a value, or memory that a process may still read."""
        if not self.in_memory and not self._left:
            # The manager's task alone waits here: the event is replaced by its only waiter.
            self._used = trio.Event()
            await self._used.wait()

    async def room(self) -> None:
        """Wait until the values take less than the limit. Raises ReferenceMemoryError if nothing
        more can be written to disk.
        """
        # Without victims waiting is useless: all that is left is small, or lent to other processes.
        while self.in_memory > self.limit and self._budget.victims():
            if self.broken:
                raise ReferenceMemoryError(
                    f"the values of this node take {self.in_memory} bytes of memory and may take "
                    f"{self.limit}, and none can be written to {self._spill.directory}: "
                    f"{self.broken}; release references, or raise reference_memory"
                )
            self._changed.set()
            await trio.sleep(0.001)

    async def wait_full(self) -> list[K]:
        """Wait until the values exceed the limit. Returns those to write to disk."""
        while True:
            await self._changed.wait()
            # Renewed before the look: a value that is added after it wakes the next turn.
            self._changed = trio.Event()
            victims = self._budget.victims()
            if victims:
                return victims

    async def disk_rested(self) -> None:
        """Wait before the next attempt to write to a disk that has failed. Keeps no reference to
        the value meanwhile, so that it can be freed.
        """
        await trio.sleep(self._environment.timings.disk_retry)
        self.broken = ""
        self._changed.set()

    def _count_small(self, size: int) -> None:
        self._small += size
        assert self._small >= 0, "what is removed was added"
        self._budget.limit = self.limit - self._small

    async def write(self, key: K, segments: Sequence[Buffer]) -> Spilled | None:
        """Write a value to disk. Returns None if the disk fails: `broken` then says why, and the
        caller waits for `disk_rested`.
        """
        spilled = await self._spill.write(segments)
        if isinstance(spilled, OSError):
            logger.warning(
                "values of this node cannot be written to %s: %s; they stay in memory",
                self._spill.directory,
                spilled,
            )
            self.broken = str(spilled)
            return None
        if key in self._readers:
            # During the write the value was lent to a process that reads it in memory, so it must
            # stay there.
            return None
        self._budget.remove(key)
        return spilled
