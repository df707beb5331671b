"""Each number moves when the thing happens that it counts, and what it reads is right."""

from __future__ import annotations

import datetime
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest
import trio
import trustme
from trio.testing import MockClock

from actors import Actor, ChildSpec, Supervisor, method
from actors.errors import CallError, OwnerDiedError
from runtime import open_node
from runtime.calls.deadlines import Deadlines
from runtime.environment import SystemEnvironment
from runtime.links.credentials import CertificateFiles, FileCredentials
from runtime.links.encryption import EncryptedNetwork, TlsPolicy
from runtime.links.link import Link
from runtime.links.session import WINDOW_FRAMES
from runtime.links.transports import SocketNetwork
from runtime.metrics.readings import LoopHealth, Readings, _read_network, read
from runtime.node import Node, internals_of
from runtime.references.table import state_of
from runtime.statistics.histograms import Histogram
from runtime.store.interface import RangeResult, WatchBatch
from runtime.store.measured_store import MeasuredStore
from runtime.wire.frames import Kind, encode_frame
from runtime.wire.handshake import Peer
from tests.live_pair import SECRET, Pair
from tests.waiting import until

MIB = 1024 * 1024


class Maker(Actor):
    """Has values, and streams of numbers."""

    @method
    async def make(self, size: int) -> bytes:
        return bytes(size)

    @method
    async def crash(self) -> None:
        raise SystemExit("on purpose")

    @method
    async def count(self) -> AsyncIterator[int]:
        for number in range(1_000_000):
            yield number


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """Two nodes with metrics. Referenced values of `there` soon go to disk."""
    async with (
        open_node("here", secret=SECRET, metrics="0") as here,
        open_node(
            "there", join=here.address, secret=SECRET, metrics="0", reference_memory=MIB
        ) as there,
    ):
        await here.wait_for(2)
        yield Pair(here, there)


def number(node: Node, name: str, *labels: str) -> float | None:
    """A number of a node, with these labels; of a histogram, how much it counts."""
    metrics = internals_of(node).metrics
    assert metrics is not None
    found = read(metrics._parts, metrics._statistics, LoopHealth())
    if name in found.buckets:
        return sum(sum(counts) for _, counts, _ in found.buckets[name])
    values = found.numbers.get(name)
    if values is None:
        return None
    by_labels = dict(values)
    assert labels or list(by_labels) == [()]
    return by_labels[labels]


def reading(node: Node, name: str, *labels: str) -> Callable[[], float | None]:
    """What reads that number."""
    return lambda: number(node, name, *labels)


async def test_bytes_that_were_sent(pair: Pair) -> None:
    maker = await pair.here.options(on="there").spawn(Maker)
    before = cast("float", number(pair.there, "understudy_link_bytes_total", "sent"))
    assert len(await maker.make(3 * MIB)) == 3 * MIB
    sent = cast("float", number(pair.there, "understudy_link_bytes_total", "sent"))
    received = cast("float", number(pair.here, "understudy_link_bytes_total", "received"))
    assert 3 * MIB < sent - before < 3.5 * MIB
    assert received > 3 * MIB


async def test_restarts_of_supervisors_that_are_named() -> None:
    async with open_node(
        "alone", secret=SECRET, metrics="0", measured_supervisors=["shop"]
    ) as node:
        for name in ("shop", "other"):
            boss = node.options(name=name)
            await boss.spawn(Supervisor, [ChildSpec.of("maker", Maker)], intensity=4)
            with pytest.raises(CallError):
                await (await node.lookup(f"{name}/maker", Maker)).crash()
        restarts = "understudy_restarts_total"
        used = "understudy_intensity_used_ratio"
        for label in ("shop", ""):
            await until(reading(node, used, label), "it restarts")
            assert number(node, used, label) == 0.25
            assert number(node, restarts, label, "raised") == 1


@pytest.mark.parametrize(
    "wrong", ["shop", [""], [7], [f"supervisor-{number}" for number in range(101)]], ids=repr
)
async def test_what_is_no_list_of_supervisors_is_refused(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="supervisor"):
        await open_node(secret=SECRET, measured_supervisors=wrong).__aenter__()


async def test_bytes_that_were_given_in_shared_memory(pair: Pair) -> None:
    maker = await pair.here.options(on="there").spawn(Maker)
    # The first answer announces the memory, and goes over the socket.
    for _ in range(3):
        assert len(await maker.make(3 * MIB)) == 3 * MIB
    shared = cast("float", number(pair.there, "understudy_link_shared_bytes_total"))
    assert shared % (3 * MIB) == 0
    assert 3 * MIB <= shared <= 6 * MIB


async def test_only_the_node_that_keeps_the_store_knows_its_size(pair: Pair) -> None:
    before = cast("float", number(pair.here, "understudy_store_bytes"))
    assert before > 100
    assert number(pair.there, "understudy_store_bytes") is None
    await internals_of(pair.there).store.put("test/a", bytes(5000))
    assert cast("float", number(pair.here, "understudy_store_bytes")) >= before + 5000
    assert number(pair.here, "understudy_store_watch_lag_revisions") == 0


