"""The store in etcd while requests and answers are lost, members are killed and paused, and
strangers answer.
"""

from __future__ import annotations

import pytest
import trio

from actors.errors import StoreError, StoreOutcomeUnknownError, StoreUnavailableError
from runtime import open_node
from runtime.membership.members import PREFIX
from runtime.store.etcd import store
from runtime.store.etcd.store import EtcdStore
from runtime.store.etcd.translation import EtcdFullError, EtcdRefusalError
from runtime.store.interface import Compare, Delete, Entry, Get, Put
from runtime.testing import EtcdServer, open_etcd
from runtime.timings import Timings
from tests.etcd import needs_etcd
from tests.store.etcd.conftest import let_answers_be_lost, store_at
from tests.store.etcd.proxy import lossy_proxy
from tests.waiting import until

pytestmark = needs_etcd


async def increment(
    store: EtcdStore, key: str, times: int, unknown: list[str] | None = None
) -> int:
    """Count up `key`, which nobody else does; returns how often it was acknowledged. `unknown`
    takes the errors that may happen.
    """
    acknowledged = 0
    for _ in range(times):
        entry = await insist(store, key)
        number, revision = (int(entry.value), entry.mod_revision) if entry is not None else (0, 0)
        try:
            result = await store.transaction(
                [Compare(key, "mod_revision", revision)],
                [Get(key), Put(key, b"%d" % (number + 1)), Delete("no/such/key"), Get(key)],
                [Get(key)],
            )
        except StoreOutcomeUnknownError as error:
            if unknown is None:
                raise
            unknown.append(str(error))
            continue
        except StoreUnavailableError:
            continue
        assert result.succeeded, "a repeat of ours has been applied before"
        before, _, deleted, after = result.responses
        assert before == entry
        assert not deleted
        assert isinstance(after, Entry)
        assert int(after.value) == number + 1
        assert after.mod_revision == result.revision
        acknowledged += 1
    return acknowledged


async def insist(store: EtcdStore, key: str) -> Entry | None:
    while True:
        try:
            return await store.get(key)
        except StoreUnavailableError:
            await trio.sleep(0.1)


async def test_transactions_whose_requests_and_answers_are_lost_are_applied_once_and_answered_right(
    etcd: EtcdServer,
) -> None:
    with trio.fail_after(50):
        async with (
            lossy_proxy(etcd.members[0].client_port) as proxy,
            store_at(f"etcd://127.0.0.1:{proxy.port}") as lossy,
        ):
            await lossy.put("warm", b"")
            proxy.lose_answers = proxy.lose_requests = 0.2
            counts: dict[str, int] = {}

            async def count(key: str) -> None:
                counts[key] = await increment(lossy, key, 40)

            async with trio.open_nursery() as nursery:
                for number in range(8):
                    nursery.start_soon(count, f"counter/{number}")
            proxy.lose_answers = proxy.lose_requests = 0.0
            for key, acknowledged in counts.items():
                entry = await lossy.get(key)
                assert entry is not None
                assert int(entry.value) == entry.version == acknowledged == 40
            assert min(proxy.lost_answers, proxy.lost_requests) > 40


async def test_connections_that_are_cut_at_any_byte_lose_and_double_nothing(
    etcd: EtcdServer,
) -> None:
    with trio.fail_after(50):
        async with (
            lossy_proxy(etcd.members[0].client_port, seed=3) as proxy,
            store_at(f"etcd://127.0.0.1:{proxy.port}") as cut,
        ):
            first = await cut.put("counter/0", b"0")
            proxy.cut = 0.1
            counts: dict[str, int] = {}
            seen: list[tuple[str, bytes]] = []

            async def count(key: str) -> None:
                counts[key] = await increment(cut, key, 30)

            async def watch() -> None:
                async for batch in cut.watch("counter/", first + 1):
                    seen.extend((event.key, event.value) for event in batch.events)
                    if len(seen) == 4 * 30:
                        return

            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                for number in range(4):
                    nursery.start_soon(count, f"counter/{number}")
            assert set(counts.values()) == {30}
            assert proxy.cuts > 20
            for key in counts:
                assert [value for name, value in seen if name == key] == [
                    b"%d" % number for number in range(1, 31)
                ]


async def test_deletes_grants_and_revokes_survive_lost_answers(etcd: EtcdServer) -> None:
    with trio.fail_after(50):
        async with (
            lossy_proxy(etcd.members[0].client_port) as proxy,
            store_at(f"etcd://127.0.0.1:{proxy.port}") as lossy,
        ):
            proxy.paths = (
                b"/v3/kv/txn",
                b"/v3/lease/grant",
                b"/v3/lease/revoke",
                b"/v3/lease/keepalive",
                b"/v3/kv/range",
            )
            proxy.lose_answers = 0.3
            for number in range(30):
                lease = await lossy.grant(60)
                await lossy.put(f"key/{number}", b"", lease)
                assert await lossy.keep_alive(lease) == 60
                assert await lossy.delete(f"key/{number}")
                assert not await lossy.delete(f"key/{number}")
                await lossy.revoke(lease)
            assert proxy.lost_answers > 30


