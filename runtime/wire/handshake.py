"""The handshake: two sides of a fresh connection learn who the other is, and each proves that it
knows the cluster's secret.

    dialer                            acceptor
      HELLO  (facts, nonce)      ->
                                 <-   CHALLENGE (version chosen, facts, nonce), or REFUSED
      PROOF                      ->
                                 <-   WELCOME (proof), or REFUSED

A proof is an HMAC-SHA256 under the secret over the sender's part and the exact bytes of HELLO and
CHALLENGE. So an attacker who changes a byte of either (to lower the version, to pose as another
node) breaks both proofs; the parts' names stop reflected proofs, the two nonces replayed ones. The
dialer proves first: an acceptor gives nothing computed from the secret to a stranger. A fake
acceptor does get a dialer's proof and may try guesses against it at leisure, so the secret must be
random and long. The shape is that of the challenge and response in Erlang's distribution protocol
and of CRAM (RFC 2195), over a transcript as in TLS 1.3.

No I/O, no clock, no randomness: frames' kinds and control parts in and out, nonces passed in. Left
to the caller: the limit on how long all this may take, closing the connection after any error, and
encryption. Over TLS both proofs cover the hash of the server's certificate as each side sees it
(the channel binding). So an attacker between the two, who can only show another certificate, makes
them fail. Without TLS a relay between two honest nodes is not detected, and can read and change
what follows the handshake.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Literal, NoReturn, cast, get_args
from urllib.parse import quote, unquote

import attrs
import cbor2

from actors.errors import (
    EncryptionError,
    ExpelledError,
    HandshakeError,
    ProtocolError,
    ProtocolVersionError,
    WrongCertificateError,
    WrongClusterError,
    WrongPeerError,
    WrongSecretError,
)
from actors.identifiers import NodeId
from actors.options import CONTROL_CHARACTERS, is_unprintable
from actors.peers import may_act_as
from runtime.printable import plain
from runtime.wire.frames import Kind
from runtime.wire.tags import BUILTIN_TAGS

# Identities: what each side of a connection says of itself, and what it may say.
#
# No I/O, no clock, no randomness.

Role = Literal["node", "client"]


CertifiedRole = Literal["node", "operator", "client", "observer"]


VERSIONS: Final = (2, 2)
"""The lowest and the highest version of the protocol that this code speaks. 2: offers name links
rather than sessions, see `runtime.links.settlement`; two ends of which one draws names of sessions
could not settle crossed dials.
"""


MAX_NAME: Final = 255


MAX_ADDRESSES: Final = 16


MAX_FEATURES: Final = 64


MAX_LIFE: Final = 64


MAX_INCARNATION: Final = 2**64 - 1


MAX_VERSION: Final = 2**16 - 1

MAGIC: Final = "understudy"

LINE_END: Final = "\r\n\r\n"
"""The last bytes of a HELLO to an address of which nothing is known."""

CONTROL_LIMIT: Final = 4096
"""Bytes of a control part that is accepted from a peer which has proven nothing yet; our own are
held to it as well.
"""

NONCE_BYTES: Final = 32

PROOF_BYTES: Final = hashlib.sha256().digest_size

MAX_REFUSAL_TEXT: Final = 1000
"""Characters. Even of four bytes each they stay within `CONTROL_LIMIT`."""

_REFUSALS: Final = (
    WrongSecretError,
    WrongClusterError,
    ProtocolVersionError,
    WrongPeerError,
    EncryptionError,
    WrongCertificateError,
    ExpelledError,
)

ANY_NAME: Final = "*"

CLIENT_NAMES: Final = "client-"
"""How the names of processes begin that are no nodes. No node has such a name."""

CHILD_NAMES: Final = "process-"
"""How the names of the processes of isolated actors begin; 12 hexadecimal digits follow. No node
has such a name either.
"""

_NOT_OF_NODES: Final = re.compile(f"{CLIENT_NAMES}.*|{CHILD_NAMES}[0-9a-f]{{12}}", re.DOTALL)


def check_text(value: object, what: str, *, least: int = 1, most: int = MAX_NAME) -> str:
    """Raises ValueError for what is no string of such a length, or could pose as another line of a
    log: names and addresses of peers stand there.
    """
    text = check_string(value, what, least=least, most=most)
    if is_unprintable(text):
        raise ValueError(f"{what} must have no control characters and no lone surrogates")
    return text


def check_string(value: object, what: str, *, least: int, most: int) -> str:
    """Raises ValueError for what is no string of such a length."""
    if not isinstance(value, str) or not least <= len(value) <= most:
        raise ValueError(f"{what} must be a string of {least} to {most} characters")
    return value


def check_integer(value: object, what: str, *, least: int, most: int) -> int:
    """Raises ValueError for what is no integer in that range."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{what} must be an integer from {least} to {most}")
    return value


