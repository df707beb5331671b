"""Whether a transaction took effect whose answer was lost.

Sending it again could apply it twice, and reading alone proves nothing while it may still be on its way to the leader. So each transaction
of ours writes a marker with what it writes, on the condition that the marker is as it was. When the answer is lost, we write the marker
ourselves, on the same condition: either that succeeds, and then the transaction never can, or the marker tells that it has. (What becomes
of blind repeats: https://jepsen.io/analyses/jetcd-0.8.2.)

A marker serves one transaction at a time. All of a client's are tied to a lease, so that they go when the client has.
"""

from __future__ import annotations

import attrs

from runtime.environment import Environment
from runtime.store.etcd.translation import Json, text_of


@attrs.define
class Marker:
    """A key that tells. `revision`: its modification as far as is known, 0 if it was never written."""

    key: str
    lease: int
    revision: int = 0
    stale: bool = False
    """True if somebody else may have changed it: it is not used again."""

    def slot(self, token: str) -> Json:
        """For `translation.guarded`; `token` is what the transaction writes, with the branch that it took before it."""
        return {
            "key": self.key,
            "mod_revision": self.revision,
            "lease": str(self.lease),
            "then": text_of("then " + token),
            "otherwise": text_of("otherwise " + token),
        }

    def cancellation(self, token: str) -> Json:
        """A transaction that keeps the one of `token` from ever taking effect, or reads what it has written."""
        return {
            "compare": [{"key": self.key, "target": "MOD", "result": "EQUAL", "mod_revision": str(self.revision)}],
            "success": [{"request_put": {"key": self.key, "value": text_of("never " + token), "lease": str(self.lease)}}],
            "failure": [{"request_range": {"key": self.key}}],
        }


class Markers:
    """The markers of one client, under `root`."""

    def __init__(self, root: str, environment: Environment) -> None:
        self._root = root
        self._environment = environment
        self._idle: list[Marker] = []

    def take(self, lease: int) -> Marker:
        """A marker for one transaction, tied to `lease`."""
        while self._idle:
            marker = self._idle.pop()
            if marker.lease == lease:
                return marker
        return Marker(text_of(self._root + self._environment.token(12).hex()), lease)

    def give_back(self, marker: Marker) -> None:
        """The transaction is over, and what the marker is then is known."""
        if not marker.stale:
            self._idle.append(marker)
