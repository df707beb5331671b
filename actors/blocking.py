"""What callers hold at the blocking door (`runtime.blocking`): streams, references and values whose
methods block until the outcome is there, instead of being awaited.

These are the types that an actor's methods have when they are looked up on its class, which is how
a type checker sees a blocking handle; `actors.method.Method` says why.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol, Self, TypeVar

from actors.foreign_names import names_for_references
from actors.reference import Reference, ReferencedValue, ReferenceSource

T = TypeVar("T")
R = TypeVar("R")


class Waits(Protocol):
    """Runs something in the event loop of a door, and blocks this thread until it has ended."""

    def __call__(self, function: Callable[[], Awaitable[T]]) -> T:
        """Return what it returns, and raise what it raises."""
        ...


class BlockingStream(Iterator[T]):
    """The items of a generator method, one by one: `actors.Stream`, with iteration that blocks.

    The generator is closed where it runs as soon as you stop: leave `with`, call `close`, or drop
    the stream. Any thread may read, one at a time.
    """

    __slots__ = ()

    @abstractmethod
    def __next__(self) -> T:
        """Wait for the next item; raises what `Stream` does, and StopIteration at its end."""

    @abstractmethod
    def close(self) -> None:
        """Stop reading, and have the generator closed. Closing a stream that is over is no
        error.
        """

    def __enter__(self) -> Self:
        """The stream itself, closed when the block is left."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class BlockingReference(Reference[R]):
    """A `Reference` whose `fetch` and `ready` block. It is one to methods that take a reference."""

    __slots__ = ("_waits",)

    _foreign_names = names_for_references("")

    def __init__(self, state: ReferencedValue, source: ReferenceSource, waits: Waits) -> None:
        super().__init__(state, source)
        self._waits = waits

    # Not what the base class promises, and meant so: a reference is sent in messages by its type,
    # and code that waits for one uses it at its own door.
    def fetch(self) -> R:  # type: ignore[override]
        """The value, copied here, once there is one. Raises what `Reference.fetch` does."""
        return self._waits(super().fetch)

    def ready(self) -> bool:  # type: ignore[override]
        """True if the outcome is there, value or error: `fetch` would not wait for it."""
        return self._waits(super().ready)

    @property
    def call(self) -> BlockingValue:  # type: ignore[override]
        """The value's own methods, run where it is: `reference.call.mean()`."""
        return BlockingValue(self._state, self._source, self._waits)


class BlockingValueMethod:
    """One method of a referenced value."""

    __slots__ = ("_name", "_source", "_state", "_waits")

    def __init__(
        self, state: ReferencedValue, source: ReferenceSource, name: str, waits: Waits
    ) -> None:
        self._state = state
        self._source = source
        self._name = name
        self._waits = waits

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Run it where the value is, and bring the result here."""
        return self._waits(lambda: self._source.call(self._state, self._name, args, kwargs))

    def remote(self, *args: object, **kwargs: object) -> BlockingReference[Any]:
        """Run it where the value is, and leave the result there."""
        kept = self._waits(
            lambda: self._source.call_and_keep(self._state, self._name, args, kwargs)
        )
        return BlockingReference(kept._state, kept._source, self._waits)


class BlockingValue:
    """The methods of a referenced value, as `actors.reference.RemoteValue` has them."""

    __slots__ = ("_source", "_state", "_waits")

    def __init__(self, state: ReferencedValue, source: ReferenceSource, waits: Waits) -> None:
        self._state = state
        self._source = source
        self._waits = waits

    def __getattr__(self, name: str) -> BlockingValueMethod:
        if name.startswith("_"):
            raise AttributeError(
                f"{name} is not public, and only public methods of a referenced value can be called"
            )
        return BlockingValueMethod(self._state, self._source, name, self._waits)
