"""Nodes that show certificates of a CA: which are accepted, which are refused, and what happens to
files under a running node.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from actors import Actor, method
from actors.errors import EncryptionError, UnderstudyError, WrongCertificateError, WrongSecretError
from runtime import Tls, open_node
from runtime.command_line.main import main
from runtime.node import Node
from runtime.testing import Platform
from runtime.wire.handshake import Acceptor, Certified, Channel, Dialer, Introduction, Peer
from tests.authority import Authority, Elsewhere, node_uri
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("no_secret")


@pytest.fixture
def no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNDERSTUDY_SECRET", raising=False)


class Echo(Actor):
    @method
    async def echo(self, value: str) -> str:
        return value


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@asynccontextmanager
async def pair(authority: Authority, mode: Any = None, **more: Any) -> AsyncIterator[Node]:
    """Two nodes, whose link must be the same over the same connection afterwards."""
    async with (
        open_node(
            "here", tls=authority.tls(node_uri("here"), stem="here", mode=mode), **more
        ) as here,
        open_node(
            "there",
            join=here.address,
            tls=authority.tls(node_uri("there"), stem="there", mode=mode),
            platform=Platform(environment=Elsewhere()),
            **more,
        ) as there,
    ):
        echo = await there.options(on="here").spawn(Echo)
        assert await echo.echo("1") == "1"
        (link,) = (one for one in there._endpoint.peers.links.values() if one.peer.name == "here")
        connections = link.counters.connections
        assert link._connection is not None
        assert link._connection.channel.certified == Certified(
            "understudy", "node", "here", (node_uri("here"),)
        )
        yield here
        with trio.fail_after(5):
            assert await echo.echo("2") == "2"
        assert link.ended is None
        assert link.counters.connections == connections


Log = Callable[[str], Awaitable[None]]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    caplog.set_level(logging.INFO, "understudy")

    async def logged(text: str) -> None:
        await until(lambda: any(text in line for line in caplog.messages), f"{text!r} is logged")

    return logged


async def refused(
    error: type[UnderstudyError], text: str, node: Node, tls: Any, **more: Any
) -> None:
    with trio.fail_after(10), pytest.raises(error, match=text):
        async with open_node(
            "stranger",
            join=node.address,
            tls=tls,
            platform=Platform(environment=Elsewhere()),
            **more,
        ):
            pytest.fail("joined")


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
            ("spiffe://example.org/x", "names nobody"),
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
        (Certified(uris=("spiffe://x/y",)), "names nobody"),
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
        found = await trio.run_process(
            [sys.executable, "-m", "runtime.command_line", "status", "--json", "-a", node.address,
             "--tls-ca", tls.ca, "--tls-cert", tls.certificate, "--tls-key", tls.key],
            capture_stdout=True,
        )  # fmt: skip
        assert "there" in found.stdout.decode()


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
    ("change", "text"),
    [
        (lambda ca: (ca / "n-key.pem").chmod(0o640), "chmod 600 .*n-key.pem"),
        (lambda ca: (ca / "n-key.pem").unlink(), "n-key.pem cannot be read: No such file"),
        (lambda ca: (ca / "n.pem").write_text("no"), "n.pem holds no certificate in PEM"),
        (lambda ca: (ca / "ca.pem").write_text("no"), "ca.pem holds no CA's certificate"),
        (lambda ca: (ca / "n-key.pem").write_text("no"), "are not a certificate and its key"),
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


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(ValueError, match="given together"):
        Tls(ca="ca.pem")
    with pytest.raises(ValueError, match="of no use with TLS off"):
        Tls(mode="off", ca="a", certificate="b", key="c")


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
    from runtime.wire.handshake import certified_uri

    for cluster, name in (("a", "b"), ("ü/x", "w 1"), ("c", "*"), ("c", "w%2F/?#")):
        uri = certified_uri(cluster, "node", name)
        assert Certified.of((uri,)) == Certified(cluster, "node", name, (uri,))
        assert uri.isascii()
    for rest in ("//a/king/b", "//a/node", "//a/node/", "a/node/b", "//a/node/b/c"):
        assert Certified.of((f"understudy:{rest}",)).role == ""
    assert Certified.of(("http://a/node/b",)).role == ""


def test_the_doctor_looks_at_the_certificates(authority: Authority) -> None:
    tls = authority.tls(node_uri("n"))
    expired = authority.tls(node_uri("n"), begins=-9, ends=-1)

    def doctor(files: Tls) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "runtime.command_line", "doctor", "--json"],
            env={
                **os.environ,
                "UNDERSTUDY_TLS_CA": files.ca,
                "UNDERSTUDY_TLS_CERT": files.certificate,
                "UNDERSTUDY_TLS_KEY": files.key,
            },
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        (one,) = (each for each in json.loads(done.stdout) if each["check"] == "tls")
        return one

    assert "is accepted by" in doctor(tls)["text"]
    assert not doctor(expired)["well"]
    assert "certificate has expired" in doctor(expired)["text"]
