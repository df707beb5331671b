"""Batches of transactions in etcd, many of which one request carries out: while requests and
answers are lost, when one of them is refused, and when etcd is full.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio

from actors.errors import LeaseLostError, StoreOutcomeUnknownError
from runtime.environment import SystemEnvironment
from runtime.store.embedded_store import EmbeddedStore
from runtime.store.etcd.gateway import AmbiguousError
from runtime.store.etcd.store import MOST_INSIDE, TOGETHER, EtcdStore
from runtime.store.etcd.translation import EtcdFullError, EtcdRefusalError, Json
from runtime.store.interface import (
    Compare,
    Delete,
    Entry,
    Get,
    Operation,
    Put,
    Transaction,
    TransactionOutcome,
    TransactionResult,
)
from runtime.testing import EtcdServer, open_etcd
from tests.etcd import needs_etcd
from tests.store.etcd.conftest import let_answers_be_lost, store_at
from tests.store.etcd.proxy import lossy_proxy

pytestmark = needs_etcd


def claim(name: str, value: bytes = b"ours", lease: int = 0) -> Transaction:
    """Claim a name, as starts of actors do."""
    return Transaction(
        (Compare(name, "create_revision", 0),), (Put(name, value, lease),), (Get(name),)
    )


def claims(count: int, value: bytes = b"ours") -> list[Transaction]:
    return [claim(f"name/{number}", value) for number in range(count)]


def counted(store: EtcdStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record how many nested transactions each request for a transaction has."""
    found: list[int] = []
    ask = store._gateway.ask

    async def noted(path: str, body: Json, **options: Any) -> Json:
        if path == "/v3/kv/txn":
            found.append(sum("request_txn" in one for one in body["success"]))
        return await ask(path, body, **options)

    monkeypatch.setattr(store._gateway, "ask", noted)
    return found


async def test_one_request_carries_out_as_many_as_etcd_takes(
    etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store_at(etcd.address) as opened:
        requests = counted(opened, monkeypatch)
        batch = claims(2 * TOGETHER + 1)
        # As many parts as etcd allows within others, and as the store allows alone.
        most = tuple(Put(f"many/{number}", b"") for number in range(MOST_INSIDE))
        batch.insert(3, Transaction((), most))
        batch.append(Transaction((), tuple(Put(f"more/{number}", b"") for number in range(120))))
        outcomes = await opened.transactions(batch)
        assert all(isinstance(one, TransactionResult) and one.succeeded for one in outcomes)
        # The last two are alone, and have nothing nested.
        assert sorted(requests) == [0, 2, TOGETHER, TOGETHER]
        assert len((await opened.range("")).entries) == 2 * TOGETHER + 1 + MOST_INSIDE + 120


async def test_transactions_with_a_key_in_common_are_in_different_requests(
    etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store_at(etcd.address) as opened:
        requests = counted(opened, monkeypatch)
        outcomes = await opened.transactions([*claims(10), *claims(10)])
        assert requests == [10, 10]
        won = [one for one in outcomes if isinstance(one, TransactionResult) and one.succeeded]
        assert len(won) == 10


def drawn(draw: random.Random, keys: list[str]) -> Transaction:
    """A transaction that looks at keys of its own and writes them."""

    def branch() -> tuple[Operation, ...]:
        operations: list[Operation] = []
        for key in keys:
            ways: list[list[Operation]] = [
                [],
                [Get(key)],
                [Put(key, b"%d" % draw.randrange(100))],
                [Delete(key)],
                [Get(key), Put(key, b"new"), Get(key)],
                [Delete(key), Get(key)],
            ]
            operations += draw.choice(ways)
        return tuple(operations)

    field, expected = draw.choice(
        (("create_revision", 0), ("version", 1), ("version", 2), ("value", b"new"))
    )
    return Transaction((Compare(keys[0], field, expected),), branch(), branch())  # type: ignore[arg-type]


def without_revisions(outcome: TransactionOutcome) -> object:
    assert isinstance(outcome, TransactionResult), outcome
    return outcome.succeeded, [
        (one.key, one.value, one.version) if isinstance(one, Entry) else one
        for one in outcome.responses
    ]


@pytest.mark.parametrize("lost", [0.0, 0.2])
async def test_batches_do_what_the_embedded_store_does_whatever_is_lost(
    etcd: EtcdServer, lost: float
) -> None:
    draw = random.Random(7)
    model = EmbeddedStore(SystemEnvironment())
    with trio.fail_after(50):
        async with (
            lossy_proxy(etcd.members[0].client_port) as proxy,
            store_at(f"etcd://127.0.0.1:{proxy.port}") as lossy,
            trio.open_nursery() as nursery,
        ):
            await nursery.start(model.run)
            await lossy.put("warm", b"")
            proxy.lose_answers = proxy.lose_requests = lost
            for _ in range(40):
                keys = [[f"key/{pair}/0", f"key/{pair}/1"] for pair in range(12)]
                batch = [drawn(draw, own) for own in draw.sample(keys, draw.randrange(1, 12))]
                expected = await model.transactions(batch)
                found = await lossy.transactions(batch)
                assert list(map(without_revisions, found)) == list(map(without_revisions, expected))
                for one in found:
                    assert isinstance(one, TransactionResult)
                    assert all(
                        entry.mod_revision <= one.revision
                        for entry in one.responses
                        if isinstance(entry, Entry)
                    )
            proxy.lose_answers = proxy.lose_requests = 0.0
            ours, theirs = await lossy.range("key/"), await model.range("key/")
            assert [(one.key, one.value, one.version) for one in ours.entries] == [
                (one.key, one.value, one.version) for one in theirs.entries
            ]
            assert (proxy.lost_answers > 3) == (proxy.lost_requests > 3) == (lost > 0)
            model.close()


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (claim("bad", lease=2**40), LeaseLostError),
        (claim("bad", bytes(1_600_000)), EtcdRefusalError),
        (Transaction((), (Put("bad", b""), Put("bad", b""))), ValueError),
    ],
    ids=["its lease has ended", "too large", "it writes a key twice"],
)
async def test_one_that_is_refused_leaves_the_others(
    etcd: EtcdServer, bad: Transaction, expected: type[Exception]
) -> None:
    async with store_at(etcd.address) as opened:
        batch = claims(20)
        batch.insert(7, bad)
        outcomes = await opened.transactions(batch)
        assert isinstance(outcomes.pop(7), expected)
        assert all(isinstance(one, TransactionResult) and one.succeeded for one in outcomes)
        assert len((await opened.range("name/")).entries) == 20
        assert await opened.get("bad") is None


