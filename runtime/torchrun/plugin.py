"""The back-end `understudy` of torchrun, found by its entry point in the group `torchrun.handlers`.

torchrun --nnodes 1:3 --rdzv-backend understudy --rdzv-endpoint HOST:PORT --rdzv-id JOB script.py

There are two stores. The agents share the round's store in our rendezvous (`AgentStore`): no agent
serves it, so it survives each of them; an old round cannot write to it; and calls that wait in it
end when an agent is lost. Workers get a `TCPStore` of torch's own, served by the agent of rank 0, a
new one for each round: process groups need a store in C++ that answers in microseconds, and it need
not outlive the group, which ends with any of its members. It listens before other processes learn
its port, so no two jobs can use the same one. As it is new in each round, it makes no difference
how many restarts each agent has counted.

Only this module needs torch, and no other module imports it.
"""

# A plain install has no torch, and neither has the environment of the type checkers.
# pyright: reportMissingImports=false, reportUntypedBaseClass=false

from __future__ import annotations

import os
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from torch import distributed
from torch.distributed.elastic import rendezvous as torchs

from runtime.elastic.reaper import fence_seconds
from runtime.environment import SystemEnvironment
from runtime.links.interfaces import own_address
from runtime.rendezvous import parameters
from runtime.rendezvous.interface import KeyValueStore
from runtime.rendezvous.parameters import AgentSettings
from runtime.rendezvous.registry import create_handler
from runtime.torchrun.agent import Round, TorchAgent, parameters_of
from runtime.torchrun.threads import LoopEndedError, LoopThread

T = TypeVar("T")

STOP_SECONDS = 20.0
"""Seconds to wait for the loop's thread. Leaving bounds its own time, so this is for a machine that
is very slow.
"""


def get_handler() -> Callable[[Any], UnderstudyHandler]:
    """Return a function that makes a handler from torch's `RendezvousParameters`. Torch's registry
    calls this entry point.
    """
    return UnderstudyHandler


class UnderstudyHandler(torchs.RendezvousHandler):  # type: ignore[misc]
    """A `torch.distributed.elastic.rendezvous.RendezvousHandler` over our rendezvous. Its options
    are those of our back-ends, which docs/how-to/torch.md lists.

    Raises ValueError for parameters that cannot be met. It connects at its first call.
    """

    def __init__(self, parameters: Any) -> None:
        self._backend: str = parameters.backend
        self._run_id: str = parameters.run_id
        ours = parameters_of(
            parameters.endpoint,
            parameters.run_id,
            parameters.min_nodes,
            parameters.max_nodes,
            parameters.local_addr,
            parameters.config,
        )
        environment = SystemEnvironment()
        create_handler(ours, environment)
        settings = AgentSettings.of(ours, *ours.config)
        self._settings = settings
        self._agent = TorchAgent(
            lambda: create_handler(ours, environment),
            _serve,
            environment,
            parameters.local_addr or own_address(parameters.endpoint),
            settings.timeout.join,
            fence_seconds(settings.lease_seconds, settings.keep_alive_interval),
        )
        self._loop: LoopThread | None = None

    def get_backend(self) -> str:
        """The name of this back-end in torch's registry."""
        return self._backend

    def get_run_id(self) -> str:
        """The id of the job."""
        return self._run_id

    @property
    def use_agent_store(self) -> bool:
        """True: workers use the `TCPStore` of the agent of rank 0, and none of them serves one."""
        return True

    def next_rendezvous(self) -> Any:
        """Leave the round that this agent is in, if any, and return torch's `RendezvousInfo` of the
        next, once it is complete. Raises torch's rendezvous errors. An exception that a signal
        handler raises ends the wait.
        """
        with _translated():
            joined = self._call(self._agent.next_round)
        bootstrap = torchs.RendezvousStoreInfo(joined.address, joined.port)
        store = AgentStore(
            self._call, self._agent, joined, timedelta(seconds=self._settings.store_timeout)
        )
        return torchs.RendezvousInfo(store, joined.info.rank, joined.info.world_size, bootstrap)

    def is_closed(self) -> bool:
        """Return whether the rendezvous is closed for all agents, read from the store now. Raises
        torch's rendezvous errors.
        """
        with _translated():
            return self._call(self._agent.is_closed)

    def set_closed(self) -> None:
        """Close the rendezvous: no round follows. Raises torch's rendezvous errors."""
        with _translated():
            self._call(self._agent.set_closed)

    def num_nodes_waiting(self) -> int:
        """Return how many agents are a reason for another round: those that wait, and those of this
        round that were lost. It sends no request, so it may be called often.
        """
        with _translated():
            return self._call(self._agent.waiting) if self._loop is not None else 0

    def shutdown(self) -> bool:
        """Leave, and close the rendezvous for all agents; returns False if it could not be closed.
        If this agent ends because its rendezvous failed, it only leaves, and the others continue.
        """
        loop = self._loop
        if loop is None:
            return True
        try:
            return loop.call(self._agent.shut_down)
        except (parameters.RendezvousError, LoopEndedError):
            return False
        finally:
            loop.stop(STOP_SECONDS)

    def _call(self, function: Callable[[], Awaitable[T]]) -> T:
        if self._loop is None:
            self._loop = LoopThread(self._agent.run, "understudy rendezvous")
            self._loop.start()
            # An agent that ends by a signal does not call `shutdown`. It leaves nevertheless.
            weakref.finalize(self, _stop, self._loop, os.getpid())
        return self._loop.call(function)


