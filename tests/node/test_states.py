"""States that actors save: large ones in parts, whole or not at all, and fenced."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from actors import Actor, ChildSpec, SpawnOptions, Supervisor, method
from actors.errors import StaleEpochError, StoreUnavailableError
from runtime.environment import SystemEnvironment
from runtime.membership.states import PART_BYTES, PARTS, States
from runtime.store.embedded import EmbeddedStore
from runtime.store.interface import Put
from tests.node.conftest import Pair


class Archive(Actor):
    """Keeps what it is given, and crashes when told to."""

    def __init__(self) -> None:
        self.kept: object = None

    async def on_start(self) -> None:
        self.kept = await self.saved()

    @method
    async def keep(self, what: object) -> None:
        await self.save(what)

    @method
    async def read(self) -> object:
        return self.kept

    @method
    async def crash(self) -> None:
        raise SystemExit(1)


class Fragile(EmbeddedStore):
    """A store that goes away after some writes."""

    writes = 1_000_000

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        self.writes -= 1
        if self.writes < 0:
            raise StoreUnavailableError("gone in the middle, by the test")
        return await super().put(key, value, lease)


@pytest.fixture
async def store() -> AsyncIterator[Fragile]:
    store = Fragile(SystemEnvironment())
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        yield store
        store.close()


async def claim(store: EmbeddedStore, name: str) -> int:
    return (await store.transaction([], [Put("owners/" + name, b"")])).revision


async def parts(store: EmbeddedStore) -> list[str]:
    return [entry.key.removeprefix(PARTS) for entry in (await store.range(PARTS)).entries]


def large(seed: int, parts: int = 3) -> bytes:
    return bytes([seed]) * (PART_BYTES * (parts - 1) + 1)


async def test_a_state_of_any_size_comes_back_and_the_one_before_leaves_nothing(store: Fragile) -> None:
    states, epoch = States(store, "owners/"), await claim(store, "a")
    assert await states.saved("a") is None
    for state in (b"", b"small", large(1), large(2, 2), large(3, 5), b"small again", large(4), bytes(PART_BYTES)):
        await states.save("a", epoch, state)
        assert await States(store, "owners/").saved("a") == state
    assert await parts(store) == []


async def test_a_state_that_is_not_written_to_its_end_changes_nothing_and_is_swept_up_by_the_next_owner(store: Fragile) -> None:
    states, epoch = States(store, "owners/"), await claim(store, "a")
    await states.save("a", epoch, large(1))
    store.writes = 1
    with pytest.raises(StoreUnavailableError):
        await states.save("a", epoch, large(2))
    store.writes = 1_000_000
    assert await states.saved("a") == large(1)
    assert len(await parts(store)) == 4
    later = await claim(store, "a")
    await States(store, "owners/").save("a", later, large(3))
    assert await states.saved("a") == large(3)
    await States(store, "owners/").save("a", await claim(store, "a"), large(4))
    assert len(await parts(store)) <= 6


async def test_a_fenced_owner_changes_nothing_however_large_its_state(store: Fragile) -> None:
    states, epoch = States(store, "owners/"), await claim(store, "a")
    await states.save("a", epoch, large(1))
    later = await claim(store, "a")
    await States(store, "owners/").save("a", later, large(2))
    for state in (large(3), b"small"):
        with pytest.raises(StaleEpochError, match="a successor has taken over"):
            await states.save("a", epoch, state)
    assert await states.saved("a") == large(2)


async def test_sweeping_spares_actors_whose_names_begin_alike(store: Fragile) -> None:
    states = States(store, "owners/")
    await states.save("a/1", await claim(store, "a/1"), large(1))
    await states.save("a/1/2", await claim(store, "a/1/2"), large(2))
    await states.save("a", await claim(store, "a"), large(3))
    await States(store, "owners/").save("a", await claim(store, "a"), large(4))
    assert await states.saved("a/1") == large(1)
    assert await states.saved("a/1/2") == large(2)


async def test_a_supervised_actor_gets_a_state_of_many_megabytes_back(pair: Pair) -> None:
    spec = ChildSpec(id="archive", actor=Archive, options=SpawnOptions(name="archive", on="there"))
    await pair.here.options(name="supervisor").spawn(Supervisor, [spec])
    archive = await pair.here.lookup("archive", Archive)
    state = {"pieces": [large(number) for number in range(3)], "text": "x" * 3_000_000}
    await archive.keep(state)
    await archive.crash.send()
    with trio.fail_after(10):
        while await archive.read() is None:  # noqa: ASYNC110  the crash is on its way
            await trio.sleep(0.01)
    assert await archive.read() == state
