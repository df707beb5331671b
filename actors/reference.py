"""References: values that stay with the node that made them, and can be named and fetched from elsewhere."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Generic, Protocol, TypeVar, cast

import attrs

from actors.messages import message

R = TypeVar("R")


@message
@attrs.frozen
class ReferenceAddress:
    """Which value, and which incarnation of which node owns it. Raises TypeError for fields of other types: peers send these."""

    owner: str = attrs.field(validator=attrs.validators.instance_of(str))
    incarnation: int = attrs.field(validator=attrs.validators.instance_of(int))
    number: int = attrs.field(validator=attrs.validators.instance_of(int))


class ReferenceHolder(Protocol):
    """The runtime's side: fetches values and counts holds."""

    def fetch(self, address: ReferenceAddress) -> Coroutine[Any, Any, object]:
        """Bring the value here."""
        ...

    def dropped(self, address: ReferenceAddress) -> None:
        """A `Reference` was garbage collected; may be called at any time, from any thread's collector run."""
        ...


class Reference(Generic[R]):
    """Names a value that its owner node keeps while this object lives.

    `await reference.fetch()` brings a copy. Raises what the producing call raised, or `OwnerDiedError` when the value went down with
    its node.
    """

    __slots__ = ("__weakref__", "_holder", "address")

    def __init__(self, holder: ReferenceHolder, address: ReferenceAddress) -> None:
        self._holder = holder
        self.address = address

    @property
    def owner(self) -> str:
        """Name of the node that keeps the value."""
        return self.address.owner

    async def fetch(self) -> R:
        """The value, copied here."""
        return cast("R", await self._holder.fetch(self.address))

    def __del__(self) -> None:
        self._holder.dropped(self.address)

    def __repr__(self) -> str:
        return f"<reference {self.address.number} owned by {self.address.owner}>"
