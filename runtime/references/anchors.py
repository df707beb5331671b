"""Anchors: what a node knows of one referenced value, shared by all `Reference`s to it there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import trio

from actors.errors import OwnerDiedError, ReferenceReleasedError
from actors.reference import Reference
from runtime.references.claims import Identity, ReferenceId
from runtime.references.values import Failure, Lent, Sized

if TYPE_CHECKING:
    from runtime.references.fetching import Fetching


class Anchor:
    """See the module. While it lives, this node holds the value; when the garbage collector takes it, that is noted in `dropped`.

    At the owner it has the value itself, so that values that only refer to each other, and to nothing outside, are collected together.
    """

    __slots__ = (
        "__weakref__",
        "_dropped",
        "attempt",
        "changed",
        "error",
        "failure",
        "fetching",
        "handed_on",
        "home",
        "identity",
        "is_done",
        "is_open",
        "kept",
        "lent",
        "made",
        "maker",
        "moving",
        "site",
        "version",
    )

    def __init__(
        self,
        identity: ReferenceId,
        home: Identity,
        version: int,
        fetching: Fetching,
        dropped: list[tuple[ReferenceId, int, int]],
        made: float,
    ) -> None:
        self.identity = identity
        self.home = home
        """Who has the value: node and incarnation."""
        self.version = version
        """Of this node's hold; see `holds`."""
        self.fetching = fetching
        """That of the node that knows this."""
        self._dropped = dropped
        self.made = made
        """When this node first heard of it, in seconds on its clock."""
        self.maker = ""
        """The method whose result it is, at the owner."""
        self.site = ""
        """Where in the program it was made, if that is traced."""
        self.is_done = False
        """True once it is known that there is an outcome, which may have to be fetched."""
        self.is_open = False
        """True until its maker has said that the call which makes it will not be made again: failures of attempts are not its outcome."""
        self.attempt: Failure | None = None
        """What the latest attempt has failed with, at the owner, while it is open."""
        self.handed_on = False
        """True once it was put into any message: from then on its value is looked for where that said."""
        self.kept: Sized | None = None
        """The value, at the owner."""
        self.lent: Lent | None = None
        """Elsewhere: where the value lies, if it can be read there."""
        self.failure: Failure | None = None
        """The error of the producing call, as it is known here."""
        self.error: Exception | None = None
        """Why the value cannot be had by this node, whatever others can."""
        self.changed: trio.Event | None = None
        """There while somebody waits for a change of any of this."""
        self.moving: trio.Lock | None = None
        """There while the value is being fetched: once is enough."""

    @property
    def owner(self) -> str:
        """See `actors.reference.Anchor.owner`."""
        return self.home[0]

    @property
    def is_settled(self) -> bool:
        """True if this node knows the outcome, or that it cannot get at it."""
        return self.kept is not None or self.failure is not None or self.error is not None

    def tell(self) -> None:
        """Wake those who wait for a change."""
        if self.changed is not None:
            self.changed.set()
            self.changed = None
        self.fetching.tell()

    def attempted(self, failure: Failure) -> None:
        """An attempt at the call that makes it has failed: that is its outcome if there will be no other."""
        self.attempt = failure
        if not self.is_open:
            self.close()

    def close(self, failure: Failure | None = None) -> None:
        """There will be no other attempt. If nothing has come of them, the outcome is `failure`, else what the last has failed with."""
        failure, self.attempt, self.is_open = failure or self.attempt, None, False
        if failure is not None and not self.is_settled:
            self.failure = failure
            self.tell()

    def lose(self, owner: Identity, *, owner_died: bool) -> None:
        """The value cannot be had any more: `owner` has ended with it, or does not have it any more."""
        maker, _, number = self.identity
        value = f"the value that {maker} made as number {number}"
        if owner_died:
            self.error = OwnerDiedError(f"{value} went down with its owner, node {owner[0]} (incarnation {owner[1]}); make it again")
        else:
            self.error = ReferenceReleasedError(
                f"{value} was freed by its owner, node {owner[0]}: whoever handed the reference on ended, or let go of it, before this "
                "node was registered as a holder"
            )

    async def wait_changed(self) -> None:
        """Wait until something is told. Raises `NotAMemberError` once this node has left."""
        if self.changed is None:
            self.changed = trio.Event()
        await self.changed.wait()
        self.fetching.lifetime.check()

    async def fetch(self) -> object:
        """See `Reference.fetch`."""
        return await self.fetching.fetch(self)

    def local_value(self) -> object:
        """See `Reference.local_value`."""
        return self.fetching.local_value(self)

    async def ready(self) -> bool:
        """See `Reference.ready`."""
        return bool(await self.fetching.wait_some([self], 0, None))

    async def wait_some(self, anchors: Sequence[Any], count: int, timeout: float | None) -> frozenset[int]:
        """See `actors.reference.Anchor.wait_some`."""
        return await self.fetching.wait_some(anchors, count, timeout)

    async def call(self, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """See `RemoteMethod.__call__`."""
        return await self.fetching.call(self, method, args, kwargs)

    async def call_and_keep(self, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Reference[object]:
        """See `RemoteMethod.remote`."""
        return await self.fetching.call_and_keep(self, method, args, kwargs)

    def __del__(self) -> None:
        # A garbage collector's call may come in the middle of anything.
        self._dropped.append((self.identity, self.version, self.kept.size if self.kept is not None else 0))
