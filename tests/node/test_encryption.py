"""Nodes on a network that is not their own: what is seen, changed and tried there."""

from __future__ import annotations

import functools
import json
import logging
import os
import random
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from actors import Actor, method
from actors.errors import EncryptionError, JoinError, WrongSecretError
from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.links import encryption
from runtime.links import tls as tls_module
from runtime.links.credentials import client_context, server_context
from runtime.links.encryption import Admission, Tls, TlsPolicy, find_tls, system_network
from runtime.links.interfaces import listening_users, own_address
from runtime.links.transports import split_host_port
from runtime.node import Node, internals_of
from runtime.testing import Platform
from runtime.timings import Timings
from runtime.wire.certificates import RANDOM_BYTES, self_signed
from tests import forked_python
from tests.authority import Elsewhere
from tests.free_addresses import free_address
from tests.metrics.prometheus import needs_prometheus, scraped
from tests.waiting import until

SECRET = "the secret of a cluster in a test"
ARGUMENT, STATE, NAME = (
    "an argument in plain sight",
    "a state in plain sight",
    "name-in-plain-sight",
)
OPENSSL = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")

OUTSIDE = own_address("")
NEEDS_OUTSIDE = pytest.mark.skipif(
    OUTSIDE.startswith("127."), reason="this machine has no address but its loopback ones"
)


class Keeper(Actor):
    """Has an argument, a name and a state worth keeping from others."""

    def __init__(self) -> None:
        self.kept = ""

    @method
    async def keep(self, value: str) -> str:
        self.kept = value
        await self.save({"state": STATE + value})
        return value


@attrs.define
class Relay:
    """Passes bytes between who dials it and `to`, and writes down all of them. `meddle` handles a
    connection in its place.
    """

    to: str = ""
    seen: bytearray = attrs.field(factory=bytearray)
    address: str = ""
    connections: int = 0
    meddle: Callable[[trio.SocketStream, str], Awaitable[None]] | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        task_status.started()
        await trio.serve_listeners(self._pass, listeners)

    async def _pass(self, near: trio.SocketStream) -> None:
        self.connections += 1
        try:
            if self.meddle is not None:
                await self.meddle(near, self.to)
                return
            async with await trio.open_tcp_stream(*split_host_port(self.to)) as far, near:
                await both_ways(near, far, self.seen)
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass


async def both_ways(one: trio.abc.Stream, other: trio.abc.Stream, seen: bytearray) -> None:
    async def way(source: trio.abc.Stream, target: trio.abc.Stream) -> None:
        while data := await source.receive_some(65536):
            seen.extend(data)
            await target.send_all(data)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(way, one, other)
        nursery.start_soon(way, other, one)


@asynccontextmanager
async def behind(relay: Relay, tls: Any) -> AsyncIterator[Node]:
    """A node that is reached through the relay only."""
    async with trio.open_nursery() as nursery:
        await nursery.start(relay.run)
        async with open_node("here", secret=SECRET, advertise=relay.address, tls=tls) as node:
            relay.to = LISTENING["here"]
            yield node
        nursery.cancel_scope.cancel()


LISTENING: dict[str, str] = {}


