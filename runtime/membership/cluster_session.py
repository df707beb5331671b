"""The cluster session: what a process needs before it is a node, which is a store, a record in it,
and with that an incarnation. The store is served by the founding node, in memory or from a file, or
by etcd. A node that joins by a member's address asks that member for the store.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, cast

import attrs
import cbor2
import trio

from actors.actor import Member
from actors.errors import (
    CallError,
    HandshakeError,
    JoinError,
    ListenError,
    ProtocolError,
    StoreMismatchError,
    StoreUnavailableError,
    WrongStoreError,
)
from runtime.calls.endpoint import RpcEndpoint
from runtime.environment import Environment
from runtime.hosting.leased_names import LeasedNames
from runtime.hosting.node_service import store_service
from runtime.identifiers import NodeId
from runtime.links.encryption import Tls, find_tls
from runtime.links.keyring import GivenSecret, Keyring, keyring_of, split_secrets
from runtime.links.link import Link
from runtime.links.transports import Network, split_address
from runtime.membership.cluster_client import (
    ClusterClient,
    answered,
    contact_facts,
    open_client,
    peer_of,
    unreached,
)
from runtime.membership.members import NodeRecord, Registration
from runtime.membership.remote_store import RemoteStore, StoreService
from runtime.store.interface import Compare, Entry, Get, Put, Store
from runtime.wire.handshake import Introduction, Peer

# The cluster record: the entry of a store that says whose it is.
#
# A node that opens a store finds it or, in an empty store, writes it. Two clusters, or two of one
# name with different secrets, can so never share a store unnoticed; and nodes that find their store
# again after it was away know that it is the same one.

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


# The way to a store that another node serves, also after that node was started anew.
#
# A restarted node has another incarnation, which cannot be learned from a store that cannot be
# reached. So the addresses of the store's node are dialled, as when joining, until a node answers
# there that knows the same store.

logger = logging.getLogger("understudy.membership")


class StoreLocator:
    """`store`: for all of this node's life. `peer`: the incarnation that serves it, as far as is
    known.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        peer: Peer,
        identity: str,
        environment: Environment,
        others: Callable[[], Sequence[Member]] | None = None,
    ) -> None:
        """`others`: the members, each of which reaches the store as well as `peer` does; None where
        only that one serves it.
        """
        self._others = others
        self._endpoint = endpoint
        self._identity = identity
        self._environment = environment
        self._timings = environment.timings
        self.peer = peer
        self.store = RemoteStore(self._service(), self._timings.store_call, endpoint.nursery)

    async def run(self, ended: Callable[[NodeId, str], None], foreign: Callable[[], None]) -> None:
        """Follow the store's node until cancelled. Calls `ended` with the incarnation that was
        replaced; calls `foreign` if another store is found in its place: this cluster's store is
        lost.
        """
        while True:
            await self._wait_lost(self.link())
            found = None
            # Another link each time, if the last has ended: that says nothing about the node. Who
            # answers may be another process at the same place, with another store.
            while found is None or not self.link().connected:
                try:
                    found = await self._ask_addresses()
                except WrongStoreError:
                    logger.error(
                        "the node %s serves another store now: this cluster's store is lost, so "
                        "this node is no longer a member",
                        self.peer.name,
                    )
                    foreign()
                    return
                if found is not None and (before := self._moved(found)) is not None:
                    # One of several ways to a store may be out of reach, and live.
                    if self._others is None:
                        ended(
                            before.identity,
                            f"it was started anew as incarnation {self.peer.incarnation}",
                        )
                    break
                if found is not None and self.link().connected:
                    break
                await trio.sleep(
                    # Drawn anew for each node: all of them lose the store in the same moment.
                    self._timings.store_asked_again * (0.5 + self._environment.random())
                )

    def link(self) -> Link:
        """The link to the store's node, whose address is known without the store."""
        return self._endpoint.peers.link(self.peer)

    async def _wait_lost(self, link: Link) -> None:
        while link.ended is None:
            # A connection that is back in time says that nothing was lost; dialling by address
            # could only find the same incarnation.
            await link.disconnected()
            with trio.move_on_after(self._timings.store_lost):
                await link.connected_again()
                continue
            return

    async def _ask_addresses(self) -> dict[str, Any] | None:
        """Ask each address where the store may be served for its node's status; return the first
        answer, or None. Raises `WrongStoreError` if no address answers and one belongs to a cluster
        with another store.
        """
        foreign: WrongStoreError | None = None
        seconds = self._timings.store_asked
        others = () if self._others is None else self._others()
        places = [self.peer.addresses, *(one.addresses for one in others)]
        for address in dict.fromkeys(chain.from_iterable(places)):
            if address.startswith("tcp:"):
                with trio.move_on_after(seconds):
                    try:
                        link = await self._endpoint.peers.first_contact(
                            address.removeprefix("tcp:")
                        )
                        service = self._endpoint.node_service(link.peer.name, link.peer.incarnation)
                        return await contact_facts(
                            service.options(timeout=seconds), all_members=False
                        )
                    except WrongStoreError as error:
                        # An address may mean another machine here: the next one counts as well.
                        foreign = error
                    except (
                        OSError,
                        ValueError,
                        trio.ClosedResourceError,
                        HandshakeError,
                        ProtocolError,
                        CallError,
                    ) as error:
                        logger.debug(
                            "no node that knows the store answers at %s: %s", address, error
                        )
        if foreign is not None:
            raise foreign
        return None

    def _moved(self, status: dict[str, Any]) -> Peer | None:
        """Use the incarnation that serves the store now; returns the one before, or None if it is
        the same.
        """
        where = status["store"]
        name, incarnation = where["node"], where["incarnation"]
        found = [
            member
            for member in status["members"]
            if (member["name"], member["incarnation"]) == (name, incarnation)
        ]
        if not found or (name, incarnation) == self.peer.identity:
            return None
        logger.warning("the store is served by %s (incarnation %d) now", name, incarnation)
        # The peer first: the handle that `use` gets below names the new incarnation.
        before, self.peer = self.peer, peer_of(found[0])
        self.store.use(self._service())
        return before

    def _service(self) -> StoreService:
        return cast(
            "StoreService",
            self._endpoint.system_handle(
                StoreService, store_service(self._identity), *self.peer.identity
            ),
        )


