"""A rendezvous for an agent that has its job to itself: no store, no network, no other agents. What `--standalone` uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import trio

from runtime.rendezvous.errors import RendezvousClosedError, StoreTimeoutError
from runtime.rendezvous.interface import KeyValueStore, RendezvousChange, RendezvousInfo

T = TypeVar("T")
DEFAULT_SECONDS = 300.0


class _Contents:
    """Keys and values, and who waits for them."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.queues: dict[str, list[bytes]] = {}
        self.arrived: dict[str, int] = {}
        self.changed = trio.Event()

    def touch(self) -> None:
        """Let those who wait look again."""
        self.changed.set()
        self.changed = trio.Event()


class MemoryStore:
    """A `KeyValueStore` in this process's memory, for the agents of one event loop; see there for what the methods do."""

    def __init__(self, contents: _Contents | None = None, prefix: str = "") -> None:
        self._contents = contents if contents is not None else _Contents()
        self._prefix = prefix

    def prefixed(self, prefix: str) -> KeyValueStore:
        """See `KeyValueStore`."""
        return MemoryStore(self._contents, f"{self._prefix}{prefix}/")

    async def set(self, key: str, value: bytes) -> None:
        """See `KeyValueStore`."""
        await self.multi_set({key: value})

    async def get(self, key: str, *, timeout: float | None = None) -> bytes:
        """See `KeyValueStore`."""
        return (await self.multi_get([key], timeout=timeout))[0]

    async def peek(self, key: str) -> bytes | None:
        """See `KeyValueStore`."""
        await trio.lowlevel.checkpoint()
        return self._contents.values.get(self._prefix + key)

    async def add(self, key: str, amount: int) -> int:
        """See `KeyValueStore`."""
        total = int(await self.peek(key) or b"0") + amount
        self._put(key, b"%d" % total)
        return total

    async def compare_set(self, key: str, expected: bytes | None, value: bytes) -> tuple[bool, bytes | None]:
        """See `KeyValueStore`."""
        now = await self.peek(key)
        if now != expected:
            return False, now
        self._put(key, value)
        return True, value

    async def wait(self, keys: Sequence[str], *, timeout: float | None = None) -> None:
        """See `KeyValueStore`."""
        await self._until(lambda: True if self._has(keys) else None, ", ".join(keys), timeout)

    async def check(self, keys: Sequence[str]) -> bool:
        """See `KeyValueStore`."""
        await trio.lowlevel.checkpoint()
        return self._has(keys)

    async def append(self, key: str, value: bytes) -> None:
        """See `KeyValueStore`."""
        self._put(key, (await self.peek(key) or b"") + value)

    async def multi_get(self, keys: Sequence[str], *, timeout: float | None = None) -> list[bytes]:
        """See `KeyValueStore`."""
        await self.wait(keys, timeout=timeout)
        return [self._contents.values[self._prefix + key] for key in keys]

    async def multi_set(self, values: Mapping[str, bytes]) -> None:
        """See `KeyValueStore`."""
        await trio.lowlevel.checkpoint()
        for key, value in values.items():
            self._put(key, value)

    async def delete_key(self, key: str) -> bool:
        """See `KeyValueStore`."""
        await trio.lowlevel.checkpoint()
        return self._contents.values.pop(self._prefix + key, None) is not None

    async def num_keys(self) -> int:
        """See `KeyValueStore`."""
        return len(await self.list_keys())

    async def list_keys(self) -> list[str]:
        """See `KeyValueStore`."""
        await trio.lowlevel.checkpoint()
        return sorted(key.removeprefix(self._prefix) for key in self._contents.values if key.startswith(self._prefix))

    async def barrier(self, name: str, count: int, *, timeout: float | None = None) -> None:
        """See `KeyValueStore`."""
        key = self._prefix + name
        mine = self._contents.arrived[key] = self._contents.arrived.get(key, 0) + 1
        self._contents.touch()
        whole = -(-mine // count) * count
        await self._until(lambda: True if self._contents.arrived[key] >= whole else None, f"barrier {name}", timeout)

    async def queue_push(self, key: str, value: bytes) -> None:
        """See `KeyValueStore`."""
        await trio.lowlevel.checkpoint()
        self._contents.queues.setdefault(self._prefix + key, []).append(value)
        self._contents.touch()

    async def queue_pop(self, key: str, *, timeout: float | None = None) -> bytes:
        """See `KeyValueStore`."""

        def first() -> bytes | None:
            queue = self._contents.queues.get(self._prefix + key)
            return queue.pop(0) if queue else None

        return await self._until(first, f"queue {key}", timeout)

    async def queue_len(self, key: str) -> int:
        """See `KeyValueStore`."""
        await trio.lowlevel.checkpoint()
        return len(self._contents.queues.get(self._prefix + key, ()))

    def _put(self, key: str, value: bytes) -> None:
        self._contents.values[self._prefix + key] = value
        self._contents.touch()

    def _has(self, keys: Sequence[str]) -> bool:
        return all(self._prefix + key in self._contents.values for key in keys)

    async def _until(self, look: Callable[[], T | None], what: str, timeout: float | None) -> T:
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(DEFAULT_SECONDS if timeout is None else timeout):
            while True:
                found = look()
                if found is not None:
                    return found
                await self._contents.changed.wait()
        raise StoreTimeoutError(f"{what} did not come in time")


class Alone:
    """The `RendezvousHandler` of an agent without others: each round begins at once, and nothing happens to it."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._round = -1
        self._store = MemoryStore()
        self._closed = ""

    def get_backend(self) -> str:
        """See `RendezvousHandler`."""
        return "alone"

    def get_run_id(self) -> str:
        """See `RendezvousHandler`."""
        return self._run_id

    @property
    def use_agent_store(self) -> bool:
        """See `RendezvousHandler`."""
        return False

    async def next_rendezvous(self) -> RendezvousInfo:
        """See `RendezvousHandler`."""
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise RendezvousClosedError(f"the rendezvous is closed: {self._closed}")
        self._round += 1
        return RendezvousInfo(
            self._store.prefixed(f"rounds/{self._round}"),
            0,
            1,
            round=self._round,
            participants=("alone",),
            job_store=self._store.prefixed("job"),
        )

    async def is_closed(self) -> bool:
        """See `RendezvousHandler`."""
        await trio.lowlevel.checkpoint()
        return bool(self._closed)

    async def set_closed(self, reason: str = "", *, finished: bool = False) -> None:
        """See `RendezvousHandler`."""
        await trio.lowlevel.checkpoint()
        self._closed = self._closed or reason or "no reason was given"

    async def num_nodes_waiting(self) -> int:
        """See `RendezvousHandler`."""
        await trio.lowlevel.checkpoint()
        return 0

    async def wait_change(self, after: int) -> RendezvousChange:
        """See `RendezvousHandler`."""
        await trio.sleep_forever()

    async def shutdown(self) -> bool:
        """See `RendezvousHandler`."""
        await self.set_closed("it was shut down")
        return True