def check_bytes(value: object, what: str, *, length: int) -> bytes:
    """Raises ValueError for what is not so many bytes."""
    if not isinstance(value, bytes) or len(value) != length:
        raise ValueError(f"{what} must be {length} bytes")
    return value


def check_list(value: object, what: str, *, least: int = 0, most: int) -> list[object]:
    """Raises ValueError for what is no list of such a length."""
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise ValueError(f"{what} must be a list of {least} to {most}")
    return cast("list[object]", value)


def check_versions(low: object, high: object) -> tuple[int, int]:
    """Raises ValueError for what is no range of protocol versions."""
    lowest = check_integer(low, "the lowest version", least=1, most=MAX_VERSION)
    return lowest, check_integer(high, "the highest version", least=lowest, most=MAX_VERSION)


@attrs.frozen
class Peer:
    """One side of a connection, as it describes itself. Raises ValueError for a field of the wrong
    type or too long; the limits are this module's constants.
    """

    name: str
    incarnation: int
    """Tells this life of the node from earlier ones under the same name."""
    role: Role
    addresses: tuple[str, ...] = ()
    """The addresses at which it listens; empty for a side that only dials."""
    host: str = ""
    """Identifies the machine, so that two nodes of one host can find the shorter way; empty where
    unknown.
    """
    features: frozenset[str] = frozenset()
    store: str = ""
    """The identity of the store that knows it; "" for clients."""
    life: str = ""
    """Drawn when the process starts, "" where unknown. A store that is lost and begun anew counts
    incarnations from the beginning again, so that a later process may be given the name and the
    incarnation of an earlier one.
    """
    rights: CertifiedRole | Literal[""] = ""
    """The role to whose rights a client limits itself; "" for those of what it proves. Nodes of
    earlier versions do not know this field, and give it those.
    """
    identity: NodeId = attrs.field(init=False, eq=False, repr=False)
    """Name and incarnation, made once: calls with large arguments and services ask for it."""

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "identity", NodeId(self.name, self.incarnation))
        check_text(self.name, "a node's name")
        check_integer(self.incarnation, "an incarnation", least=0, most=MAX_INCARNATION)
        if self.role not in get_args(Role):
            raise ValueError(f"a role must be one of {', '.join(get_args(Role))}")
        if self.rights and (self.role == "node" or self.rights not in get_args(CertifiedRole)):
            raise ValueError(
                f"only a client limits its rights, to one of {', '.join(get_args(CertifiedRole))}"
            )
        check_text(self.host, "a host", least=0)
        check_text(self.store, "a store's identity", least=0, most=MAX_LIFE)
        check_text(self.life, "a life", least=0, most=MAX_LIFE)
        check_list(list(self.addresses), "addresses", most=MAX_ADDRESSES)
        check_list(list(self.features), "features", most=MAX_FEATURES)
        for address in self.addresses:
            check_text(address, "an address")
        for feature in self.features:
            check_text(feature, "a feature")


