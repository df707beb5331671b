"""Isolation: actors that run in processes of their own.

The node keeps the actor's name, address and mailbox. An `ActorProxy` takes the actor's place there
and passes each call on to the process. The process is forked from the warm process and is connected
to its node as a client is. `parent` is the node's side and `child` the process's side; `messages`
is what the two sides say to each other, and `node_api` what the child may ask of the node.
"""

from runtime.isolation.actor_proxy import ActorProxy
from runtime.isolation.node_api import NodeApi
from runtime.isolation.parent import (
    IsolatedProcesses,
    Isolation,
    IsolationFactory,
    WithoutProcesses,
)

__all__ = [
    "ActorProxy",
    "IsolatedProcesses",
    "Isolation",
    "IsolationFactory",
    "NodeApi",
    "WithoutProcesses",
]
