"""That memory comes back when nothing can reach it, is used again, and is never two values' at
once.
"""

from __future__ import annotations

import errno
import gc
import os
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from runtime.environment import SystemEnvironment
from runtime.shared_memory.pool import Block, MemoryPool, block_size

MEBIBYTE = 1024 * 1024


def open_pool(limit: int = 64 * MEBIBYTE, kept: int = 64 * MEBIBYTE) -> MemoryPool:
    return MemoryPool(SystemEnvironment(), limit, kept)


def taken(pool: MemoryPool, size: int) -> Block:
    block = pool.take(size)
    assert block is not None
    return block


def resident(descriptor: int) -> int:
    """Bytes of memory that an arena has."""
    return os.stat(f"/proc/self/fd/{descriptor}").st_blocks * 512


def open_descriptors() -> int:
    """How many this process has, without those of garbage."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    "size", [0, 1, 4095, 4096, 4097, 100_000, MEBIBYTE, MEBIBYTE + 1, 8 * MEBIBYTE]
)
def test_a_block_has_exactly_the_size_that_was_asked_for(size: int) -> None:
    pool = open_pool()
    block = taken(pool, size)
    assert block.memory.nbytes == len(block.memory) == block.place.size == size
    block.memory[:] = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert block.lend() == block.memory
    assert pool.taken == block_size(size)


@pytest.mark.parametrize(
    "size", [*range(0, 300_000, 10_009), 8 * MEBIBYTE, 8 * MEBIBYTE + 1, 2**40 + 1]
)
def test_a_size_class_wastes_an_eighth_or_less_than_a_page(size: int) -> None:
    whole = block_size(size)
    assert size <= whole
    assert whole % 4096 == 0
    assert whole - size <= max(4096, size // 8)
    assert block_size(whole) == whole


def test_what_is_lent_cannot_be_written_to() -> None:
    view = taken(open_pool(), 100).lend()
    assert view.readonly
    with pytest.raises(TypeError):
        view[0] = 1
    with pytest.raises(TypeError):
        memoryview(view)[1:].cast("B")[0] = 1


def test_arrays_over_what_is_lent_cannot_be_made_writable() -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.frombuffer(taken(open_pool(), 800).lend(), dtype="float64")
    for made in (array, array[3:], array.view("int32"), array.reshape(10, 10)):
        with pytest.raises(ValueError, match="WRITEABLE"):
            made.setflags(write=True)
        with pytest.raises(ValueError, match="WRITEABLE"):
            made.flags.writeable = True
        with pytest.raises(ValueError, match="read-only"):
            made[0] = 1


def numpy_array(view: memoryview) -> Any:
    return pytest.importorskip("numpy").frombuffer(view, dtype="float64")


KEEPERS: dict[str, Callable[[Block], object]] = {
    "the block": lambda block: block,
    "its memory": lambda block: block.memory,
    "a slice of its memory": lambda block: block.memory[5:6],
    "a view": lambda block: block.lend(),
    "a slice": lambda block: block.lend()[10:20],
    "a slice of nothing": lambda block: block.lend()[10:10],
    "a cast": lambda block: block.lend().cast("d"),
    "a view of a view": lambda block: memoryview(block.lend()),
    "an array": lambda block: numpy_array(block.lend()),
    "a part of an array": lambda block: numpy_array(block.lend())[4:].reshape(2, -1).T,
    "a view of a part of an array": lambda block: memoryview(numpy_array(block.lend())[4:]),
    "an iterator": lambda block: iter(block.lend()),
    "a generator that reads": lambda block: (byte for byte in block.lend()),
}


@pytest.mark.parametrize("keeper", KEEPERS)
def test_a_block_comes_back_when_nothing_can_reach_its_bytes(keeper: str) -> None:
    pool = open_pool()
    block = taken(pool, 8000)
    place = block.place
    kept = [KEEPERS[keeper](block)]
    del block
    gc.collect()
    assert (pool.taken, pool.free) == (8192, 0)
    other = taken(pool, 8000)
    assert other.place != place
    kept.clear()
    assert (pool.taken, pool.free) == (8192, 8192)
    assert taken(pool, 8000).place == place


def test_the_block_that_came_back_last_is_taken_first() -> None:
    pool = open_pool()
    blocks = [taken(pool, 5000) for _ in range(3)]
    places = [block.place for block in blocks]
    for number in (1, 0, 2):
        blocks[number] = taken(pool, 100_000)
    assert [taken(pool, 5000).place for _ in range(1)] == [places[2]]
    again = [taken(pool, 5000) for _ in range(4)]
    assert [block.place for block in again][:3] == [places[2], places[0], places[1]]
    assert again[3].place not in places


def test_what_a_finalizer_saves_from_a_ring_of_garbage_is_not_used_again() -> None:
    class Saver:
        def __init__(self, view: memoryview, saved: list[memoryview]) -> None:
            self.ring, self.view, self.saved = self, view, saved

        def __del__(self) -> None:
            self.saved.append(self.view[:3])

    pool = open_pool()
    saved: list[memoryview] = []
    block = taken(pool, 3)
    block.memory[:] = b"abc"
    Saver(block.lend(), saved)
    del block
    gc.collect()
    assert len(saved) == 1
    taken(pool, 3).memory[:] = b"xyz"
    assert saved == [b"abc"]
    assert pool.taken == 4096
    saved.clear()
    assert pool.taken == 0


def test_the_limit_counts_what_is_taken_and_what_is_free() -> None:
    pool = open_pool(limit=10 * 4096)
    blocks = [taken(pool, 4096) for _ in range(10)]
    assert pool.take(1) is None
    blocks.pop()
    assert pool.take(2 * 4096) is None
    assert pool.take(4096) is not None
    blocks.clear()
    assert (pool.taken, pool.free) == (0, 10 * 4096)
    assert pool.take(11 * 4096) is None
    assert pool.free == 10 * 4096
    large = taken(pool, 9 * 4096)
    assert (pool.taken, pool.free) == (9 * 4096, 4096)
    del large


def test_memory_that_is_not_kept_goes_back_to_the_kernel() -> None:
    pool = open_pool(kept=2 * MEBIBYTE)
    blocks = [taken(pool, MEBIBYTE) for _ in range(8)]
    for block in blocks:
        block.memory[:] = b"x" * MEBIBYTE
    (descriptor,) = {block.place.descriptor for block in blocks}
    assert resident(descriptor) >= 8 * MEBIBYTE
    del blocks[2:], block
    assert (pool.taken, pool.free) == (2 * MEBIBYTE, 2 * MEBIBYTE)
    assert 4 * MEBIBYTE <= resident(descriptor) <= 5 * MEBIBYTE
    assert all(block.memory == b"x" * MEBIBYTE for block in blocks)


def test_an_arena_without_memory_is_closed() -> None:
    pool = open_pool(kept=0)
    before = open_descriptors()
    blocks = [taken(pool, MEBIBYTE) for _ in range(2)]
    key = blocks[0].place.key
    assert open_descriptors() > before
    blocks.pop()
    pool.tidy()
    assert taken(pool, MEBIBYTE).place.key == key
    blocks.clear()
    pool.tidy()
    assert open_descriptors() == before
    assert taken(pool, MEBIBYTE).place.key != key


@pytest.mark.parametrize("end", ["abandon", "close"])
def test_a_pool_ends_whose_descriptors_code_of_users_has_closed(end: str) -> None:
    pool = open_pool()
    block = taken(pool, 4096)
    os.close(block.place.descriptor)
    getattr(pool, end)()
    assert pool.take(4096) is None


def test_a_pool_that_is_closed_hands_out_nothing_and_what_it_lent_stays() -> None:
    pool = open_pool()
    block = taken(pool, 4096)
    block.memory[:] = b"y" * 4096
    view = block.lend()
    del block
    before = open_descriptors()
    pool.close()
    pool.close()
    assert open_descriptors() < before
    assert pool.take(1) is None
    assert view == b"y" * 4096
    del view
    assert (pool.taken, pool.free) == (0, 0)


def test_views_outlive_their_pool_and_nothing_is_left_when_they_are_gone() -> None:
    before = open_descriptors()
    pool = open_pool()
    block = taken(pool, 4096)
    block.memory[:] = b"z" * 4096
    view = block.lend()[1:]
    del block, pool
    gc.collect()
    assert view == b"z" * 4095
    del view
    assert open_descriptors() == before


def test_a_platform_without_such_memory_has_no_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    pool = open_pool()
    assert pool.take(1) is None
    assert (pool.taken, pool.free) == (0, 0)
    pool.close()


@pytest.mark.parametrize("call", ["memfd_create", "ftruncate"])
def test_a_kernel_that_refuses_means_no_block_and_leaves_nothing_open(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    pool = open_pool()
    before = open_descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        assert pool.take(1) is None
        assert open_descriptors() == before
    assert pool.take(1) is not None


def test_a_kernel_that_knows_no_seal_against_execution_is_asked_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create, asked = os.memfd_create, list[int]()

    def older(name: str, flags: int) -> int:
        asked.append(flags)
        if flags & 8:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return create(name, flags)

    monkeypatch.setattr(os, "memfd_create", older)
    assert open_pool().take(1) is not None
    assert len(asked) == 2


def test_values_do_not_change_while_threads_drop_views_and_collect_garbage() -> None:
    pool = open_pool(limit=MEBIBYTE, kept=MEBIBYTE // 4)
    held: list[tuple[bytes, object, memoryview]] = []
    wrong: list[bytes] = []
    done = threading.Event()

    def let_go() -> None:
        generator = random.Random(1)
        while not done.is_set() or held:
            try:
                expected, _ring, view = held.pop(generator.randrange(len(held)))
            except (IndexError, ValueError):
                continue
            if bytes(view) != expected:
                wrong.append(expected)
            del _ring, view
            if generator.random() < 0.02:
                gc.collect()

    threads = [threading.Thread(target=let_go) for _ in range(3)]
    for thread in threads:
        thread.start()
    generator = random.Random(0)
    count = 0
    while count < 1000:
        block = pool.take(generator.choice((100, 5000, 20_000)))
        if block is None:
            gc.collect()
            continue
        count += 1
        content = b"%08d" % count * (block.place.size // 8)
        block.memory[: len(content)] = content
        ring: list[object] = [block.lend()]
        ring.append(ring)
        held.append((content, ring, block.lend()[: len(content)]))
        del ring, block
    done.set()
    for thread in threads:
        thread.join()
    gc.collect()
    assert wrong == []
    assert pool.taken == 0


class PoolComparison(RuleBasedStateMachine):
    """Values are taken, lent and let go in any order; each must stay what it is, and the numbers
    must add up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.limit, self.kept = 40 * 4096, 12 * 4096
        self.pool = open_pool(self.limit, self.kept)
        self.values: list[tuple[bytes, int, list[Any]]] = []
        self.number = 0

    def occupied(self) -> int:
        return sum(size for _, size, _ in self.values)

    @rule(size=st.sampled_from([0, 1, 4096, 5000, 12_000, 30_000, 40 * 4096, 41 * 4096]))
    def take(self, size: int) -> None:
        block = self.pool.take(size)
        assert (block is None) == (self.occupied() + block_size(size) > self.limit)
        if block is not None:
            self.number += 1
            content = (b"%06d" % self.number * (size // 6 + 1))[:size]
            block.memory[:] = content
            self.values.append((content, block_size(size), [block]))

    @rule(data=st.data())
    def lend(self, data: st.DataObject) -> None:
        if self.values:
            _, _, keepers = data.draw(st.sampled_from(self.values))
            keeper = keepers[0]
            keepers.append(keeper.lend() if isinstance(keeper, Block) else keeper[:])

    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        if self.values:
            number = data.draw(st.integers(0, len(self.values) - 1))
            keepers = self.values[number][2]
            keepers.pop(data.draw(st.integers(0, len(keepers) - 1)))
            if not keepers:
                del self.values[number]

    @invariant()
    def everything_is_what_it_was(self) -> None:
        for content, _, keepers in self.values:
            for keeper in keepers:
                assert (keeper.memory if isinstance(keeper, Block) else keeper) == content

    @invariant()
    def the_numbers_add_up(self) -> None:
        assert self.pool.taken == self.occupied()
        assert self.pool.free <= self.kept
        assert self.pool.taken + self.pool.free <= self.limit


PoolComparison.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolComparison = PoolComparison.TestCase


@pytest.mark.parametrize("end", ["abandon", "close"])
@pytest.mark.parametrize("block_ends", ["before", "after"])
def test_a_pool_without_readers_leaves_no_memory_to_the_cyclic_collector(
    block_ends: str, end: str
) -> None:
    pool = MemoryPool(SystemEnvironment(), 1 << 26)
    block = pool.take(1_000_000)
    arena = weakref.ref(next(iter(pool._size_classes.values())).arenas[0])
    gc.collect()
    gc.disable()
    try:
        if block_ends == "before":
            del block
        getattr(pool, end)()
        del pool
        if block_ends == "after":
            assert arena() is not None
            del block
        assert arena() is None
    finally:
        gc.enable()