@attrs.frozen
class Introduction:
    """This side's part of every handshake: its cluster, itself, and the lowest and highest protocol
    version that it speaks. Raises ValueError for a field of the wrong type or too long, and for
    versions in the wrong order.
    """

    cluster: str
    peer: Peer
    versions: tuple[int, int] = VERSIONS

    def __attrs_post_init__(self) -> None:
        check_text(self.cluster, "a cluster's name")
        check_versions(*self.versions)


def may_name_node(name: str) -> bool:
    """False for a name that only processes have which are no nodes."""
    return _NOT_OF_NODES.fullmatch(name) is None


@attrs.frozen
class Certified:
    """The identity in a certificate: `understudy://CLUSTER/ROLE/NAME`, a URI among its subject
    alternative names. `name`: `ANY_NAME` for every name. `uris`: all URIs of the certificate, for
    people to read; if none of them is understood, the other fields are empty.
    """

    cluster: str = ""
    role: CertifiedRole | Literal[""] = ""
    name: str = ""
    uris: tuple[str, ...] = ()

    @classmethod
    def of(cls, uris: tuple[str, ...]) -> Certified:
        """The one of the URIs that is understood. Of two, none counts: who has checked the request
        for the certificate may have looked at the other.
        """
        understood = {found: None for uri in uris if (found := _understood(uri)) is not None}
        if len(understood) != 1:
            return cls(uris=uris)
        cluster, role, name = next(iter(understood))
        return cls(cluster, role, name, uris)

    @property
    def names_several(self) -> bool:
        """True if it names no process because several of its URIs are understood."""
        return not self.role and sum(_understood(uri) is not None for uri in self.uris) > 1


def _understood(uri: str) -> tuple[str, CertifiedRole, str] | None:
    """Return the cluster, role and name that a URI has; None if it has none."""
    scheme, slashes, rest = uri.partition("://")
    parts = [unquote(part) for part in rest.split("/")]
    if scheme != "understudy" or not slashes or len(parts) != 3 or not all(parts):
        return None
    # They could pose as another line of a log, in which the names of peers stand.
    if any(CONTROL_CHARACTERS.search(part) for part in parts):
        return None
    cluster, role, name = parts
    return (cluster, cast("CertifiedRole", role), name) if role in get_args(CertifiedRole) else None


def certified_uri(cluster: str, role: CertifiedRole, name: str) -> str:
    """The URI that `Certified.of` understands."""
    return f"understudy://{quote(cluster, '')}/{role}/{quote(name, '*')}"


def _never() -> str:
    return ""


def _nothing() -> None:
    pass


@attrs.frozen
class Channel:
    """What the layer below this handshake, TLS or a plain socket, proves of a connection.

    `binding`: bytes that both ends know, and that no other connection can have; empty for a
    connection that is not encrypted. `certified`: the names in the peer's certificate, which the
    cluster's CA has signed; None without a CA. `fingerprint`: the SHA-256 of that certificate, in
    hexadecimal digits. `lapsed()`: why the certificate is not valid any more, so that the
    connection must be closed; "" while it is valid. `on_proven()`: called when the peer has proven
    itself, so that the connection does not count as a stranger's any more.
    """

    binding: bytes = b""
    certified: Certified | None = None
    fingerprint: str = ""
    lapsed: Callable[[], str] = attrs.field(default=_never, eq=False, repr=False)
    on_proven: Callable[[], object] = attrs.field(default=_nothing, eq=False, repr=False)


PLAIN: Final = Channel()


def refusal(error: HandshakeError, proof: bytes = b"") -> tuple[Kind, bytes]:
    """The frame that tells a dialer why it is refused. `proof`: for one that has proven itself,
    where the refusal is to be more than the word of a stranger.
    """
    fields: dict[str, object] = {"code": error.code, "text": str(error)[:MAX_REFUSAL_TEXT]}
    if proof:
        fields["proof"] = proof
    return Kind.REFUSED, _encode(fields)


def common_version(ours: tuple[int, int], theirs: tuple[int, int]) -> int | None:
    """The highest version within both ranges (lowest, highest), or None if they do not meet."""
    highest = min(ours[1], theirs[1])
    return highest if highest >= max(ours[0], theirs[0]) else None


