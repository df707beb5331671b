"""The interface of a rendezvous for agents, and of the store that the members of a round share.

After torchelastic's `RendezvousHandler` and c10d's `Store`, for trio: calls that wait block a task,
and end with its cancel scope.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import attrs


class KeyValueStore(Protocol):
    """A store of one job, or of one round of it. Keys are texts, values bytes.

    `timeout`, in seconds, is that of one call; None means the store's own. A wait that times out
    raises `StoreTimeoutError`. An interface because handlers that other distributions bring (see
    `registry`) have stores of their own; `JobStore` is ours.
    """

    async def set(self, key: str, value: bytes) -> None:
        """Set a key."""
        ...

    async def get(self, key: str, *, timeout: float | None = None) -> bytes:
        """Wait for the value of a key, and return it."""
        ...

    async def peek(self, key: str) -> bytes | None:
        """Return the value of a key now, or None."""
        ...

    async def add(self, key: str, amount: int) -> int:
        """Add to a counter, which begins at 0. Returns the sum. Counters are stored as decimal
        digits.
        """
        ...

    async def compare_set(
        self, key: str, expected: bytes | None, value: bytes
    ) -> tuple[bool, bytes | None]:
        """Set a key if its value is `expected` (None: if there is none); returns whether that was
        done, and the value afterwards.
        """
        ...

    async def wait(self, keys: Sequence[str], *, timeout: float | None = None) -> None:
        """Wait until all keys exist."""
        ...

    async def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys exist now."""
        ...

    async def append(self, key: str, value: bytes) -> None:
        """Append to the value of a key."""
        ...

    async def multi_get(self, keys: Sequence[str], *, timeout: float | None = None) -> list[bytes]:
        """Wait until several keys exist, and return their values."""
        ...

    async def multi_set(self, values: Mapping[str, bytes]) -> None:
        """Set several keys at once: all of them, or none."""
        ...

    async def delete_key(self, key: str) -> bool:
        """Remove a key; returns whether it existed."""
        ...

    async def num_keys(self) -> int:
        """Return the number of keys."""
        ...

    async def list_keys(self) -> list[str]:
        """Return all keys, in order."""
        ...

    async def barrier(self, name: str, count: int, *, timeout: float | None = None) -> None:
        """Wait until `count` callers have arrived at the barrier of this name. It can be used again
        once all have left it.
        """
        ...

    async def queue_push(self, key: str, value: bytes) -> None:
        """Put a value at the end of a queue."""
        ...

    async def queue_pop(self, key: str, *, timeout: float | None = None) -> bytes:
        """Wait for the first value of a queue, and take it. Each value is taken once."""
        ...

    async def queue_len(self, key: str) -> int:
        """Return how many values wait in a queue."""
        ...

    def prefixed(self, prefix: str) -> KeyValueStore:
        """Return a view of the store in which every key begins with `prefix` and a slash."""
        ...


@attrs.frozen
class RendezvousStoreInfo:
    """The address at which the workers of a round find each other: the host of rank 0 and a port on
    it.
    """

    master_addr: str
    master_port: int

    MASTER_ADDR_KEY: ClassVar[str] = "MASTER_ADDR"
    MASTER_PORT_KEY: ClassVar[str] = "MASTER_PORT"

    @classmethod
    async def build(
        cls,
        rank: int,
        store: KeyValueStore,
        local_addr: str = "",
        server_port: int = 0,
        *,
        timeout: float | None = None,
    ) -> RendezvousStoreInfo:
        """Agree on the address in the store of a round. Rank 0 publishes its address and a port
        that it has bound; the others wait for it. Raises ValueError for rank 0 without an address
        or a port: neither is guessed. `timeout` is that of the store's calls; what waits in vain
        raises `StoreTimeoutError`.
        """
        if rank == 0:
            if not local_addr or not 0 < server_port < 65536:
                raise ValueError(
                    f"rank 0 says where it listens: an address and a port, not {local_addr!r} and "
                    f"{server_port}"
                )
            await store.multi_set(
                {cls.MASTER_ADDR_KEY: local_addr.encode(), cls.MASTER_PORT_KEY: b"%d" % server_port}
            )
            return cls(local_addr, server_port)
        address, port = await store.multi_get(
            [cls.MASTER_ADDR_KEY, cls.MASTER_PORT_KEY], timeout=timeout
        )
        return cls(address.decode(), int(port))


@attrs.frozen
class RendezvousInfo:
    """One round, as one of its participants sees it. `rank` and `world_size` count agents, not
    workers.
    """

    store: KeyValueStore
    rank: int
    world_size: int
    bootstrap_store_info: RendezvousStoreInfo | None = None
    round: int = 0
    participants: tuple[str, ...] = ()
    """Names of all agents, by rank."""
    job_store: KeyValueStore | None = None
    """The store of the whole job, which outlives the round, for data that all rounds share; None if
    the handler has none.
    """


@attrs.frozen
class RendezvousChange:
    """A change of a complete round. `left`, `joined`: names of agents; `waiting`: how many agents
    wait for the next round. An agent that finds its own name in `left` was cut off, or is about to
    be: another may get its place at any moment.
    """

    round: int
    left: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    waiting: int = 0
    closed: str = ""
    """Why the rendezvous was closed, if it was."""
    finished: bool = False
    """Whether it was closed because the job has finished."""


class RendezvousHandler(Protocol):
    """One agent's handler of a rendezvous: our `StoreHandler`, or one of another distribution (see
    `registry`).
    """

    def get_backend(self) -> str:
        """The name of the back-end that made it."""
        ...

    def get_run_id(self) -> str:
        """The id of the job."""
        ...

    @property
    def use_agent_store(self) -> bool:
        """True if workers may use the store of `RendezvousInfo` themselves."""
        ...

    async def next_rendezvous(self) -> RendezvousInfo:
        """Leave the round that this agent is in, if any, and take part in the next; returns when
        that is complete.

        Raises `RendezvousClosedError`, which is `RendezvousFinishedError` if the job has finished,
        `RendezvousTimeoutError`, `RendezvousConnectionError`, `RendezvousStateError`, and
        `RendezvousGracefulExitError` for a spare that is not needed any more.
        """
        ...

    async def is_closed(self) -> bool:
        """Return whether the rendezvous is closed: no round will follow."""
        ...

    async def set_closed(self, reason: str = "", *, finished: bool = False) -> None:
        """Close the rendezvous: no round follows. `finished`: the job has succeeded."""
        ...

    async def num_nodes_waiting(self) -> int:
        """Return how many agents wait to join the next round. Spares of a full round are not
        counted.
        """
        ...

    async def wait_change(self, after: int) -> RendezvousChange:
        """Wait for a change of round `after`: an agent of it has left, others wait, or the
        rendezvous is closed.
        """
        ...

    async def shutdown(self) -> bool:
        """Leave, and close the rendezvous for all; returns False if that could not be written."""
        ...