async def test_values_that_are_spilled_fetched_and_lost(pair: Pair) -> None:
    maker = await pair.here.options(on="there").spawn(Maker)
    # More than the memory for values: some go to disk.
    references = [await maker.make.remote(MIB) for _ in range(3)]
    await until(lambda: number(pair.there, "understudy_spilled_bytes_total"), "a value is on disk")
    for reference in references:
        assert len(await reference.fetch()) == MIB
    assert number(pair.here, "understudy_fetch_seconds") == 3
    assert number(pair.here, "understudy_owner_died_total") == 0
    state = state_of(await maker.make.remote(1))
    state.error = OwnerDiedError("as when its owner has died")
    with pytest.raises(OwnerDiedError):
        await internals_of(pair.here).references.fetcher.fetch(state)
    assert number(pair.here, "understudy_owner_died_total") == 1


@pytest.mark.parametrize("on", ["here", "there"])
async def test_streams_that_wait_for_their_readers(pair: Pair, on: str) -> None:
    name = "understudy_stream_credit_wait_seconds_total"
    node = pair.here if on == "here" else pair.there
    maker = await pair.here.options(on=on).spawn(Maker)
    waits = internals_of(node).host.counts.credit_waits
    async with maker.count() as items:
        assert await anext(items) == 0
        await until(lambda: waits.waiting == 1, "the generator is ahead by the window")
        before = cast("float", number(node, name))
        await until(lambda: cast("float", number(node, name)) > before, "it grows meanwhile")
    await until(lambda: waits.waiting == 0, "the stream is over")
    after = number(node, name)
    await trio.sleep(0.01)
    assert number(node, name) == after


async def test_a_window_that_is_full(autojump_clock: MockClock) -> None:
    class Nobody:
        handlers = MappingProxyType[int, Any]({})

        def link_ended(self, link: Link, reason: str) -> None:
            pass

    link = Link(Peer(name="peer", incarnation=1, role="node"), cast("Any", Nobody()))
    await link.room()
    for _ in range(WINDOW_FRAMES):
        assert link.has_room
        link.post(encode_frame(Kind.CALL, b""))
    async with trio.open_nursery() as nursery:
        # Of two that wait at once, the time counts once.
        nursery.start_soon(link.room)
        await trio.sleep(3)
        nursery.start_soon(link.room)
        await trio.sleep(4)
        assert link.window_full.seconds(trio.current_time()) == pytest.approx(7)
        link.end("over")
    await trio.sleep(10)
    assert link.window_full.seconds(trio.current_time()) == pytest.approx(7)


class FakeStore:
    """Answers with the revisions that the test says."""

    revision = 1

    async def range(self, prefix: str, limit: int = 0) -> RangeResult:
        await trio.lowlevel.checkpoint()
        return RangeResult((), self.revision)

    async def poll(self, prefix: str, from_revision: int) -> WatchBatch:
        await trio.lowlevel.checkpoint()
        return WatchBatch((), from_revision)


async def test_watches_that_are_behind() -> None:
    fake = FakeStore()
    store = MeasuredStore(cast("Any", fake), lambda: 0.0)
    await store.poll("", 5)
    assert store.watch_lag == 0
    fake.revision = 12
    await store.range("")
    assert store.watch_lag == 0, "there may have been nothing to bring"
    await store.poll("", 8)
    assert store.watch_lag == 4
    await store.poll("", 13)
    assert store.watch_lag == 0


async def test_deadlines_that_come_late(autojump_clock: MockClock) -> None:
    class Late(SystemEnvironment):
        def now(self) -> float:
            return trio.current_time() + 0.3

    late = Histogram()
    async with trio.open_nursery() as nursery:
        deadlines = Deadlines(nursery, Late(), late)
        call = cast("Any", type("Call", (), {"finished": True, "expired": False})())
        for _ in range(3):
            deadlines.add(trio.current_time() + 5, call)
        await trio.sleep(6)
        nursery.cancel_scope.cancel()
    # All three came late for one reason.
    assert late.count == 1
    assert late.total == pytest.approx(0.3)
    # A deadline that has always been over says nothing of the loop.
    assert math.isfinite(late.total)


async def test_the_end_of_a_certificate(tmp_path: Path) -> None:
    end = datetime.datetime(2039, 5, 17, 1, 2, 3, tzinfo=datetime.UTC)
    authority = trustme.CA()
    issued = authority.issue_cert("a.test", not_after=end)
    for name, pem in (
        ("ca", authority.cert_pem),
        ("certificate", issued.cert_chain_pems[0]),
        ("key", issued.private_key_pem),
    ):
        pem.write_to_path(str(tmp_path / name))
        (tmp_path / name).chmod(0o600)
    files = CertificateFiles(*(str(tmp_path / name) for name in ("ca", "certificate", "key")))
    network = EncryptedNetwork(
        SocketNetwork(), TlsPolicy(), SystemEnvironment(), FileCredentials(files)
    )
    found = Readings()
    _read_network(found, network)
    name = "understudy_tls_certificate_expiry_timestamp_seconds"
    assert found.numbers[name] == [((), end.timestamp())]
    assert found.numbers["understudy_tls_files_unusable"] == [((), 0)]
    (tmp_path / "key").chmod(0o644)
    found = Readings()
    _read_network(found, network)
    assert found.numbers[name] == [((), end.timestamp())], "what was read before"
    assert found.numbers["understudy_tls_files_unusable"] == [((), 1)]
    (tmp_path / "key").chmod(0o600)
    found = Readings()
    _read_network(found, network)
    assert found.numbers["understudy_tls_files_unusable"] == [((), 0)]


async def test_a_node_without_certificate_files_has_no_end_of_one(pair: Pair) -> None:
    assert number(pair.here, "understudy_tls_certificate_expiry_timestamp_seconds") is None
    assert number(pair.here, "understudy_spinning_connections") is not None