class _Side:
    """What both sides share: the facts, the secret, and the checks on what comes in.

    `_due` holds the kinds that may come next. It is emptied before anything is looked at and filled
    again only by a step that succeeded, so a handshake that failed once, in whatever way, can never
    be carried on.
    """

    def __init__(
        self,
        introduction: Introduction,
        secret: bytes,
        nonce: bytes,
        channel: Channel,
        others: Sequence[bytes] = (),
    ) -> None:
        if not secret or not all(others):
            raise ValueError(
                "the cluster's secret is empty: set UNDERSTUDY_SECRET or give --secret-file"
            )
        self._nonce = check_bytes(nonce, "a nonce", length=NONCE_BYTES)
        self._introduction = introduction
        self._secret = secret
        self._others = tuple(others)
        self._channel = channel
        self._due: tuple[Kind, ...] = ()
        self._hello = b""
        self._challenge = b""
        self._claimed: Peer | None = None
        self._claimed_version = 0
        self.peer: Peer | None = None
        self.version: int | None = None

    @property
    def secret(self) -> bytes:
        """The secret that both sides have proven. Only once `peer` is set."""
        return self._secret

    def _admit(self, kind: int, control: bytes) -> Mapping[str, object]:
        """The fields of an incoming control part, once its kind is seen to be due."""
        # Emptied first: a handshake that fails from here on cannot be carried on.
        due, self._due = self._due, ()
        if kind not in due:
            expected = " or ".join(each.name for each in due) or "nothing more"
            _broken(f"a frame of kind {int(kind)} came where {expected} was due")
        return _decode(control)

    def _proof(self, part: str, *more: bytes) -> bytes:
        """Return the proof of `part` of the handshake. Every item is preceded by its length, so
        that no two transcripts read the same.
        """
        mac = hmac.new(self._secret, part.encode(), hashlib.sha256)
        for item in (self._hello, self._challenge, self._channel.binding, *more):
            mac.update(len(item).to_bytes(8, "big") + item)
        return mac.digest()

    def _verify(self, fields: Mapping[str, object], part: str, *more: bytes) -> bytes:
        """Hold the peer's proof against ours; returns it, with `peer` and `version` set, or raises
        WrongSecretError. From now on `_secret` is the one that the peer has proven.
        """
        with _reading("the proof"):
            proof = check_bytes(fields.get("proof"), "proof", length=PROOF_BYTES)
        assert self._claimed is not None, "a proof is due only after the facts that it proves"
        # While the secret is being changed, either side may have only the old or only the new one.
        for secret in (self._secret, *self._others):
            # `_proof` reads it, and what this side proves next must be by the same one.
            self._secret = secret
            if hmac.compare_digest(proof, self._proof(part, *more)):
                break
        else:
            raise _wrong_secret(
                self._claimed.name,
                self._introduction.peer.name,
                self._introduction.cluster,
                bool(self._channel.binding),
            )
        assert not self._due, "nothing is due once a proof is found right"
        self.peer, self.version = self._claimed, self._claimed_version
        return proof


