"""HTTP/1 as the doors read it: what a proxy in front may read as another request is refused."""

from __future__ import annotations

import random
import re
from typing import Any

import h11
import pytest

from runtime.strict_http import MOST_PIPELINED, StrictConnection

HEAD = b"POST /a HTTP/1.1\r\nHost: here\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
NEXT = b"GET /b HTTP/1.1\r\nHost: here\r\n\r\n"


def read(sent: bytes, pieces: int = 1) -> list[bytes]:
    """The targets of the requests that were read to their ends. Raises `RemoteProtocolError`."""
    connection = StrictConnection(16 * 1024)
    targets: list[bytes] = []
    request: Any = None
    step = -(-len(sent) // pieces)
    for start in range(0, len(sent), step):
        connection.receive_data(sent[start : start + step])
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.EndOfMessage):
                targets.append(request.target)
                connection.send(h11.Response(status_code=204, headers=[]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is not h11.DONE:
                    return targets
                connection.start_next_cycle()
            elif not isinstance(event, h11.Data):
                break
    return targets


def split_by_carriage_returns(sent: bytes) -> list[bytes]:
    """The targets as a reader finds them that knows no other ends of lines."""
    targets: list[bytes] = []
    while True:
        head, end, sent = sent.partition(b"\r\n\r\n")
        if not end or not re.match(rb"\S+ \S+", head):
            return targets
        first, *lines = head.split(b"\r\n")
        split = [line.partition(b":") for line in lines]
        fields = {name.lower(): value.strip() for name, _, value in split}
        if b"transfer-encoding" in fields:
            size = -1
            while size:
                line, _, sent = sent.partition(b"\r\n")
                # h11 allows blanks here, and so do proxies.
                digits = line.partition(b";")[0].rstrip(b" \t")
                if not re.fullmatch(b"[0-9a-f]+", digits):
                    return targets
                size = int(digits, 16)
                sent = sent[size + 2 :]
        else:
            sent = sent[int(fields.get(b"content-length", b"0")) :]
        targets.append(first.split()[1])


GOOD = [
    NEXT,
    HEAD + b"Content-Length: 6\r\n\r\na\nb\n c",
    # What looks like a head in a body is none, nor is it read as one.
    HEAD + b"Content-Length: %d\r\n\r\n" % len(b"x\n\n" + NEXT) + b"x\n\n" + NEXT,
    CHUNKED + b"3\r\n\n\n \r\n0\r\n\r\n",
    CHUNKED + b"0\r\n\r\n",
    CHUNKED + b"1;a=b\r\n\n\r\n0;a=b\r\n\r\n",
    CHUNKED + b"".join(b"1\r\nx\r\n" for _ in range(9000)) + b"0\r\n\r\n",
]

BAD = [
    b"GET /a HTTP/1.1\nHost: here\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: here\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: here\r\n\n",
    b"GET /a HTTP/1.1\r\nHost: here\n\n",
    b"GET /a HTTP/1.1\r\nHost: here\r\nX: a\nContent-Length: 5\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: here\r\nX: a\r\n b\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: here\r\nX: a\r\n\tb\r\n\r\n",
    b"GET /a HTTP/1.1\r\n Host: here\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: here\rX: a\r\n\r\n",
    b"\nGET /a HTTP/1.1\r\nHost: here\r\n\r\n",
    HEAD + b"Transfer-Encoding:\n chunked\r\n\r\n0\r\n\r\n",
    CHUNKED + b"0\r\n\n",
    CHUNKED + b"0\n\r\n",
    CHUNKED + b"0\r\nX: a\n\r\n",
    CHUNKED + b"0\r\nX: a\r\n\r\n",
    CHUNKED + b"1;a\nb\r\nx\r\n0\r\n\r\n",
    b"POST /a HTTP/1.0\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"PRI * HTTP/2.0\r\nX: a\r\n\r\n",
]


@pytest.mark.parametrize("pieces", [1, 2, 7, 100_000])
@pytest.mark.parametrize("sent", GOOD)
def test_requests_that_are_as_they_should_be_are_read(sent: bytes, pieces: int) -> None:
    target = sent.split()[1]
    assert read(sent + sent + NEXT, pieces) == [target, target, b"/b"]


@pytest.mark.parametrize("pieces", [1, 2, 7, 100_000])
@pytest.mark.parametrize("sent", BAD)
def test_what_may_be_read_in_two_ways_is_refused(sent: bytes, pieces: int) -> None:
    with pytest.raises(h11.RemoteProtocolError) as caught:
        read(sent + NEXT, pieces)
    assert caught.value.error_status_hint == 400
    # Also as the second request of a connection.
    with pytest.raises(h11.RemoteProtocolError):
        read(NEXT + sent + NEXT, pieces)


def test_no_other_protocol_is_agreed_to() -> None:
    connection = StrictConnection(1024)
    connection.receive_data(
        b"GET / HTTP/1.1\r\nHost: here\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nUpgrade: websocket\r\n\r\n"
    )
    request = connection.next_event()
    assert isinstance(request, h11.Request)
    assert [name for name, _ in request.headers] == [b"host", b"connection", b"http2-settings"]
    assert not connection.is_http2


def test_http2_begins_with_a_connection_and_never_behind_a_request() -> None:
    start = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    connection = StrictConnection(1024)
    connection.receive_data(start)
    assert isinstance(connection.next_event(), h11.Request)
    assert connection.is_http2
    with pytest.raises(h11.RemoteProtocolError, match="HTTP/2 begins"):
        read(NEXT + start)


@pytest.mark.parametrize("seed", range(20))
def test_a_changed_request_is_read_with_its_own_ends_or_refused(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(200):
        sent = bytearray(chance.choice(GOOD[:6]))
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(len(sent))
            sent[place : place + chance.randrange(2)] = chance.choice(
                [b"\n", b"\r", b"\r\n", b" ", b"\t", b"0", b"\r\n\r\n"]
            )
        try:
            targets = read(bytes(sent), chance.choice([1, 3, 50]))
        except h11.RemoteProtocolError:
            continue
        expected = split_by_carriage_returns(bytes(sent))
        assert targets == expected[: len(targets)]


def test_few_requests_of_one_piece_are_read_and_the_last_ends_the_connection() -> None:
    connection = StrictConnection(16 * 1024)
    body = HEAD + b"Content-Length: 4\r\n\r\nab"
    # The body of the last one arrives in two pieces.
    connection.receive_data(NEXT * (MOST_PIPELINED - 1) + body)
    sent: list[bytes] = []
    for number in range(MOST_PIPELINED):
        assert isinstance(connection.next_event(), h11.Request)
        assert connection.is_pipelined == (number > 0)
        if number == MOST_PIPELINED - 1:
            assert connection.next_event() == h11.Data(data=b"ab")
            assert connection.next_event() is h11.NEED_DATA
            connection.receive_data(b"cd" + NEXT)
            assert connection.next_event() == h11.Data(data=b"cd")
        assert isinstance(connection.next_event(), h11.EndOfMessage)
        sent.append(connection.send(h11.Response(status_code=204, headers=[])) or b"")
        connection.send(h11.EndOfMessage())
        if number < MOST_PIPELINED - 1:
            connection.start_next_cycle()
    assert [b"connection: close" in one.lower() for one in sent] == [
        *[False] * (MOST_PIPELINED - 1),
        True,
    ]
    # What follows is neither read nor refused.
    assert connection.next_event() is h11.NEED_DATA
    connection.receive_data(NEXT)
    assert connection.next_event() is h11.NEED_DATA
    assert connection.our_state is h11.MUST_CLOSE


def test_requests_that_arrive_one_after_another_end_no_connection() -> None:
    assert read(NEXT * 5 * MOST_PIPELINED, 5 * MOST_PIPELINED) == [b"/b"] * 5 * MOST_PIPELINED


def test_no_request_is_read_of_a_client_that_has_gone() -> None:
    connection = StrictConnection(1024)
    connection.receive_data(NEXT)
    connection.is_over = True
    assert isinstance(connection.next_event(), h11.ConnectionClosed)
