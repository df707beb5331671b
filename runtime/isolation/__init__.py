"""Isolation: actors with a process of their own, under the roof of their node.

The node keeps the actor's name, address and mailbox; a `StandIn` takes the actor's place there and passes each call on to the process,
which is forked from a warm one and is connected to its node as a client is. `processes` is the node's side, `resident` the process's.
"""

from runtime.isolation.neighbourhood import Neighbourhood
from runtime.isolation.processes import Isolation, IsolationFactory, open_processes, without_processes
from runtime.isolation.stand_in import StandIn

__all__ = ["Isolation", "IsolationFactory", "Neighbourhood", "StandIn", "open_processes", "without_processes"]