class Dialer(_Side):
    """The side that opened the connection.

    Send what `start` returns, then feed each frame that comes to `receive` and send what that
    returns, until `peer` is set: then the peer has proven itself, and `peer` and `version` hold
    what was agreed.

    `secret` is the cluster's; `nonce` is 32 fresh random bytes; `expected` is the (name,
    incarnation) that should answer, None if any may; `channel` is the connection's. Raises
    ValueError for an empty secret, a nonce of another length, or facts that do not fit the limit of
    a HELLO.
    """

    def __init__(
        self,
        introduction: Introduction,
        secret: bytes,
        nonce: bytes,
        expected: NodeId | None = None,
        channel: Channel = PLAIN,
    ) -> None:
        super().__init__(introduction, secret, nonce, channel)
        self._expected = expected
        fields: dict[str, object] = {
            "magic": MAGIC,
            "versions": list(introduction.versions),
            **_facts(introduction),
            "nonce": nonce,
        }
        if expected is not None:
            fields["expected"] = list(expected)
        else:
            # What listens there may be no node. Servers that read lines, such as those of HTTP and
            # Redis, would wait for the end of this one, and now say at once that it is none.
            fields["end"] = LINE_END
        self._hello = _encode(fields)
        self._own_proof = b""
        self._started = False

    def start(self) -> tuple[Kind, bytes]:
        """The HELLO: the kind and control part of the first frame. RuntimeError at a second call:
        another attempt takes another nonce.
        """
        if self._started:
            raise RuntimeError(
                "this handshake has begun already: make another Dialer, with another nonce"
            )
        self._started = True
        self._due = (Kind.CHALLENGE, Kind.REFUSED)
        return Kind.HELLO, self._hello

    def receive(self, kind: int, control: bytes) -> tuple[Kind, bytes] | None:
        """Take one frame; returns the frame to send next, or None once the handshake is complete.

        Raises HandshakeError, of the subclass that fits, where the acceptor refused or is not the
        one it should be; WrongSecretError where it could not prove itself; ProtocolError for
        anything that is no handshake. The connection is to be closed after each of them.
        """
        fields = self._admit(kind, control)
        if kind == Kind.REFUSED:
            raise self._refusal(fields)
        if kind == Kind.CHALLENGE:
            return self._answer(fields, control)
        self._verify(fields, "acceptor", self._own_proof)
        return None

    def _refusal(self, fields: Mapping[str, object]) -> HandshakeError:
        """The error that a REFUSED stands for. Its text is a stranger's: bounded, and without what
        could pose as another line of a log.
        """
        with _reading("REFUSED"):
            code = check_text(fields.get("code"), "code")
            text = check_string(fields.get("text"), "text", least=0, most=MAX_REFUSAL_TEXT)
        kind = next((each for each in _REFUSALS if each.code == code), HandshakeError)
        refuser = "the node dialled" if self._expected is None else _shown(self._expected)
        readable = "".join(character if character.isprintable() else " " for character in text)
        reason = (
            readable
            if kind is not HandshakeError
            else f"{readable} ({code!r}); look at that node's log for more"
        )
        error = kind(f"{refuser} refused the connection: {reason}")
        if isinstance(error, ExpelledError):
            error.proven = self._is_proven(fields.get("proof"))
        return error

    def _is_proven(self, proof: object) -> bool:
        """True if a refusal is from a peer that knows the secret: a stranger may send
        another. Only after this side's own proof, so that no refusal is judged by what a stranger
        has chosen alone.
        """
        return (
            bool(self._own_proof)
            and isinstance(proof, bytes)
            and hmac.compare_digest(proof, self._proof("refusal", self._own_proof))
        )

    def _answer(self, fields: Mapping[str, object], control: bytes) -> tuple[Kind, bytes]:
        ours = self._introduction
        with _reading("CHALLENGE"):
            version = check_integer(fields.get("version"), "version", least=1, most=MAX_VERSION)
            cluster = check_text(fields.get("cluster"), "cluster")
            peer = _peer(fields)
            check_bytes(fields.get("nonce"), "nonce", length=NONCE_BYTES)
        if not ours.versions[0] <= version <= ours.versions[1]:
            raise _wrong_version(ours.peer.name, ours.versions, peer.name, (version, version))
        if cluster != ours.cluster:
            raise _wrong_cluster(ours.peer.name, ours.cluster, peer.name, cluster)
        if wrong := _wrong_peer(ours.peer, self._expected, peer):
            raise wrong
        # Only nodes are dialled, so the peer must have the certificate of a node.
        _check_certificate(peer, ours.cluster, self._channel.certified, "node")
        # Claimed, and not yet true: `peer` is set by a proof that covers these exact bytes.
        self._claimed, self._claimed_version = peer, version
        self._challenge = control
        self._own_proof = self._proof("dialer")
        self._due = (Kind.WELCOME, Kind.REFUSED)
        return Kind.PROOF, _encode({"proof": self._own_proof})