async def test_a_batch_that_is_full_of_large_values_is_split(
    etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store_at(etcd.address) as opened:
        requests = counted(opened, monkeypatch)
        outcomes = await opened.transactions(claims(20, bytes(100_000)))
        assert all(isinstance(one, TransactionResult) for one in outcomes)
        assert sorted(requests) == [5, 5, 5, 5]


async def test_a_full_etcd_refuses_batches_as_it_refuses_single_writes() -> None:
    """etcd counts no nested writes, but looks whether it is full because of the marker."""
    with trio.fail_after(50):
        async with (
            open_etcd(arguments=["--quota-backend-bytes", "17000000"]) as server,
            store_at(server.address) as opened,
        ):
            written = 0
            while True:
                outcomes = await opened.transactions(
                    [claim(f"{written}/{number}", bytes(8_000)) for number in range(TOGETHER)]
                )
                if not all(isinstance(one, TransactionResult) for one in outcomes):
                    break
                written += 1
                assert written < 100, "several times its quota"
            assert all(isinstance(one, EtcdFullError) for one in outcomes)
            assert len(set(map(id, outcomes))) == TOGETHER, "different tasks raise them"
            assert len((await opened.range(f"{written}/")).entries) == 0
            assert written > 10


async def test_a_batch_that_was_done_although_etcd_called_itself_full_is_acknowledged(
    etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store_at(etcd.address) as opened:
        await opened.put("name/1", b"theirs")
        full = EtcdFullError("database space exceeded")
        let_answers_be_lost(opened, monkeypatch, lambda body: full)
        mine, theirs = await opened.transactions([claim("name/0"), claim("name/1")])
        assert isinstance(mine, TransactionResult)
        assert isinstance(theirs, TransactionResult)
        assert (mine.succeeded, theirs.succeeded) == (True, False)
        (entry,) = theirs.responses
        assert isinstance(entry, Entry)
        assert entry.value == b"theirs"
        entry = await opened.get("name/0")
        assert entry is not None
        assert entry.mod_revision == mine.revision


async def test_without_its_history_a_batch_whose_answer_was_lost_is_unknown(
    etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store_at(etcd.address) as opened:
        await opened.put("warm", b"")
        ask = opened._gateway.ask

        async def lost(path: str, body: Json, **options: Any) -> Json:
            answer = await ask(path, body, **options)
            if path == "/v3/kv/txn" and any("request_txn" in one for one in body["success"]):
                await ask("/v3/kv/compaction", {"revision": answer["header"]["revision"]})
                raise AmbiguousError("lost by the test")
            return answer

        monkeypatch.setattr(opened._gateway, "ask", lost)
        outcomes = await opened.transactions(claims(3))
        assert [type(one) for one in outcomes] == [StoreOutcomeUnknownError] * 3
        assert all("the outcome of the write is not known" in str(one) for one in outcomes)
        assert len((await opened.range("name/")).entries) == 3
