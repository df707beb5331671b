"""Where values are: read in place by processes of the same host, in messages otherwise, and on disk
when there is too little memory.
"""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path
from typing import Any

import pytest
import trio

from actors import Reference
from actors.errors import ReferenceMemoryError, ReferenceNotReadyError
from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.node import Node, internals_of
from runtime.references.memory import spill as spill_module
from runtime.testing import Platform
from runtime.timings import Timings
from tests.references.conftest import SECRET, Three
from tests.references.keepers import Adder, Keeper, Maker, Viewer
from tests.references.test_references import until, values

numpy: Any = pytest.importorskip("numpy")

SHARED = pytest.mark.parametrize("shared", [True, False], ids=["read in place", "sent"])
MEGABYTE = 1024 * 1024


def share(three: Three, shared: bool) -> None:
    """Whether nodes read each other's memory."""
    for node in (three.driver, three.first, three.second):
        internals_of(node).references.fetcher._shared = shared


def taken(node: Node) -> int:
    """Bytes of the node's values that can be read in place, and another process can reach."""
    pool = internals_of(node).references._memory._pool
    assert pool is not None
    return pool.taken


@SHARED
async def test_an_array_arrives_as_it_was_and_cannot_be_written_to(
    three: Three, shared: bool
) -> None:
    share(three, shared)
    maker = await three.spawn(Maker, "first")
    array = numpy.arange(500_000, dtype=numpy.float64).reshape(1000, 500)
    reference = await maker.make.remote({"big": array, "small": array[0, :3].copy(), "text": "x"})
    for _ in range(2):
        found = await reference.fetch()
        assert (found["big"] == array).all()
        assert found["big"].dtype == array.dtype
        assert found["small"].tolist() == [0.0, 1.0, 2.0]
        for name in ("big", "small"):
            assert not found[name].flags.writeable
            with pytest.raises(ValueError, match="WRITEABLE"):
                found[name].flags.writeable = True
    assert taken(three.first)


async def test_memory_that_is_read_is_not_used_again_before_the_last_view_of_it_is_gone(
    three: Three,
) -> None:
    maker = await three.spawn(Maker, "first")
    reference = await maker.make.remote(numpy.full(MEGABYTE, 7, dtype=numpy.uint8))
    view = (await reference.fetch())[10:20]
    del reference
    gc.collect()
    await trio.sleep(0.3)
    for number in range(5):
        other = await maker.make.remote(numpy.full(MEGABYTE, number, dtype=numpy.uint8))
        assert (await other.fetch())[0] == number
        del other
    assert view.tolist() == [7] * 10
    assert values(three.first) >= 1
    del view
    await until(lambda: not values(three.first) and not taken(three.first))


@SHARED
async def test_a_fetch_during_which_the_reference_is_dropped_elsewhere_gets_the_value(
    three: Three, shared: bool
) -> None:
    share(three, shared)
    maker = await three.spawn(Maker, "first")
    adder = await three.spawn(Adder, "second")
    for number in range(20):
        reference = await maker.make.remote(numpy.full(100_000, number, dtype=numpy.float64))
        chained = await adder.total.remote(reference.as_value())
        del reference
        assert await chained.fetch() == number * 100_000


async def test_values_beyond_the_limit_go_to_disk_and_come_back(tmp_path: Path) -> None:
    async with open_node(
        "here", secret=SECRET, reference_memory=4 * MEGABYTE, reference_directory=tmp_path
    ) as here:
        references = [
            await here.put(numpy.full(MEGABYTE, number, dtype=numpy.uint8)) for number in range(12)
        ]
        value_store = internals_of(here).references.value_store
        await until(lambda: value_store.in_memory <= 4 * MEGABYTE)
        assert value_store.on_disk >= 8 * MEGABYTE
        assert not os.listdir(tmp_path), "the files have no names"
        for number, reference in enumerate(references):
            assert (await reference.fetch() == number).all()
        with pytest.raises(ReferenceNotReadyError, match="disk"):
            references[0].local_value()
        async with open_node("there", secret=SECRET, join=here.address):
            keeper: Any = await here.options(on="there").spawn(Keeper)
            await keeper.keep("first", references[0])
            assert (await keeper.fetch("first") == 0).all()
            await keeper.let_go("first")
        del references, reference
        await until(lambda: not value_store.on_disk and not value_store.in_memory)


async def test_a_value_that_others_read_in_place_stays_in_memory(tmp_path: Path) -> None:
    async with (
        open_node(
            "here", secret=SECRET, reference_memory=2 * MEGABYTE, reference_directory=tmp_path
        ) as here,
        open_node("there", secret=SECRET, join=here.address) as there,
    ):
        await there.wait_for(2)
        read = await here.put(numpy.full(MEGABYTE, 1, dtype=numpy.uint8))
        keeper: Any = await here.options(on="there").spawn(Viewer)
        assert await keeper.view(read) == 1
        others = [await here.put(numpy.full(MEGABYTE, 9, dtype=numpy.uint8)) for _ in range(6)]
        await until(lambda: internals_of(here).references.value_store.in_memory <= 2 * MEGABYTE)
        assert await keeper.look() == 1
        del others
        assert read.local_value()[0] == 1


async def test_a_full_disk_is_an_error_of_the_next_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(spill_module, "_nameless", full)
    # Nothing may be kept for as long as the disk is left alone.
    platform = Platform(environment=SystemEnvironment(Timings(disk_retry=3600.0)))
    async with open_node(
        "here",
        secret=SECRET,
        reference_memory=2 * MEGABYTE,
        reference_directory=tmp_path,
        platform=platform,
    ) as here:
        references: list[Reference[Any]] = []

        async def fill() -> None:
            while True:
                references.append(await here.put(bytes(MEGABYTE)))

        with (
            trio.fail_after(60),
            pytest.raises(ReferenceMemoryError, match=r"No space left.*release references"),
        ):
            await fill()
        assert 2 <= len(references) <= 4
        assert len(await references[0].fetch()) == MEGABYTE
        references.clear()
        await until(lambda: not internals_of(here).references.value_store.in_memory)
        await here.put(b"again")


async def test_a_disk_that_takes_nothing_is_tried_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, broken = spill_module._nameless, True

    def full(directory: Path) -> int:
        if broken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return usual(directory)

    monkeypatch.setattr(spill_module, "_nameless", full)
    platform = Platform(environment=SystemEnvironment(Timings(disk_retry=0.01)))
    async with open_node(
        "here",
        secret=SECRET,
        reference_memory=2 * MEGABYTE,
        reference_directory=tmp_path,
        platform=platform,
    ) as here:
        value_store = internals_of(here).references.value_store
        references = [await here.put(bytes(MEGABYTE)) for _ in range(2)]
        await until(lambda: value_store.broken)
        broken = False
        await until(lambda: value_store.on_disk)
        references += [await here.put(bytes(MEGABYTE)) for _ in range(4)]
        assert all([len(await reference.fetch()) == MEGABYTE for reference in references])


async def test_a_limit_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="reference_memory"):
        async with open_node("here", secret=SECRET, reference_memory=-1):
            pass