class Acceptor(_Side):
    """The side that was dialled.

    Feed each frame that comes to `receive` and send what it returns. Then look at `error`: where it
    is set, the frame was the refusal; close the connection once it is sent. Where `peer` is set,
    the dialer has proven itself, and `peer` and `version` hold what was agreed.

    The parameters are those of `Dialer`, and so are the ValueErrors. `others`: secrets by which the
    dialer may prove itself as well, while the cluster's secret is being changed; this side then
    proves itself by the same one. `judge`: says why a peer that has proven itself is refused all
    the same, None if it is not.
    """

    def __init__(
        self,
        introduction: Introduction,
        secret: bytes,
        nonce: bytes,
        channel: Channel = PLAIN,
        others: Sequence[bytes] = (),
        judge: Callable[[Peer], HandshakeError | None] = lambda peer: None,
    ) -> None:
        super().__init__(introduction, secret, nonce, channel, others)
        self._judge = judge
        self._due = (Kind.HELLO,)
        self._write_challenge(
            MAX_VERSION
            # facts that are too large are this side's mistake: found here, not in front of the
            # first peer
        )
        self.error: HandshakeError | None = None

    def receive(self, kind: int, control: bytes) -> tuple[Kind, bytes] | None:
        """Take one frame; returns the frame to send. A refusal sets `error` and returns the REFUSED
        that says the same to the dialer.

        Raises ProtocolError for anything that is no handshake: such a peer gets no answer, only a
        closed connection.
        """
        assert self.error is None or not self._due, "a refused dialer is not heard again"
        fields = self._admit(kind, control)
        try:
            if kind == Kind.HELLO:
                return self._greet(fields, control)
            # Judged only after its proof: strangers must not learn who is expelled.
            proof = self._verify(fields, "dialer")
            assert self.peer is not None, "it has proven itself"
            if (refused := self._judge(self.peer)) is not None:
                self.peer, self.version, self.error = None, None, refused
                return refusal(refused, self._proof("refusal", proof))
            return Kind.WELCOME, _encode({"proof": self._proof("acceptor", proof)})
        except HandshakeError as error:
            self.error = error
            return refusal(error)

    def _greet(self, fields: Mapping[str, object], control: bytes) -> tuple[Kind, bytes]:
        ours = self._introduction
        with _reading("HELLO"):
            if fields.get("magic") != MAGIC:
                raise ValueError("it does not name this protocol")
            versions = check_versions(
                *check_list(fields.get("versions"), "versions", least=2, most=2)
            )
            name = check_text(fields.get("name"), "name")
            cluster = check_text(fields.get("cluster"), "cluster")
        # Only the fields above keep their meaning in all versions, so these refusals come before
        # the rest is read.
        version = common_version(ours.versions, versions)
        if version is None:
            raise _wrong_version(name, versions, ours.peer.name, ours.versions)
        if cluster != ours.cluster:
            raise _wrong_cluster(name, cluster, ours.peer.name, ours.cluster)
        with _reading("HELLO"):
            peer = _peer(fields)
            expected = _expected(fields)
            check_bytes(fields.get("nonce"), "nonce", length=NONCE_BYTES)
        if wrong := _wrong_peer(peer, expected, ours.peer):
            raise wrong
        _check_certificate(peer, ours.cluster, self._channel.certified, peer.role)
        self._claimed, self._claimed_version = peer, version
        self._hello, self._challenge = control, self._write_challenge(version)
        self._due = (Kind.PROOF,)
        return Kind.CHALLENGE, self._challenge

    def _write_challenge(self, version: int) -> bytes:
        return _encode({"version": version, **_facts(self._introduction), "nonce": self._nonce})


def _facts(introduction: Introduction) -> dict[str, object]:
    peer = introduction.peer
    # Left out where it says nothing.
    rights: dict[str, object] = {"rights": peer.rights} if peer.rights else {}
    return {
        "cluster": introduction.cluster,
        "name": peer.name,
        "incarnation": peer.incarnation,
        "role": peer.role,
        "addresses": list(peer.addresses),
        "host": peer.host,
        "features": sorted(peer.features),
        "store": peer.store,
        "life": peer.life,
        **rights,
    }


