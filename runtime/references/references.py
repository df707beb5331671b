"""The references of one identity, put together: its table, its own values, those of others, and what is said about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actors.reference import Reference
from runtime.environment import Environment
from runtime.references.claims import Identity
from runtime.references.correspondence import Correspondence
from runtime.references.fetching import Fetching
from runtime.references.owned import OwnValues
from runtime.references.packing import PARCEL_TAG, Packing
from runtime.references.table import ReferenceTable
from runtime.references.values import Failure, Kept
from runtime.wire.codec import Codec, Extension

REFERENCE_TAG = 64_101


class References:
    """See the module. `service(node, incarnation)` gives a handle of a node's `ReferenceService` that calls
    until there is an answer, `service_once` one that calls once; `rebuild` makes errors of failures."""

    def __init__(
        self,
        identity: Identity,
        service: Callable[[str, int], Any],
        service_once: Callable[[str, int], Any],
        environment: Environment,
        numbers: Callable[[], int],
        rebuild: Callable[[Failure], Exception],
    ) -> None:
        self.correspondence = Correspondence(identity, service, environment.now)
        self._fetching = Fetching(service_once, environment.now)
        self.table = ReferenceTable(identity, self._fetching, self.correspondence, numbers, environment.now)
        self._packing = Packing(self.table)
        self.own = OwnValues(self.table, self._packing, environment, rebuild)
        self.correspondence.table = self.table
        self._fetching.use(self.table, self.own, self._packing)

    @property
    def extensions(self) -> list[Extension]:
        """What the codec of this identity needs to know."""
        return [
            Extension(REFERENCE_TAG, Reference, self.table.write, self.table.read),
            Extension(PARCEL_TAG, Kept, self._packing.plain, self._packing.parcel),
        ]

    def use(self, codec: Codec) -> None:
        """That codec."""
        self._packing.codec = codec
