"""What peers that are not nodes may ask of the runtime's own services, by their roles.

A service, a method or a role that is not in the table is refused: what is added to a service is for
nodes only until it is entered here. Nodes may call everything. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from actors.peers import PeerRole, VerifiedPeer
from actors.short_repr import short_repr
from runtime.store.interface import Get

Roles = frozenset[PeerRole]

ALL: Final[Roles] = frozenset(("operator", "client", "observer"))
CALLERS: Final[Roles] = frozenset(("operator", "client"))
READERS: Final[Roles] = frozenset(("operator", "observer"))
OPERATORS: Final[Roles] = frozenset(("operator",))

STORE: Final = "@store"

PLAIN_SERVICE: Final = "@plain"
"""The service that passes calls on to actors."""

SERVICE_RIGHTS: Final[Mapping[str, Mapping[str, Roles]]] = MappingProxyType(
    {
        "@node": {
            "status": ALL,
            "contact": ALL,
            "store_place": ALL,
            "methods": ALL,
            "wait_started": ALL,
            "watch_actor": ALL,
            # Only of classes that the node lists as spawnable, see `CallAdmission`.
            "spawn": CALLERS,
            "spawn_many": CALLERS,
            # With a ticket that the caller has drawn at random for a spawn of its own.
            "take_back": CALLERS,
            # Without a ticket: for nodes, which gather spawns, and for those who may stop actors.
            "take_back_started": OPERATORS,
            "stop_actor": OPERATORS,
            "stop_many": OPERATORS,
            "leave_cluster": OPERATORS,
        },
        # In the name of the peer itself only; what else the service has is for members.
        "@watching": {"ask": ALL, "take_back": ALL},
        # The method that is called through it is judged as any call of that method.
        PLAIN_SERVICE: {"describe": ALL, "call": CALLERS, "call_keyed": CALLERS, "stream": CALLERS},
        "@inspection": {
            "overview": READERS,
            "overview_since": READERS,
            # The same as a node's status has.
            "actors": ALL,
            "top": READERS,
            "present": READERS,
            "named": READERS,
            "near": READERS,
            "supervision": READERS,
            "statistics": READERS,
            "blocked": READERS,
            "calls": READERS,
            "stacks": READERS,
            "actor": READERS,
            "state": READERS,
            "saved_size": READERS,
            # These take processor time of the node.
            "profile": OPERATORS,
            "clock": OPERATORS,
            "record": OPERATORS,
        },
        "@expulsions": {"listing": READERS, "expel": OPERATORS, "readmit": OPERATORS},
        "@journals": {"listing": READERS, "remove_journal": OPERATORS},
        # What variables hold may be secret, and a debugger runs code.
        "@debug": {"failures": OPERATORS, "debug": OPERATORS, "command": OPERATORS},
        "@logs": {"read": READERS, "ends": READERS},
        # Without the methods of values: those of an array can write files.
        "@references": {
            "update": CALLERS,
            "unsettled": CALLERS,
            "where": CALLERS,
            "fetch": CALLERS,
            "outcomes": CALLERS,
            "listing": READERS,
        },
        # Reading only, and of that what `_READABLE` has.
        STORE: {"get": ALL, "range": ALL, "poll": ALL, "follow": ALL, "transaction": ALL},
    }
)

ACTS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "@node": frozenset(
            {
                "spawn",
                "spawn_many",
                "take_back",
                "take_back_started",
                "stop_actor",
                "stop_many",
                "leave_cluster",
            }
        ),
        "@inspection": frozenset({"profile", "record"}),
        "@debug": frozenset({"failures", "debug", "command"}),
        "@expulsions": frozenset({"expel", "readmit"}),
        "@journals": frozenset({"remove_journal"}),
        # For nodes only.
        "@keyring": frozenset({"install", "use", "keep", "prove_again"}),
    }
)
"""Methods of the runtime's services that are acts of administration: each call of a process that is
no member is a line of the audit log. Of actors these are the methods that only operators may call.
"""

_LOOKUPS = (
    "names/",
    "supervised/",
    "children/",
    "candidates/",
    "last-ends/",
    "promised/",
    "nodes/",
    "groups/",
)
"""Beginnings of the keys that a lookup reads."""

_READABLE: Final[Mapping[PeerRole, tuple[str, ...]]] = MappingProxyType(
    {
        "operator": ("",),
        "client": _LOOKUPS,
        # Not the states of actors, journals and what else belongs to the application.
        "observer": (*_LOOKUPS, "logs/", "rendezvous/"),
    }
)


def service_refusal(
    peer: VerifiedPeer,
    service: str,
    method: str,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> str:
    """Why a peer may not call a method of a service with these arguments; "" if it may."""
    if peer.role == "node":
        return ""
    kind = service.partition("-")[0]
    if peer.role not in SERVICE_RIGHTS.get(kind, {}).get(method, ()):
        return f"the role {peer.role!r} has no right to it"
    if kind != STORE and not (kind == "@node" and method.startswith("spawn")):
        return ""
    # What is looked at below must not come by its name instead.
    if kwargs:
        return "it is called with arguments by position only"
    if kind == STORE:
        return _store_refusal(peer.role, method, args)
    if method == "spawn" and len(args) > 4 and args[4] != "":
        return "only a node starts actors on behalf of a supervisor"
    return ""


def _store_refusal(role: PeerRole, method: str, args: Sequence[object]) -> str:
    """Why a peer of this role may not read this from the store; "" if it may."""
    if method == "transaction":
        operations = [*_listed(args, 1), *_listed(args, 2)]
        if _listed(args, 0) or not all(type(one) is Get for one in operations):
            return f"the role {role!r} may only read the store"
        keys: list[object] = [one.key for one in operations if isinstance(one, Get)]
    else:
        keys = list(args[:1])
    for key in keys:
        if not isinstance(key, str) or not key.startswith(_READABLE[role]):
            return f"the role {role!r} may not read {short_repr(key)} from the store"
    return ""


def _listed(args: Sequence[object], place: int) -> Sequence[object]:
    found = args[place] if len(args) > place else ()
    # What is no list is refused by the service itself. Here it must not pass for an empty one.
    return found if isinstance(found, list | tuple) else (found,)
