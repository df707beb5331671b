"""Who is let into an etcd: by TLS, by a certificate, by a user's password."""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
import trustme

from actors.errors import JoinError, StoreError, StoreUnavailableError
from runtime import open_node
from runtime.node import internals_of
from runtime.store.etcd.address import EtcdAddress
from runtime.store.etcd.gateway import EtcdTrust, Gateway
from runtime.store.etcd.store import EtcdStore
from runtime.store.etcd.translation import EtcdRefusalError
from runtime.testing import EtcdCertificates, EtcdServer, open_etcd
from tests.etcd import needs_etcd
from tests.store.etcd.conftest import store_at

pytestmark = needs_etcd


@asynccontextmanager
async def behind_tls(
    target: int, authority: trustme.CA, *, client_certificates: bool = False
) -> AsyncIterator[int]:
    """The port of a TLS proxy before the etcd at `target`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    if client_certificates:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED

    async def serve(client: trio.SSLStream[trio.SocketStream]) -> None:
        try:
            async with (
                client,
                await trio.open_tcp_stream("127.0.0.1", target) as server,
                trio.open_nursery() as nursery,
            ):
                await client.do_handshake()

                async def carry(source: trio.abc.ReceiveStream, sink: trio.abc.SendStream) -> None:
                    while data := await source.receive_some():
                        await sink.send_all(data)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(carry, client, server)
                await carry(server, client)
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            # A client that is refused, or has gone.
            pass

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_ssl_over_tcp_listeners(
            0, context, host="127.0.0.1", https_compatible=True
        )
        await nursery.start(trio.serve_listeners, serve, listeners)
        yield listeners[0].transport_listener.socket.getsockname()[1]  # type: ignore[attr-defined]
        nursery.cancel_scope.cancel()


async def test_tls_is_spoken_and_its_certificate_checked(etcd: EtcdServer, tmp_path: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    stranger.cert_pem.write_to_path(str(tmp_path / "stranger.pem"))
    async with behind_tls(etcd.members[0].client_port, authority) as port:
        async with store_at(f"etcd://127.0.0.1:{port}?ca={tmp_path / 'ca.pem'}") as opened:
            assert await opened.put("key", b"") > 1
            assert (await opened.poll("key", 1)).events
        async with store_at(f"etcd://127.0.0.1:{port}?ca={tmp_path / 'stranger.pem'}") as opened:
            with pytest.raises(StoreUnavailableError, match=r"no TLS: .*certificate verify failed"):
                await opened._gateway.ask("/v3/kv/range", {"key": "AA=="}, seconds=0.3)
        async with store_at(f"etcd://127.0.0.1:{port}") as opened:
            with pytest.raises(StoreUnavailableError):
                await opened._gateway.ask("/v3/kv/range", {"key": "AA=="}, seconds=0.3)


async def test_a_client_certificate_is_shown(etcd: EtcdServer, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    certificate = authority.issue_cert("node")
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    (tmp_path / "key.pem").chmod(0o600)
    async with behind_tls(etcd.members[0].client_port, authority, client_certificates=True) as port:
        address = f"etcd://127.0.0.1:{port}?ca={tmp_path / 'ca.pem'}"
        async with store_at(
            f"{address}&cert={tmp_path / 'cert.pem'}&key={tmp_path / 'key.pem'}"
        ) as opened:
            assert await opened.put("key", b"") > 1
        async with store_at(address) as opened:
            with pytest.raises(StoreUnavailableError):
                await opened._gateway.ask("/v3/kv/range", {"key": "AA=="}, seconds=0.3)


def certificates(place: Path, authority: trustme.CA) -> EtcdCertificates:
    """Files with a certificate of this authority for 127.0.0.1, written over those of before."""
    files = EtcdCertificates(place / "ca.pem", place / "cert.pem", place / "key.pem")
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(files.key))
    files.key.chmod(0o600)
    issued.cert_chain_pems[0].write_to_path(str(files.certificate))
    authority.cert_pem.write_to_path(str(files.ca))
    return files


async def test_an_etcd_that_wants_certificates_keeps_a_cluster_while_they_are_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = trustme.CA()
    for name in ("server", "clients", "strangers"):
        (tmp_path / name).mkdir()
    stranger = certificates(tmp_path / "strangers", trustme.CA())
    files = certificates(tmp_path / "clients", authority)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            open_etcd(certificates=certificates(tmp_path / "server", authority))
        )
        plain = server.address.partition("?")[0]
        given = f"{plain}?ca={files.ca}&cert={files.certificate}&key={files.key}"
        node, there = [
            await stack.enter_async_context(open_node(name, store=given, secret="of the tests"))
            for name in ("here", "there")
        ]
        await node.wait_for(2)
        for address, why in (
            (plain, "answers"),
            (f"{plain}?ca={files.ca}", "answers"),
            (f"{plain}?ca={files.ca}&cert={stranger.certificate}&key={stranger.key}", "answers"),
            (f"{plain}?ca={stranger.ca}", "certificate verify failed"),
        ):
            async with store_at(address) as opened:
                with pytest.raises(StoreUnavailableError, match=why):
                    await opened._gateway.ask("/v3/kv/range", {"key": "AA=="}, seconds=0.3)
        # A node that joins by another has to be given the files as well.
        with pytest.raises(JoinError, match="needs a user or certificates"):
            async with open_node(join=node.address, secret="of the tests"):
                pass
        for replace in (
            lambda: certificates(tmp_path / "clients", authority),
            lambda: files.certificate.write_text("none"),
        ):
            replace()
            # As when etcd has closed them, so that both nodes show their certificates again.
            for each in (node, there):
                store = internals_of(each).own_store
                assert isinstance(store, EtcdStore)
                for member in store._gateway._members:
                    member.end_streams()
                    while member.idle:
                        member.idle.pop().close()
                assert await store.put(f"after/{each.name}", b"1") > 1
        assert any("what was read before stays in use" in line for line in caplog.messages)
        assert {member.name for member in node.members()} == {"here", "there"}


async def test_certificates_for_etcd_are_read_again_and_broken_ones_leave_the_old_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = trustme.CA()
    files = certificates(tmp_path, authority)
    address = EtcdAddress.parse(
        f"etcd://127.0.0.1:1?ca={files.ca}&cert={files.certificate}&key={files.key}"
    )
    trust = EtcdTrust(address)
    first = trust.context()
    assert trust.context() is first
    certificates(tmp_path, authority)
    second = trust.context()
    assert second is not first
    files.certificate.write_text("none")
    for _ in range(3):
        assert trust.context() is second
    files.key.unlink()
    assert trust.context() is second
    assert len([line for line in caplog.messages if "stays in use" in line]) == 2
    certificates(tmp_path, authority)
    assert trust.context() not in (first, second)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    files = certificates(tmp_path, trustme.CA())
    files.key.chmod(0o640)
    address = f"etcd://127.0.0.1:1?ca={files.ca}&cert={files.certificate}&key={files.key}"
    with pytest.raises(ValueError, match=r"others can read the private key .*key.pem"):
        Gateway(EtcdAddress.parse(address))


def test_files_that_are_no_certificates_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    for file in (tmp_path / "ca.pem", tmp_path / "missing.pem"):
        with pytest.raises(ValueError, match="look at ca, cert and key"):
            Gateway(EtcdAddress.parse(f"etcd://127.0.0.1:1?ca={file}"))


async def test_a_user_has_its_own_keys_also_after_its_token_has_expired() -> None:
    async with open_etcd() as server:
        where = server.address.removeprefix("etcd://")
        await lock_up(Gateway(EtcdAddress.parse(server.address)))
        async with store_at(f"etcd://ann:right@{where}", "cluster") as opened:
            assert await opened.put("key", b"1") > 1
            assert (await opened.poll("key", 1)).events
            opened._gateway._token = "expired"
            revision = await opened.put("key", b"2")
            opened._gateway._token = "expired"
            assert (await opened.poll("k", revision)).events, "a new watch"
        async with store_at(f"etcd://ann:right@{where}?prefix=others", "cluster") as opened:
            with pytest.raises(EtcdRefusalError, match=r"permission denied.*READWRITE.*'others/'"):
                await opened.poll("key", 1)
        for address, why in (
            (f"etcd://ann:wrong@{where}", "authentication failed"),
            (f"etcd://{where}", "user name is empty"),
        ):
            async with store_at(address, "cluster") as opened:
                with pytest.raises(
                    EtcdRefusalError, match=rf"refuses access .*{why}.*password-file=FILE"
                ) as refused:
                    await opened.get("key")
                assert "wrong" not in str(refused.value)
        with pytest.raises(StoreError, match=r"refuses access .*permission denied"):
            async with open_node(
                store=f"etcd://ann:right@{where}?prefix=others", secret="of the tests"
            ):
                pass
        async with open_node(
            "here", store=f"etcd://ann:right@{where}", secret="of the tests"
        ) as node:
            with pytest.raises(JoinError, match="needs a user or certificates"):
                async with open_node(join=node.address, secret="of the tests"):
                    pass


async def lock_up(gateway: Gateway) -> None:
    """Let in nobody but root and ann, who has the keys under `understudy/`."""
    start, end = (b64encode(key).decode() for key in (b"understudy/", b"understudy0"))
    for path, body in (
        ("user/add", {"name": "root", "password": "root"}),
        ("role/add", {"name": "root"}),
        ("user/grant", {"user": "root", "role": "root"}),
        ("user/add", {"name": "ann", "password": "right"}),
        ("role/add", {"name": "writer"}),
        (
            "role/grant",
            {"name": "writer", "perm": {"permType": "READWRITE", "key": start, "range_end": end}},
        ),
        ("user/grant", {"user": "ann", "role": "writer"}),
        ("enable", {}),
    ):
        await gateway.ask(f"/v3/auth/{path}", body)
    gateway.close()
