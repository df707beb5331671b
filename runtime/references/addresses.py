"""What a reference looks like in a message: its identity, its owner, and who handed it on."""

from __future__ import annotations

import sys

from actors.errors import ProtocolError
from runtime.references.claims import Identity, ReferenceId
from runtime.references.holds import Sponsor
from runtime.references.values import Lent


class OnItsWay:
    """Lives as long as the message that a reference was put into may still be sent."""

    __slots__ = ("_landed", "_number")

    def __init__(self, number: int, landed: list[int]) -> None:
        self._number = number
        self._landed = landed

    def __del__(self) -> None:
        self._landed.append(self._number)


def parts(plain: object) -> tuple[ReferenceId, Identity, Sponsor | None, Lent | None]:
    """The parts of what `ReferenceTable.write` made. Only copied, there is no sponsor; `lent`: where the value is. Raises ProtocolError."""
    items = plain if isinstance(plain, list) else []
    lent = items.pop() if items and isinstance(items[-1], Lent) else None
    kinds = (str, int, int, str, int, str, int, int, int)
    if len(items) not in (5, 9) or any(type(item) is not kind for item, kind in zip(items, kinds, strict=False)):
        raise ProtocolError("a reference is a list of its identity and its owner, and of who handed it on")
    maker, incarnation, number, owner, owner_incarnation, *rest = items
    sponsor = Sponsor((rest[0], rest[1]), rest[2], rest[3]) if rest else None
    # Nodes are few and references many: their names are kept once.
    return (sys.intern(maker), incarnation, number), (sys.intern(owner), owner_incarnation), sponsor, lent
