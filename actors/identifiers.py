"""The identifiers of a node's life, of an actor's life, and of a referenced value.

All are tuples: they equal, hash and order like plain tuples of the same items, and cbor2 writes
them as such. So they can be compared with what a peer or the store has sent, and be looked up by
it, before it is converted.
What goes through the codec (arguments and results of calls) must be plain data; unpack an
identifier there, as in `service.update(*node_id, ...)`, or send `list(node_id)`.
"""

from __future__ import annotations

from typing import NamedTuple

ReferenceId = tuple[str, int, int]
"""The name and incarnation of the node that made the reference, and a number of that
incarnation.
"""


class NodeId(NamedTuple):
    """One incarnation of a node: no two processes that one store knows ever share both."""

    name: str
    incarnation: int


class ActorId(NamedTuple):
    """One epoch of an actor: a name that is given again gets a higher epoch."""

    name: str
    epoch: int