def _peer(fields: Mapping[str, object]) -> Peer:
    """The sender's facts; ValueError where they are malformed (the types are checked by `Peer`)."""
    addresses = check_list(fields.get("addresses"), "addresses", most=MAX_ADDRESSES)
    features = [
        check_text(each, "a feature")
        for each in check_list(fields.get("features"), "features", most=MAX_FEATURES)
    ]
    return Peer(
        name=cast(str, fields.get("name")),
        incarnation=cast(int, fields.get("incarnation")),
        role=cast(Role, fields.get("role")),
        addresses=tuple(cast("list[str]", addresses)),
        host=cast(str, fields.get("host")),
        features=frozenset(features),
        store=cast(str, fields.get("store")),
        life=cast(str, fields.get("life")),
        rights=cast("CertifiedRole", check_text(fields.get("rights", ""), "rights", least=0)),
    )


def _expected(fields: Mapping[str, object]) -> NodeId | None:
    value = fields.get("expected")
    if value is None:
        return None
    name, incarnation = check_list(value, "expected", least=2, most=2)
    return NodeId(
        check_text(name, "the expected name"),
        check_integer(incarnation, "the expected incarnation", least=0, most=MAX_INCARNATION),
    )


@contextmanager
def _reading(frame: str) -> Iterator[None]:
    """Raise a value beyond the limits of this module as a ProtocolError: in a frame it is the
    peer's fault.
    """
    try:
        yield
    except ValueError as error:
        _broken(f"{frame} is malformed: {error}", error)


def _encode(fields: Mapping[str, object]) -> bytes:
    """The control part of `fields`; ValueError where it would be longer than a peer accepts."""
    control = cbor2.dumps(dict(fields))
    if len(control) > CONTROL_LIMIT:
        raise ValueError(
            f"a handshake message of {len(control)} bytes exceeds {CONTROL_LIMIT}: give the node "
            "fewer or shorter addresses"
        )
    return control


def _decode(control: bytes) -> Mapping[str, object]:
    """The fields of a control part. Only plain CBOR: no tags, no indefinite lengths, no repeated
    keys, nothing after the end.
    """
    if len(control) > CONTROL_LIMIT:
        _broken(
            f"a message of {len(control)} bytes exceeds the {CONTROL_LIMIT} allowed before the "
            "peer has proven itself"
        )
    stream = io.BytesIO(control)
    try:
        fields: object = cbor2.load(
            stream,
            tag_hook=_refuse_tag,
            semantic_decoders=dict.fromkeys((2, 3, *BUILTIN_TAGS), _refuse_tag),
            max_depth=8,
            allow_indefinite=False,
            allow_duplicate_keys=False,
            strict_hashable_types=True,
        )
    except (cbor2.CBORError, ValueError, OverflowError) as error:
        _broken(f"a message does not decode: {error}", error)
    if stream.tell() != len(control):
        _broken(f"a message has {len(control) - stream.tell()} bytes after its end")
    if type(fields) is not dict:
        _broken("a message is not a map")
    return cast("dict[str, object]", fields)


def _refuse_tag(*_: object) -> NoReturn:
    raise ValueError("tags are not allowed here")


def _broken(what: str, cause: Exception | None = None) -> NoReturn:
    raise ProtocolError(
        f"handshake broken by the peer: {what}; check that the other end is an Understudy node"
    ) from cause


def _shown(identity: NodeId) -> str:
    return f"node {identity[0]!r} (incarnation {identity[1]})"


# The texts below name both sides in the third person: the same words are raised by the acceptor and
# sent to the dialer.


