"""The charter: the entry of a store that says whose it is.

Whoever opens a store finds it or, in an empty store, writes it. Two clusters, or two of one name with different secrets, can so never share
a store unnoticed; and nodes that find their store again after it was away know that it is the same one.
"""

from __future__ import annotations

import hashlib
import hmac

import attrs
import cbor2

from actors.errors import StoreMismatchError
from runtime.environment import Environment
from runtime.store.interface import Compare, Entry, Get, Put, Store

CHARTER = "cluster"
FOUNDER = "founder"


@attrs.frozen
class Charter:
    """`identity` is drawn when the store is first used, and never changes."""

    cluster: str
    identity: str


async def find_or_write_charter(store: Store, cluster: str, secret: bytes, environment: Environment) -> Charter:
    """The charter of `store`. Raises `StoreMismatchError` if it is that of another cluster; nothing is changed then."""
    proof = hmac.digest(secret, b"the charter of " + cluster.encode(), hashlib.sha256)
    ours = Charter(cluster, environment.token(16).hex())
    value = cbor2.dumps([ours.cluster, ours.identity, proof])
    result = await store.transaction([Compare(CHARTER, "create_revision", 0)], [Put(CHARTER, value)], [Get(CHARTER)])
    if result.succeeded:
        return ours
    entry = result.responses[0]
    assert isinstance(entry, Entry)
    try:
        name, identity, theirs = cbor2.loads(entry.value)
        found = Charter(str(name), str(identity))
    except (ValueError, TypeError, cbor2.CBORDecodeError):
        raise StoreMismatchError(
            "the store holds something else than a cluster of ours; nothing in it was changed: use another store"
        ) from None
    if found.cluster != cluster:
        raise StoreMismatchError(
            f"the store belongs to the cluster {found.cluster!r}, not to {cluster!r}; nothing in it was changed: "
            "give the cluster's own name, or another store"
        )
    if not isinstance(theirs, bytes) or not hmac.compare_digest(theirs, proof):
        raise StoreMismatchError(
            f"the store belongs to a cluster {cluster!r} with another secret; nothing in it was changed: "
            "give that cluster's secret, or another store"
        )
    return found


async def find_founder(store: Store) -> tuple[str, str] | None:
    """The name and the address of the node that served this store last, if any did."""
    entry = await store.get(FOUNDER)
    if entry is None:
        return None
    name, address = cbor2.loads(entry.value)
    return str(name), str(address)


async def note_founder(store: Store, name: str, address: str) -> None:
    """Write down who serves the store, and where: so it comes back there, and the other nodes find it again."""
    await store.put(FOUNDER, cbor2.dumps([name, address]))
