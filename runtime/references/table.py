"""The table of owned values: which values this node keeps, and which incarnations hold them.

No I/O and no clock. A value is kept while at least one holder is known; holders are node incarnations, counted, so that each drop ends one
hold. A holder that has died holds nothing.
"""

from __future__ import annotations

from collections import Counter

import attrs

from actors.errors import ReferenceReleasedError

Holder = tuple[str, int]


@attrs.define
class _Owned:
    value: object
    holders: Counter[Holder]


class ReferenceTable:
    """The values of one node."""

    def __init__(self) -> None:
        self._owned: dict[int, _Owned] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._owned)

    def keep(self, value: object, holder: Holder) -> int:
        """Keep a value on behalf of its first holder; returns its number."""
        self._next += 1
        self._owned[self._next] = _Owned(value, Counter({holder: 1}))
        return self._next

    def value(self, number: int) -> object:
        """The value. Raises `ReferenceReleasedError` if nobody holds it any more."""
        owned = self._owned.get(number)
        if owned is None:
            raise ReferenceReleasedError(f"value {number} was freed: its last holder let go of it, or never was one")
        return owned.value

    def drop(self, number: int, holder: Holder) -> None:
        """One hold of `holder` ends; dropping what is not held changes nothing."""
        owned = self._owned.get(number)
        if owned is not None and owned.holders[holder] > 0:
            owned.holders[holder] -= 1
            self._free_if_unheld(number, owned)

    def died(self, holder: Holder) -> None:
        """All holds of an incarnation end."""
        for number, owned in list(self._owned.items()):
            if owned.holders.pop(holder, 0):
                self._free_if_unheld(number, owned)

    def _free_if_unheld(self, number: int, owned: _Owned) -> None:
        if not any(owned.holders.values()):
            del self._owned[number]