class AgentStore(distributed.Store):  # type: ignore[misc]
    """The store of a round's agents, as a torch `Store`. Calls that wait raise `DistStoreError` at
    their time-out, and when an agent of the round is lost. All calls raise it once another round
    has begun, and `DistNetworkError` if the store cannot be reached.
    """

    def __init__(
        self,
        call: Callable[[Callable[[], Awaitable[Any]]], Any],
        agent: TorchAgent,
        round_: Round,
        timeout: timedelta,
    ) -> None:
        super().__init__()
        self._call = call
        self._agent = agent
        self._round = round_
        self.set_timeout(timeout)

    def clone(self) -> AgentStore:
        """Return another store with the same contents and a timeout of its own."""
        return AgentStore(self._call, self._agent, self._round, self.timeout)

    def set(self, key: str, value: str | bytes) -> None:
        """Set a key."""
        self._ask(lambda store: store.set(key, _bytes(value)))

    def get(self, key: str) -> bytes:
        """Wait for the value of a key, and return it."""
        return self._ask(lambda store: store.get(key, timeout=self._seconds()))

    def add(self, key: str, amount: int) -> int:
        """Add to a counter; returns the sum."""
        return self._ask(lambda store: store.add(key, amount))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a key if its value is `expected`, or if it has none and nothing is expected; returns
        its value afterwards.

        Returns `expected` for a key that has none when something was expected, as torch's stores
        do.
        """
        wanted = _bytes(expected)

        async def change(store: KeyValueStore) -> bytes | None:
            _, value = await store.compare_set(key, wanted or None, _bytes(desired))
            if value == wanted == b"":
                _, value = await store.compare_set(key, b"", _bytes(desired))
            return value

        found = self._ask(change)
        return wanted if found is None else found

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys exist."""
        self._ask(lambda store: store.wait(list(keys), timeout=self._seconds(timeout)))

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys exist now."""
        return self._ask(lambda store: store.check(list(keys)))

    def append(self, key: str, value: str | bytes) -> None:
        """Append to the value of a key."""
        self._ask(lambda store: store.append(key, _bytes(value)))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait until several keys exist, and return their values."""
        return self._ask(lambda store: store.multi_get(list(keys), timeout=self._seconds()))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Set several keys at once. Raises ValueError for more keys than one transaction has room
        for.
        """
        given = {key: _bytes(value) for key, value in zip(keys, values, strict=True)}
        self._ask(lambda store: store.multi_set(given))

    def delete_key(self, key: str) -> bool:
        """Remove a key; returns whether it existed."""
        return self._ask(lambda store: store.delete_key(key))

    def num_keys(self) -> int:
        """Return the number of keys."""
        return self._ask(lambda store: store.num_keys())

    def list_keys(self) -> list[str]:
        """Return all keys, in order."""
        return self._ask(lambda store: store.list_keys())

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        """Wait until `world_size` callers have arrived. It can be used again."""
        self._ask(lambda store: store.barrier(key, world_size, timeout=self._seconds(timeout)))

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Put a value at the end of a queue."""
        self._ask(lambda store: store.queue_push(key, _bytes(value)))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take the first value of a queue; wait for one if `block`. Raises torch's
        `QueueEmptyError` if there is none and `block` is False.
        """

        async def pop(store: KeyValueStore) -> bytes | None:
            if not block and not await store.queue_len(key):
                return None
            return await store.queue_pop(key, timeout=self._seconds())

        value = self._ask(pop)
        if value is None:
            raise distributed.QueueEmptyError(f"the queue {key!r} is empty")
        return value

    def queue_len(self, key: str) -> int:
        """Return how many values wait in a queue."""
        return self._ask(lambda store: store.queue_len(key))

    def has_extended_api(self) -> bool:
        """Return True: `append`, `multi_get` and `multi_set` exist."""
        return True

    def _ask(self, ask: Callable[[KeyValueStore], Awaitable[T]]) -> T:
        try:
            answer: T = self._call(lambda: self._agent.store_call(self._round, ask))
        except (parameters.RendezvousConnectionError, LoopEndedError) as error:
            raise distributed.DistNetworkError(str(error)) from error
        except parameters.RendezvousError as error:
            raise distributed.DistStoreError(str(error)) from error
        return answer

    def _seconds(self, timeout: timedelta | None = None) -> float:
        seconds: float = (self.timeout if timeout is None else timeout).total_seconds()
        return seconds


def _serve(address: str) -> Any:
    return distributed.TCPStore(address, 0, is_master=True, wait_for_workers=False)


def _stop(loop: LoopThread, pid: int) -> None:
    # A forked process has a copy of this object, but the loop's thread does not run there.
    if os.getpid() == pid:
        loop.stop(STOP_SECONDS)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


@contextmanager
def _translated() -> Iterator[None]:
    """Raise torch's errors in place of ours."""
    try:
        yield
    except parameters.RendezvousClosedError as error:
        raise torchs.RendezvousClosedError(str(error)) from error
    except parameters.RendezvousTimeoutError as error:
        raise torchs.RendezvousTimeoutError(str(error)) from error
    except parameters.RendezvousGracefulExitError as error:
        raise torchs.RendezvousGracefulExitError(str(error)) from error
    except (parameters.RendezvousConnectionError, LoopEndedError) as error:
        raise torchs.RendezvousConnectionError(str(error)) from error
    except parameters.RendezvousStateError as error:
        raise torchs.RendezvousStateError(str(error)) from error
    except parameters.RendezvousError as error:
        raise torchs.RendezvousError(str(error)) from error
