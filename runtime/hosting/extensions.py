"""What rooms above this one give to actors: each has a part for every actor, and is told of their ends."""

from __future__ import annotations

from typing import Any, Protocol

from actors.method import Address
from actors.supervision import ExitReason
from runtime.hosting.cell import Cell


class Extension(Protocol):
    """One of them: what actors watch, for example."""

    def of(self, cell: Cell) -> Any:
        """The part of one actor."""
        ...

    def ending(self, cell: Cell) -> None:
        """That actor takes no more mail. May be told twice."""
        ...

    def ended(self, address: Address, reason: ExitReason) -> None:
        """Nothing of it is left, and its name is given back. May be told twice."""
        ...


class Extensions:
    """Those of one host, by name; the node adds them before it starts anything."""

    def __init__(self) -> None:
        self._all: dict[str, Extension] = {}

    def add(self, name: str, extension: Extension) -> None:
        """Give this one to all actors."""
        self._all[name] = extension

    def of(self, name: str, cell: Cell) -> Any:
        """The part of one actor in one of them."""
        return self._all[name].of(cell)

    def ending(self, cell: Cell) -> None:
        """See `Extension.ending`."""
        for extension in self._all.values():
            extension.ending(cell)

    def ended(self, address: Address, reason: ExitReason) -> None:
        """See `Extension.ended`."""
        for extension in self._all.values():
            extension.ended(address, reason)
