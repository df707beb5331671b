"""Metrics over TLS: whom they are for, and what others get who ask at the same address."""

from __future__ import annotations

import json
import random
import shutil
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from runtime import Tls, open_node
from runtime.command_line.main import main
from runtime.environment import SystemEnvironment
from runtime.links.transports import split_host_port
from runtime.node import Node
from runtime.testing import Platform
from runtime.timings import Timings
from tests.authority import Authority, node_uri
from tests.metrics.prometheus import needs_prometheus, scraped
from tests.metrics.scraping import get
from tests.waiting import until


@pytest.fixture
async def node(authority: Authority, timings: Timings) -> AsyncIterator[Node]:
    """A node with a certificate, and metrics over TLS."""
    platform = Platform(environment=SystemEnvironment(timings))
    tls = authority.tls(node_uri("here"), stem="here")
    async with open_node("here", tls=tls, metrics="https://0", platform=platform) as node:
        yield node


def trusting(own: Tls | None, ca: str) -> ssl.SSLContext:
    """Of a scraper that shows `own`."""
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = False
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    return context


def contains(text: str, whole: str) -> bool:
    return text in whole


async def test_metrics_are_for_those_who_may_read_facts_and_health_is_for_all(
    node: Node, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    ca = str(authority.place / "ca.pem")
    other = Authority(authority.place.parent / "other")
    shown: dict[str, Tls | None] = {
        role: authority.tls(node_uri("x", role=role), stem=role)
        for role in ("node", "operator", "observer", "client")
    }
    shown["nobody"] = None
    shown["another cluster"] = authority.tls(node_uri("x", "elsewhere", "observer"), stem="cluster")
    shown["no name"] = authority.tls(None, stem="none")
    told: dict[str, str] = {}
    for who, own in shown.items():
        context = trusting(own, ca)
        assert (await get(node.metrics_address, "/healthz", context=context))[0] == 200
        assert (await get(node.metrics_address, "/readyz", context=context))[0] == 200
        status, text = await get(node.metrics_address, "/metrics", context=context)
        if status == 200:
            assert "understudy_" in text
        else:
            assert status == 403
            told[who] = text
            assert text.count("\n") == 1
            assert "understudy_" not in text
    assert list(told) == ["client", "nobody", "another cluster", "no name"]
    assert "this one has the role 'client'" in told["client"]
    assert "without a certificate" in told["nobody"]
    assert "for understudy://elsewhere/observer/x" in told["another cluster"]
    # Certificates that prove nothing get nothing, not even health.
    for wrong, said in (
        (other.tls(node_uri("x", role="observer")), "none of the CAs that this side has"),
        (authority.tls(node_uri("x", role="observer"), ends=-0.5, stem="old"), "has expired"),
        (authority.tls(node_uri("x", role="observer"), begins=0.5, stem="new"), "not yet valid"),
    ):
        with pytest.raises((ssl.SSLError, OSError)):
            await get(node.metrics_address, "/healthz", context=trusting(wrong, ca))
        await until(lambda: caplog.text, f"{said!r} is logged", partial(contains, said))
    assert (await get(node.metrics_address, "/healthz", context=trusting(None, ca)))[0] == 200


async def test_a_new_certificate_is_shown_without_a_restart(
    node: Node, authority: Authority
) -> None:
    context = trusting(None, str(authority.place / "ca.pem"))

    def shown() -> bytes | None:
        with (
            socket.create_connection(split_host_port(node.metrics_address), 20) as stream,
            context.wrap_socket(stream) as secured,
        ):
            return secured.getpeercert(binary_form=True)

    before = await trio.to_thread.run_sync(shown)
    assert await trio.to_thread.run_sync(shown) == before
    authority.tls(node_uri("here"), stem="here")
    assert await trio.to_thread.run_sync(shown) not in (None, before)


async def sent(address: str, data: bytes) -> bytes:
    """What comes back for these bytes."""
    async with await trio.open_tcp_stream(*split_host_port(address)) as stream:
        try:
            await stream.send_all(data)
            with trio.fail_after(60):
                return b"".join([piece async for piece in stream])
        except trio.BrokenResourceError:
            return b""


async def test_plain_to_tls_and_tls_to_plain_are_named(node: Node) -> None:
    answer = await sent(node.metrics_address, b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"request https://" in answer
    async with open_node("plain", metrics="0") as plain:
        with pytest.raises(ssl.SSLError):
            await get(plain.metrics_address, "/metrics", context=ssl.create_default_context())


@pytest.mark.parametrize("timings", [Timings(metrics_request=0.5)], ids=["impatient"])
async def test_half_handshakes_and_garbage_end_their_own_connections_only(
    node: Node, authority: Authority
) -> None:
    draw = random.Random(19)
    outgoing = ssl.MemoryBIO()
    context = trusting(None, str(authority.place / "ca.pem"))
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    hello = outgoing.read()
    async with trio.open_nursery() as nursery:
        for cut in (0, 1, 5, len(hello) // 2, len(hello)):
            nursery.start_soon(sent, node.metrics_address, hello[:cut])
        for _ in range(20):
            nursery.start_soon(sent, node.metrics_address, b"\x16\x03\x01" + draw.randbytes(900))
            spoiled = bytearray(hello)
            spoiled[draw.randrange(len(spoiled))] ^= 1 << draw.randrange(8)
            nursery.start_soon(sent, node.metrics_address, bytes(spoiled))
    assert (await get(node.metrics_address, "/healthz", context=context))[0] == 200


async def test_clients_that_reset_their_connections_are_no_failures(
    node: Node, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    def reset(data: bytes) -> None:
        with socket.create_connection(split_host_port(node.metrics_address), 20) as stream:
            stream.sendall(data)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    for _ in range(20):
        for data in (b"", b"\x16", b"GET"):
            await trio.to_thread.run_sync(reset, data)
    context = trusting(None, str(authority.place / "ca.pem"))
    assert (await get(node.metrics_address, "/healthz", context=context))[0] == 200
    assert "an answer failed" not in caplog.text


@pytest.mark.parametrize("address", ["https://0", "https://127.0.0.1:9464"])
async def test_without_a_certificate_the_next_step_is_said(address: str) -> None:
    with pytest.raises(ValueError, match="give --tls-ca, --tls-cert and --tls-key"):
        async with open_node(metrics=address):
            raise AssertionError("it is open")
    refused = CliRunner().invoke(main, ["node", "--metrics", address])
    assert refused.exit_code == 2
    assert "needs a certificate of the node" in refused.output
    assert "Traceback" not in refused.output


def made(place: Path, *words: str) -> None:
    done = CliRunner().invoke(main, ["tls", *words, "--dir", str(place)])
    assert done.exit_code == 0, done.output


def pki(place: Path) -> Tls:
    """A CA of the command, a node's certificate that names its host as well, and an observer's."""
    made(place, "ca")
    made(place, "cert", "--name", "w1", "--host", "127.0.0.1", "--host", "w1.example")
    made(place, "cert", "--name", "prometheus", "--role", "observer")
    files = [str(place / name) for name in ("ca.pem", "w1.pem", "w1-key.pem")]
    return Tls(ca=files[0], certificate=files[1], key=files[2])


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_curl_verifies_the_host_and_shows_its_certificate(tmp_path: Path) -> None:
    async with open_node("w1", tls=pki(tmp_path), metrics="https://127.0.0.1:0") as node:
        url = f"https://{node.metrics_address}/metrics"

        async def curl(*options: str) -> tuple[int, str]:
            command = ["curl", "--silent", "--show-error", "--max-time", "30", *options, url]
            with trio.fail_after(60):
                done = await trio.run_process(
                    command, capture_stdout=True, capture_stderr=True, check=False
                )
            return done.returncode, (done.stdout + done.stderr).decode()

        ca = ("--cacert", str(tmp_path / "ca.pem"))
        own = ("--cert", f"{tmp_path}/prometheus.pem", "--key", f"{tmp_path}/prometheus-key.pem")
        assert "understudy_" in (await curl(*ca, *own))[1]
        assert "without a certificate" in (await curl(*ca))[1]
        assert (await curl(*own))[0] == 60, "no CA that it knows"
    refused = CliRunner().invoke(
        main, ["tls", "cert", "--name", "w2", "--host", "not a host", "--dir", str(tmp_path)]
    )
    assert refused.exit_code == 2
    assert not (tmp_path / "w2.pem").exists()


@pytest.mark.long
@pytest.mark.slow
@needs_prometheus
async def test_a_real_prometheus_scrapes_over_tls_with_a_certificate(tmp_path: Path) -> None:
    async with open_node("w1", tls=pki(tmp_path), metrics="https://127.0.0.1:0") as node:
        job = (
            "scheme: https, static_configs: [{targets: [" + json.dumps(node.metrics_address) + "]}]"
        )
        ca = f"ca_file: {tmp_path}/ca.pem"
        own = f"cert_file: {tmp_path}/prometheus.pem, key_file: {tmp_path}/prometheus-key.pem"
        targets = await scraped(
            tmp_path,
            "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
            "scrape_configs:\n"
            f"  - {{job_name: certified, {job}, tls_config: {{{ca}, {own}}}}}\n"
            f"  - {{job_name: stranger, {job}, tls_config: {{{ca}}}}}\n"
            f"  - {{job_name: elsewhere, {job}, tls_config: "
            f"{{{ca}, {own}, server_name: w2.example}}}}\n",
            lambda found: (
                len(found) == 3 and all(one["health"] != "unknown" for one in found.values())
            ),
        )
    seen = {job: (one["health"], one["lastError"]) for job, one in targets.items()}
    assert seen["certified"] == ("up", "")
    assert seen["stranger"][0] == "down"
    assert "403" in seen["stranger"][1]
    assert seen["elsewhere"][0] == "down"
    assert "x509: certificate is valid for w1.example, not w2.example" in seen["elsewhere"][1]
