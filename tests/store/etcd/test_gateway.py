"""The client of etcd's gateway before members that are slow, silent, wrong, full of words
or gone.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from actors.errors import LeaseLostError, StoreError, StoreUnavailableError
from runtime.store.etcd import gateway
from runtime.store.etcd import gateway as gateway_module
from runtime.store.etcd.address import EtcdAddress
from runtime.store.etcd.gateway import AmbiguousError, Gateway
from runtime.store.etcd.translation import EtcdRefusalError
from runtime.timings import Timings
from tests.invariants import checked
from tests.store.etcd.strangers import answer, listening, request, silent

READ: tuple[str, dict[str, Any]] = ("/v3/kv/range", {"key": "AA=="})
GOOD = {"header": {"revision": "7"}}


@asynccontextmanager
async def gateway_to(
    *ports: int, user: str = "", timings: Timings | None = None
) -> AsyncIterator[Gateway]:
    opened = Gateway(
        EtcdAddress.parse(f"etcd://{user}" + ",".join(f"127.0.0.1:{port}" for port in ports)),
        timings,
    )
    try:
        with checked(Gateway):
            yield opened
        opened.check_invariants()
    finally:
        opened.close()


async def good(stream: trio.SocketStream) -> None:
    """Answer everything."""
    while await request(stream) is not None:
        await stream.send_all(answer(GOOD))


def saying(content: bytes) -> Any:
    """A server that answers every request with these bytes and closes."""

    async def serve(stream: trio.SocketStream) -> None:
        if await request(stream) is not None:
            await stream.send_all(content)

    return serve


async def closed_port() -> int:
    async with listening(silent) as port:
        return port


async def test_a_write_that_reached_nobody_is_tried_at_the_next_member() -> None:
    async with listening(good) as port, gateway_to(await closed_port(), port) as opened:
        assert await opened.ask(*READ, once=True) == GOOD


async def test_a_connection_that_its_member_closed_while_it_waited_loses_no_write() -> None:
    served = 0

    async def once_each(stream: trio.SocketStream) -> None:
        nonlocal served
        assert await request(stream) is not None
        served += 1
        await stream.send_all(answer(GOOD))

    async with listening(once_each) as port, gateway_to(port) as opened:
        for _ in range(3):
            assert await opened.ask(*READ, once=True) == GOOD
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert served == 3


@pytest.mark.parametrize(
    "content",
    [b"", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{"],
)
async def test_a_write_whose_answer_breaks_off_is_ambiguous(
    content: bytes,
) -> None:
    async with (
        listening(saying(content)) as broken,
        listening(good) as port,
        gateway_to(broken, port) as opened,
    ):
        with pytest.raises(AmbiguousError, match=str(broken)):
            await opened.ask(*READ, once=True)
        assert await opened.ask(*READ, once=True) == GOOD


async def test_a_read_whose_answer_breaks_off_is_asked_of_another_member() -> None:
    async with (
        listening(saying(b"HTTP/1.1 200 OK\r\n")) as broken,
        listening(good) as port,
        gateway_to(broken, port) as opened,
    ):
        assert await opened.ask(*READ) == GOOD


async def test_an_answer_that_is_too_long_is_not_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "MAX_BODY", 1000)
    long = answer({"kvs": ["x" * 2000]})
    endless = b"HTTP/1.1 200 OK\r\n" + b"X-Header: " + b"x" * 100_000
    for content, why in (
        (long, "more than 1000 bytes"),
        (endless, "did not answer with valid HTTP"),
    ):
        async with listening(saying(content)) as port, gateway_to(port) as opened:
            with pytest.raises(StoreUnavailableError, match=why):
                await opened.ask(*READ, seconds=0.3)


async def test_a_proxy_with_no_etcd_behind_it_is_etcd_being_away_and_not_a_stranger() -> None:
    unavailable = answer(b"<html>503 Service Unavailable</html>", 503)
    async with listening(saying(unavailable)) as port, gateway_to(port) as opened:
        with pytest.raises(StoreUnavailableError, match="503 Service Unavailable"):
            await opened.ask(*READ, seconds=0.3)
    async with (
        listening(saying(unavailable)) as proxy,
        listening(good) as port,
        gateway_to(proxy, port) as opened,
    ):
        assert await opened.ask(*READ) == GOOD


async def test_a_refusal_within_a_stream_is_understood() -> None:
    lost = {
        "error": {
            "grpc_code": 5,
            "http_code": 404,
            "message": "etcdserver: requested lease not found",
        }
    }
    leaderless = {"error": {"grpc_code": 14, "http_code": 503, "message": "etcdserver: no leader"}}
    async with listening(saying(answer(lost, 404))) as port, gateway_to(port) as opened:
        with pytest.raises(LeaseLostError):
            await opened.ask("/v3/lease/keepalive", {"ID": "7"})
    async with (
        listening(saying(answer(leaderless))) as away,
        listening(good) as port,
        gateway_to(away, port) as opened,
    ):
        assert await opened.ask("/v3/lease/keepalive", {"ID": "7"}) == GOOD


async def test_a_token_that_is_never_good_ends_with_the_call() -> None:
    logins = 0

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal logins
        while (asked := await request(stream)) is not None:
            if asked[0] == gateway.AUTHENTICATE:
                logins += 1
                await stream.send_all(answer({"token": f"token {logins}"}))
            else:
                await stream.send_all(
                    answer({"error": "etcdserver: invalid auth token", "code": 16}, 401)
                )

    async with listening(serve) as port, gateway_to(port, user="ann:hush@") as opened:
        with pytest.raises(StoreUnavailableError, match="invalid auth token") as refused:
            await opened.ask(*READ, once=True, seconds=1.5)
        assert "hush" not in str(refused.value)
        assert 2 <= logins < 40


async def test_who_gives_no_token_is_no_etcd() -> None:
    async with listening(good) as port, gateway_to(port, user="ann:hush@") as opened:
        with pytest.raises(EtcdRefusalError, match="gave no token; check the address"):
            await opened.ask(*READ)


async def test_a_renewal_waits_less_long_for_a_silent_member_than_other_calls() -> None:
    timings = Timings(store_call=60.0, etcd_attempt=60.0, etcd_quick_leases=0.02)
    async with (
        listening(silent) as dead,
        listening(good) as port,
        gateway_to(dead, port, timings=timings) as opened,
    ):
        with trio.fail_after(60):
            assert await opened.ask("/v3/lease/keepalive", {"ID": "7"}, quick=True) == GOOD


async def test_a_member_that_outlasts_its_callers_patience_is_not_asked_first_again() -> None:
    """Callers with little patience would never find the others."""
    timings = Timings(store_call=60.0, etcd_attempt=60.0, etcd_slow=0.05)
    asked = trio.Event()

    async def serve(stream: trio.SocketStream) -> None:
        await request(stream)
        asked.set()
        await trio.sleep_forever()

    async with (
        listening(serve) as dead,
        listening(good) as port,
        gateway_to(dead, port, timings=timings) as opened,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(opened.ask, *READ)
            await asked.wait()
            await trio.sleep(2 * timings.etcd_slow)
            nursery.cancel_scope.cancel()
        with trio.fail_after(60):
            assert await opened.ask(*READ) == GOOD


async def test_a_member_that_does_not_answer_loses_its_streams_to_others() -> None:
    timings = Timings(etcd_quick_leases=0.02)

    async def serve(stream: trio.SocketStream) -> None:
        asked = await request(stream)
        if asked is not None and asked[0] == "/v3/watch":
            await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await trio.sleep_forever()

    async with (
        listening(serve) as stuck,
        listening(good) as port,
        gateway_to(stuck, port, timings=timings) as opened,
    ):
        stream = await opened.stream("/v3/watch", {})
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(gateway_module.LostError):
                    await stream.next()

            nursery.start_soon(wait)
            assert await opened.ask(*READ, quick=True) == GOOD


async def test_no_connection_is_left_when_a_call_is_cancelled_or_the_gateway_closed() -> None:
    asked, ended = trio.Event(), trio.Event()

    async def serve(stream: trio.SocketStream) -> None:
        await request(stream)
        asked.set()
        assert await stream.receive_some() == b""
        ended.set()

    async with listening(serve) as port, gateway_to(port) as opened:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(opened.ask, *READ)
            await asked.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(60):
            await ended.wait()


async def test_without_h11_the_extra_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h11", None)
    with pytest.raises(StoreError, match=r"pip install 'understudy-actors\[etcd\]'"):
        Gateway(EtcdAddress.parse("etcd://127.0.0.1:2379"))
