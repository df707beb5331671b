"""What supervisors need of their node, and what they know of each child."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import attrs
import trio

from actors.children import ChildSpec, ChildStatus
from actors.handle import Handle
from actors.method import Address
from actors.options import SpawnOptions
from actors.supervision import ChildView, ExitReason, Shutdown


class Operations(Protocol):
    """The cluster, as a supervisor's node reaches it."""

    async def start_actor(
        self, class_path: str, args: Sequence[object], kwargs: dict[str, object], options: SpawnOptions, supervisor: str
    ) -> Address:
        """Start an actor on the node that `options` name or that fits best. Raises `SpawnError` or `CallError`."""
        ...

    async def stop_address(self, address: Address, reason: ExitReason, shutdown: Shutdown) -> ExitReason | None:
        """Stop the actor at `address`, if it is still there; `shutdown` as in `ChildSpec`. Returns how it has ended, if anybody knows."""
        ...

    async def watch_address(self, address: Address) -> ExitReason:
        """Wait until the actor at `address` has ended, by itself or with its node."""
        ...

    async def living(self, supervisor: str, names: Sequence[str]) -> dict[str, Address]:
        """Of these names, those that have actors which were started for `supervisor`, on nodes that live."""
        ...

    async def is_promised(self, name: str) -> bool:
        """True if a supervisor, or a candidate, will start an actor of this name again."""
        ...

    async def promise(self, name: str, supervisor: Address, *, lasting: bool, added: ChildSpec | None) -> None:
        """See `runtime.membership.promises.Promises.give`."""
        ...

    async def begin(self, supervisor: Address, names: Sequence[str]) -> None:
        """See `runtime.membership.promises.Promises.begin`."""
        ...

    async def withdraw(self, supervisor: Address, names: Sequence[str], forget: Sequence[str] = (), *, last: bool = False) -> None:
        """See `runtime.membership.promises.Promises.withdraw`."""
        ...

    async def tell(self, ends: Mapping[str, str]) -> None:
        """See `runtime.membership.promises.Promises.tell`."""
        ...

    async def added(self, supervisor: Address) -> list[ChildSpec]:
        """The children that earlier incarnations of the supervisor were given while they ran."""
        ...

    async def members_changed(self, seconds: float) -> None:
        """Wait until the members have changed, or for so long: what actors take of the nodes may have."""
        ...

    def handle(self, address: Address) -> Handle:
        """A handle of the actor there."""
        ...


@attrs.define(eq=False)
class Child:
    """What the shell keeps of a child, beside what the machine does. `added`: while the supervisor ran, and not by its constructor."""

    spec: ChildSpec
    name: str
    added: bool = False
    address: Address | None = None
    adopted: Address | None = None
    """A living actor that is to be taken over instead of starting one."""
    promise: Literal["none", "in doubt", "given"] = "none"
    """What the store has of it; in doubt while that is being written, and after an attempt to write it has failed."""
    latest_epoch: int = 0
    started_at: float = 0.0
    last_failure: ExitReason | None = None
    """How it ended last, or failed to start, if that was a failure."""
    scope: trio.CancelScope | None = None
    """Of the task that starts and then watches it."""
    fails: bool = False
    """True if its latest start has failed: that is told once, and the next one in vain is no news."""

    def status(self, view: ChildView, now: float) -> ChildStatus:
        """As everybody may see it."""
        address = self.address
        return ChildStatus(
            id=self.spec.id,
            name=self.name,
            kind=self.spec.kind,
            restart=self.spec.restart,
            state=view.state,
            node=address.node if address is not None else None,
            epoch=address.epoch if address is not None else None,
            restarts=view.restarts,
            age=now - self.started_at if address is not None else None,
            last_exit=view.last_exit,
        )


def seconds_of(shutdown: Shutdown) -> float:
    """How long a child may take to stop."""
    return float("inf") if shutdown is None else 0.0 if shutdown == "kill" else float(shutdown)
