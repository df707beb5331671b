"""References: values that stay with the node that made them, and can be named, waited for, fetched and worked with from anywhere.

The semantics are those of RRef in torch.distributed.rpc and of Ray's ObjectRef; who keeps count of whom is in `runtime.references`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

R = TypeVar("R")
T = TypeVar("T")


class Anchor(Protocol):
    """The runtime's side of all `Reference`s of one value on one node. The value is held for as long as it lives."""

    @property
    def identity(self) -> tuple[str, int, int]:
        """The node that made the reference, that node's incarnation, and a number."""
        ...

    @property
    def owner(self) -> str:
        """Name of the node that keeps the value."""
        ...

    def fetch(self) -> Coroutine[Any, Any, object]:
        """Bring the value here."""
        ...

    def local_value(self) -> object:
        """The value, if it is here."""
        ...

    def ready(self) -> Coroutine[Any, Any, bool]:
        """Whether there is an outcome."""
        ...

    def call(self, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Coroutine[Any, Any, object]:
        """Run a method of the value where it is."""
        ...

    def call_and_keep(self, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Coroutine[Any, Any, Reference[object]]:
        """Likewise, and leave the result there."""
        ...

    def wait_some(self, anchors: Sequence[Any], count: int, timeout: float | None) -> Coroutine[Any, Any, frozenset[int]]:
        """Wait until `count` of the anchors, all of this node, have outcomes, or for `timeout` seconds; returns the places of those that
        have in `anchors`.
        """
        ...


class Reference(Generic[R]):
    """Names a value that its owner node keeps for as long as anybody on a live node has a reference to it.

    It can be used before the value is there, and sent in messages like any value. References to the same value are equal. What is fetched
    is a copy: numpy arrays in it are read-only, because they may lie in memory that others read as well.
    """

    __slots__ = ("__weakref__", "anchor")

    def __init__(self, anchor: Anchor) -> None:
        self.anchor = anchor
        """The runtime's; nobody else's business."""

    @property
    def owner(self) -> str:
        """Name of the node that keeps the value. It changes when that node leaves and hands its values to another."""
        return self.anchor.owner

    @property
    def call(self) -> RemoteValue:
        """The value's own methods, run where it is: `await reference.call.mean()`; see `RemoteValue`."""
        return RemoteValue(self.anchor)

    async def fetch(self) -> R:
        """The value, copied here, once there is one. A second fetch on this node finds it here, as long as there is room for it.

        Raises what the producing call raised, `OwnerDiedError` when the value went down with its node, and `ReferenceReleasedError` when
        whoever handed the reference on ended before it was registered here.
        """
        return cast("R", await self.anchor.fetch())

    def local_value(self) -> R:
        """The value, on its owner only, and only if it is there. Raises `NotTheOwnerError`, `ReferenceNotReadyError`, or what the producing
        call raised.
        """
        return cast("R", self.anchor.local_value())

    async def ready(self) -> bool:
        """True if the outcome is there, value or error: `fetch` would not wait for it. Raises nothing for an owner that died: that is
        one.
        """
        return await self.anchor.ready()

    def as_value(self) -> R:
        """This reference, as type checkers should see it where a method takes the value: `await stage.scale(reference.as_value(), 2.0)`.

        A parameter whose annotation is no `Reference` gets the value: it is fetched where the method runs, before it starts.
        """
        return cast("R", self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and self.anchor.identity == cast("Reference[object]", other).anchor.identity

    def __hash__(self) -> int:
        return hash(self.anchor.identity)

    def __repr__(self) -> str:
        maker, incarnation, number = self.anchor.identity
        return f"<reference {maker}.{incarnation}.{number} owned by {self.owner}>"


class RemoteMethod:
    """One method of a referenced value."""

    __slots__ = ("_anchor", "_name")

    def __init__(self, anchor: Anchor, name: str) -> None:
        self._anchor = anchor
        self._name = name

    def __call__(self, *args: object, **kwargs: object) -> Awaitable[Any]:
        """Run it where the value is, and bring the result here."""
        return self._anchor.call(self._name, args, kwargs)

    def remote(self, *args: object, **kwargs: object) -> Awaitable[Reference[Any]]:
        """Run it where the value is, and leave the result there."""
        return self._anchor.call_and_keep(self._name, args, kwargs)


class RemoteValue:
    """The methods of a referenced value: `await reference.call.sum()`, or `await reference.call.sum.remote()` for a reference to the
    result.

    They run in a worker thread of the owner, on a copy: what they change in the value is lost. Callable are the public methods of classes
    marked with `@message`, those of Python's plain types, and those of numpy arrays that only compute; others raise `AttributeError`.
    """

    __slots__ = ("_anchor",)

    def __init__(self, anchor: Anchor) -> None:
        self._anchor = anchor

    def __getattr__(self, name: str) -> RemoteMethod:
        if name.startswith("_"):
            raise AttributeError(f"{name} is not public, and only public methods of a referenced value can be called")
        return RemoteMethod(self._anchor, name)


Split = tuple[list[Reference[T]], list[Reference[T]]]
"""Those that are done, and those that are not, each in the order given."""


async def wait_any(references: Iterable[Reference[T]], *, count: int = 1, timeout: float | None = None) -> Split[T]:
    """Wait until at least `count` of the references have outcomes, values or errors, and return (done, not done); all that have are done.

    After `timeout` seconds, or with fewer references than `count`, fewer are done; nothing is raised for that. All of them must be of one
    node, as they are outside simulations. Raises ValueError for a `count` below one, or a negative `timeout`.
    """
    if count < 1:
        raise ValueError(f"count is how many to wait for, at least 1, not {count}")
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout is a number of seconds, 0 or more, not {timeout}")
    given = list(references)
    if not given:
        return [], []
    anchors = [reference.anchor for reference in given]
    done = await anchors[0].wait_some(anchors, min(count, len(given)), timeout)
    return [each for index, each in enumerate(given) if index in done], [each for index, each in enumerate(given) if index not in done]


async def wait_all(references: Iterable[Reference[T]], *, timeout: float | None = None) -> Split[T]:
    """Wait until all references have outcomes; see `wait_any`."""
    given = list(references)
    return await wait_any(given, count=max(1, len(given)), timeout=timeout)