async def test_an_answer_that_is_lost_for_good_is_unknown_and_names_etcd(
    etcd: EtcdServer,
) -> None:
    timings = Timings(store_call=1.0, etcd_attempt=1.0)
    with trio.fail_after(60):
        async with (
            lossy_proxy(etcd.members[0].client_port) as proxy,
            store_at(f"etcd://127.0.0.1:{proxy.port}", timings=timings) as lossy,
        ):
            await lossy.put("warm", b"")
            proxy.lose_answers = 1.0
            with pytest.raises(StoreOutcomeUnknownError, match=rf"etcd at 127.0.0.1:{proxy.port}"):
                await lossy.put("key", b"")
            proxy.lose_answers = 0.0
            # What became of it can be seen, and can change no more.
            assert (await lossy.get("key")) is None or (await lossy.delete("key"))


async def test_an_etcd_that_is_full_says_so_at_once_and_can_be_emptied() -> None:
    with trio.fail_after(50):
        async with (
            open_etcd(arguments=["--quota-backend-bytes", "17000000"]) as server,
            store_at(server.address) as opened,
        ):
            lease = await opened.grant(60)
            acknowledged: list[int] = []

            async def fill() -> None:
                for number in range(40):
                    await opened.put(f"key/{number}", bytes(1_000_000))
                    acknowledged.append(number)

            with pytest.raises(EtcdFullError, match=r"no room left .*etcdctl compact"):
                await fill()
            assert len((await opened.range("key/")).entries) == len(acknowledged)
            with pytest.raises(EtcdFullError):
                await opened.grant(60)
            assert await opened.keep_alive(lease) == 60
            assert await opened.delete("key/0")
            assert await opened.get("key/0") is None


