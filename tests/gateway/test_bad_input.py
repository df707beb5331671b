"""Whatever a client sends is answered, or cut off, within bounds; and nothing runs by mistake."""

from __future__ import annotations

import json

import cbor2
import h11
import pytest
import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, ResponseReceived
from h2.settings import SettingCodes

from runtime.gateway import RequestLimits
from runtime.gateway.server import ServerLimits
from tests.failures.error_examples import check_answer
from tests.gateway.conftest import World, gateway
from tests.waiting import until

ADD = "/v1/actors/counter/add"
SLOWLY = "/v1/actors/counter/add_slowly"


def request(body: bytes, *headers: str, line: str = f"POST {ADD} HTTP/1.1") -> bytes:
    """A request as bytes."""
    lines = [line, "Host: localhost", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def status(answer: bytes) -> int:
    """The status in an answer as bytes; 0 if there is none."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


async def ran(world: World) -> int:
    """How often `add` ran."""
    answer = await world.http.call("counter", "read")
    assert answer.status == 200
    return int(answer.body)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"nothing",
        b"\xff\xfe",
        b'{"amount": NaN}',
        b'{"amount": 1e999}',
        b'{"amount": Infinity}',
        b'{"amount": ' + b"9" * 5000 + b"}",
        b'{"amount": 1, "amount": 2}',
        b'{"amount": {"$int": "1_0z"}}',
        b'{"amount": {"$bytes": "!"}}',
        b'{"amount": {"$other": 1}}',
        b'{"amount": {"$float": "nan"}}',
        b'{"amount": "\\ud800"}',
        b"[" * 100_000,
        b"[" * 40 + b"]" * 40,
        b'{"a":' * 100_000,
    ],
    ids=lambda body: repr(body[:30]),
)
async def test_what_is_no_json_of_arguments_is_400(world: World, body: bytes) -> None:
    answer = await world.http.ask("POST", ADD, body)
    assert answer.status == 400, answer.body
    assert answer.json["outcome"] == "not executed"
    assert await ran(world) == 0


@pytest.mark.parametrize(
    "body",
    [
        b"\xff",
        b"\x9f\x01\xff",
        b"\x81",
        cbor2.dumps({"amount": 1}) + b"\x01",
        cbor2.dumps({1: 1}),
        cbor2.dumps(cbor2.CBORTag(64_005, ["os:system", "true"])),
        cbor2.dumps(cbor2.CBORTag(4, [10**3, 10**3])),
        b"\xf7",
        b"\x81" * 10_000 + b"\x01",
        b"\x9b\x7f\xff\xff\xff\xff\xff\xff\xff",
        b"\xc2\x5a\x00\x01\x00\x00" + b"\xff" * 65536,
    ],
    ids=lambda body: repr(body[:20]),
)
async def test_what_is_no_cbor_of_arguments_is_400(world: World, body: bytes) -> None:
    answer = await world.http.ask("POST", ADD, body, {"Content-Type": "application/cbor"})
    assert answer.status == 400, answer.body
    assert await ran(world) == 0


async def test_other_media_types_are_415(world: World) -> None:
    for content_type in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "",
    ):
        answer = await world.http.ask("POST", ADD, b"{}", {"Content-Type": content_type})
        assert answer.status == 415
    packed = await world.http.ask("POST", ADD, b"{}", {"Content-Encoding": "gzip"})
    assert packed.status == 415
    charset = await world.http.ask(
        "POST", ADD, b"{}", {"Content-Type": "Application/JSON; charset=utf-8"}
    )
    assert charset.status == 200
    assert await ran(world) == 1


async def test_a_header_twice_is_400(world: World) -> None:
    for name, one, other in (
        ("Idempotency-Key", "a", "a"),
        ("Understudy-Timeout", "1", "2"),
        ("Authorization", "Bearer a", "Bearer b"),
        ("Content-Type", "application/json", "text/plain"),
        ("Content-Length", "2", "3"),
        ("Host", "localhost", "localhost"),
    ):
        given = ["Content-Type: application/json", f"{name}: {one}", f"{name}: {other}"]
        if name != "Content-Length":
            given.append("Content-Length: 2")
        answer = await world.http.raw(request(b"{}", *given))
        assert status(answer) == 400, (name, answer)
    assert await ran(world) == 0


async def test_what_follows_a_body_with_two_lengths_is_no_request(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    smuggled = request(b"{}", "Content-Type: application/json", "Content-Length: 2")
    lengths = "Content-Length: 4", "Transfer-Encoding: chunked"
    head = request(b"", "Content-Type: application/json", *lengths)
    # A proxy in front may have taken only a part of this for the request's body.
    sent = head.replace(b"Connection: close\r\n", b"") + b"0\r\n\r\n"
    for _ in range(20):
        # The connection is closed as soon as there is more, at times before the answer is out.
        answer = await world.http.raw(sent + smuggled)
        assert status(answer) in (0, 400)
        assert answer.count(b"HTTP/1.1") <= 1
    answer = await world.http.raw(sent)
    assert status(answer) == 400
    assert b'"error":"HeaderTwice"' in answer
    assert await ran(world) == 0
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    "lines",
    [
        "Host: localhost\nX: y\r\n",
        "Host: localhost\r\nX: y\r\n z\r\n",
        "Host: localhost\r\nX: y\r\n\tContent-Length: 100\r\n",
        "Host: localhost\r\nX: y\nTransfer-Encoding: chunked\r\n",
    ],
)
async def test_what_a_proxy_may_read_in_another_way_is_refused(world: World, lines: str) -> None:
    line, second = f"POST {ADD} HTTP/1.1\r\n", request(b"{}", "Content-Type: application/json")
    body = '{"amount":1}'
    sent = f"{line}{lines}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    answer = await world.http.raw((sent + body).encode() + second)
    assert status(answer) == 400
    assert answer.count(b"HTTP/1.1") == 1
    chunked = request(b"", "Content-Type: application/json", "Transfer-Encoding: chunked")
    for end in ("0\r\n\n", "0\r\nX: y\r\n\r\n", "0\r\nX: y\n\r\n"):
        answer = await world.http.raw(chunked + b"c\r\n" + body.encode() + b"\r\n" + end.encode())
        assert status(answer) == 400
    assert await ran(world) == 0


async def test_an_upgrade_to_http2_is_not_agreed_to(world: World) -> None:
    upgrade = "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"
    head = "\r\n".join(("GET /v1/openapi.json HTTP/1.1", "Host: localhost", *upgrade))
    answer = await world.http.raw(f"{head}\r\n\r\n".encode())
    assert status(answer) == 200
    assert b"101" not in answer.partition(b"\r\n")[0]


async def test_headers_that_say_nothing_are_400(world: World) -> None:
    for timeout in ("0", "-1", "nan", "inf", "1e3", "x", "", "9" * 400):
        answer = await world.http.ask("POST", ADD, b"{}", {"Understudy-Timeout": timeout})
        assert answer.status == 400, timeout
    for key in ("", "a" * 256, '""', "\x80"):
        raw = await world.http.raw(
            request(b"{}", "Content-Type: application/json", "Content-Length: 2")
            .decode("latin-1")
            .replace("Connection", f"Idempotency-Key: {key}\r\nConnection", 1)
            .encode("latin-1")
        )
        assert status(raw) == 400, key
    assert await ran(world) == 0


async def test_garbage_ends_its_connection_and_nothing_else(world: World) -> None:
    for data in (
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost b\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        request(b"", "Transfer-Encoding: chunked", "Content-Type: application/json")
        + b"zz\r\nno\r\n",
        request(b"{}", "Content-Length: -2"),
        request(b"{}", "Content-Length: 99999999999999999999999999"),
        request(b"", "Content-Length: 2", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
        b"A" * 100_000,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000,
        b"GET /%ff HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100,
        b"GET /v1 HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        b"Sec-WebSocket-Version: 13\r\n\r\n",
    ):
        # Of some only as much as comes: what has no length has no end either.
        with trio.move_on_after(0.5):
            answer = await world.http.raw(data)
            assert status(answer) != 200, (data[:60], answer)
    assert await ran(world) == 0


async def over_http2(world: World, padding: int) -> int:
    """Call over HTTP/2 without TLS, which hypercorn speaks as well, with so many bytes of headers
    more than it needs. Returns the status, 0 if the connection ended instead.
    """
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    names = {":method": "POST", ":scheme": "http", ":authority": "localhost", ":path": ADD}
    # Small ones, each a name of its own: together they are larger than the bound.
    more = {f"x-{number}": "y" * 1000 for number in range(padding // 1000)}
    given = {**names, "content-type": "application/json", **more}
    client.send_headers(1, list(given.items()))
    client.send_data(1, b'{"amount": 1}', end_stream=True)
    async with await trio.open_tcp_stream("127.0.0.1", world.http.port) as stream:
        await stream.send_all(client.data_to_send())
        while data := await stream.receive_some(65536):
            for event in client.receive_data(data):
                if isinstance(event, ResponseReceived):
                    return int(dict(event.headers)[b":status"])
                if isinstance(event, ConnectionTerminated):
                    return 0
            await stream.send_all(client.data_to_send())
    return 0


async def test_heads_over_http2_have_the_same_bound(world: World) -> None:
    with trio.fail_after(60):
        assert await over_http2(world, 0) == 200
        assert await over_http2(world, 40_000) == 431
        assert await over_http2(world, 400_000) == 0
    assert await ran(world) == 1


async def test_a_body_of_a_gibibyte_is_refused_by_its_length(world: World) -> None:
    head = request(b"", "Content-Type: application/json", f"Content-Length: {1 << 30}")
    answer = await world.http.raw(head)
    assert status(answer) == 413
    body = answer.partition(b"\r\n\r\n")[2]
    assert json.loads(body)["error"] == "BodyTooLarge"
    check_answer("BodyTooLarge", json.loads(body))
    # Also while the client goes on to send it.
    answer = await world.http.raw(head + b"x" * 2_000_000)
    assert status(answer) == 413


async def test_a_body_without_end_is_cut_off_at_the_bound(world: World) -> None:
    async with (
        gateway(world.node, limits=RequestLimits(max_body=100_000)) as http,
        http.connect() as one,
    ):
        await one.stream.send_all(
            request(b"", "Content-Type: application/json", "Transfer-Encoding: chunked")
        )
        sent = 0
        with trio.fail_after(60):
            try:
                while sent < 100_000_000:
                    await one.stream.send_all(b"3e8\r\n" + b"[" * 1000 + b"\r\n")
                    sent += 1000
            except trio.BrokenResourceError:
                pass
        assert sent < 100_000_000
        assert (await http.call("counter", "read")).json == 0


async def test_a_body_that_trickles_is_cut_off(world: World) -> None:
    async with gateway(world.node, limits=RequestLimits(body_seconds=0.3)) as http:
        answer = await http.raw(
            request(b"{", "Content-Type: application/json", "Content-Length: 2")
        )
        assert status(answer) == 408
        assert b'"error":"BodyTooSlow"' in answer
        check_answer("BodyTooSlow", json.loads(answer.partition(b"\r\n\r\n")[2]))
    assert await ran(world) == 0


async def test_a_head_that_trickles_is_cut_off(world: World) -> None:
    limits = ServerLimits(head_seconds=0.3)
    async with gateway(world.node, server_limits=limits) as http:
        for start in (b"", f"POST {ADD} HTTP/1.1\r\nHost: loc".encode()):
            assert status(await http.raw(start)) == 0
        async with http.connect() as one:
            with trio.fail_after(60):
                try:
                    while True:
                        # A byte at a time does not help.
                        await one.stream.send_all(b"G")
                        await trio.sleep(0.02)
                except trio.BrokenResourceError:
                    pass


async def test_too_many_connections_are_turned_away(world: World) -> None:
    limits = ServerLimits(most_connections=2)
    async with (
        gateway(world.node, server_limits=limits) as http,
        http.connect() as first,
        http.connect() as second,
    ):
        await first.send("POST", SLOWLY, b'{"word": "a"}')
        await world.counter.wait_for("a begun")
        await second.send("POST", SLOWLY, b'{"word": "b"}')
        await world.counter.wait_for("b begun")
        third = await http.ask("POST", "/v1/actors/counter/read", b"{}")
        assert (third.status, third.json["outcome"]) == (503, "not executed")
        assert third.json["error"] == "TooManyConnections"
        check_answer("TooManyConnections", third.json)
        assert third.headers["retry-after"] == "1"
        await world.counter.note_word("a may end")
        assert (await first.answer()).json == 2
        await world.counter.note_word("b may end")
        assert (await second.answer()).json == 2
        # Now they wait for their clients, and make room.
        for _ in range(5):
            assert (await http.call("counter", "read")).status == 200


async def test_silent_connections_keep_nobody_out_and_end_no_call(world: World) -> None:
    limits = ServerLimits(most_connections=4)
    async with gateway(world.node, server_limits=limits) as http, http.connect() as calling:
        await calling.send("POST", SLOWLY, b'{"word": "a"}')
        await world.counter.wait_for("a begun")
        silent = [await trio.open_tcp_stream("127.0.0.1", http.port) for _ in range(40)]
        for one in silent[::2]:
            try:
                await one.send_all(b"POST /v1/act")
            except trio.BrokenResourceError:
                # Ended for another one already.
                pass
        assert (await http.call("counter", "read")).status == 200
        await world.counter.note_word("a may end")
        assert (await calling.answer()).json == 1
        for one in silent:
            await one.aclose()


async def test_clients_that_take_no_answer_keep_nobody_out(world: World) -> None:
    limits = ServerLimits(most_connections=2)
    async with (
        gateway(world.node, server_limits=limits) as http,
        http.connect() as first,
        http.connect() as second,
    ):
        for one in (first, second):
            await one.send("POST", "/v1/actors/counter/blobs", b'{"size": 100000}')
            assert isinstance(await one.event(), h11.Response)

        async def read() -> int:
            return (await http.call("counter", "read")).status

        # At first the answers wait for the actor, from time to time.
        await until(read, "one of them makes room", lambda status: status == 200)


async def test_an_http2_client_that_takes_no_answer_is_cut_off(world: World) -> None:
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    names = {":method": "GET", ":scheme": "http", ":authority": "localhost", ":path": "/"}
    client.send_headers(1, list(names.items()), end_stream=True)
    limits = ServerLimits(head_seconds=0.3, stall_seconds=0.3)
    async with gateway(world.node, server_limits=limits) as http, http.connect() as one:
        await one.stream.send_all(client.data_to_send())
        with trio.fail_after(10):
            while await one.stream.receive_some(65536):
                pass


async def test_too_many_requests_are_turned_away(world: World) -> None:
    async with gateway(world.node, limits=RequestLimits(most_requests=1)) as http:
        async with http.connect() as first:
            await first.send("POST", "/v1/actors/counter/add_slowly", b'{"word": "a"}')
            await world.counter.wait_for("a begun")
            answer = await http.call("counter", "add", {})
            assert (answer.status, answer.json["outcome"]) == (503, "not executed")
            assert answer.json["error"] == "TooManyRequests"
            check_answer("TooManyRequests", answer.json)
            await world.counter.note_word("a may end")
            assert (await first.answer()).json == 1
        assert (await http.call("counter", "add", {})).json == 2


async def test_pipelined_requests_are_answered_in_order(world: World) -> None:
    one = request(b"{}", "Content-Type: application/json", "Content-Length: 2")
    kept = one.replace(b"Connection: close\r\n", b"")
    answer = await world.http.raw(kept + kept + one)
    assert answer.count(b"HTTP/1.1 200") == 3
    assert [part[:1] for part in answer.split(b"\r\n\r\n")[1:]] == [b"1", b"2", b"3"]


async def test_a_large_body_within_the_bound_arrives(world: World) -> None:
    text = "x" * 2_000_000
    answer = await world.http.call("counter", "echo", {"value": [text, list(range(50_000))]})
    assert answer.status == 200
    assert answer.json == [text, list(range(50_000))]
