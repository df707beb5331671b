"""The cluster record: the entry of a store that says which cluster the store belongs to; and the
note of the node that served the store last.

A node that opens a store finds the record or, in an empty store, writes it. Two clusters, or two
of one name with different secrets, can so never share a store unnoticed; and nodes that find their
store again after it was away know that it is the same one.
"""

from __future__ import annotations

import hashlib
import hmac

import attrs
import cbor2

from actors.errors import (
    StoreMismatchError,
)
from runtime.environment import Environment
from runtime.links.keyring import Keyring
from runtime.store.interface import Compare, Entry, Get, Put, Store

CLUSTER_KEY = "cluster"


FOUNDER = "founder"
FOUNDER_LEASE = "founder-lease"


@attrs.frozen
class ClusterRecord:
    """`identity` is drawn when the store is first used, and never changes."""

    cluster: str
    identity: str


async def find_or_write_record(
    store: Store, cluster: str, secret: bytes | Keyring, environment: Environment
) -> ClusterRecord:
    """Return the cluster record of `store`, written now if the store is empty. Raises
    `StoreMismatchError` if it is that of another cluster; nothing is changed then.
    """
    proofs = [_proof(cluster, one) for one in Keyring.of(secret).secrets()]
    ours = ClusterRecord(cluster, environment.token(16).hex())
    value = cbor2.dumps([ours.cluster, ours.identity, proofs[0]])
    result = await store.transaction(
        [Compare(CLUSTER_KEY, "create_revision", 0)], [Put(CLUSTER_KEY, value)], [Get(CLUSTER_KEY)]
    )
    if result.succeeded:
        return ours
    entry = result.responses[0]
    assert isinstance(entry, Entry)
    try:
        name, identity, theirs = cbor2.loads(entry.value)
        found = ClusterRecord(str(name), str(identity))
    except (ValueError, TypeError, cbor2.CBORDecodeError):
        raise StoreMismatchError(
            "the store holds data that no Understudy cluster wrote; nothing in it was changed: "
            "use another store"
        ) from None
    if found.cluster != cluster:
        raise StoreMismatchError(
            f"the store belongs to the cluster {found.cluster!r}, not to {cluster!r}; nothing in "
            "it was changed: "
            "give the cluster's own name, or another store"
        )
    # While the secret is being changed, the record may still have the proof of the one before.
    if not isinstance(theirs, bytes) or not any(
        hmac.compare_digest(theirs, proof) for proof in proofs
    ):
        raise StoreMismatchError(
            f"the store belongs to a cluster {cluster!r} with another secret; nothing in it was "
            "changed: "
            "give that cluster's secret, or another store"
        )
    return found


def _proof(cluster: str, secret: bytes) -> bytes:
    """Return the digest in the cluster record that proves which secret the cluster has."""
    return hmac.digest(secret, b"the charter of " + cluster.encode(), hashlib.sha256)


async def rewrite_proof(store: Store, cluster: str, secret: bytes) -> None:
    """Make the record of this cluster, which has been found, show that it has another secret now.
    Raises StoreError.
    """
    while True:
        entry = await store.get(CLUSTER_KEY)
        if entry is None:
            return
        name, identity, proof = cbor2.loads(entry.value)
        if name != cluster or proof == _proof(cluster, secret):
            return
        value = cbor2.dumps([name, identity, _proof(cluster, secret)])
        # Other nodes that reach the store write the same; the one that is second looks again.
        changed = await store.transaction(
            [Compare(CLUSTER_KEY, "mod_revision", entry.mod_revision)], [Put(CLUSTER_KEY, value)]
        )
        if changed.succeeded:
            return


@attrs.frozen
class LastFounder:
    """The node that served a store last: its name, its address, and the store's lease under which
    its record was; 0 if that was not noted.
    """

    name: str
    address: str
    lease: int = 0


async def find_founder(store: Store) -> LastFounder | None:
    """Return the node that served this store last, if there was one."""
    entry, lease = await store.get(FOUNDER), await store.get(FOUNDER_LEASE)
    if entry is None:
        return None
    name, address = cbor2.loads(entry.value)
    return LastFounder(str(name), str(address), 0 if lease is None else int(lease.value))


async def note_founder(store: Store, founder: LastFounder) -> None:
    """Record which node serves the store, and its address: a restarted founder uses them again, so
    that the other nodes find it. By the lease it knows the record of the process before it.
    """
    # Two keys: a founder of an earlier version that opens the store reads exactly two parts of the
    # first one.
    noted = cbor2.dumps([founder.name, founder.address])
    lease = str(founder.lease).encode()
    await store.transaction([], [Put(FOUNDER, noted), Put(FOUNDER_LEASE, lease)])