# The cluster's secret: where a node finds it, and how one is made where none was given.
#
# Order: what the caller gives, `UNDERSTUDY_SECRET`, and for nodes that only this machine can reach
# a file that belongs to the user alone, made at first use. A node that others can reach must be
# given one.

VARIABLE = "UNDERSTUDY_SECRET"


SIZE = 32


CERTIFICATES_INSTEAD = b"understudy: certificates stand in place of a secret"
"""The empty secret of a cluster that has none. There every connection is over TLS that has verified
both certificates, or over a Unix socket of one user.
"""


def find_security(
    secret: GivenSecret | None,
    tls: Tls | str | None,
    token: Callable[[int], bytes],
    *,
    needs_own: bool,
) -> tuple[Keyring, Tls]:
    """The secrets, and how connections are encrypted: certificates that are given without a secret
    stand in its place. The parameters and errors are those of `find_secret` and `find_tls`.
    """
    settled = settle_tls(secret, tls)
    found = find_secret(secret, token, needs_own=needs_own, certified=settled.has_files)
    return found, settled


def settle_tls(secret: object, tls: Tls | str | None) -> Tls:
    """Return the settings of `find_tls`; without the secret, if certificates take its place."""
    found = find_tls(tls)
    instead = found.has_files and secret is None and not os.environ.get(VARIABLE)
    return found.without_secret() if instead else found


def find_secret(
    given: GivenSecret | None,
    token: Callable[[int], bytes],
    *,
    needs_own: bool,
    certified: bool = False,
) -> Keyring:
    """Return the cluster's secret, or several while it is being changed. `token` draws a new one;
    `needs_own`: the shared file of this user is not enough; `certified`: certificates stand in its
    place where none is given.

    Raises `ListenError` if a secret is needed and none was given, TypeError or ValueError for one
    that is none.
    """
    if given is not None:
        return keyring_of(given)
    from_environment = os.environ.get(VARIABLE)
    if from_environment:
        # The bytes that stand there, as in a file: they may be no UTF-8.
        return Keyring(split_secrets(os.fsencode(from_environment), VARIABLE), "environment")
    if certified:
        return Keyring((CERTIFICATES_INSTEAD,), "certificates")
    if needs_own:
        raise ListenError(
            f"a node that other machines can reach needs a secret: set {VARIABLE}, or give "
            "--secret-file; `openssl rand -hex 32` makes one "
            "(one that listens on 127.0.0.1 needs none)"
        )
    return _shared(shared_secret_path(), token)


