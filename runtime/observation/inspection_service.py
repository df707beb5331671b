"""The service `@inspection` of every node: what its actors run and wait for, and the stacks of its
tasks and threads. `understudy inspect`, `stack`, `calls` and `why` ask it.
"""

from __future__ import annotations

from typing import Any

from actors.actor import Actor
from actors.method import method
from runtime.calls.endpoint import RpcEndpoint
from runtime.environment import Environment
from runtime.hosting.host import ActorHost
from runtime.isolation.actor_proxy import ActorProxy
from runtime.observation.open_calls import describe_calls
from runtime.observation.stacks import read_stacks

INSPECTION_SERVICE = "@inspection"


class InspectionService(Actor):
    """Tells what a node does at the moment. Every answer is bounded, and says what it leaves
    out.
    """

    def __init__(self, host: ActorHost, node: str, environment: Environment) -> None:
        self._host = host
        self._node = node
        self._environment = environment

    @method(concurrent=True, idempotent=True)
    async def calls(self) -> dict[str, Any]:
        """The calls that run or wait here; see `describe_calls`."""
        return describe_calls(self._host.cells.values(), self._node, self._environment.now())

    @method(concurrent=True, idempotent=True)
    async def stacks(self, actor: str | None = None) -> dict[str, Any]:
        """The stacks of the tasks and threads of this node, or of the tasks of one actor; see
        `read_stacks`.
        """
        return read_stacks(self._host.workers.running, self._environment.now(), actor)

    @method(concurrent=True, idempotent=True)
    async def actor(self, name: str) -> dict[str, Any] | None:
        """What there is to say of one actor; None if it is not here."""
        cell = self._host.cells.get(name)
        if cell is None or cell.system:
            return None
        now = self._environment.now()
        oldest = cell.mailbox[0] if cell.mailbox else None
        instance = cell.instance
        return {
            "name": name,
            "class": cell.address.class_path,
            "node": self._node,
            "incarnation": cell.address.incarnation,
            "epoch": cell.address.epoch,
            "registered": cell.address.registered,
            "supervisor": self._host.supervisors.get(name, ""),
            "started": cell.started,
            "paused": cell.paused,
            "served": cell.served,
            "waiting": cell.waiting,
            "mailbox_limit": cell.limit,
            "oldest_seconds": now - oldest.queued_at if oldest and oldest.queued_at else None,
            "pid": instance.pid if isinstance(instance, ActorProxy) else None,
            **describe_calls([cell], self._node, now),
        }


def inspection_of(endpoint: RpcEndpoint, node: str, incarnation: int) -> Any:
    """The inspection service of a node, to be called."""
    return endpoint.system_handle(InspectionService, INSPECTION_SERVICE, node, incarnation)
