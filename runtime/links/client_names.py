"""The name by which a node counts what a client takes of it.

A client that comes back, or connects twice, is one client by the name in its certificate. One that
has shown no certificate may name itself as it likes: it is counted by its process.
"""

from __future__ import annotations

from actors.peers import VerifiedPeer


def quota_key(peer: VerifiedPeer) -> str:
    """The name by which a client's quota is found."""
    if peer.name != peer.node:
        return peer.name
    # It has chosen its name itself: without a certificate, or with one that is for every name.
    return peer.certificate or f"process {peer.node}"