@pytest.fixture(autouse=True)
def where_nodes_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remembers where nodes really listen, behind what they advertise."""
    from runtime.node import opening

    whole = opening._listening

    async def listening(nursery: Any, settings: Any, before: Any, door: Any) -> str:
        bound = await whole(nursery, settings, before, door)
        LISTENING[settings.name] = bound.removeprefix("tcp:")
        return bound

    monkeypatch.setattr(opening, "_listening", listening)


def elsewhere(timings: Timings | None = None) -> Platform:
    return Platform(environment=Elsewhere(timings))


async def used(node: Node, other: Node) -> None:
    """Calls, a name and a state go from one to the other, both ways."""
    with trio.fail_after(60):
        for name, on in ((NAME, node.name), (f"{NAME}-2", other.name)):
            keeper = await other.options(name=name, on=on).spawn(Keeper)
            for _ in range(3):
                assert await keeper.keep(ARGUMENT) == ARGUMENT


@pytest.mark.parametrize("tls", ["require", "off"])
async def test_who_listens_between_two_nodes_reads_nothing(tls: Any) -> None:
    relay = Relay()
    async with (
        behind(relay, tls) as node,
        open_node(
            "there", join=relay.address, secret=SECRET, tls=tls, platform=elsewhere()
        ) as other,
    ):
        await used(node, other)
    found = [
        text for text in (ARGUMENT, STATE, NAME, SECRET, "here") if text.encode() in relay.seen
    ]
    assert len(relay.seen) > 3000
    # The test can fail: without TLS all of it is there, but the secret, which is never sent.
    assert found == ([] if tls == "require" else [ARGUMENT, STATE, NAME, "here"])


async def terminate_tls(near: trio.SocketStream, to: str) -> None:
    """Somebody who has everything but the secret: a certificate of his own to show to the one, a
    connection of his own to the other.
    """
    identity = self_signed("understudy", random.Random(5).randbytes(RANDOM_BYTES))
    shown = trio.SSLStream(near, server_context(identity), server_side=True)
    far = trio.SSLStream(await trio.open_tcp_stream(*split_host_port(to)), client_context())
    async with shown, far:
        await both_ways(shown, far, bytearray())


@pytest.mark.parametrize("bound", [True, False])
async def test_who_terminates_tls_between_two_nodes_gets_nothing(
    bound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not bound:
        # The test can fail: what stops him is the certificate in the proof, and nothing else.
        monkeypatch.setattr(tls_module, "certificate_hash", lambda certificate: b"")
    relay = Relay(meddle=terminate_tls)
    async with behind(relay, "require"):
        with trio.fail_after(60):
            try:
                async with open_node(
                    "there", join=relay.address, secret=SECRET, tls="require", platform=elsewhere()
                ):
                    assert not bound
            except WrongSecretError as error:
                assert bound
                assert "certificate of a proxy between them" in str(error)  # noqa: PT017
    assert relay.connections


async def terminate_for_plain(near: trio.SocketStream, to: str) -> None:
    """The same towards a node of this machine, to which it speaks without TLS."""
    identity = self_signed("understudy", random.Random(5).randbytes(RANDOM_BYTES))
    shown = trio.SSLStream(near, server_context(identity), server_side=True)
    far = await trio.open_tcp_stream(*split_host_port(to))
    async with shown, far:
        await both_ways(shown, far, bytearray())


@pytest.mark.parametrize("who", ["another user", "no user any more"])
async def test_a_process_of_another_user_at_a_loopback_port_is_no_way_to_a_node(
    monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """It listens where a node is expected, or has just closed its listener, and passes all on."""
    relay = Relay()
    users = listening_users

    def of_another(host: str, port: int) -> frozenset[int] | None:
        if f"{host}:{port}" != relay.address:
            return users(host, port)
        return frozenset({os.geteuid() + 1} if who == "another user" else ())

    async with trio.open_nursery() as nursery, open_node("near", secret=SECRET) as near:
        await nursery.start(relay.run)
        relay.to = near.address.removeprefix("tcp:")
        # The test can fail. That of ssh -L, of the same user, is like a network of its own.
        async with open_node("own", join=relay.address, secret=SECRET):
            await near.wait_for(2)
        assert b"own" in relay.seen
        monkeypatch.setattr(encryption, "listening_users", of_another)
        relay.seen.clear()
        async with open_node("far", join=relay.address, secret=SECRET, platform=elsewhere()):
            await near.wait_for(2)
        assert relay.seen
        assert b"far" not in relay.seen, "nothing can be read on the way"
        relay.meddle = terminate_for_plain
        with pytest.raises(WrongSecretError, match="could not prove to node 'near'"):
            async with open_node("far", join=relay.address, secret=SECRET):
                pytest.fail("joined")
        nursery.cancel_scope.cancel()


@NEEDS_OUTSIDE
async def test_an_address_that_is_not_loopback_needs_no_option() -> None:
    async with (
        open_node("here", listen=f"{OUTSIDE}:0", secret=SECRET) as node,
        open_node("there", join=node.address, secret=SECRET, platform=elsewhere()) as other,
    ):
        await used(node, other)
        for link in (*internals_of(node).links.values(), *internals_of(other).links.values()):
            if link.peer.role == "node":
                assert link.connection is not None
                assert len(link.connection.channel.binding) == 32


async def test_loopback_addresses_stay_plain_and_cost_nothing() -> None:
    relay = Relay()
    async with (
        behind(relay, None) as node,
        open_node("there", join=relay.address, secret=SECRET, platform=elsewhere()) as other,
    ):
        await used(node, other)
    assert ARGUMENT.encode() in relay.seen


Log = Callable[[str], Awaitable[None]]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    caplog.set_level(logging.INFO, "understudy")

    async def logged(text: str) -> None:
        with trio.fail_after(60):
            await until(
                lambda: any(text in line for line in caplog.messages), f"{text!r} is logged"
            )

    return logged


@asynccontextmanager
async def undisturbed(tls: Any, timings: Timings | None = None) -> AsyncIterator[Node]:
    """A node with a peer whose link must be the same, over the same connection, afterwards."""
    environment = SystemEnvironment(timings)
    async with (
        open_node(
            "here", secret=SECRET, tls=tls, platform=Platform(environment=environment)
        ) as node,
        open_node(
            "there", join=node.address, secret=SECRET, tls=tls, platform=elsewhere(timings)
        ) as other,
    ):
        await used(node, other)
        (link,) = (one for one in internals_of(other).links.values() if one.peer.name == "here")
        connections = link.counters.connections
        yield node
        keeper = await other.lookup(NAME, Keeper)
        with trio.fail_after(60):
            assert await keeper.keep("after it all") == "after it all"
        assert link.ended is None
        assert link.counters.connections == connections


@pytest.mark.parametrize(
    ("ours", "theirs", "raised", "logged"),
    [
        ("require", "off", "over TLS only", "from 127.0.0.1, which is not encrypted"),
        ("off", "require", "has TLS off", "speaks TLS: this node has `--tls off`"),
    ],
    ids=["plain to TLS", "TLS to plain"],
)
async def test_plain_beside_tls_is_named_on_both_sides(
    ours: str, theirs: Any, raised: str, logged: str, log: Log
) -> None:
    async with undisturbed(ours) as node:
        with trio.fail_after(60), pytest.raises(EncryptionError, match=raised) as caught:
            async with open_node("stranger", join=node.address, secret=SECRET, tls=theirs):
                pytest.fail("joined")
        assert node.address in str(caught.value)
        await log(logged)


async def test_a_cluster_is_changed_to_tls_node_by_node() -> None:
    async with (
        undisturbed("off") as plain,
        open_node(
            "both", join=plain.address, secret=SECRET, tls="accept", platform=elsewhere()
        ) as both,
    ):
        with trio.fail_after(60):
            for member in both.members():
                if member.name != "both":
                    keeper = await both.options(name=f"k-{member.name}", on=member.name).spawn(
                        Keeper
                    )
                    assert await keeper.keep("by fall-back") == "by fall-back"
    async with undisturbed("accept") as node:
        for tls in ("off", "require"):
            async with open_node(
                f"new-{tls}",
                join=node.address,
                secret=SECRET,
                tls=tls,
                platform=elsewhere(),
            ) as other:
                keeper = await other.options(name=f"k-{tls}", on="here").spawn(Keeper)
                with trio.fail_after(60):
                    assert await keeper.keep(tls) == tls


async def test_what_is_no_node_does_not_speak_tls() -> None:
    async def web(stream: trio.SocketStream) -> None:
        await stream.receive_some(1000)
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, web, listeners)
        with trio.fail_after(60), pytest.raises(EncryptionError, match="does not speak TLS"):
            async with open_node("stranger", join=address, secret=SECRET, tls="require"):
                pytest.fail("joined")
        nursery.cancel_scope.cancel()


async def test_an_address_without_a_listener_is_reported_as_without_tls() -> None:
    with pytest.raises(JoinError, match="no node answers"):
        async with open_node("n", join=free_address(), secret=SECRET, tls="require"):
            pytest.fail("joined")


async def test_a_silent_or_half_handshake_costs_only_its_connection(log: Log) -> None:
    timings = Timings(handshake=0.5)
    hello = client_hello()
    async with undisturbed("require", timings) as node:
        for first in (b"", hello[:1], hello[: len(hello) // 2], hello):
            async with await trio.open_tcp_stream(*split_host_port(node.address)) as stream:
                if first:
                    await stream.send_all(first)
                with trio.fail_after(60):
                    while await stream.receive_some(10_000):
                        pass
        await log("closed a silent connection from 127.0.0.1")


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    tls = client_context().wrap_bio(ssl.MemoryBIO(), outgoing)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    ("tls", "begun"), [("require", b""), ("require", b"\x16\x03\x01\x02"), ("off", b"\0")]
)
async def test_strangers_take_so_many_connections_and_the_oldest_make_room(
    tls: Any, begun: bytes, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encryption, "most_half_open", lambda: 8)
    # None of them is closed for its silence.
    timings = Timings(handshake=600.0)
    async with undisturbed(tls, timings) as node, AsyncExitStack() as stack:
        with trio.fail_after(60):
            streams: list[trio.SocketStream] = []
            for _ in range(40):
                stream = await trio.open_tcp_stream(*split_host_port(node.address))
                streams.append(await stack.enter_async_context(stream))
                await stream.send_all(begun)
            for stream in streams[:32]:
                with suppress(trio.BrokenResourceError):
                    assert await stream.receive_some() == b"", "the oldest are closed"
            async with open_node(
                "third", join=node.address, secret=SECRET, tls=tls, platform=elsewhere(timings)
            ) as third:
                await third.wait_for(3)
            with trio.move_on_after(0.05) as silent:
                await streams[-1].receive_some()
            assert silent.cancelled_caught, "no more are closed than must be"
        await log("8 connections have not proven that they may come in")


@NEEDS_OUTSIDE
async def test_what_comes_plain_from_another_address_is_refused_by_default(log: Log) -> None:
    async with undisturbed(None) as node:
        with trio.fail_after(60):
            async with open_node(
                "outside", join=node.address, secret=SECRET, listen=f"{OUTSIDE}:0"
            ) as outside:
                with pytest.raises(EncryptionError, match="over TLS only"):
                    async with open_node(
                        "stranger", join=outside.address, secret=SECRET, tls="off"
                    ):
                        pytest.fail("joined")
        await log(f"refused a connection from {OUTSIDE}, which is not encrypted")


@OPENSSL
async def test_openssl_as_an_outsider_sees_tls_1_3_and_nothing_else() -> None:
    async with undisturbed("require") as node:

        async def client(*options: str, says: bytes = b"GET / HTTP/1.1\r\n\r\n" * 3) -> str:
            command = ["openssl", "s_client", "-connect", node.address, *options]
            with trio.fail_after(60):
                found = await trio.run_process(
                    command, stdin=says, capture_stdout=True, capture_stderr=True, check=False
                )
            return (found.stdout + found.stderr).decode(errors="replace")

        seen = await client("-ign_eof")
        assert "TLSv1.3" in seen
        assert "CN = understudy" in seen
        assert "Session-ID-ctx" not in seen.partition("-----END CERTIFICATE-----")[2][-200:]
        assert "here" not in seen.replace("there", "")
        assert "alert protocol version" in await client("-tls1_2")
        # TLS 1.3 has no renegotiation, and an old version, which has, is not spoken. New keys it
        # has: asking for them is no more than that.
        again = await client(says=b"R\n")
        assert "RENEGOTIATING" in again
        assert "wrong ssl version" in again
        assert "KEYUPDATE" in await client(says=b"K\nk\n")


@pytest.mark.long
@pytest.mark.slow
@needs_prometheus
@pytest.mark.parametrize("verifies", [False, True], ids=["any certificate", "known CAs"])
async def test_a_real_prometheus_that_asks_at_the_door_over_tls_gets_nothing(
    tmp_path: Path, verifies: bool
) -> None:
    """As an outsider, who takes the port of the cluster for that of the metrics."""
    async with undisturbed("require") as node:
        skips = str(not verifies).lower()
        targets = await scraped(
            tmp_path,
            "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
            "scrape_configs:\n"
            "  - job_name: understudy\n"
            "    scheme: https\n"
            f"    tls_config: {{insecure_skip_verify: {skips}}}\n"
            f"    static_configs: [{{targets: [{node.address!r}]}}]\n",
            lambda found: "understudy" in found and found["understudy"]["health"] == "down",
        )
        seen = targets["understudy"]
        assert "here" not in seen["lastError"].replace("there", "")
        if verifies:
            assert "x509: " in seen["lastError"]


@pytest.mark.parametrize("years", [-10, 10])
async def test_clocks_that_disagree_play_no_part_with_the_secret_alone(years: int) -> None:
    class WrongClock(Elsewhere):
        def wall_time(self) -> float:
            return super().wall_time() + years * 365 * 86400

    async with (
        open_node("here", secret=SECRET, tls="require") as here,
        open_node(
            "there",
            join=here.address,
            secret=SECRET,
            tls="require",
            platform=Platform(environment=WrongClock()),
        ) as there,
    ):
        await used(here, there)
        (link,) = internals_of(here).links.values()
        assert link.counters.connections == 1


@pytest.mark.parametrize(
    "size", [20_000, pytest.param(2_000_000, marks=pytest.mark.long)], ids=["short", "two million"]
)
async def test_fuzzed_bytes_at_the_door_disturb_nobody(size: int) -> None:
    draw, hello = random.Random(size), client_hello()
    left = size
    async with undisturbed("require", Timings(handshake=0.5)) as node:
        where = split_host_port(node.address)

        async def strange(data: bytes) -> None:
            try:
                async with await trio.open_tcp_stream(*where) as stream:
                    await stream.send_all(data)
                    if draw.random() < 0.5:
                        await stream.send_eof()
                    with trio.fail_after(60):
                        while await stream.receive_some(10_000):
                            pass
            except (OSError, trio.BrokenResourceError):
                pass

        while left > 0:
            async with trio.open_nursery() as nursery:
                for _ in range(40):
                    data = bytearray(hello)
                    for _ in range(draw.randrange(1, 20)):
                        place = draw.randrange(len(data))
                        data[place : place + draw.randrange(3)] = draw.randbytes(draw.randrange(3))
                    if draw.random() < 0.2:
                        data[:] = b"\x16\x03\x01" + draw.randbytes(draw.randrange(1, 3000))
                    if draw.random() < 0.3:
                        data *= 3
                    left -= len(data)
                    nursery.start_soon(strange, bytes(data))


def test_each_mode_admits_and_encrypts_what_it_says() -> None:
    far, near, unix = "tcp:10.1.2.3:7400", "127.0.0.1:7400", "unix:@x"
    named = "127.0.0.1.example.org:7400"
    table = {
        None: (True, False, Admission.ENCRYPTED, Admission.NEEDS_TLS, Admission.PLAIN),
        "require": (True, True, Admission.ENCRYPTED, Admission.NEEDS_TLS, Admission.NEEDS_TLS),
        "accept": (True, False, Admission.ENCRYPTED, Admission.PLAIN, Admission.PLAIN),
        "off": (False, False, Admission.HAS_TLS, Admission.PLAIN, Admission.PLAIN),
    }
    for mode, expected in table.items():
        policy = TlsPolicy(mode)  # type: ignore[arg-type]
        assert (
            policy.encrypts(far),
            policy.encrypts(near),
            policy.admits(encrypted=True, loopback=False),
            policy.admits(encrypted=False, loopback=False),
            policy.admits(encrypted=False, loopback=True),
        ) == expected, mode
        assert policy.encrypts(named) == policy.encrypts(far), "a name may lead anywhere"
        assert not policy.encrypts(unix)
        assert policy.falls_back == (mode == "accept")


def test_a_mode_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="tls='on' is not a way to use TLS; choose one of off, "):
        find_tls("on")
    monkeypatch.setenv("UNDERSTUDY_TLS", "yes")
    with pytest.raises(ValueError, match="UNDERSTUDY_TLS='yes'"):
        find_tls(None)
    assert find_tls("off") == Tls(mode="off"), "what is given counts, whatever the environment says"


OTHER_USER = """
import os, socket, sys
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as dialled:
    dialled.connect(chr(0) + sys.argv[1])
    dialled.settimeout(10)
    print(repr(dialled.recv(1)))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_unix_sockets_are_for_this_user_alone(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What root starts may be of another user; the node is made to take itself for one that is not.
    async with undisturbed("off") as node:
        path = internals_of(node).registration.record.addresses[1].removeprefix("unix:@")
        command = [sys.executable, "-S", "-c", OTHER_USER, path]
        found = await trio.run_process(command, capture_stdout=True)
        assert found.stdout == b"b''\n"
        await log("closed a connection of another user of this machine")
        monkeypatch.setattr(os, "geteuid", lambda: 65534)
        environment = SystemEnvironment()
        # This process is root's, who may do everything; so the listener is another user's.
        name = f"understudy-test-{os.urandom(8).hex()}"
        async with trio.open_nursery() as nursery:
            process: trio.Process = await nursery.start(
                functools.partial(
                    trio.run_process, [sys.executable, "-S", "-c", LISTENER, name],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, check=False,
                )
            )  # fmt: skip
            assert process.stdout is not None
            await process.stdout.receive_some(1)
            with pytest.raises(PermissionError, match="another user's"):
                await system_network(environment, Tls()).connect(f"unix:@{name}")
            process.kill()


LISTENER = """
import os, socket, sys
os.setuid(65533)
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(chr(0) + sys.argv[1])
    listener.listen()
    print("listening", flush=True)
    listener.accept()
    sys.stdin.read()
"""


def test_the_command_line_refuses_and_explains(tmp_path: Path) -> None:
    def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return forked_python.run(
            [sys.executable, "-m", "runtime.command_line", *words],
            env={**os.environ, **more}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    for words, more, text in (
        (("status", "--tls", "maybe"), {}, "'maybe' is not one of 'off', 'accept', 'require'"),
        # With an address: other clusters of this user may be open.
        (("status", "-a", "127.0.0.1:1"), {"UNDERSTUDY_TLS": "maybe"}, "UNDERSTUDY_TLS='maybe'"),
    ):
        found = run(*words, **more)
        assert found.returncode == 2
        assert text in found.stderr
        assert "Traceback" not in found.stderr


def test_the_doctor_speaks_tls_and_names_what_is_given_up() -> None:
    def found(**more: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "runtime.command_line", "doctor", "--json"],
            env={**os.environ, **more}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        findings = json.loads(done.stdout)
        (one,) = (each for each in findings if each["check"] == "tls")
        return one

    assert found()["text"].startswith("TLS 1.3 works (OpenSSL")
    for mode, text in (("off", "nothing that leaves this machine"), ("bogus", "choose one of")):
        looked = found(UNDERSTUDY_TLS=mode)
        assert not looked["well"]
        assert text in looked["text"]
