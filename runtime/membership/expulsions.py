"""The expulsions: the nodes that the cluster has shut out for good.

Each is a key of the store among those of the members, so that every node's view of the members has
it, in the store's order and before any later member. A name is expelled and, if other nodes have
seen it, a certificate. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

import attrs
import cbor2

from actors.errors import ExpelledError
from actors.peers import VerifiedPeer

MARK = "@expelled/"
"""How the keys begin, after the prefix of the members' keys. No node has such a name."""

MOST_EXPELLED = 10_000
"""Expulsions that a cluster keeps."""


@attrs.frozen
class Expulsion:
    """`at`: when, in seconds since 1970 by the clock of the node that wrote it. `certificate`: the
    SHA-256 of the node's certificate, in hexadecimal digits; "" where none was seen.
    """

    name: str
    at: float = 0.0
    certificate: str = ""

    def __str__(self) -> str:
        when = datetime.fromtimestamp(self.at, UTC).strftime(" on %Y-%m-%d at %H:%M:%S UTC")
        return (
            f"node {self.name!r} was expelled from the cluster{when if self.at else ''}: "
            f"`understudy expel --readmit {self.name}` lets it join again"
        )

    def encoded(self) -> bytes:
        """The value in the store."""
        return cbor2.dumps({"at": self.at, "certificate": self.certificate})

    @classmethod
    def decoded(cls, name: str, value: bytes) -> Expulsion:
        """Decode a value of the store. A malformed value gives an expulsion that has only the name:
        the node is expelled all the same.
        """
        try:
            fields = cbor2.loads(value, max_depth=4, allow_indefinite=False)
        except (cbor2.CBORError, ValueError, TypeError):
            return cls(name)
        if not isinstance(fields, Mapping):
            return cls(name)
        at, certificate = fields.get("at"), fields.get("certificate")
        return cls(
            name,
            # Not all numbers are dates.
            float(at) if isinstance(at, int | float) and 0 <= at < 1e11 else 0.0,
            certificate if isinstance(certificate, str) else "",
        )


class Expulsions:
    """A node's view of the expulsions. `changed` is called after each new one."""

    def __init__(self, changed: Callable[[Expulsion], None] = lambda expulsion: None) -> None:
        self._changed = changed
        self._by_name: dict[str, Expulsion] = {}
        self._by_certificate: dict[str, Expulsion] = {}
        self._spared: set[str] = set()

    def all(self) -> tuple[Expulsion, ...]:
        """The expulsions, by name."""
        return tuple(self._by_name[name] for name in sorted(self._by_name))

    def find(self, name: str) -> Expulsion | None:
        """The expulsion of this name."""
        return self._by_name.get(name)

    def put(self, expulsion: Expulsion) -> None:
        """Enter one, or replace that of the same name."""
        if self._by_name.get(expulsion.name) == expulsion:
            return
        # Its certificate may be another one now.
        self.drop(expulsion.name)
        self._by_name[expulsion.name] = expulsion
        if expulsion.certificate:
            self._by_certificate[expulsion.certificate] = expulsion
        # Last: what is called looks for peers that are to be refused from now on.
        self._changed(expulsion)

    def drop(self, name: str) -> None:
        """Remove that of this name, if there is one."""
        before = self._by_name.pop(name, None)
        if before is not None and self._by_certificate.get(before.certificate) == before:
            del self._by_certificate[before.certificate]

    def keep_only(self, names: set[str]) -> None:
        """Remove all but these."""
        for name in [name for name in self._by_name if name not in names]:
            self.drop(name)

    def refusal(self, peer: VerifiedPeer) -> ExpelledError | None:
        """The error with which a peer that was expelled is refused, or None."""
        if not self._by_name:
            return None
        # The certificate first: a node that has another name now is expelled all the same.
        found = self._by_certificate.get(peer.certificate)
        if found is None and "node" in (peer.role, peer.certified):
            # By its certificate, also where it comes with the rights of an operator and no member
            # had seen its certificate; or by what it calls itself where the secret is the proof.
            found = self._by_name.get(peer.name) or self._by_name.get(peer.node)
        if found is None or found.name in self._spared:
            return None
        return ExpelledError(str(found))

    @contextmanager
    def sparing(self, name: str) -> Iterator[None]:
        """Refuse the node of this name only after the block, in which a message reaches it that it
        is expelled.
        """
        self._spared.add(name)
        try:
            yield
        finally:
            self._spared.discard(name)

    def check_invariants(self) -> None:
        """Assert what must hold between any two changes."""
        for name, expulsion in self._by_name.items():
            assert name == expulsion.name
        for certificate, expulsion in self._by_certificate.items():
            assert certificate == expulsion.certificate != ""
            assert self._by_name[expulsion.name] == expulsion
