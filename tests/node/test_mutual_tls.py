"""Nodes that show certificates of a CA: which are accepted, which are refused, and what happens to
files under a running node.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization

from actors import Actor, method
from actors.errors import EncryptionError, UnderstudyError, WrongCertificateError, WrongSecretError
from runtime import Tls, open_node
from runtime.command_line.main import main
from runtime.environment import SystemEnvironment
from runtime.links.credentials import (
    JUDGED_AGAIN_SECONDS,
    CertificateFiles,
    FileCredentials,
    read_credentials,
)
from runtime.links.encryption import EncryptedNetwork
from runtime.node import Node, internals_of
from runtime.testing import Platform
from runtime.timings import Timings
from runtime.wire.handshake import (
    Acceptor,
    Certified,
    Channel,
    Dialer,
    Introduction,
    Peer,
    certified_uri,
    check_certified,
)
from tests import forked_python
from tests.authority import Authority, Elsewhere, node_uri
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("no_secret")


class Echo(Actor):
    @method
    async def echo(self, value: str) -> str:
        return value


@asynccontextmanager
async def pair(
    authority: Authority, mode: Any = None, crl: Path | str = "", **more: Any
) -> AsyncIterator[Node]:
    """Two nodes, whose link must be the same over the same connection afterwards."""
    # However long it takes: what has changed in the files makes connections anew after a while.
    timings = Timings(trust_checked=3600.0)
    async with (
        open_node(
            "here",
            tls=authority.tls(node_uri("here"), stem="here", mode=mode, crl=crl),
            platform=Platform(environment=SystemEnvironment(timings)),
            **more,
        ) as here,
        open_node(
            "there",
            join=here.address,
            tls=authority.tls(node_uri("there"), stem="there", mode=mode, crl=crl),
            platform=Platform(environment=Elsewhere(timings)),
            **more,
        ) as there,
    ):
        echo = await there.options(on="here").spawn(Echo)
        assert await echo.echo("1") == "1"
        (link,) = (one for one in internals_of(there).links.values() if one.peer.name == "here")
        connections = link.counters.connections
        assert link.connection is not None
        assert link.connection.channel.certified == Certified(
            "understudy", "node", "here", (node_uri("here"),)
        )
        yield here
        with trio.fail_after(60):
            assert await echo.echo("2") == "2"
        assert link.ended is None
        assert link.counters.connections == connections


Log = Callable[[str], Awaitable[None]]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    caplog.set_level(logging.INFO, "understudy")

    async def logged(text: str) -> None:
        await until(
            lambda: any(text in line or re.search(text, line) for line in caplog.messages),
            f"{text!r} is logged",
        )

    return logged


async def refused(
    error: type[UnderstudyError], text: str, node: Node, tls: Any, **more: Any
) -> None:
    with trio.fail_after(60), pytest.raises(error, match=text) as raised:
        async with open_node(
            "stranger",
            join=node.address,
            tls=tls,
            platform=Platform(environment=Elsewhere()),
            **more,
        ):
            pytest.fail("joined")
    assert str(raised.value).count(node.address.removeprefix("tcp:")) <= 1, "not twice"


async def test_certificates_stand_in_place_of_a_secret(authority: Authority) -> None:
    async with pair(authority):
        pass


async def test_each_wrong_certificate_is_named_and_disturbs_nobody(
    authority: Authority, log: Log, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other")
    here_ca = authority.place / "ca.pem"
    mine = node_uri("stranger")
    async with pair(authority) as node:
        over = authority.tls(mine, begins=-9, ends=-1)
        await refused(EncryptionError, "this side's certificate has expired", node, over)
        await log("not accepted here: certificate has expired")
        await refused(
            EncryptionError, "may not be valid yet", node, authority.tls(mine, begins=1, ends=9)
        )
        await log("not accepted here: certificate is not yet valid")
        # Of another CA, and either trusting ours or not.
        await refused(EncryptionError, "does not know the CA", node, other.tls(mine, ca=here_ca))
        await refused(EncryptionError, "not accepted here", node, other.tls(mine))
        for uri, text in (
            (node_uri("another"), "is for the node 'another'"),
            (node_uri("stranger", role="client"), "for the role 'client', and it comes as a node"),
            (node_uri("stranger", cluster="prod"), "is for the cluster 'prod'"),
            ("spiffe://example.org/x", "has no name"),
            (None, "it has no URI at all"),
        ):
            await refused(WrongCertificateError, text, node, authority.tls(uri))
        # None at all: it speaks TLS, and shows nothing.
        await refused(
            EncryptionError, "asks for a certificate", node, "require", secret="no matter which"
        )


@pytest.mark.parametrize(
    ("certified", "text"),
    [
        (Certified("understudy", "node", "another"), "is for the node 'another'"),
        (Certified("understudy", "client", "bob"), "and it comes as a node"),
        (Certified("prod", "node", "bob"), "is for the cluster 'prod'"),
        (Certified(uris=("spiffe://x/y",)), "has no name"),
        (Certified.of((node_uri("bob"), node_uri("bob", role="client"))), "has several names"),
        (Certified.of((node_uri("bob"), node_uri("bob", "prod"))), "has several names"),
    ],
)
def test_who_does_not_look_at_its_own_certificate_is_refused_by_either_side(
    certified: Certified, text: str
) -> None:
    def side(name: str) -> Introduction:
        return Introduction(cluster="understudy", peer=Peer(name=name, incarnation=1, role="node"))

    sees, plain = Channel(b"", certified), Channel()
    for dialers, acceptors in ((plain, sees), (sees, plain)):
        dialer = Dialer(side("bob"), b"secret", bytes(32), None, dialers)
        acceptor = Acceptor(side("alice"), b"secret", bytes(32), acceptors)
        answer = acceptor.receive(*dialer.start())
        assert answer is not None
        with pytest.raises(WrongCertificateError, match=text):
            dialer.receive(*answer)
        assert (acceptor.error is not None) == (acceptors.certified is not None)


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ("expired", EncryptionError, "certificate has expired; make a new one for the other end"),
        ("not yet valid", EncryptionError, "is not yet valid; compare the clocks of both machines"),
        ("another CA", EncryptionError, "none of the CAs that this side has .--tls-ca. has signed"),
        ("revoked", EncryptionError, "the list of revoked certificates .--tls-crl. has it"),
        ("name", WrongCertificateError, "of node 'dialled' is for the node 'another'.*--name dial"),
        ("role", WrongCertificateError, "is for the role 'client', and it comes as a node"),
        ("cluster", WrongCertificateError, "is for the cluster 'prod'.*--cluster understudy"),
    ],
)
async def test_who_dials_is_told_what_is_wrong_with_the_certificate_of_the_other_end(
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wrong: str,
    error: type[UnderstudyError],
    text: str,
) -> None:
    mine, crl = node_uri("dialled"), authority.place / "crl.pem"
    other = Authority(tmp_path / "other")
    shown = {
        "expired": lambda: authority.tls(mine, begins=-9, ends=-1),
        "not yet valid": lambda: authority.tls(mine, begins=1, ends=9),
        "another CA": lambda: other.tls(mine, ca=authority.place / "ca.pem"),
        "revoked": lambda: authority.tls(mine, stem="revoked"),
        "name": lambda: authority.tls(node_uri("another")),
        "role": lambda: authority.tls(node_uri("dialled", role="client")),
        "cluster": lambda: authority.tls(node_uri("dialled", cluster="prod")),
    }[wrong]()
    crl.write_bytes(authority.revoke(*(["revoked"] if wrong == "revoked" else [])))
    # It would refuse some of them for itself at its start.
    monkeypatch.setattr(EncryptedNetwork, "check_own_certificate", lambda *_: None)
    async with (
        pair(authority, crl=crl) as node,
        open_node("dialled", tls=shown, platform=Platform(environment=Elsewhere())) as dialled,
    ):
        with trio.fail_after(60), pytest.raises(error, match=text) as raised:
            await internals_of(node).endpoint.peers.first_contact(dialled.address, 30.0)
    named = dialled.address if error is EncryptionError else "node 'dialled'"
    assert named in str(raised.value)


@pytest.mark.parametrize(("wrong", "reason"), [("expired", "has expired"), ("another CA", "local")])
async def test_a_founder_learns_that_it_refuses_its_own_certificate_itself(
    authority: Authority,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    wrong: str,
    reason: str,
) -> None:
    mine, other = node_uri("founder"), Authority(tmp_path / "other")
    shown = (
        authority.tls(mine, begins=-9, ends=-1)
        if wrong == "expired"
        else other.tls(mine, ca=authority.place / "ca.pem")
    )
    async with open_node("founder", tls=shown):
        pass
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.startswith("node founder: others with the same files would refuse the certificate")
    assert reason in line


async def test_a_secret_counts_beside_certificates_if_there_is_one(authority: Authority) -> None:
    mine = authority.tls(node_uri("stranger"))
    async with pair(authority, "require", secret="both of them") as node:
        await refused(WrongSecretError, "secret", node, mine)


async def test_without_a_secret_nothing_is_plain(authority: Authority) -> None:
    async with pair(authority) as node:
        await refused(EncryptionError, "over TLS only", node, "off", secret="any")
        with pytest.raises(ValueError, match="--tls accept needs a secret"):
            async with open_node(tls=authority.tls(node_uri("x"), mode="accept")):
                pytest.fail("opened")


async def test_a_name_for_all_and_a_client_that_only_asks(authority: Authority) -> None:
    async with pair(authority) as node:
        async with open_node(
            "whatever", join=node.address, tls=authority.tls(node_uri("*")),
            platform=Platform(environment=Elsewhere()),
        ) as third:  # fmt: skip
            assert third.name == "whatever"
        tls = authority.tls(node_uri("someone", role="client"))
        found = await forked_python.run_process(
            [sys.executable, "-m", "runtime.command_line", "status", "--json", "-a", node.address,
             "--tls-ca", tls.ca, "--tls-cert", tls.certificate, "--tls-key", tls.key],
            timeout=60,
        )  # fmt: skip
        assert "there" in found.stdout


async def test_files_are_read_again_and_broken_ones_leave_the_old_in_use(
    authority: Authority, log: Log
) -> None:
    async with pair(authority) as node:
        # The CA is replaced: who has a certificate of the new one comes in, without a restart.
        new = Authority(authority.place.parent / "new")
        newcomer = new.tls(node_uri("stranger"))
        both = (authority.place / "ca.pem").read_bytes() + (new.place / "ca.pem").read_bytes()
        await refused(EncryptionError, "not accepted here", node, newcomer)
        (authority.place / "ca.pem").write_bytes(both)
        (new.place / "ca.pem").write_bytes(both)
        async with open_node(
            "stranger", join=node.address, tls=newcomer, platform=Platform(environment=Elsewhere())
        ):
            pass
        await log("was read again")
        file = authority.place / "here.pem"
        good = file.read_bytes()

        def open_key() -> None:
            file.write_bytes(good)
            (authority.place / "here-key.pem").chmod(0o644)

        for spoil, text in (
            (lambda: file.write_bytes(good[:200]), "holds no certificate in PEM"),
            (lambda: file.write_bytes(b""), "holds no certificate in PEM"),
            (file.unlink, "cannot be read: No such file"),
            (open_key, "chmod 600"),
        ):
            spoil()
            async with open_node(
                "again", join=node.address, tls=authority.tls(node_uri("again")),
                platform=Platform(environment=Elsewhere()),
            ):  # fmt: skip
                pass
            await log(text)
            await log("the certificate that was read before stays in use")


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"uri": node_uri("here", cluster="other")}, "is for the cluster 'other'"),
        ({"uri": node_uri("there")}, "is for the node 'there'"),
        ({"uri": node_uri("here", role="client")}, "is for the role 'client'"),
        ({"uri": None}, "has no name"),
        ({"uri": node_uri("here"), "ends": -0.5}, "certificate has expired"),
        ({"uri": node_uri("here"), "begins": 0.5}, "certificate is not yet valid"),
        ({"uri": node_uri("here"), "authority": "foreign"}, "unable to get local issuer"),
    ],
    ids=["cluster", "name", "role", "nobody", "expired", "not yet valid", "CA"],
)
async def test_a_new_certificate_that_all_would_refuse_is_not_used(
    authority: Authority, log: Log, wrong: dict[str, Any], text: str
) -> None:
    async with pair(authority) as node:
        network: Any = node._network
        before = node._own_certificate()
        given = dict(wrong)
        name = given.pop("authority", "")
        issuer = Authority(authority.place.parent / name) if name else authority
        issuer.tls(stem="here", place=authority.place, **given)
        assert node._own_certificate() == before
        assert text in network.files_problem()
        await log("all others would refuse the new certificate")
        await log("the certificate that was read before stays in use")
        again = authority.tls(node_uri("again"))
        elsewhere = Platform(environment=Elsewhere())
        async with open_node("again", join=node.address, tls=again, platform=elsewhere):
            pass
        authority.tls(node_uri("here"), stem="here")
        assert node._own_certificate() != before
        assert not network.files_problem()


async def test_a_certificate_that_becomes_valid_is_used_then(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = authority.tls(node_uri("n"), stem="n")
    now = 100.0
    credentials = FileCredentials(tls.files, lambda: now)
    before = credentials.current().certificate
    other = Authority(authority.place.parent / "other")
    other.tls(node_uri("n"), stem="n", place=authority.place)
    assert credentials.current().certificate == before
    # As time would make it valid: by nothing that changes its files.
    valid = attrs.evolve(tls.files, ca=str(other.place / "ca.pem"))
    monkeypatch.setattr(
        "runtime.links.credentials.read_credentials", lambda files: read_credentials(valid)
    )
    assert credentials.current().certificate == before
    now += JUDGED_AGAIN_SECONDS
    assert credentials.current().certificate != before
    assert not credentials.problem


async def test_the_trust_is_renewed_where_the_own_certificate_ends_by_it(
    authority: Authority,
) -> None:
    tls = authority.tls(node_uri("n"), stem="n")
    credentials = FileCredentials(tls.files)
    other = Authority(authority.place.parent / "other")
    (authority.place / "ca.pem").write_bytes(other.pem)
    # The CA was removed on purpose: who has a certificate of it must not come in any more.
    assert other.pem in credentials.current().trust
    assert not credentials.problem


@pytest.mark.parametrize(
    ("uri", "words", "text"),
    [
        (node_uri("w1"), (), "(node 'w1' of cluster 'understudy') is accepted by "),
        (node_uri("w1"), ("--cluster", "understudy", "--name", "w1"), "is accepted by "),
        (node_uri("*"), ("--name", "w1"), "is accepted by "),
        (node_uri("ann", role="client"), ("--cluster", "understudy"), "(client 'ann' of cluster"),
        (node_uri("w1"), ("--name", "w2"), "is for the node 'w1'"),
        (node_uri("w1"), ("--cluster", "prod"), "is for the cluster 'understudy'"),
        (node_uri("ann", role="client"), ("--cluster", "prod"), "is for the cluster 'understudy'"),
        (node_uri("ann", role="client"), ("--name", "w1"), "is for the role 'client'"),
        (None, (), "has no name"),
        ("expired", (), "certificate has expired"),
    ],
)
def test_the_doctor_looks_at_the_certificate_that_options_name(
    authority: Authority, uri: str | None, words: tuple[str, ...], text: str
) -> None:
    expired = uri == "expired"
    tls = authority.tls(node_uri("w1") if expired else uri, ends=-0.5 if expired else 100)
    files = ("--tls-ca", tls.ca, "--tls-cert", tls.certificate, "--tls-key", tls.key)
    done = CliRunner().invoke(main, ["doctor", "--json", *files, *words])
    (found,) = (one for one in json.loads(done.stdout) if one["check"] == "tls")
    assert text in found["text"]
    assert found["well"] == ("is accepted" in found["text"])
    assert (done.exit_code == 0) <= found["well"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda ca: (ca / "n-key.pem").chmod(0o640), "chmod 600 .*n-key.pem"),
        (lambda ca: (ca / "n-key.pem").unlink(), r"No such file .* `understudy tls cert` make"),
        (lambda ca: (ca / "n.pem").write_text("no"), r"n.pem holds no .* PEM: give the file"),
        (lambda ca: (ca / "ca.pem").write_text("no"), "ca.pem holds no CA's certificate"),
        (lambda ca: (ca / "n-key.pem").write_text("no"), r"are not a .* key .*: give the key that"),
    ],
)
async def test_files_that_cannot_be_used_are_refused_at_the_start(
    authority: Authority, change: Callable[[Path], Any], text: str
) -> None:
    tls = authority.tls(node_uri("n"), stem="n")
    change(authority.place)
    with pytest.raises(ValueError, match=text):
        async with open_node("n", tls=tls):
            pytest.fail("opened")


async def test_a_key_with_a_passphrase_is_refused_and_none_is_asked_for(
    authority: Authority,
) -> None:
    tls = authority.tls(node_uri("n"), stem="n")
    file = authority.place / "n-key.pem"
    key = serialization.load_pem_private_key(file.read_bytes(), None)
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"open"),
        )
    )
    with pytest.raises(ValueError, match="are not a certificate and its key"):
        async with open_node("n", tls=tls):
            pytest.fail("opened")


@pytest.mark.parametrize(
    ("mode", "owner", "step"),
    [(0o440, 0, ""), (0o460, 0, "440"), (0o444, 0, "440"), (0o440, 1, "600"), (0o600, 1, "")],
)
def test_a_key_of_root_may_be_readable_by_the_group_of_a_service(
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    mode: int,
    owner: int,
    step: str,
) -> None:
    """As credentials of systemd and secrets of Kubernetes are."""
    tls = authority.tls(node_uri("n"), stem="n")
    os.chmod(tls.key, mode)
    stat = os.stat

    def owned(path: str, **options: Any) -> os.stat_result:
        status = stat(path, **options)
        return os.stat_result((*status[:4], owner, *status[5:]))

    monkeypatch.setattr("runtime.private_files.os.stat", owned)
    monkeypatch.setattr("runtime.private_files.os.geteuid", lambda: 1)
    files = CertificateFiles(tls.ca, tls.certificate, tls.key)
    if not step:
        read_credentials(files)
    else:
        with pytest.raises(ValueError, match=rf"mode {mode:o}\): chmod {step}"):
            read_credentials(files)


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(ValueError, match="given together"):
        Tls(ca="ca.pem")
    with pytest.raises(ValueError, match="not used with TLS off"):
        Tls(mode="off", ca="a", certificate="b", key="c")


@asynccontextmanager
async def recording(target: str) -> AsyncIterator[tuple[str, list[bytes]]]:
    """An address that leads to `target`, and what the first connection over it sends there."""
    host, _, port = target.rpartition(":")
    recorded: list[bytes] = []
    firsts = [recorded]

    async def serve(client: trio.SocketStream) -> None:
        kept = firsts.pop() if firsts else []

        async def carry(source: trio.SocketStream, sink: trio.SocketStream, into: Any) -> None:
            try:
                async for data in source:
                    into.append(data)
                    await sink.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            nursery.cancel_scope.cancel()

        async with (
            client,
            await trio.open_tcp_stream(host, int(port)) as server,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(carry, client, server, kept)
            await carry(server, client, [])

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(
            functools.partial(trio.serve_tcp, serve, 0, host="127.0.0.1")
        )
        yield f"127.0.0.1:{listeners[0].socket.getsockname()[1]}", recorded
        nursery.cancel_scope.cancel()


async def test_a_recorded_handshake_that_is_played_back_or_breaks_off_is_refused(
    authority: Authority, log: Log
) -> None:
    async with pair(authority) as node:
        host, _, port = node.address.rpartition(":")
        async with recording(node.address) as (address, recorded), open_node(
            "third", join=address, tls=authority.tls(node_uri("third")),
            platform=Platform(environment=Elsewhere()),
        ):  # fmt: skip
            # Its hello, its certificate, and its proof.
            await until(lambda: len(b"".join(recorded)) > 1000, "a handshake was recorded")
        whole = b"".join(recorded)
        for cut in (len(whole), 900, 300, 5, 1):
            with trio.fail_after(60):
                async with await trio.open_tcp_stream(host, int(port)) as stream:
                    await stream.send_all(whole[:cut])
                    await stream.send_eof()
                    answered = b""
                    try:
                        async for data in stream:
                            answered += data
                    except trio.BrokenResourceError:
                        pass
                    # The server's share of a handshake, and no frame.
                    assert len(answered) < 8000
            if cut == len(whole):
                await log("its TLS handshake failed")
        assert {member.name for member in node.members()} <= {"here", "there", "third"}


async def test_spiffe_ids_name_members_by_a_map(authority: Authority, tmp_path: Path) -> None:
    names = tmp_path / "names"
    names.write_text(
        "spiffe://example.org/node/{name} understudy://understudy/node/{name}\n"
        "spiffe://example.org/ops/{name} understudy://understudy/operator/{name}\n"
    )

    def tls(path: str) -> Tls:
        return authority.tls(f"spiffe://example.org/{path}", map=names)

    def elsewhere() -> Platform:
        return Platform(environment=Elsewhere())

    async with (
        open_node("here", tls=tls("node/here")) as here,
        open_node("there", join=here.address, tls=tls("node/there"), platform=elsewhere()) as there,
    ):
        echo = await there.options(on="here").spawn(Echo)
        assert await echo.echo("1") == "1"
        (link,) = (one for one in internals_of(there).links.values() if one.peer.name == "here")
        assert link.verified is not None
        assert (link.verified.role, link.verified.name) == ("node", "here")
        for path, text in (
            ("node/another", "is for the node 'another'"),
            ("ops/stranger", "for the role 'operator', and it comes as a node"),
            ("other", "has no name .*--tls-map"),
        ):
            await refused(WrongCertificateError, text, here, tls(path))
        found = await forked_python.run_process(
            [sys.executable, "-m", "runtime.command_line", "status", "--json", "-a", here.address,
             "--tls-ca", tls("x").ca, "--tls-map", str(names),
             "--tls-cert", (ops := tls("ops/ann")).certificate, "--tls-key", ops.key],
            timeout=60,
        )  # fmt: skip
        assert "there" in found.stdout
    names.write_text("spiffe://x")
    with pytest.raises(ValueError, match="is not a map of names: line 1: a rule is two words"):
        async with open_node("here", tls=tls("node/here")):
            pytest.fail("opened")


async def test_revoked_certificates_and_lists_that_are_of_no_use_are_named(
    authority: Authority, tmp_path: Path, log: Log
) -> None:
    revoked = authority.place / "crl.pem"
    mine = authority.tls(node_uri("stranger"), stem="stranger")
    other = Authority(tmp_path / "other")

    def write(content: bytes) -> None:
        revoked.write_bytes(content)

    write(authority.revoke("stranger"))
    async with pair(authority, crl=revoked) as node:
        await refused(EncryptionError, "this side's certificate was revoked", node, mine)
        await log("certificate revoked; the list of revoked certificates .--tls-crl. has it")
    write(authority.revoke())
    for content, text in (
        (other.revoke(), "this side has no list of revoked certificates"),
        (authority.revoke(days=-0.5), "the list of revoked certificates .--tls-crl. has expired"),
        (authority.revoke(begins=0.5), "the list .* is not valid yet: look at this machine"),
    ):
        here = authority.tls(node_uri("here"), stem="here", crl=revoked)
        write(authority.revoke())
        async with open_node("here", tls=here) as node:
            write(content)
            await refused(EncryptionError, "the other end", node, mine)
            await log(text)
    for content in (b"no", authority.pem, authority.revoke() + authority.pem):
        write(content)
        with pytest.raises(ValueError, match="holds no list of revoked certificates in PEM"):
            async with open_node("here", tls=here):
                pytest.fail("opened")
    with pytest.raises(ValueError, match="--tls-crl and --tls-map need --tls-ca"):
        async with open_node("here", tls=Tls(crl=revoked)):  # type: ignore[arg-type]
            pytest.fail("opened")


async def test_with_two_cas_the_list_of_each_is_needed_and_counts_for_its_own(
    authority: Authority, tmp_path: Path, log: Log
) -> None:
    other, both, revoked = Authority(tmp_path / "other"), tmp_path / "both.pem", tmp_path / "crl"
    both.write_bytes(authority.pem + other.pem)

    def signed(by: Authority, name: str) -> Tls:
        return by.tls(node_uri(name), stem=name, ca=both, crl=revoked)

    def write(*lists: bytes) -> None:
        revoked.write_bytes(b"".join(lists))

    async def joined(node: Node, tls: Tls) -> None:
        elsewhere = Platform(environment=Elsewhere())
        async with open_node("stranger", join=node.address, tls=tls, platform=elsewhere) as there:
            await there.wait_for(2)

    write(authority.revoke(), other.revoke())
    mine, theirs = (signed(one, "stranger") for one in (authority, other))
    async with open_node("here", tls=signed(authority, "here")) as here:
        for tls in (mine, theirs):
            await joined(here, tls)
        # One list is none for what the other CA has signed.
        write(authority.revoke())
        await refused(EncryptionError, "the other end", here, attrs.evolve(theirs, crl=""))
        await log("this side has no list of revoked certificates")
        await joined(here, mine)
        # The order in the file is of no account, and a list names certificates of its own CA only.
        for lists in (
            (other.revoke("stranger"), authority.revoke()),
            (authority.revoke(), other.revoke("stranger")),
        ):
            write(*lists)
            await refused(EncryptionError, "was revoked", here, attrs.evolve(theirs, crl=""))
            await joined(here, mine)
        write(authority.revoke("stranger"), other.revoke())
        await refused(EncryptionError, "was revoked", here, attrs.evolve(mine, crl=""))
        await joined(here, theirs)


def test_the_command_revokes_certificates_of_its_ca_only(tmp_path: Path) -> None:
    def run(*words: str) -> Any:
        return CliRunner().invoke(main, ["tls", *words])

    place, other = tmp_path / "pki", tmp_path / "other"
    for directory in (place, other):
        assert run("ca", "--dir", str(directory)).exit_code == 0
        for name in ("w1", "w2"):
            assert run("cert", "--name", name, "--dir", str(directory)).exit_code == 0
    assert "crl.pem: 0 revoked" in run("revoke", "--dir", str(place)).output
    for _ in range(2):
        done = run("revoke", "--dir", str(place), str(place / "w1.pem"))
        assert "crl.pem: 1 revoked" in done.output, done.output
    foreign = run("revoke", "--dir", str(place), str(other / "w1.pem"))
    assert foreign.exit_code == 1
    assert "was not signed by" in foreign.output
    for name, verdict in (("w1", "certificate revoked"), ("w2", "OK")):
        files = ("-CAfile", place / "ca.pem", "-CRLfile", place / "crl.pem", place / f"{name}.pem")
        judged = subprocess.run(
            ["openssl", "verify", "-crl_check", *files],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert verdict in judged.stdout + judged.stderr
    (other / "crl.pem").write_bytes((place / "crl.pem").read_bytes())
    assert "another CA's list" in run("revoke", "--dir", str(other)).output
    (place / "crl.pem").write_text("no")
    assert "is not a list of revoked certificates" in run("revoke", "--dir", str(place)).output
    assert sorted(path.name for path in place.glob("crl*")) == ["crl.pem"]


def test_the_command_makes_what_nodes_accept_and_overwrites_nothing(tmp_path: Path) -> None:
    def run(*words: str) -> Any:
        return CliRunner().invoke(main, ["tls", *words])

    place = tmp_path / "pki"
    assert run("cert", "--name", "w1", "--dir", str(place)).exit_code == 1
    assert run("ca", "--dir", str(place)).exit_code == 0
    again = run("ca", "--dir", str(place))
    assert again.exit_code == 1
    assert "is there already" in again.output
    for name in ("w1", "w2", "*"):
        made = run("cert", "--name", name, "--dir", str(place), "--days", "20")
        assert made.exit_code == 0, made.output
    assert run("cert", "--name", "../w", "--dir", str(place)).exit_code == 2
    assert run("cert", "--name", "w", "--role", "king", "--dir", str(place)).exit_code == 2
    assert {path.name: path.stat().st_mode & 0o777 for path in place.glob("*-key.pem")} == {
        f"{stem}-key.pem": 0o600 for stem in ("ca", "w1", "w2", "any")
    }
    facts = json.loads(run("info", "--json", str(place / "w1.pem")).output)
    assert (facts["cluster"], facts["role"], facts["name"]) == ("understudy", "node", "w1")
    assert facts["days_left"] == 19
    assert json.loads(run("info", "--json", str(place / "any.pem")).output)["name"] == "*"
    assert run("expiry", str(place / "w1.pem"), str(place / "ca.pem")).exit_code == 0
    every = run("expiry", *map(str, sorted(place.glob("*.pem"))))
    assert every.exit_code == 0, every.output
    assert len(every.output.splitlines()) == 4
    assert run("expiry", str(place / "ca-key.pem")).exit_code == 1
    soon = run("expiry", "--within", "30", str(place / "w1.pem"), str(place / "ca.pem"))
    assert soon.exit_code == 1
    assert "w1.pem" in soon.output
    broken = run("info", str(tmp_path / "none.pem"))
    assert broken.exit_code == 1
    assert "cannot be read: No such file" in broken.output

    async def use() -> None:
        files = {
            name: Tls(
                ca=place / "ca.pem",  # type: ignore[arg-type]
                certificate=place / f"{name}.pem",  # type: ignore[arg-type]
                key=place / f"{name}-key.pem",  # type: ignore[arg-type]
            )
            for name in ("w1", "w2")
        }
        async with (
            open_node("w1", tls=files["w1"]) as one,
            open_node(
                "w2", join=one.address, tls=files["w2"], platform=Platform(environment=Elsewhere())
            ) as two,
        ):
            echo = await two.options(on="w1").spawn(Echo)
            assert await echo.echo("x") == "x"

    trio.run(use)


def test_names_of_all_kinds_come_back_from_their_uri() -> None:
    for cluster, name in (("a", "b"), ("ü/x", "w 1"), ("c", "*"), ("c", "w%2F/?#")):
        uri = certified_uri(cluster, "node", name)
        assert Certified.of((uri,)) == Certified(cluster, "node", name, (uri,))
        assert uri.isascii()
    for rest in ("//a/king/b", "//a/node", "//a/node/", "a/node/b", "//a/node/b/c"):
        assert Certified.of((f"understudy:{rest}",)).role == ""
    assert Certified.of(("http://a/node/b",)).role == ""
    for evil in ("%0aline", "w%1b%5b31m", "w\x9b", "w%e2%80%a8"):
        found = Certified.of((f"understudy://a/node/{evil}",))
        assert found.role == "", "names in logs control nothing"
        with pytest.raises(WrongCertificateError, match="has no name") as caught:
            check_certified(found, "a", "node", "w")
        assert str(caught.value).partition("\nMore:")[0].isprintable()


def test_the_doctor_looks_at_the_certificates(authority: Authority) -> None:
    tls = authority.tls(node_uri("n"), ends=90.5)
    expired = authority.tls(node_uri("n"), begins=-9, ends=-1)
    ending = authority.tls(node_uri("n"), ends=3.1)
    gone = attrs.evolve(tls, certificate=str(authority.place / "gone.pem"))

    def doctor(files: Tls) -> dict[str, Any]:
        done = forked_python.run(
            [sys.executable, "-m", "runtime.command_line", "doctor", "--json"],
            env={
                **os.environ,
                "UNDERSTUDY_TLS_CA": files.ca,
                "UNDERSTUDY_TLS_CERT": files.certificate,
                "UNDERSTUDY_TLS_KEY": files.key,
            },
            capture_output=True, timeout=60,
        )  # fmt: skip
        (one,) = (each for each in json.loads(done.stdout) if each["check"] == "tls")
        return one

    assert re.search("is accepted by .* for 90 days", doctor(tls)["text"])
    for files, text in (
        (expired, "certificate has expired"),
        (ending, "ends in 3.1 days: write a new certificate over it"),
        (gone, "cannot be read: No such file"),
    ):
        found = doctor(files)
        assert not found["well"]
        assert text in found["text"]