async def test_a_write_that_was_done_although_etcd_called_itself_full_is_acknowledged(
    etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store_at(etcd.address) as opened:
        await opened.put("key", b"before")
        full = EtcdFullError("database space exceeded")
        let_answers_be_lost(opened, monkeypatch, lambda body: full)
        result = await opened.transaction(
            [Compare("key", "value", b"before")], [Put("key", b"after"), Get("key")], [Get("key")]
        )
        assert result.succeeded
        entry = await opened.get("key")
        assert entry is not None
        assert (entry.value, result.responses) == (b"after", (None, entry))
        result = await opened.transaction(
            [Compare("key", "value", b"before")], [Put("key", b"again")], [Put("other", b"")]
        )
        assert not result.succeeded
        assert await opened.get("other") is not None


async def test_a_value_that_is_too_large_is_refused_at_once_with_the_limit_to_raise(
    etcd: EtcdServer,
) -> None:
    async with store_at(etcd.address) as opened:
        for size in (1_600_000, 5_000_000):
            with (
                trio.fail_after(Timings().store_call / 2),
                pytest.raises(EtcdRefusalError, match=r"too large .*--max-request-bytes"),
            ):
                await opened.put("key", bytes(size))
        assert await opened.get("key") is None


async def test_a_write_while_etcd_is_down_certainly_was_not_done() -> None:
    timings = Timings(store_call=0.5, etcd_attempt=0.5)
    async with open_etcd() as server, store_at(server.address, timings=timings) as opened:
        await opened.put("key", b"")
        server.kill()
        process = server.members[0].process
        assert process is not None
        await trio.to_thread.run_sync(process.wait)
        with trio.fail_after(60), pytest.raises(StoreUnavailableError, match="Connection refused"):
            await opened.put("key", b"more")


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_members_that_are_killed_and_paused_lose_and_double_no_acknowledged_increment() -> (
    None
):
    with trio.fail_after(110):
        async with open_etcd(3) as server, store_at(server.address) as opened:
            unknown: list[str] = []
            counts: dict[str, int] = {}
            over = False

            async def count(key: str) -> None:
                counts[key] = 0
                while not over:
                    counts[key] += await increment(opened, key, 1, unknown)

            async with trio.open_nursery() as nursery:
                for number in range(6):
                    nursery.start_soon(count, f"counter/{number}")
                for index in (0, 1, 2):
                    seen = dict(counts)
                    server.kill(index)
                    await until(
                        lambda seen=seen: all(counts[key] > seen[key] + 5 for key in seen),  # type: ignore[arg-type, misc]
                        "each count goes on",
                    )
                    await server.start(index)
                    seen = dict(counts)
                    server.pause((index + 1) % 3)
                    await until(
                        lambda seen=seen: all(counts[key] > seen[key] + 5 for key in seen),  # type: ignore[arg-type, misc]
                        "each count goes on",
                    )
                    server.resume((index + 1) % 3)
                over = True
            for key, acknowledged in counts.items():
                entry = await opened.get(key)
                assert entry is not None
                assert acknowledged <= int(entry.value) <= acknowledged + len(unknown)
                assert entry.version == int(entry.value), "each number was written once"


@pytest.mark.slow
async def test_a_member_that_hangs_for_longer_than_a_lease_costs_no_node_its_lease(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with trio.fail_after(50):
        async with (
            open_etcd(3) as server,
            open_node("here", store=server.address, secret="of the tests") as node,
        ):
            server.pause(0)
            # Time passing is what this is about.
            await trio.sleep(1.4 * Timings().lease)
            async with store_at(
                "etcd://"
                + ",".join(f"127.0.0.1:{member.client_port}" for member in server.members[1:]),
                node.cluster,
            ) as other:
                assert [entry.key for entry in (await other.range(PREFIX)).entries] == [
                    f"{PREFIX}here"
                ]
            server.resume(0)
    assert "lost its lease" not in caplog.text


async def test_a_watch_goes_on_over_a_kill_of_the_member_and_misses_nothing() -> None:
    with trio.fail_after(50):
        async with open_etcd() as server, store_at(server.address) as opened:
            revision = await opened.put("key/0", b"")
            seen: list[str] = []

            async def watch() -> None:
                async for batch in opened.watch("key/", revision):
                    seen.extend(event.key for event in batch.events)
                    if len(seen) == 4:
                        return

            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                await until(lambda: seen, "the watch has begun")
                for number in (1, 2, 3):
                    server.kill()
                    await server.start()
                    await insist(opened, "key")
                    await opened.put(f"key/{number}", b"")
            assert seen == ["key/0", "key/1", "key/2", "key/3"]


async def test_an_etcd_that_is_not_there_is_unavailable_and_says_where_it_was_looked_for() -> None:
    async with store_at("etcd://127.0.0.1:1") as nowhere:
        with (
            trio.fail_after(60),
            pytest.raises(
                StoreUnavailableError,
                match=r"127.0.0.1:1: .*is it running, and is this its address",
            ),
        ):
            await nowhere._gateway.ask("/v3/kv/range", {"key": "AA=="}, seconds=0.5)


STRANGERS = {
    "http": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "not found": b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nNot Found",
    "a list": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
    "ssh": b"SSH-2.0-OpenSSH_9.2\r\n",
    "garbage": bytes(range(256)),
    "nothing": b"",
}


@pytest.mark.parametrize("stranger", STRANGERS)
async def test_a_stranger_at_the_address_is_a_clear_error(stranger: str) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(STRANGERS[stranger])

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        await nursery.start(trio.serve_listeners, answer, listeners)
        async with store_at(f"etcd://127.0.0.1:{port}") as strange:
            with (
                trio.fail_after(60),
                pytest.raises(
                    StoreError, match=rf"127.0.0.1:{port}.*(check the address|is this its address)"
                ),
            ):
                await strange._gateway.ask("/v3/kv/range", {"key": "AA=="}, seconds=0.5)
        nursery.cancel_scope.cancel()


async def test_a_member_that_says_nothing_is_given_up_for_another(etcd: EtcdServer) -> None:
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await nursery.start(trio.serve_listeners, silent, listeners)
        port = listeners[0].socket.getsockname()[1]
        async with store_at(
            f"etcd://127.0.0.1:{port},127.0.0.1:{etcd.members[0].client_port}",
            timings=Timings(etcd_attempt=0.2),
        ) as opened:
            with trio.fail_after(60):
                assert await opened.put("key", b"") > 1
                assert (await opened.poll("key", 1)).events
        nursery.cancel_scope.cancel()


async def silent(stream: trio.SocketStream) -> None:
    async with stream:
        await trio.sleep_forever()


async def test_stores_of_two_clusters_in_one_etcd_do_not_see_each_other(etcd: EtcdServer) -> None:
    async with store_at(etcd.address, "one") as one, store_at(etcd.address, "one-more") as other:
        await one.put("key", b"1")
        assert await other.get("key") is None
        assert not (await other.range("")).entries


async def test_the_markers_go_with_their_client(etcd: EtcdServer) -> None:
    async with store_at(etcd.address, "gone") as opened:
        await opened.put("key", b"")
        root = opened._markers._root
        assert await found_under(etcd, root)
    assert not await found_under(etcd, root)


async def found_under(etcd: EtcdServer, root: str) -> list[object]:
    async with store_at(etcd.address) as other:
        space = store.Space(root)  # type: ignore[attr-defined]
        return list((await other._ask("/v3/kv/range", space.under(""))).get("kvs", ()))


async def test_markers_whose_lease_has_ended_are_made_anew(etcd: EtcdServer) -> None:
    async with store_at(etcd.address) as opened:
        await opened.put("key", b"1")
        await opened._ask("/v3/lease/revoke", {"ID": str(opened._lease)})
        assert await opened.put("key", b"2") > 1
        entry = await opened.get("key")
        assert entry is not None
        assert entry.version == 2
