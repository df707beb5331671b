"""Whether a handle is of the cluster in which it is used.

A process may have nodes of several clusters open, and a handle has only the name and the place of
its actor. In another cluster it would lead to whatever has that name there, so it is refused. What
tells clusters apart is the identity of their store: two may have the same name and secret. A handle
that has come in a message is of the cluster that it came by.
"""

from __future__ import annotations

from typing import Any

from actors.handle import Handle
from actors.method import Caller


def is_of_another_cluster(handle: Handle, caller: Caller) -> bool:
    """True if the handle is certain to be of another cluster than that of `caller`."""
    theirs, ours = _client_of(handle._caller), _client_of(caller)
    if theirs is ours:
        return False
    stores = {_store_of(theirs), _store_of(ours)}
    # "": a command, which has asked no store for an identity.
    return len(stores) == 2 and "" not in stores


def check_own_cluster(handle: Handle, caller: Caller) -> None:
    """Raises ValueError for a handle of another cluster than that of `caller`."""
    if is_of_another_cluster(handle, caller):
        raise ValueError(
            f"{handle!r} is of another cluster, which this process has open as well: use it "
            "through a node, or a connection, of that cluster"
        )


def _client_of(caller: Any) -> Any:
    # What makes calls through another caller, such as a door, has that as its `client`.
    while (inner := getattr(caller, "client", None)) is not None:
        caller = inner
    return caller


def _store_of(client: Any) -> str:
    return getattr(client, "store_identity", "")
