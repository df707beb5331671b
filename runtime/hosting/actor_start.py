"""An actor that a node is to start: what the actor is made of, and on whose behalf."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import attrs

from actors.actor import Actor
from actors.options import SpawnOptions

NO_KEYWORDS: Mapping[str, object] = MappingProxyType({})


@attrs.frozen
class ActorStart:
    """What the host of a node needs to start an actor, but its address.

    `class_path`: the path under which every node finds the class. `on_behalf_of`: the name of the
    actor's supervisor, "" for an actor that has none. The arguments are the actor's own: they were
    copied or decoded for it.
    """

    cls: type[Actor]
    class_path: str
    options: SpawnOptions
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = NO_KEYWORDS
    on_behalf_of: str = ""
