"""The registration of a process that is no member: it has no record and no lease in the store."""

from __future__ import annotations

import trio

from runtime.environment import Environment
from runtime.hosting.host import LeasedNames
from runtime.links.transports import Network
from runtime.membership.members import NodeRecord, Registration
from runtime.store.interface import Store


class ClientRegistration(Registration):
    """Stands in for a `Registration` where a node has joined as a client. Writes nothing, so the
    node cannot lose its place either.
    """

    def __init__(self, store: Store, environment: Environment, record: NodeRecord) -> None:
        super().__init__(store, environment, record)
        assert not record.lease, "no lease ties anything to a client"

    async def enter(self, network: Network) -> int:
        """See `Registration.enter`. A client has no record."""
        raise AssertionError("a client is not entered into the store")

    async def set_state(self, state: str) -> int:
        """See `Registration.set_state`. Keeps the state to itself."""
        await trio.lowlevel.checkpoint()
        return 0

    async def keep(self, names: LeasedNames) -> None:
        """See `Registration.keep`. There is nothing to renew."""
        await trio.sleep_forever()

    async def leave(self) -> None:
        """See `Registration.leave`. The end of its connections tells the nodes."""
        await trio.lowlevel.checkpoint()
