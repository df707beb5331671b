"""The references of one identity, put together: its table, its own values, those of others, and what is said about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs
import trio

from actors.reference import Reference
from runtime.environment import Environment
from runtime.lifetime import Lifetime
from runtime.references.claims import Identity, ReferenceId
from runtime.references.correspondence import Correspondence
from runtime.references.fetching import Fetching
from runtime.references.leaving import Leaving
from runtime.references.memory.values import MEMORY_BYTES, Memory, Shelves
from runtime.references.overview import Overview
from runtime.references.owned import OwnValues
from runtime.references.packing import PARCEL_TAG, Packing
from runtime.references.table import ReferenceTable
from runtime.references.values import Failure, Kept
from runtime.wire.codec import Codec, Extension

REFERENCE_TAG = 64_101

TIDY_SECONDS = 1.0
"""How often it is looked what of the memory of values can be given back, while any is used."""


OnLeave = Literal["move", "lose"]
"""Whether the values of a node that leaves go to others, or end with it, of which all holders are told."""


@attrs.frozen
class MemoryOptions:
    """How a node keeps values. `limit` in bytes of memory; `directory` for those beyond it, by default TMPDIR or /var/tmp; `shared`: other
    processes of the host read them where they lie; `on_leave`: what becomes of them when the node leaves.
    """

    limit: int = MEMORY_BYTES
    directory: Path | None = None
    shared: bool = False
    on_leave: OnLeave = "move"


class References:
    """See the module. `service(node, incarnation)` gives a handle of a node's `ReferenceService` that calls until there is an answer,
    `service_once` one that calls once; `rebuild` makes errors of failures.
    """

    def __init__(
        self,
        identity: Identity,
        service: Callable[[str, int], Any],
        service_once: Callable[[str, int], Any],
        environment: Environment,
        numbers: Callable[[], int],
        rebuild: Callable[[Failure], Exception],
        options: MemoryOptions,
        lifetime: Lifetime,
    ) -> None:
        self._service = service
        self.correspondence = Correspondence(identity, service, environment)
        self.fetching = Fetching(service_once, environment, lifetime, shared=options.shared)
        self.table = ReferenceTable(identity, self.fetching, self.correspondence, numbers, environment.now)
        self._memory = Memory(environment, options.limit, shared=options.shared)
        self._packing = Packing(self.table, self._memory)
        shelves: Shelves[ReferenceId] = Shelves(environment, options.limit, options.directory)
        self.own = OwnValues(self.table, self._packing, shelves, environment, rebuild)
        self.overview = Overview(self.table, self.fetching, shelves, environment.now)
        self.correspondence.table = self.table
        self.table.values = self.own
        self.fetching.use(self.table, self.own, self._packing)

    async def hand_over(self, staying: Callable[[], Sequence[Identity]]) -> int:
        """This node leaves: see `Leaving.hand_over`."""
        return await Leaving(self.table, self.own, self._service).hand_over(staying)

    async def run(self) -> None:
        """Do what references need done, for as long as the node lives."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.correspondence.run)
            nursery.start_soon(self.own.spill)
            nursery.start_soon(self._tidy)

    def close(self) -> None:
        """Lend nothing, and read nothing of others, from now on. Who waits for a value learns that."""
        self.table.tell_all()
        self._memory.close()
        self.fetching.close()

    async def _tidy(self) -> None:
        while True:
            await self.own.shelves.wait_used()
            await trio.sleep(TIDY_SECONDS)
            self.own.shelves.tidy()
            self._memory.tidy()

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