def _wrong_secret(prover: str, verifier: str, cluster: str, bound: bool) -> WrongSecretError:
    return WrongSecretError(
        f"node {prover!r} could not prove to node {verifier!r} that it knows the secret of "
        f"cluster {cluster!r}: "
        "give both the same UNDERSTUDY_SECRET or --secret-file"
        # The two cannot be distinguished: the proof covers both.
        + (
            "; if they have it, one of them sees the certificate of a proxy between them that "
            "terminates TLS"
            if bound
            else ""
        )
    )


def _wrong_cluster(dialer: str, dialers: str, acceptor: str, acceptors: str) -> WrongClusterError:
    return WrongClusterError(
        f"node {dialer!r} of cluster {dialers!r} dialled node {acceptor!r}, which belongs to "
        f"cluster {acceptors!r}: "
        "dial a node of the same cluster, or give both the same cluster name"
    )


def _wrong_version(
    dialer: str, dialers: tuple[int, int], acceptor: str, acceptors: tuple[int, int]
) -> ProtocolVersionError:
    return ProtocolVersionError(
        f"node {dialer!r} speaks protocol versions {dialers[0]} to {dialers[1]}, node "
        f"{acceptor!r} {acceptors[0]} to {acceptors[1]}: "
        "upgrade the older of the two"
    )


def _check_certificate(peer: Peer, cluster: str, certified: Certified | None, role: Role) -> None:
    """Refuse a peer whose certificate does not name it, as one of this role, or which asks for
    more rights than those of its certificate. Raises `WrongCertificateError`.
    """
    if certified is None:
        return
    check_certified(certified, cluster, role, peer.name)
    assert certified.role, "a certificate without a role is refused"
    if peer.rights and not may_act_as(certified.role, peer.rights):
        raise WrongCertificateError(
            f"the certificate of {peer.name!r} is for the role {certified.role!r}, and it asks for "
            f"the rights of the role {peer.rights!r}: leave the role out, or show a certificate "
            "that has it"
        )


def check_certified(certified: Certified, cluster: str, role: Role, name: str) -> None:
    """Raises `WrongCertificateError` where a certificate does not name who shows it."""
    if certified.names_several:
        wrong = "has several names, of which none counts"
    elif not certified.role:
        wrong = "has no name of the form understudy://CLUSTER/ROLE/NAME"
    elif certified.cluster != cluster:
        wrong = f"is for the cluster {certified.cluster!r}"
    elif role == "node" and certified.role != "node":
        wrong = f"is for the role {certified.role!r}, and it comes as a node"
    elif role == "node" and certified.name not in (name, ANY_NAME):
        wrong = f"is for the node {certified.name!r}"
    elif certified.role != "node" and not name.startswith(CLIENT_NAMES):
        # Sessions are found by the names of processes: it must not ask for that of a node.
        wrong = f"is for the role {certified.role!r}, whose processes have names with "
        wrong += f"{CLIENT_NAMES!r} in front"
    elif role == "client" and may_name_node(name):
        # Nor may a node, by coming as a client: it would have the session of another node.
        wrong = "is for a node, and it comes as a client under a name that a node may have"
    else:
        return
    command = f"understudy tls cert --cluster {cluster} --role node --name {name}"
    raise WrongCertificateError(
        f"the certificate of node {name!r} {wrong} "
        f"({plain(', '.join(certified.uris)) or 'it has no URI at all'}): "
        + (
            "give the other side a --tls-map that names it"
            if any(uri.startswith("spiffe://") for uri in certified.uris)
            else f"make one with `{command}`"
        )
    )


def _wrong_peer(dialer: Peer, expected: NodeId | None, acceptor: Peer) -> WrongPeerError | None:
    """The error if `dialer` must not speak with `acceptor`: they are one, or another was meant."""
    if dialer.identity == acceptor.identity:
        return WrongPeerError(
            f"{_shown(dialer.identity)} dialled itself: join the address of another node"
        )
    if expected is not None and expected != acceptor.identity:
        return WrongPeerError(
            f"node {dialer.name!r} dialled {_shown(expected)}, but {_shown(acceptor.identity)} "
            "answered: look the address up again, the node has moved or was restarted"
        )
    return None