def shared_secret_path() -> Path:
    """Return the file with the secret that all clusters of this user on this machine share."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "understudy" / "secret"


def _shared(path: Path, token: Callable[[int], bytes]) -> Keyring:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            # First: in a folder that all can write, others may put a link in the place of a file.
            _check_own(path.parent, 0o002)
            # Written aside and linked into place: two first nodes at the same moment agree on one.
            aside = path.with_name(f"secret.{os.getpid()}")
            aside.unlink(missing_ok=True)
            # Opened once: the name may lead elsewhere a moment later.
            opened = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.write(opened, token(SIZE).hex().encode())
            finally:
                os.close(opened)
            try:
                os.link(aside, path)
            except FileExistsError:
                pass
            finally:
                aside.unlink()
        # Of the folder only writing counts: who may put files there may replace the secret. Rights
        # of a group are left to who has set them, as Kubernetes does for volumes.
        _check_own(path.parent, 0o002)
        _check_own(path, 0o007)
        return Keyring.of_file(path, "shared")
    except OSError as error:
        raise ListenError(
            f"the secret shared by this user's clusters cannot be stored in {path}: {error}; set "
            f"{VARIABLE} instead"
        ) from error


def _check_own(one: Path, open_to_all: int) -> None:
    """Refuse a folder or file by which other users know or choose a shared secret: with it they
    could start any code in the clusters of this user. `open_to_all`: the rights that they must not
    have. Raises `ListenError`.
    """
    status = one.stat()
    if status.st_uid not in (os.geteuid(), 0):
        raise ListenError(
            f"{one} belongs to another user (uid {status.st_uid}), and so may the secret in "
            f"it: set {VARIABLE}, or another XDG_STATE_HOME"
        )
    if status.st_mode & open_to_all:
        raise ListenError(
            f"all users of this machine can use {one} (mode {status.st_mode & 0o7777:o}), and "
            f"with it the secret of this user's clusters: chmod go= {one}"
        )


StoreKind = Literal["embedded", "etcd"]


@attrs.frozen
class ClusterSession:
    """A place in a cluster.

    `identity`: the cluster's, see `runtime.membership.cluster_session`. `store`: if this process
    reaches it by itself; otherwise `peer` is the node that serves it. `address`: where others may
    reach it as well, an `etcd://` address for example.
    """

    kind: StoreKind
    identity: str
    registration: Registration
    store: Store | None = None
    peer: Peer | None = None
    address: str = ""


@attrs.frozen
class ExternalStore:
    """A store that a member named and that clients access directly."""

    address: str


async def enter_with_store(
    store: Store,
    kind: StoreKind,
    address: str,
    cluster: str,
    secret: bytes | Keyring,
    environment: Environment,
    network: Network,
    record: NodeRecord,
    ended_lease: int = 0,
) -> ClusterSession:
    """Enter `record` into the cluster of `store`, or found it there. `ended_lease`: that of a node
    whose process has certainly ended, whose record may be replaced at once. Raises
    `StoreMismatchError`, `NodeNameTakenError`, `StoreError`.
    """
    cluster_record = await find_or_write_record(store, cluster, secret, environment)
    registration = Registration(store, environment, record, ended_lease)
    await registration.enter(network)
    return ClusterSession(kind, cluster_record.identity, registration, store, address=address)


async def enter_by_member(
    address: str,
    cluster: str,
    secret: bytes | Keyring,
    environment: Environment,
    network: Network,
    record: NodeRecord,
) -> ClusterSession | ExternalStore:
    """Enter `record` into the cluster that a member at `address` belongs to, if its store is served
    by one of its nodes.

    Raises `JoinError` (no answer; the message says what to do next), `NodeNameTakenError` or a
    `HandshakeError`.
    """
    async with open_client(
        address, cluster, secret, environment, network, record.host, all_members=False
    ) as client:
        where = client.status["store"]
        if where["kind"] != "embedded":
            return ExternalStore(where["address"])
        found = [member for member in client.status["members"] if member["name"] == where["node"]]
        if not found:
            raise JoinError(
                f"{address} names {where['node']} as the store's node, but does not know where it "
                "is; try again, or join by that node"
            )
        peer = peer_of(found[0])
        if peer.identity == (client.status["node"], client.status["incarnation"]):
            # It answers at `address`, even if it advertises another one.
            known = (*peer.addresses, ":".join(split_address(address)))
            peer = attrs.evolve(peer, addresses=tuple(dict.fromkeys(known)))
        registration = Registration(client.store, environment, record)
        if (
            await answered(
                partial(_enter, registration, network),
                partial(_is_connected, client, peer),
                environment.timings.join_answer,
            )
            is not None
        ):
            return ClusterSession("embedded", where["identity"], registration, peer=peer)
        why = unreached(client, found[0])
    if why:
        raise JoinError(
            f"{address} answers, but the node {where['node']}, which keeps the cluster's store, "
            f"cannot be reached from here ({why}); "
            "start it with a listen address, or with --advertise HOST:PORT, that others can dial"
        )
    raise JoinError(
        f"the store of the cluster at {address} did not answer within "
        f"{environment.timings.join_answer:g} s; check that its node, {where['node']}, runs and "
        "answers (`understudy doctor`)"
    )


class ClientRegistration(Registration):
    """Stands in for a `Registration` where a node has joined as a client. Writes nothing, so the
    node cannot lose its place either.
    """

    def __init__(self, store: Store, environment: Environment, record: NodeRecord) -> None:
        super().__init__(store, environment, record)
        assert not record.lease, "no lease ties anything to a client"

    async def enter(self, network: Network) -> int:
        """Raise AssertionError: a client has no record in the store, so nothing may call this."""
        raise AssertionError("a client is not entered into the store")

    async def set_state(self, state: str) -> int:
        """Does nothing: no other node sees the state of a client. Returns 0, as no revision was
        written.
        """
        await trio.lowlevel.checkpoint()
        return 0

    async def keep(self, names: LeasedNames) -> None:
        """Wait until cancelled: a client has no lease to renew."""
        await trio.sleep_forever()

    async def leave(self) -> None:
        """Does nothing: the nodes see that its connections end."""
        await trio.lowlevel.checkpoint()


async def enter_as_client(
    address: str,
    secret: bytes | Keyring,
    environment: Environment,
    network: Network,
    introduction: Introduction,
) -> ClusterSession:
    """Find out where the cluster of the member at `address` has its store, for a process that is
    to be no member. Raises what `open_client` raises, and `JoinError`.
    """
    me = introduction.peer
    async with open_client(
        address,
        introduction.cluster,
        secret,
        environment,
        network,
        me.host,
        me.rights or None,
        all_members=False,
    ) as client:
        where = client.status["store"]
        # The node that was dialled, where the store is no node's.
        found = [member for member in client.status["members"] if member["name"] == where["node"]]
        if not found:
            raise JoinError(
                f"{address} names {where['node']} as the store's node, but does not know where it "
                "is; try again"
            )
        peer = peer_of(found[0])
        known = (*peer.addresses, ":".join(split_address(address)))
        if peer.identity == (client.status["node"], client.status["incarnation"]):
            peer = attrs.evolve(peer, addresses=tuple(dict.fromkeys(known)))
        process = environment.process()
        record = NodeRecord(
            name=me.name,
            addresses=(),
            host=process.host,
            pid=process.pid,
            started=process.started,
            lease=0,
            joined=environment.wall_time(),
        )
        registration = ClientRegistration(client.store, environment, record)
        return ClusterSession(
            where["kind"], where["identity"], registration, peer=peer, address=where["address"]
        )


async def _enter(registration: Registration, network: Network) -> int:
    """Enter the cluster, repeatedly while the store cannot be reached: `answered` bounds the time,
    and knows why no answer came.
    """
    while True:
        try:
            return await registration.enter(network)
        except StoreUnavailableError:
            # Nothing was executed. A call of the store takes as long as the wait for a connection:
            # either may end first.
            await trio.lowlevel.checkpoint()


def _is_connected(client: ClusterClient, peer: Peer) -> bool:
    """True while a connection stands to the node that keeps the store."""
    link = client.endpoint.peers.links.get(peer.identity)
    return link is not None and link.connected
